//! Compiles actions, primitive by primitive.

use std::collections::BTreeSet;

use crate::bits::ones;
use crate::code::{Ins, Op};
use crate::emit::{Label, Params};
use crate::expr::{Bin, Expr, Hdr, Kind, Value};
use crate::json::{Json, Res};
use crate::layout::Field;
use crate::load::Loader;

impl<'a> Loader<'_, 'a> {
    /// All actions in the form that tables call: parameters in slots, ended by a return.
    pub(super) fn actions(&mut self) -> Res<Vec<Label>> {
        let mut labels = Vec::new();
        for (i, a) in self.action_json.iter().enumerate() {
            let label = self.asm.label();
            self.asm.bind(label);
            labels.push(label);
            self.params = self.info.actions[i].params.iter().map(|p| p.width).collect();
            let plan = &self.action_plans[i];
            let slots = plan
                .limbs
                .iter()
                .scan(plan.params, |next, n| {
                    *next += n;
                    Some(*next - n)
                })
                .collect();
            self.asm.params = Params::Slots(slots);
            self.primitives(&a.list("primitives")?)?;
            self.asm.put(Ins::new(Op::Ret, 0, 0, 0));
        }
        Ok(labels)
    }

    /// Whether an action contains an exit.
    pub(super) fn exits(&self, action: u32) -> Res<bool> {
        for p in self.action_json[action as usize].list("primitives")? {
            if p.get("op")?.str()? == "exit" {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Primitives outside of any pipeline: locks the registers that they name from the first one to
    /// the last.
    pub(super) fn primitives_apart(&mut self, list: &[Json<'a>]) -> Res<()> {
        let arrays: BTreeSet<u32> = list.iter().flat_map(|p| self.arrays_named(p)).collect();
        if arrays.is_empty() {
            return self.primitives(list);
        }
        let set = self.lock_set(arrays);
        self.asm.put(Ins::new(Op::Lock, set, 0, 0));
        self.primitives(list)?;
        self.asm.put(Ins::new(Op::Unlock, 0, 0, 0));
        Ok(())
    }

    /// Compiles primitives in order; backward jumps (loops) are counted at run time.
    pub(super) fn primitives(&mut self, list: &[Json<'a>]) -> Res<()> {
        let labels: Vec<Label> = (0..=list.len()).map(|_| self.asm.label()).collect();
        for (i, p) in list.iter().enumerate() {
            self.asm.bind(labels[i]);
            let op = p.get("op")?.str()?;
            let args = p.list("parameters")?;
            if op == "_jump" || op == "_jump_if_zero" {
                let to_at = &args.last().ok_or_else(|| p.error("parameters are missing"))?;
                let to = self.scope().data(to_at)?.small().map(|n| n as usize);
                let Some(to) = to.filter(|to| *to <= list.len()) else {
                    return to_at.err("a jump goes to a primitive of the action");
                };
                if to <= i {
                    self.asm.put(Ins::new(Op::Loop, 0, 0, 0));
                }
                if op == "_jump" {
                    self.asm.jump(Op::Jmp, labels[to], 0, 0);
                } else {
                    let cond = self.scope().data(&args[0])?;
                    let cond = if cond.bool { cond } else { Expr::bin(Bin::Ne, cond, Expr::number(0)) };
                    self.asm.branch(&cond, false, labels[to]);
                }
            } else {
                self.primitive(p, op, &args)?;
            }
            self.asm.end_statement();
        }
        self.asm.bind(labels[list.len()]);
        Ok(())
    }

    fn primitive(&mut self, p: &Json<'a>, op: &str, args: &[Json<'a>]) -> Res<()> {
        let want = |n: usize| {
            if args.len() == n {
                Ok(())
            } else {
                p.err(format!("`{op}` takes {n} parameters, here are {}", args.len()))
            }
        };
        let s = self.special;
        match op {
            "assign" | "modify_field" => {
                want(2)?;
                let value = self.scope().data(&args[1])?;
                self.store(&args[0], value)
            }
            "add_to_field" | "subtract_from_field" => {
                want(2)?;
                let (a, b) = (self.scope().data(&args[0])?, self.scope().data(&args[1])?);
                let bin = if op == "add_to_field" { Bin::Add } else { Bin::Sub };
                self.store(&args[0], Expr::bin(bin, a, b))
            }
            "add" | "subtract" | "bit_xor" | "bit_or" | "bit_and" | "shift_left" | "shift_right" => {
                want(3)?;
                let (a, b) = (self.scope().data(&args[1])?, self.scope().data(&args[2])?);
                let bin = match op {
                    "add" => Bin::Add,
                    "subtract" => Bin::Sub,
                    "bit_xor" => Bin::Xor,
                    "bit_or" => Bin::Or,
                    "bit_and" => Bin::And,
                    "shift_left" => Bin::Shl,
                    _ => Bin::Shr,
                };
                self.store(&args[0], Expr::bin(bin, a, b))
            }
            "assign_VL" => {
                want(2)?;
                let (dst, src) =
                    (self.layout.field(&args[0].get("value")?)?, self.layout.field(&args[1].get("value")?)?);
                self.copy_vl(p, dst, src)
            }
            "assign_header" | "copy_header" => {
                want(2)?;
                let (dst, src) = (self.scope().header(&args[0])?, self.scope().header(&args[1])?);
                self.copy_header(p, &dst, &src)
            }
            "assign_union" => {
                want(2)?;
                let (dst, src) = (self.union_members(&args[0])?, self.union_members(&args[1])?);
                if dst.len() != src.len() {
                    return p.err("unions of different types");
                }
                dst.iter().zip(&src).try_for_each(|(d, s)| self.copy_header(p, d, s))
            }
            "assign_header_stack" | "assign_union_stack" => {
                want(2)?;
                let (w, a, b) = match (self.scope().value(&args[0])?, self.scope().value(&args[1])?) {
                    (Value::Stack(a), Value::Stack(b)) => (0, a, b),
                    (Value::UnionStack(a), Value::UnionStack(b)) => (1, a, b),
                    _ => return p.err("two stacks were expected"),
                };
                let list = if w == 1 { &self.layout.union_stacks } else { &self.layout.stacks };
                let (x, y) = (&list[a as usize], &list[b as usize]);
                if x.ty != y.ty || x.elements.len() != y.elements.len() {
                    return p.err("stacks of different types");
                }
                self.asm.put(Ins::new(Op::CopyStack, a, b, 0).w(w));
                Ok(())
            }
            "push" | "pop" => {
                want(2)?;
                let (w, a) = match self.scope().value(&args[0])? {
                    Value::Stack(a) => (0, a),
                    Value::UnionStack(a) => (1, a),
                    _ => return p.err("a stack was expected"),
                };
                let n = self.number(&args[1], 64)?;
                self.asm.put(Ins::new(if op == "push" { Op::Push } else { Op::Pop }, a, n, 0).w(w));
                Ok(())
            }
            "exit" => {
                want(0)?;
                self.set(s.exit, 1);
                Ok(())
            }
            "assert" | "assume" => {
                want(1)?;
                let cond = self.scope().data(&args[0])?;
                let cond = if cond.bool { cond } else { Expr::bin(Bin::Ne, cond, Expr::number(0)) };
                let slot = self.asm.emit(&cond, 1, None);
                let at = source(p).map_or(String::new(), |text| format!(": {text}"));
                self.asserts.push(format!("{op} failed{at}"));
                self.asm.put(Ins::new(Op::Assert, self.asserts.len() as u32 - 1, slot, 0));
                Ok(())
            }
            "log_msg" => {
                want(2)?;
                self.log(&args[0], &args[1])
            }
            "modify_field_rng_uniform" => {
                want(3)?;
                let (lo, hi) = (self.number(&args[1], 64)?, self.number(&args[2], 64)?);
                let out = self.asm.temp(1);
                // An invalid range leaves the field unchanged.
                let skip = self.asm.label();
                self.asm.jump(Op::JUlt, skip, hi, lo);
                self.asm.put(Ins::new(Op::Rand, out, lo, hi));
                self.store(&args[0], Expr::slot(out, 64))?;
                self.asm.bind(skip);
                Ok(())
            }
            "drop" => {
                want(0)?;
                self.mark(s.egress_spec, s.mcast_grp);
                Ok(())
            }
            "mark_to_drop" => {
                want(1)?;
                // Often a copy of the packet's standard metadata, which p4c makes for an `inout`
                // argument and copies back.
                let Hdr::Fixed(header) = self.scope().header(&args[0])? else {
                    return args[0].err("standard metadata was expected");
                };
                let field = |name| self.layout.field_of(header, name).filter(|f| f.width <= 64 && !f.vl);
                let Some(egress_spec) = field("egress_spec") else {
                    return args[0].err("this header has no field `egress_spec`");
                };
                let mcast_grp = field("mcast_grp");
                self.mark(Some(egress_spec), mcast_grp);
                Ok(())
            }
            "generate_digest" => {
                want(2)?;
                self.set_from(s.digest, &args[1])
            }
            "add_header" | "add_header_fast" | "remove_header" => {
                want(1)?;
                let h = self.scope().header(&args[0])?;
                let h = self.asm.hdr(&h);
                let w = u32::from(op == "add_header_fast");
                let code = if op == "remove_header" { Op::RemHdr } else { Op::AddHdr };
                self.asm.put(Ins::new(code, h, 0, 0).w(w));
                Ok(())
            }
            "clone_ingress_pkt_to_egress" | "clone_egress_pkt_to_egress" => {
                want(2)?;
                // BMv2 keeps 15 bits and marks the session as present with bit 15.
                let session = self.number(&args[0], 16)?;
                let mark = self.asm.imm(0x8000);
                self.asm.put(Ins::new(Op::Or, s.clone, session, mark).w(16));
                self.set_from(s.clone_list, &args[1])
            }
            "resubmit" => {
                want(1)?;
                self.set_from(s.resubmit, &args[0])
            }
            "recirculate" => {
                want(1)?;
                self.set_from(s.recirculate, &args[0])
            }
            "modify_field_with_hash_based_offset" => {
                want(4)?;
                let at = args[2].get("value")?;
                let name = at.str()?;
                let Some(calc) = self.calculations.get(name).copied() else {
                    return at.err(format!("no calculation `{name}`"));
                };
                let (base, size) = (self.number(&args[1], 64)?, self.number(&args[3], 64)?);
                let (h, m, v) = (self.asm.temp(1), self.asm.temp(1), self.asm.temp(1));
                self.asm.put(Ins::new(Op::Hash, h, calc, 0));
                // A size of 0 counts as 1; the remainder by 0 is handled the same way here.
                self.asm.put(Ins::new(Op::Rem, m, h, size));
                self.asm.put(Ins::new(Op::Add, v, m, base));
                self.store(&args[0], Expr::slot(v, 64))
            }
            "no_op" => want(0),
            "execute_meter" => {
                want(3)?;
                let at = args[0].get("value")?;
                let name = at.str()?;
                let Some(m) = self.info.meter(name) else {
                    return at.err(format!("no meter array `{name}`"));
                };
                let index = self.number(&args[1], 32)?;
                let out = self.asm.temp(1);
                let before = self.scope().data(&args[2])?;
                self.asm.emit(&before, 64, Some(out));
                self.asm.put(Ins::new(Op::Meter, m.0, index, out));
                self.store(&args[2], Expr::slot(out, 64))
            }
            "count" => {
                want(2)?;
                let at = args[0].get("value")?;
                let name = at.str()?;
                let Some(c) = self.info.counter(name) else {
                    return at.err(format!("no counter array `{name}`"));
                };
                let index = self.number(&args[1], 32)?;
                self.asm.put(Ins::new(Op::Count, c.0, index, 0));
                Ok(())
            }
            "register_read" => {
                want(3)?;
                let (array, width) = self.scope().register(&args[1].get("value")?)?;
                let index = self.scope().data(&args[2])?;
                let index = Expr::bin(Bin::And, index, Expr::number(ones(32)));
                let value = Expr::register(array, width, index);
                // Directly into a field of the same width.
                if let Value::Data(Expr { kind: Kind::Field(f), .. }) = self.scope().value(&args[0])?
                    && f.width == width
                    && !f.signed
                    && !f.saturating
                {
                    let Kind::Register { index, .. } = &value.kind else { return Ok(()) };
                    let index = self.asm.emit(index, 32, None);
                    self.asm.put(Ins::new(Op::RegLoad, f.slot, index, array));
                    return Ok(());
                }
                self.store(&args[0], value)
            }
            "register_write" => {
                want(3)?;
                let (array, width) = self.scope().register(&args[0].get("value")?)?;
                let value = self.scope().data(&args[2])?;
                let index = self.number(&args[1], 32)?;
                self.store_register(array, width, index, &value);
                Ok(())
            }
            "truncate" => {
                want(1)?;
                let n = self.number(&args[0], 32)?;
                self.asm.put(Ins::new(Op::UMin, s.truncate, s.truncate, n));
                Ok(())
            }
            other => p.get("op")?.err(format!("no primitive `{other}`")),
        }
    }

    /// Compiles a number into a slot.
    fn number(&mut self, at: &Json<'a>, w: u32) -> Res<u32> {
        let e = self.scope().data(at)?;
        Ok(self.asm.emit(&e, w, None))
    }

    fn set(&mut self, slot: u32, value: u64) {
        let v = self.asm.imm(value);
        self.asm.put(Ins::new(Op::Mov, slot, v, 0));
    }

    /// Sets the standard metadata to "drop".
    fn mark(&mut self, egress_spec: Option<Field>, mcast_grp: Option<Field>) {
        if let Some(f) = egress_spec {
            self.asm.put(Ins::new(Op::Mov, f.slot, self.drop_port, 0).w(f.width));
        }
        if let Some(f) = mcast_grp {
            self.set(f.slot, 0);
        }
    }

    fn set_from(&mut self, slot: u32, at: &Json<'a>) -> Res<()> {
        let e = self.scope().data(at)?;
        self.asm.emit(&e, 16, Some(slot));
        Ok(())
    }
}

/// The source text of a primitive or a condition.
pub(super) fn source<'a>(j: &Json<'a>) -> Option<&'a str> {
    j.opt("source_info")?.opt("source_fragment")?.str().ok()
}
