//! A P4Info checked against its program: every object is found in the engine's program, widths and
//! kinds are compared, and identifiers can be looked up in both directions. Mismatches are refused
//! here with the object's name, so that writes need no further checks.

mod build;

use std::collections::{BTreeMap, HashMap, HashSet};

use rivulet_engine as engine;
use rivulet_engine::{ActionId, ProgramInfo};

use crate::data::DataType;
use crate::error::{Result, invalid, not_found};
use crate::packet_io::Header;
use crate::proto::p4::config::v1 as config;
use crate::proto::p4::v1 as p4;
use crate::translation::{NameType, Sdn, Types};
use config::action_ref::Scope;
use config::match_field::MatchType;

/// Everything in a pipeline's P4Info by identifier. Ordered, so that wildcard reads are ordered
/// too.
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
    /// Types that are translated to strings.
    pub name_types: Vec<NameType>,
    /// Form and width of the ports of replicas and watched ports, if they are strings.
    pub port_type: Option<(Sdn, u32)>,
    /// Whether any value in entities is translated.
    pub translates: bool,
    /// Metadata of packet-ins.
    pub packet_in: Header,
    /// Metadata of packet-outs.
    pub packet_out: Header,
    /// Kinds and names of objects in the P4Info that the program lacks.
    pub left_out: BTreeMap<u32, (Object, String)>,
    /// Action parameters annotated `@secret`: (action, parameter).
    pub secrets: HashSet<(u32, u32)>,
    /// Identifiers of the engine's tables.
    pub table_ids: HashMap<engine::TableId, u32>,
    /// Identifiers of the engine's actions.
    pub action_ids: HashMap<ActionId, u32>,
}

/// A table.
#[derive(Debug)]
pub struct Table {
    /// Identifier in the P4Info.
    pub id: u32,
    /// Fully qualified name.
    pub name: String,
    /// The engine's table.
    pub engine: engine::TableId,
    /// Fields of the key, in order.
    pub fields: Vec<Field>,
    /// Actions allowed in entries, or in members of the profile.
    pub actions: HashMap<u32, TableAction>,
    /// Action profile.
    pub profile: Option<u32>,
    /// Whether all entries are const.
    pub is_const: bool,
    /// Whether the default action is const.
    pub const_default: bool,
    /// Whether idle timeouts are supported.
    pub idle_timeout: bool,
    /// Whether it has a direct counter.
    pub direct_counter: bool,
    /// Type of the direct meter, if there is one.
    pub direct_meter: Option<config::meter_spec::Type>,
    /// Whether entries have a priority.
    pub has_priority: bool,
}

/// A field of a key, of a table or a value set.
#[derive(Debug)]
pub struct Field {
    /// Identifier in its table.
    pub id: u32,
    /// Name.
    pub name: String,
    /// Bits in the data plane.
    pub width: u32,
    /// The controller's form, if the type is translated.
    pub sdn: Option<Sdn>,
    /// How it is matched.
    pub kind: MatchType,
}

/// Permitted use of an action in a table.
#[derive(Debug)]
pub struct TableAction {
    /// The engine's action; for tables with a profile, the profile's.
    pub engine: ActionId,
    /// Allowed in entries, as default, or both.
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
    /// Bits in the data plane.
    pub width: u32,
    /// The controller's form, if the type is translated.
    pub sdn: Option<Sdn>,
}

/// An action profile or selector.
#[derive(Debug)]
pub struct Profile {
    /// Identifier in the P4Info.
    pub id: u32,
    /// Fully qualified name.
    pub name: String,
    /// The engine's profile.
    pub engine: engine::ProfileId,
    /// Whether it has groups.
    pub with_selector: bool,
    /// Largest group; 0: unlimited.
    pub max_group_size: u32,
    /// Largest number of members; 0: unlimited.
    pub size: u64,
    /// `Some` if sizes count members, with the largest weight of one (0: unlimited); otherwise
    /// sizes add up weights.
    pub sum_of_members: Option<u32>,
    /// Whether weights must be unset.
    pub weights_disallowed: bool,
    /// Actions of its tables.
    pub actions: HashMap<u32, ActionId>,
}

/// An array of counters or meters.
#[derive(Debug)]
pub struct Array<Id> {
    /// Fully qualified name.
    pub name: String,
    /// The engine's array.
    pub engine: Id,
    /// Number of cells.
    pub size: usize,
    /// Type of a meter.
    pub meter_type: config::meter_spec::Type,
}

/// A register.
#[derive(Debug)]
pub struct Register {
    /// Fully qualified name.
    pub name: String,
    /// The engine's register.
    pub engine: engine::RegisterId,
    /// Number of cells.
    pub size: usize,
    /// Type of a cell.
    pub data: DataType,
}

/// A parser value set.
#[derive(Debug)]
pub struct ValueSet {
    /// Fully qualified name.
    pub name: String,
    /// The engine's value set.
    pub engine: engine::ValueSetId,
    /// Largest number of members.
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
    /// The engine's digests: the JSON has one for each call in the program, all with one name and
    /// type.
    pub engine: Vec<engine::DigestId>,
    /// Type of a sample.
    pub data: DataType,
    /// Widths in bits of the plain values of a sample.
    pub widths: Vec<u32>,
}

/// Kinds of objects with identifiers; `Display` gives their names in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A table.
    Table,
    /// An action profile or selector.
    Profile,
    /// An indirect counter.
    Counter,
    /// An indirect meter.
    Meter,
    /// A register.
    Register,
    /// A parser value set.
    ValueSet,
    /// A digest.
    Digest,
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Object::Table => "table",
            Object::Profile => "action profile",
            Object::Counter => "counter",
            Object::Meter => "meter",
            Object::Register => "register",
            Object::ValueSet => "value set",
            Object::Digest => "digest",
        })
    }
}

impl Index {
    /// Finds an object by its identifier in the map of its kind: INVALID_ARGUMENT for 0, NOT_FOUND
    /// if it is missing in the P4Info or in the program.
    pub fn find<'a, T>(&self, map: &'a BTreeMap<u32, T>, id: u32, kind: Object) -> Result<&'a T> {
        match (map.get(&id), self.left_out.get(&id)) {
            (Some(object), _) => Ok(object),
            (None, Some((k, name))) if *k == kind => Err(not_found(format!(
                "{kind} {name}: the compiler left it out of the program, since no packet reaches it"
            ))),
            _ if id == 0 => Err(invalid(format!("{kind} id 0"))),
            _ => Err(not_found(format!("no {kind} with id {id:#010x} in the P4Info"))),
        }
    }

    /// Replaces secret parameters by zeros, for clients that may read entries but not keys.
    pub fn hide_secrets(&self, entity: &mut p4::Entity) {
        use p4::entity::Entity;
        use p4::table_action::Type;
        let hide = |action: &mut p4::Action| {
            let id = action.action_id;
            for param in action.params.iter_mut().filter(|p| self.secrets.contains(&(id, p.param_id))) {
                param.value = vec![0];
            }
        };
        match entity.entity.as_mut() {
            _ if self.secrets.is_empty() => {}
            Some(Entity::TableEntry(e)) => match e.action.as_mut().and_then(|a| a.r#type.as_mut()) {
                Some(Type::Action(action)) => hide(action),
                Some(Type::ActionProfileActionSet(set)) => {
                    set.action_profile_actions.iter_mut().filter_map(|a| a.action.as_mut()).for_each(hide);
                }
                _ => {}
            },
            Some(Entity::ActionProfileMember(m)) => m.action.iter_mut().for_each(hide),
            _ => {}
        }
    }

    /// Checks a P4Info against a program.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the name of the mismatching object.
    pub fn new(p4info: &config::P4Info, program: &ProgramInfo) -> Result<Index> {
        let types = Types::new(p4info.type_info.as_ref());
        build::Builder { p4info, program, types, index: Index::default(), ids: Default::default() }.build()
    }
}
