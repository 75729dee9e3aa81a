//! Encodes machine instructions.

use super::*;

impl Assembler<'_> {
    pub(super) fn bytes(&mut self, b: &[u8]) {
        self.out.extend_from_slice(b);
    }

    pub(super) fn imm32(&mut self, n: i32) {
        self.bytes(&n.to_le_bytes());
    }

    /// An instruction with a register and a slot of the frame.
    pub(super) fn slot(&mut self, opcode: &[u8], reg: u8, slot: u32) {
        self.bytes(&[0x48]);
        self.bytes(opcode);
        self.bytes(&[0x83 | reg << 3]);
        self.imm32((slot * 8) as i32);
    }

    /// A constant, if a sign-extended 32-bit immediate can represent it.
    pub(super) fn immediate(&self, slot: u32) -> Option<i32> {
        i32::try_from(*self.constants.get(&slot)? as i64).ok()
    }

    pub(super) fn load(&mut self, reg: u8, slot: u32) {
        if reg == RAX && self.held == Some(slot) {
            return;
        }
        match self.immediate(slot) {
            Some(0) => self.bytes(&[0x31, 0xc0 | reg << 3 | reg]),
            Some(n) if n > 0 => {
                self.bytes(&[0xb8 | reg]);
                self.imm32(n);
            }
            _ => self.slot(&[0x8b], reg, slot),
        }
        if reg == RAX {
            self.held = None;
        }
    }

    pub(super) fn store(&mut self, slot: u32) {
        self.slot(&[0x89], RAX, slot);
        self.held = Some(slot);
    }

    /// `rax = rax op slot`, by the opcode with memory and the number of the form with an immediate.
    pub(super) fn alu(&mut self, opcode: u8, digit: u8, slot: u32) {
        match self.immediate(slot) {
            Some(n) => {
                self.bytes(&[0x48, 0x81, 0xc0 | digit << 3]);
                self.imm32(n);
            }
            None => self.slot(&[opcode], RAX, slot),
        }
    }

    /// Cuts `rax` to its lowest bits.
    pub(super) fn cut(&mut self, w: u8) {
        match w {
            64.. => {}
            32 => self.bytes(&[0x89, 0xc0]),
            0..=31 => {
                self.bytes(&[0x25]);
                self.imm32(ones(w.into()) as i32);
            }
            _ => self.bytes(&[0x48, 0xc1, 0xe0, 64 - w, 0x48, 0xc1, 0xe8, 64 - w]),
        }
    }

    pub(super) fn jump_to(&mut self, opcode: &[u8], pc: u32) {
        self.bytes(opcode);
        self.fixups.push((self.out.len(), pc));
        self.imm32(0);
    }

    pub(super) fn jump_out(&mut self) {
        self.bytes(&[0xe9]);
        self.exits.push(self.out.len());
        self.imm32(0);
    }

    /// A short conditional jump forward over the code that `over` writes.
    pub(super) fn skip(&mut self, opcode: u8, over: impl FnOnce(&mut Self)) {
        self.bytes(&[opcode, 0]);
        let at = self.out.len();
        over(self);
        let distance = self.out.len() - at;
        debug_assert!(distance < 128);
        self.out[at - 1] = distance as u8;
    }

    /// A long conditional jump forward over the code that `over` writes.
    pub(super) fn skip_far(&mut self, opcode: u8, over: impl FnOnce(&mut Self)) {
        self.bytes(&[0x0f, opcode]);
        let at = self.out.len();
        self.imm32(0);
        over(self);
        let distance = (self.out.len() - at - 4) as i32;
        self.out[at..at + 4].copy_from_slice(&distance.to_le_bytes());
    }

    pub(super) fn call(&mut self, function: usize, argument: u32) {
        self.bytes(&[0x4c, 0x89, 0xef, 0xbe]);
        self.bytes(&argument.to_le_bytes());
        self.bytes(&[0x48, 0xb8]);
        self.bytes(&(function as u64).to_le_bytes());
        self.bytes(&[0xff, 0xd0]);
        self.held = None;
    }

    /// Calls `step` and handles its result.
    pub(super) fn call_step(&mut self, pc: u32, i: Ins, in_action: bool) {
        self.call(step as *const () as usize, pc);
        if !can_stop(i.op) {
            return;
        }
        self.bytes(&[0x85, 0xc0]);
        let parser_end = self.code.parser_end;
        self.skip(0x74, |a| {
            if in_action {
                // The padding and the return address.
                a.bytes(&[0x48, 0x83, 0xc4, 0x10]);
            } else {
                a.bytes(&[0x83, 0xf8, 0x01]);
                a.jump_to(&[0x0f, 0x84], parser_end);
            }
            a.jump_out();
        });
    }

    pub(super) fn binary(&mut self, opcode: u8, digit: u8, i: Ins) {
        self.load(RAX, i.b);
        self.alu(opcode, digit, i.c);
        self.cut(i.w);
        self.store(i.a);
    }

    pub(super) fn compare(&mut self, set: u8, i: Ins) {
        self.load(RAX, i.b);
        self.alu(0x3b, 7, i.c);
        self.bytes(&[0x0f, set, 0xc0, 0x0f, 0xb6, 0xc0]);
        self.store(i.a);
    }

    pub(super) fn compare_jump(&mut self, jump: u8, i: Ins) {
        self.load(RAX, i.b);
        self.alu(0x3b, 7, i.c);
        self.jump_to(&[0x0f, jump], i.a);
    }

    /// `reg = [r13 + at]`
    pub(super) fn context(&mut self, reg: u8, at: i32) {
        self.bytes(&[0x49, 0x8b, 0x85 | reg << 3]);
        self.imm32(at);
    }

    /// `rcx` = the address of an array's cells, `rax` = the index times 2^shift. Skips the code
    /// that follows if the index is out of bounds.
    pub(super) fn cell(
        &mut self,
        table: i32,
        array: u32,
        size: usize,
        index: u32,
        shift: u8,
        then: impl FnOnce(&mut Self),
    ) {
        self.load(RAX, index);
        self.held = None;
        self.bytes(&[0x48, 0x3d]);
        self.imm32(size as i32);
        self.skip(0x73, |a| {
            a.bytes(&[0x49, 0x8b, 0x8d]);
            a.imm32(table);
            a.bytes(&[0x48, 0x8b, 0x89]);
            a.imm32((array * 8) as i32);
            if shift > 0 {
                a.bytes(&[0x48, 0xc1, 0xe0, shift]);
            }
            then(a);
        });
        self.held = None;
    }
}

/// Whether an instruction can end more than itself.
pub(super) fn can_stop(op: Op) -> bool {
    matches!(
        op,
        Op::Extract
            | Op::ExtractVl
            | Op::ExtractStack
            | Op::ExtractStackVl
            | Op::ExtractUnion
            | Op::ExtractUnionVl
            | Op::Look
            | Op::Advance
            | Op::Fail
            | Op::Assert
            | Op::Loop
            | Op::TraceState
    )
}
