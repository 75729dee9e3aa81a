//! Multi-limb arithmetic.

use super::*;

impl Vm {
    pub(super) fn add_limbs(&mut self, i: Ins) {
        let n = u32::from(i.x);
        let mut carry = i.op == Op::SubN;
        for k in 0..n {
            let b = self.frame[(i.b + k) as usize];
            let c = self.frame[(i.c + k) as usize];
            let c = if i.op == Op::SubN { !c } else { c };
            let (sum, over) = b.overflowing_add(c);
            let (sum, more) = sum.overflowing_add(carry.into());
            carry = over || more;
            let w = if k + 1 == n { i.w.into() } else { 64 };
            self.frame[(i.a + k) as usize] = sum & ones(w);
        }
    }

    pub(super) fn compare_limbs(&mut self, i: Ins) {
        let n = usize::from(i.x);
        let b = &self.frame[i.b as usize..][..n];
        let c = &self.frame[i.c as usize..][..n];
        let out = match i.op {
            Op::EqN => b == c,
            Op::UltN => b.iter().rev().lt(c.iter().rev()),
            _ => {
                let (top_b, top_c) = (b[n - 1] as i64, c[n - 1] as i64);
                top_b < top_c || top_b == top_c && b[..n - 1].iter().rev().lt(c[..n - 1].iter().rev())
            }
        };
        self.frame[i.a as usize] = out.into();
    }
}
