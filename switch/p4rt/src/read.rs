//! `Read` (P4Runtime section 13): every entity kind, one or all of them. A part of a key that is unset or zero
//! reads everything.

use std::collections::BTreeMap;
use std::fmt::Display;

use rivulet_engine::{DefaultEntry, Entry};

use crate::config::Config;
use crate::error::{Result, invalid, not_found, unimplemented};
use crate::index::{Array, Profile, Register, Table, find};
use crate::proto::p4::v1 as p4;
use crate::write::action::unpack_watch;
use crate::write::matching;
use crate::write::table::{absent, index_in, unpack_metadata, write_counter_data, write_meter_config};
use p4::entity::Entity;
use p4::packet_replication_engine_entry::Type as Kind;

type Found = Vec<p4::Entity>;

/// One object by its identifier, or all for 0.
fn one_or_all<'a, T>(map: &'a BTreeMap<u32, T>, id: u32, what: &str) -> Result<Vec<(u32, &'a T)>> {
    match id {
        0 => Ok(map.iter().map(|(id, object)| (*id, object)).collect()),
        id => Ok(vec![(id, find(map, id, what)?)]),
    }
}

fn push(found: &mut Found, entity: Entity) {
    found.push(p4::Entity { entity: Some(entity) });
}

impl Config {
    /// Adds what one request of a read asks for.
    ///
    /// # Errors
    /// As the specification has it for each kind; nothing is added then.
    pub fn read(&self, request: &Entity, found: &mut Found) -> Result<()> {
        let before = found.len();
        let result = self.read_kind(request, found);
        if result.is_err() {
            found.truncate(before);
        }
        result
    }

    fn read_kind(&self, request: &Entity, found: &mut Found) -> Result<()> {
        match request {
            Entity::TableEntry(e) => self.read_tables(e, found),
            Entity::ActionProfileMember(e) => self.read_members(e, found),
            Entity::ActionProfileGroup(e) => self.read_groups(e, found),
            Entity::MeterEntry(e) => self.read_meters(e, found),
            Entity::DirectMeterEntry(e) => self.read_direct_meters(e, found),
            Entity::CounterEntry(e) => self.read_counters(e, found),
            Entity::DirectCounterEntry(e) => self.read_direct_counters(e, found),
            Entity::PacketReplicationEngineEntry(e) => self.read_replication(e, found),
            Entity::ValueSetEntry(e) => self.read_value_sets(e, found),
            Entity::RegisterEntry(e) => self.read_registers(e, found),
            Entity::DigestEntry(e) => self.read_digests(e, found),
            Entity::ExternEntry(e) if e.extern_type_id == 0 && e.extern_id == 0 => Ok(()),
            Entity::ExternEntry(_) => Err(crate::write::profile::no_extern()),
        }
    }

    fn read_tables(&self, request: &p4::TableEntry, found: &mut Found) -> Result<()> {
        if request.table_id == 0 {
            if !request.r#match.is_empty() || request.action.is_some() {
                return Err(invalid("a read of all tables cannot be filtered by match or action"));
            }
        } else {
            let table = self.table(request.table_id)?;
            if request.time_since_last_hit.is_some() && !table.idle_timeout {
                return Err(invalid(format!("table {}: does not support idle timeouts", table.name)));
            }
        }
        for (_, table) in one_or_all(&self.index.tables, request.table_id, "table")? {
            if request.is_default_action {
                let entry = self.default_entry(table, &self.pipeline.default_entry(table.engine));
                if passes(request, &entry) {
                    push(found, Entity::TableEntry(entry));
                }
                continue;
            }
            for entry in self.entries(table, request)? {
                let entry = self.table_entry(table, &entry, request);
                if passes(request, &entry) {
                    push(found, Entity::TableEntry(entry));
                }
            }
        }
        Ok(())
    }

    /// Entries of a table with the request's key, all without one. A key that no entry has finds none.
    fn entries(&self, table: &Table, request: &p4::TableEntry) -> Result<Vec<Entry>> {
        if request.r#match.is_empty() || table.fields.is_empty() {
            return Ok(self.pipeline.entries(table.engine));
        }
        if table.has_priority && request.priority == 0 {
            let place = format_args!("table {}", table.name);
            let key = matching::read(&table.fields, &request.r#match, &place)?;
            let wanted = matching::write(&table.fields, &key);
            let same = |e: &Entry| matching::write(&table.fields, &e.spec.key.fields) == wanted;
            return Ok(self.pipeline.entries(table.engine).into_iter().filter(same).collect());
        }
        let key = self.entry_key(table, request)?;
        match self.pipeline.entry(table.engine, &key) {
            Ok(entry) => Ok(vec![entry]),
            Err(rivulet_engine::WriteError::NotFound(_)) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// The message for an entry, with those direct resources that the request asks for.
    #[allow(deprecated)]
    pub fn table_entry(&self, table: &Table, entry: &Entry, request: &p4::TableEntry) -> p4::TableEntry {
        let spec = &entry.spec;
        let kept = unpack_metadata(&spec.metadata);
        let elapsed = i64::try_from(entry.idle_ns).unwrap_or(i64::MAX);
        p4::TableEntry {
            table_id: table.id,
            r#match: matching::write(&table.fields, &spec.key.fields),
            action: Some(self.write_action(table, &spec.action)),
            priority: self.priority(table, spec.key.priority),
            controller_metadata: kept.controller_metadata,
            metadata: kept.metadata,
            meter_config: spec
                .meter
                .filter(|_| request.meter_config.is_some() && table.direct_meter.is_some())
                .map(write_meter_config),
            counter_data: spec
                .counter
                .filter(|_| request.counter_data.is_some() && table.direct_counter)
                .map(write_counter_data),
            idle_timeout_ns: i64::try_from(spec.idle_timeout_ns).unwrap_or(i64::MAX),
            time_since_last_hit: (request.time_since_last_hit.is_some() && table.idle_timeout)
                .then_some(p4::table_entry::IdleTimeout { elapsed_ns: elapsed }),
            is_const: entry.is_const,
            ..p4::TableEntry::default()
        }
    }

    #[allow(deprecated)]
    fn default_entry(&self, table: &Table, entry: &DefaultEntry) -> p4::TableEntry {
        let no_metadata = Vec::new();
        let kept = unpack_metadata(self.default_metadata.get(&table.id).unwrap_or(&no_metadata));
        // The default of a table with a profile is NoAction, which the program does not spell out.
        let no_action = || {
            let id = table
                .actions
                .keys()
                .find(|id| self.index.actions.get(id).is_some_and(|a| a.name == "NoAction"));
            id.map(|id| p4::TableAction {
                r#type: Some(p4::table_action::Type::Action(p4::Action {
                    action_id: *id,
                    params: Vec::new(),
                })),
            })
        };
        p4::TableEntry {
            table_id: table.id,
            action: entry.action.as_ref().map(|a| self.write_action(table, a)).or_else(no_action),
            is_default_action: true,
            is_const: entry.is_const || table.const_default || table.profile.is_some(),
            controller_metadata: kept.controller_metadata,
            metadata: kept.metadata,
            ..p4::TableEntry::default()
        }
    }

    fn read_members(&self, request: &p4::ActionProfileMember, found: &mut Found) -> Result<()> {
        for (id, profile) in one_or_all(&self.index.profiles, request.action_profile_id, "action profile")? {
            let all = self.pipeline.members(profile.engine);
            let before = found.len();
            for (member_id, call) in all.iter().filter(|(m, _)| [0, *m].contains(&request.member_id)) {
                let action = Some(self.write_call(call));
                let (action_profile_id, member_id) = (id, *member_id);
                push(
                    found,
                    Entity::ActionProfileMember(p4::ActionProfileMember {
                        action_profile_id,
                        member_id,
                        action,
                    }),
                );
            }
            none(
                found.len() == before,
                request.action_profile_id,
                request.member_id,
                &format_args!("member of {}", profile.name),
            )?;
        }
        Ok(())
    }

    fn read_groups(&self, request: &p4::ActionProfileGroup, found: &mut Found) -> Result<()> {
        for (id, profile) in one_or_all(&self.index.profiles, request.action_profile_id, "action profile")? {
            if !profile.with_selector {
                continue;
            }
            let all = self.pipeline.groups(profile.engine);
            let before = found.len();
            for (group_id, group) in all.iter().filter(|(g, _)| [0, *g].contains(&request.group_id)) {
                push(found, Entity::ActionProfileGroup(self.group(id, profile, *group_id, group)));
            }
            none(
                found.len() == before,
                request.action_profile_id,
                request.group_id,
                &format_args!("group of {}", profile.name),
            )?;
        }
        Ok(())
    }

    fn group(
        &self,
        id: u32,
        profile: &Profile,
        group_id: u32,
        group: &rivulet_engine::Group,
    ) -> p4::ActionProfileGroup {
        let max_size = self.profiles.get(&id).and_then(|p| p.groups.get(&group_id)).copied().unwrap_or(0);
        let member = |m: &rivulet_engine::GroupMember| p4::action_profile_group::Member {
            member_id: m.member,
            weight: if profile.weights_disallowed { 0 } else { m.weight as i32 },
            watch_kind: unpack_watch(&m.watch_port).map(Into::into),
        };
        let members = group.members.iter().map(member).collect();
        p4::ActionProfileGroup { action_profile_id: id, group_id, members, max_size }
    }

    fn read_counters(&self, request: &p4::CounterEntry, found: &mut Found) -> Result<()> {
        for (id, counter) in one_or_all(&self.index.counters, request.counter_id, "counter")? {
            for at in array_cells(request.counter_id, request.index.as_ref(), counter)? {
                let data = Some(write_counter_data(self.pipeline.counter(counter.engine, at)?));
                push(
                    found,
                    Entity::CounterEntry(p4::CounterEntry { counter_id: id, index: index(at), data }),
                );
            }
        }
        Ok(())
    }

    fn read_meters(&self, request: &p4::MeterEntry, found: &mut Found) -> Result<()> {
        if request.counter_data.is_some() {
            return Err(unimplemented("meters do not count packets by colour"));
        }
        for (id, meter) in one_or_all(&self.index.meters, request.meter_id, "meter")? {
            for at in array_cells(request.meter_id, request.index.as_ref(), meter)? {
                let config = self.pipeline.meter(meter.engine, at)?.map(write_meter_config);
                let entry = p4::MeterEntry { meter_id: id, index: index(at), config, counter_data: None };
                push(found, Entity::MeterEntry(entry));
            }
        }
        Ok(())
    }

    fn read_registers(&self, request: &p4::RegisterEntry, found: &mut Found) -> Result<()> {
        for (id, register) in one_or_all(&self.index.registers, request.register_id, "register")? {
            for at in register_cells(request, register)? {
                let value = self.pipeline.register(register.engine, at)?;
                let data = Some(register.data.write(&mut std::iter::once(value.as_slice())));
                push(
                    found,
                    Entity::RegisterEntry(p4::RegisterEntry { register_id: id, index: index(at), data }),
                );
            }
        }
        Ok(())
    }

    fn read_direct_counters(&self, request: &p4::DirectCounterEntry, found: &mut Found) -> Result<()> {
        let wanted = request.table_entry.clone().unwrap_or_default();
        for (table, entry) in self.direct(&wanted, "counter", |t| t.direct_counter)? {
            let data = entry.spec.counter.map(write_counter_data);
            let table_entry = Some(self.key_only(table, &entry));
            push(found, Entity::DirectCounterEntry(p4::DirectCounterEntry { table_entry, data }));
        }
        Ok(())
    }

    fn read_direct_meters(&self, request: &p4::DirectMeterEntry, found: &mut Found) -> Result<()> {
        if request.counter_data.is_some() {
            return Err(unimplemented("meters do not count packets by colour"));
        }
        let wanted = request.table_entry.clone().unwrap_or_default();
        for (table, entry) in self.direct(&wanted, "meter", |t| t.direct_meter.is_some())? {
            let config = entry.spec.meter.map(write_meter_config);
            let table_entry = Some(self.key_only(table, &entry));
            push(
                found,
                Entity::DirectMeterEntry(p4::DirectMeterEntry { table_entry, config, counter_data: None }),
            );
        }
        Ok(())
    }

    /// Entries whose direct resource is asked for: by key, of one table, or of all that have it.
    fn direct(
        &self,
        wanted: &p4::TableEntry,
        what: &str,
        has: impl Fn(&Table) -> bool,
    ) -> Result<Vec<(&Table, Entry)>> {
        if wanted.is_default_action {
            return Err(unimplemented(format!("v1model has no direct {what} for default entries")));
        }
        let mut all = Vec::new();
        for (_, table) in one_or_all(&self.index.tables, wanted.table_id, "table")? {
            if has(table) {
                all.extend(self.entries(table, wanted)?.into_iter().map(|e| (table, e)));
            } else if wanted.table_id != 0 {
                return Err(invalid(format!("table {}: has no direct {what}", table.name)));
            }
        }
        if all.is_empty() && !wanted.r#match.is_empty() {
            return Err(not_found("there is no such table entry"));
        }
        Ok(all)
    }

    fn key_only(&self, table: &Table, entry: &Entry) -> p4::TableEntry {
        p4::TableEntry {
            table_id: table.id,
            r#match: matching::write(&table.fields, &entry.spec.key.fields),
            priority: self.priority(table, entry.spec.key.priority),
            ..p4::TableEntry::default()
        }
    }

    fn read_replication(&self, request: &p4::PacketReplicationEngineEntry, found: &mut Found) -> Result<()> {
        let mut add = |kind: Kind| {
            let entry = p4::PacketReplicationEngineEntry { r#type: Some(kind) };
            push(found, Entity::PacketReplicationEngineEntry(entry));
        };
        match request.r#type.as_ref() {
            Some(Kind::MulticastGroupEntry(g)) => match g.multicast_group_id {
                0 => self.multicast.values().for_each(|g| add(Kind::MulticastGroupEntry(g.clone()))),
                id => add(Kind::MulticastGroupEntry(
                    self.multicast.get(&id).ok_or_else(|| absent("multicast group", id))?.clone(),
                )),
            },
            Some(Kind::CloneSessionEntry(c)) => match c.session_id {
                0 => self.clones.values().for_each(|c| add(Kind::CloneSessionEntry(c.clone()))),
                id => add(Kind::CloneSessionEntry(
                    self.clones.get(&id).ok_or_else(|| absent("clone session", id))?.clone(),
                )),
            },
            None => {
                self.multicast.values().for_each(|g| add(Kind::MulticastGroupEntry(g.clone())));
                self.clones.values().for_each(|c| add(Kind::CloneSessionEntry(c.clone())));
            }
        }
        Ok(())
    }

    fn read_value_sets(&self, request: &p4::ValueSetEntry, found: &mut Found) -> Result<()> {
        for (id, set) in one_or_all(&self.index.value_sets, request.value_set_id, "value set")? {
            let member = |m: &Vec<_>| p4::ValueSetMember { r#match: matching::write(&set.fields, m) };
            let members = self.pipeline.value_set(set.engine).iter().map(member).collect();
            push(found, Entity::ValueSetEntry(p4::ValueSetEntry { value_set_id: id, members }));
        }
        Ok(())
    }

    fn read_digests(&self, request: &p4::DigestEntry, found: &mut Found) -> Result<()> {
        if request.digest_id != 0 {
            find(&self.index.digests, request.digest_id, "digest")?;
            let config = self.digests.get(&request.digest_id);
            let config = config.ok_or_else(|| not_found(format!("digest {} is off", request.digest_id)))?;
            let entry = p4::DigestEntry { digest_id: request.digest_id, config: Some(*config) };
            push(found, Entity::DigestEntry(entry));
            return Ok(());
        }
        for (id, config) in &self.digests {
            push(found, Entity::DigestEntry(p4::DigestEntry { digest_id: *id, config: Some(*config) }));
        }
        Ok(())
    }
}

/// Whether an entry passes the filters of a request (P4Runtime section 9.1.6).
#[allow(deprecated)]
fn passes(request: &p4::TableEntry, entry: &p4::TableEntry) -> bool {
    use p4::table_action::Type;
    let action_id = |e: &p4::TableEntry| match e.action.as_ref().and_then(|a| a.r#type.as_ref()) {
        Some(Type::Action(a)) => Some(a.action_id),
        _ => None,
    };
    (request.priority == 0 || request.priority == entry.priority)
        && (request.controller_metadata == 0 || request.controller_metadata == entry.controller_metadata)
        && (request.metadata.is_empty() || request.metadata == entry.metadata)
        && action_id(request).is_none_or(|id| id == 0 || action_id(entry) == Some(id))
}

/// NOT_FOUND when one object was asked for by both identifiers and is not there.
fn none(nothing: bool, outer: u32, inner: u32, what: &dyn Display) -> Result<()> {
    if nothing && outer != 0 && inner != 0 {
        Err(not_found(format!("no {what} has the id {inner}")))
    } else {
        Ok(())
    }
}

fn index(at: usize) -> Option<p4::Index> {
    Some(p4::Index { index: i64::try_from(at).unwrap_or(i64::MAX) })
}

fn cells(id: u32, index: Option<&p4::Index>, size: usize, name: &str) -> Result<std::ops::Range<usize>> {
    match index {
        Some(_) if id == 0 => Err(invalid("an index without the id of its array")),
        Some(index) => index_in(index, size, &name).map(|at| at..at + 1),
        None => Ok(0..size),
    }
}

fn array_cells<T>(id: u32, index: Option<&p4::Index>, array: &Array<T>) -> Result<std::ops::Range<usize>> {
    cells(id, index, array.size, &array.name)
}

fn register_cells(request: &p4::RegisterEntry, register: &Register) -> Result<std::ops::Range<usize>> {
    cells(request.register_id, request.index.as_ref(), register.size, &register.name)
}
