//! The packet path.

mod copies;
mod passes;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::bits::{limb_count, ones, padded};
use crate::layout::Field;
use crate::program::{Code, Program};
use crate::queue::PortQueue;
use crate::runtime::Runtime;
use crate::switch::{Live, StatCells, SwitchConfig, bump};
use crate::trace::{Step, Trace};
use crate::types::{DigestId, DigestSample, Replica};
use crate::vm::{Packet, Vm};
use crate::workers::{Home, Inbox};

/// `instance_type` of simple_switch.
mod instance {
    pub(super) const NORMAL: u64 = 0;
    pub(super) const INGRESS_CLONE: u64 = 1;
    pub(super) const EGRESS_CLONE: u64 = 2;
    pub(super) const RECIRC: u64 = 4;
    pub(super) const REPLICATION: u64 = 5;
    pub(super) const RESUBMIT: u64 = 6;
}

/// Receives the packets that the switch sends. The two slices form one packet, the rewritten
/// headers and the unchanged rest. They are valid only during the call: copy both in order to the
/// send buffer.
///
/// Packets for the CPU port are passed like any other, with the program's header in front.
pub trait Output {
    /// One packet for a port.
    fn emit(&mut self, port: u32, head: &[u8], rest: &[u8]);
}

impl<F: FnMut(u32, &[u8], &[u8])> Output for F {
    fn emit(&mut self, port: u32, head: &[u8], rest: &[u8]) {
        self(port, head, rest)
    }
}

/// The packet path of a switch, or one of several
/// ([`Switch::with_workers`](crate::Switch::with_workers)), owned by one thread.
///
/// [`process`](Self::process) runs a packet through the whole switch and returns when it and all
/// packets derived from it (clones, copies, resubmissions, recirculations) have been emitted or
/// dropped. Only packets in a queue with a rate (see
/// [`Switch::set_queue`](crate::Switch::set_queue)) stay inside until a later [`poll`](Self::poll).
/// In the steady state it allocates nothing, makes no system call, and takes no lock that is held
/// for longer than an action. Control commands are applied before each packet. When no packets
/// arrive, call [`poll`](Self::poll) every millisecond or so to apply them.
///
/// The caller provides the time: microseconds since the switch started, never decreasing (an
/// earlier value counts as the latest one). A packet-out of the CPU is `process` with the CPU port
/// as ingress port and the packet-out header in front; a packet-in is a packet emitted to the CPU
/// port.
pub struct DataPath {
    home: Home,
    core: Core,
    inbox: Arc<Inbox>,
}

/// Location of a packet's bytes.
#[derive(Clone)]
enum Bytes {
    /// The received frame.
    Frame,
    Own(Arc<Vec<u8>>),
}

/// A saved copy of a packet's slots.
#[derive(Default)]
pub(crate) struct Phv {
    slots: Vec<u64>,
    vl: Vec<u8>,
}

/// A packet between passes.
pub(crate) struct Job {
    phv: Phv,
    bytes: Bytes,
    /// Total length in bytes, and the bytes extracted by the parser.
    length: usize,
    taken: usize,
    ingress_length: u64,
    ingress_port: u32,
    /// Egress port of an egress pass; `None` for an ingress pass.
    egress: Option<u32>,
    pub(crate) priority: usize,
}

/// A packet path without its pipeline.
pub(crate) struct Core {
    config: SwitchConfig,
    vm: Vm,
    traced: bool,
    /// Serial number of the pipeline for which the frame is loaded, and whether it is for traces.
    loaded: (u64, bool),
    jobs: VecDeque<Job>,
    phvs: Vec<Phv>,
    buffers: Vec<Arc<Vec<u8>>>,
    kept: Vec<u64>,
    passes: u32,
    copies: u32,
    stats: Arc<StatCells>,
    digests: SyncSender<DigestSample>,
    logs: SyncSender<String>,
    ports: HashMap<u32, PortQueue>,
    all_ports: Option<(u64, usize)>,
}

/// The packet in the frame, for the passes.
#[derive(Clone)]
struct Current {
    bytes: Bytes,
    length: usize,
    ingress_length: u64,
    ingress_port: u32,
}

impl DataPath {
    /// Longest frame accepted, in bytes: BMv2's limit is the interface's MTU; this one allows jumbo
    /// frames and GRO.
    pub const MAX_FRAME: usize = 65_535;

    pub(crate) fn new(core: Core, home: Home, inbox: Arc<Inbox>) -> DataPath {
        DataPath { home, core, inbox }
    }

    /// Runs one packet. `frame` starts with the Ethernet header (or the first header that the
    /// program parses). A frame longer than [`MAX_FRAME`](Self::MAX_FRAME) bytes is dropped and
    /// counted.
    #[inline]
    pub fn process(&mut self, now_us: u64, ingress_port: u32, frame: &[u8], out: &mut impl Output) {
        self.take_commands();
        if self.inbox.traces_wanted.load(Ordering::Relaxed)
            && let Some(to) = self.inbox.wants_trace(ingress_port)
        {
            let trace = self.trace(now_us, ingress_port, frame, out);
            self.inbox.traced(&to, trace);
            return;
        }
        self.run(now_us, ingress_port, frame, out);
    }

    #[inline(always)]
    fn run(&mut self, now_us: u64, ingress_port: u32, frame: &[u8], out: &mut dyn Output) {
        let core = &mut self.core;
        self.home.with(|live| core.one(live, now_us, ingress_port, frame, out));
    }

    /// Like [`process`](Self::process), but slower, and returns a trace.
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
        self.core.traced = true;
        self.core.vm.trace = Some(Vec::new());
        self.run(now_us, ingress_port, frame, out);
        let steps = self.core.vm.trace.take().unwrap_or_default();
        self.core.traced = false;
        Trace { time_us: self.core.vm.now_us, ingress_port, length: frame.len(), steps }
    }

    /// Traces a packet, with the packets that it would cause, without changing anything. It runs on
    /// a copy of the state (tables, registers, meters), which takes some milliseconds if these are
    /// large. Random numbers and round robin positions are those of the next packet.
    pub fn dry_run(&mut self, now_us: u64, ingress_port: u32, frame: &[u8], out: &mut impl Output) -> Trace {
        self.take_commands();
        let copy = self.home.with(|live| live.map(|l| Arc::new(l.copy())));
        let mut path = DataPath::new(self.core.apart(), Home::Own(copy), Arc::new(Inbox::closed()));
        path.trace(now_us.max(self.core.vm.now_us), ingress_port, frame, out)
    }

    /// Applies control commands and sends packets due from queues with a rate. If packets wait in
    /// such a queue, returns the time of the next call in microseconds of the switch's clock.
    pub fn poll(&mut self, now_us: u64, out: &mut impl Output) -> Option<u64> {
        self.take_commands();
        let core = &mut self.core;
        core.clock(now_us);
        self.home.with(|live| {
            let live = live?;
            core.ready(live);
            live.rt.shared.now_us.store(core.vm.now_us, Ordering::Relaxed);
            if core.ports.is_empty() {
                return None;
            }
            core.due(&live.program, &live.rt, out)
        })
    }

    #[inline(always)]
    fn take_commands(&mut self) {
        if self.inbox.waiting.load(Ordering::Acquire) != 0 {
            self.inbox.clone().drain(&mut self.home, &mut self.core);
        }
    }
}

impl Core {
    pub(crate) fn new(
        config: SwitchConfig,
        stats: Arc<StatCells>,
        digests: SyncSender<DigestSample>,
        logs: SyncSender<String>,
    ) -> Core {
        Core {
            vm: Vm::new(config.seed),
            config,
            traced: false,
            loaded: (0, false),
            jobs: VecDeque::new(),
            phvs: Vec::new(),
            buffers: Vec::new(),
            kept: Vec::new(),
            passes: 0,
            copies: 0,
            stats,
            digests,
            logs,
            ports: HashMap::new(),
            all_ports: None,
        }
    }

    /// Marks that other threads run packets with the same state.
    pub(crate) fn shared(mut self) -> Core {
        self.vm.many = true;
        self
    }

    /// A separate core whose counters and events are discarded.
    fn apart(&self) -> Core {
        let mut core = Core::new(self.config.clone(), Arc::default(), sync_channel(1).0, sync_channel(1).0);
        (core.vm.rng, core.vm.round_robin, core.vm.now_us) =
            (self.vm.rng, self.vm.round_robin, self.vm.now_us);
        core
    }

    /// Prepares the frame for the pipeline and the kind of code, unless it already is.
    #[inline(always)]
    fn ready(&mut self, live: &Live) {
        if self.loaded != (live.rt.serial, self.traced) {
            self.load(live);
        }
    }

    #[cold]
    fn load(&mut self, live: &Live) {
        let code = self.code(&live.program);
        self.vm.load(&live.program, code, self.config.drop_port);
        if self.loaded.0 != live.rt.serial {
            self.phvs.clear();
            // Queued packets belong to the old program and are dropped, as in BMv2.
            self.drop_queued();
        }
        self.loaded = (live.rt.serial, self.traced);
    }

    /// Handles a received packet.
    fn one(&mut self, live: Option<&Live>, now_us: u64, port: u32, frame: &[u8], out: &mut dyn Output) {
        self.clock(now_us);
        bump(&self.stats.received);
        let Some(live) = live else {
            bump(&self.stats.no_pipeline);
            return;
        };
        if frame.len() > DataPath::MAX_FRAME {
            bump(&self.stats.faults);
            return;
        }
        self.ready(live);
        live.rt.shared.now_us.store(self.vm.now_us, Ordering::Relaxed);
        self.begin(&live.program, port, frame.len());
        self.packet(&live.program, &live.rt, frame, port, out);
    }

    fn clock(&mut self, now_us: u64) {
        if now_us > self.vm.now_us {
            self.vm.now_us = now_us;
            self.stats.now_us.store(now_us, Ordering::Relaxed);
        }
    }

    fn code<'p>(&self, program: &'p Program) -> &'p Code {
        if self.traced { &program.traced } else { &program.plain }
    }

    /// Runs a part of the program, natively if possible.
    #[inline]
    fn execute(&mut self, program: &Program, rt: &Runtime, packet: &mut Packet, start: u32) {
        let code = self.code(program);
        let native = if self.vm.many {
            program.native_many.get().and_then(Option::as_ref)
        } else {
            program.native.as_ref()
        };
        match native {
            Some(native) if !self.traced && self.config.native => {
                native.run(&mut self.vm, program, code, rt, packet, start);
            }
            _ => self.vm.run(program, code, rt, packet, start),
        }
        self.vm.unlock(program, rt);
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
