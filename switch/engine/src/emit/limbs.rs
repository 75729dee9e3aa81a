//! Values wider than 64 bits, limb by limb.

use smallvec::smallvec;

use super::*;

impl Asm<'_, '_> {
    /// The lowest `w` bits in consecutive slots.
    pub(super) fn row(&mut self, e: &Expr, w: u32) -> u32 {
        let limbs = self.emit_limbs(e, w);
        if limbs.windows(2).all(|p| p[1] == p[0] + 1) {
            return limbs[0];
        }
        let first = self.temp(limbs.len() as u32);
        for (i, slot) in limbs.iter().enumerate() {
            self.put(Ins::new(Op::Mov, first + i as u32, *slot, 0));
        }
        first
    }

    /// The lowest `w` bits, for any `w`, limb by limb.
    pub(crate) fn emit_limbs(&mut self, e: &Expr, w: u32) -> Limbs {
        let n = limb_count(w);
        if let Some(v) = self.known(e) {
            return limbs_mod(&v, w).iter().map(|l| self.imm(*l)).collect();
        }
        let top = w - 64 * (n as u32 - 1);
        if let Some((slot, width, signed)) = self.leaf(e) {
            if !(signed && w > width) {
                return self.widen(slot, width, w);
            }
            return self.wide_row(e, w);
        }
        if w <= 64 && !matches!(e.kind, Kind::Bin(Bin::Shr, ..)) {
            return smallvec![self.emit(e, w, None)];
        }
        match &e.kind {
            Kind::Bin(op @ (Bin::And | Bin::Or | Bin::Xor), l, r) => {
                let code = match op {
                    Bin::And => Op::And,
                    Bin::Or => Op::Or,
                    _ => Op::Xor,
                };
                if *op == Bin::And {
                    for (x, mask) in [(l, self.known(r)), (r, self.known(l))] {
                        if let Some(m) = mask.as_ref().and_then(low_mask).filter(|m| (1..=4096).contains(m)) {
                            let limbs = self.emit_limbs(x, m.min(w));
                            return self.pad(limbs, n);
                        }
                    }
                }
                let (l, r) = (self.emit_limbs(l, w), self.emit_limbs(r, w));
                l.iter().zip(&r).map(|(a, b)| self.op(code, 64, None, *a, *b, 0)).collect()
            }
            Kind::Not(x) => {
                let x = self.emit_limbs(x, w);
                let width = |i| if i + 1 == n { top } else { 64 };
                x.iter().enumerate().map(|(i, s)| self.op(Op::Not, width(i), None, *s, 0, 0)).collect()
            }
            Kind::Bin(op @ (Bin::Add | Bin::Sub), l, r) => {
                let (l, r) = (self.row(l, w), self.row(r, w));
                let a = self.temp(n as u32);
                let code = if *op == Bin::Add { Op::AddN } else { Op::SubN };
                self.put(Ins::new(code, a, l, r).w(top).x(n as u32));
                (0..n as u32).map(|i| a + i).collect()
            }
            Kind::Bin(Bin::Shl, l, r) => match self.small(r) {
                Some(s) if s >= w => smallvec![self.imm(0); n],
                Some(s) => {
                    let x = self.emit_limbs(l, w - s);
                    let (q, r) = ((s / 64) as usize, s % 64);
                    let zero = self.imm(0);
                    let at = |i: Option<usize>| i.and_then(|i| x.get(i).copied()).unwrap_or(zero);
                    (0..n)
                        .map(|i| {
                            let width = if i + 1 == n { top } else { 64 };
                            let hi = at(i.checked_sub(q));
                            let lo = at(i.checked_sub(q + 1));
                            match r {
                                0 => hi,
                                _ => self.op(Op::Funnel, width, None, hi, lo, r),
                            }
                        })
                        .collect()
                }
                None => self.wide_row(e, w),
            },
            Kind::Bin(Bin::Shr, l, r) => match self.small(r) {
                Some(s) if s < 8192 => {
                    let need = s + w;
                    let have = bits_of(&l.hi).max(1);
                    let x = self.emit_limbs(l, if l.lo.is_negative() { need } else { need.min(have) });
                    let (q, r) = ((s / 64) as usize, s % 64);
                    let zero = self.imm(0);
                    let at = |i: usize| x.get(i).copied().unwrap_or(zero);
                    let parts: Vec<(u32, u32)> = (0..n).map(|i| (at(i + q), at(i + q + 1))).collect();
                    parts
                        .iter()
                        .enumerate()
                        .map(|(i, (lo, hi))| {
                            let width = if i + 1 == n { top } else { 64 };
                            match r {
                                0 if width == 64 => *lo,
                                0 => self.op(Op::Mov, width, None, *lo, 0, 0),
                                _ => self.op(Op::Funnel, width, None, *hi, *lo, 64 - r),
                            }
                        })
                        .collect()
                }
                _ => self.wide_row(e, w),
            },
            Kind::Bin(Bin::TwoComp, l, r) if r.small().is_some_and(|m| w <= m) => self.emit_limbs(l, w),
            Kind::Cond(c, a, b) => {
                let cond = self.emit(c, 1, None);
                let (a, b) = (self.emit_limbs(a, w), self.emit_limbs(b, w));
                a.iter()
                    .zip(&b)
                    .map(|(a, b)| {
                        let out = self.op(Op::Mov, 64, None, *a, 0, 0);
                        self.put(Ins::new(Op::MovZ, out, *b, cond));
                        out
                    })
                    .collect()
            }
            Kind::StackField { width, .. }
            | Kind::UnionField { width, .. }
            | Kind::Register { width, .. }
                if !e.lo.is_negative() =>
            {
                let width = *width;
                let first = self.indexed(e);
                self.widen(first, width, w)
            }
            _ if !e.lo.is_negative() && bits_of(&e.hi) <= 64 => {
                let width = bits_of(&e.hi).max(1);
                let slot = self.emit(e, width.min(w), None);
                self.pad(smallvec![slot], n)
            }
            _ => self.wide_row(e, w),
        }
    }

    pub(super) fn pad(&mut self, mut limbs: Limbs, n: usize) -> Limbs {
        let zero = self.imm(0);
        limbs.resize(n, zero);
        limbs
    }

    /// The limbs of an unsigned value in slots, cut or padded to `w` bits.
    pub(super) fn widen(&mut self, first: u32, width: u32, w: u32) -> Limbs {
        let n = limb_count(w);
        let have = limb_count(width);
        let zero = self.imm(0);
        (0..n)
            .map(|i| {
                if i >= have {
                    zero
                } else if i + 1 == n && w < width && !w.is_multiple_of(64) {
                    self.op(Op::Mov, w % 64, None, first + i as u32, 0, 0)
                } else {
                    first + i as u32
                }
            })
            .collect()
    }

    pub(super) fn wide_row(&mut self, e: &Expr, w: u32) -> Limbs {
        let n = limb_count(w) as u32;
        let a = self.temp(n);
        self.put_wide(e, w, a);
        (0..n).map(|i| a + i).collect()
    }
}
