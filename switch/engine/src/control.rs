//! The control interface of one pipeline.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bits::{canonical, limb_count, limbs_of};
use crate::info::ProgramInfo;
use crate::mirror::{Ctl, Place, check_meter, past_end, unknown};
use crate::program::Program;
use crate::runtime::Op;
use crate::state::Shared;
use crate::types::*;

/// A loaded program with its state: tables, profiles, counters, meters, registers, value sets,
/// multicast groups and clone sessions.
///
/// A pipeline starts as *saved*: it can be written and read, but no packet uses it.
/// [`Switch::commit`] makes it the forwarding one between two packets, with all its writes. The
/// previous pipeline forwards until then and becomes *retired*: its handle is still readable, but
/// writes to it are lost.
///
/// Handles are cheap to clone and may be used from any thread. Calls take a lock that only control
/// calls use. Writes are fully checked here against a mirror of the state, so that the packet path
/// never has to refuse one. While the pipeline forwards, writes reach the packet path through a
/// queue that it empties before each packet, so a packet that arrives after a write has returned
/// uses the write. If the packet path stands still and the queue is full, a write waits up to a
/// second and then fails with [`WriteError::Busy`].
///
/// Counters, registers and meters are read from shared memory without disturbing the packet path. A
/// value wider than 64 bits may be inconsistent if a packet writes it at the same time.
///
/// [`Switch::commit`]: crate::Switch::commit
#[derive(Clone)]
pub struct Pipeline {
    pub(crate) inner: Arc<PipelineInner>,
}

pub(crate) struct PipelineInner {
    program: Arc<Program>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) serial: u64,
    pub(crate) ctl: Mutex<Ctl>,
}

impl Pipeline {
    /// Creates a saved pipeline with only the program's own state: const entries and default
    /// actions.
    pub fn new(program: Arc<Program>) -> Pipeline {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SERIAL.fetch_add(1, Relaxed);
        let shared = Arc::new(Shared::new(program.info()));
        let ctl = Mutex::new(Ctl::new(serial, &program, &shared));
        Pipeline { inner: Arc::new(PipelineInner { program, shared, serial, ctl }) }
    }

    pub(crate) fn ctl(&self) -> MutexGuard<'_, Ctl> {
        // Calls never panic while they change the state, and a poisoned lock must not stop the
        // switch.
        self.inner.ctl.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number unique to this pipeline in this process.
    pub fn serial(&self) -> u64 {
        self.inner.serial
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.inner.program
    }

    /// The program's objects; short for `program().info()`.
    pub fn info(&self) -> &ProgramInfo {
        self.inner.program.info()
    }

    // ---- batches ----

    /// Makes the writes of `work` atomic for packets: each packet uses none of them or all. Writes
    /// of other threads to the same pipeline become part of the batch; batches do not nest.
    pub fn atomically<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Sends the batch when it ends, also by a panic.
        struct Batch<'a>(&'a Pipeline);
        impl Drop for Batch<'_> {
            fn drop(&mut self) {
                self.0.ctl().release_gathered();
            }
        }
        self.ctl().gather();
        let _batch = Batch(self);
        work()
    }

    /// Waits until the packet path has applied all writes so far, so that reads of counters, meters
    /// and registers include them. Returns at once for a pipeline that does not forward.
    ///
    /// # Errors
    /// `Busy` if the packet path does not apply them within a second.
    pub fn settle(&self) -> Result<(), WriteError> {
        let queue = match &self.ctl().place {
            Place::Forwarding(queue) => queue.clone(),
            _ => return Ok(()),
        };
        queue.settle()
    }

    // ---- tables ----

    /// Adds an entry.
    ///
    /// # Errors
    /// `AlreadyExists` for the same key (and priority), `Full`, `Const` for a table of const entries, `Invalid`
    /// and `OutOfRange` for the key or the action, `NotFound` for an unknown member or group.
    pub fn insert(&self, table: TableId, entry: &EntrySpec) -> Result<(), WriteError> {
        self.ctl().insert(self.program(), table, entry)
    }

    /// Replaces an entry's action, timeout, metadata and meter; the counter if one is given.
    ///
    /// # Errors
    /// `NotFound` if there is no such key, otherwise as [`insert`](Self::insert).
    pub fn modify(&self, table: TableId, entry: &EntrySpec) -> Result<(), WriteError> {
        self.ctl().modify(self.program(), table, entry)
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// `NotFound`, `Const`, `Invalid`.
    pub fn delete(&self, table: TableId, key: &EntryKey) -> Result<(), WriteError> {
        self.ctl().delete(self.program(), table, key)
    }

    /// Removes all entries that are not const.
    pub fn clear_table(&self, table: TableId) -> Result<(), WriteError> {
        self.ctl().clear_table(self.program(), table)
    }

    /// All entries, const ones too, in the order they were inserted.
    pub fn entries(&self, table: TableId) -> Vec<Entry> {
        self.ctl().entries(self.program(), &self.inner.shared, table)
    }

    /// One entry.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` and `OutOfRange` for the key.
    pub fn entry(&self, table: TableId, key: &EntryKey) -> Result<Entry, WriteError> {
        self.ctl().entry(self.program(), &self.inner.shared, table, key)
    }

    /// The default entry.
    pub fn default_entry(&self, table: TableId) -> DefaultEntry {
        self.ctl().default_entry(self.program(), table)
    }

    /// Sets the default action; `None` restores the program's.
    ///
    /// # Errors
    /// `Const` for a const default action, `Invalid`, `OutOfRange`, `NotFound`.
    pub fn set_default(&self, table: TableId, action: Option<&EntryAction>) -> Result<(), WriteError> {
        self.ctl().set_default(self.program(), table, action)
    }

    /// Writes the direct counter of an entry.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the table has no direct counters.
    pub fn set_direct_counter(
        &self,
        table: TableId,
        key: &EntryKey,
        value: CounterData,
    ) -> Result<(), WriteError> {
        self.ctl().set_direct_counter(self.program(), table, key, value)
    }

    /// Writes the direct meter of an entry; `None` unconfigures it.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if the table has no direct meter or the rates are not a meter's.
    pub fn set_direct_meter(
        &self,
        table: TableId,
        key: &EntryKey,
        config: Option<MeterConfig>,
    ) -> Result<(), WriteError> {
        self.ctl().set_direct_meter(self.program(), table, key, config)
    }

    /// Entries whose idle timeout has passed and that have not been reported since they were last hit or
    /// written. Each is reported once per idle period. Call it about once a second.
    pub fn take_idle(&self) -> Vec<(TableId, Entry)> {
        self.ctl().take_idle(self.program(), &self.inner.shared)
    }

    // ---- action profiles ----

    /// Adds a member.
    ///
    /// # Errors
    /// `AlreadyExists`, `Full`, `Invalid`, `OutOfRange`.
    pub fn insert_member(&self, profile: ProfileId, id: u32, call: &ActionCall) -> Result<(), WriteError> {
        self.ctl().insert_member(self.program(), profile, id, call)
    }

    /// Replaces a member's action, for all entries and groups that use it.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `OutOfRange`.
    pub fn modify_member(&self, profile: ProfileId, id: u32, call: &ActionCall) -> Result<(), WriteError> {
        self.ctl().modify_member(self.program(), profile, id, call)
    }

    /// Removes a member.
    ///
    /// # Errors
    /// `NotFound`; `InUse` while an entry or a group refers to it.
    pub fn delete_member(&self, profile: ProfileId, id: u32) -> Result<(), WriteError> {
        self.ctl().delete_member(profile, id)
    }

    /// A member.
    pub fn member(&self, profile: ProfileId, id: u32) -> Option<ActionCall> {
        self.ctl().member(profile, id)
    }

    /// All members, by id.
    pub fn members(&self, profile: ProfileId) -> Vec<(u32, ActionCall)> {
        self.ctl().members(profile)
    }

    /// Adds a group. An entry that refers to a group without members runs no action.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` for an unknown member, `Invalid` without a selector or for a weight of 0,
    /// `Full` beyond the group's or the profile's size.
    pub fn insert_group(&self, profile: ProfileId, id: u32, group: &Group) -> Result<(), WriteError> {
        self.ctl().insert_group(self.program(), profile, id, group)
    }

    /// Replaces a group's members.
    ///
    /// # Errors
    /// As [`insert_group`](Self::insert_group), and `NotFound` for an unknown group.
    pub fn modify_group(&self, profile: ProfileId, id: u32, group: &Group) -> Result<(), WriteError> {
        self.ctl().modify_group(self.program(), profile, id, group)
    }

    /// Removes a group.
    ///
    /// # Errors
    /// `NotFound`; `InUse` while an entry refers to it.
    pub fn delete_group(&self, profile: ProfileId, id: u32) -> Result<(), WriteError> {
        self.ctl().delete_group(profile, id)
    }

    /// Updates which group members are live. Calls `up` once for each different `watch_port` of the
    /// members of groups and one-shots. Members with a negative answer are excluded from selection
    /// until the answer is positive again. Call it when a port may have changed, and from time to
    /// time: a group written meanwhile uses the previous answers.
    ///
    /// # Errors
    /// `Busy`; then nothing has changed.
    pub fn follow_liveness(&self, mut up: impl FnMut(&[u8]) -> bool) -> Result<(), WriteError> {
        self.ctl().follow_liveness(self.program(), &mut up)
    }

    /// All groups, by id.
    pub fn groups(&self, profile: ProfileId) -> Vec<(u32, Group)> {
        self.ctl().groups(profile)
    }

    // ---- counters, meters, registers ----

    /// One cell of an indirect counter.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end.
    pub fn counter(&self, counter: CounterId, index: usize) -> Result<CounterData, WriteError> {
        let cells = self.inner.shared.counters.get(counter.index()).ok_or_else(|| unknown("counter"))?;
        match cells.get(index.saturating_mul(2)..index.saturating_mul(2).saturating_add(2)) {
            Some([bytes, packets]) => {
                Ok(CounterData { bytes: bytes.load(Relaxed), packets: packets.load(Relaxed) })
            }
            _ => Err(past_end(&self.info().counters[counter.index()].name, index)),
        }
    }

    /// Writes one cell of an indirect counter.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end.
    pub fn set_counter(
        &self,
        counter: CounterId,
        index: usize,
        value: CounterData,
    ) -> Result<(), WriteError> {
        let info = self.info().counters.get(counter.index()).ok_or_else(|| unknown("counter"))?;
        if index >= info.size {
            return Err(past_end(&info.name, index));
        }
        self.ctl().send(Op::Counter { counter: counter.0, index, value })
    }

    /// The rates of one cell of an indirect meter, `None` if unconfigured.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end.
    pub fn meter(&self, meter: MeterId, index: usize) -> Result<Option<MeterConfig>, WriteError> {
        let info = self.info().meters.get(meter.index()).ok_or_else(|| unknown("meter"))?;
        if index >= info.size {
            return Err(past_end(&info.name, index));
        }
        Ok(self.ctl().meters.get(&(meter.0, index as u32)).copied())
    }

    /// Configures one cell of an indirect meter, buckets full; `None` makes it always green again.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end, `Invalid` if `pir` is below `cir`.
    pub fn set_meter(
        &self,
        meter: MeterId,
        index: usize,
        config: Option<MeterConfig>,
    ) -> Result<(), WriteError> {
        let info = self.info().meters.get(meter.index()).ok_or_else(|| unknown("meter"))?;
        if index >= info.size {
            return Err(past_end(&info.name, index));
        }
        check_meter(config.as_ref())?;
        let index = index as u32;
        let mut ctl = self.ctl();
        ctl.send(Op::Meter { meter: meter.0, index, config })?;
        match config {
            Some(c) => ctl.meters.insert((meter.0, index), c),
            None => ctl.meters.remove(&(meter.0, index)),
        };
        Ok(())
    }

    /// One cell of a register, canonical.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end.
    pub fn register(&self, register: RegisterId, index: usize) -> Result<Vec<u8>, WriteError> {
        let info = self.info().registers.get(register.index()).ok_or_else(|| unknown("register"))?;
        if index >= info.size {
            return Err(past_end(&info.name, index));
        }
        let n = limb_count(info.width);
        let cells = &self.inner.shared.registers[register.index()][index * n..][..n];
        let limbs: Vec<u64> = cells.iter().map(|c| c.load(Relaxed)).collect();
        Ok(canonical(&limbs))
    }

    /// Writes one cell of a register.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end or if the value is too wide.
    pub fn set_register(&self, register: RegisterId, index: usize, value: &[u8]) -> Result<(), WriteError> {
        let info = self.info().registers.get(register.index()).ok_or_else(|| unknown("register"))?;
        if index >= info.size {
            return Err(past_end(&info.name, index));
        }
        let limbs = limbs_of(value, info.width).ok_or_else(|| {
            WriteError::OutOfRange(format!("{} has cells of {} bits", info.name, info.width))
        })?;
        self.ctl().send(Op::Register { register: register.0, index, limbs })
    }

    // ---- value sets, multicast, clones, digests ----

    /// Replaces a value set's members.
    ///
    /// # Errors
    /// `Invalid`, `OutOfRange`.
    pub fn set_value_set(&self, set: ValueSetId, members: &[ValueSetMember]) -> Result<(), WriteError> {
        self.ctl().set_value_set(self.program(), set, members)
    }

    /// A value set's members.
    pub fn value_set(&self, set: ValueSetId) -> Vec<ValueSetMember> {
        self.ctl().value_sets.get(set.index()).cloned().unwrap_or_default()
    }

    /// Sets (or with `None` removes) a multicast group. A packet with an `mcast_grp` that does not exist is
    /// dropped, as in BMv2.
    ///
    /// # Errors
    /// `NotFound` when removing a group that does not exist; `Invalid` for group 0.
    pub fn set_multicast_group(&self, group: u16, replicas: Option<&[Replica]>) -> Result<(), WriteError> {
        self.ctl().set_multicast_group(group, replicas)
    }

    /// All multicast groups, by id.
    pub fn multicast_groups(&self) -> Vec<(u16, Vec<Replica>)> {
        self.ctl().multicast.iter().map(|(k, v)| (*k, v.clone())).collect()
    }

    /// Sets (or with `None` removes) a clone session. Clones to a missing session are not made.
    ///
    /// # Errors
    /// `NotFound` when removing a session that does not exist; `OutOfRange` above 32767, BMv2's
    /// largest.
    pub fn set_clone_session(&self, session: u32, config: Option<&CloneSession>) -> Result<(), WriteError> {
        self.ctl().set_clone_session(session, config)
    }

    /// All clone sessions, by id.
    pub fn clone_sessions(&self) -> Vec<(u32, CloneSession)> {
        self.ctl().clones.iter().map(|(k, v)| (*k, v.clone())).collect()
    }

    /// Switches a digest's samples on or off (initially off). Every sample of every packet is
    /// delivered in order through the channel of [`Events`](crate::Events). Lists, acknowledgements
    /// and the suppression of equal samples are left to the P4Runtime server.
    pub fn enable_digest(&self, digest: DigestId, on: bool) -> Result<(), WriteError> {
        if digest.index() >= self.info().digests.len() {
            return Err(unknown("digest"));
        }
        self.ctl().send(Op::Digest { digest, on })
    }
}
