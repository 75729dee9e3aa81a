//! Pipelines: the order of their nodes.

use std::collections::{BTreeSet, HashMap};

use num_bigint::BigInt;

use crate::code::{Ins, Op};
use crate::emit::{Label, Params};
use crate::json::{Json, Res};
use crate::load::Loader;
use crate::load::actions::source;
use crate::load::held::Before;

/// A node of a pipeline.
enum Node<'a> {
    Table(Json<'a>, u32),
    Condition(Json<'a>),
    Call(Json<'a>),
}

impl<'a> Loader<'_, 'a> {
    /// Compiles a pipeline; returns the label of its start.
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
            let held = self.arrays_held(&order, &nodes)?;
            // The first node follows directly; each one falls through to the next where possible.
            for (i, name) in order.iter().enumerate() {
                let (node, label) = &nodes[*name];
                self.asm.bind(*label);
                match held[i] {
                    Before::Nothing => {}
                    Before::Lock(set) => self.asm.put(Ins::new(Op::Lock, set, 0, 0)),
                    Before::Unlock => self.asm.put(Ins::new(Op::Unlock, 0, 0, 0)),
                }
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

    /// Actions of each node on register locks before its own code.
    fn arrays_held(
        &mut self,
        order: &[&str],
        nodes: &HashMap<String, (Node<'a>, Label)>,
    ) -> Res<Vec<Before>> {
        let of_action: Vec<BTreeSet<u32>> = self.action_json.iter().map(|a| self.arrays_named(a)).collect();
        let place: HashMap<&str, usize> = order.iter().copied().zip(0..).collect();
        let mut uses = Vec::with_capacity(order.len());
        let mut before = vec![Vec::new(); order.len()];
        for (at, name) in order.iter().enumerate() {
            let node = &nodes[*name].0;
            for next in successors(node)? {
                before[place[next.str()?]].push(at);
            }
            let (mut named, actions) = match node {
                Node::Table(t, id) => {
                    let default = self.tables[*id as usize].default.as_ref().map(|d| d.action.0);
                    let actions = self.info.tables[*id as usize].actions.iter().map(|a| a.0);
                    (self.arrays_named(t), actions.chain(default).collect())
                }
                Node::Condition(c) => (self.arrays_named(c), Vec::new()),
                Node::Call(c) => {
                    let action = self.action_ids.get(&c.get("action_id")?.int()?);
                    (self.arrays_named(c), action.copied().into_iter().collect())
                }
            };
            named.extend(actions.iter().flat_map(|a| &of_action[*a as usize]));
            uses.push(named);
        }
        Ok(self.held(&uses, &before))
    }

    /// The nodes reachable from the first one in topological order. A cycle is an error.
    fn order<'n>(&self, init: &Json<'a>, nodes: &'n HashMap<String, (Node<'a>, Label)>) -> Res<Vec<&'n str>> {
        let known = |at: &Json<'a>| -> Res<&'n str> {
            let name = at.str()?;
            match nodes.get_key_value(name) {
                Some((k, _)) => Ok(k),
                None => at.err(format!("no table or condition `{name}`")),
            }
        };
        // Depth-first search without recursion; 1 means on the path, 2 done.
        let mut state: HashMap<&str, u8> = HashMap::new();
        let mut done = Vec::new();
        let mut stack = vec![(known(init)?, None::<Vec<&'n str>>)];
        while let Some((name, rest)) = stack.pop() {
            let mut rest = match rest {
                Some(rest) => rest,
                None => {
                    match state.get(name) {
                        Some(2) => continue,
                        Some(_) => return init.err(format!("`{name}` is its own successor")),
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

    /// Compiles an action without a table, with known parameters.
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
        // For each action of the list, and finally for a miss without an action.
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

        // A table without a key and with a const default is just a call of its action.
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
                // JHit skips the jump to the code for a miss.
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
}

/// The possible successors of a node.
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
