//! A filter as an XDP program: what it accepts goes to the socket, the rest on to the kernel.
//!
//! Each instruction of classic BPF becomes a few of eBPF. A load is preceded by a comparison with the end of the
//! frame, beyond which nothing matches, as in the kernel's own interpreter. Jumps only go forward, so the
//! verifier follows every path once for each of the few things that it knows about the frame there.
//!
//! Registers: r1 the context, r2 the frame (less a VLAN tag), r3 its end, r4 accumulator, r5 index, r0 and r6 for the moment.

use std::os::fd::RawFd;

use libc::{
    BPF_B, BPF_H, BPF_IND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_LD, BPF_LDX, BPF_MISC, BPF_W,
    sock_filter,
};

use crate::bpf::Instruction;
use crate::filter::program::Program;

/// The frame goes on to the kernel.
pub(super) const XDP_PASS: u32 = 2;

const REDIRECT_MAP: u32 = 51;
/// `ld_imm64` of a map, and of the first octet of its only value.
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
/// `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

const MOVE: u8 = 0xbf;
const MOVE_CONSTANT: u8 = 0xb7;
const ADD: u8 = 0x0f;
const ADD_CONSTANT: u8 = 0x07;
const AND_CONSTANT: u8 = 0x57;
const SHIFT_LEFT_CONSTANT: u8 = 0x67;
const SHIFT_RIGHT: u8 = 0x7f;
const SHIFT_RIGHT_CONSTANT: u8 = 0x77;
const BIG_ENDIAN: u8 = 0xdc;
const LOAD_OCTET: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const LOAD_CONSTANT_64: u8 = 0x18;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const JUMP: u8 = 0x05;
/// A jump if the first register is greater than the second, as 64 bits.
const JUMP_GREATER: u8 = 0x2d;
/// Jumps on a register's lower 32 bits and a constant, as classic BPF has them.
const JUMP32: u8 = 0x06;
const EQUAL: u8 = 0x10;
const GREATER: u8 = 0x20;
const GREATER_EQUAL: u8 = 0x30;
const ANY_BIT: u8 = 0x40;
const NOT_EQUAL: u8 = 0x50;

/// Octets of a tag, and those that it may begin with (IEEE 802.1Q and 802.1ad).
const TAG: u32 = 4;
const TAGS: [u32; 2] = [0x8100, 0x88a8];

/// Where a jump leads.
#[derive(Clone, Copy)]
enum Target {
    /// The translation of this classic instruction.
    Classic(usize),
    Accept,
    Reject,
}

#[derive(Default)]
struct Translator {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Target)>,
}

impl Translator {
    fn emit(&mut self, code: u8, dst: u8, src: u8, offset: i16, constant: u32) {
        let [o0, o1] = offset.to_ne_bytes();
        let [c0, c1, c2, c3] = constant.to_ne_bytes();
        self.code.push([code, src << 4 | dst, o0, o1, c0, c1, c2, c3]);
    }

    fn jump(&mut self, code: u8, dst: u8, src: u8, constant: u32, target: Target) {
        self.jumps.push((self.code.len(), target));
        self.emit(code, dst, src, 0, constant);
    }

    /// A map, or its value, into a register.
    fn load_map(&mut self, dst: u8, kind: u8, map: RawFd) {
        self.emit(LOAD_CONSTANT_64, dst, kind, 0, map as u32);
        self.emit(0, 0, 0, 0, 0);
    }

    /// Steps over a VLAN tag, as the kernel takes one out before a packet socket sees the frame.
    fn prologue(&mut self) {
        self.emit(LOAD_WORD, 2, 1, DATA, 0);
        self.emit(LOAD_WORD, 3, 1, DATA_END, 0);
        self.emit(MOVE_CONSTANT, 4, 0, 0, 0);
        self.emit(MOVE_CONSTANT, 5, 0, 0, 0);
        self.emit(MOVE, 0, 2, 0, 0);
        self.emit(ADD_CONSTANT, 0, 0, 0, 14 + TAG);
        self.emit(JUMP_GREATER, 0, 3, 5, 0);
        self.emit(LOAD_HALF, 4, 2, 12, 0);
        self.emit(BIG_ENDIAN, 4, 0, 0, 16);
        self.emit(JUMP32 | EQUAL, 4, 0, 1, TAGS[0]);
        self.emit(JUMP32 | NOT_EQUAL, 4, 0, 1, TAGS[1]);
        self.emit(ADD_CONSTANT, 2, 0, 0, TAG);
    }

    /// `size` octets, `at` behind register `base`, into register `dst`. No match if they are not all in the frame.
    fn load(&mut self, dst: u8, base: u8, at: u32, size: u32) {
        self.emit(MOVE, 6, base, 0, 0);
        self.emit(ADD_CONSTANT, 6, 0, 0, at + size);
        self.jump(JUMP_GREATER, 6, 3, 0, Target::Reject);
        let code = match size {
            1 => LOAD_OCTET,
            2 => LOAD_HALF,
            _ => LOAD_WORD,
        };
        self.emit(code, dst, base, at as i16, 0);
        if size > 1 {
            self.emit(BIG_ENDIAN, dst, 0, 0, 8 * size);
        }
    }

    /// Register r4, a port, becomes its bit in the set.
    fn look_up(&mut self, map: RawFd) {
        self.load_map(0, PSEUDO_MAP_VALUE, map);
        self.emit(MOVE, 6, 4, 0, 0);
        self.emit(SHIFT_RIGHT_CONSTANT, 6, 0, 0, 3);
        // What it is anyway; the verifier does not follow it through the change of octet order.
        self.emit(AND_CONSTANT, 6, 0, 0, 0x1fff);
        self.emit(ADD, 0, 6, 0, 0);
        self.emit(LOAD_OCTET, 0, 0, 0, 0);
        self.emit(AND_CONSTANT, 4, 0, 0, 7);
        self.emit(SHIFT_RIGHT, 0, 4, 0, 0);
        self.emit(AND_CONSTANT, 0, 0, 0, 1);
        self.emit(MOVE, 4, 0, 0, 0);
    }

    /// The classic instruction of number `pc`.
    fn instruction(&mut self, pc: usize, i: sock_filter, sets: &[RawFd]) -> Result<(), &'static str> {
        let op = u32::from(i.code);
        let target = |skipped: u32| Target::Classic(pc + 1 + skipped as usize);
        match op & 0x07 {
            BPF_LD => {
                let size = match op & 0x18 {
                    BPF_B => 1,
                    BPF_H => 2,
                    BPF_W => 4,
                    _ => return Err("a load of unknown size"),
                };
                if i.k > i16::MAX as u32 - size {
                    return Err("a load too far into the frame");
                }
                if op & 0xe0 == BPF_IND {
                    self.emit(MOVE, 0, 2, 0, 0);
                    self.emit(ADD, 0, 5, 0, 0);
                    self.load(4, 0, i.k, size);
                } else {
                    self.load(4, 2, i.k, size);
                }
            }
            BPF_LDX => {
                // Only BPF_MSH: four times the low half of an octet, so 60 at most.
                self.load(5, 2, i.k, 1);
                self.emit(AND_CONSTANT, 5, 0, 0, 0x0f);
                self.emit(SHIFT_LEFT_CONSTANT, 5, 0, 0, 2);
            }
            BPF_JMP if op & 0xf0 == BPF_JA => self.jump(JUMP, 0, 0, 0, target(i.k)),
            BPF_JMP => {
                let condition = match op & 0xf0 {
                    BPF_JEQ => EQUAL,
                    BPF_JGT => GREATER,
                    BPF_JGE => GREATER_EQUAL,
                    _ => ANY_BIT,
                };
                self.jump(JUMP32 | condition, 4, 0, i.k, target(i.jt.into()));
                if i.jf != 0 {
                    self.jump(JUMP, 0, 0, 0, target(i.jf.into()));
                }
            }
            BPF_MISC => self.look_up(*sets.get(i.k as usize).ok_or("an unknown set")?),
            // BPF_RET, the only one left.
            _ => self.jump(JUMP, 0, 0, 0, if i.k == 0 { Target::Reject } else { Target::Accept }),
        }
        Ok(())
    }

    /// Has each jump go where it leads, and says where it cannot: eBPF's reach 32,767 instructions.
    fn link(mut self, starts: &[usize], accept: usize, reject: usize) -> Result<Vec<Instruction>, String> {
        for (at, target) in self.jumps {
            let to = match target {
                Target::Classic(pc) => *starts.get(pc).ok_or("a jump out of the program")?,
                Target::Accept => accept,
                Target::Reject => reject,
            };
            let offset =
                i16::try_from(to - at - 1).map_err(|_| format!("too long: a jump of {}", to - at - 1))?;
            self.code[at][2..4].copy_from_slice(&offset.to_ne_bytes());
        }
        Ok(self.code)
    }
}

/// Sends what the program accepts (everything, without a program) to the socket in `map`; without a socket there the
/// verdict is `missing`.
pub(super) fn translate(
    program: Option<&Program>,
    map: RawFd,
    missing: u32,
) -> Result<Vec<Instruction>, String> {
    let mut t = Translator::default();
    let mut starts = Vec::new();
    if let Some(program) = program {
        let sets: Vec<RawFd> = program.sets.iter().map(crate::filter::PortSet::map).collect();
        t.prologue();
        for (pc, i) in program.code.iter().enumerate() {
            starts.push(t.code.len());
            t.instruction(pc, *i, &sets)?;
        }
    }
    // The verifier refuses what is never reached.
    let used = |t: &Translator, which: fn(&Target) -> bool| t.jumps.iter().any(|(_, target)| which(target));
    let accept = t.code.len();
    if program.is_none() || used(&t, |target| matches!(target, Target::Accept)) {
        t.emit(LOAD_WORD, 2, 1, RX_QUEUE_INDEX, 0);
        t.load_map(1, PSEUDO_MAP_FD, map);
        t.emit(MOVE_CONSTANT, 3, 0, 0, missing);
        t.emit(CALL, 0, 0, 0, REDIRECT_MAP);
        t.emit(EXIT, 0, 0, 0, 0);
    }
    let reject = t.code.len();
    if used(&t, |target| matches!(target, Target::Reject)) {
        t.emit(MOVE_CONSTANT, 0, 0, 0, XDP_PASS);
        t.emit(EXIT, 0, 0, 0, 0);
    }
    t.link(&starts, accept, reject)
}

#[cfg(test)]
mod tests;
