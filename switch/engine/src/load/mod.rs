//! Loads a program from JSON: reads every object once, in the order of references.

mod actions;
mod assign;
mod control;
mod deparser;
mod held;
mod log;
mod parser;
mod tables;

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

use crate::emit::Asm;
use crate::expr::Scope;
use crate::hash::Algorithm;
use crate::info::*;
use crate::json::{Json, Res, parse};
use crate::layout::{Field, Layout, deparser_order};
use crate::program::*;
use crate::types::LoadError;

/// Largest number of cells of a register, counter or meter array.
const MAX_CELLS: u64 = 1 << 26;
/// Largest number of instructions of a program.
const MAX_CODE: usize = 1 << 24;

/// State of the compiler.
pub(crate) struct Loader<'l, 'a> {
    root: Json<'a>,
    layout: &'l Layout<'a>,
    asm: Asm<'l, 'a>,
    special: Special,
    info: &'l ProgramInfo,
    /// Action number for each id.
    action_ids: &'l HashMap<i64, u32>,
    action_json: &'l [Json<'a>],
    action_plans: &'l [ActionPlan],
    registers: &'l [(String, u32)],
    /// Number of each register array.
    register_ids: &'l HashMap<String, u32>,
    calculations: &'l HashMap<String, u32>,
    tables: &'l [TablePlan],
    traced: bool,
    drop_port: u32,
    states: Vec<String>,
    conditions: Vec<String>,
    vset_keys: Vec<VsetKey>,
    logs: Vec<LogPlan>,
    asserts: Vec<String>,
    dispatch: Vec<Vec<crate::emit::Label>>,
    lock_sets: Vec<Vec<u32>>,
    /// The headers that the deparser writes, in order.
    deparse: &'l [u32],
    /// Widths of the parameters of the action being compiled.
    params: Vec<u32>,
}

impl<'a> Loader<'_, 'a> {
    fn scope(&self) -> Scope<'_, 'a> {
        Scope { layout: self.layout, registers: self.registers, params: &self.params }
    }
}

/// Reads and compiles a program.
pub(crate) fn program(text: &[u8]) -> Result<Program, LoadError> {
    let value = parse(text)?;
    let root = Json::root(&value);
    version(&root)?;
    let mut layout = Layout::read(&root)?;
    let errors = errors(&root)?;
    let special = special(&root, &mut layout)?;
    let phv_slots = layout.slots;

    let mut info = ProgramInfo { headers: header_info(&layout), ..ProgramInfo::default() };
    arrays(&root, &layout, &mut info)?;
    let (action_ids, action_json, action_plans) = action_list(&root, &mut layout, &mut info)?;
    let registers: Vec<(String, u32)> = info.registers.iter().map(|r| (r.name.clone(), r.width)).collect();
    let register_ids: HashMap<String, u32> = registers.iter().map(|r| r.0.clone()).zip(0..).collect();
    let (mut calculations, calculation_names) = calculations(&root, &layout)?;
    let (tables, const_entries, selectors) =
        tables::tables(&root, &layout, &mut info, &action_ids, &action_plans, &mut calculations)?;
    let digests = learn_lists(&root, &layout, &mut info)?;
    let field_lists = field_lists(&root, &layout)?;
    let checksums = checksums(&root, &layout, &calculation_names)?;
    let (deparse, head_bytes) = deparser_order(&root, &layout)?;

    // Twice: for normal operation, and for traces.
    let compile = |traced: bool| -> Res<_> {
        let mut asm = Asm::new(&layout, layout.slots);
        asm.register_limbs = registers.iter().map(|r| crate::bits::limb_count(r.1) as u32).collect();
        let drop_port = asm.slots;
        asm.slots += 1;
        let mut l = Loader {
            root: root.clone(),
            layout: &layout,
            asm,
            special,
            info: &info,
            action_ids: &action_ids,
            action_json: &action_json,
            action_plans: &action_plans,
            registers: &registers,
            register_ids: &register_ids,
            calculations: &calculation_names,
            tables: &tables,
            traced,
            drop_port,
            states: Vec::new(),
            conditions: Vec::new(),
            vset_keys: Vec::new(),
            logs: Vec::new(),
            asserts: Vec::new(),
            dispatch: Vec::new(),
            lock_sets: Vec::new(),
            deparse: &deparse,
            params: Vec::new(),
        };
        let code = l.compile()?;
        Ok((code, l.states, l.conditions, l.vset_keys, l.logs, l.asserts, l.lock_sets))
    };
    let (plain, states, ..) = compile(false)?;
    let (traced, _, conditions, vset_keys, logs, asserts, lock_sets) = compile(true)?;

    let metadata = layout.headers.iter().filter(|h| h.metadata).map(|h| (h.base, h.base + h.slots)).collect();
    value_set_fields(&mut info, &vset_keys);
    let mut program = Program {
        native: None,
        native_many: OnceLock::new(),
        lock_sets,
        phv_slots,
        vl_bytes: layout.vl_bytes,
        metadata,
        special,
        errors,
        tables,
        actions: action_plans,
        calculations,
        checksums,
        selectors,
        field_lists,
        digests,
        head_bytes,
        register_limbs: registers.iter().map(|r| crate::bits::limb_count(r.1) as u32).collect(),
        vset_keys,
        logs,
        asserts,
        states,
        conditions,
        const_entries,
        plain,
        traced,
        unions: layout.unions.iter().map(|u| u.2.clone()).collect(),
        headers: layout.headers,
        stacks: layout.stacks,
        union_stacks: layout.union_stacks,
        info,
    };
    program.native = crate::jit::compile(&program, &program.plain, false);
    Ok(program)
}

fn version(root: &Json) -> Res<()> {
    root.members()?;
    let Some(v) = root.opt("__meta__").and_then(|m| m.opt("version")) else { return Ok(()) };
    let major = v.at(0)?.int()?;
    if major != 2 { v.err(format!("format version {major}; version 2 is understood")) } else { Ok(()) }
}

impl<'a> Loader<'_, 'a> {
    fn compile(&mut self) -> Res<Code> {
        let (parser, parser_end) = self.parser()?;
        let actions = self.actions()?;
        let ingress = self.pipeline("ingress")?;
        let egress = self.pipeline("egress")?;
        let deparser = self.deparser()?;
        if self.asm.code.len() > MAX_CODE || self.asm.slots > 1 << 24 {
            return self.root.err("the program is too large");
        }
        self.asm.link();
        let dispatch =
            self.dispatch.iter().map(|d| d.iter().map(|l| self.asm.address(*l)).collect()).collect();
        Ok(Code {
            parser: self.asm.address(parser),
            parser_end: self.asm.address(parser_end),
            ingress: self.asm.address(ingress),
            egress: self.asm.address(egress),
            deparser: self.asm.address(deparser),
            actions: actions.iter().map(|l| self.asm.address(*l)).collect(),
            dispatch,
            slots: self.asm.slots,
            constants: self.asm.constants(),
            stack_fields: std::mem::take(&mut self.asm.stack_fields),
            wides: std::mem::take(&mut self.asm.wides),
            drop_port: self.drop_port,
            ins: std::mem::take(&mut self.asm.code),
        })
    }
}

fn errors(root: &Json) -> Res<Errors> {
    let mut names = Vec::new();
    for e in root.list("errors")? {
        names.push((e.at(0)?.str()?.to_string(), e.at(1)?.uint((1 << 31) - 1)?));
    }
    // BMv2 assigns a number to the core library's errors if the program does not.
    let mut next = (1u64 << 31) - 2;
    let mut core = |name: &str| match names.iter().find(|(n, _)| n == name) {
        Some((_, v)) => *v,
        None => {
            next -= 1;
            names.push((name.into(), next + 1));
            next + 1
        }
    };
    Ok(Errors {
        none: core("NoError"),
        too_short: core("PacketTooShort"),
        stack_bounds: core("StackOutOfBounds"),
        header_short: core("HeaderTooShort"),
        timeout: core("ParserTimeout"),
        invalid: core("ParserInvalidArgument"),
        names,
    })
}

fn special(root: &Json, l: &mut Layout) -> Res<Special> {
    const COUNT: u32 = 10;
    let first = l.take(root, COUNT)?;
    let get = |h: &str, f: &str| l.special(h, f).filter(|f| f.width <= 64 && !f.vl);
    let (std, intr, queue) = ("standard_metadata", "intrinsic_metadata", "queueing_metadata");
    let queueing = ["enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"];
    // All queueing fields or none, as in BMv2.
    let queued = queueing.iter().all(|f| get(queue, f).is_some());
    let q = |f: &str| if queued { get(queue, f) } else { None };
    let s = Special {
        ingress_port: get(std, "ingress_port"),
        packet_length: get(std, "packet_length"),
        instance_type: get(std, "instance_type"),
        egress_spec: get(std, "egress_spec"),
        egress_port: get(std, "egress_port"),
        parser_error: get(std, "parser_error"),
        checksum_error: get(std, "checksum_error"),
        ingress_timestamp: get(intr, "ingress_global_timestamp"),
        egress_timestamp: get(intr, "egress_global_timestamp"),
        mcast_grp: get(intr, "mcast_grp"),
        egress_rid: get(intr, "egress_rid"),
        priority: get(intr, "priority"),
        enq_timestamp: q("enq_timestamp"),
        enq_qdepth: q("enq_qdepth"),
        deq_timedelta: q("deq_timedelta"),
        deq_qdepth: q("deq_qdepth"),
        qid: q("qid"),
        length: first,
        clone: first + 1,
        clone_list: first + 2,
        digest: first + 3,
        resubmit: first + 4,
        recirculate: first + 5,
        exit: first + 6,
        truncate: first + 7,
        error: first + 8,
        bad_sum: first + 9,
        first,
        count: COUNT,
    };
    for (name, field) in [
        ("ingress_port", s.ingress_port),
        ("packet_length", s.packet_length),
        ("instance_type", s.instance_type),
        ("egress_spec", s.egress_spec),
        ("egress_port", s.egress_port),
    ] {
        if field.is_none() {
            return root
                .err(format!("the field standard_metadata.{name}, which the switch needs, is missing"));
        }
    }
    Ok(s)
}

fn header_info(layout: &Layout) -> Vec<HeaderInfo> {
    let carried: HashSet<usize> = layout.headers.iter().filter(|h| !h.metadata).map(|h| h.ty).collect();
    let types = layout.types.iter().enumerate().filter(|(at, _)| carried.contains(at));
    types
        .map(|(_, t)| HeaderInfo {
            name: t.name.clone(),
            fields: t.fields.iter().filter(|f| !f.vl).map(|f| (f.name.clone(), f.width)).collect(),
        })
        .collect()
}

fn arrays(root: &Json, _layout: &Layout, info: &mut ProgramInfo) -> Res<()> {
    let size = |j: &Json| -> Res<usize> { Ok(j.get("size")?.uint(MAX_CELLS)? as usize) };
    for c in root.list("counter_arrays")? {
        if !c.flag("is_direct")? {
            info.counters.push(CounterInfo { name: c.name()?.into(), size: size(&c)? });
        }
    }
    for m in root.list("meter_arrays")? {
        let unit = match m.get("type")?.str()? {
            "packets" => MeterUnit::Packets,
            "bytes" => MeterUnit::Bytes,
            other => return m.err(format!("no meter counts `{other}`")),
        };
        if !m.flag("is_direct")? {
            info.meters.push(MeterInfo { name: m.name()?.into(), size: size(&m)?, unit });
        }
    }
    for r in root.list("register_arrays")? {
        let width = r.get("bitwidth")?.uint(16_384)? as u32;
        if width == 0 {
            return r.err("cells of no bits");
        }
        let size = size(&r)?;
        if size * crate::bits::limb_count(width) > MAX_CELLS as usize {
            return r.err("too large");
        }
        info.registers.push(RegisterInfo { name: r.name()?.into(), size, width });
    }
    for v in root.list("parse_vsets")? {
        let width = v.get("compressed_bitwidth")?.uint(16_384)? as u32;
        info.value_sets.push(ValueSetInfo { name: v.name()?.into(), width, fields: vec![width] });
    }
    Ok(())
}

/// A value set has the fields of the select that uses it.
fn value_set_fields(info: &mut ProgramInfo, keys: &[VsetKey]) {
    for k in keys {
        let set = &mut info.value_sets[k.set as usize];
        let fields: Vec<u32> = k.fields.iter().map(|f| f.1).collect();
        if fields.iter().sum::<u32>() == set.width {
            set.fields = fields;
        }
    }
}

type ActionList<'a> = (HashMap<i64, u32>, Vec<Json<'a>>, Vec<ActionPlan>);

fn action_list<'a>(root: &Json<'a>, layout: &mut Layout, info: &mut ProgramInfo) -> Res<ActionList<'a>> {
    let (mut ids, mut json, mut plans) = (HashMap::new(), Vec::new(), Vec::new());
    for a in root.list("actions")? {
        let mut params = Vec::new();
        for p in a.list("runtime_data")? {
            let width = p.get("bitwidth")?.uint(16_384)? as u32;
            params.push(ParamInfo { name: p.name()?.into(), width });
        }
        let limbs: Vec<u32> = params.iter().map(|p| crate::bits::limb_count(p.width) as u32).collect();
        let first = layout.take(&a, limbs.iter().sum())?;
        if ids.insert(a.get("id")?.int()?, plans.len() as u32).is_some() {
            return a.err("there are two actions with this id");
        }
        plans.push(ActionPlan { params: first, limbs });
        info.actions.push(ActionInfo { name: a.name()?.into(), params });
        json.push(a);
    }
    Ok((ids, json, plans))
}

/// Inputs of a calculation, a selector or similar.
fn inputs(list: &Json, layout: &Layout) -> Res<(Vec<Input>, bool)> {
    let (mut out, mut payload) = (Vec::new(), false);
    for i in list.items()? {
        match i.get("type")?.str()? {
            "field" => out.push(Input::Field(layout.field(&i.get("value")?)?)),
            "hexstr" => {
                let width = i.get("bitwidth")?.uint(16_384)? as u32;
                out.push(Input::Const(crate::expr::limbs_mod(&i.get("value")?.hex()?, width), width));
            }
            "header" => out.push(Input::Header(layout.header(&i.get("value")?)?)),
            "payload" => payload = true,
            other => return i.err(format!("no input of a calculation has the type `{other}`")),
        }
    }
    Ok((out, payload))
}

fn algorithm(at: &Json) -> Res<Algorithm> {
    let name = at.str()?;
    Algorithm::by_name(name).ok_or_else(|| at.error(format!("no hash algorithm `{name}`")))
}

fn calculations(root: &Json, layout: &Layout) -> Res<(Vec<Calculation>, HashMap<String, u32>)> {
    let (mut list, mut names) = (Vec::new(), HashMap::new());
    for c in root.list("calculations")? {
        let (inputs, payload) = inputs(&c.get("input")?, layout)?;
        names.insert(c.name()?.to_string(), list.len() as u32);
        list.push(calculation(algorithm(&c.get("algo")?)?, inputs, payload, layout));
    }
    Ok((list, names))
}

/// A calculation, with a plan for the sum if it is the Internet checksum over aligned fields.
fn calculation(algorithm: Algorithm, inputs: Vec<Input>, payload: bool, layout: &Layout) -> Calculation {
    let sum = if algorithm == Algorithm::Csum16 { sum_groups(&inputs, layout) } else { None };
    Calculation { algorithm, inputs, payload, sum }
}

fn sum_groups(inputs: &[Input], layout: &Layout) -> Option<Vec<SumGroup>> {
    let mut out: Vec<SumGroup> = Vec::new();
    // Bits of the present group.
    let mut bits = 0u32;
    for input in inputs {
        let (valid, limbs, width) = match input {
            Input::Field(f) if !f.vl => {
                let h = &layout.headers[f.header as usize];
                let valid = if h.metadata { None } else { Some(h.valid()) };
                let limbs: Vec<Result<u32, u64>> =
                    (0..crate::bits::limb_count(f.width) as u32).map(|l| Ok(f.slot + l)).collect();
                (valid, limbs, f.width)
            }
            Input::Const(limbs, width) => (None, limbs.iter().map(|l| Err(*l)).collect(), *width),
            _ => return None,
        };
        if out.last().is_none_or(|g| g.valid != valid) {
            if !bits.is_multiple_of(16) {
                return None;
            }
            bits = 0;
            out.push(SumGroup { valid, terms: Vec::new(), constant: 0 });
        }
        let group = out.last_mut()?;
        for (l, limb) in limbs.iter().enumerate() {
            // Limbs are 64 bits apart, a multiple of the word size.
            let shift = (16 - (bits + width) % 16) % 16;
            let _ = l;
            match limb {
                Ok(slot) => group.terms.push((*slot, shift)),
                Err(v) => group.constant += ((v & 0xffff_ffff) << shift) + ((v >> 32) << shift),
            }
        }
        bits += width;
    }
    bits.is_multiple_of(16).then_some(out)
}

fn learn_lists(root: &Json, layout: &Layout, info: &mut ProgramInfo) -> Res<Vec<(u32, Vec<Field>)>> {
    let mut out = Vec::new();
    for l in root.list("learn_lists")? {
        let mut fields = Vec::new();
        for e in l.get("elements")?.items()? {
            if e.get("type")?.str()? != "field" {
                return e.err("a digest holds fields");
            }
            fields.push(layout.field(&e.get("value")?)?);
        }
        let id = l.get("id")?.uint(0xffff)? as u32;
        info.digests
            .push(DigestInfo { name: l.name()?.into(), fields: fields.iter().map(|f| f.width).collect() });
        out.push((id, fields));
    }
    Ok(out)
}

fn field_lists(root: &Json, layout: &Layout) -> Res<Vec<(u32, Vec<Field>)>> {
    let mut out = Vec::new();
    for l in root.list("field_lists")? {
        let mut fields = Vec::new();
        for e in l.get("elements")?.items()? {
            match e.get("type")?.str()? {
                "field" => fields.push(layout.field(&e.get("value")?)?),
                // A constant cannot be kept; BMv2 accepts and ignores it too.
                "hexstr" => {}
                _ => return e.err("a field list holds fields"),
            }
        }
        out.push((l.get("id")?.uint(0xffff)? as u32, fields));
    }
    Ok(out)
}

fn checksums(root: &Json, layout: &Layout, calculations: &HashMap<String, u32>) -> Res<Vec<Checksum>> {
    let mut out = Vec::new();
    for c in root.list("checksums")? {
        let target = layout.field(&c.get("target")?)?;
        if target.width > 64 || target.vl {
            return c.err("a checksum is at most 64 bits wide");
        }
        let calculation = if c.get("type")?.str()? == "ipv4" {
            None
        } else {
            let at = c.get("calculation")?;
            let name = at.str()?;
            let found = calculations.get(name).copied();
            Some(found.ok_or_else(|| at.error(format!("no calculation `{name}`")))?)
        };
        out.push(Checksum { name: c.name()?.into(), target, calculation });
    }
    Ok(out)
}
