//! The bytecode of a compiled program.
//!
//! A packet's whole state is an array of 64-bit slots, the *frame*: first the packet's data
//! (metadata, header fields, validity, stack positions), then constants, action parameters and
//! temporaries. A field of up to 64 bits is one slot, a wider one has several, least significant
//! first. A slot never has bits beyond its field's width, also for signed fields. Instructions
//! refer to slots by number.

/// Operation of an instruction. `a`, `b`, `c` are slots unless noted otherwise; `[w]` means that
/// the result is cut to the lowest `w` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    /// a = b `[w]`
    Mov,
    /// a = b + c `[w]`, and so on.
    Add,
    Sub,
    Mul,
    And,
    Or,
    Xor,
    Not,
    /// a = b << c, 0 from 64 on.
    Shl,
    Shr,
    /// Arithmetic shift right.
    Sar,
    /// a = b << x.
    ShlI,
    ShrI,
    SarI,
    /// a = b rotated left by x in w bits.
    Rotl,
    /// a = b << x | c >> (64 - x) `[w]`, x from 1 to 63.
    Funnel,
    /// a = b as a signed value of x bits `[w]`.
    Sext,
    Eq,
    Ne,
    Ult,
    Ule,
    Slt,
    Sle,
    UMin,
    SMin,
    SMax,
    /// a = b / c, 0 for c = 0.
    Div,
    Rem,
    /// if c == 0 then a = b
    MovZ,
    /// x limbs at a = limbs at b + limbs at c, the topmost cut to w bits.
    AddN,
    SubN,
    /// a = x limbs at b == limbs at c, and so on.
    EqN,
    UltN,
    SltN,
    /// x limbs at a = wide expression number b (an index), cut to c bits.
    Wide,
    /// Jump to address a.
    Jmp,
    /// Jump to a if b is 0.
    Jz,
    Jnz,
    /// Jump to a if b == c.
    JEq,
    JNe,
    JUlt,
    JUge,
    /// Before a backward jump: counts it, and drops the packet if there are too many.
    Loop,
    /// With several workers: locks the register arrays of lock set a (an index), and no others.
    Lock,
    /// Unlocks them.
    Unlock,
    /// Limbs at a = register array c (an index), cell b.
    RegLoad,
    /// Register array a (an index), cell b = limbs at c.
    RegStore,
    /// Limbs at a = element b of the stack field c (an index).
    StackGet,
    /// Element b of stack field c (an index) = limbs at a.
    StackPut,
    /// a = number of the header at position b of header stack c (an index), all ones if there is
    /// none. With w = 1: member x of union stack c.
    HdrAt,
    /// a = header number b is valid.
    HdrValid,
    /// Header number a becomes valid with all fields 0, unless it is valid.
    AddHdr,
    /// Header number a becomes invalid.
    RemHdr,
    /// Header number a = header number b, fields and validity.
    CopyHdr,
    /// a = headers number b and c are valid, of one type and equal.
    EqHdr,
    /// a = variable-length fields of headers b and c (indexes) are equal as numbers.
    EqVl,
    /// a = unions b and c (indexes) are equal.
    EqUnion,
    /// Shift stack a (an index; union stack with w = 1) by b towards its end.
    Push,
    Pop,
    /// Stack a = stack b (indexes; union stacks with w = 1).
    CopyStack,
    /// Variable-length field of header a = that of header b (indexes).
    CopyVl,
    /// Parser: extracts header a (an index).
    Extract,
    /// Extracts header a (an index) with b variable bits, at most c bytes in all (c is the number
    /// itself; 0: no limit).
    ExtractVl,
    /// Extracts the next element of header stack a (an index).
    ExtractStack,
    ExtractStackVl,
    /// Extracts member x of the next element of union stack a (an index).
    ExtractUnion,
    ExtractUnionVl,
    /// Limbs at a = c bits (number) at b bits (number) beyond the parser's position, without
    /// advancing.
    Look,
    /// Skips b bits.
    Advance,
    /// Fails with parser error b.
    Fail,
    /// a = select key b (an index) is in its value set.
    VsetHas,
    /// End of the parser proper: the rest is payload.
    ParserEnd,
    /// Verify checksum a (an index).
    Verify,
    /// Update checksum a (an index).
    Update,
    /// Deparser: writes header a (an index) if it is valid.
    Emit,
    /// Apply table a (an index): look up, run the action.
    Apply,
    /// Jump to the address in dispatch table a (an index) for the action that ran.
    Dispatch,
    /// Jump to a if the last applied table was hit.
    JHit,
    /// End of an action.
    Ret,
    /// End of the parser, a pipeline and so on.
    End,
    /// Counter a (an index), cell b.
    Count,
    /// c = colour of meter a (an index), cell b `[w]`.
    Meter,
    /// Limbs at a = hash b (an index).
    Hash,
    /// a = random from b to c `[w]`.
    Rand,
    /// log_msg a (an index).
    Log,
    /// Drops the packet with message a (an index) if b is 0.
    Assert,
    /// Trace only: parser state a (an index).
    TraceState,
    /// Trace only: condition a (an index) was b.
    TraceCond,
    /// Trace only: action a (an index) without a table.
    TraceAction,
}

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ins {
    pub(crate) op: Op,
    pub(crate) w: u8,
    pub(crate) x: u16,
    pub(crate) a: u32,
    pub(crate) b: u32,
    pub(crate) c: u32,
}

impl Ins {
    pub(crate) fn new(op: Op, a: u32, b: u32, c: u32) -> Ins {
        Ins { op, w: 64, x: 0, a, b, c }
    }

    pub(crate) fn w(mut self, w: u32) -> Ins {
        self.w = w as u8;
        self
    }

    pub(crate) fn x(mut self, x: u32) -> Ins {
        self.x = x as u16;
        self
    }

    /// Whether `a` is the address of an instruction.
    pub(crate) fn jumps(&self) -> bool {
        matches!(self.op, Op::Jmp | Op::Jz | Op::Jnz | Op::JEq | Op::JNe | Op::JUlt | Op::JUge | Op::JHit)
    }
}
