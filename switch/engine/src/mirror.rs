//! The control side's picture of a pipeline: what was written, checked before the packet path hears of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use crate::bits::{canonical, limbs_of};
use crate::key::CanonKey;
use crate::program::{ActionWords, Program};
use crate::runtime::{Act, Op, RtClone, Runtime, VsetField};
use crate::state::Shared;
use crate::switch::{Live, Queue};
use crate::types::*;

/// Largest session that BMv2 takes.
const MAX_SESSION: u32 = 32_767;
/// Members a group may have, each counted as often as it weighs.
const MAX_GROUP: u64 = 1 << 16;
/// Replicas of a multicast group or a clone session.
const MAX_REPLICAS: usize = 4096;

/// Where the packet path's half is.
pub(crate) enum Place {
    /// Here: the pipeline is saved.
    Saved(Box<Live>),
    /// With the packet path, at the other end of the queue.
    Forwarding(Queue),
    Retired,
}

/// Hands out the lowest number that is free, as BMv2 does.
#[derive(Default)]
pub(crate) struct Slots {
    free: BinaryHeap<Reverse<u32>>,
    next: u32,
}

impl Slots {
    fn take(&mut self) -> u32 {
        self.free.pop().map_or_else(
            || {
                self.next += 1;
                self.next - 1
            },
            |r| r.0,
        )
    }

    fn give(&mut self, slot: u32) {
        self.free.push(Reverse(slot));
    }
}

struct CtlEntry {
    key: CanonKey,
    action: EntryAction,
    one_shot: Option<OneShot>,
    idle_timeout_ns: u64,
    meter: Option<MeterConfig>,
    metadata: Vec<u8>,
    seq: u64,
    is_const: bool,
    /// The time of the hit after which the entry was last reported idle.
    reported: u64,
}

/// Members and group that an entry made for itself.
struct OneShot {
    members: Vec<u32>,
    group: u32,
}

#[derive(Default)]
struct CtlTable {
    index: HashMap<CanonKey, u32>,
    entries: Vec<Option<CtlEntry>>,
    slots: Slots,
    seq: u64,
    /// Set by a controller; otherwise the program's.
    default: Option<(EntryAction, Option<OneShot>)>,
}

struct CtlMember {
    slot: u32,
    call: ActionCall,
    refs: u32,
}

struct CtlGroup {
    slot: u32,
    group: Group,
    refs: u32,
}

#[derive(Default)]
struct CtlProfile {
    members: BTreeMap<u32, CtlMember>,
    groups: BTreeMap<u32, CtlGroup>,
    member_slots: Slots,
    group_slots: Slots,
}

/// All of it.
pub(crate) struct Ctl {
    serial: u64,
    pub(crate) place: Place,
    tables: Vec<CtlTable>,
    profiles: Vec<CtlProfile>,
    pub(crate) meters: HashMap<(u32, u32), MeterConfig>,
    pub(crate) value_sets: Vec<Vec<ValueSetMember>>,
    pub(crate) multicast: BTreeMap<u16, Vec<Replica>>,
    pub(crate) clones: BTreeMap<u32, CloneSession>,
    shared: Arc<Shared>,
    /// Writes of a batch that the packet path is to get as one.
    gathered: Option<Vec<Op>>,
}

pub(crate) fn past_end(name: &str, index: usize) -> WriteError {
    WriteError::OutOfRange(format!("{name} has no cell {index}"))
}

pub(crate) fn unknown(what: &str) -> WriteError {
    WriteError::Invalid(format!("the program has no such {what}"))
}

pub(crate) fn check_meter(config: Option<&MeterConfig>) -> Result<(), WriteError> {
    match config {
        Some(c) if c.pir < c.cir => {
            Err(WriteError::Invalid("the peak rate is below the committed rate".into()))
        }
        _ => Ok(()),
    }
}

/// Action words of a call, checked against the actions that may be used.
fn words(program: &Program, allowed: &[ActionId], call: &ActionCall) -> Result<ActionWords, WriteError> {
    let Some(local) = allowed.iter().position(|a| *a == call.action) else {
        return Err(WriteError::Invalid("the action may not be used here".into()));
    };
    let info = &program.info.actions[call.action.index()];
    if call.params.len() != info.params.len() {
        return Err(WriteError::Invalid(format!(
            "action {} takes {} parameters",
            info.name,
            info.params.len()
        )));
    }
    let mut out = SmallVec::new();
    for (p, v) in info.params.iter().zip(&call.params) {
        let limbs = limbs_of(v, p.width).ok_or_else(|| {
            WriteError::OutOfRange(format!(
                "parameter {} of {}: more than {} bits",
                p.name, info.name, p.width
            ))
        })?;
        out.extend(limbs);
    }
    Ok(ActionWords { action: call.action, local: local as u32, words: out })
}

fn canonical_bytes(b: &[u8]) -> Vec<u8> {
    let zeros = b.iter().take_while(|x| **x == 0).count().min(b.len().saturating_sub(1));
    if b.is_empty() { vec![0] } else { b[zeros..].to_vec() }
}

fn canonical_call(call: &ActionCall) -> ActionCall {
    ActionCall { action: call.action, params: call.params.iter().map(|p| canonical_bytes(p)).collect() }
}

/// A call from the program's own words.
fn call_of(program: &Program, w: &ActionWords) -> ActionCall {
    let mut words = &w.words[..];
    let mut params = Vec::new();
    for n in &program.actions[w.action.index()].limbs {
        let (limbs, rest) = words.split_at(*n as usize);
        words = rest;
        params.push(canonical(limbs));
    }
    ActionCall { action: w.action, params }
}

impl Ctl {
    pub(crate) fn new(serial: u64, program: &Arc<Program>, shared: &Arc<Shared>) -> Ctl {
        let runtime = Runtime::new(serial, program, shared.clone());
        let info = &program.info;
        let mut ctl = Ctl {
            serial,
            place: Place::Saved(Box::new(Live { program: program.clone(), rt: runtime })),
            tables: info.tables.iter().map(|_| CtlTable::default()).collect(),
            profiles: info.profiles.iter().map(|_| CtlProfile::default()).collect(),
            meters: HashMap::new(),
            value_sets: vec![Vec::new(); info.value_sets.len()],
            multicast: BTreeMap::new(),
            clones: BTreeMap::new(),
            shared: shared.clone(),
            gathered: None,
        };
        for (table, key, w) in &program.const_entries {
            let act = Act::Call { action: w.action.0, local: w.local, words: w.words.clone() };
            let action = EntryAction::Call(call_of(program, w));
            let entry = CtlEntry {
                key: key.clone(),
                action,
                one_shot: None,
                idle_timeout_ns: 0,
                meter: None,
                metadata: Vec::new(),
                seq: 0,
                is_const: true,
                reported: 0,
            };
            ctl.place_entry(*table, entry, act);
        }
        ctl
    }

    /// Waits for room, so that what follows cannot fail half way.
    fn ready(&self) -> Result<(), WriteError> {
        match &self.place {
            Place::Forwarding(q) => q.wait(),
            _ => Ok(()),
        }
    }

    fn push(&mut self, op: Op) {
        match &mut self.place {
            Place::Saved(live) => live.rt.apply(op),
            Place::Forwarding(q) => match &mut self.gathered {
                Some(gathered) => gathered.push(op),
                None => q.op(self.serial, op),
            },
            Place::Retired => {}
        }
    }

    /// From now on writes are gathered.
    pub(crate) fn gather(&mut self) {
        self.gathered.get_or_insert_default();
    }

    /// Hands over what was gathered as one command.
    pub(crate) fn release_gathered(&mut self) {
        if let (Some(ops), Place::Forwarding(q)) = (self.gathered.take(), &self.place) {
            q.batch(self.serial, ops);
        }
    }

    pub(crate) fn send(&mut self, op: Op) -> Result<(), WriteError> {
        self.ready()?;
        self.push(op);
        Ok(())
    }

    fn table(&mut self, table: TableId) -> Result<&mut CtlTable, WriteError> {
        self.tables.get_mut(table.index()).ok_or_else(|| unknown("table"))
    }

    fn profile(&mut self, profile: ProfileId) -> Result<&mut CtlProfile, WriteError> {
        self.profiles.get_mut(profile.index()).ok_or_else(|| unknown("action profile"))
    }

    /// Puts a checked entry into a free slot.
    fn place_entry(&mut self, table: TableId, mut entry: CtlEntry, act: Act) {
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

    /// Checks an action and says what it is for the packet path. Takes references; a one-shot's members and
    /// group are made.
    fn resolve(
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
                let mut expanded = Vec::new();
                for (m, w) in list.iter().zip(calls) {
                    let slot = self.profiles[profile.index()].member_slots.take();
                    made.members.push(slot);
                    expanded.extend(std::iter::repeat_n(slot, m.weight as usize));
                    self.push(Op::Member {
                        profile: profile.0,
                        member: slot,
                        call: Some((w.action.0, w.words)),
                    });
                }
                self.push(Op::Group { profile: profile.0, group: made.group, members: expanded });
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

    /// Gives back what an entry's action held. The packet path has been told to let go before.
    fn release(
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
            made.members.iter().for_each(|m| p.member_slots.give(*m));
            p.group_slots.give(made.group);
            for member in made.members {
                self.push(Op::Member { profile: profile.0, member, call: None });
            }
            self.push(Op::Group { profile: profile.0, group: made.group, members: Vec::new() });
        }
    }

    /// What both insert and modify check of an entry besides key and action.
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
    fn find(
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

    /// The same, of an entry that may be changed.
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

    fn read(&self, program: &Program, shared: &Shared, table: TableId, slot: u32, e: &CtlEntry) -> Entry {
        let info = &program.info.tables[table.index()];
        let cell = shared.tables[table.index()].get(slot);
        let idle_us = cell.map_or(0, |c| shared.now_us.load(Relaxed).saturating_sub(c.last_us.load(Relaxed)));
        let spec = EntrySpec {
            key: program.tables[table.index()].key.entry_key(&e.key),
            action: e.action.clone(),
            idle_timeout_ns: e.idle_timeout_ns,
            meter: e.meter,
            counter: cell.filter(|_| info.has_counters).map(|c| c.get()),
            metadata: e.metadata.clone(),
        };
        let idle_ns = if info.support_timeout { idle_us.saturating_mul(1000) } else { 0 };
        Entry { spec, is_const: e.is_const, idle_ns }
    }

    pub(crate) fn entries(&self, program: &Program, shared: &Shared, table: TableId) -> Vec<Entry> {
        let Some(t) = self.tables.get(table.index()) else { return Vec::new() };
        let mut all: Vec<(u64, u32)> =
            t.entries.iter().enumerate().filter_map(|(s, e)| Some((e.as_ref()?.seq, s as u32))).collect();
        all.sort_unstable();
        let read = |(_, s): (u64, u32)| {
            t.entries[s as usize].as_ref().map(|e| self.read(program, shared, table, s, e))
        };
        all.into_iter().filter_map(read).collect()
    }

    pub(crate) fn entry(
        &mut self,
        program: &Program,
        shared: &Shared,
        table: TableId,
        key: &EntryKey,
    ) -> Result<Entry, WriteError> {
        let (_, slot) = self.find(program, table, key)?;
        match &self.tables[table.index()].entries[slot as usize] {
            Some(e) => Ok(self.read(program, shared, table, slot, e)),
            None => Err(WriteError::NotFound("an entry".into())),
        }
    }

    pub(crate) fn default_entry(&self, program: &Program, table: TableId) -> DefaultEntry {
        let Some(t) = self.tables.get(table.index()) else {
            return DefaultEntry { action: None, is_const: false, counter: None };
        };
        let plan = &program.tables[table.index()];
        let own = || plan.default.as_ref().map(|w| EntryAction::Call(call_of(program, w)));
        let action = t.default.as_ref().map(|d| d.0.clone()).or_else(own);
        DefaultEntry { action, is_const: plan.const_default, counter: None }
    }

    pub(crate) fn set_default(
        &mut self,
        program: &Program,
        table: TableId,
        action: Option<&EntryAction>,
    ) -> Result<(), WriteError> {
        self.table(table)?;
        let info = &program.info.tables[table.index()];
        let plan = &program.tables[table.index()];
        if plan.const_default {
            return Err(WriteError::Const(format!("the default action of table {}", info.name)));
        }
        if let (Some(EntryAction::Call(c)), Some(only)) = (action, plan.const_action)
            && c.action != only
        {
            return Err(WriteError::Const(format!("the default action of table {}", info.name)));
        }
        self.ready()?;
        let (act, new) = match action {
            Some(a) => {
                let (act, canon, shot) = self.resolve(program, table, a)?;
                (act, Some((canon, shot)))
            }
            None => {
                let own = plan.default.as_ref().map(|w| Act::Call {
                    action: w.action.0,
                    local: w.local,
                    words: w.words.clone(),
                });
                (own.unwrap_or_default(), None)
            }
        };
        self.push(Op::Default { table: table.0, act });
        let old = std::mem::replace(&mut self.tables[table.index()].default, new);
        if let Some((action, shot)) = old {
            self.release(program, table, &action, shot);
        }
        Ok(())
    }

    pub(crate) fn set_direct_counter(
        &mut self,
        program: &Program,
        table: TableId,
        key: &EntryKey,
        value: CounterData,
    ) -> Result<(), WriteError> {
        let (_, slot) = self.find(program, table, key)?;
        if !program.info.tables[table.index()].has_counters {
            return Err(WriteError::Invalid("the table has no direct counters".into()));
        }
        self.send(Op::EntryCounter { table: table.0, slot, value })
    }

    pub(crate) fn set_direct_meter(
        &mut self,
        program: &Program,
        table: TableId,
        key: &EntryKey,
        config: Option<MeterConfig>,
    ) -> Result<(), WriteError> {
        let (_, slot) = self.find(program, table, key)?;
        if program.info.tables[table.index()].direct_meter.is_none() {
            return Err(WriteError::Invalid("the table has no direct meter".into()));
        }
        check_meter(config.as_ref())?;
        self.send(Op::EntryMeter { table: table.0, slot, config })?;
        if let Some(e) = &mut self.tables[table.index()].entries[slot as usize] {
            e.meter = config;
        }
        Ok(())
    }

    pub(crate) fn take_idle(&mut self, program: &Program, shared: &Shared) -> Vec<(TableId, Entry)> {
        let now = shared.now_us.load(Relaxed);
        let mut out = Vec::new();
        for (i, info) in program.info.tables.iter().enumerate().filter(|(_, t)| t.support_timeout) {
            let table = TableId(i as u32);
            let mut due = Vec::new();
            for (slot, e) in self.tables[i].entries.iter_mut().enumerate() {
                let Some(e) = e.as_mut().filter(|e| e.idle_timeout_ns != 0) else { continue };
                let Some(cell) = shared.tables[i].get(slot as u32) else { continue };
                let last = cell.last_us.load(Relaxed);
                if now.saturating_sub(last) >= e.idle_timeout_ns.div_ceil(1000) && e.reported != last {
                    e.reported = last;
                    due.push(slot as u32);
                }
            }
            let _ = info;
            for slot in due {
                if let Some(e) = &self.tables[i].entries[slot as usize] {
                    out.push((table, self.read(program, shared, table, slot, e)));
                }
            }
        }
        out
    }

    pub(crate) fn insert_member(
        &mut self,
        program: &Program,
        profile: ProfileId,
        id: u32,
        call: &ActionCall,
    ) -> Result<(), WriteError> {
        let p = self.profile(profile)?;
        let info = &program.info.profiles[profile.index()];
        if p.members.contains_key(&id) {
            return Err(WriteError::AlreadyExists(format!("member {id} of {}", info.name)));
        }
        if info.max_size != 0 && p.members.len() >= info.max_size {
            return Err(WriteError::Full(format!("{} holds {} members", info.name, info.max_size)));
        }
        let w = words(program, &info.actions, call)?;
        self.ready()?;
        let p = self.profile(profile)?;
        let slot = p.member_slots.take();
        p.members.insert(id, CtlMember { slot, call: canonical_call(call), refs: 0 });
        self.push(Op::Member { profile: profile.0, member: slot, call: Some((w.action.0, w.words)) });
        Ok(())
    }

    pub(crate) fn modify_member(
        &mut self,
        program: &Program,
        profile: ProfileId,
        id: u32,
        call: &ActionCall,
    ) -> Result<(), WriteError> {
        self.profile(profile)?;
        let w = words(program, &program.info.profiles[profile.index()].actions, call)?;
        self.ready()?;
        let p = self.profile(profile)?;
        let m = p.members.get_mut(&id).ok_or_else(|| WriteError::NotFound(format!("member {id}")))?;
        m.call = canonical_call(call);
        let member = m.slot;
        self.push(Op::Member { profile: profile.0, member, call: Some((w.action.0, w.words)) });
        Ok(())
    }

    pub(crate) fn delete_member(&mut self, profile: ProfileId, id: u32) -> Result<(), WriteError> {
        self.ready()?;
        let p = self.profile(profile)?;
        let m = p.members.get(&id).ok_or_else(|| WriteError::NotFound(format!("member {id}")))?;
        if m.refs > 0 {
            return Err(WriteError::InUse(format!("member {id}")));
        }
        let member = m.slot;
        p.members.remove(&id);
        p.member_slots.give(member);
        self.push(Op::Member { profile: profile.0, member, call: None });
        Ok(())
    }

    pub(crate) fn members(&self, profile: ProfileId) -> Vec<(u32, ActionCall)> {
        let list = self.profiles.get(profile.index()).map(|p| &p.members);
        list.into_iter().flatten().map(|(id, m)| (*id, m.call.clone())).collect()
    }

    /// Checks a group; its members' slots, each as often as it weighs, in the order BMv2 counts them.
    fn expand(
        &mut self,
        program: &Program,
        profile: ProfileId,
        group: &Group,
    ) -> Result<Vec<u32>, WriteError> {
        let p = self.profile(profile)?;
        let info = &program.info.profiles[profile.index()];
        if !info.has_selector {
            return Err(WriteError::Invalid(format!("{} has no selector", info.name)));
        }
        let total: u64 = group.members.iter().map(|m| u64::from(m.weight)).sum();
        if total > MAX_GROUP || group.max_size != 0 && total > group.max_size.into() {
            return Err(WriteError::Full("the group's members weigh more than it holds".into()));
        }
        let mut out = Vec::new();
        for m in &group.members {
            if m.weight == 0 {
                return Err(WriteError::Invalid("a member of weight 0".into()));
            }
            let known = p.members.get(&m.member);
            let slot = known.ok_or_else(|| WriteError::NotFound(format!("member {}", m.member)))?.slot;
            out.extend(std::iter::repeat_n(slot, m.weight as usize));
        }
        out.sort_unstable();
        Ok(out)
    }

    fn count_members(&mut self, profile: ProfileId, group: &Group, up: bool) {
        for m in &group.members {
            if let Some(m) = self.profiles[profile.index()].members.get_mut(&m.member) {
                if up { m.refs += 1 } else { m.refs -= 1 }
            }
        }
    }

    pub(crate) fn insert_group(
        &mut self,
        program: &Program,
        profile: ProfileId,
        id: u32,
        group: &Group,
    ) -> Result<(), WriteError> {
        let members = self.expand(program, profile, group)?;
        self.ready()?;
        let p = self.profile(profile)?;
        if p.groups.contains_key(&id) {
            return Err(WriteError::AlreadyExists(format!("group {id}")));
        }
        let slot = p.group_slots.take();
        p.groups.insert(id, CtlGroup { slot, group: group.clone(), refs: 0 });
        self.count_members(profile, group, true);
        self.push(Op::Group { profile: profile.0, group: slot, members });
        Ok(())
    }

    pub(crate) fn modify_group(
        &mut self,
        program: &Program,
        profile: ProfileId,
        id: u32,
        group: &Group,
    ) -> Result<(), WriteError> {
        let members = self.expand(program, profile, group)?;
        self.ready()?;
        let p = self.profile(profile)?;
        let g = p.groups.get_mut(&id).ok_or_else(|| WriteError::NotFound(format!("group {id}")))?;
        let old = std::mem::replace(&mut g.group, group.clone());
        let slot = g.slot;
        self.count_members(profile, group, true);
        self.count_members(profile, &old, false);
        self.push(Op::Group { profile: profile.0, group: slot, members });
        Ok(())
    }

    pub(crate) fn delete_group(&mut self, profile: ProfileId, id: u32) -> Result<(), WriteError> {
        self.ready()?;
        let p = self.profile(profile)?;
        let g = p.groups.get(&id).ok_or_else(|| WriteError::NotFound(format!("group {id}")))?;
        if g.refs > 0 {
            return Err(WriteError::InUse(format!("group {id}")));
        }
        let slot = g.slot;
        let old = p.groups.remove(&id).map(|g| g.group).unwrap_or_default();
        p.group_slots.give(slot);
        self.count_members(profile, &old, false);
        self.push(Op::Group { profile: profile.0, group: slot, members: Vec::new() });
        Ok(())
    }

    pub(crate) fn groups(&self, profile: ProfileId) -> Vec<(u32, Group)> {
        let list = self.profiles.get(profile.index()).map(|p| &p.groups);
        list.into_iter().flatten().map(|(id, g)| (*id, g.group.clone())).collect()
    }

    pub(crate) fn set_value_set(
        &mut self,
        program: &Program,
        set: ValueSetId,
        members: &[ValueSetMember],
    ) -> Result<(), WriteError> {
        let info = program.info.value_sets.get(set.index()).ok_or_else(|| unknown("value set"))?;
        let mut out = Vec::new();
        for m in members {
            if m.len() != info.fields.len() {
                return Err(WriteError::Invalid(format!("{} has {} fields", info.name, info.fields.len())));
            }
            out.push(
                m.iter().zip(&info.fields).map(|(k, w)| vset_field(k, *w)).collect::<Result<Vec<_>, _>>()?,
            );
        }
        self.send(Op::ValueSet { set: set.0, members: out })?;
        self.value_sets[set.index()] = members.to_vec();
        Ok(())
    }

    pub(crate) fn set_multicast_group(
        &mut self,
        group: u16,
        replicas: Option<&[Replica]>,
    ) -> Result<(), WriteError> {
        if group == 0 {
            return Err(WriteError::Invalid("multicast group 0 means no multicast".into()));
        }
        if replicas.is_some_and(|r| r.len() > MAX_REPLICAS) {
            return Err(WriteError::Full(format!("a group has at most {MAX_REPLICAS} replicas")));
        }
        if replicas.is_none() && !self.multicast.contains_key(&group) {
            return Err(WriteError::NotFound(format!("multicast group {group}")));
        }
        self.send(Op::Multicast { group, replicas: replicas.map(<[_]>::to_vec) })?;
        match replicas {
            Some(r) => self.multicast.insert(group, r.to_vec()),
            None => self.multicast.remove(&group),
        };
        Ok(())
    }

    pub(crate) fn set_clone_session(
        &mut self,
        session: u32,
        config: Option<&CloneSession>,
    ) -> Result<(), WriteError> {
        if session > MAX_SESSION {
            return Err(WriteError::OutOfRange(format!("sessions go up to {MAX_SESSION}")));
        }
        if config.is_some_and(|c| c.replicas.len() > MAX_REPLICAS) {
            return Err(WriteError::Full(format!("a session has at most {MAX_REPLICAS} replicas")));
        }
        if config.is_none() && !self.clones.contains_key(&session) {
            return Err(WriteError::NotFound(format!("clone session {session}")));
        }
        let rt = config.map(|c| RtClone {
            replicas: c.replicas.clone(),
            group: c.multicast_group,
            truncate: if c.packet_length_bytes == 0 { u64::MAX } else { c.packet_length_bytes.into() },
            class_of_service: c.class_of_service,
        });
        self.send(Op::Clone { session, config: rt })?;
        match config {
            Some(c) => self.clones.insert(session, c.clone()),
            None => self.clones.remove(&session),
        };
        Ok(())
    }
}

fn vset_field(m: &KeyMatch, width: u32) -> Result<VsetField, WriteError> {
    let limbs = |b: &[u8]| {
        limbs_of(b, width).ok_or_else(|| WriteError::OutOfRange(format!("more than {width} bits")))
    };
    let full = || (0..crate::bits::limb_count(width)).map(|_| u64::MAX).collect();
    Ok(match m {
        KeyMatch::Exact(v) => VsetField::Masked(limbs(v)?, full()),
        KeyMatch::Ternary { value, mask } => VsetField::Masked(limbs(value)?, limbs(mask)?),
        KeyMatch::Lpm { value, prefix_len } if *prefix_len <= width => {
            VsetField::Masked(limbs(value)?, crate::key::prefix_mask(width, *prefix_len))
        }
        KeyMatch::Range { low, high } => VsetField::Range(limbs(low)?, limbs(high)?),
        KeyMatch::Any => VsetField::Masked(limbs(&[])?, limbs(&[])?),
        KeyMatch::Lpm { .. } => return Err(WriteError::Invalid("a prefix longer than the field".into())),
    })
}
