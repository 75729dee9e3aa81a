//! Parsers: states, their operations and transitions.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::bits::{limb_count, ones};
use crate::code::{Ins, Op};
use crate::emit::{Label, Limbs, Params};
use crate::expr::{Expr, Value, limbs_mod};
use crate::json::{Json, Res};
use crate::load::Loader;
use crate::program::VsetKey;

/// A select key's field: its slots and its width.
type KeyField = (Limbs, u32);

impl<'a> Loader<'_, 'a> {
    /// Compiles the parser; returns the labels of its start and end.
    pub(super) fn parser(&mut self) -> Res<(Label, Label)> {
        let start = self.asm.label();
        let end = self.asm.label();
        self.params.clear();
        self.asm.params = Params::Known(Vec::new());
        let found = self.root.list("parsers")?.into_iter().find(|p| p.name() == Ok("parser"));
        let Some(parser) = found else { return self.root.err("there is no parser `parser`") };
        let mut states: HashMap<&str, Label> = HashMap::new();
        let list = parser.list("parse_states")?;
        for s in &list {
            let label = self.asm.label();
            if states.insert(s.name()?, label).is_some() {
                return s.err("there are two states of this name");
            }
        }
        self.asm.bind(start);
        match parser.opt("init_state") {
            Some(init) => {
                let Some(label) = states.get(init.str()?) else { return init.err("no such state") };
                self.asm.jump(Op::Jmp, *label, 0, 0);
            }
            None => self.asm.jump(Op::Jmp, end, 0, 0),
        }
        for (i, s) in list.iter().enumerate() {
            self.asm.bind(states[s.name()?]);
            self.states.push(s.name()?.into());
            // Also counts the entered states, so that a loop that extracts nothing ends.
            self.asm.put(Ins::new(Op::TraceState, i as u32, 0, 0));
            self.state(s, &states, end)?;
        }
        self.asm.bind(end);
        self.asm.put(Ins::new(Op::ParserEnd, 0, 0, 0));
        for (i, c) in self.root.list("checksums")?.iter().enumerate() {
            if c.opt("verify").map_or(Ok(true), |v| v.bool())? {
                let skip = self.asm.label();
                let target = self.layout.field(&c.get("target")?)?;
                let header = &self.layout.headers[target.header as usize];
                if !header.metadata {
                    self.asm.jump(Op::Jz, skip, header.valid(), 0);
                }
                if let Some(cond) = c.opt("if_cond") {
                    let cond = self.scope().boolean(&cond)?;
                    self.asm.branch(&cond, false, skip);
                }
                self.asm.put(Ins::new(Op::Verify, i as u32, 0, 0));
                self.asm.bind(skip);
                self.asm.end_statement();
            }
        }
        self.asm.put(Ins::new(Op::End, 0, 0, 0));
        Ok((start, end))
    }

    fn state(&mut self, s: &Json<'a>, states: &HashMap<&str, Label>, end: Label) -> Res<()> {
        for op in s.list("parser_ops")? {
            self.parser_op(&op)?;
            self.asm.end_statement();
        }
        let mut key: Vec<KeyField> = Vec::new();
        for k in s.list("transition_key")? {
            let field = self.select_field(&k)?;
            key.push(field);
        }
        let mut default = end;
        for t in s.list("transitions")? {
            let next = match t.opt("next_state") {
                None => end,
                Some(n) => match states.get(n.str()?) {
                    Some(label) => *label,
                    None => return n.err("no such state"),
                },
            };
            let text = t.opt("value").and_then(|v| v.str().ok());
            let kind = t.opt("type").map_or(Ok("hexstr"), |k| k.str())?;
            match kind {
                "default" => default = next,
                "hexstr" if text == Some("default") => default = next,
                "hexstr" => self.case(&t, &key, next)?,
                "parse_vset" => self.vset_case(&t, &key, next)?,
                _ => return t.err(format!("no transition has the type `{kind}`")),
            }
        }
        self.asm.jump(Op::Jmp, default, 0, 0);
        self.asm.end_statement();
        Ok(())
    }

    fn select_field(&mut self, k: &Json<'a>) -> Res<KeyField> {
        if k.get("type")?.str()? == "lookahead" {
            let v = k.get("value")?;
            let (offset, width) = (v.at(0)?.uint(1 << 20)? as u32, v.at(1)?.uint(16_384)? as u32);
            let n = limb_count(width) as u32;
            let a = self.asm.temp(n);
            self.asm.put(Ins::new(Op::Look, a, offset, width));
            return Ok(((0..n).map(|i| a + i).collect(), width));
        }
        match self.scope().value(k)? {
            Value::Data(e) => {
                let width = key_width(&e);
                Ok((self.asm.emit_limbs(&e, width.max(1)), width))
            }
            _ => k.err("a field was expected"),
        }
    }

    /// Splits a byte-padded value into the limbs of the key's fields.
    fn split(&self, at: &Json<'a>, key: &[KeyField]) -> Res<Vec<Vec<u64>>> {
        let bytes = at.hex_bytes()?;
        let want: usize = key.iter().map(|k| (k.1 as usize).div_ceil(8)).sum();
        if bytes.len() != want {
            return at.err(format!("the key has {want} bytes, this has {}", bytes.len()));
        }
        let mut rest = &bytes[..];
        let mut out = Vec::new();
        for (_, width) in key {
            let (field, tail) = rest.split_at((*width as usize).div_ceil(8));
            rest = tail;
            out.push(limbs_mod(
                &num_bigint::BigInt::from_bytes_be(num_bigint::Sign::Plus, field),
                field.len() as u32 * 8,
            ));
        }
        Ok(out)
    }

    fn case(&mut self, t: &Json<'a>, key: &[KeyField], next: Label) -> Res<()> {
        let values = self.split(&t.get("value")?, key)?;
        let masks = t.opt("mask").map(|m| self.split(&m, key)).transpose()?;
        let other = self.asm.label();
        for (f, (slots, width)) in key.iter().enumerate() {
            for (i, slot) in slots.iter().enumerate() {
                let full = ones((width - 64 * i as u32).min(64));
                let mask = masks.as_ref().map_or(u64::MAX, |m| m[f].get(i).copied().unwrap_or(0));
                let value = values[f].get(i).copied().unwrap_or(0) & mask;
                let mut slot = *slot;
                if mask & full != full {
                    let mask = self.asm.imm(mask);
                    let masked = self.asm.temp(1);
                    self.asm.put(Ins::new(Op::And, masked, slot, mask));
                    slot = masked;
                }
                if mask & full == 0 && value == 0 {
                    continue;
                }
                let value = self.asm.imm(value);
                self.asm.jump(Op::JNe, other, slot, value);
            }
        }
        self.asm.jump(Op::Jmp, next, 0, 0);
        self.asm.bind(other);
        Ok(())
    }

    fn vset_case(&mut self, t: &Json<'a>, key: &[KeyField], next: Label) -> Res<()> {
        let at = t.get("value")?;
        let name = at.str()?;
        let Some(set) = self.info.value_set(name) else { return at.err(format!("no value set `{name}`")) };
        let masks = t.opt("mask").map(|m| self.split(&m, key)).transpose()?;
        let fields = key.iter().map(|(s, w)| (s.iter().copied().collect::<SmallVec<_>>(), *w)).collect();
        let id = self.vset_keys.len() as u32;
        self.vset_keys.push(VsetKey { set: set.0, fields, masks });
        let hit = self.asm.temp(1);
        self.asm.put(Ins::new(Op::VsetHas, hit, id, 0));
        self.asm.jump(Op::Jnz, next, hit, 0);
        Ok(())
    }

    fn parser_op(&mut self, op: &Json<'a>) -> Res<()> {
        let params = op.get("parameters")?;
        match op.get("op")?.str()? {
            "extract" => self.extract(&params, None),
            "extract_VL" => {
                let bits = self.scope().data(&params.at(1)?)?;
                self.extract(&params, Some(bits))
            }
            "set" => {
                let dst = params.at(0)?;
                if dst.get("type")?.str()? != "field" {
                    return dst.err("a field was expected");
                }
                let field = self.layout.field(&dst.get("value")?)?;
                let src = params.at(1)?;
                if field.vl {
                    let from = self.layout.field(&src.get("value")?)?;
                    return self.copy_vl(op, field, from);
                }
                let value = if src.get("type")?.str()? == "lookahead" {
                    let (slots, width) = self.select_field(&src)?;
                    return self.store_limbs(field, &slots, width);
                } else {
                    self.scope().data(&src)?
                };
                self.store_field(field, &value)
            }
            "verify" => {
                let cond = self.scope().boolean(&params.at(0)?)?;
                let error = params.at(1)?;
                let error = if error.is_number() {
                    Expr::number(error.uint(1 << 31)?)
                } else {
                    self.scope().data(&error)?
                };
                let good = self.asm.label();
                self.asm.branch(&cond, true, good);
                let code = self.asm.emit(&error, 32, None);
                self.asm.put(Ins::new(Op::Fail, 0, code, 0));
                self.asm.bind(good);
                Ok(())
            }
            "primitive" => self.primitives_apart(&[params.at(0)?]),
            "shift" => {
                let bits = Expr::number(params.at(0)?.uint(1 << 20)? * 8);
                self.advance(&bits)
            }
            "advance" => {
                let bits = self.scope().data(&params.at(0)?)?;
                self.advance(&bits)
            }
            other => op.err(format!("no parser operation `{other}`")),
        }
    }

    fn advance(&mut self, bits: &Expr) -> Res<()> {
        let bits = self.asm.emit(bits, 64, None);
        self.asm.put(Ins::new(Op::Advance, 0, bits, 0));
        Ok(())
    }

    fn extract(&mut self, params: &Json<'a>, bits: Option<Expr>) -> Res<()> {
        let what = params.at(0)?;
        let v = what.get("value")?;
        let bits = match &bits {
            Some(e) => Some(self.asm.emit(e, 64, None)),
            None => None,
        };
        let l = self.layout;
        let (fixed, variable, id, ty, x) = match what.get("type")?.str()? {
            "regular" => {
                let h = l.header(&v)?;
                (Op::Extract, Op::ExtractVl, h, l.headers[h as usize].ty, 0)
            }
            "stack" => {
                let s = l.stack(&v)?;
                (Op::ExtractStack, Op::ExtractStackVl, s, l.stacks[s as usize].ty, 0)
            }
            "union_stack" => {
                let s = l.union_stack(&v.at(0)?)?;
                let name = v.at(1)?;
                let members = &l.union_types[l.union_stacks[s as usize].ty].1;
                let wanted = name.str()?;
                let Some(m) = members.iter().position(|m| m.0 == wanted) else {
                    return name.err("the union has no such member");
                };
                (Op::ExtractUnion, Op::ExtractUnionVl, s, members[m].1, m as u32)
            }
            other => return what.err(format!("nothing of the type `{other}` is extracted")),
        };
        let t = &l.types[ty];
        let ins = match bits {
            Some(bits) if t.vl.is_some() => Ins::new(variable, id, bits, t.max_bytes),
            Some(_) => return what.err("the header has no variable-length field"),
            None if t.vl.is_some() && t.length_exp.is_some() => {
                return what.err("a `length_exp` of a header type is not supported; p4c writes extract_VL");
            }
            None if t.vl.is_some() => {
                return what.err("a header with a variable-length field needs extract_VL");
            }
            None => Ins::new(fixed, id, 0, 0),
        };
        self.asm.put(ins.x(x));
        Ok(())
    }
}

/// Width of a field read as an expression.
fn key_width(e: &Expr) -> u32 {
    let bits = crate::expr::bits_of(&e.hi);
    if e.lo < num_bigint::BigInt::from(0) { bits + 1 } else { bits }
}
