//! Entries of tables, and the members and groups that their actions use.

use super::*;

impl Ctl {
    /// Stores a checked entry in a free slot.
    pub(super) fn place_entry(&mut self, table: TableId, mut entry: CtlEntry, act: Act) {
        let t = &mut self.tables[table.index()];
        let slot = t.slots.take();
        t.seq += 1;
        entry.seq = t.seq;
        t.index.insert(entry.key.clone(), slot);
        if t.entries.len() <= slot as usize {
            t.entries.resize_with(slot as usize + 1, || None);
        }
        let key = Box::new(entry.key.clone());
        let meter = entry.meter;
        t.entries[slot as usize] = Some(entry);
        self.shared.tables[table.index()].provide(slot);
        self.push(Op::Insert { table: table.0, slot, key, act });
        if meter.is_some() {
            self.push(Op::EntryMeter { table: table.0, slot, config: meter });
        }
    }

    /// Checks an action and converts it for the packet path. Takes references, and creates a
    /// one-shot's members and group.
    pub(super) fn resolve(
        &mut self,
        program: &Program,
        table: TableId,
        action: &EntryAction,
    ) -> Result<(Act, EntryAction, Option<OneShot>), WriteError> {
        let info = &program.info.tables[table.index()];
        let invalid = |what: &str| Err(WriteError::Invalid(format!("table {}: {what}", info.name)));
        let Some(profile) = info.profile else {
            let EntryAction::Call(call) = action else { return invalid("it has no action profile") };
            let w = words(program, &info.actions, call)?;
            let act = Act::Call { action: w.action.0, local: w.local, words: w.words };
            return Ok((act, EntryAction::Call(canonical_call(call)), None));
        };
        let selector = program.info.profiles[profile.index()].has_selector;
        let p = &mut self.profiles[profile.index()];
        match action {
            EntryAction::Call(_) => invalid("its action profile takes members, not actions"),
            EntryAction::Member(id) => match p.members.get_mut(id) {
                Some(m) => {
                    m.refs += 1;
                    Ok((Act::Member(m.slot), action.clone(), None))
                }
                None => Err(WriteError::NotFound(format!("member {id}"))),
            },
            EntryAction::Group(_) | EntryAction::OneShot(_) if !selector => {
                invalid("its profile has no selector")
            }
            EntryAction::Group(id) => match p.groups.get_mut(id) {
                Some(g) => {
                    g.refs += 1;
                    Ok((Act::Group(g.slot), action.clone(), None))
                }
                None => Err(WriteError::NotFound(format!("group {id}"))),
            },
            EntryAction::OneShot(list) => {
                let total: u64 = list.iter().map(|m| u64::from(m.weight)).sum();
                if list.is_empty() || list.iter().any(|m| m.weight == 0) {
                    return invalid("a one-shot needs actions, each of weight 1 or more");
                }
                if total > MAX_GROUP {
                    return Err(WriteError::Full(format!("a group weighs at most {MAX_GROUP}")));
                }
                let calls = list
                    .iter()
                    .map(|m| words(program, &info.actions, &m.call))
                    .collect::<Result<Vec<_>, _>>()?;
                let mut made = OneShot { members: Vec::new(), group: p.group_slots.take() };
                for w in calls {
                    let slot = self.profiles[profile.index()].member_slots.take();
                    made.members.push(slot);
                    self.push(Op::Member {
                        profile: profile.0,
                        member: slot,
                        call: Some((w.action.0, w.words)),
                    });
                }
                let members = self.one_shot_members(list, &made);
                self.push(Op::Group { profile: profile.0, group: made.group, members });
                let canon = list
                    .iter()
                    .map(|m| OneShotMember {
                        call: canonical_call(&m.call),
                        weight: m.weight,
                        watch_port: m.watch_port.clone(),
                    })
                    .collect();
                Ok((Act::Group(made.group), EntryAction::OneShot(canon), Some(made)))
            }
        }
    }

    /// Releases the members and groups of an entry's action, after the packet path has stopped
    /// using them.
    pub(super) fn release(
        &mut self,
        program: &Program,
        table: TableId,
        action: &EntryAction,
        one_shot: Option<OneShot>,
    ) {
        let Some(profile) = program.info.tables[table.index()].profile else { return };
        let p = &mut self.profiles[profile.index()];
        match action {
            EntryAction::Member(id) => {
                if let Some(m) = p.members.get_mut(id) {
                    m.refs -= 1;
                }
            }
            EntryAction::Group(id) => {
                if let Some(g) = p.groups.get_mut(id) {
                    g.refs -= 1;
                }
            }
            _ => {}
        }
        if let Some(made) = one_shot {
            p.group_slots.give(made.group);
            for member in made.members {
                self.profiles[profile.index()].member_slots.give(member);
                self.push(Op::Member { profile: profile.0, member, call: None });
            }
            self.push(Op::Group { profile: profile.0, group: made.group, members: Vec::new() });
        }
    }

    /// Checks of an entry that insert and modify share, besides key and action.
    fn check_entry(program: &Program, table: TableId, entry: &EntrySpec) -> Result<(), WriteError> {
        let info = &program.info.tables[table.index()];
        let invalid = |what: &str| Err(WriteError::Invalid(format!("table {} {what}", info.name)));
        if entry.idle_timeout_ns != 0 && !info.support_timeout {
            return invalid("has no idle timeouts");
        }
        if entry.meter.is_some() && info.direct_meter.is_none() {
            return invalid("has no direct meter");
        }
        if entry.counter.is_some() && !info.has_counters {
            return invalid("has no direct counters");
        }
        check_meter(entry.meter.as_ref())
    }

    pub(crate) fn insert(
        &mut self,
        program: &Program,
        table: TableId,
        entry: &EntrySpec,
    ) -> Result<(), WriteError> {
        self.table(table)?;
        let info = &program.info.tables[table.index()];
        if info.key.is_empty() {
            return Err(WriteError::Invalid(format!("table {} has no key, hence no entries", info.name)));
        }
        let key = program.tables[table.index()].key.canon(info, &entry.key)?;
        Self::check_entry(program, table, entry)?;
        if info.const_entries {
            return Err(WriteError::Const(format!("the entries of table {}", info.name)));
        }
        let t = self.table(table)?;
        if t.index.contains_key(&key) {
            return Err(WriteError::AlreadyExists(format!("an entry of table {}", info.name)));
        }
        if t.index.len() >= info.max_size {
            return Err(WriteError::Full(format!("table {} holds {} entries", info.name, info.max_size)));
        }
        self.ready()?;
        let (act, action, one_shot) = self.resolve(program, table, &entry.action)?;
        let new = CtlEntry {
            key: key.clone(),
            action,
            one_shot,
            idle_timeout_ns: entry.idle_timeout_ns,
            meter: entry.meter,
            metadata: entry.metadata.clone(),
            seq: 0,
            is_const: false,
            reported: u64::MAX,
        };
        self.place_entry(table, new, act);
        if let Some(value) = entry.counter {
            let slot = self.tables[table.index()].index[&key];
            self.push(Op::EntryCounter { table: table.0, slot, value });
        }
        Ok(())
    }

    /// The slot of an entry.
    pub(super) fn find(
        &mut self,
        program: &Program,
        table: TableId,
        key: &EntryKey,
    ) -> Result<(CanonKey, u32), WriteError> {
        self.table(table)?;
        let info = &program.info.tables[table.index()];
        let key = program.tables[table.index()].key.canon(info, key)?;
        match self.tables[table.index()].index.get(&key) {
            Some(slot) => Ok((key, *slot)),
            None => Err(WriteError::NotFound(format!("an entry of table {}", info.name))),
        }
    }

    /// The same for an entry that may be changed.
    fn find_mutable(
        &mut self,
        program: &Program,
        table: TableId,
        key: &EntryKey,
    ) -> Result<(CanonKey, u32), WriteError> {
        let found = self.find(program, table, key)?;
        let info = &program.info.tables[table.index()];
        if info.const_entries {
            Err(WriteError::Const(format!("the entries of table {}", info.name)))
        } else {
            Ok(found)
        }
    }

    pub(crate) fn modify(
        &mut self,
        program: &Program,
        table: TableId,
        entry: &EntrySpec,
    ) -> Result<(), WriteError> {
        let (_, slot) = self.find_mutable(program, table, &entry.key)?;
        Self::check_entry(program, table, entry)?;
        self.ready()?;
        let (act, action, one_shot) = self.resolve(program, table, &entry.action)?;
        self.push(Op::Modify { table: table.0, slot, act });
        let Some(e) = &mut self.tables[table.index()].entries[slot as usize] else { return Ok(()) };
        let old_meter = std::mem::replace(&mut e.meter, entry.meter);
        e.idle_timeout_ns = entry.idle_timeout_ns;
        e.metadata = entry.metadata.clone();
        e.reported = u64::MAX;
        let old = std::mem::replace(&mut e.action, action);
        let old_shot = std::mem::replace(&mut e.one_shot, one_shot);
        self.release(program, table, &old, old_shot);
        if old_meter != entry.meter {
            self.push(Op::EntryMeter { table: table.0, slot, config: entry.meter });
        }
        if let Some(value) = entry.counter {
            self.push(Op::EntryCounter { table: table.0, slot, value });
        }
        Ok(())
    }

    pub(crate) fn delete(
        &mut self,
        program: &Program,
        table: TableId,
        key: &EntryKey,
    ) -> Result<(), WriteError> {
        let (key, slot) = self.find_mutable(program, table, key)?;
        self.ready()?;
        self.remove(program, table, &key, slot);
        Ok(())
    }

    fn remove(&mut self, program: &Program, table: TableId, key: &CanonKey, slot: u32) {
        self.push(Op::Delete { table: table.0, slot });
        let t = &mut self.tables[table.index()];
        t.index.remove(key);
        t.slots.give(slot);
        if let Some(e) = t.entries[slot as usize].take() {
            self.release(program, table, &e.action, e.one_shot);
        }
    }

    pub(crate) fn clear_table(&mut self, program: &Program, table: TableId) -> Result<(), WriteError> {
        let t = self.table(table)?;
        let all: Vec<(CanonKey, u32)> = t
            .index
            .iter()
            .filter(|(_, s)| t.entries[**s as usize].as_ref().is_some_and(|e| !e.is_const))
            .map(|(k, s)| (k.clone(), *s))
            .collect();
        for (key, slot) in all {
            self.ready()?;
            self.remove(program, table, &key, slot);
        }
        Ok(())
    }
}
