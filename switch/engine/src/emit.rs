//! Compiles expressions to instructions.
//!
//! `emit(e, w)` produces the lowest `w` bits of a value. Most operations need only the lowest bits
//! of the operands; where the whole value matters (comparisons, right shifts, saturation), its
//! range determines the number of bits.

mod asm;
mod limbs;
mod patterns;

use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};

use crate::bits::{limb_count, ones};
use crate::code::{Ins, Op};
use crate::expr::{Bin, Expr, Hdr, Kind, bits_of, limbs_mod};
pub(crate) use asm::{Asm, Label, Limbs, Params, StackField, WideExpr};
use patterns::low_mask;

impl Asm<'_, '_> {
    /// The value of a constant, or of a known parameter.
    fn known(&self, e: &Expr) -> Option<BigInt> {
        match (&e.kind, &self.params) {
            (Kind::Param(i), Params::Known(values)) => values.get(*i as usize).cloned(),
            _ => e.value().cloned(),
        }
    }

    fn small(&self, e: &Expr) -> Option<u32> {
        self.known(e)?.to_u32()
    }

    /// First slot, width and signedness of a leaf, if the expression is one.
    fn leaf(&self, e: &Expr) -> Option<(u32, u32, bool)> {
        match &e.kind {
            Kind::Field(f) => Some((f.slot, f.width, f.signed)),
            Kind::Slot(s) => Some((*s, bits_of(&e.hi), false)),
            Kind::Param(i) => match &self.params {
                Params::Slots(_) => Some((self.param(*i, 0), bits_of(&e.hi), false)),
                Params::Known(_) => None,
            },
            _ => None,
        }
    }

    /// The lowest `w` bits (1 to 64) of `e` in one slot.
    pub(crate) fn emit(&mut self, e: &Expr, w: u32, dst: Option<u32>) -> u32 {
        debug_assert!((1..=64).contains(&w));
        if let Some(v) = self.known(e) {
            let slot = self.imm(limbs_mod(&v, w)[0]);
            return self.moved(slot, dst);
        }
        if let Some((slot, width, signed)) = self.leaf(e) {
            return if signed && w > width {
                self.op(Op::Sext, w, dst, slot, 0, width)
            } else if w < width.min(64) {
                self.op(Op::Mov, w, dst, slot, 0, 0)
            } else {
                self.moved(slot, dst)
            };
        }
        match &e.kind {
            Kind::Bin(op, l, r) => self.emit_bin(e, *op, l, r, w, dst),
            Kind::Not(x) => {
                let x = self.emit(x, w, None);
                self.op(Op::Not, w, dst, x, 0, 0)
            }
            Kind::NotB(x) => {
                let x = self.emit(x, 1, None);
                let one = self.imm(1);
                self.op(Op::Xor, 64, dst, x, one, 0)
            }
            Kind::NonZero(x) => {
                let zero = Expr::number(0);
                self.compare(Bin::Ne, x, &zero, dst)
            }
            Kind::Cond(c, a, b) => {
                let cond = self.emit(c, 1, None);
                let a = self.emit(a, w, None);
                let b = self.emit(b, w, None);
                // Not directly into `dst`, which may be operand b.
                let out = self.op(Op::Mov, 64, None, a, 0, 0);
                self.put(Ins::new(Op::MovZ, out, b, cond));
                self.moved(out, dst)
            }
            Kind::Valid(h) => match h {
                Hdr::Fixed(h) => {
                    let slot = self.layout.headers[*h as usize].valid();
                    self.moved(slot, dst)
                }
                other => {
                    let h = self.hdr(other);
                    self.op(Op::HdrValid, 64, dst, h, 0, 0)
                }
            },
            Kind::EqHdr(a, b) => {
                let (a, b) = (self.hdr(a), self.hdr(b));
                self.op(Op::EqHdr, 64, dst, a, b, 0)
            }
            Kind::EqVl(a, b) => self.op(Op::EqVl, 64, dst, *a, *b, 0),
            Kind::EqUnion(a, b) => self.op(Op::EqUnion, 64, dst, *a, *b, 0),
            Kind::StackField { .. } | Kind::UnionField { .. } | Kind::Register { .. } => {
                let first = self.indexed(e);
                self.cut(first, e, w, dst)
            }
            Kind::Const | Kind::Field(_) | Kind::Param(_) | Kind::Slot(_) => self.imm(0),
        }
    }

    /// Cuts or extends to `w` bits a value that is in slots of its own width.
    fn cut(&mut self, slot: u32, e: &Expr, w: u32, dst: Option<u32>) -> u32 {
        let width = if e.lo.is_negative() { bits_of(&e.hi) + 1 } else { bits_of(&e.hi) };
        if e.lo.is_negative() && w > width {
            self.op(Op::Sext, w, dst, slot, 0, width)
        } else if w < width.min(64) {
            self.op(Op::Mov, w, dst, slot, 0, 0)
        } else {
            self.moved(slot, dst)
        }
    }

    fn moved(&mut self, slot: u32, dst: Option<u32>) -> u32 {
        match dst {
            Some(d) if d != slot => self.op(Op::Mov, 64, dst, slot, 0, 0),
            _ => slot,
        }
    }

    /// Loads an element of a stack or register into temporaries; returns the first slot.
    fn indexed(&mut self, e: &Expr) -> u32 {
        match &e.kind {
            Kind::StackField { stack, offset, width, index, .. } => {
                let limbs = limb_count(*width) as u32;
                let field = self.stack_field(false, *stack, 0, *offset, limbs);
                let index = self.emit(index, 64, None);
                let a = self.temp(limbs);
                self.put(Ins::new(Op::StackGet, a, index, field));
                a
            }
            Kind::UnionField { stack, member, offset, width, index, .. } => {
                let limbs = limb_count(*width) as u32;
                let field = self.stack_field(true, *stack, *member, *offset, limbs);
                let index = self.emit(index, 64, None);
                let a = self.temp(limbs);
                self.put(Ins::new(Op::StackGet, a, index, field));
                a
            }
            Kind::Register { array, width, index } => {
                let index = self.emit(index, 64, None);
                let a = self.temp(limb_count(*width) as u32);
                self.put(Ins::new(Op::RegLoad, a, index, *array));
                a
            }
            _ => self.imm(0),
        }
    }

    /// A slot with the number of a header.
    pub(crate) fn hdr(&mut self, h: &Hdr) -> u32 {
        match h {
            Hdr::Fixed(h) => self.imm((*h).into()),
            Hdr::Stack(s, i) => {
                let i = self.emit(i, 64, None);
                self.op(Op::HdrAt, 0, None, i, *s, 0)
            }
            Hdr::Union(s, i, member) => {
                let i = self.emit(i, 64, None);
                self.op(Op::HdrAt, 1, None, i, *s, *member)
            }
        }
    }

    /// Whether every value of `e` fits in 64 bits, unsigned or signed.
    fn fits(e: &Expr) -> Option<bool> {
        if !e.lo.is_negative() {
            (bits_of(&e.hi) <= 64).then_some(false)
        } else {
            (e.lo.to_i64().is_some() && e.hi.to_i64().is_some()).then_some(true)
        }
    }

    /// The whole value in 64 bits, which it must fit.
    fn whole(&mut self, e: &Expr) -> u32 {
        let w = if e.lo.is_negative() { 64 } else { bits_of(&e.hi).max(1) };
        self.emit(e, w, None)
    }

    fn emit_bin(&mut self, e: &Expr, op: Bin, l: &Expr, r: &Expr, w: u32, dst: Option<u32>) -> u32 {
        match op {
            Bin::Add | Bin::Sub | Bin::Mul | Bin::Xor | Bin::Or | Bin::And => {
                if let Some(slot) = self.rotation(op, l, r, w, dst) {
                    return slot;
                }
                if op == Bin::And {
                    for (x, mask) in [(l, self.known(r)), (r, self.known(l))] {
                        if let Some(n) = mask.as_ref().and_then(low_mask) {
                            if n == 0 {
                                let zero = self.imm(0);
                                return self.moved(zero, dst);
                            }
                            return self.emit(x, n.min(w), dst);
                        }
                    }
                }
                let code = match op {
                    Bin::Add => Op::Add,
                    Bin::Sub => Op::Sub,
                    Bin::Mul => Op::Mul,
                    Bin::Xor => Op::Xor,
                    Bin::Or => Op::Or,
                    _ => Op::And,
                };
                let l = self.emit(l, w, None);
                let r = self.emit(r, w, None);
                self.op(code, w, dst, l, r, 0)
            }
            Bin::Shl => match self.small(r) {
                Some(0) => self.emit(l, w, dst),
                Some(n) if n >= w => {
                    let zero = self.imm(0);
                    self.moved(zero, dst)
                }
                Some(n) => {
                    let l = self.emit(l, w - n, None);
                    self.op(Op::ShlI, w, dst, l, 0, n)
                }
                None if Self::fits(r) == Some(false) => {
                    let l = self.emit(l, w, None);
                    let r = self.whole(r);
                    self.op(Op::Shl, w, dst, l, r, 0)
                }
                None => self.wide(e, w, dst),
            },
            Bin::Shr => match (Self::fits(l), self.small(r)) {
                (_, Some(0)) => self.emit(l, w, dst),
                (Some(signed), Some(n)) => {
                    let l = self.whole(l);
                    if n >= 64 && !signed {
                        let zero = self.imm(0);
                        return self.moved(zero, dst);
                    }
                    self.op(if signed { Op::SarI } else { Op::ShrI }, w, dst, l, 0, n.min(63))
                }
                (Some(signed), None) if Self::fits(r) == Some(false) => {
                    let l = self.whole(l);
                    let r = self.whole(r);
                    self.op(if signed { Op::Sar } else { Op::Shr }, w, dst, l, r, 0)
                }
                (None, Some(n)) if n < 4096 => {
                    let limbs = self.emit_limbs(e, w);
                    self.moved(limbs[0], dst)
                }
                _ => self.wide(e, w, dst),
            },
            Bin::Div | Bin::Mod => {
                if Self::fits(l) != Some(false) || Self::fits(r) != Some(false) {
                    return self.wide(e, w, dst);
                }
                let l = self.whole(l);
                let r = self.whole(r);
                self.op(if op == Bin::Div { Op::Div } else { Op::Rem }, w, dst, l, r, 0)
            }
            Bin::TwoComp => {
                let n = r.small().unwrap_or(64);
                if w <= n {
                    self.emit(l, w, dst)
                } else {
                    let l = self.emit(l, n, None);
                    self.op(Op::Sext, w, dst, l, 0, n)
                }
            }
            Bin::USat | Bin::Sat => self.saturated(e, op, l, r, w, dst),
            Bin::AndB | Bin::OrB => {
                let l = self.emit(l, 1, None);
                let r = self.emit(r, 1, None);
                self.op(if op == Bin::AndB { Op::And } else { Op::Or }, 1, dst, l, r, 0)
            }
            Bin::Eq | Bin::Ne | Bin::Lt | Bin::Le | Bin::Gt | Bin::Ge => self.compare(op, l, r, dst),
        }
    }

    fn saturated(&mut self, e: &Expr, op: Bin, l: &Expr, r: &Expr, w: u32, dst: Option<u32>) -> u32 {
        let n = r.small().unwrap_or(1).max(1);
        match (Self::fits(l), op) {
            (Some(false), _) => {
                let limit = ones(if op == Bin::USat { n } else { n - 1 });
                let (v, limit) = (self.whole(l), self.imm(limit));
                self.op(Op::UMin, w, dst, v, limit, 0)
            }
            (Some(true), Bin::USat) if n < 64 => {
                let (v, zero, limit) = (self.whole(l), self.imm(0), self.imm(ones(n)));
                let v = self.op(Op::SMax, 64, None, v, zero, 0);
                self.op(Op::SMin, w, dst, v, limit, 0)
            }
            (Some(true), Bin::Sat) if n <= 64 => {
                let max = ones(n - 1);
                let (v, min, max) = (self.whole(l), self.imm(!max), self.imm(max));
                let v = self.op(Op::SMax, 64, None, v, min, 0);
                self.op(Op::SMin, w, dst, v, max, 0)
            }
            _ => self.wide(e, w, dst),
        }
    }

    fn wide(&mut self, e: &Expr, w: u32, dst: Option<u32>) -> u32 {
        let a = dst.unwrap_or_else(|| self.temp(1));
        self.put_wide(e, w, a);
        a
    }

    fn put_wide(&mut self, e: &Expr, w: u32, a: u32) {
        let params = match &self.params {
            Params::Slots(s) => s.clone(),
            Params::Known(values) => {
                // A wide expression reads slots, so store known parameters in some.
                let values = values.clone();
                let mut slots = Vec::new();
                for v in values {
                    let limbs = limbs_mod(&v, (bits_of(&v).max(1)).next_multiple_of(64) + 1024);
                    slots.push(self.slots);
                    self.slots += limbs.len() as u32;
                    for (i, limb) in limbs.iter().enumerate() {
                        let from = self.imm(*limb);
                        let to = slots[slots.len() - 1] + i as u32;
                        self.put(Ins::new(Op::Mov, to, from, 0));
                    }
                }
                slots
            }
        };
        let id = self.wides.len() as u32;
        self.wides.push(WideExpr { expr: e.clone(), params });
        self.put(Ins::new(Op::Wide, a, id, w));
    }

    fn compare(&mut self, op: Bin, l: &Expr, r: &Expr, dst: Option<u32>) -> u32 {
        let (op, l, r) = match op {
            Bin::Gt => (Bin::Lt, r, l),
            Bin::Ge => (Bin::Le, r, l),
            _ => (op, l, r),
        };
        let signed = l.lo.is_negative() || r.lo.is_negative();
        let narrow = if signed {
            let as_i64 = |e: &Expr| e.lo.to_i64().is_some() && e.hi.to_i64().is_some();
            as_i64(l) && as_i64(r)
        } else {
            Self::fits(l).is_some() && Self::fits(r).is_some()
        };
        if narrow {
            let code = match (op, signed) {
                (Bin::Eq, _) => Op::Eq,
                (Bin::Ne, _) => Op::Ne,
                (Bin::Lt, false) => Op::Ult,
                (Bin::Lt, true) => Op::Slt,
                (_, false) => Op::Ule,
                (_, true) => Op::Sle,
            };
            let (l, r) = if signed {
                (self.emit(l, 64, None), self.emit(r, 64, None))
            } else {
                (self.whole(l), self.whole(r))
            };
            return self.op(code, 64, dst, l, r, 0);
        }
        let bits = [l, r].iter().flat_map(|e| [bits_of(&e.lo), bits_of(&e.hi)]).max().unwrap_or(64)
            + u32::from(signed);
        if bits > 4000 {
            // Larger ranges are not distinguished; p4c does not produce such values.
            return self.wide(&Expr::bin(op, l.clone(), r.clone()), 1, dst);
        }
        let width = bits.next_multiple_of(64);
        let (l, r) = (self.row(l, width), self.row(r, width));
        let n = width / 64;
        let (code, l, r, negate) = match (op, signed) {
            (Bin::Eq, _) => (Op::EqN, l, r, false),
            (Bin::Ne, _) => (Op::EqN, l, r, true),
            (Bin::Lt, false) => (Op::UltN, l, r, false),
            (Bin::Lt, true) => (Op::SltN, l, r, false),
            (_, false) => (Op::UltN, r, l, true),
            (_, true) => (Op::SltN, r, l, true),
        };
        if !negate {
            return self.op(code, 64, dst, l, r, n);
        }
        let t = self.op(code, 64, None, l, r, n);
        let one = self.imm(1);
        self.op(Op::Xor, 64, dst, t, one, 0)
    }
}
