//! Runs compiled code for one packet.

mod frame;
mod limbs;
mod tables;

use std::sync::atomic::Ordering::Relaxed;

use crate::bits::ones;
use crate::code::{Ins, Op};
use crate::program::{Code, Program};
use crate::runtime::{Act, Runtime, VsetField};
use crate::state::add;
use crate::table::MAX_WORDS;
use crate::trace::Step;

/// Largest number of parser states that a packet may enter.
pub(crate) const MAX_STATES: u32 = 10_000;

/// Largest number of backward jumps of a packet in a pipeline.
const MAX_LOOPS: u32 = 1_000_000;

/// A packet on its way through a pass.
pub(crate) struct Packet<'p> {
    /// The whole packet as received.
    pub(crate) data: &'p [u8],
    /// Bytes extracted by the parser.
    pub(crate) taken: usize,
    /// Length on arrival, counted by byte counters and meters.
    pub(crate) ingress_length: u64,
    /// Bytes of headers that the deparser has written.
    pub(crate) written: usize,
}

/// What to do after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    /// The parser failed, and its error is set.
    Failed,
    /// Drop the packet.
    Stop,
}

/// The frame and the other state of one packet path for running code.
pub(crate) struct Vm {
    pub(crate) frame: Vec<u64>,
    /// Bytes of variable-length fields.
    pub(crate) vl: Vec<u8>,
    pub(crate) scratch: Vec<u8>,
    /// Where the deparser writes headers.
    pub(crate) head: Vec<u8>,
    /// Key of the last applied table.
    pub(crate) key: [u64; MAX_WORDS],
    pub(crate) rng: u64,
    pub(crate) now_us: u64,
    /// Why the packet was dropped, if it was.
    pub(crate) fault: Option<u32>,
    pub(crate) round_robin: u64,
    /// Parser states that may still be entered, and loops counted.
    states: u32,
    loops: u32,
    pub(crate) trace: Option<Vec<Step>>,
    pub(crate) logs: Vec<String>,
    /// Whether other threads run packets with the same state.
    pub(crate) many: bool,
    /// Locked register arrays (an index of [`Program::lock_sets`]).
    locked: Option<u32>,
}

impl Vm {
    pub(crate) fn new(seed: u64) -> Vm {
        Vm {
            frame: Vec::new(),
            vl: Vec::new(),
            scratch: Vec::new(),
            head: Vec::new(),
            key: [0; MAX_WORDS],
            rng: seed | 1,
            now_us: 0,
            fault: None,
            round_robin: 0,
            states: 0,
            loops: 0,
            trace: None,
            logs: Vec::new(),
            many: false,
            locked: None,
        }
    }

    /// xorshift64*.
    pub(crate) fn random(&mut self) -> u64 {
        self.rng ^= self.rng >> 12;
        self.rng ^= self.rng << 25;
        self.rng ^= self.rng >> 27;
        self.rng.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn note(&mut self, step: impl FnOnce() -> Step) {
        if let Some(t) = &mut self.trace {
            t.push(step());
        }
    }

    /// Unlocks register arrays, if any are locked: at the end of an action, or of a part that an
    /// action has ended.
    #[inline(always)]
    pub(crate) fn unlock(&mut self, program: &Program, rt: &Runtime) {
        if let Some(set) = self.locked.take() {
            let set = &program.lock_sets[set as usize];
            set.iter().for_each(|r| rt.shared.register_locks[*r as usize].unlock());
        }
    }

    /// Prepares the state that native code leaves to `step`.
    pub(crate) fn begin_native(&mut self) {
        self.states = 0;
        self.loops = 0;
    }

    /// Runs from an address to the end of that part.
    pub(crate) fn run(
        &mut self,
        program: &Program,
        code: &Code,
        rt: &Runtime,
        packet: &mut Packet,
        start: u32,
    ) {
        let mut pc = start as usize;
        let mut back = 0usize;
        let mut local = 0u32;
        let mut hit = false;
        self.states = MAX_STATES;
        self.loops = 0;
        macro_rules! f {
            ($slot:expr) => {
                self.frame[$slot as usize]
            };
        }
        loop {
            let i: Ins = code.ins[pc];
            pc += 1;
            match i.op {
                Op::Jmp => pc = i.a as usize,
                Op::Jz => {
                    if f!(i.b) == 0 {
                        pc = i.a as usize;
                    }
                }
                Op::Jnz => {
                    if f!(i.b) != 0 {
                        pc = i.a as usize;
                    }
                }
                Op::JEq => {
                    if f!(i.b) == f!(i.c) {
                        pc = i.a as usize;
                    }
                }
                Op::JNe => {
                    if f!(i.b) != f!(i.c) {
                        pc = i.a as usize;
                    }
                }
                Op::JUlt => {
                    if f!(i.b) < f!(i.c) {
                        pc = i.a as usize;
                    }
                }
                Op::JUge => {
                    if f!(i.b) >= f!(i.c) {
                        pc = i.a as usize;
                    }
                }
                Op::JHit => {
                    if hit {
                        pc = i.a as usize;
                    }
                }
                Op::Dispatch => {
                    let to = &code.dispatch[i.a as usize];
                    pc = to[(local as usize).min(to.len() - 1)] as usize;
                }
                Op::Ret => pc = back,
                Op::End => return,
                Op::Apply => {
                    let (found, act) = self.apply(program, rt, packet, i.a);
                    hit = found;
                    local = u32::MAX;
                    if let Some((action, at)) = act {
                        local = at;
                        back = pc;
                        pc = code.actions[action as usize] as usize;
                    }
                }
                _ => match self.step(program, code, rt, packet, i) {
                    Flow::Next => {}
                    Flow::Failed => pc = code.parser_end as usize,
                    Flow::Stop => return,
                },
            }
        }
    }

    /// Executes one instruction that is not a jump.
    #[inline(always)]
    #[allow(clippy::collapsible_match)]
    pub(crate) fn step(
        &mut self,
        program: &Program,
        code: &Code,
        rt: &Runtime,
        packet: &mut Packet,
        i: Ins,
    ) -> Flow {
        macro_rules! f {
            ($slot:expr) => {
                self.frame[$slot as usize]
            };
        }
        macro_rules! fail {
            ($error:expr) => {{
                f!(program.special.error) = $error;
                return Flow::Failed;
            }};
        }
        let w = u32::from(i.w);
        match i.op {
            Op::Mov => f!(i.a) = f!(i.b) & ones(w),
            Op::Add => f!(i.a) = f!(i.b).wrapping_add(f!(i.c)) & ones(w),
            Op::Sub => f!(i.a) = f!(i.b).wrapping_sub(f!(i.c)) & ones(w),
            Op::Mul => f!(i.a) = f!(i.b).wrapping_mul(f!(i.c)) & ones(w),
            Op::And => f!(i.a) = f!(i.b) & f!(i.c),
            Op::Or => f!(i.a) = f!(i.b) | f!(i.c),
            Op::Xor => f!(i.a) = f!(i.b) ^ f!(i.c),
            Op::Not => f!(i.a) = !f!(i.b) & ones(w),
            Op::Shl => f!(i.a) = shl(f!(i.b), f!(i.c)) & ones(w),
            Op::Shr => f!(i.a) = if f!(i.c) > 63 { 0 } else { f!(i.b) >> f!(i.c) & ones(w) },
            Op::Sar => f!(i.a) = ((f!(i.b) as i64) >> f!(i.c).min(63)) as u64 & ones(w),
            Op::ShlI => f!(i.a) = f!(i.b) << i.x & ones(w),
            Op::ShrI => f!(i.a) = f!(i.b) >> i.x & ones(w),
            Op::SarI => f!(i.a) = (f!(i.b) as i64 >> i.x) as u64 & ones(w),
            Op::Rotl => {
                let v = f!(i.b);
                f!(i.a) = (v << i.x | v >> (w - u32::from(i.x))) & ones(w);
            }
            Op::Funnel => f!(i.a) = (f!(i.b) << i.x | f!(i.c) >> (64 - i.x)) & ones(w),
            Op::Sext => {
                let s = 64 - u32::from(i.x);
                f!(i.a) = ((f!(i.b) << s) as i64 >> s) as u64 & ones(w);
            }
            Op::Eq => f!(i.a) = (f!(i.b) == f!(i.c)).into(),
            Op::Ne => f!(i.a) = (f!(i.b) != f!(i.c)).into(),
            Op::Ult => f!(i.a) = (f!(i.b) < f!(i.c)).into(),
            Op::Ule => f!(i.a) = (f!(i.b) <= f!(i.c)).into(),
            Op::Slt => f!(i.a) = ((f!(i.b) as i64) < f!(i.c) as i64).into(),
            Op::Sle => f!(i.a) = (f!(i.b) as i64 <= f!(i.c) as i64).into(),
            Op::UMin => f!(i.a) = f!(i.b).min(f!(i.c)) & ones(w),
            Op::SMin => f!(i.a) = (f!(i.b) as i64).min(f!(i.c) as i64) as u64 & ones(w),
            Op::SMax => f!(i.a) = (f!(i.b) as i64).max(f!(i.c) as i64) as u64 & ones(w),
            Op::Div => f!(i.a) = f!(i.b).checked_div(f!(i.c)).unwrap_or(0) & ones(w),
            Op::Rem => f!(i.a) = f!(i.b).checked_rem(f!(i.c)).unwrap_or(0) & ones(w),
            Op::MovZ => {
                if f!(i.c) == 0 {
                    f!(i.a) = f!(i.b);
                }
            }
            Op::Loop => {
                self.loops += 1;
                if self.loops > MAX_LOOPS {
                    self.fault = Some(u32::MAX);
                    return Flow::Stop;
                }
            }
            Op::AddN | Op::SubN => self.add_limbs(i),
            Op::EqN | Op::UltN | Op::SltN => self.compare_limbs(i),
            Op::Wide => crate::wide::run(self, program, code, rt, i),
            Op::Lock => {
                if self.many && self.locked != Some(i.a) {
                    self.unlock(program, rt);
                    let set = &program.lock_sets[i.a as usize];
                    set.iter().for_each(|r| rt.shared.register_locks[*r as usize].lock());
                    self.locked = Some(i.a);
                }
            }
            Op::Unlock => self.unlock(program, rt),
            Op::RegLoad => {
                let n = program.register_limbs[i.c as usize] as usize;
                let cells = &rt.shared.registers[i.c as usize];
                let at = (f!(i.b) as usize).saturating_mul(n);
                if let Some(cell) = cells.get(at..at.saturating_add(n)) {
                    for (k, c) in cell.iter().enumerate() {
                        f!(i.a + k as u32) = c.load(Relaxed);
                    }
                }
            }
            Op::RegStore => {
                let n = program.register_limbs[i.a as usize] as usize;
                let cells = &rt.shared.registers[i.a as usize];
                let at = (f!(i.b) as usize).saturating_mul(n);
                if let Some(cell) = cells.get(at..at.saturating_add(n)) {
                    for (k, c) in cell.iter().enumerate() {
                        c.store(f!(i.c + k as u32), Relaxed);
                    }
                }
            }
            Op::Count => {
                let cells = &rt.shared.counters[i.a as usize];
                let at = (f!(i.b) as usize).saturating_mul(2);
                if let Some([bytes, packets]) = cells.get(at..at.saturating_add(2)) {
                    add(bytes, packet.ingress_length, self.many);
                    add(packets, 1, self.many);
                }
            }
            Op::Meter => {
                let info = &program.info.meters[i.a as usize];
                let index = f!(i.b);
                if index < info.size as u64 {
                    let amount = match info.unit {
                        crate::info::MeterUnit::Packets => 1,
                        crate::info::MeterUnit::Bytes => packet.ingress_length,
                    };
                    let meter = rt.meters[i.a as usize].get(&(index as u32));
                    f!(i.c) = meter.map_or(0, |m| m.lock().execute(self.now_us, amount));
                }
            }
            Op::Hash => {
                f!(i.a) = self.calculate(program, i.b, packet);
            }
            Op::Rand => {
                let (lo, hi) = (f!(i.b), f!(i.c));
                let r = self.random();
                let span = hi.wrapping_sub(lo).wrapping_add(1);
                f!(i.a) = if span == 0 {
                    r
                } else {
                    lo.wrapping_add(((u128::from(r) * u128::from(span)) >> 64) as u64)
                };
            }
            Op::StackGet => {
                let field = &code.stack_fields[i.c as usize];
                let from = field.slots.get(f!(i.b) as usize);
                for k in 0..field.limbs {
                    f!(i.a + k) = from.map_or(0, |s| f!(s + k));
                }
            }
            Op::StackPut => {
                let field = &code.stack_fields[i.c as usize];
                if let Some(to) = field.slots.get(f!(i.b) as usize) {
                    for k in 0..field.limbs {
                        f!(to + k) = f!(i.a + k);
                    }
                }
            }
            Op::HdrAt => {
                let list = if i.w == 1 { &program.union_stacks } else { &program.stacks };
                let element = list[i.c as usize].elements.get(f!(i.b) as usize);
                f!(i.a) = element.and_then(|e| e.get(i.x as usize)).map_or(u64::MAX, |h| (*h).into());
            }
            Op::HdrValid => {
                let h = program.headers.get(f!(i.b) as usize);
                f!(i.a) = h.map_or(0, |h| f!(h.valid()));
            }
            Op::AddHdr => {
                let h = f!(i.a) as usize;
                self.add_header(program, h, i.w == 1);
            }
            Op::RemHdr => {
                if let Some(h) = program.headers.get(f!(i.a) as usize)
                    && f!(h.valid()) != 0
                    && !h.metadata
                {
                    let bytes = u64::from(h.fixed_bytes) + f!(h.vl_bits()) / 8;
                    f!(program.special.length) = f!(program.special.length).wrapping_sub(bytes);
                    f!(h.valid()) = 0;
                }
            }
            Op::CopyHdr => self.copy_header(program, f!(i.a) as usize, f!(i.b) as usize),
            Op::EqHdr => f!(i.a) = self.equal_headers(program, f!(i.b) as usize, f!(i.c) as usize).into(),
            Op::EqVl => f!(i.a) = self.equal_vl(program, i.b as usize, i.c as usize).into(),
            Op::EqUnion => f!(i.a) = self.equal_unions(program, i.b as usize, i.c as usize).into(),
            Op::Push | Op::Pop => self.shift_stack(program, i),
            Op::CopyStack => self.copy_stack(program, i),
            Op::CopyVl => self.copy_vl(program, i.a as usize, i.b as usize),
            Op::Extract => {
                if let Err(e) = self.extract(program, packet, i.a, 0, 0) {
                    fail!(e);
                }
            }
            Op::ExtractVl => {
                let bits = f!(i.b);
                if let Err(e) = self.extract(program, packet, i.a, bits, i.c) {
                    fail!(e);
                }
            }
            Op::ExtractStack | Op::ExtractStackVl | Op::ExtractUnion | Op::ExtractUnionVl => {
                if let Err(e) = self.extract_next(program, packet, i) {
                    fail!(e);
                }
            }
            Op::Look => {
                let pos = packet.taken * 8 + i.b as usize;
                if pos + i.c as usize > packet.data.len() * 8 {
                    fail!(program.errors.too_short);
                }
                let mut end = pos + i.c as usize;
                let mut left = i.c;
                let mut slot = i.a;
                while left > 0 {
                    let n = left.min(64);
                    end -= n as usize;
                    f!(slot) = crate::bits::get(packet.data, end, n);
                    slot += 1;
                    left -= n;
                }
            }
            Op::Advance => {
                let bits = f!(i.b);
                if !bits.is_multiple_of(8) {
                    fail!(program.errors.invalid);
                }
                if bits / 8 > (packet.data.len() - packet.taken) as u64 {
                    fail!(program.errors.too_short);
                }
                packet.taken += (bits / 8) as usize;
            }
            Op::Fail => fail!(f!(i.b)),
            Op::VsetHas => f!(i.a) = self.in_value_set(program, rt, i.b as usize).into(),
            Op::ParserEnd => {
                if f!(program.special.error) != program.errors.none && self.trace.is_some() {
                    let error = program.errors.name(f!(program.special.error));
                    self.note(|| Step::ParserError { error });
                }
            }
            Op::Emit => self.emit_header(program, packet, i.a),
            Op::Verify => {
                let sum = &program.checksums[i.a as usize];
                let ok = self.checksum(program, sum, packet) == f!(sum.target.slot);
                if !ok {
                    f!(program.special.bad_sum) = 1;
                }
                self.note(|| Step::Checksum { name: sum.name.clone(), ok });
            }
            Op::Update => {
                let sum = &program.checksums[i.a as usize];
                f!(sum.target.slot) = self.checksum(program, sum, packet) & ones(sum.target.width);
            }
            Op::Log => self.log(program, i.a as usize),
            Op::Assert => {
                if f!(i.b) == 0 {
                    self.fault = Some(i.a);
                    return Flow::Stop;
                }
            }
            Op::TraceState => {
                self.states = self.states.wrapping_sub(1);
                if self.states > MAX_STATES {
                    fail!(program.errors.timeout);
                }
                self.note(|| Step::ParserState { name: program.states[i.a as usize].clone() });
            }
            Op::TraceCond => {
                let value = f!(i.b) != 0;
                self.note(|| Step::Condition { name: program.conditions[i.a as usize].clone(), value });
            }
            Op::TraceAction => {
                self.note(|| Step::Action { name: program.info.actions[i.a as usize].name.clone() });
            }
            // The caller handles jumps and similar instructions.
            _ => {}
        }
        Flow::Next
    }
}

#[inline(always)]
fn shl(v: u64, by: u64) -> u64 {
    if by > 63 { 0 } else { v << by }
}
