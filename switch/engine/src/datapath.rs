//! The packet path.

mod copies;
mod passes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender};

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::bits::{limb_count, ones, padded};
use crate::layout::Field;
use crate::program::{Code, Program};
use crate::queue::PortQueue;
use crate::runtime::Runtime;
use crate::switch::{Command, Live, StatCells, SwitchConfig, bump};
use crate::trace::{Step, Trace};
use crate::types::{DigestId, DigestSample, Replica};
use crate::vm::{Packet, Vm};

/// `instance_type` of simple_switch.
mod instance {
    pub(super) const NORMAL: u64 = 0;
    pub(super) const INGRESS_CLONE: u64 = 1;
    pub(super) const EGRESS_CLONE: u64 = 2;
    pub(super) const RECIRC: u64 = 4;
    pub(super) const REPLICATION: u64 = 5;
    pub(super) const RESUBMIT: u64 = 6;
}

/// Takes the packets that come out. The two slices are one packet, the rewritten headers and the untouched
/// rest, and are valid during the call only: copy both, one after the other, to where the packet is sent from.
///
/// Packets for the CPU port come out here like any other, with the header the program put in front.
pub trait Output {
    /// One packet for a port.
    fn emit(&mut self, port: u32, head: &[u8], rest: &[u8]);
}

impl<F: FnMut(u32, &[u8], &[u8])> Output for F {
    fn emit(&mut self, port: u32, head: &[u8], rest: &[u8]) {
        self(port, head, rest)
    }
}

/// The packet path of a switch, owned by one thread.
///
/// [`process`](Self::process) runs a packet through the whole switch and returns when it and all that came
/// of it (clones, copies, resubmissions, recirculations) have been emitted or dropped; only packets in a queue
/// with a rate (see [`Switch::set_queue`](crate::Switch::set_queue)) stay inside and come out of a later
/// [`poll`](Self::poll). In the steady state it allocates nothing, takes no lock and makes no system call.
/// Control commands are taken before each packet; call [`poll`](Self::poll) when no packet comes, every
/// millisecond or so, so that they are taken then too.
///
/// Time is what the caller says: microseconds since the switch started, never going back (an earlier value
/// counts as the latest seen). A CPU packet-out is `process` with the CPU port as ingress port and the
/// packet-out header in front; a packet-in is what is emitted to the CPU port.
pub struct DataPath {
    live: Option<Box<Live>>,
    core: Core,
    commands: Receiver<Command>,
    waiting: Arc<AtomicUsize>,
    retired: Sender<Box<Live>>,
    request: Option<Request>,
}

/// A request for traces.
struct Request {
    to: SyncSender<Trace>,
    left: usize,
    port: Option<u32>,
}

/// Where a packet's bytes are.
#[derive(Clone)]
enum Bytes {
    /// The frame that came in.
    Frame,
    Own(Arc<Vec<u8>>),
}

/// A packet's own slots, put aside.
#[derive(Default)]
pub(crate) struct Phv {
    slots: Vec<u64>,
    vl: Vec<u8>,
}

/// A packet between passes.
pub(crate) struct Job {
    phv: Phv,
    bytes: Bytes,
    /// Bytes in all, and those taken by the parser.
    length: usize,
    taken: usize,
    ingress_length: u64,
    ingress_port: u32,
    /// Where an egress pass goes; `None` for an ingress pass.
    egress: Option<u32>,
    pub(crate) priority: usize,
}

/// All but the pipeline.
struct Core {
    config: SwitchConfig,
    vm: Vm,
    traced: bool,
    /// Serial number of the pipeline the frame is loaded for.
    loaded: u64,
    jobs: VecDeque<Job>,
    phvs: Vec<Phv>,
    buffers: Vec<Arc<Vec<u8>>>,
    head: Vec<u8>,
    kept: Vec<u64>,
    passes: u32,
    copies: u32,
    stats: Arc<StatCells>,
    digests: SyncSender<DigestSample>,
    logs: SyncSender<String>,
    ports: HashMap<u32, PortQueue>,
    all_ports: Option<(u64, usize)>,
}

/// One packet in the frame, as the passes see it.
#[derive(Clone)]
struct Current {
    bytes: Bytes,
    length: usize,
    ingress_length: u64,
    ingress_port: u32,
}

impl DataPath {
    /// Longest frame taken, bytes: BMv2's own limit is an interface's MTU, this one leaves room for jumbo
    /// frames and GRO.
    pub const MAX_FRAME: usize = 65_535;

    pub(crate) fn new(
        config: SwitchConfig,
        commands: Receiver<Command>,
        waiting: Arc<AtomicUsize>,
        stats: Arc<StatCells>,
        retired: Sender<Box<Live>>,
        digests: SyncSender<DigestSample>,
        logs: SyncSender<String>,
    ) -> DataPath {
        let core = Core {
            vm: Vm::new(config.seed),
            config,
            traced: false,
            loaded: 0,
            jobs: VecDeque::new(),
            phvs: Vec::new(),
            buffers: Vec::new(),
            head: Vec::new(),
            kept: Vec::new(),
            passes: 0,
            copies: 0,
            stats,
            digests,
            logs,
            ports: HashMap::new(),
            all_ports: None,
        };
        DataPath { live: None, core, commands, waiting, retired, request: None }
    }

    /// Runs one packet. `frame` begins with the Ethernet header (or whatever the program parses first) and is
    /// at most [`MAX_FRAME`](Self::MAX_FRAME) bytes, else it is dropped and counted.
    #[inline]
    pub fn process(&mut self, now_us: u64, ingress_port: u32, frame: &[u8], out: &mut impl Output) {
        self.take_commands();
        if self.request.is_some() && self.traced_for_request(now_us, ingress_port, frame, out) {
            return;
        }
        self.run(now_us, ingress_port, frame, out);
    }

    fn run(&mut self, now_us: u64, ingress_port: u32, frame: &[u8], out: &mut dyn Output) {
        let core = &mut self.core;
        core.clock(now_us);
        bump(&core.stats.received);
        let Some(live) = &mut self.live else {
            bump(&core.stats.no_pipeline);
            return;
        };
        if frame.len() > Self::MAX_FRAME {
            bump(&core.stats.faults);
            return;
        }
        live.rt.shared.now_us.store(core.vm.now_us, Ordering::Relaxed);
        core.begin(&live.program, ingress_port, frame.len());
        core.packet(&live.program, &mut live.rt, frame, ingress_port, out);
    }

    /// Like [`process`](Self::process), and says what happened. Slower.
    pub fn process_traced(
        &mut self,
        now_us: u64,
        ingress_port: u32,
        frame: &[u8],
        out: &mut impl Output,
    ) -> Trace {
        self.take_commands();
        self.trace(now_us, ingress_port, frame, out)
    }

    fn trace(&mut self, now_us: u64, ingress_port: u32, frame: &[u8], out: &mut dyn Output) -> Trace {
        self.switch_code(true);
        self.core.vm.trace = Some(Vec::new());
        self.run(now_us, ingress_port, frame, out);
        let steps = self.core.vm.trace.take().unwrap_or_default();
        self.switch_code(false);
        Trace { time_us: self.core.vm.now_us, ingress_port, length: frame.len(), steps }
    }

    /// Between the code that runs and the code that tells.
    fn switch_code(&mut self, traced: bool) {
        self.core.traced = traced;
        if let Some(live) = &self.live {
            self.core.load(&live.program, live.rt.serial);
        }
    }

    #[cold]
    fn traced_for_request(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut dyn Output) -> bool {
        let Some(request) = &self.request else { return false };
        if request.port.is_some_and(|p| p != port) {
            return false;
        }
        let trace = self.trace(now_us, port, frame, out);
        if let Some(request) = &mut self.request {
            request.left -= 1;
            let gone = request.to.try_send(trace).is_err();
            if gone || request.left == 0 {
                self.request = None;
            }
        }
        true
    }

    /// Takes control commands and sends what is due from queues with a rate. Returns when to call again at the
    /// latest because of such a queue (microseconds on the switch's clock), if any packet waits in one.
    pub fn poll(&mut self, now_us: u64, out: &mut impl Output) -> Option<u64> {
        self.take_commands();
        self.core.clock(now_us);
        let live = self.live.as_mut()?;
        live.rt.shared.now_us.store(self.core.vm.now_us, Ordering::Relaxed);
        if self.core.ports.is_empty() {
            return None;
        }
        self.core.due(&live.program, &mut live.rt, out)
    }

    #[inline(always)]
    fn take_commands(&mut self) {
        if self.waiting.load(Ordering::Acquire) != 0 {
            self.drain();
        }
    }

    #[cold]
    fn drain(&mut self) {
        let mut taken = 0;
        while let Ok(command) = self.commands.try_recv() {
            taken += 1;
            match command {
                Command::Op(serial, op) => {
                    if let Some(live) = self.live.as_mut().filter(|l| l.rt.serial == serial) {
                        live.rt.apply(op);
                    }
                }
                Command::Batch(serial, ops) => {
                    if let Some(live) = self.live.as_mut().filter(|l| l.rt.serial == serial) {
                        ops.into_iter().for_each(|op| live.rt.apply(op));
                    }
                }
                Command::Swap(live) => {
                    self.core.load(&live.program, live.rt.serial);
                    // Packets in queues belong to the old program: they are gone with it, as in BMv2.
                    self.core.drop_queued();
                    if let Some(old) = self.live.replace(live) {
                        // The other side frees it.
                        let _ = self.retired.send(old);
                    }
                }
                Command::Port { port, rate_pps, depth } => self.core.set_queue(port, rate_pps, depth),
                Command::Trace { to, count, port } => self.request = Some(Request { to, left: count, port }),
            }
        }
        self.waiting.fetch_sub(taken, Ordering::Release);
    }
}

impl Core {
    fn clock(&mut self, now_us: u64) {
        if now_us > self.vm.now_us {
            self.vm.now_us = now_us;
            self.stats.now_us.store(now_us, Ordering::Relaxed);
        }
    }

    fn code<'p>(&self, program: &'p Program) -> &'p Code {
        if self.traced { &program.traced } else { &program.plain }
    }

    /// Runs a part of the program, as machine code if there is any.
    #[inline]
    fn execute(&mut self, program: &Program, rt: &mut Runtime, packet: &mut Packet, start: u32) {
        let code = self.code(program);
        match &program.native {
            Some(native) if !self.traced && self.config.native => {
                native.run(&mut self.vm, program, code, rt, packet, start);
            }
            _ => self.vm.run(program, code, rt, packet, start),
        }
    }

    fn load(&mut self, program: &Program, serial: u64) {
        let code = self.code(program);
        self.vm.load(program, code, self.config.drop_port);
        if self.loaded != serial {
            self.loaded = serial;
            self.phvs.clear();
        }
    }

    #[inline(always)]
    fn set(&mut self, field: Option<Field>, value: u64) {
        if let Some(f) = field {
            self.vm.frame[f.slot as usize] = value & ones(f.width);
        }
    }

    #[inline(always)]
    fn get(&self, field: Option<Field>) -> u64 {
        field.map_or(0, |f| self.vm.frame[f.slot as usize])
    }

    fn note(&mut self, step: impl FnOnce() -> Step) {
        self.vm.note(step);
    }

    fn drop_step(&mut self, reason: &str) {
        self.note(|| Step::Drop { reason: reason.into() });
    }

    fn save(&mut self, program: &Program) -> Phv {
        let mut phv = self.phvs.pop().unwrap_or_default();
        phv.slots.clear();
        phv.slots.extend_from_slice(&self.vm.frame[..program.phv_slots as usize]);
        phv.vl.clear();
        phv.vl.extend_from_slice(&self.vm.vl);
        phv
    }

    fn restore(&mut self, phv: &Phv) {
        self.vm.frame[..phv.slots.len()].copy_from_slice(&phv.slots);
        self.vm.vl.copy_from_slice(&phv.vl);
    }
}
