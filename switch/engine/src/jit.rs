//! Native code for x86-64 Linux: each instruction of the bytecode becomes a few of the machine's.
//!
//! The frame's address stays in `rbx`, that of a [`Context`] in `r13`. Arithmetic, jumps, header validity,
//! registers and counters are done in place; everything else is a call of [`step`], which does what the
//! interpreter does with that one instruction. Actions of tables are native subroutines. Where there is no
//! native code (another machine, no executable memory) the interpreter runs all.

use std::collections::{HashMap, HashSet};

use crate::bits::ones;
use crate::code::{Ins, Op};
use crate::layout::Piece;
use crate::program::{Code, Program};
use crate::runtime::Runtime;
use crate::vm::{Flow, MAX_STATES, Packet, Vm};

/// What native code and its helpers know of a run. The first fields are read by native code at fixed places.
#[repr(C)]
struct Context {
    hit: u64,
    local: u64,
    /// Parser states that may still be entered.
    states: u64,
    ingress_length: u64,
    /// Addresses of the register arrays' cells.
    registers: *const usize,
    /// Addresses of the counter arrays' cells.
    counters: *const usize,
    /// The packet, and its bytes.
    packet: *mut PacketParts,
    data: *const u8,
    length: usize,
    vm: *mut Vm,
    program: *const Program,
    code: *const Code,
    rt: *mut Runtime,
    native: *const Native,
}

const HIT: i32 = 0;
const STATES: i32 = 16;
const LENGTH: i32 = 24;
const REGISTERS: i32 = 32;
const COUNTERS: i32 = 40;
const PACKET: i32 = 48;
const DATA: i32 = 56;
const DATA_LENGTH: i32 = 64;
/// Where a packet keeps what the parser took.
const TAKEN: i32 = std::mem::offset_of!(PacketParts, taken) as i32;

/// A packet without its lifetime.
type PacketParts = Packet<'static>;

/// Compiled code of one program.
pub(crate) struct Native {
    memory: Memory,
    /// Where each instruction's code begins.
    starts: Vec<u32>,
    enter: usize,
}

/// Executable memory.
struct Memory {
    at: *mut u8,
    len: usize,
}

// SAFETY: the memory is not written after it has been made executable.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(code: &[u8]) -> Option<Memory> {
        let len = code.len().next_multiple_of(4096);
        // SAFETY: an anonymous mapping of our own, checked for failure; it is written within its length and
        // then made executable and no longer writable.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at =
                libc::mmap(std::ptr::null_mut(), len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            if at == libc::MAP_FAILED {
                return None;
            }
            let memory = Memory { at: at.cast(), len };
            std::ptr::copy_nonoverlapping(code.as_ptr(), memory.at, code.len());
            (libc::mprotect(at, len, libc::PROT_READ | libc::PROT_EXEC) == 0).then_some(memory)
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing runs in it: whoever runs it holds the program.
        unsafe {
            libc::munmap(self.at.cast(), self.len);
        }
    }
}

/// Does one instruction as the interpreter does. 0: go on; 1: the parser failed; 2: the packet is given up.
extern "sysv64" fn step(context: *mut Context, pc: u32) -> u32 {
    // SAFETY: `run` made the context of live references that it does not use while native code runs; native
    // code calls this with nothing else borrowed.
    unsafe {
        let c = &mut *context;
        let i = (&(*c.code).ins)[pc as usize];
        match (*c.vm).step(&*c.program, &*c.code, &mut *c.rt, &mut *c.packet, i) {
            Flow::Next => 0,
            Flow::Failed => 1,
            Flow::Stop => 2,
        }
    }
}

/// Looks a table up; the address of the action's code, 0 for none.
extern "sysv64" fn apply(context: *mut Context, table: u32) -> usize {
    // SAFETY: as in `step`.
    unsafe {
        let c = &mut *context;
        let (hit, action) = (*c.vm).apply(&*c.program, &mut *c.rt, &*c.packet, table);
        c.hit = hit.into();
        c.local = u64::MAX;
        match action {
            None => 0,
            Some((action, local)) => {
                c.local = local.into();
                (*c.native).address((&(*c.code).actions)[action as usize])
            }
        }
    }
}

/// Where to go on after a table whose actions go different ways.
extern "sysv64" fn dispatch(context: *mut Context, index: u32) -> usize {
    // SAFETY: as in `step`.
    unsafe {
        let c = &*context;
        let to = &(&(*c.code).dispatch)[index as usize];
        let at = usize::try_from(c.local).unwrap_or(usize::MAX).min(to.len() - 1);
        (*c.native).address(to[at])
    }
}

impl Native {
    fn address(&self, pc: u32) -> usize {
        self.memory.at as usize + self.starts[pc as usize] as usize
    }

    /// Runs from an instruction to the end of its part, like `Vm::run`.
    pub(crate) fn run(
        &self,
        vm: &mut Vm,
        program: &Program,
        code: &Code,
        rt: &mut Runtime,
        packet: &mut Packet,
        start: u32,
    ) {
        // The count of states is kept here; should `step` be asked for one it is to say that there are none left.
        vm.begin_native();
        let (registers, counters) = (rt.register_cells.as_ptr(), rt.counter_cells.as_ptr());
        let mut context = Context {
            hit: 0,
            local: 0,
            states: MAX_STATES.into(),
            ingress_length: packet.ingress_length,
            registers,
            counters,
            data: packet.data.as_ptr(),
            length: packet.data.len(),
            vm,
            program,
            code,
            rt,
            packet: std::ptr::from_mut(packet).cast(),
            native: self,
        };
        // SAFETY: the code at `enter` was generated by `compile` for this program: it takes the frame, the
        // context and an address within the code, keeps to the System V convention, and touches only slots of
        // the frame that the program was compiled with and what the context points to. The references in the
        // context outlive the call and are used by nobody else during it.
        unsafe {
            let enter: extern "sysv64" fn(*mut u64, *mut Context, usize) = std::mem::transmute(self.enter);
            let frame = (*context.vm).frame.as_mut_ptr();
            enter(frame, &mut context, self.address(start));
        }
    }
}

/// Machine registers by number.
const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;

struct Assembler<'c> {
    out: Vec<u8>,
    /// Places of 32-bit distances to instructions.
    fixups: Vec<(usize, u32)>,
    /// Places of 32-bit distances to the way out.
    exits: Vec<usize>,
    constants: HashMap<u32, u64>,
    /// The slot whose value is in `rax`, if one is.
    held: Option<u32>,
    code: &'c Code,
}

impl Assembler<'_> {
    fn bytes(&mut self, b: &[u8]) {
        self.out.extend_from_slice(b);
    }

    fn imm32(&mut self, n: i32) {
        self.bytes(&n.to_le_bytes());
    }

    /// An instruction with a register and a slot of the frame.
    fn slot(&mut self, opcode: &[u8], reg: u8, slot: u32) {
        self.bytes(&[0x48]);
        self.bytes(opcode);
        self.bytes(&[0x83 | reg << 3]);
        self.imm32((slot * 8) as i32);
    }

    /// A constant that a sign-extended 32-bit immediate can hold.
    fn immediate(&self, slot: u32) -> Option<i32> {
        i32::try_from(*self.constants.get(&slot)? as i64).ok()
    }

    fn load(&mut self, reg: u8, slot: u32) {
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

    fn store(&mut self, slot: u32) {
        self.slot(&[0x89], RAX, slot);
        self.held = Some(slot);
    }

    /// `rax = rax op slot`, by the opcode with memory and the number of the form with an immediate.
    fn alu(&mut self, opcode: u8, digit: u8, slot: u32) {
        match self.immediate(slot) {
            Some(n) => {
                self.bytes(&[0x48, 0x81, 0xc0 | digit << 3]);
                self.imm32(n);
            }
            None => self.slot(&[opcode], RAX, slot),
        }
    }

    /// Cuts `rax` to its lowest bits.
    fn cut(&mut self, w: u8) {
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

    fn jump_to(&mut self, opcode: &[u8], pc: u32) {
        self.bytes(opcode);
        self.fixups.push((self.out.len(), pc));
        self.imm32(0);
    }

    fn jump_out(&mut self) {
        self.bytes(&[0xe9]);
        self.exits.push(self.out.len());
        self.imm32(0);
    }

    /// A short conditional jump forward over what `over` writes.
    fn skip(&mut self, opcode: u8, over: impl FnOnce(&mut Self)) {
        self.bytes(&[opcode, 0]);
        let at = self.out.len();
        over(self);
        let distance = self.out.len() - at;
        debug_assert!(distance < 128);
        self.out[at - 1] = distance as u8;
    }

    fn call(&mut self, function: usize, argument: u32) {
        self.bytes(&[0x4c, 0x89, 0xef, 0xbe]);
        self.bytes(&argument.to_le_bytes());
        self.bytes(&[0x48, 0xb8]);
        self.bytes(&(function as u64).to_le_bytes());
        self.bytes(&[0xff, 0xd0]);
        self.held = None;
    }

    /// A call of `step`, and what becomes of what it says.
    fn call_step(&mut self, pc: u32, i: Ins, in_action: bool) {
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

    fn binary(&mut self, opcode: u8, digit: u8, i: Ins) {
        self.load(RAX, i.b);
        self.alu(opcode, digit, i.c);
        self.cut(i.w);
        self.store(i.a);
    }

    fn compare(&mut self, set: u8, i: Ins) {
        self.load(RAX, i.b);
        self.alu(0x3b, 7, i.c);
        self.bytes(&[0x0f, set, 0xc0, 0x0f, 0xb6, 0xc0]);
        self.store(i.a);
    }

    fn compare_jump(&mut self, jump: u8, i: Ins) {
        self.load(RAX, i.b);
        self.alu(0x3b, 7, i.c);
        self.jump_to(&[0x0f, jump], i.a);
    }

    /// `rcx` = the address of an array's cells, `rax` = the index times 2^shift; over all that follows if the
    /// index is past the end.
    fn cell(
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

    fn instruction(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let info = &program.info;
        match i.op {
            Op::Mov => {
                if i.w == 64
                    && self.held != Some(i.b)
                    && let Some(n) = self.immediate(i.b)
                {
                    self.slot(&[0xc7], 0, i.a);
                    self.imm32(n);
                    self.held = self.held.filter(|h| *h != i.a);
                    return;
                }
                self.load(RAX, i.b);
                self.cut(i.w);
                self.store(i.a);
            }
            Op::Add => self.binary(0x03, 0, i),
            Op::Sub => self.binary(0x2b, 5, i),
            Op::And => self.binary(0x23, 4, Ins { w: 64, ..i }),
            Op::Or => self.binary(0x0b, 1, Ins { w: 64, ..i }),
            Op::Xor => self.binary(0x33, 6, Ins { w: 64, ..i }),
            Op::Mul => {
                self.load(RAX, i.b);
                self.slot(&[0x0f, 0xaf], RAX, i.c);
                self.cut(i.w);
                self.store(i.a);
            }
            Op::Not => {
                self.load(RAX, i.b);
                self.bytes(&[0x48, 0xf7, 0xd0]);
                self.cut(i.w);
                self.store(i.a);
            }
            Op::Shl | Op::Shr => {
                self.load(RCX, i.c);
                self.load(RAX, i.b);
                // 0 in rdx for distances of 64 or more.
                self.bytes(&[0x31, 0xd2]);
                self.bytes(&[0x48, 0xd3, if i.op == Op::Shl { 0xe0 } else { 0xe8 }]);
                self.bytes(&[0x48, 0x83, 0xf9, 63, 0x48, 0x0f, 0x47, 0xc2]);
                self.cut(i.w);
                self.store(i.a);
            }
            Op::ShlI | Op::ShrI | Op::SarI => {
                self.load(RAX, i.b);
                let form = match i.op {
                    Op::ShlI => 0xe0,
                    Op::ShrI => 0xe8,
                    _ => 0xf8,
                };
                self.bytes(&[0x48, 0xc1, form, i.x as u8]);
                self.cut(i.w);
                self.store(i.a);
            }
            Op::Rotl if i.w == 32 => {
                self.load(RAX, i.b);
                self.bytes(&[0xc1, 0xc0, i.x as u8]);
                self.store(i.a);
            }
            Op::Rotl if i.w == 64 => {
                self.load(RAX, i.b);
                self.bytes(&[0x48, 0xc1, 0xc0, i.x as u8]);
                self.store(i.a);
            }
            Op::Sext => {
                let s = 64 - i.x as u8;
                self.load(RAX, i.b);
                self.bytes(&[0x48, 0xc1, 0xe0, s, 0x48, 0xc1, 0xf8, s]);
                self.cut(i.w);
                self.store(i.a);
            }
            Op::Eq => self.compare(0x94, i),
            Op::Ne => self.compare(0x95, i),
            Op::Ult => self.compare(0x92, i),
            Op::Ule => self.compare(0x96, i),
            Op::Slt => self.compare(0x9c, i),
            Op::Sle => self.compare(0x9e, i),
            Op::UMin => {
                self.load(RAX, i.b);
                self.load(RCX, i.c);
                // cmp rcx, rax; cmovb rax, rcx
                self.bytes(&[0x48, 0x39, 0xc1, 0x48, 0x0f, 0x42, 0xc1]);
                self.cut(i.w);
                self.store(i.a);
            }
            Op::MovZ => {
                self.load(RAX, i.c);
                self.held = None;
                self.bytes(&[0x48, 0x85, 0xc0]);
                self.skip(0x75, |a| {
                    a.load(RAX, i.b);
                    a.store(i.a);
                });
                self.held = None;
            }
            Op::Jmp => self.jump_to(&[0xe9], i.a),
            Op::Jz | Op::Jnz => {
                self.load(RAX, i.b);
                self.bytes(&[0x48, 0x85, 0xc0]);
                self.jump_to(&[0x0f, if i.op == Op::Jz { 0x84 } else { 0x85 }], i.a);
            }
            Op::JEq => self.compare_jump(0x84, i),
            Op::JNe => self.compare_jump(0x85, i),
            Op::JUlt => self.compare_jump(0x82, i),
            Op::JUge => self.compare_jump(0x83, i),
            Op::JHit => {
                // cmp qword [r13 + HIT], 0
                self.bytes(&[0x49, 0x83, 0xbd]);
                self.imm32(HIT);
                self.bytes(&[0]);
                self.jump_to(&[0x0f, 0x85], i.a);
            }
            Op::Apply => {
                self.call(apply as *const () as usize, i.a);
                self.bytes(&[0x48, 0x85, 0xc0, 0x74, 2, 0xff, 0xd0]);
            }
            Op::Dispatch => {
                self.call(dispatch as *const () as usize, i.a);
                self.bytes(&[0xff, 0xe0]);
            }
            Op::Ret => self.bytes(&[0x48, 0x83, 0xc4, 0x08, 0xc3]),
            Op::End => self.jump_out(),
            Op::RegLoad if program.register_limbs[i.c as usize] == 1 => {
                self.cell(REGISTERS, i.c, info.registers[i.c as usize].size, i.b, 0, |a| {
                    // mov rax, [rcx + rax * 8]
                    a.bytes(&[0x48, 0x8b, 0x04, 0xc1]);
                    a.store(i.a);
                });
            }
            Op::RegStore if program.register_limbs[i.a as usize] == 1 => {
                self.cell(REGISTERS, i.a, info.registers[i.a as usize].size, i.b, 0, |a| {
                    // mov rdx, slot; mov [rcx + rax * 8], rdx
                    a.slot(&[0x8b], 2, i.c);
                    a.bytes(&[0x48, 0x89, 0x14, 0xc1]);
                });
            }
            Op::Count => {
                self.cell(COUNTERS, i.a, info.counters[i.a as usize].size, i.b, 4, |a| {
                    // mov rdx, [r13 + LENGTH]; add [rcx + rax], rdx; add qword [rcx + rax + 8], 1
                    a.bytes(&[0x49, 0x8b, 0x95]);
                    a.imm32(LENGTH);
                    a.bytes(&[0x48, 0x01, 0x14, 0x01, 0x48, 0x83, 0x44, 0x01, 0x08, 0x01]);
                });
            }
            Op::RemHdr | Op::AddHdr => self.validity(program, pc, i, in_action),
            Op::TraceState => {
                // sub qword [r13 + STATES], 1
                self.bytes(&[0x49, 0x83, 0xad]);
                self.imm32(STATES);
                self.bytes(&[1]);
                self.held = None;
                // Out of them: the interpreter's word for it.
                self.bytes(&[0x0f, 0x89]);
                let at = self.out.len();
                self.imm32(0);
                self.call_step(pc, i, in_action);
                let distance = (self.out.len() - at - 4) as i32;
                self.out[at..at + 4].copy_from_slice(&distance.to_le_bytes());
                self.held = None;
            }
            Op::ParserEnd => {}
            Op::Extract => self.extract(program, pc, i, in_action),
            Op::Verify | Op::Update => self.checksum(program, pc, i, in_action),
            _ => self.call_step(pc, i, in_action),
        }
    }

    /// `reg = [r13 + at]`
    fn context(&mut self, reg: u8, at: i32) {
        self.bytes(&[0x49, 0x8b, 0x85 | reg << 3]);
        self.imm32(at);
    }

    /// A long conditional jump forward over what `over` writes.
    fn skip_far(&mut self, opcode: u8, over: impl FnOnce(&mut Self)) {
        self.bytes(&[0x0f, opcode]);
        let at = self.out.len();
        self.imm32(0);
        over(self);
        let distance = (self.out.len() - at - 4) as i32;
        self.out[at..at + 4].copy_from_slice(&distance.to_le_bytes());
    }

    /// A header of fixed length from the packet. Near the packet's end, where eight bytes cannot be read at
    /// once, the interpreter does it.
    fn extract(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let h = &program.headers[i.a as usize];
        let crosses = |p: &Piece| p.pos % 8 + p.width > 64;
        if h.vl.is_some() || !h.siblings.is_empty() || h.before.iter().any(crosses) {
            return self.call_step(pc, i, in_action);
        }
        self.held = None;
        // rcx: the packet; rax: bytes taken; beyond the last field eight bytes are read.
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
        self.held = None;
    }

    /// An Internet checksum over fields that lie evenly.
    fn checksum(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let sum = &program.checksums[i.a as usize];
        let calc = sum.calculation.map(|c| &program.calculations[c as usize]);
        let groups = match calc.and_then(|c| c.sum.as_ref().filter(|_| !c.payload)) {
            Some(groups) if sum.target.width == 16 => groups,
            _ => return self.call_step(pc, i, in_action),
        };
        self.held = None;
        self.bytes(&[0x31, 0xc0]);
        for g in groups {
            let terms = |a: &mut Self| {
                if g.constant != 0 {
                    a.bytes(&[0x48, 0xb9]);
                    a.bytes(&g.constant.to_le_bytes());
                    a.bytes(&[0x48, 0x01, 0xc8]);
                }
                for (slot, shift) in &g.terms {
                    // rcx = v; rdx = v >> 32; ecx = v: both halves count for themselves.
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
            self.store(sum.target.slot);
            return;
        }
        self.slot(&[0x3b], RAX, sum.target.slot);
        self.skip(0x74, |a| {
            a.slot(&[0xc7], 0, program.special.bad_sum);
            a.imm32(1);
        });
        self.held = None;
    }

    /// Validity of a header that is known now.
    fn validity(&mut self, program: &Program, pc: u32, i: Ins, in_action: bool) {
        let number = self.constants.get(&i.a).copied().unwrap_or(u64::MAX);
        let Some(h) = usize::try_from(number).ok().and_then(|n| program.headers.get(n)) else {
            return self.call_step(pc, i, in_action);
        };
        if h.metadata || i.op == Op::RemHdr && h.vl.is_some() || i.op == Op::AddHdr && i.w == 1 {
            return self.call_step(pc, i, in_action);
        }
        self.load(RAX, h.valid());
        if i.op == Op::AddHdr {
            self.held = None;
            self.bytes(&[0x48, 0x85, 0xc0]);
            self.skip(0x75, |a| a.call_step(pc, i, in_action));
            self.held = None;
            return;
        }
        // imul rax, rax, bytes; sub [length], rax; mov qword [valid], 0
        self.bytes(&[0x48, 0x69, 0xc0]);
        self.imm32(h.fixed_bytes as i32);
        self.slot(&[0x29], RAX, program.special.length);
        self.slot(&[0xc7], 0, h.valid());
        self.imm32(0);
        self.held = None;
    }
}

/// Whether an instruction can end more than itself.
fn can_stop(op: Op) -> bool {
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

/// Compiles a program's code. `None` if there can be no native code here.
pub(crate) fn compile(program: &Program, code: &Code) -> Option<Native> {
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        return None;
    }
    let mut targets: HashSet<u32> = code.ins.iter().filter(|i| i.jumps()).map(|i| i.a).collect();
    targets.extend(code.dispatch.iter().flatten());
    targets.extend([code.parser, code.parser_end, code.ingress, code.egress, code.deparser]);
    let actions: HashSet<u32> = code.actions.iter().copied().collect();
    targets.extend(&actions);
    let mut a = Assembler {
        out: Vec::with_capacity(code.ins.len() * 24),
        fixups: Vec::new(),
        exits: Vec::new(),
        constants: code.constants.iter().copied().collect(),
        held: None,
        code,
    };
    // enter(frame, context, address): push rbx; push r13; sub rsp, 8; mov rbx, rdi; mov r13, rsi; jmp rdx
    a.bytes(&[0x53, 0x41, 0x55, 0x48, 0x83, 0xec, 0x08, 0x48, 0x89, 0xfb, 0x49, 0x89, 0xf5, 0xff, 0xe2]);
    let out = a.out.len();
    // add rsp, 8; pop r13; pop rbx; ret
    a.bytes(&[0x48, 0x83, 0xc4, 0x08, 0x41, 0x5d, 0x5b, 0xc3]);
    let mut starts = Vec::with_capacity(code.ins.len());
    let mut in_action = false;
    for (pc, i) in code.ins.iter().enumerate() {
        let pc = pc as u32;
        if targets.contains(&pc) {
            a.held = None;
        }
        starts.push(a.out.len() as u32);
        if actions.contains(&pc) {
            in_action = true;
            // sub rsp, 8: helpers want the stack aligned.
            a.bytes(&[0x48, 0x83, 0xec, 0x08]);
        }
        a.instruction(program, pc, *i, in_action);
        if i.op == Op::Ret {
            in_action = false;
        }
    }
    for (at, pc) in &a.fixups {
        let distance = i64::from(starts[*pc as usize]) - (*at as i64 + 4);
        a.out[*at..at + 4].copy_from_slice(&i32::try_from(distance).ok()?.to_le_bytes());
    }
    for at in &a.exits {
        let distance = out as i64 - (*at as i64 + 4);
        a.out[*at..at + 4].copy_from_slice(&i32::try_from(distance).ok()?.to_le_bytes());
    }
    let memory = Memory::new(&a.out)?;
    let enter = memory.at as usize;
    Some(Native { memory, starts, enter })
}
