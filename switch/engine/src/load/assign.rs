//! Targets of assignments: headers and unions as a whole, fields, elements of stacks, registers.

use crate::bits::limb_count;
use crate::code::{Ins, Op};
use crate::expr::{Bin, Expr, Hdr, Kind, Value};
use crate::json::{Json, Res};
use crate::layout::Field;
use crate::load::Loader;

impl<'a> Loader<'_, 'a> {
    pub(super) fn union_members(&mut self, at: &Json<'a>) -> Res<Vec<Hdr>> {
        Ok(match self.scope().value(at)? {
            Value::Union(u) => self.layout.unions[u as usize].2.iter().map(|h| Hdr::Fixed(*h)).collect(),
            Value::UnionAt(s, i) => {
                let n = self.layout.union_types[self.layout.union_stacks[s as usize].ty].1.len() as u32;
                (0..n).map(|m| Hdr::Union(s, Box::new(i.clone()), m)).collect()
            }
            _ => return at.err("a union was expected"),
        })
    }

    fn hdr_type(&self, h: &Hdr) -> usize {
        let l = self.layout;
        match h {
            Hdr::Fixed(h) => l.headers[*h as usize].ty,
            Hdr::Stack(s, _) => l.stacks[*s as usize].ty,
            Hdr::Union(s, _, m) => l.union_types[l.union_stacks[*s as usize].ty].1[*m as usize].1,
        }
    }

    pub(super) fn copy_header(&mut self, at: &Json<'a>, dst: &Hdr, src: &Hdr) -> Res<()> {
        if self.hdr_type(dst) != self.hdr_type(src) {
            return at.err("headers of different types");
        }
        let (d, s) = (self.asm.hdr(dst), self.asm.hdr(src));
        self.asm.put(Ins::new(Op::CopyHdr, d, s, 0));
        Ok(())
    }

    pub(super) fn copy_vl(&mut self, at: &Json<'a>, dst: Field, src: Field) -> Res<()> {
        if !dst.vl || !src.vl {
            return at.err("two variable-length fields were expected");
        }
        self.asm.put(Ins::new(Op::CopyVl, dst.header, src.header, 0));
        Ok(())
    }

    /// Assigns to the target of a parameter.
    pub(super) fn store(&mut self, dst: &Json<'a>, value: Expr) -> Res<()> {
        let Value::Data(target) = self.scope().value(dst)? else { return dst.err("a field was expected") };
        match target.kind {
            Kind::Field(f) => self.store_field(f, &value),
            Kind::StackField { stack, offset, width, index, .. } => {
                self.store_indexed(false, stack, 0, offset, width, &index, &value);
                Ok(())
            }
            Kind::UnionField { stack, member, offset, width, index, .. } => {
                self.store_indexed(true, stack, member, offset, width, &index, &value);
                Ok(())
            }
            Kind::Register { array, width, index } => {
                let index = self.asm.emit(&index, 32, None);
                self.store_register(array, width, index, &value);
                Ok(())
            }
            _ => dst.err("nothing can be assigned to this"),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn store_indexed(
        &mut self,
        union: bool,
        stack: u32,
        member: u32,
        offset: u32,
        width: u32,
        index: &Expr,
        value: &Expr,
    ) {
        let n = limb_count(width) as u32;
        let field = self.asm.stack_field(union, stack, member, offset, n);
        let row = self.row(value, width, n);
        let index = self.asm.emit(index, 64, None);
        self.asm.put(Ins::new(Op::StackPut, row, index, field));
    }

    pub(super) fn store_register(&mut self, array: u32, width: u32, index: u32, value: &Expr) {
        let row = self.row(value, width, limb_count(width) as u32);
        self.asm.put(Ins::new(Op::RegStore, array, index, row));
    }

    /// The lowest bits of a value in consecutive slots.
    pub(super) fn row(&mut self, value: &Expr, width: u32, n: u32) -> u32 {
        if n == 1 {
            return self.asm.emit(value, width.max(1), None);
        }
        let limbs = self.asm.emit_limbs(value, width);
        let first = self.asm.temp(n);
        for (i, slot) in limbs.iter().enumerate() {
            self.asm.put(Ins::new(Op::Mov, first + i as u32, *slot, 0));
        }
        first
    }

    /// Assigns to a field, cut (or for P4_14's saturating fields limited) to its width.
    pub(super) fn store_field(&mut self, f: Field, value: &Expr) -> Res<()> {
        let limited;
        let value = if f.saturating {
            let bin = if f.signed { Bin::Sat } else { Bin::USat };
            limited = Expr::bin(bin, value.clone(), Expr::number(f.width.into()));
            &limited
        } else {
            value
        };
        if f.width == 0 {
            return Ok(());
        }
        if f.width <= 64 {
            self.asm.emit(value, f.width, Some(f.slot));
            return Ok(());
        }
        let limbs = self.asm.emit_limbs(value, f.width);
        for (i, slot) in limbs.iter().enumerate() {
            if *slot != f.slot + i as u32 {
                self.asm.put(Ins::new(Op::Mov, f.slot + i as u32, *slot, 0));
            }
        }
        Ok(())
    }

    pub(super) fn store_limbs(&mut self, f: Field, slots: &[u32], width: u32) -> Res<()> {
        let zero = self.asm.imm(0);
        let n = limb_count(f.width);
        for i in 0..n {
            let bits = (f.width - 64 * i as u32).min(64);
            let from = slots.get(i).copied().filter(|_| width as usize > 64 * i).unwrap_or(zero);
            if bits > 0 {
                self.asm.put(Ins::new(Op::Mov, f.slot + i as u32, from, 0).w(bits));
            }
        }
        Ok(())
    }
}
