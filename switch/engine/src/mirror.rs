//! The control side's copy of a pipeline's state: writes are checked here before the packet path
//! gets them.

mod calls;
mod entries;
mod liveness;
mod profiles;
mod read;
mod sets;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
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
use calls::{call_of, canonical_call, words};

/// Largest session number of BMv2.
const MAX_SESSION: u32 = 32_767;
/// Largest sum of the weights of a group's members.
const MAX_GROUP: u64 = 1 << 16;
/// Largest number of replicas of a multicast group or a clone session.
const MAX_REPLICAS: usize = 4096;

/// Owner of the pipeline's other half, the packet path's state.
pub(crate) enum Place {
    /// This side: the pipeline is saved.
    Saved(Box<Live>),
    /// The packet path, at the other end of the queue.
    Forwarding(Queue),
    Retired,
}

/// Allocates the lowest free number, like BMv2.
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
    /// Time of the last hit before the entry was last reported idle.
    reported: u64,
}

/// Members and group of an entry's one-shot.
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
    /// The controller's default, if it replaces the program's.
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

/// The whole state.
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
    /// Writes of an atomic batch, to be sent as one.
    gathered: Option<Vec<Op>>,
    /// Watched ports that are down, from
    /// [`Pipeline::follow_liveness`](crate::Pipeline::follow_liveness).
    down: BTreeSet<Vec<u8>>,
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
            down: BTreeSet::new(),
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

    /// Waits for room in the queue, so that the following writes cannot fail halfway.
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

    /// Collects writes from now on.
    pub(crate) fn gather(&mut self) {
        self.gathered.get_or_insert_default();
    }

    /// Sends the collected writes as one command.
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
}
