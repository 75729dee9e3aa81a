//! Pipelines: tables, conditions and what follows what; and the deparser's calls.

use std::collections::HashMap;

use num_bigint::BigInt;

use crate::code::{Ins, Op};
use crate::emit::{Label, Params};
use crate::expr::limbs_mod;
use crate::info::*;
use crate::json::{Json, Res};
use crate::key::{CanonKey, KeyPlan};
use crate::layout::Layout;
use crate::load::actions::source;
use crate::load::{Loader, algorithm, calculation, inputs};
use crate::program::*;
use crate::types::*;

type Tables = (Vec<TablePlan>, Vec<(TableId, CanonKey, ActionWords)>, Vec<Option<u32>>);

/// Tables a program may have entries for, each.
const MAX_TABLE: u64 = 1 << 24;

struct TableReader<'l, 'a> {
    root: &'l Json<'a>,
    layout: &'l Layout<'a>,
    action_ids: &'l HashMap<i64, u32>,
    action_plans: &'l [ActionPlan],
}

/// Reads all tables of all pipelines: what they look like, their defaults and const entries; and the selectors
/// of the action profiles, which become calculations.
pub(super) fn tables(
    root: &Json,
    layout: &Layout,
    info: &mut ProgramInfo,
    action_ids: &HashMap<i64, u32>,
    action_plans: &[ActionPlan],
    calculations: &mut Vec<Calculation>,
) -> Res<Tables> {
    let reader = TableReader { root, layout, action_ids, action_plans };
    let (mut plans, mut entries, mut selectors) = (Vec::new(), Vec::new(), Vec::new());
    let pipelines = root.list("pipelines")?;
    for p in &pipelines {
        for a in p.list("action_profiles")? {
            let selector = match a.opt("selector") {
                Some(s) => {
                    let (inputs, payload) = inputs(&s.get("input")?, layout)?;
                    calculations.push(calculation(algorithm(&s.get("algo")?)?, inputs, payload, layout));
                    Some(calculations.len() as u32 - 1)
                }
                None => None,
            };
            info.profiles.push(ProfileInfo {
                name: a.name()?.into(),
                has_selector: selector.is_some(),
                max_size: a.opt("max_size").map_or(Ok(0), |m| m.uint(u64::MAX))? as usize,
                actions: Vec::new(),
            });
            selectors.push(selector);
        }
        for t in p.list("tables")? {
            if info.table(t.name()?).is_some() {
                return t.err("there are two tables of this name");
            }
            let plan = reader.table(&t, info)?;
            let id = TableId(plans.len() as u32);
            plans.push(plan);
            let list = t.list("entries")?;
            if !list.is_empty() {
                info.tables[id.index()].const_entries = true;
                info.tables[id.index()].max_size = list.len();
            }
            for e in &list {
                let (key, call) = reader.const_entry(e, &plans[id.index()], &info.tables[id.index()])?;
                entries.push((id, key, call));
            }
        }
    }
    Ok((plans, entries, selectors))
}

impl TableReader<'_, '_> {
    fn table(&self, t: &Json, info: &mut ProgramInfo) -> Res<TablePlan> {
        let kind = match t.get("match_type")?.str()? {
            "exact" => TableKind::Exact,
            "lpm" => TableKind::Lpm,
            "ternary" => TableKind::Ternary,
            "range" => TableKind::Range,
            other => return t.err(format!("no table matches `{other}`")),
        };
        let (mut key, mut fields, mut lpm) = (KeyPlan::default(), Vec::new(), 0);
        for k in t.list("key")? {
            let at = k.get("match_type")?;
            let kind = match at.str()? {
                "exact" => MatchKind::Exact,
                "lpm" => MatchKind::Lpm,
                "ternary" | "optional" => MatchKind::Ternary,
                "range" => MatchKind::Range,
                "valid" => MatchKind::Valid,
                other => return at.err(format!("no key is matched `{other}`")),
            };
            lpm += usize::from(kind == MatchKind::Lpm);
            let target = k.get("target")?;
            let (slot, width, name) = if kind == MatchKind::Valid {
                let h = &self.layout.headers[self.layout.header(&target)? as usize];
                (h.valid(), 1, h.name.clone())
            } else {
                let f = self.layout.field(&target)?;
                if f.vl {
                    return target.err("a variable-length field is no key");
                }
                (f.slot, f.width, format!("{}.{}", target.at(0)?.str()?, target.at(1)?.str()?))
            };
            let mask = match k.opt("mask") {
                Some(m) => {
                    if m.hex_bytes()?.len() != (width as usize).div_ceil(8) {
                        return m.err(format!("a mask for {width} bits was expected"));
                    }
                    Some(limbs_mod(&m.hex()?, width))
                }
                None => None,
            };
            key.push(slot, width, kind, mask);
            let name = k.opt("name").map_or(Ok(name.as_str()), |n| n.str())?.to_string();
            fields.push(KeyField { name, kind, width });
        }
        let is = |k: MatchKind| fields.iter().any(|f: &KeyField| f.kind == k);
        let fits = match kind {
            TableKind::Exact => !is(MatchKind::Lpm) && !is(MatchKind::Ternary) && !is(MatchKind::Range),
            TableKind::Lpm => lpm == 1 && !is(MatchKind::Ternary) && !is(MatchKind::Range),
            TableKind::Ternary => !is(MatchKind::Range),
            TableKind::Range => true,
        };
        if !fits {
            return t.get("key")?.err("its match kinds do not go with the table's");
        }
        if key.words > crate::table::MAX_WORDS {
            return t.get("key")?.err("the key is too wide");
        }
        let actions = self.action_list(t, info)?;
        let action_names: Vec<String> =
            actions.iter().map(|a| info.actions[a.index()].name.clone()).collect();
        let profile = match t.opt("action_profile").or_else(|| t.opt("act_prof_name")) {
            Some(p) => {
                let name = p.str()?;
                let Some(id) = info.profile(name) else {
                    return p.err(format!("no action profile `{name}`"));
                };
                let list = &mut info.profiles[id.index()].actions;
                for a in &actions {
                    if !list.contains(a) {
                        list.push(*a);
                    }
                }
                Some(id)
            }
            None => None,
        };
        let kind_at = t.get("type")?;
        match (kind_at.str()?, profile) {
            ("simple", None) => {}
            ("indirect", Some(_)) => {}
            ("indirect_ws", Some(p)) if info.profiles[p.index()].has_selector => {}
            _ => return kind_at.err("the type does not go with the table's action profile"),
        }
        let meter = match t.opt("direct_meters") {
            Some(m) => Some(self.direct_meter(&m)?),
            None => None,
        };
        let max_size = match t.opt("max_size") {
            Some(n) => n.uint(u64::MAX)?.min(MAX_TABLE),
            None => 0,
        };
        let name = t.name()?;
        let (default, const_default, const_action) = self.default_entry(t, &actions)?;
        if const_default && default.is_none() {
            return t.err("a const default action that is none");
        }
        info.tables.push(TableInfo {
            name: name.into(),
            kind,
            key: fields,
            actions,
            action_names,
            max_size: max_size as usize,
            profile,
            has_counters: t.flag("with_counters")?,
            direct_meter: meter.as_ref().map(|m: &(String, _, MeterUnit)| (m.0.clone(), m.2)),
            support_timeout: t.flag("support_timeout")?,
            const_entries: false,
            hidden: name.starts_with("tbl_") && key.fields.is_empty(),
        });
        let meter = meter.map(|(_, field, unit)| (field, unit == MeterUnit::Packets));
        Ok(TablePlan { key, default, const_default, const_action, meter })
    }

    fn action_list(&self, t: &Json, info: &ProgramInfo) -> Res<Vec<ActionId>> {
        let mut out = Vec::new();
        if let Some(ids) = t.opt("action_ids") {
            for id in ids.items()? {
                out.push(self.action(&id)?);
            }
        } else {
            for name in t.get("actions")?.items()? {
                let n = name.str()?;
                let Some(i) = info.actions.iter().position(|a| a.name == n) else {
                    return name.err("no such action");
                };
                out.push(ActionId(i as u32));
            }
        }
        Ok(out)
    }

    fn action(&self, id: &Json) -> Res<ActionId> {
        match self.action_ids.get(&id.int()?) {
            Some(i) => Ok(ActionId(*i)),
            None => id.err("no action has this id"),
        }
    }

    fn direct_meter(&self, name: &Json) -> Res<(String, crate::layout::Field, MeterUnit)> {
        let wanted = name.str()?;
        for m in self.root.list("meter_arrays")? {
            if m.flag("is_direct")? && m.name()? == wanted {
                let target = m.get("result_target")?;
                let field = self.layout.field(&target)?;
                if field.width > 64 || field.vl {
                    return target.err("a colour does not go there");
                }
                let unit = match m.get("type")?.str()? {
                    "packets" => MeterUnit::Packets,
                    _ => MeterUnit::Bytes,
                };
                return Ok((wanted.into(), field, unit));
            }
        }
        name.err(format!("no direct meter `{wanted}`"))
    }

    fn call(&self, at: &Json, actions: &[ActionId]) -> Res<ActionWords> {
        let id = at.get("action_id")?;
        let action = self.action(&id)?;
        let Some(local) = actions.iter().position(|a| *a == action) else {
            return id.err("the table does not have this action");
        };
        let plan = &self.action_plans[action.index()];
        let data = at.get("action_data")?;
        let values = data.items()?;
        if values.len() != plan.limbs.len() {
            return data.err(format!("the action takes {} parameters", plan.limbs.len()));
        }
        let mut words = smallvec::SmallVec::new();
        for (v, n) in values.iter().zip(&plan.limbs) {
            words.extend(limbs_mod(&v.hex()?, n * 64));
        }
        Ok(ActionWords { action, local: local as u32, words })
    }

    fn default_entry(
        &self,
        t: &Json,
        actions: &[ActionId],
    ) -> Res<(Option<ActionWords>, bool, Option<ActionId>)> {
        let Some(d) = t.opt("default_entry") else { return Ok((None, false, None)) };
        // p4c may name a default that the list of actions lacks when it is the only one.
        let call = self.call(&d, actions)?;
        let const_action = d.flag("action_const")?.then_some(call.action);
        Ok((Some(call), d.flag("action_entry_const")?, const_action))
    }

    fn const_entry(&self, e: &Json, plan: &TablePlan, info: &TableInfo) -> Res<(CanonKey, ActionWords)> {
        let mut fields = Vec::new();
        for k in e.get("match_key")?.items()? {
            let bytes = |name: &'static str| -> Res<Vec<u8>> {
                Ok(k.get(name)?.hex()?.to_biguint().ok_or_else(|| k.error("negative"))?.to_bytes_be())
            };
            fields.push(match k.get("match_type")?.str()? {
                "exact" => KeyMatch::Exact(bytes("key")?),
                "valid" => KeyMatch::Exact(vec![k.get("key")?.bool()?.into()]),
                "lpm" => {
                    let prefix_len = k.get("prefix_length")?.uint(16_384)? as u32;
                    let width = plan.key.fields.get(fields.len()).map_or(0, |f| f.width);
                    // Bits below the prefix are nothing's.
                    let below = width.saturating_sub(prefix_len);
                    let value: BigInt = (k.get("key")?.hex()? >> below) << below;
                    KeyMatch::Lpm { value: value.to_bytes_be().1, prefix_len }
                }
                "ternary" | "optional" => {
                    // Bits outside the mask are nothing's.
                    let (v, m) = (k.get("key")?.hex()?, k.get("mask")?.hex()?);
                    let v: BigInt = v & &m;
                    KeyMatch::Ternary { value: v.to_bytes_be().1, mask: m.to_bytes_be().1 }
                }
                "range" => KeyMatch::Range { low: bytes("start")?, high: bytes("end")? },
                other => return k.err(format!("no key is matched `{other}`")),
            });
        }
        // In the JSON the smaller number wins.
        let priority = match info.kind.has_priority() {
            true => e.opt("priority").map_or(Ok(0), |p| p.int())?.clamp(-(1 << 30), 1 << 30) as i32,
            false => 0,
        };
        let key = EntryKey { fields, priority: -priority };
        let canon = plan.key.canon(info, &key).map_err(|w| e.error(w.to_string()))?;
        Ok((canon, self.call(&e.get("action_entry")?, &info.actions)?))
    }
}

/// A node of a pipeline.
enum Node<'a> {
    Table(Json<'a>, u32),
    Condition(Json<'a>),
    Call(Json<'a>),
}

impl<'a> Loader<'_, 'a> {
    /// A pipeline's code; the label of its start.
    pub(super) fn pipeline(&mut self, name: &str) -> Res<Label> {
        let start = self.asm.label();
        self.asm.bind(start);
        let found = self.root.list("pipelines")?.into_iter().find(|p| p.name() == Ok(name));
        let Some(p) = found else { return self.root.err(format!("there is no pipeline `{name}`")) };
        let mut nodes: HashMap<String, (Node<'a>, Label)> = HashMap::new();
        for t in p.list("tables")? {
            let id = self.info.table(t.name()?).map_or(0, |t| t.0);
            let label = self.asm.label();
            nodes.insert(t.name()?.into(), (Node::Table(t, id), label));
        }
        for c in p.list("conditionals")? {
            let label = self.asm.label();
            nodes.insert(c.name()?.into(), (Node::Condition(c), label));
        }
        for c in p.list("action_calls")? {
            let label = self.asm.label();
            nodes.insert(c.name()?.into(), (Node::Call(c), label));
        }
        let end = self.asm.label();
        let init = p.get("init_table")?;
        if init.is_null() {
            self.asm.jump(Op::Jmp, end, 0, 0);
        } else {
            let order = self.order(&init, &nodes)?;
            // The first node follows at once; each goes on to the next where it can.
            for (i, name) in order.iter().enumerate() {
                let (node, label) = &nodes[*name];
                self.asm.bind(*label);
                let after = order.get(i + 1).map(|n| nodes[*n].1);
                match node {
                    Node::Table(t, id) => self.table_node(t, *id, &nodes, end, after)?,
                    Node::Condition(c) => self.condition(c, &nodes, end, after)?,
                    Node::Call(c) => self.call(c, &nodes, end, after)?,
                }
            }
        }
        self.asm.bind(end);
        self.asm.put(Ins::new(Op::End, 0, 0, 0));
        Ok(start)
    }

    /// The nodes reachable from the first, every one before those that follow it. A circle is an error.
    fn order<'n>(&self, init: &Json<'a>, nodes: &'n HashMap<String, (Node<'a>, Label)>) -> Res<Vec<&'n str>> {
        let known = |at: &Json<'a>| -> Res<&'n str> {
            let name = at.str()?;
            match nodes.get_key_value(name) {
                Some((k, _)) => Ok(k),
                None => at.err(format!("no table or condition `{name}`")),
            }
        };
        // Depth first without recursion; 1 is on the way, 2 is done.
        let mut state: HashMap<&str, u8> = HashMap::new();
        let mut done = Vec::new();
        let mut stack = vec![(known(init)?, None::<Vec<&'n str>>)];
        while let Some((name, rest)) = stack.pop() {
            let mut rest = match rest {
                Some(rest) => rest,
                None => {
                    match state.get(name) {
                        Some(2) => continue,
                        Some(_) => return init.err(format!("`{name}` comes after itself")),
                        None => {}
                    }
                    state.insert(name, 1);
                    successors(&nodes[name].0)?.iter().map(known).collect::<Res<Vec<_>>>()?
                }
            };
            match rest.pop() {
                Some(next) => {
                    stack.push((name, Some(rest)));
                    if state.get(next) != Some(&2) {
                        stack.push((next, None));
                    }
                }
                None => {
                    state.insert(name, 2);
                    done.push(name);
                }
            }
        }
        done.reverse();
        Ok(done)
    }

    fn target(
        &self,
        at: Option<Json<'a>>,
        nodes: &HashMap<String, (Node<'a>, Label)>,
        end: Label,
    ) -> Res<Label> {
        match at {
            None => Ok(end),
            Some(at) => match nodes.get(at.str()?) {
                Some((_, label)) => Ok(*label),
                None => at.err("no table or condition of this name"),
            },
        }
    }

    fn go(&mut self, to: Label, after: Option<Label>) {
        if Some(to) != after {
            self.asm.jump(Op::Jmp, to, 0, 0);
        }
    }

    fn condition(
        &mut self,
        c: &Json<'a>,
        nodes: &HashMap<String, (Node<'a>, Label)>,
        end: Label,
        after: Option<Label>,
    ) -> Res<()> {
        self.params.clear();
        self.asm.params = Params::Known(Vec::new());
        let e = self.scope().boolean(&c.get("expression")?)?;
        let yes = self.target(c.opt("true_next"), nodes, end)?;
        let no = self.target(c.opt("false_next"), nodes, end)?;
        if self.traced {
            let slot = self.asm.emit(&e, 1, None);
            let text = source(c).map_or(String::new(), |s| format!(" ({s})"));
            self.conditions.push(format!("{}{text}", c.name()?));
            self.asm.put(Ins::new(Op::TraceCond, self.conditions.len() as u32 - 1, slot, 0));
        }
        if Some(yes) == after {
            self.asm.branch(&e, false, no);
        } else {
            self.asm.branch(&e, true, yes);
            self.go(no, after);
        }
        self.asm.end_statement();
        Ok(())
    }

    /// An action without a table, its parameters known.
    fn inline(&mut self, action: u32, known: Vec<BigInt>, end: Label) -> Res<()> {
        if self.traced {
            self.asm.put(Ins::new(Op::TraceAction, action, 0, 0));
        }
        self.params = self.info.actions[action as usize].params.iter().map(|p| p.width).collect();
        self.asm.params = Params::Known(known);
        self.primitives(&self.action_json[action as usize].list("primitives")?)?;
        self.exit_if(self.exits(action)?, end);
        Ok(())
    }

    fn exit_if(&mut self, may: bool, end: Label) {
        if may {
            self.asm.jump(Op::Jnz, end, self.special.exit, 0);
        }
    }

    fn call(
        &mut self,
        c: &Json<'a>,
        nodes: &HashMap<String, (Node<'a>, Label)>,
        end: Label,
        after: Option<Label>,
    ) -> Res<()> {
        let id = c.get("action_id")?;
        let Some(&action) = self.action_ids.get(&id.int()?) else { return id.err("no action has this id") };
        if !self.action_plans[action as usize].limbs.is_empty() {
            return id.err("the action takes parameters");
        }
        self.inline(action, Vec::new(), end)?;
        let next = self.target(c.opt("next_node"), nodes, end)?;
        self.go(next, after);
        Ok(())
    }

    fn table_node(
        &mut self,
        t: &Json<'a>,
        id: u32,
        nodes: &HashMap<String, (Node<'a>, Label)>,
        end: Label,
        after: Option<Label>,
    ) -> Res<()> {
        let info = &self.info.tables[id as usize];
        let plan = &self.tables[id as usize];
        let next = t.get("next_tables")?;
        let by_hit = next.opt("__HIT__").is_some() || next.opt("__MISS__").is_some() || {
            let names = next.members()?;
            !names.is_empty() && names.iter().all(|(n, _)| n.starts_with("__"))
        };
        // For each action of the list, and at last for a miss without an action.
        let mut by_action = Vec::new();
        if !by_hit {
            for name in &info.action_names {
                let to = next.members()?.into_iter().find(|(n, _)| n == name);
                let Some((_, to)) = to else { return next.err(format!("action `{name}` is missing")) };
                by_action.push(self.target(Some(to).filter(|t| !t.is_null()), nodes, end)?);
            }
            by_action.push(self.target(t.opt("base_default_next"), nodes, end)?);
        }
        let (hit, miss) =
            (self.target(next.opt("__HIT__"), nodes, end)?, self.target(next.opt("__MISS__"), nodes, end)?);

        // A table without a key whose default nobody can change is a call of its action.
        if info.key.is_empty()
            && plan.const_default
            && info.profile.is_none()
            && let Some(d) = &plan.default
        {
            let limbs = &self.action_plans[d.action.index()].limbs;
            let mut words = &d.words[..];
            let mut known = Vec::new();
            for n in limbs {
                let (w, rest) = words.split_at((*n as usize).min(words.len()));
                words = rest;
                let digits = w.iter().flat_map(|w| [*w as u32, (*w >> 32) as u32]).collect();
                known.push(BigInt::from(num_bigint::BigUint::new(digits)));
            }
            let local = d.local as usize;
            self.inline(d.action.0, known, end)?;
            let to = if by_hit { miss } else { by_action[local] };
            self.go(to, after);
            return Ok(());
        }
        self.asm.put(Ins::new(Op::Apply, id, 0, 0));
        let mut may_exit = false;
        for a in &info.actions {
            may_exit |= self.exits(a.0)?;
        }
        self.exit_if(may_exit, end);
        if by_hit {
            if Some(hit) == after {
                // JHit over the jump to the miss's side.
                self.asm.jump(Op::JHit, hit, 0, 0);
                self.go(miss, None);
            } else {
                self.asm.jump(Op::JHit, hit, 0, 0);
                self.go(miss, after);
            }
        } else if by_action.windows(2).all(|w| w[0] == w[1]) {
            let to = by_action[0];
            self.go(to, after);
        } else {
            self.asm.put(Ins::new(Op::Dispatch, self.dispatch.len() as u32, 0, 0));
            self.dispatch.push(by_action);
        }
        Ok(())
    }

    /// What the deparser does before headers go out: checksums, then calls.
    pub(super) fn deparser(&mut self) -> Res<Label> {
        let start = self.asm.label();
        self.asm.bind(start);
        self.params.clear();
        self.asm.params = Params::Known(Vec::new());
        for (i, c) in self.root.list("checksums")?.iter().enumerate() {
            if !c.opt("update").map_or(Ok(true), |v| v.bool())? {
                continue;
            }
            let skip = self.asm.label();
            if let Some(cond) = c.opt("if_cond") {
                let cond = self.scope().boolean(&cond)?;
                self.asm.branch(&cond, false, skip);
            }
            self.asm.put(Ins::new(Op::Update, i as u32, 0, 0));
            self.asm.bind(skip);
            self.asm.end_statement();
        }
        for d in self.root.list("deparsers")? {
            if d.name()? == "deparser" {
                self.primitives(&d.list("primitives")?)?;
            }
        }
        self.asm.put(Ins::new(Op::End, 0, 0, 0));
        Ok(start)
    }
}

/// The nodes that may come after one.
fn successors<'a>(node: &Node<'a>) -> Res<Vec<Json<'a>>> {
    let mut out = Vec::new();
    match node {
        Node::Table(t, _) => {
            out.extend(t.get("next_tables")?.members()?.into_iter().map(|(_, j)| j).filter(|j| !j.is_null()));
            out.extend(t.opt("base_default_next"));
        }
        Node::Condition(c) => out.extend([c.opt("true_next"), c.opt("false_next")].into_iter().flatten()),
        Node::Call(c) => out.extend(c.opt("next_node")),
    }
    Ok(out)
}
