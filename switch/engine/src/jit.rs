//! Native code for x86-64 Linux: each bytecode instruction becomes a few machine instructions.
//!
//! `rbx` contains the frame's address, `r13` that of a [`Context`]. Slots stay in registers within
//! straight-line code ([`registers`]). Arithmetic, jumps, header
//! validity, registers and counters are inlined; all other instructions call [`step`], which
//! executes one instruction like the interpreter. Actions of tables are native subroutines. Where
//! native code is impossible (another machine, no executable memory), the interpreter runs
//! everything.

mod assembler;
mod hold;
mod registers;
mod select;

use std::collections::{HashMap, HashSet};

use crate::bits::ones;
use crate::code::{Ins, Op};
use crate::layout::Piece;
use crate::program::{Code, Program};
use crate::runtime::Runtime;
use crate::vm::{Flow, MAX_STATES, Packet, Vm};

/// State of a run for native code and its helpers. Native code reads the first fields at fixed
/// offsets.
#[repr(C)]
struct Context {
    hit: u64,
    local: u64,
    /// Number of parser states that may still be entered.
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
    /// Where the key of a table is built.
    key: *mut u64,
    /// Where the deparser writes headers.
    head: *mut u8,
    vm: *mut Vm,
    program: *const Program,
    code: *const Code,
    rt: *const Runtime,
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
const KEY: i32 = 72;
const HEAD: i32 = 80;
/// Offset of the number of bytes that the parser has taken.
const TAKEN: i32 = std::mem::offset_of!(PacketParts, taken) as i32;
/// Offset of the number of bytes of headers that the deparser has written.
const WRITTEN: i32 = std::mem::offset_of!(PacketParts, written) as i32;

/// A packet without its lifetime.
type PacketParts = Packet<'static>;

/// Compiled code of one program.
pub(crate) struct Native {
    memory: Memory,
    /// Start of each instruction's code.
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
        // SAFETY: an anonymous mapping of our own, checked for failure; it is written within its
        // length, and then made executable and no longer writable.
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
        // SAFETY: the mapping is ours and no code in it runs: running it requires the program to be
        // alive.
        unsafe {
            libc::munmap(self.at.cast(), self.len);
        }
    }
}

/// Executes one instruction like the interpreter. Returns 0: continue; 1: the parser failed; 2:
/// drop the packet.
extern "sysv64" fn step(context: *mut Context, pc: u32) -> u32 {
    // SAFETY: `run` made the context from live references that it does not use while native code
    // runs; native code calls this without other borrows.
    unsafe {
        let c = &mut *context;
        let i = (&(*c.code).ins)[pc as usize];
        match (*c.vm).step(&*c.program, &*c.code, &*c.rt, &mut *c.packet, i) {
            Flow::Next => 0,
            Flow::Failed => 1,
            Flow::Stop => 2,
        }
    }
}

/// Looks up a table, whose key native code has built; returns the address of the action's code, 0 for none.
extern "sysv64" fn apply(context: *mut Context, table: u32) -> usize {
    // SAFETY: as in `step`.
    unsafe {
        let c = &mut *context;
        let (hit, action) = (*c.vm).look_up(&*c.program, &*c.rt, &*c.packet, table);
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

/// The address after a table with action-dependent successors.
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
        rt: &Runtime,
        packet: &mut Packet,
        start: u32,
    ) {
        // Native code counts parser states; if `step` has to enter one, none is left.
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
            key: vm.key.as_mut_ptr(),
            head: vm.head.as_mut_ptr(),
            vm,
            program,
            code,
            rt,
            packet: std::ptr::from_mut(packet).cast(),
            native: self,
        };
        // SAFETY: `compile` generated the code at `enter` for this program. It takes the frame, the
        // context and an address within the code, follows the System V convention, and only
        // accesses slots of the frame that the program was compiled with and data in the context.
        // The references in the context outlive the call and have no other user during it.
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
const RSI: u8 = 6;

use registers::{Registers, Temporaries};

struct Assembler<'c> {
    out: Vec<u8>,
    /// Positions of 32-bit distances to instructions.
    fixups: Vec<(usize, u32)>,
    /// Positions of 32-bit distances to the exit.
    exits: Vec<usize>,
    constants: HashMap<u32, u64>,
    registers: Registers,
    temporaries: Temporaries,
    /// The current instruction.
    pc: u32,
    code: &'c Code,
    /// Whether other threads run packets with the same registers and counters.
    many: bool,
}

/// Compiles a program's code; `None` if native code is impossible here.
///
/// With `many` the code shares registers and counters with other threads.
pub(crate) fn compile(program: &Program, code: &Code, many: bool) -> Option<Native> {
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
        registers: Registers::default(),
        temporaries: Temporaries::find(
            &code.ins,
            program.phv_slots..code.slots,
            &program.register_limbs,
            &targets,
        ),
        pc: 0,
        code,
        many,
    };
    // enter(frame, context, address): push rbx, rbp, r12 to r15; sub rsp, 8; mov rbx, rdi;
    // mov r13, rsi; jmp rdx
    a.bytes(&[0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x48, 0x83, 0xec, 0x08]);
    a.bytes(&[0x48, 0x89, 0xfb, 0x49, 0x89, 0xf5, 0xff, 0xe2]);
    let out = a.out.len();
    // add rsp, 8; pop r15 to r12, rbp, rbx; ret
    a.bytes(&[0x48, 0x83, 0xc4, 0x08, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
    let mut starts = Vec::with_capacity(code.ins.len());
    let mut in_action = false;
    for (pc, i) in code.ins.iter().enumerate() {
        let pc = pc as u32;
        a.pc = pc;
        if targets.contains(&pc) {
            a.write_shared();
            a.forget();
        }
        starts.push(a.out.len() as u32);
        if actions.contains(&pc) {
            in_action = true;
            // sub rsp, 8: helpers need an aligned stack.
            a.bytes(&[0x48, 0x83, 0xec, 0x08]);
        }
        a.instruction(program, pc, *i, in_action);
        a.free_read();
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

#[cfg(test)]
mod tests;
