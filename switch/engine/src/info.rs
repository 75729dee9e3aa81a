//! The objects of a program for the control interface. Names are those of the JSON, which equal the
//! fully qualified names in the P4Info; keys, parameters and digest fields are in the P4Info's
//! order.

use crate::types::{
    ActionId, CounterId, DigestId, MatchKind, MeterId, ProfileId, RegisterId, TableId, ValueSetId,
};

/// Lookup method of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    /// All fields exact: no priority.
    Exact,
    /// One `lpm` field, the others exact: the longest prefix wins, no priority.
    Lpm,
    /// At least one `ternary` (or `optional`) field: the priority decides.
    Ternary,
    /// At least one `range` field: the priority decides.
    Range,
}

impl TableKind {
    /// Whether entries carry a priority.
    pub fn has_priority(self) -> bool {
        matches!(self, TableKind::Ternary | TableKind::Range)
    }
}

/// One field of a table's key.
#[derive(Clone, Debug)]
pub struct KeyField {
    /// `name` in the JSON, or `header.field`.
    pub name: String,
    /// Match kind.
    pub kind: MatchKind,
    /// Width in bits.
    pub width: u32,
}

/// A table.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// Fully qualified name.
    pub name: String,
    /// Its lookup method.
    pub kind: TableKind,
    /// Its key; may be empty.
    pub key: Vec<KeyField>,
    /// Actions allowed in its entries (or in its profile's members).
    pub actions: Vec<ActionId>,
    /// Names of `actions`, in the same order.
    pub action_names: Vec<String>,
    /// Largest number of entries.
    pub max_size: usize,
    /// Its action profile.
    pub profile: Option<ProfileId>,
    /// Whether it has direct counters.
    pub has_counters: bool,
    /// Its direct meter: name and unit.
    pub direct_meter: Option<(String, MeterUnit)>,
    /// Whether entries may have an idle timeout.
    pub support_timeout: bool,
    /// Whether all its entries are const (`const entries`).
    pub const_entries: bool,
    /// Whether p4c generated it (dummy table around an action call); never in the P4Info.
    pub hidden: bool,
}

impl TableInfo {
    /// The action of this table with this fully qualified name.
    pub fn action(&self, name: &str) -> Option<ActionId> {
        self.action_names.iter().position(|n| n == name).map(|i| self.actions[i])
    }
}

/// A parameter of an action.
#[derive(Clone, Debug)]
pub struct ParamInfo {
    /// Its name.
    pub name: String,
    /// Width in bits.
    pub width: u32,
}

/// An action.
#[derive(Clone, Debug)]
pub struct ActionInfo {
    /// Fully qualified name; not unique.
    pub name: String,
    /// Its parameters.
    pub params: Vec<ParamInfo>,
}

/// An action profile.
#[derive(Clone, Debug)]
pub struct ProfileInfo {
    /// Fully qualified name.
    pub name: String,
    /// Whether it has a selector, hence groups.
    pub has_selector: bool,
    /// Largest number of members; 0 for no limit (BMv2 ignores the limit).
    pub max_size: usize,
    /// Actions allowed in its members: those of all tables that use the profile.
    pub actions: Vec<ActionId>,
}

/// What a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterUnit {
    /// Rates in packets a second, bursts in packets.
    Packets,
    /// Rates in bytes a second, bursts in bytes.
    Bytes,
}

/// An indirect counter array.
#[derive(Clone, Debug)]
pub struct CounterInfo {
    /// Fully qualified name.
    pub name: String,
    /// Number of cells.
    pub size: usize,
}

/// An indirect meter array.
#[derive(Clone, Debug)]
pub struct MeterInfo {
    /// Fully qualified name.
    pub name: String,
    /// Number of cells.
    pub size: usize,
    /// Its unit.
    pub unit: MeterUnit,
}

/// A register array.
#[derive(Clone, Debug)]
pub struct RegisterInfo {
    /// Fully qualified name.
    pub name: String,
    /// Number of cells.
    pub size: usize,
    /// Width of a cell in bits.
    pub width: u32,
}

/// A parser value set.
#[derive(Clone, Debug)]
pub struct ValueSetInfo {
    /// Fully qualified name.
    pub name: String,
    /// Width in bits of a value, all fields together, without padding.
    pub width: u32,
    /// Widths in bits of its fields (one, unless the parser selects on several with it).
    pub fields: Vec<u32>,
}

/// A digest.
#[derive(Clone, Debug)]
pub struct DigestInfo {
    /// Name, from the struct in the program.
    pub name: String,
    /// Width in bits of each field, in order; [`DigestSample::data`](crate::DigestSample) contains
    /// them one after another, each padded on the left to whole bytes.
    pub fields: Vec<u32>,
}

/// A header type with an instance that packets can carry.
#[derive(Clone, Debug)]
pub struct HeaderInfo {
    /// Name of the type in the program.
    pub name: String,
    /// Name and width in bits of each field, in order; without the variable-length field.
    pub fields: Vec<(String, u32)>,
}

/// All of a program's objects, each list indexed by its identifier type.
#[derive(Clone, Debug, Default)]
pub struct ProgramInfo {
    /// Tables.
    pub tables: Vec<TableInfo>,
    /// Actions.
    pub actions: Vec<ActionInfo>,
    /// Action profiles.
    pub profiles: Vec<ProfileInfo>,
    /// Indirect counters.
    pub counters: Vec<CounterInfo>,
    /// Indirect meters.
    pub meters: Vec<MeterInfo>,
    /// Registers.
    pub registers: Vec<RegisterInfo>,
    /// Parser value sets.
    pub value_sets: Vec<ValueSetInfo>,
    /// Digests.
    pub digests: Vec<DigestInfo>,
    /// Header types of packets, not of metadata.
    pub headers: Vec<HeaderInfo>,
}

fn find<T>(list: &[T], name: &str, of: impl Fn(&T) -> &str) -> Option<u32> {
    list.iter().position(|x| of(x) == name).map(|i| i as u32)
}

impl ProgramInfo {
    /// The table with this name.
    pub fn table(&self, name: &str) -> Option<TableId> {
        find(&self.tables, name, |t| &t.name).map(TableId)
    }

    /// The action profile with this name.
    pub fn profile(&self, name: &str) -> Option<ProfileId> {
        find(&self.profiles, name, |t| &t.name).map(ProfileId)
    }

    /// The action with this name that the profile's members may use.
    pub fn profile_action(&self, profile: ProfileId, name: &str) -> Option<ActionId> {
        let list = &self.profiles.get(profile.index())?.actions;
        list.iter().copied().find(|a| self.actions[a.index()].name == name)
    }

    /// The counter array with this name.
    pub fn counter(&self, name: &str) -> Option<CounterId> {
        find(&self.counters, name, |t| &t.name).map(CounterId)
    }

    /// The meter array with this name.
    pub fn meter(&self, name: &str) -> Option<MeterId> {
        find(&self.meters, name, |t| &t.name).map(MeterId)
    }

    /// The register array with this name.
    pub fn register(&self, name: &str) -> Option<RegisterId> {
        find(&self.registers, name, |t| &t.name).map(RegisterId)
    }

    /// The value set with this name.
    pub fn value_set(&self, name: &str) -> Option<ValueSetId> {
        find(&self.value_sets, name, |t| &t.name).map(ValueSetId)
    }

    /// The digest with this name.
    pub fn digest(&self, name: &str) -> Option<DigestId> {
        find(&self.digests, name, |t| &t.name).map(DigestId)
    }
}
