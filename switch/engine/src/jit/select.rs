//! Selects the machine instructions for each bytecode instruction.

use super::*;
use crate::key::{KeyPart, KeyPlan};

impl Assembler<'_> {
    pub(super) fn instruction(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let info = &program.info;
        match i.op {
            Op::Mov => match self.constants.get(&i.b) {
                Some(n) => {
                    let n = n & ones(i.w.into());
                    let to = self.write(i.a);
                    self.set(to, n);
                }
                None => {
                    let to = self.write_from(i.a, i.b);
                    self.cut(to, i.w);
                }
            },
            Op::Add => self.binary(&[0x03], 0, i),
            Op::Sub => self.binary(&[0x2b], 5, i),
            Op::And => self.binary(&[0x23], 4, Ins { w: 64, ..i }),
            Op::Or => self.binary(&[0x0b], 1, Ins { w: 64, ..i }),
            Op::Xor => self.binary(&[0x33], 6, Ins { w: 64, ..i }),
            Op::Mul => self.binary(&[0x0f, 0xaf], 0, i),
            Op::Not => {
                let to = self.write_from(i.a, i.b);
                self.pair(true, &[0xf7], 2, to);
                self.cut(to, i.w);
            }
            Op::Shl | Op::Shr => {
                self.copy(RCX, i.c);
                self.copy(RAX, i.b);
                // 0 in rdx for distances of 64 or more.
                self.bytes(&[0x31, 0xd2]);
                self.bytes(&[0x48, 0xd3, if i.op == Op::Shl { 0xe0 } else { 0xe8 }]);
                self.bytes(&[0x48, 0x83, 0xf9, 63, 0x48, 0x0f, 0x47, 0xc2]);
                self.cut(RAX, i.w);
                self.result(i.a);
            }
            Op::ShlI | Op::ShrI | Op::SarI => {
                let form = match i.op {
                    Op::ShlI => 4,
                    Op::ShrI => 5,
                    _ => 7,
                };
                let to = self.write_from(i.a, i.b);
                self.shift(true, form, to, i.x as u8);
                self.cut(to, i.w);
            }
            Op::Rotl if i.w == 32 || i.w == 64 => {
                let to = self.write_from(i.a, i.b);
                self.shift(i.w == 64, 0, to, i.x as u8);
            }
            Op::Funnel => {
                self.copy(RAX, i.b);
                let low = self.read(i.c);
                // shld rax, low, x
                self.pair(true, &[0x0f, 0xa4], low, RAX);
                self.bytes(&[i.x as u8]);
                self.cut(RAX, i.w);
                self.result(i.a);
            }
            Op::Sext => {
                let s = 64 - i.x as u8;
                let to = self.write_from(i.a, i.b);
                self.shift(true, 4, to, s);
                self.shift(true, 7, to, s);
                self.cut(to, i.w);
            }
            Op::Eq => self.compare(0x94, i),
            Op::Ne => self.compare(0x95, i),
            Op::Ult => self.compare(0x92, i),
            Op::Ule => self.compare(0x96, i),
            Op::Slt => self.compare(0x9c, i),
            Op::Sle => self.compare(0x9e, i),
            Op::UMin => {
                self.copy(RAX, i.b);
                let other = self.read(i.c);
                // cmp other, rax; cmovb rax, other
                self.pair(true, &[0x39], RAX, other);
                self.pair(true, &[0x0f, 0x42], RAX, other);
                self.cut(RAX, i.w);
                self.result(i.a);
            }
            Op::MovZ => {
                let (b, c) = (self.read(i.b), self.read(i.c));
                let to = self.write_from(i.a, i.a);
                // test c, c; cmovz to, b
                self.pair(true, &[0x85], c, c);
                self.pair(true, &[0x0f, 0x44], to, b);
            }
            Op::Jmp => {
                self.write_shared();
                self.jump_to(&[0xe9], i.a);
            }
            Op::Jz | Op::Jnz => {
                let b = self.read(i.b);
                self.pair(true, &[0x85], b, b);
                self.write_shared();
                self.jump_to(&[0x0f, if i.op == Op::Jz { 0x84 } else { 0x85 }], i.a);
            }
            Op::JEq => self.compare_jump(0x84, i),
            Op::JNe => self.compare_jump(0x85, i),
            Op::JUlt => self.compare_jump(0x82, i),
            Op::JUge => self.compare_jump(0x83, i),
            Op::JHit => {
                self.write_shared();
                // cmp qword [r13 + HIT], 0
                self.bytes(&[0x49, 0x83, 0xbd]);
                self.imm32(HIT);
                self.bytes(&[0]);
                self.jump_to(&[0x0f, 0x85], i.a);
            }
            Op::Apply => {
                self.key(&program.tables[i.a as usize].key);
                self.write_all();
                self.call(apply as *const () as usize, i.a);
                self.bytes(&[0x48, 0x85, 0xc0, 0x74, 2, 0xff, 0xd0]);
            }
            Op::Dispatch => {
                self.write_all();
                self.call(dispatch as *const () as usize, i.a);
                self.bytes(&[0xff, 0xe0]);
            }
            Op::Ret => {
                self.write_shared();
                self.bytes(&[0x48, 0x83, 0xc4, 0x08, 0xc3]);
            }
            Op::End => {
                self.write_shared();
                self.jump_out();
            }
            Op::RegLoad if program.register_limbs[i.c as usize] == 1 => {
                // Out of bounds, the slot keeps its value.
                let to = self.write_from(i.a, i.a);
                self.cell(REGISTERS, i.c, info.registers[i.c as usize].size, i.b, 0, |a| {
                    // mov rax, [rcx + rax * 8]
                    a.bytes(&[0x48, 0x8b, 0x04, 0xc1]);
                    a.move_register(to, RAX);
                });
            }
            Op::RegStore if program.register_limbs[i.a as usize] == 1 => {
                self.copy(RDX, i.c);
                self.cell(REGISTERS, i.a, info.registers[i.a as usize].size, i.b, 0, |a| {
                    // mov [rcx + rax * 8], rdx
                    a.bytes(&[0x48, 0x89, 0x14, 0xc1]);
                });
            }
            Op::Count => {
                self.cell(COUNTERS, i.a, info.counters[i.a as usize].size, i.b, 4, |a| {
                    // mov rdx, [r13 + LENGTH]; add [rcx + rax], rdx; add qword [rcx + rax + 8], 1
                    a.bytes(&[0x49, 0x8b, 0x95]);
                    a.imm32(LENGTH);
                    let lock: &[u8] = if a.many { &[0xf0] } else { &[] };
                    a.bytes(lock);
                    a.bytes(&[0x48, 0x01, 0x14, 0x01]);
                    a.bytes(lock);
                    a.bytes(&[0x48, 0x83, 0x44, 0x01, 0x08, 0x01]);
                });
            }
            Op::RemHdr | Op::AddHdr => self.validity(program, pc, i, in_action),
            Op::TraceState => {
                self.write_all();
                // sub qword [r13 + STATES], 1
                self.bytes(&[0x49, 0x83, 0xad]);
                self.imm32(STATES);
                self.bytes(&[1]);
                // No state is left: let the interpreter report it.
                self.bytes(&[0x0f, 0x89]);
                let at = self.out.len();
                self.imm32(0);
                self.call_step(pc, i, in_action);
                let distance = (self.out.len() - at - 4) as i32;
                self.out[at..at + 4].copy_from_slice(&distance.to_le_bytes());
            }
            Op::ParserEnd => {}
            Op::Lock | Op::Unlock if !self.many => {}
            Op::Extract => self.extract(program, pc, i, in_action),
            Op::Emit => self.emit(program, pc, i, in_action),
            Op::Verify | Op::Update => self.checksum(program, pc, i, in_action),
            _ => self.call_step(pc, i, in_action),
        }
    }

    /// The value in `rax` becomes a slot's.
    fn result(&mut self, slot: u32) {
        let to = self.write(slot);
        self.move_register(to, RAX);
    }

    /// Builds a table's key.
    fn key(&mut self, plan: &KeyPlan) {
        self.context(RCX, KEY);
        let mut parts = plan.parts.iter().peekable();
        while let Some(part) = parts.next() {
            self.key_part(RAX, part);
            while let Some(next) = parts.next_if(|p| p.word == part.word) {
                self.key_part(RDX, next);
                self.pair(true, &[0x0b], RAX, RDX);
            }
            // mov [rcx + word], rax
            self.bytes(&[0x48, 0x89, 0x81]);
            self.imm32(part.word as i32 * 8);
        }
    }

    fn key_part(&mut self, reg: u8, part: &KeyPart) {
        self.copy(reg, part.slot);
        if !part.whole {
            self.set(RSI, part.mask);
            self.pair(true, &[0x23], reg, RSI);
        }
        if part.shift > 0 {
            self.shift(true, 4, reg, part.shift as u8);
        }
    }

    /// Extracts a header of fixed length. Near the packet's end, where eight bytes cannot be read
    /// at once, the interpreter does it.
    pub(super) fn extract(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let h = &program.headers[i.a as usize];
        let crosses = |p: &Piece| p.pos % 8 + p.width > 64;
        if h.vl.is_some() || !h.siblings.is_empty() || h.before.iter().any(crosses) {
            return self.call_step(pc, i, in_action);
        }
        self.write_all();
        // rcx: the packet; rax: bytes taken; eight bytes are read even for the last field.
        self.context(RCX, PACKET);
        self.bytes(&[0x48, 0x8b, 0x81]);
        self.imm32(TAKEN);
        // lea rsi, [rax + bytes + 8]; cmp rsi, [r13 + DATA_LENGTH]
        self.bytes(&[0x48, 0x8d, 0xb0]);
        self.imm32(h.fixed_bytes as i32 + 8);
        self.bytes(&[0x49, 0x3b, 0xb5]);
        self.imm32(DATA_LENGTH);
        let mut slow_end = 0;
        self.skip_far(0x86, |a| {
            a.call_step(pc, i, in_action);
            a.bytes(&[0xe9]);
            slow_end = a.out.len();
            a.imm32(0);
        });
        // rdx = data + taken; packet.taken += bytes
        self.context(RDX, DATA);
        self.bytes(&[0x48, 0x01, 0xc2, 0x48, 0x81, 0x81]);
        self.imm32(TAKEN);
        self.imm32(h.fixed_bytes as i32);
        for p in &h.before {
            let (at, shift) = ((p.pos / 8) as i32, (p.pos % 8) as u8);
            match (p.width, shift) {
                (0, _) => continue,
                (8, 0) => {
                    self.bytes(&[0x0f, 0xb6, 0x82]);
                    self.imm32(at);
                }
                (16, 0) => {
                    self.bytes(&[0x0f, 0xb7, 0x82]);
                    self.imm32(at);
                    self.bytes(&[0x66, 0xc1, 0xc0, 0x08]);
                }
                (32, 0) => {
                    self.bytes(&[0x8b, 0x82]);
                    self.imm32(at);
                    self.bytes(&[0x0f, 0xc8]);
                }
                (width, shift) => {
                    self.bytes(&[0x48, 0x8b, 0x82]);
                    self.imm32(at);
                    self.bytes(&[0x48, 0x0f, 0xc8]);
                    if shift > 0 {
                        self.bytes(&[0x48, 0xc1, 0xe0, shift]);
                    }
                    if width < 64 {
                        self.bytes(&[0x48, 0xc1, 0xe8, 64 - width as u8]);
                    }
                }
            }
            self.slot(&[0x89], RAX, p.slot);
        }
        self.slot(&[0xc7], 0, h.valid());
        self.imm32(1);
        let distance = (self.out.len() - slow_end - 4) as i32;
        self.out[slow_end..slow_end + 4].copy_from_slice(&distance.to_le_bytes());
    }

    /// Writes a header, in words of eight bytes. The next header overwrites what the last word has
    /// too much.
    fn emit(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let h = &program.headers[i.a as usize];
        if h.words.is_empty() {
            return self.call_step(pc, i, in_action);
        }
        self.write_shared();
        // cmp qword [valid], 0
        self.slot(&[0x83], 7, h.valid());
        self.bytes(&[0]);
        self.skip_far(0x84, |a| {
            // rdx = head + written; written += bytes
            a.context(RSI, PACKET);
            a.bytes(&[0x48, 0x8b, 0x96]);
            a.imm32(WRITTEN);
            a.bytes(&[0x48, 0x81, 0x86]);
            a.imm32(WRITTEN);
            a.imm32(h.fixed_bytes as i32);
            a.bytes(&[0x49, 0x03, 0x95]);
            a.imm32(HEAD);
            for (word, terms) in h.words.iter().enumerate() {
                for (at, (slot, shift)) in terms.iter().enumerate() {
                    let reg = if at == 0 { RAX } else { RCX };
                    a.slot(&[0x8b], reg, *slot);
                    match shift {
                        0 => {}
                        1.. => a.shift(true, 4, reg, *shift as u8),
                        _ => a.shift(true, 5, reg, shift.unsigned_abs()),
                    }
                    if at > 0 {
                        a.pair(true, &[0x0b], RAX, RCX);
                    }
                }
                if terms.is_empty() {
                    a.set(RAX, 0);
                }
                // bswap rax; mov [rdx + 8 * word], rax
                a.bytes(&[0x48, 0x0f, 0xc8, 0x48, 0x89, 0x82]);
                a.imm32(word as i32 * 8);
            }
        });
    }

    /// An Internet checksum over aligned fields.
    pub(super) fn checksum(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let sum = &program.checksums[i.a as usize];
        let calc = sum.calculation.map(|c| &program.calculations[c as usize]);
        let groups = match calc.and_then(|c| c.sum.as_ref().filter(|_| !c.payload)) {
            Some(groups) if sum.target.width == 16 => groups,
            _ => return self.call_step(pc, i, in_action),
        };
        self.write_all();
        self.bytes(&[0x31, 0xc0]);
        for g in groups {
            let terms = |a: &mut Self| {
                if g.constant != 0 {
                    a.bytes(&[0x48, 0xb9]);
                    a.bytes(&g.constant.to_le_bytes());
                    a.bytes(&[0x48, 0x01, 0xc8]);
                }
                for (slot, shift) in &g.terms {
                    // rcx = v; rdx = v >> 32; ecx = v: add both halves separately.
                    a.slot(&[0x8b], RCX, *slot);
                    a.bytes(&[0x48, 0x89, 0xca, 0x48, 0xc1, 0xea, 32, 0x89, 0xc9, 0x48, 0x01, 0xd1]);
                    if *shift > 0 {
                        a.bytes(&[0x48, 0xc1, 0xe1, *shift as u8]);
                    }
                    a.bytes(&[0x48, 0x01, 0xc8]);
                }
            };
            match g.valid {
                Some(valid) => {
                    // cmp qword [valid], 0
                    self.slot(&[0x83], 7, valid);
                    self.bytes(&[0]);
                    self.skip_far(0x84, terms);
                }
                None => terms(self),
            }
        }
        // Fold 64 bits to 33 and less, then 16 twice and once more: mov rcx, rax; shr rcx, n; cut; add.
        self.bytes(&[0x48, 0x89, 0xc1, 0x48, 0xc1, 0xe9, 32, 0x89, 0xc0, 0x48, 0x01, 0xc8]);
        for _ in 0..3 {
            self.bytes(&[0x48, 0x89, 0xc1, 0x48, 0xc1, 0xe9, 16, 0x0f, 0xb7, 0xc0, 0x48, 0x01, 0xc8]);
        }
        // not eax; movzx eax, ax
        self.bytes(&[0xf7, 0xd0, 0x0f, 0xb7, 0xc0]);
        if i.op == Op::Update {
            self.result(sum.target.slot);
            return;
        }
        self.slot(&[0x3b], RAX, sum.target.slot);
        self.skip(0x74, |a| {
            a.slot(&[0xc7], 0, program.special.bad_sum);
            a.imm32(1);
        });
    }

    /// Tests or changes the validity of a header known at compile time.
    pub(super) fn validity(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let number = self.constants.get(&i.a).copied().unwrap_or(u64::MAX);
        let Some(h) = usize::try_from(number).ok().and_then(|n| program.headers.get(n)) else {
            return self.call_step(pc, i, in_action);
        };
        if h.metadata || i.op == Op::RemHdr && h.vl.is_some() || i.op == Op::AddHdr && i.w == 1 {
            return self.call_step(pc, i, in_action);
        }
        self.write_all();
        self.load(RAX, h.valid());
        if i.op == Op::AddHdr {
            self.bytes(&[0x48, 0x85, 0xc0]);
            self.skip(0x75, |a| a.call_step(pc, i, in_action));
            return;
        }
        // imul rax, rax, bytes; sub [length], rax; mov qword [valid], 0
        self.bytes(&[0x48, 0x69, 0xc0]);
        self.imm32(h.fixed_bytes as i32);
        self.slot(&[0x29], RAX, program.special.length);
        self.slot(&[0xc7], 0, h.valid());
        self.imm32(0);
    }
}
