//! Expressions with a better instruction: rotations, masks of low bits, conditions.

use super::*;

impl Asm<'_, '_> {
    /// `x << k | x >> (w - k)` and similar forms in which p4c and programs write rotations.
    pub(super) fn rotation(&mut self, op: Bin, l: &Expr, r: &Expr, w: u32, dst: Option<u32>) -> Option<u32> {
        if !matches!(op, Bin::Or | Bin::Xor | Bin::Add) {
            return None;
        }
        let (a, b) = (shifted(l)?, shifted(r)?);
        let (left, right) = if a.0 { (a, b) } else { (b, a) };
        if !left.0 || right.0 {
            return None;
        }
        let (slot, width, signed) = self.leaf(left.1)?;
        if self.leaf(right.1)? != (slot, width, signed) || signed || width != w || w > 64 {
            return None;
        }
        let k = left.2;
        if k == 0 || k + right.2 != w || left.3 < w - k || right.3 < k {
            return None;
        }
        Some(self.op(Op::Rotl, w, dst, slot, 0, k))
    }

    /// Jumps to `label` if the condition equals `when`.
    pub(crate) fn branch(&mut self, e: &Expr, when: bool, label: Label) {
        match &e.kind {
            Kind::Const => {
                if e.lo.is_zero() != when {
                    self.jump(Op::Jmp, label, 0, 0);
                }
            }
            Kind::NotB(x) => self.branch(x, !when, label),
            Kind::Bin(op @ (Bin::AndB | Bin::OrB), l, r) => {
                // Neither side has side effects, so the right one need not be evaluated.
                if (*op == Bin::OrB) == when {
                    self.branch(l, when, label);
                    self.branch(r, when, label);
                } else {
                    let skip = self.label();
                    self.branch(l, !when, skip);
                    self.branch(r, when, label);
                    self.bind(skip);
                }
            }
            Kind::Bin(op @ (Bin::Eq | Bin::Ne | Bin::Lt | Bin::Le | Bin::Gt | Bin::Ge), l, r)
                if Self::fits(l) == Some(false) && Self::fits(r) == Some(false) =>
            {
                let (l, r) = (self.whole(l), self.whole(r));
                let (code, l, r) = match (*op, when) {
                    (Bin::Eq, true) | (Bin::Ne, false) => (Op::JEq, l, r),
                    (Bin::Eq, false) | (Bin::Ne, true) => (Op::JNe, l, r),
                    (Bin::Lt, true) | (Bin::Ge, false) => (Op::JUlt, l, r),
                    (Bin::Lt, false) | (Bin::Ge, true) => (Op::JUge, l, r),
                    (Bin::Gt, true) | (Bin::Le, false) => (Op::JUlt, r, l),
                    _ => (Op::JUge, r, l),
                };
                self.jump(code, label, l, r);
            }
            _ => {
                let v = self.emit(e, 1, None);
                self.jump(if when { Op::Jnz } else { Op::Jz }, label, v, 0);
            }
        }
    }
}

/// n, if the number is 2^n - 1.
pub(super) fn low_mask(n: &BigInt) -> Option<u32> {
    if n.is_negative() {
        return None;
    }
    let bits = bits_of(n);
    let next: BigInt = n + 1;
    (next.trailing_zeros().is_some_and(|z| z == u64::from(bits))).then_some(bits)
}

/// A value shifted by a constant: whether to the left, the value, the distance, and how many bits
/// of the result (for a left shift: of the operand) remain after masks.
fn shifted(e: &Expr) -> Option<(bool, &Expr, u32, u32)> {
    match &e.kind {
        Kind::Bin(Bin::And, x, m) => {
            let keep = low_mask(m.value()?)?;
            let (left, what, by, kept) = shifted(x)?;
            let keep = if left { keep.saturating_sub(by) } else { keep };
            Some((left, what, by, kept.min(keep)))
        }
        Kind::Bin(Bin::Shl, x, n) => {
            let (what, kept) = masked(x)?;
            Some((true, what, n.small()?, kept))
        }
        Kind::Bin(Bin::Shr, x, n) => Some((false, x, n.small()?, u32::MAX)),
        _ => None,
    }
}

/// A value under masks of low bits, and how many bits they keep; ignores a right shift by 0.
fn masked(e: &Expr) -> Option<(&Expr, u32)> {
    match &e.kind {
        Kind::Bin(Bin::And, x, m) => {
            let keep = low_mask(m.value()?)?;
            let (what, kept) = masked(x)?;
            Some((what, kept.min(keep)))
        }
        Kind::Bin(Bin::Shr, x, n) if n.small() == Some(0) => masked(x),
        _ => Some((e, u32::MAX)),
    }
}
