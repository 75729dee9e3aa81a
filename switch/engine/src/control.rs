//! The control interface of one pipeline.

use std::sync::Arc;

use crate::info::ProgramInfo;
use crate::program::Program;
use crate::types::*;

/// A loaded program with all its state: tables, profiles, counters, meters, registers, value sets, multicast
/// groups and clone sessions.
///
/// A pipeline starts *saved*: it can be written and read, no packet sees it. [`Switch::commit`] makes it the
/// forwarding one between two packets, with everything written so far; the one before goes on until that
/// moment and is then *retired*: its handle stays readable, writes to it are lost with it.
///
/// Handles are cheap to clone and may be used from any thread. Calls take a lock that only control calls
/// take. Writes are checked here, in full, against a mirror of the state, so that nothing the packet path
/// gets can be refused there; while the pipeline forwards they reach the packet path through a queue that it
/// empties before each packet. A packet that arrives after a write has returned sees the write. If the packet
/// path stands still and the queue is full a write waits up to a second, then fails with
/// [`WriteError::Busy`].
///
/// Counters, registers and meters are read from shared memory without disturbing the packet path: a value
/// wider than 64 bits may be read torn if a packet writes it in that moment.
///
/// [`Switch::commit`]: crate::Switch::commit
#[derive(Clone)]
pub struct Pipeline {
    pub(crate) inner: Arc<PipelineInner>,
}

pub(crate) struct PipelineInner {
    program: Arc<Program>,
}

impl Pipeline {
    /// A saved pipeline of that program with nothing in it but what the program says: const entries, default
    /// actions.
    pub fn new(program: Arc<Program>) -> Pipeline {
        Pipeline { inner: Arc::new(PipelineInner { program }) }
    }

    /// A number that no other pipeline of this process has.
    pub fn serial(&self) -> u64 {
        todo!()
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.inner.program
    }

    /// The program's objects; short for `program().info()`.
    pub fn info(&self) -> &ProgramInfo {
        self.inner.program.info()
    }

    // ---- tables ----

    /// Adds an entry.
    ///
    /// # Errors
    /// `AlreadyExists` for the same key (and priority), `Full`, `Const` for a table of const entries, `Invalid`
    /// and `OutOfRange` for the key or the action, `NotFound` for an unknown member or group.
    pub fn insert(&self, table: TableId, entry: &EntrySpec) -> Result<(), WriteError> {
        let _ = (table, entry);
        todo!()
    }

    /// Replaces an entry's action, timeout, metadata and meter; the counter if one is given.
    ///
    /// # Errors
    /// `NotFound` if there is no such key, otherwise as [`insert`](Self::insert).
    pub fn modify(&self, table: TableId, entry: &EntrySpec) -> Result<(), WriteError> {
        let _ = (table, entry);
        todo!()
    }

    /// Removes an entry.
    ///
    /// # Errors
    /// `NotFound`, `Const`, `Invalid`.
    pub fn delete(&self, table: TableId, key: &EntryKey) -> Result<(), WriteError> {
        let _ = (table, key);
        todo!()
    }

    /// Removes all entries that are not const.
    pub fn clear_table(&self, table: TableId) -> Result<(), WriteError> {
        let _ = table;
        todo!()
    }

    /// All entries, const ones too, in the order they were inserted.
    pub fn entries(&self, table: TableId) -> Vec<Entry> {
        let _ = table;
        todo!()
    }

    /// One entry.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` and `OutOfRange` for the key.
    pub fn entry(&self, table: TableId, key: &EntryKey) -> Result<Entry, WriteError> {
        let _ = (table, key);
        todo!()
    }

    /// The default entry.
    pub fn default_entry(&self, table: TableId) -> DefaultEntry {
        let _ = table;
        todo!()
    }

    /// Sets the default action; `None` goes back to the program's own.
    ///
    /// # Errors
    /// `Const` for a const default action, `Invalid`, `OutOfRange`, `NotFound`.
    pub fn set_default(&self, table: TableId, action: Option<&EntryAction>) -> Result<(), WriteError> {
        let _ = (table, action);
        todo!()
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
        let _ = (table, key, value);
        todo!()
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
        let _ = (table, key, config);
        todo!()
    }

    /// Entries whose idle timeout has passed and that have not been reported since they were last hit or
    /// written. Each is reported once per idle period. Call it about once a second.
    pub fn take_idle(&self) -> Vec<(TableId, Entry)> {
        todo!()
    }

    // ---- action profiles ----

    /// Adds a member.
    ///
    /// # Errors
    /// `AlreadyExists`, `Full`, `Invalid`, `OutOfRange`.
    pub fn insert_member(&self, profile: ProfileId, id: u32, call: &ActionCall) -> Result<(), WriteError> {
        let _ = (profile, id, call);
        todo!()
    }

    /// Replaces a member's action, for all entries and groups that use it.
    ///
    /// # Errors
    /// `NotFound`, `Invalid`, `OutOfRange`.
    pub fn modify_member(&self, profile: ProfileId, id: u32, call: &ActionCall) -> Result<(), WriteError> {
        let _ = (profile, id, call);
        todo!()
    }

    /// Removes a member.
    ///
    /// # Errors
    /// `NotFound`; `InUse` while an entry or a group refers to it.
    pub fn delete_member(&self, profile: ProfileId, id: u32) -> Result<(), WriteError> {
        let _ = (profile, id);
        todo!()
    }

    /// All members, by id.
    pub fn members(&self, profile: ProfileId) -> Vec<(u32, ActionCall)> {
        let _ = profile;
        todo!()
    }

    /// Adds a group. An entry that refers to a group without members runs no action.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound` for an unknown member, `Invalid` without a selector or for a weight of 0,
    /// `Full` beyond the group's or the profile's size.
    pub fn insert_group(&self, profile: ProfileId, id: u32, group: &Group) -> Result<(), WriteError> {
        let _ = (profile, id, group);
        todo!()
    }

    /// Replaces a group's members.
    ///
    /// # Errors
    /// As [`insert_group`](Self::insert_group), and `NotFound` for an unknown group.
    pub fn modify_group(&self, profile: ProfileId, id: u32, group: &Group) -> Result<(), WriteError> {
        let _ = (profile, id, group);
        todo!()
    }

    /// Removes a group.
    ///
    /// # Errors
    /// `NotFound`; `InUse` while an entry refers to it.
    pub fn delete_group(&self, profile: ProfileId, id: u32) -> Result<(), WriteError> {
        let _ = (profile, id);
        todo!()
    }

    /// All groups, by id.
    pub fn groups(&self, profile: ProfileId) -> Vec<(u32, Group)> {
        let _ = profile;
        todo!()
    }

    // ---- counters, meters, registers ----

    /// One cell of an indirect counter.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end.
    pub fn counter(&self, counter: CounterId, index: usize) -> Result<CounterData, WriteError> {
        let _ = (counter, index);
        todo!()
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
        let _ = (counter, index, value);
        todo!()
    }

    /// The rates of one cell of an indirect meter, `None` if unconfigured.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end.
    pub fn meter(&self, meter: MeterId, index: usize) -> Result<Option<MeterConfig>, WriteError> {
        let _ = (meter, index);
        todo!()
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
        let _ = (meter, index, config);
        todo!()
    }

    /// One cell of a register, canonical.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end.
    pub fn register(&self, register: RegisterId, index: usize) -> Result<Vec<u8>, WriteError> {
        let _ = (register, index);
        todo!()
    }

    /// Writes one cell of a register.
    ///
    /// # Errors
    /// `OutOfRange` past the array's end or if the value is too wide.
    pub fn set_register(&self, register: RegisterId, index: usize, value: &[u8]) -> Result<(), WriteError> {
        let _ = (register, index, value);
        todo!()
    }

    // ---- value sets, multicast, clones, digests ----

    /// Replaces a value set's members.
    ///
    /// # Errors
    /// `Invalid`, `OutOfRange`.
    pub fn set_value_set(&self, set: ValueSetId, members: &[ValueSetMember]) -> Result<(), WriteError> {
        let _ = (set, members);
        todo!()
    }

    /// A value set's members.
    pub fn value_set(&self, set: ValueSetId) -> Vec<ValueSetMember> {
        let _ = set;
        todo!()
    }

    /// Sets (or with `None` removes) a multicast group. A packet with an `mcast_grp` that does not exist is
    /// dropped, as in BMv2.
    ///
    /// # Errors
    /// `NotFound` when removing one that is not there; `Invalid` for group 0.
    pub fn set_multicast_group(&self, group: u16, replicas: Option<&[Replica]>) -> Result<(), WriteError> {
        let _ = (group, replicas);
        todo!()
    }

    /// All multicast groups, by id.
    pub fn multicast_groups(&self) -> Vec<(u16, Vec<Replica>)> {
        todo!()
    }

    /// Sets (or with `None` removes) a clone session. Clones to a session that does not exist are not made.
    ///
    /// # Errors
    /// `NotFound` when removing one that is not there; `OutOfRange` above 32767, BMv2's largest.
    pub fn set_clone_session(&self, session: u32, config: Option<&CloneSession>) -> Result<(), WriteError> {
        let _ = (session, config);
        todo!()
    }

    /// All clone sessions, by id.
    pub fn clone_sessions(&self) -> Vec<(u32, CloneSession)> {
        todo!()
    }

    /// Turns a digest's samples on or off (off at first). Every sample of every packet is delivered, in order,
    /// through the channel of [`Events`](crate::Events); lists, acknowledgements and the suppression of equal
    /// samples are the P4Runtime server's business.
    pub fn enable_digest(&self, digest: DigestId, on: bool) -> Result<(), WriteError> {
        let _ = (digest, on);
        todo!()
    }
}
