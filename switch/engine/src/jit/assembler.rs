//! Encodes machine instructions.

use super::*;

const SUBTRACT: u8 = 0x2b;

impl Assembler<'_> {
    pub(super) fn bytes(&mut self, b: &[u8]) {
        self.out.extend_from_slice(b);
    }

    pub(super) fn imm32(&mut self, n: i32) {
        self.bytes(&n.to_le_bytes());
    }

    /// An instruction with a register and a slot of the frame.
    pub(super) fn slot(&mut self, opcode: &[u8], reg: u8, slot: u32) {
        self.bytes(&[0x48 | reg >> 3 << 2]);
        self.bytes(opcode);
        self.bytes(&[0x83 | (reg & 7) << 3]);
        self.imm32((slot * 8) as i32);
    }

    /// An instruction with two registers, the second of which is the operand that may be memory.
    pub(super) fn pair(&mut self, wide: bool, opcode: &[u8], reg: u8, rm: u8) {
        self.bytes(&[0x40 | u8::from(wide) << 3 | reg >> 3 << 2 | rm >> 3]);
        self.bytes(opcode);
        self.bytes(&[0xc0 | (reg & 7) << 3 | rm & 7]);
    }

    pub(super) fn move_register(&mut self, to: u8, from: u8) {
        if to != from {
            self.pair(true, &[0x8b], to, from);
        }
    }

    /// A constant, if a sign-extended 32-bit immediate can represent it.
    pub(super) fn immediate(&self, slot: u32) -> Option<i32> {
        i32::try_from(*self.constants.get(&slot)? as i64).ok()
    }

    /// `reg = n`
    pub(super) fn set(&mut self, reg: u8, n: u64) {
        if n == 0 {
            self.pair(false, &[0x31], reg, reg);
        } else if let Ok(n) = u32::try_from(n) {
            self.bytes(&[0x40 | reg >> 3, 0xb8 | reg & 7]);
            self.bytes(&n.to_le_bytes());
        } else if let Ok(n) = i32::try_from(n as i64) {
            self.pair(true, &[0xc7], 0, reg);
            self.imm32(n);
        } else {
            self.bytes(&[0x48 | reg >> 3, 0xb8 | reg & 7]);
            self.bytes(&n.to_le_bytes());
        }
    }

    /// `reg` = a slot's value in the frame, or a constant.
    pub(super) fn load(&mut self, reg: u8, slot: u32) {
        match self.constants.get(&slot) {
            Some(n) => self.set(reg, *n),
            None => self.slot(&[0x8b], reg, slot),
        }
    }

    /// `reg` = a slot's value, for an instruction that changes the register.
    pub(super) fn copy(&mut self, reg: u8, slot: u32) {
        let from = self.read(slot);
        self.move_register(reg, from);
    }

    /// `reg = reg op slot`, by the opcode with two registers and the number of the form with an
    /// immediate.
    pub(super) fn alu(&mut self, wide: bool, opcode: u8, digit: u8, reg: u8, slot: u32) {
        match self.immediate(slot) {
            Some(n) => {
                self.pair(wide, &[0x81], digit, reg);
                self.imm32(n);
            }
            None => {
                let other = self.read(slot);
                self.pair(wide, &[opcode], reg, other);
            }
        }
    }

    /// Cuts a register to its lowest bits.
    pub(super) fn cut(&mut self, reg: u8, w: u8) {
        match w {
            64.. => {}
            32 => self.pair(false, &[0x8b], reg, reg),
            0..=31 => {
                self.pair(false, &[0x81], 4, reg);
                self.imm32(ones(w.into()) as i32);
            }
            _ => {
                self.shift(true, 4, reg, 64 - w);
                self.shift(true, 5, reg, 64 - w);
            }
        }
    }

    /// A shift by a constant; `form` 0: rotate left, 4: left, 5: right, 7: right with sign.
    pub(super) fn shift(&mut self, wide: bool, form: u8, reg: u8, by: u8) {
        self.pair(wide, &[0xc1], form, reg);
        self.bytes(&[by]);
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
    }

    /// Calls `step` and handles its result.
    pub(super) fn call_step(&mut self, pc: u32, i: Ins, in_action: bool) {
        self.write_all();
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

    /// a = b op c
    pub(super) fn binary(&mut self, opcode: &[u8], digit: u8, i: Ins) {
        let commutes = opcode != [SUBTRACT];
        let swap = commutes && (i.a == i.c || self.immediate(i.b).is_some());
        let (b, c) = if swap { (i.c, i.b) } else { (i.b, i.c) };
        let wide = i.w > 32;
        match self.immediate(c) {
            Some(n) if opcode.len() == 1 => {
                let to = self.write_from(i.a, b);
                self.pair(wide, &[0x81], digit, to);
                self.imm32(n);
                self.cut_after(to, i.w);
            }
            _ => {
                let other = self.read(c);
                if i.a == c && i.a != b {
                    // The result replaces the second operand.
                    self.copy(RAX, b);
                    self.pair(wide, opcode, RAX, other);
                    self.cut_after(RAX, i.w);
                    let to = self.write(i.a);
                    self.move_register(to, RAX);
                    return;
                }
                let to = self.write_from(i.a, b);
                self.pair(wide, opcode, to, other);
                self.cut_after(to, i.w);
            }
        }
    }

    /// Cuts the result of a 32-bit instruction (up to 32 bits) or of a 64-bit one.
    fn cut_after(&mut self, reg: u8, w: u8) {
        if w != 32 {
            self.cut(reg, w);
        }
    }

    /// Compares two slots.
    fn compare_slots(&mut self, i: Ins) {
        let b = self.read(i.b);
        self.alu(true, 0x3b, 7, b, i.c);
    }

    pub(super) fn compare(&mut self, set: u8, i: Ins) {
        self.compare_slots(i);
        // setcc al; movzx to, al
        self.bytes(&[0x0f, set, 0xc0]);
        let to = self.write(i.a);
        self.pair(false, &[0x0f, 0xb6], to, RAX);
    }

    pub(super) fn compare_jump(&mut self, jump: u8, i: Ins) {
        self.compare_slots(i);
        self.write_shared();
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
        self.copy(RAX, index);
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
