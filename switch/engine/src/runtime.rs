//! The packet path's state of a pipeline, and the commands that change it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::key::{CanonKey, Words};
use crate::program::Program;
use crate::state::{Meter, Shared};
use crate::table::Lookup;
use crate::types::{CounterData, DigestId, MeterConfig, Replica};

/// Action of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Act {
    /// None: a miss without a default action, or a group without members.
    #[default]
    None,
    Call {
        action: u32,
        /// Index in the table's list of actions.
        local: u32,
        words: SmallVec<[u64; 6]>,
    },
    /// A member of the table's profile.
    Member(u32),
    /// A group of the table's profile.
    Group(u32),
}

/// A table.
pub(crate) struct RtTable {
    pub(crate) lookup: Lookup,
    pub(crate) entries: Vec<Act>,
    /// Direct meters of entries.
    pub(crate) meters: HashMap<u32, Mutex<Meter>>,
    pub(crate) default: Act,
    /// Whether hits are counted, and whether their time is recorded.
    pub(crate) counted: bool,
    pub(crate) timed: bool,
    pub(crate) profile: Option<u32>,
}

/// An action profile.
#[derive(Clone, Default)]
pub(crate) struct RtProfile {
    /// Action and parameters of each member.
    pub(crate) members: Vec<Option<(u32, SmallVec<[u64; 6]>)>>,
    /// Members of each group, each repeated by its weight.
    pub(crate) groups: Vec<Vec<u32>>,
}

/// A clone session.
#[derive(Clone, Debug, Default)]
pub(crate) struct RtClone {
    pub(crate) replicas: Vec<Replica>,
    pub(crate) group: Option<u16>,
    /// Bytes kept, `u64::MAX` for all.
    pub(crate) truncate: u64,
    pub(crate) class_of_service: u32,
}

/// A field of a value set's member: value and mask, or low and high.
#[derive(Clone, Debug)]
pub(crate) enum VsetField {
    Masked(Words, Words),
    Range(Words, Words),
}

/// A change of the packet path's state, already checked.
pub(crate) enum Op {
    Insert { table: u32, slot: u32, key: Box<CanonKey>, act: Act },
    Modify { table: u32, slot: u32, act: Act },
    Delete { table: u32, slot: u32 },
    Default { table: u32, act: Act },
    EntryMeter { table: u32, slot: u32, config: Option<MeterConfig> },
    EntryCounter { table: u32, slot: u32, value: CounterData },
    Member { profile: u32, member: u32, call: Option<(u32, SmallVec<[u64; 6]>)> },
    Group { profile: u32, group: u32, members: Vec<u32> },
    Counter { counter: u32, index: usize, value: CounterData },
    Meter { meter: u32, index: u32, config: Option<MeterConfig> },
    Register { register: u32, index: usize, limbs: Words },
    ValueSet { set: u32, members: Vec<Vec<VsetField>> },
    Multicast { group: u16, replicas: Option<Vec<Replica>> },
    Clone { session: u32, config: Option<RtClone> },
    Digest { digest: DigestId, on: bool },
}

/// The state.
pub(crate) struct Runtime {
    pub(crate) serial: u64,
    pub(crate) shared: Arc<Shared>,
    pub(crate) tables: Vec<RtTable>,
    pub(crate) profiles: Vec<RtProfile>,
    /// Configured meters.
    pub(crate) meters: Vec<HashMap<u32, Mutex<Meter>>>,
    pub(crate) value_sets: Vec<Vec<Vec<VsetField>>>,
    pub(crate) multicast: HashMap<u16, Vec<Replica>>,
    pub(crate) clones: HashMap<u32, RtClone>,
    pub(crate) digests_on: Vec<bool>,
    /// Addresses of the cells in `shared`, for native code.
    pub(crate) register_cells: Vec<usize>,
    pub(crate) counter_cells: Vec<usize>,
}

impl Runtime {
    pub(crate) fn new(serial: u64, program: &Program, shared: Arc<Shared>) -> Runtime {
        let info = &program.info;
        let tables = info
            .tables
            .iter()
            .zip(&program.tables)
            .enumerate()
            .map(|(i, (t, plan))| RtTable {
                lookup: Lookup::new(t.kind, &plan.key, serial.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ i as u64),
                entries: Vec::new(),
                meters: HashMap::new(),
                default: plan.default.as_ref().map_or(Act::None, |d| Act::Call {
                    action: d.action.0,
                    local: d.local,
                    words: d.words.clone(),
                }),
                counted: t.has_counters,
                timed: t.support_timeout,
                profile: t.profile.map(|p| p.0),
            })
            .collect();
        Runtime {
            serial,
            tables,
            profiles: info.profiles.iter().map(|_| RtProfile::default()).collect(),
            meters: info.meters.iter().map(|_| HashMap::new()).collect(),
            value_sets: info.value_sets.iter().map(|_| Vec::new()).collect(),
            multicast: HashMap::new(),
            clones: HashMap::new(),
            digests_on: vec![false; info.digests.len()],
            register_cells: shared.registers.iter().map(|r| r.as_ptr() as usize).collect(),
            counter_cells: shared.counters.iter().map(|c| c.as_ptr() as usize).collect(),
            shared,
        }
    }

    /// A copy with separate counters and registers; counters start at 0.
    pub(crate) fn copy(&self, program: &Program) -> Runtime {
        let shared = Arc::new(self.shared.copy(&program.info));
        let meters = |m: &HashMap<u32, Mutex<Meter>>| {
            m.iter().map(|(at, meter)| (*at, Mutex::new(meter.lock().clone()))).collect()
        };
        Runtime {
            serial: self.serial,
            tables: self
                .tables
                .iter()
                .map(|t| RtTable {
                    lookup: t.lookup.clone(),
                    entries: t.entries.clone(),
                    meters: meters(&t.meters),
                    default: t.default.clone(),
                    ..*t
                })
                .collect(),
            profiles: self.profiles.clone(),
            meters: self.meters.iter().map(meters).collect(),
            value_sets: self.value_sets.clone(),
            multicast: self.multicast.clone(),
            clones: self.clones.clone(),
            digests_on: self.digests_on.clone(),
            register_cells: shared.registers.iter().map(|r| r.as_ptr() as usize).collect(),
            counter_cells: shared.counters.iter().map(|c| c.as_ptr() as usize).collect(),
            shared,
        }
    }

    /// Applies a change.
    pub(crate) fn apply(&mut self, op: Op) {
        match op {
            Op::Insert { table, slot, key, act } => {
                let t = &mut self.tables[table as usize];
                if t.entries.len() <= slot as usize {
                    t.entries.resize(slot as usize + 1, Act::None);
                }
                t.entries[slot as usize] = act;
                t.lookup.insert(slot, &key);
                if let Some(cell) = self.shared.tables[table as usize].get(slot) {
                    cell.set(CounterData::default());
                    cell.last_us.store(self.shared.now_us.load(Relaxed), Relaxed);
                }
            }
            Op::Modify { table, slot, act } => {
                self.tables[table as usize].entries[slot as usize] = act;
                if let Some(cell) = self.shared.tables[table as usize].get(slot) {
                    cell.last_us.store(self.shared.now_us.load(Relaxed), Relaxed);
                }
            }
            Op::Delete { table, slot } => {
                let t = &mut self.tables[table as usize];
                t.lookup.remove(slot);
                t.entries[slot as usize] = Act::None;
                t.meters.remove(&slot);
            }
            Op::Default { table, act } => self.tables[table as usize].default = act,
            Op::EntryMeter { table, slot, config } => {
                configure(&mut self.tables[table as usize].meters, slot, config);
            }
            Op::EntryCounter { table, slot, value } => {
                if let Some(cell) = self.shared.tables[table as usize].get(slot) {
                    cell.set(value);
                }
            }
            Op::Member { profile, member, call } => {
                let members = &mut self.profiles[profile as usize].members;
                if members.len() <= member as usize {
                    members.resize(member as usize + 1, None);
                }
                members[member as usize] = call;
            }
            Op::Group { profile, group, members } => {
                let groups = &mut self.profiles[profile as usize].groups;
                if groups.len() <= group as usize {
                    groups.resize(group as usize + 1, Vec::new());
                }
                groups[group as usize] = members;
            }
            Op::Counter { counter, index, value } => {
                let cells = &self.shared.counters[counter as usize];
                cells[index * 2].store(value.bytes, Relaxed);
                cells[index * 2 + 1].store(value.packets, Relaxed);
            }
            Op::Meter { meter, index, config } => configure(&mut self.meters[meter as usize], index, config),
            Op::Register { register, index, limbs } => {
                let cells = &self.shared.registers[register as usize];
                for (i, limb) in limbs.iter().enumerate() {
                    cells[index * limbs.len() + i].store(*limb, Relaxed);
                }
            }
            Op::ValueSet { set, members } => self.value_sets[set as usize] = members,
            Op::Multicast { group, replicas: Some(r) } => {
                self.multicast.insert(group, r);
            }
            Op::Multicast { group, replicas: None } => {
                self.multicast.remove(&group);
            }
            Op::Clone { session, config: Some(c) } => {
                self.clones.insert(session, c);
            }
            Op::Clone { session, config: None } => {
                self.clones.remove(&session);
            }
            Op::Digest { digest, on } => self.digests_on[digest.index()] = on,
        }
    }
}

fn configure(meters: &mut HashMap<u32, Mutex<Meter>>, index: u32, config: Option<MeterConfig>) {
    match config {
        Some(c) => meters.insert(index, Mutex::new(Meter::new(&c))),
        None => meters.remove(&index),
    };
}
