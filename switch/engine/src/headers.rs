//! Operations on headers: extraction, copies, stacks, unions, and deparsing.

use crate::bits::{get, put};
use crate::code::{Ins, Op};
use crate::layout::{HEAD_ROOM, Header};
use crate::program::Program;
use crate::trace::Step;
use crate::vm::{Packet, Vm};

impl Vm {
    /// Makes a header valid, and the other members of its union invalid.
    fn make_valid(&mut self, h: &Header) {
        for s in &h.siblings {
            self.frame[*s as usize] = 0;
        }
        self.frame[h.valid() as usize] = 1;
    }

    pub(crate) fn add_header(&mut self, program: &Program, index: usize, keep: bool) {
        let Some(h) = program.headers.get(index) else { return };
        if self.frame[h.valid() as usize] == 0 && !keep {
            self.frame[h.base as usize..(h.base + h.slots) as usize].fill(0);
            self.frame[program.special.length as usize] =
                self.frame[program.special.length as usize].wrapping_add(h.fixed_bytes.into());
        }
        self.make_valid(h);
    }

    pub(crate) fn copy_header(&mut self, program: &Program, dst: usize, src: usize) {
        let (Some(d), Some(s)) = (program.headers.get(dst), program.headers.get(src)) else { return };
        if d.ty != s.ty {
            return;
        }
        if self.frame[s.valid() as usize] == 0 {
            self.frame[d.valid() as usize] = 0;
            return;
        }
        let from = s.base as usize;
        self.frame.copy_within(from..from + s.slots as usize, d.base as usize);
        self.make_valid(d);
        self.copy_vl(program, dst, src);
    }

    pub(crate) fn copy_vl(&mut self, program: &Program, dst: usize, src: usize) {
        let (d, s) = (&program.headers[dst], &program.headers[src]);
        if let (Some((to, room)), Some((from, _))) = (d.vl, s.vl) {
            let bytes = (self.frame[s.vl_bits() as usize] / 8).min(room.into()) as usize;
            self.vl.copy_within(from as usize..from as usize + bytes, to as usize);
            self.frame[d.vl_bits() as usize] = bytes as u64 * 8;
        }
    }

    pub(crate) fn equal_headers(&self, program: &Program, a: usize, b: usize) -> bool {
        let (Some(x), Some(y)) = (program.headers.get(a), program.headers.get(b)) else { return false };
        let slots = |h: &Header| &self.frame[h.base as usize..(h.base + h.slots) as usize];
        let vl = |h: &Header| {
            let bytes = (self.frame[h.vl_bits() as usize] / 8) as usize;
            h.vl.map_or(&[][..], |(at, _)| &self.vl[at as usize..at as usize + bytes])
        };
        // The first slot is the validity.
        x.ty == y.ty && self.frame[x.valid() as usize] != 0 && slots(x) == slots(y) && vl(x) == vl(y)
    }

    /// Whether two variable-length fields are equal as numbers, BMv2's comparison.
    pub(crate) fn equal_vl(&self, program: &Program, a: usize, b: usize) -> bool {
        let digits = |h: &Header| {
            let bytes = (self.frame[h.vl_bits() as usize] / 8) as usize;
            let all = h.vl.map_or(&[][..], |(at, _)| &self.vl[at as usize..at as usize + bytes]);
            &all[all.iter().take_while(|b| **b == 0).count()..]
        };
        digits(&program.headers[a]) == digits(&program.headers[b])
    }

    pub(crate) fn equal_unions(&self, program: &Program, a: usize, b: usize) -> bool {
        let pairs = program.unions[a].iter().zip(&program.unions[b]);
        pairs.into_iter().any(|(x, y)| self.equal_headers(program, *x as usize, *y as usize))
    }

    /// Moves the elements of a stack with P4_16's semantics: new elements are invalid.
    pub(crate) fn shift_stack(&mut self, program: &Program, i: Ins) {
        let list = if i.w == 1 { &program.union_stacks } else { &program.stacks };
        let stack = &list[i.a as usize];
        let size = stack.elements.len();
        let n = self.frame[i.b as usize].min(size as u64) as usize;
        let next = self.frame[stack.next as usize] as usize;
        let push = i.op == Op::Push;
        self.frame[stack.next as usize] =
            if push { (next + n).min(size) } else { next.saturating_sub(n) } as u64;
        if n == 0 {
            return;
        }
        let mut order: Vec<usize> = (0..size).collect();
        if push {
            order.reverse();
        }
        for to in order {
            let from = if push { to.checked_sub(n) } else { Some(to + n).filter(|f| *f < size) };
            for m in 0..stack.elements[to].len() {
                let dst = stack.elements[to][m] as usize;
                match from {
                    Some(from) => self.copy_raw(program, dst, stack.elements[from][m] as usize),
                    None => self.frame[program.headers[dst].valid() as usize] = 0,
                }
            }
        }
    }

    /// Copies a header as it is, valid or not.
    fn copy_raw(&mut self, program: &Program, dst: usize, src: usize) {
        let (d, s) = (&program.headers[dst], &program.headers[src]);
        let from = s.base as usize;
        self.frame.copy_within(from..from + s.slots as usize, d.base as usize);
        self.copy_vl(program, dst, src);
    }

    pub(crate) fn copy_stack(&mut self, program: &Program, i: Ins) {
        let list = if i.w == 1 { &program.union_stacks } else { &program.stacks };
        let (d, s) = (&list[i.a as usize], &list[i.b as usize]);
        self.frame[d.next as usize] = self.frame[s.next as usize];
        for (to, from) in d.elements.iter().zip(&s.elements) {
            for (x, y) in to.iter().zip(from) {
                self.copy_header(program, *x as usize, *y as usize);
            }
        }
    }

    /// Extracts a header from the packet. `max_bytes` limits a header with a variable-length field.
    #[inline]
    pub(crate) fn extract(
        &mut self,
        program: &Program,
        packet: &mut Packet,
        index: u32,
        vl_bits: u64,
        max_bytes: u32,
    ) -> Result<(), u64> {
        let h = &program.headers[index as usize];
        let left = packet.data.len() - packet.taken;
        let mut bytes = h.fixed_bytes as usize;
        if let Some((_, room)) = h.vl {
            if !vl_bits.is_multiple_of(8) {
                return Err(program.errors.invalid);
            }
            let variable = vl_bits / 8;
            if (left as u64) < variable.saturating_add(bytes as u64) {
                return Err(program.errors.too_short);
            }
            bytes += variable as usize;
            if max_bytes != 0 && bytes > max_bytes as usize || variable > room.into() {
                return Err(program.errors.header_short);
            }
        } else if left < bytes {
            return Err(program.errors.too_short);
        }
        let data = &packet.data[packet.taken..];
        for p in &h.before {
            self.frame[p.slot as usize] = get(data, p.pos as usize, p.width);
        }
        if let Some((at, _)) = h.vl {
            let n = (vl_bits / 8) as usize;
            let pos = h.vl_pos as usize;
            for k in 0..n {
                self.vl[at as usize + k] = get(data, pos + 8 * k, 8) as u8;
            }
            self.frame[h.vl_bits() as usize] = vl_bits;
            for p in &h.after {
                self.frame[p.slot as usize] = get(data, p.pos as usize + n * 8, p.width);
            }
        }
        if h.siblings.is_empty() {
            self.frame[h.valid() as usize] = 1;
        } else {
            self.make_valid(h);
        }
        if self.trace.is_some() {
            let offset = packet.taken;
            self.note(|| Step::Extract { header: h.name.clone(), offset });
        }
        packet.taken += bytes;
        Ok(())
    }

    pub(crate) fn extract_next(&mut self, program: &Program, packet: &mut Packet, i: Ins) -> Result<(), u64> {
        let union = matches!(i.op, Op::ExtractUnion | Op::ExtractUnionVl);
        let stack = if union { &program.union_stacks[i.a as usize] } else { &program.stacks[i.a as usize] };
        let next = self.frame[stack.next as usize];
        let Some(element) = stack.elements.get(next as usize) else {
            return Err(program.errors.stack_bounds);
        };
        let vl = matches!(i.op, Op::ExtractStackVl | Op::ExtractUnionVl);
        let (bits, max) = if vl { (self.frame[i.b as usize], i.c) } else { (0, 0) };
        self.extract(program, packet, element[i.x as usize], bits, max)?;
        self.frame[stack.next as usize] = next + 1;
        Ok(())
    }

    /// Writes a header behind those before it, if it is valid.
    pub(crate) fn emit_header(&mut self, program: &Program, packet: &mut Packet, index: u32) {
        let h = &program.headers[index as usize];
        if self.frame[h.valid() as usize] == 0 {
            return;
        }
        let mut head = std::mem::take(&mut self.head);
        let bytes = self.header_bytes(h);
        let out = &mut head[packet.written..];
        // `put` needs zeros, and room behind the header.
        out[..bytes + HEAD_ROOM].fill(0);
        self.write_header(h, out);
        packet.written += bytes;
        self.head = head;
    }

    pub(crate) fn header_bytes(&self, h: &Header) -> usize {
        let vl = if h.vl.is_some() { self.frame[h.vl_bits() as usize] / 8 } else { 0 };
        h.fixed_bytes as usize + vl as usize
    }

    /// Writes one header to a zeroed buffer with nine bytes of extra room.
    #[inline]
    pub(crate) fn write_header(&self, h: &Header, out: &mut [u8]) {
        if !h.words.is_empty() {
            // Writes whole words; the excess of the last one is zero, and the next header
            // overwrites it.
            for (slots, to) in h.words.iter().zip(out.chunks_exact_mut(8)) {
                let word = slots.iter().fold(0u64, |w, (slot, shift)| {
                    let v = self.frame[*slot as usize];
                    w | if *shift >= 0 { v << shift } else { v >> -shift }
                });
                to.copy_from_slice(&word.to_be_bytes());
            }
            return;
        }
        for p in &h.before {
            put(out, p.pos as usize, p.width, self.frame[p.slot as usize]);
        }
        if let Some((at, _)) = h.vl {
            let n = (self.frame[h.vl_bits() as usize] / 8) as usize;
            let pos = h.vl_pos as usize;
            for k in 0..n {
                put(out, pos + 8 * k, 8, self.vl[at as usize + k].into());
            }
            for p in &h.after {
                put(out, p.pos as usize + n * 8, p.width, self.frame[p.slot as usize]);
            }
        }
    }
}
