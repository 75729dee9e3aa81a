//! A program: checked and compiled BMv2 JSON.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::code::Ins;
use crate::emit::{StackField, WideExpr};
use crate::hash::Algorithm;
use crate::info::ProgramInfo;
use crate::key::{CanonKey, KeyPlan};
use crate::layout::{Field, Header, Stack};
use crate::types::{ActionId, LoadError, TableId};

/// A P4 program, compiled from the JSON of `p4c --target bmv2 --arch v1model`. Immutable; several
/// pipelines may share one.
pub struct Program {
    pub(crate) info: ProgramInfo,
    pub(crate) headers: Vec<Header>,
    pub(crate) stacks: Vec<Stack>,
    pub(crate) union_stacks: Vec<Stack>,
    /// Members of each union.
    pub(crate) unions: Vec<Vec<u32>>,
    /// Number of slots that belong to a packet.
    pub(crate) phv_slots: u32,
    pub(crate) vl_bytes: u32,
    /// Slots of metadata headers, as ranges.
    pub(crate) metadata: Vec<(u32, u32)>,
    pub(crate) special: Special,
    pub(crate) errors: Errors,
    pub(crate) tables: Vec<TablePlan>,
    pub(crate) actions: Vec<ActionPlan>,
    pub(crate) calculations: Vec<Calculation>,
    pub(crate) checksums: Vec<Checksum>,
    pub(crate) selectors: Vec<Option<u32>>,
    pub(crate) field_lists: Vec<(u32, Vec<Field>)>,
    /// Number of each digest in the JSON, and its fields.
    pub(crate) digests: Vec<(u32, Vec<Field>)>,
    /// Length of all headers that the deparser can write, and the room behind them, in bytes.
    pub(crate) head_bytes: usize,
    pub(crate) register_limbs: Vec<u32>,
    pub(crate) vset_keys: Vec<VsetKey>,
    pub(crate) logs: Vec<LogPlan>,
    pub(crate) asserts: Vec<String>,
    pub(crate) states: Vec<String>,
    pub(crate) conditions: Vec<String>,
    pub(crate) const_entries: Vec<(TableId, CanonKey, ActionWords)>,
    /// Code for normal operation, and with the additions for traces.
    pub(crate) plain: Code,
    pub(crate) traced: Code,
    /// `plain` as machine code, if possible.
    pub(crate) native: Option<crate::jit::Native>,
    /// The same for several workers, compiled when first needed.
    pub(crate) native_many: OnceLock<Option<crate::jit::Native>>,
    /// Sets of register arrays that are locked together, each in order.
    pub(crate) lock_sets: Vec<Vec<u32>>,
}

/// Compiled code and its data.
#[derive(Clone, Default)]
pub(crate) struct Code {
    pub(crate) ins: Vec<Ins>,
    pub(crate) parser: u32,
    pub(crate) parser_end: u32,
    pub(crate) ingress: u32,
    pub(crate) egress: u32,
    pub(crate) deparser: u32,
    pub(crate) actions: Vec<u32>,
    pub(crate) dispatch: Vec<Vec<u32>>,
    pub(crate) slots: u32,
    pub(crate) constants: Vec<(u32, u64)>,
    pub(crate) stack_fields: Vec<StackField>,
    pub(crate) wides: Vec<WideExpr>,
    /// Slot that is set to the drop port when a pipeline starts.
    pub(crate) drop_port: u32,
}

/// Slots that simple_switch itself uses. Fields that a program lacks are `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Special {
    pub(crate) ingress_port: Option<Field>,
    pub(crate) packet_length: Option<Field>,
    pub(crate) instance_type: Option<Field>,
    pub(crate) egress_spec: Option<Field>,
    pub(crate) egress_port: Option<Field>,
    pub(crate) parser_error: Option<Field>,
    pub(crate) checksum_error: Option<Field>,
    pub(crate) ingress_timestamp: Option<Field>,
    pub(crate) egress_timestamp: Option<Field>,
    pub(crate) mcast_grp: Option<Field>,
    pub(crate) egress_rid: Option<Field>,
    pub(crate) priority: Option<Field>,
    pub(crate) enq_timestamp: Option<Field>,
    pub(crate) enq_qdepth: Option<Field>,
    pub(crate) deq_timedelta: Option<Field>,
    pub(crate) deq_qdepth: Option<Field>,
    pub(crate) qid: Option<Field>,
    /// BMv2's packet length register: the length, adjusted for added and removed headers.
    pub(crate) length: u32,
    /// Session of a requested clone, with bit 15 set; 0 for none.
    pub(crate) clone: u32,
    pub(crate) clone_list: u32,
    pub(crate) digest: u32,
    pub(crate) resubmit: u32,
    pub(crate) recirculate: u32,
    pub(crate) exit: u32,
    /// Length to which the packet is truncated.
    pub(crate) truncate: u32,
    /// The parser's final error.
    pub(crate) error: u32,
    /// Whether a checksum was wrong.
    pub(crate) bad_sum: u32,
    /// The fields above, in consecutive slots.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// Parser errors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Errors {
    pub(crate) names: Vec<(String, u64)>,
    pub(crate) none: u64,
    pub(crate) too_short: u64,
    pub(crate) stack_bounds: u64,
    pub(crate) header_short: u64,
    pub(crate) timeout: u64,
    pub(crate) invalid: u64,
}

impl Errors {
    pub(crate) fn name(&self, code: u64) -> String {
        let found = self.names.iter().find(|(_, v)| *v == code);
        found.map_or_else(|| code.to_string(), |(n, _)| n.clone())
    }
}

/// An action with its arguments as slot values, and its index in its table's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ActionWords {
    pub(crate) action: ActionId,
    /// Index in the table's list of actions.
    pub(crate) local: u32,
    pub(crate) words: SmallVec<[u64; 6]>,
}

/// The packet path's data of a table.
#[derive(Clone, Debug)]
pub(crate) struct TablePlan {
    pub(crate) key: KeyPlan,
    pub(crate) default: Option<ActionWords>,
    pub(crate) const_default: bool,
    /// The const default action.
    pub(crate) const_action: Option<ActionId>,
    /// Direct meter: field for the colour, and whether it counts packets.
    pub(crate) meter: Option<(Field, bool)>,
}

/// The packet path's data of an action.
#[derive(Clone, Debug)]
pub(crate) struct ActionPlan {
    /// First slot of its parameters, which are consecutive.
    pub(crate) params: u32,
    /// Limbs of each.
    pub(crate) limbs: Vec<u32>,
}

/// An input of a calculation.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Field(Field),
    /// Limbs and width.
    Const(Vec<u64>, u32),
    Header(u32),
}

/// A hash or checksum over fields.
#[derive(Clone, Debug)]
pub(crate) struct Calculation {
    pub(crate) algorithm: Algorithm,
    pub(crate) inputs: Vec<Input>,
    pub(crate) payload: bool,
    /// For the Internet checksum over aligned fields: see [`SumGroup`].
    pub(crate) sum: Option<Vec<SumGroup>>,
}

/// Inputs of one header that fill whole 16-bit words. If the header is invalid, omitting them does
/// not move other inputs.
#[derive(Clone, Debug)]
pub(crate) struct SumGroup {
    /// Validity of the header; `None` for constants.
    pub(crate) valid: Option<u32>,
    /// Slots with their shifts to the left within a word.
    pub(crate) terms: Vec<(u32, u32)>,
    /// Sum of the constants.
    pub(crate) constant: u64,
}

/// A checksum to verify or to update.
#[derive(Clone, Debug)]
pub(crate) struct Checksum {
    pub(crate) name: String,
    pub(crate) target: Field,
    /// `None`: P4_14's built-in IPv4 checksum over the target's header.
    pub(crate) calculation: Option<u32>,
}

/// A select key compared with a value set.
#[derive(Clone, Debug)]
pub(crate) struct VsetKey {
    pub(crate) set: u32,
    /// Slots and width of each field.
    pub(crate) fields: Vec<(SmallVec<[u32; 2]>, u32)>,
    /// Mask of each field, as limbs; none for all ones.
    pub(crate) masks: Option<Vec<Vec<u64>>>,
}

/// A log message: text and values (first slot, limbs) alternate.
#[derive(Clone, Debug)]
pub(crate) struct LogPlan {
    pub(crate) parts: Vec<String>,
    /// First slot, limbs, whether signed.
    pub(crate) values: Vec<(u32, u32, bool)>,
}

impl Program {
    /// Reads, checks and compiles a program. Takes from one millisecond to some tens of
    /// milliseconds.
    ///
    /// # Errors
    /// Contains the place in the JSON and the fault. No input causes a panic.
    pub fn from_json(json: &[u8]) -> Result<Arc<Program>, LoadError> {
        // Expressions nest as deep as the JSON does, so compile on a thread with a large stack.
        const STACK: usize = 256 << 20;
        let own = |what: &str| LoadError { place: String::new(), what: what.into() };
        std::thread::scope(|scope| {
            let spawned = std::thread::Builder::new()
                .name("p4-load".into())
                .stack_size(STACK)
                .spawn_scoped(scope, || crate::load::program(json));
            match spawned.map(|t| t.join()) {
                Ok(Ok(result)) => result.map(Arc::new),
                Ok(Err(_)) => Err(own("the loader failed; this is a bug of the engine")),
                Err(e) => Err(own(&format!("no thread to load with: {e}"))),
            }
        })
    }

    /// Prepares the program for several workers.
    pub(crate) fn prepare_many(&self) {
        self.native_many.get_or_init(|| crate::jit::compile(self, &self.plain, true));
    }

    /// Its tables, actions and other objects.
    pub fn info(&self) -> &ProgramInfo {
        &self.info
    }
}
