//! A forwarding-pipeline configuration: the engine's pipeline, the index of its P4Info, and data
//! that P4Runtime reads back but packets do not need.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use prost::Message as _;
use rivulet_engine::{Pipeline, Program, TableId};

use crate::error::{Result, invalid};
use crate::index::{self, Index, Object};
use crate::proto::p4::v1 as p4;
use crate::translation::{NameTables, Names};

/// A configuration, saved or forwarding.
#[derive(Clone)]
pub struct Config {
    /// The engine's pipeline.
    pub pipeline: Pipeline,
    /// Index of the P4Info.
    pub index: Arc<Index>,
    /// The request's `config`, for reading it back.
    pub stored: Arc<p4::ForwardingPipelineConfig>,
    /// Multicast groups as written: the engine keeps neither their metadata nor the form of their
    /// ports.
    pub multicast: BTreeMap<u32, p4::MulticastGroupEntry>,
    /// Clone sessions as written.
    pub clones: BTreeMap<u32, p4::CloneSessionEntry>,
    /// Enabled digests.
    pub digests: BTreeMap<u32, p4::digest_entry::Config>,
    /// Metadata of default entries, packed as in [`crate::write::table::pack_metadata`].
    pub default_metadata: HashMap<u32, Vec<u8>>,
    /// How each profile is used.
    pub profiles: HashMap<u32, ProfileUse>,
    /// Difference between P4Runtime's priorities and the engine's, if not 0: the engine numbers the
    /// N entries of a program from -1 down, P4Runtime from N down (section 9.1.4).
    pub priority_shift: HashMap<TableId, i32>,
    /// Strings of translated types.
    pub names: NameTables,
    /// An empty table.
    pub no_names: Arc<Names>,
}

/// Use of an action profile; one-shots and members exclude each other (P4Runtime section 9.2.3).
#[derive(Clone, Debug, Default)]
pub struct ProfileUse {
    /// Entries with a one-shot action set.
    pub one_shots: usize,
    /// Members.
    pub members: usize,
    /// Groups, with the `max_size` of their insertion.
    pub groups: BTreeMap<u32, i32>,
}

/// A device configuration of P4Runtime's first releases. BMv2 accepts it, and the controllers of
/// p4lang/tutorials still send it.
#[derive(Clone, PartialEq, prost::Message)]
struct WrappedProgram {
    #[prost(bytes = "vec", tag = "3")]
    device_data: Vec<u8>,
}

/// The JSON of a device configuration: all of it, or the field of the old message.
fn program_json(device_config: &[u8]) -> Cow<'_, [u8]> {
    // No JSON object begins with the key of a field of this message.
    if device_config.trim_ascii_start().first() == Some(&b'{') {
        return Cow::Borrowed(device_config);
    }
    match WrappedProgram::decode(device_config) {
        Ok(wrapped) if !wrapped.device_data.is_empty() => Cow::Owned(wrapped.device_data),
        _ => Cow::Borrowed(device_config),
    }
}

impl Config {
    /// Loads a configuration: compiles the program and checks the P4Info against it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the position in the JSON or the object of the P4Info.
    pub fn load(stored: p4::ForwardingPipelineConfig) -> Result<Config> {
        if stored.p4_device_config.is_empty() {
            return Err(invalid("p4_device_config is empty: it has to be the JSON that p4c wrote"));
        }
        let program = Program::from_json(&program_json(&stored.p4_device_config))
            .map_err(|e| invalid(format!("p4_device_config: {e}")))?;
        let mut config = Config::over(Pipeline::new(program), Arc::new(stored))?;
        for table in config.index.tables.values().filter(|t| t.has_priority) {
            let entries = config.pipeline.entries(table.engine);
            if let Some(lowest) = entries.iter().map(|e| e.spec.key.priority).min().filter(|p| *p < 1) {
                config.priority_shift.insert(table.engine, 1 - lowest);
            }
        }
        config.count_uses();
        Ok(config)
    }

    /// Difference between P4Runtime's priorities and the engine's in a table.
    pub fn shift(&self, table: &index::Table) -> i32 {
        self.priority_shift.get(&table.engine).copied().unwrap_or(0)
    }

    /// P4Runtime's priority for one of the engine.
    pub fn priority(&self, table: &index::Table, engine: i32) -> i32 {
        if table.has_priority { engine.saturating_add(self.shift(table)) } else { 0 }
    }

    /// A configuration for an existing pipeline.
    pub fn over(pipeline: Pipeline, stored: Arc<p4::ForwardingPipelineConfig>) -> Result<Config> {
        let p4info = stored.p4info.as_ref().ok_or_else(|| invalid("the config has no P4Info"))?;
        let index = Arc::new(Index::new(p4info, pipeline.info())?);
        let names = NameTables::new(&index.name_types)?;
        Ok(Config {
            names,
            no_names: Arc::default(),
            pipeline,
            index,
            stored,
            multicast: BTreeMap::new(),
            clones: BTreeMap::new(),
            digests: BTreeMap::new(),
            default_metadata: HashMap::new(),
            profiles: HashMap::new(),
            priority_shift: HashMap::new(),
        })
    }

    /// A table by its identifier.
    pub fn table(&self, id: u32) -> Result<&index::Table> {
        self.index.find(&self.index.tables, id, Object::Table)
    }

    /// A profile by its identifier.
    pub fn profile(&self, id: u32) -> Result<&index::Profile> {
        self.index.find(&self.index.profiles, id, Object::Profile)
    }

    /// Use of a profile.
    pub fn profile_use(&mut self, id: u32) -> &mut ProfileUse {
        self.profiles.entry(id).or_default()
    }
}
