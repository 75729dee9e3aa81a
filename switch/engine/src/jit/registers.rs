//! Machine registers that hold slots of the frame within a piece of straight-line code.
//!
//! A value stays in its register from instruction to instruction. It is written back to the frame
//! where other code can see the frame: before a helper is called and before control goes elsewhere.
//! Temporaries that no other piece of code reads are never written back.

use std::collections::HashSet;

use smallvec::{SmallVec, smallvec};

use crate::code::{Ins, Op};

/// The registers that hold slots: rdi, r8 to r12, rbp, r14, r15. `rbx` and `r13` have uses of their
/// own; `rax`, `rcx`, `rdx` and `rsi` are free within an instruction.
pub(super) const POOL: [u8; 9] = [7, 8, 9, 10, 11, 12, 5, 14, 15];

/// A slot's value in a register.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) slot: u32,
    /// Whether the frame lacks the value.
    pub(super) dirty: bool,
    /// Instruction that used it last.
    pub(super) used: u32,
}

/// What the registers hold.
#[derive(Default)]
pub(super) struct Registers {
    pub(super) held: [Option<Held>; POOL.len()],
}

/// Which temporaries need not be written to the frame.
pub(super) struct Temporaries {
    /// Those that some piece of code reads before it sets them.
    shared: HashSet<u32>,
    /// First slot that does not belong to the packet.
    first: u32,
    /// Pairs of an instruction and a temporary that no later instruction reads.
    pub(super) last_uses: HashSet<(u32, u32)>,
}

/// The slots that an instruction reads besides those of headers and metadata, `None` if it may read
/// any.
fn reads(register_limbs: &[u32], i: Ins) -> Option<SmallVec<[u32; 4]>> {
    use Op::*;
    let limbs = u32::from(i.x);
    Some(match i.op {
        Mov | Not | ShlI | ShrI | SarI | Rotl | Sext | Jz | Jnz | RegLoad | Count | Meter | HdrAt
        | HdrValid | Advance | ExtractVl | Fail | Assert => smallvec![i.b],
        Add | Sub | Mul | And | Or | Xor | Shl | Shr | Sar | Eq | Ne | Ult | Ule | Slt | Sle | UMin
        | SMin | SMax | Div | Rem | Funnel | JEq | JNe | JUlt | JUge | Rand => smallvec![i.b, i.c],
        MovZ => smallvec![i.a, i.b, i.c],
        AddN | SubN | EqN | UltN | SltN => (i.b..i.b + limbs).chain(i.c..i.c + limbs).collect(),
        RegStore => (i.c..i.c + register_limbs[i.a as usize]).chain([i.b]).collect(),
        CopyHdr => smallvec![i.a, i.b],
        AddHdr | RemHdr => smallvec![i.a],
        Jmp | Loop | Lock | Unlock | Extract | Emit | Look | ParserEnd | Verify | Update | Apply
        | Dispatch | JHit | Ret | End | TraceState => SmallVec::new(),
        _ => return None,
    })
}

/// The slot that an instruction sets, if it sets one whatever the values.
pub(super) fn writes(i: Ins) -> Option<u32> {
    use Op::*;
    matches!(
        i.op,
        Mov | Not
            | ShlI
            | ShrI
            | SarI
            | Rotl
            | Sext
            | Add
            | Sub
            | Mul
            | And
            | Or
            | Xor
            | Shl
            | Shr
            | Sar
            | Eq
            | Ne
            | Ult
            | Ule
            | Slt
            | Sle
            | UMin
            | SMin
            | SMax
            | Div
            | Rem
            | Funnel
            | HdrValid
            | Rand
    )
    .then_some(i.a)
}

impl Temporaries {
    /// Finds them in a program's instructions. `slots`: their numbers; `register_limbs`: slots of
    /// a cell of each register array; `targets`: the addresses where a piece of code starts.
    pub(super) fn find(
        code: &[Ins],
        slots: std::ops::Range<u32>,
        register_limbs: &[u32],
        targets: &HashSet<u32>,
    ) -> Temporaries {
        let first = slots.start;
        let mut shared = HashSet::new();
        let mut written: HashSet<u32> = HashSet::new();
        for (pc, i) in code.iter().enumerate() {
            if targets.contains(&(pc as u32)) {
                written.clear();
            }
            let is_shared = |s: &u32| *s >= first && !written.contains(s);
            match reads(register_limbs, *i) {
                Some(read) => shared.extend(read.into_iter().filter(is_shared)),
                None => shared.extend(slots.clone().filter(is_shared)),
            }
            written.extend(writes(*i));
        }
        let mut last_uses = HashSet::new();
        // The slots that later instructions of the piece read before one sets them.
        let mut read_later: HashSet<u32> = HashSet::new();
        for (pc, i) in code.iter().enumerate().rev() {
            if let Some(a) = writes(*i) {
                read_later.remove(&a);
            }
            let is_local = |s: &u32| *s >= first && !shared.contains(s);
            match reads(register_limbs, *i) {
                Some(read) => {
                    for slot in read.into_iter().filter(is_local) {
                        if read_later.insert(slot) {
                            last_uses.insert((pc as u32, slot));
                        }
                    }
                }
                None => read_later.extend(slots.clone().filter(is_local)),
            }
            if targets.contains(&(pc as u32)) {
                read_later.clear();
            }
        }
        Temporaries { shared, first, last_uses }
    }

    pub(super) fn is_local(&self, slot: u32) -> bool {
        slot >= self.first && !self.shared.contains(&slot)
    }
}
