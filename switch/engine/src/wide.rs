//! Expressions that 64-bit instructions cannot evaluate, with big integers. These allocate.

use num_bigint::{BigInt, Sign};
use num_integer::Integer;
use num_traits::{One, Signed, ToPrimitive, Zero};
use std::sync::atomic::Ordering::Relaxed;

use crate::bits::limb_count;
use crate::code::Ins;
use crate::emit::WideExpr;
use crate::expr::{Bin, Expr, Hdr, Kind, bits_of, limbs_mod};
use crate::program::{Code, Program};
use crate::runtime::Runtime;
use crate::vm::Vm;

/// Largest left shift; beyond it no field contains any bit of the value.
const MAX_SHIFT: u32 = 32_768;

/// A number from limbs, least significant first.
pub(crate) fn integer(limbs: &[u64], signed: bool) -> BigInt {
    let digits = limbs.iter().flat_map(|l| [*l as u32, (l >> 32) as u32]).collect();
    let n = BigInt::new(Sign::Plus, digits);
    let top = limbs.last().is_some_and(|l| l >> 63 != 0);
    if signed && top { n - (BigInt::one() << (limbs.len() * 64)) } else { n }
}

/// Executes a `Wide` instruction.
pub(crate) fn run(vm: &mut Vm, program: &Program, code: &Code, rt: &Runtime, i: Ins) {
    let wide = &code.wides[i.b as usize];
    let value = Eval { vm, program, rt, wide }.data(&wide.expr);
    for (k, limb) in limbs_mod(&value, i.c.max(1)).iter().enumerate() {
        vm.frame[i.a as usize + k] = *limb;
    }
}

struct Eval<'v> {
    vm: &'v Vm,
    program: &'v Program,
    rt: &'v Runtime,
    wide: &'v WideExpr,
}

impl Eval<'_> {
    fn slots(&self, first: u32, width: u32, signed: bool) -> BigInt {
        let n = limb_count(width);
        let limbs = &self.vm.frame[first as usize..][..n];
        let value = integer(limbs, false);
        let top = width - 64 * (n as u32 - 1);
        if signed && top > 0 && limbs[n - 1] >> (top - 1) & 1 != 0 {
            value - (BigInt::one() << width)
        } else {
            value
        }
    }

    fn index(&self, e: &Expr) -> usize {
        self.data(e).to_usize().unwrap_or(usize::MAX)
    }

    fn header(&self, h: &Hdr) -> Option<u32> {
        match h {
            Hdr::Fixed(h) => Some(*h),
            Hdr::Stack(s, i) => Some(self.program.stacks[*s as usize].elements.get(self.index(i))?[0]),
            Hdr::Union(s, i, m) => {
                self.program.union_stacks[*s as usize].elements.get(self.index(i))?.get(*m as usize).copied()
            }
        }
    }

    fn element(&self, h: Option<u32>, offset: u32, width: u32, signed: bool) -> BigInt {
        h.map_or(BigInt::zero(), |h| {
            self.slots(self.program.headers[h as usize].base + offset, width, signed)
        })
    }

    fn data(&self, e: &Expr) -> BigInt {
        if let Some(v) = e.value() {
            return v.clone();
        }
        let truth = |b: bool| BigInt::from(u8::from(b));
        match &e.kind {
            Kind::Const => e.lo.clone(),
            Kind::Field(f) => self.slots(f.slot, f.width, f.signed),
            Kind::Slot(s) => self.vm.frame[*s as usize].into(),
            Kind::Param(i) => self.slots(self.wide.params[*i as usize], bits_of(&e.hi).max(1), false),
            Kind::StackField { stack, offset, signed, width, index } => {
                self.element(self.header(&Hdr::Stack(*stack, index.clone())), *offset, *width, *signed)
            }
            Kind::UnionField { stack, member, offset, signed, width, index } => self.element(
                self.header(&Hdr::Union(*stack, index.clone(), *member)),
                *offset,
                *width,
                *signed,
            ),
            Kind::Register { array, width, index } => {
                let n = limb_count(*width);
                let at = self.index(index).saturating_mul(n);
                let cells = self.rt.shared.registers[*array as usize].get(at..at.saturating_add(n));
                let limbs: Vec<u64> = cells.unwrap_or(&[]).iter().map(|c| c.load(Relaxed)).collect();
                integer(&limbs, false)
            }
            Kind::Not(x) => -self.data(x) - 1,
            Kind::NotB(x) => truth(self.data(x).is_zero()),
            Kind::NonZero(x) => truth(!self.data(x).is_zero()),
            Kind::Cond(c, a, b) => self.data(if self.data(c).is_zero() { b } else { a }),
            Kind::Valid(h) => {
                let valid = |h: u32| self.vm.frame[self.program.headers[h as usize].valid() as usize] != 0;
                truth(self.header(h).is_some_and(valid))
            }
            Kind::EqHdr(a, b) => {
                let equal = |(a, b): (u32, u32)| self.vm.equal_headers(self.program, a as usize, b as usize);
                truth(self.header(a).zip(self.header(b)).is_some_and(equal))
            }
            Kind::EqVl(a, b) => truth(self.vm.equal_vl(self.program, *a as usize, *b as usize)),
            Kind::EqUnion(a, b) => truth(self.vm.equal_unions(self.program, *a as usize, *b as usize)),
            Kind::Bin(op, l, r) => bin(*op, self.data(l), self.data(r)),
        }
    }
}

fn bin(op: Bin, l: BigInt, r: BigInt) -> BigInt {
    let truth = |b: bool| BigInt::from(u8::from(b));
    let width = || r.to_u32().unwrap_or(1).clamp(1, 4096);
    match op {
        Bin::Add => l + r,
        Bin::Sub => l - r,
        Bin::Mul => l * r,
        Bin::Div => l.checked_div_floor(&r),
        Bin::Mod => {
            if r.is_zero() {
                r
            } else {
                l.mod_floor(&r)
            }
        }
        Bin::Shl => match r.to_u32() {
            Some(n) if n <= MAX_SHIFT => l << n,
            _ => BigInt::zero(),
        },
        Bin::Shr => match r.to_u32() {
            Some(n) => l >> n,
            None if l.is_negative() => BigInt::from(-1),
            None => BigInt::zero(),
        },
        Bin::And => l & r,
        Bin::Or => l | r,
        Bin::Xor => l ^ r,
        Bin::Eq => truth(l == r),
        Bin::Ne => truth(l != r),
        Bin::Lt => truth(l < r),
        Bin::Le => truth(l <= r),
        Bin::Gt => truth(l > r),
        Bin::Ge => truth(l >= r),
        Bin::AndB => truth(!l.is_zero() && !r.is_zero()),
        Bin::OrB => truth(!l.is_zero() || !r.is_zero()),
        Bin::TwoComp => {
            let n = width();
            let m: BigInt = l & ((BigInt::one() << n) - 1);
            if m.bit((n - 1).into()) { m - (BigInt::one() << n) } else { m }
        }
        Bin::USat => {
            let max = (BigInt::one() << width()) - 1;
            l.clamp(BigInt::zero(), max)
        }
        Bin::Sat => {
            let half = BigInt::one() << (width() - 1);
            l.clamp(-&half, half - 1)
        }
    }
}

trait DivFloor {
    fn checked_div_floor(self, by: &BigInt) -> BigInt;
}

impl DivFloor for BigInt {
    fn checked_div_floor(self, by: &BigInt) -> BigInt {
        if by.is_zero() { BigInt::zero() } else { self.div_floor(by) }
    }
}
