//! Types of the control interface: identifiers, match keys, actions, entries and errors.
//!
//! Byte strings are big-endian. Any length is accepted if the value fits the field; reads return
//! the canonical form (no leading zero bytes, at least one byte) of P4Runtime section 8.4.

use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
        impl $name {
            /// Index in the list of the [`Program`](crate::Program) with this object.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

ids! {
    /// A table of one [`Program`](crate::Program), an index of its `tables()`.
    TableId;
    /// An action of one program. Two actions may have the same name (p4c repeats `NoAction`): look
    /// an action up through its table with [`TableInfo::action`](crate::TableInfo::action).
    ActionId;
    /// An action profile, with or without a selector.
    ProfileId;
    /// An indirect counter array.
    CounterId;
    /// An indirect meter array.
    MeterId;
    /// A register array.
    RegisterId;
    /// A parser value set.
    ValueSetId;
    /// A digest (`learn_lists` of the JSON).
    DigestId;
}

/// Match kind of a field of a table's key. P4's `optional` becomes [`MatchKind::Ternary`]: p4c
/// writes it that way, and only P4Info has the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MatchKind {
    /// Equal to the value.
    Exact,
    /// Longest prefix; at most one such field in a table whose other fields are exact.
    Lpm,
    /// Equal under a mask.
    Ternary,
    /// Between two values, both included.
    Range,
    /// P4_14's `valid`: whether a header is valid (one bit).
    Valid,
}

/// The value of one key field of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyMatch {
    /// For `Exact` and `Valid` fields; in a `Ternary` field the same as a mask of all ones.
    Exact(Vec<u8>),
    /// For `Lpm` fields (and `lpm` fields of ternary or range tables). Bits below the prefix must be zero.
    Lpm {
        /// The prefix's value.
        value: Vec<u8>,
        /// Its length in bits, from 0 to the field's width.
        prefix_len: u32,
    },
    /// For `Ternary` fields. Bits of the value outside the mask must be zero.
    Ternary {
        /// The value.
        value: Vec<u8>,
        /// Ones where the packet's bit must equal the value's.
        mask: Vec<u8>,
    },
    /// For `Range` fields, both ends included; low may not exceed high.
    Range {
        /// The lowest value that matches.
        low: Vec<u8>,
        /// The highest value that matches.
        high: Vec<u8>,
    },
    /// Any value; for `Lpm`, `Ternary` and `Range` fields.
    Any,
}

/// The key of an entry: one [`KeyMatch`] for each field, in the table's order, and a priority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EntryKey {
    /// As many as [`TableInfo::key`](crate::TableInfo) has.
    pub fields: Vec<KeyMatch>,
    /// For tables of [`TableKind::Ternary`](crate::TableKind) and `Range`: the **larger** number
    /// wins, as in P4Runtime (in BMv2 the smaller one does). There it is part of the entry's
    /// identity. Must be 0 in exact and lpm tables.
    pub priority: i32,
}

/// An action with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionCall {
    /// The action.
    pub action: ActionId,
    /// One byte string a parameter, in the order of [`ActionInfo::params`](crate::ActionInfo).
    pub params: Vec<Vec<u8>>,
}

/// Action of an entry on a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryAction {
    /// Run an action; for tables without an action profile.
    Call(ActionCall),
    /// Run a member's action; for tables with an action profile.
    Member(u32),
    /// Run the action of a member picked by the selector; for tables with a selector.
    Group(u32),
    /// A group for this entry only (P4Runtime's one-shot programming); for tables with a selector.
    OneShot(Vec<OneShotMember>),
}

/// One action of [`EntryAction::OneShot`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneShotMember {
    /// The action.
    pub call: ActionCall,
    /// Share of the flows, at least 1.
    pub weight: u32,
    /// The port on which the member's liveness depends, in the caller's own encoding; empty for
    /// none. See [`Pipeline::follow_liveness`](crate::Pipeline::follow_liveness).
    pub watch_port: Vec<u8>,
}

/// Value of a counter. Both values are always counted; the unit in the P4 declaration only selects
/// what a controller shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CounterData {
    /// Bytes of the packets on arrival (as in BMv2, headers included).
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
}

/// Rates of a two-rate three-colour meter (RFC 2698), in bytes or packets a second by the meter's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterConfig {
    /// Committed information rate, units a second.
    pub cir: u64,
    /// Committed burst size, units.
    pub cburst: u64,
    /// Peak information rate, units a second, not below `cir`.
    pub pir: u64,
    /// Peak burst size, units.
    pub pburst: u64,
}

/// An entry to insert or to modify.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntrySpec {
    /// Which entry.
    pub key: EntryKey,
    /// Its action.
    pub action: EntryAction,
    /// Idle time after which [`Pipeline::take_idle`](crate::Pipeline::take_idle) reports the entry, in
    /// nanoseconds; 0 for never. Only for tables with `support_timeout`.
    pub idle_timeout_ns: u64,
    /// Meter of this entry, for tables with a direct meter. `None`: unconfigured, always green.
    pub meter: Option<MeterConfig>,
    /// Initial value of the direct counter, for tables with one. `None` means zero on insert and no
    /// change on modify.
    pub counter: Option<CounterData>,
    /// Stored and read back without being used (P4Runtime's `metadata`).
    pub metadata: Vec<u8>,
}

impl EntrySpec {
    /// An entry with only key and action.
    pub fn new(key: EntryKey, action: EntryAction) -> Self {
        EntrySpec { key, action, idle_timeout_ns: 0, meter: None, counter: None, metadata: Vec::new() }
    }
}

/// An entry as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key, action and the other fields, with canonical byte strings. `counter` has the current
    /// value if the table has direct counters.
    pub spec: EntrySpec,
    /// From `const entries` of the program: cannot be modified or deleted.
    pub is_const: bool,
    /// Nanoseconds since the entry was last hit or written; 0 unless the table supports timeouts.
    pub idle_ns: u64,
}

/// The default entry of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultEntry {
    /// `None` if the table has no default action (a table with a profile, before one is set).
    pub action: Option<EntryAction>,
    /// `const default_action`: cannot be changed.
    pub is_const: bool,
    /// Misses counted by the direct counter. Always `None`: BMv2 counts hits only.
    pub counter: Option<CounterData>,
}

/// A member of a group of an action profile with a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// The member's id.
    pub member: u32,
    /// Share of the flows, at least 1.
    pub weight: u32,
    /// The port on which the member's liveness depends, in the caller's own encoding; empty for
    /// none. See [`Pipeline::follow_liveness`](crate::Pipeline::follow_liveness).
    pub watch_port: Vec<u8>,
}

/// A group of an action profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Its members, in order.
    pub members: Vec<GroupMember>,
    /// P4Runtime's `max_size`; 0 for no limit.
    pub max_size: u32,
}

/// A copy made by a multicast group or a clone session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Replica {
    /// Port to send to.
    pub port: u32,
    /// `egress_rid` of the copy.
    pub instance: u16,
}

/// Destinations of the clones of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloneSession {
    /// One clone each. Their `instance` becomes `egress_rid`.
    pub replicas: Vec<Replica>,
    /// An additional multicast group to clone to (BMv2's `mirroring_add_mc`).
    pub multicast_group: Option<u16>,
    /// Bytes kept of each clone; 0 keeps all.
    pub packet_length_bytes: u32,
    /// The P4Runtime field, returned on reads; also the clone's queue priority if priority queues are enabled.
    pub class_of_service: u32,
}

/// A member of a parser value set: for each field a value, matched exactly, by mask or by range.
/// BMv2 only supports exact values; ternary ones are accepted too.
pub type ValueSetMember = Vec<KeyMatch>;

/// One sample of a digest, sent by a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DigestSample {
    /// The digest; [`DigestInfo`](crate::DigestInfo) has its fields.
    pub digest: DigestId,
    /// The pipeline that sent it (see [`Pipeline::serial`](crate::Pipeline::serial)): after a new pipeline is
    /// committed, samples of the old one may still be in the channel.
    pub pipeline: u64,
    /// The switch's clock, microseconds.
    pub time_us: u64,
    /// The fields one after another, each padded on the left to whole bytes.
    pub data: smallvec::SmallVec<[u8; 64]>,
}

/// Why a write was refused. The variants correspond to P4Runtime's codes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// NOT_FOUND: the object to modify, delete or refer to does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// ALREADY_EXISTS: the object to insert already exists.
    #[error("already exists: {0}")]
    AlreadyExists(String),
    /// INVALID_ARGUMENT: malformed for this program.
    #[error("invalid: {0}")]
    Invalid(String),
    /// OUT_OF_RANGE: a value wider than its field, or an index past the end.
    #[error("out of range: {0}")]
    OutOfRange(String),
    /// PERMISSION_DENIED: const entries and const default actions.
    #[error("not permitted: {0}")]
    Const(String),
    /// RESOURCE_EXHAUSTED: the table, profile or group is full.
    #[error("full: {0}")]
    Full(String),
    /// FAILED_PRECONDITION: for example deleting a member in use.
    #[error("in use: {0}")]
    InUse(String),
    /// UNAVAILABLE: the packet path did not take the command in time (it has stopped or is stuck).
    #[error("the packet path does not take commands")]
    Busy,
}

/// Why a program was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// Place in the JSON, e.g. `pipelines[0].tables[3].key[1].target`. Empty if the input is not
    /// JSON.
    pub place: String,
    /// The fault.
    pub what: String,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            f.write_str(&self.what)
        } else {
            write!(f, "{}: {}", self.place, self.what)
        }
    }
}

impl std::error::Error for LoadError {}
