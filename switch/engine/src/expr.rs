//! Expressions: read from JSON into a tree with the range of every value.
//!
//! BMv2 calculates with big integers, and p4c writes the masks and casts that give P4's semantics.
//! The range of each value shows where 64 bits suffice.

mod read;

use num_bigint::{BigInt, Sign};
use num_traits::{One, Signed, ToPrimitive, Zero};

use crate::json::{Json, Res};
use crate::layout::{Field, Layout};
pub(crate) use read::{Scope, Value};

/// Larger ranges and shift amounts in bits are not distinguished.
const MAX_BITS: u32 = 4096;
/// Deepest expression accepted.
const MAX_DEPTH: u32 = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bin {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Shl,
    Shr,
    And,
    Or,
    Xor,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// On booleans.
    AndB,
    OrB,
    /// The left operand as a signed value of `right` bits.
    TwoComp,
    USat,
    Sat,
}

/// A header, known at compile time or selected by an index.
#[derive(Clone, Debug)]
pub(crate) enum Hdr {
    Fixed(u32),
    Stack(u32, Box<Expr>),
    Union(u32, Box<Expr>, u32),
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Const,
    Field(Field),
    /// Action parameter by position.
    Param(u32),
    /// A slot of the frame.
    Slot(u32),
    /// Field of element `index` of a stack: stack, field slot from the header's base.
    StackField {
        stack: u32,
        offset: u32,
        signed: bool,
        width: u32,
        index: Box<Expr>,
    },
    /// Field of member of element `index` of a union stack.
    UnionField {
        stack: u32,
        member: u32,
        offset: u32,
        signed: bool,
        width: u32,
        index: Box<Expr>,
    },
    Register {
        array: u32,
        width: u32,
        index: Box<Expr>,
    },
    Bin(Bin, Box<Expr>, Box<Expr>),
    /// Bitwise.
    Not(Box<Expr>),
    NotB(Box<Expr>),
    /// Boolean from number.
    NonZero(Box<Expr>),
    Cond(Box<Expr>, Box<Expr>, Box<Expr>),
    Valid(Hdr),
    EqHdr(Hdr, Hdr),
    /// Variable-length fields of two headers, as numbers.
    EqVl(u32, u32),
    EqUnion(u32, u32),
}

/// An expression. Booleans are 0 and 1.
#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) kind: Kind,
    pub(crate) lo: BigInt,
    pub(crate) hi: BigInt,
    pub(crate) bool: bool,
    pub(crate) depth: u32,
}

fn pow2(bits: u32) -> BigInt {
    BigInt::one() << bits.min(MAX_BITS)
}

/// Bits of a non-negative value.
pub(crate) fn bits_of(n: &BigInt) -> u32 {
    n.bits() as u32
}

impl Expr {
    fn new(kind: Kind, lo: BigInt, hi: BigInt) -> Expr {
        let huge = pow2(MAX_BITS);
        let (lo, hi) = (lo.max(-&huge), hi.min(huge));
        let depth = match &kind {
            Kind::Bin(_, a, b) => a.depth.max(b.depth),
            Kind::Cond(a, b, c) => a.depth.max(b.depth).max(c.depth),
            Kind::Not(a) | Kind::NotB(a) | Kind::NonZero(a) => a.depth,
            Kind::StackField { index, .. }
            | Kind::UnionField { index, .. }
            | Kind::Register { index, .. } => index.depth,
            _ => 0,
        };
        Expr { kind, lo, hi, bool: false, depth: depth + 1 }
    }

    pub(crate) fn constant(n: BigInt) -> Expr {
        Expr::new(Kind::Const, n.clone(), n)
    }

    pub(crate) fn number(n: u64) -> Expr {
        Expr::constant(n.into())
    }

    fn truth(kind: Kind) -> Expr {
        Expr { bool: true, ..Expr::new(kind, BigInt::zero(), BigInt::one()) }
    }

    fn of_width(kind: Kind, width: u32, signed: bool) -> Expr {
        if signed && width > 0 {
            Expr::new(kind, -pow2(width - 1), pow2(width - 1) - 1)
        } else {
            Expr::new(kind, BigInt::zero(), pow2(width) - 1)
        }
    }

    pub(crate) fn field(f: Field) -> Expr {
        Expr::of_width(Kind::Field(f), f.width, f.signed)
    }

    pub(crate) fn slot(slot: u32, width: u32) -> Expr {
        Expr::of_width(Kind::Slot(slot), width, false)
    }

    pub(crate) fn param(index: u32, width: u32) -> Expr {
        Expr::of_width(Kind::Param(index), width, false)
    }

    pub(crate) fn register(array: u32, width: u32, index: Expr) -> Expr {
        Expr::of_width(Kind::Register { array, width, index: Box::new(index) }, width, false)
    }

    /// The value, if it is constant.
    pub(crate) fn value(&self) -> Option<&BigInt> {
        (self.lo == self.hi).then_some(&self.lo)
    }

    /// The value as a small number, if it is constant and small.
    pub(crate) fn small(&self) -> Option<u32> {
        self.value()?.to_u32()
    }

    pub(crate) fn bin(op: Bin, l: Expr, r: Expr) -> Expr {
        let (ll, lh, rl, rh) = (&l.lo, &l.hi, &r.lo, &r.hi);
        let zero = BigInt::zero();
        let (lo, hi) = match op {
            Bin::Add => (ll + rl, lh + rh),
            Bin::Sub => (ll - rh, lh - rl),
            Bin::Mul => {
                let all = [ll * rl, ll * rh, lh * rl, lh * rh];
                (all.iter().min().cloned().unwrap_or_default(), all.iter().max().cloned().unwrap_or_default())
            }
            Bin::Div => (zero, lh.max(&BigInt::zero()).clone()),
            Bin::Mod => (zero, BigInt::zero().max(rh - 1u32).min(lh.clone().max(BigInt::zero()))),
            Bin::Shl => {
                let most = rh.to_u32().unwrap_or(MAX_BITS).min(MAX_BITS);
                let least = rl.to_u32().unwrap_or(0).min(MAX_BITS);
                let lo = if ll.is_negative() { ll << most } else { ll << least };
                let hi = if lh.is_negative() { lh << least } else { lh << most };
                (lo, hi)
            }
            Bin::Shr => {
                let most = rh.to_u32().unwrap_or(MAX_BITS * 2).min(MAX_BITS * 2);
                let least = rl.to_u32().unwrap_or(0).min(MAX_BITS * 2);
                let lo = if ll.is_negative() { ll >> least } else { ll >> most };
                let hi = if lh.is_negative() { lh >> most } else { lh >> least };
                (lo, hi)
            }
            Bin::And => match (ll.is_negative(), rl.is_negative()) {
                (false, false) => (zero, lh.min(rh).clone()),
                (false, true) => (zero, lh.clone()),
                (true, false) => (zero, rh.clone()),
                (true, true) => (-pow2(width_both(&l, &r)), pow2(width_both(&l, &r)) - 1),
            },
            Bin::Or | Bin::Xor => {
                let width = width_both(&l, &r);
                let neg = ll.is_negative() || rl.is_negative();
                (if neg { -pow2(width) } else { zero }, pow2(width) - 1)
            }
            Bin::TwoComp => match r.small() {
                Some(n) if n > 0 => {
                    let (min, max) = (-pow2(n - 1), pow2(n - 1) - 1);
                    if ll >= &min && lh <= &max { (ll.clone(), lh.clone()) } else { (min, max) }
                }
                _ => (-pow2(MAX_BITS), pow2(MAX_BITS)),
            },
            Bin::USat | Bin::Sat => {
                let n = r.small().unwrap_or(MAX_BITS).clamp(1, MAX_BITS);
                let (min, max): (BigInt, BigInt) = match op {
                    Bin::USat => (zero, pow2(n) - 1),
                    _ => (-pow2(n - 1), pow2(n - 1) - 1),
                };
                (ll.clone().clamp(min.clone(), max.clone()), lh.clone().clamp(min, max))
            }
            Bin::Eq | Bin::Ne | Bin::Lt | Bin::Le | Bin::Gt | Bin::Ge | Bin::AndB | Bin::OrB => {
                return Expr::truth(Kind::Bin(op, Box::new(l), Box::new(r)));
            }
        };
        Expr::new(Kind::Bin(op, Box::new(l), Box::new(r)), lo, hi)
    }

    /// `self - 1`, simplified if the value is known.
    pub(crate) fn minus_one(self) -> Expr {
        Expr::bin(Bin::Sub, self, Expr::number(1))
    }
}

/// Bits for the magnitude of both.
fn width_both(l: &Expr, r: &Expr) -> u32 {
    [&l.lo, &l.hi, &r.lo, &r.hi].iter().map(|n| bits_of(n)).max().unwrap_or(0)
}

/// The lowest `width` bits of a number of any sign, as limbs.
pub(crate) fn limbs_mod(n: &BigInt, width: u32) -> Vec<u64> {
    let m: BigInt = n & ((BigInt::one() << width) - 1);
    let (sign, mut limbs) = m.to_u64_digits();
    debug_assert!(sign != Sign::Minus);
    limbs.resize(crate::bits::limb_count(width), 0);
    limbs
}
