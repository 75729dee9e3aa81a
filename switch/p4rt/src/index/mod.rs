//! A P4Info checked against the program it comes with: every object found in the engine's program, widths and
//! kinds compared, identifiers ready to be looked up in both directions. What does not fit is refused here,
//! with the object's name, so that later every write can rely on it.

mod build;

use std::collections::{BTreeMap, HashMap};

use rivulet_engine as engine;
use rivulet_engine::{ActionId, ProgramInfo};

use crate::data::DataType;
use crate::error::{Result, invalid, not_found};
use crate::packet_io::Header;
use crate::proto::p4::config::v1 as config;
use config::action_ref::Scope;
use config::match_field::MatchType;

/// Everything a pipeline's P4Info names, by its identifiers. Ordered, so that wildcard reads are.
#[derive(Debug, Default)]
pub struct Index {
    /// Tables.
    pub tables: BTreeMap<u32, Table>,
    /// Actions.
    pub actions: BTreeMap<u32, Action>,
    /// Action profiles and selectors.
    pub profiles: BTreeMap<u32, Profile>,
    /// Indirect counters.
    pub counters: BTreeMap<u32, Array<engine::CounterId>>,
    /// Indirect meters.
    pub meters: BTreeMap<u32, Array<engine::MeterId>>,
    /// Registers.
    pub registers: BTreeMap<u32, Register>,
    /// Parser value sets.
    pub value_sets: BTreeMap<u32, ValueSet>,
    /// Digests.
    pub digests: BTreeMap<u32, Digest>,
    /// Metadata of packet-ins.
    pub packet_in: Header,
    /// Metadata of packet-outs.
    pub packet_out: Header,
    /// Engine's tables back to identifiers.
    pub table_ids: HashMap<engine::TableId, u32>,
    /// Engine's actions back to identifiers.
    pub action_ids: HashMap<ActionId, u32>,
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// Identifier in the P4Info.
    pub id: u32,
    /// Fully qualified name.
    pub name: String,
    /// The engine's.
    pub engine: engine::TableId,
    /// Key, in order.
    pub fields: Vec<Field>,
    /// Actions that entries, or members of the profile, may use.
    pub actions: HashMap<u32, TableAction>,
    /// Action profile.
    pub profile: Option<u32>,
    /// All entries are const.
    pub is_const: bool,
    /// The default action is const.
    pub const_default: bool,
    /// Idle timeouts are served.
    pub idle_timeout: bool,
    /// Has a direct counter.
    pub direct_counter: bool,
    /// Type of the direct meter, if there is one.
    pub direct_meter: Option<config::meter_spec::Type>,
    /// Entries have a priority.
    pub has_priority: bool,
}

/// A field of a key, of a table or a value set.
#[derive(Debug)]
pub struct Field {
    /// Identifier in its table.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Bits.
    pub width: u32,
    /// How it is matched.
    pub kind: MatchType,
}

/// What a table may do with an action.
#[derive(Debug)]
pub struct TableAction {
    /// The engine's; for tables with a profile the profile's.
    pub engine: ActionId,
    /// Entries, default entry or both.
    pub scope: Scope,
}

/// An action.
#[derive(Debug)]
pub struct Action {
    /// Fully qualified name.
    pub name: String,
    /// Parameters, in order.
    pub params: Vec<Param>,
}

/// A parameter of an action.
#[derive(Debug)]
pub struct Param {
    /// Identifier in its action.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Bits.
    pub width: u32,
}

/// An action profile or selector.
#[derive(Debug)]
pub struct Profile {
    /// Identifier in the P4Info.
    pub id: u32,
    /// Fully qualified name.
    pub name: String,
    /// The engine's.
    pub engine: engine::ProfileId,
    /// Has groups.
    pub with_selector: bool,
    /// Largest group, 0 for no bound.
    pub max_group_size: u32,
    /// Members a profile may hold, 0 for no bound.
    pub size: u64,
    /// `Some` if sizes count members, with the largest weight of one (0 for no bound); else they sum weights.
    pub sum_of_members: Option<u32>,
    /// Weights must be left unset.
    pub weights_disallowed: bool,
    /// Actions of its tables.
    pub actions: HashMap<u32, ActionId>,
}

/// An array of counters or meters.
#[derive(Debug)]
pub struct Array<Id> {
    /// Fully qualified name.
    pub name: String,
    /// The engine's.
    pub engine: Id,
    /// Cells.
    pub size: usize,
    /// For meters.
    pub meter_type: config::meter_spec::Type,
}

/// A register.
#[derive(Debug)]
pub struct Register {
    /// Fully qualified name.
    pub name: String,
    /// The engine's.
    pub engine: engine::RegisterId,
    /// Cells.
    pub size: usize,
    /// Type of a cell.
    pub data: DataType,
}

/// A parser value set.
#[derive(Debug)]
pub struct ValueSet {
    /// Fully qualified name.
    pub name: String,
    /// The engine's.
    pub engine: engine::ValueSetId,
    /// Members it may hold.
    pub size: usize,
    /// Its fields.
    pub fields: Vec<Field>,
}

/// A digest.
#[derive(Debug)]
pub struct Digest {
    /// Identifier in the P4Info.
    pub id: u32,
    /// Name.
    pub name: String,
    /// The engine's: the JSON has one for each call in the program, all of one name and one type.
    pub engine: Vec<engine::DigestId>,
    /// Type of a sample.
    pub data: DataType,
    /// Bits of each plain value of a sample.
    pub widths: Vec<u32>,
}

/// An object by its identifier: INVALID_ARGUMENT for 0, NOT_FOUND for one that is not in the P4Info.
pub fn find<'a, T>(map: &'a BTreeMap<u32, T>, id: u32, what: &str) -> Result<&'a T> {
    match map.get(&id) {
        Some(object) => Ok(object),
        None if id == 0 => Err(invalid(format!("{what} id 0"))),
        None => Err(not_found(format!("no {what} with id {id:#010x} in the P4Info"))),
    }
}

impl Index {
    /// Checks a P4Info against a program.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the name of the object that does not fit.
    pub fn new(p4info: &config::P4Info, program: &ProgramInfo) -> Result<Index> {
        build::Builder { p4info, program, index: Index::default(), ids: Default::default() }.build()
    }
}
