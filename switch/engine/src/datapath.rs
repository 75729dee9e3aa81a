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

/// The packet path of a switch, or one of several ([`Switch::with_workers`](crate::Switch::with_workers)), owned
/// by one thread.
///
/// [`process`](Self::process) runs a packet through the whole switch and returns when it and all that came
/// of it (clones, copies, resubmissions, recirculations) have been emitted or dropped; only packets in a queue
/// with a rate (see [`Switch::set_queue`](crate::Switch::set_queue)) stay inside and come out of a later
/// [`poll`](Self::poll). In the steady state it allocates nothing, takes no lock that anyone else holds for
/// longer than an action and makes no system call. Control commands are taken before each packet; call
/// [`poll`](Self::poll) when no packet comes, every millisecond or so, so that they are taken then too.
///
/// Time is what the caller says: microseconds since the switch started, never going back (an earlier value
/// counts as the latest seen). A CPU packet-out is `process` with the CPU port as ingress port and the
/// packet-out header in front; a packet-in is what is emitted to the CPU port.
pub struct DataPath {
    home: Home,
    core: Core,
    inbox: Arc<Inbox>,
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
pub(crate) struct Core {
    config: SwitchConfig,
    vm: Vm,
    traced: bool,
    /// Serial number of the pipeline the frame is loaded for, and whether it is for traces.
    loaded: (u64, bool),
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

    pub(crate) fn new(core: Core, home: Home, inbox: Arc<Inbox>) -> DataPath {
        DataPath { home, core, inbox }
    }

    /// Runs one packet. `frame` begins with the Ethernet header (or whatever the program parses first) and is
    /// at most [`MAX_FRAME`](Self::MAX_FRAME) bytes, else it is dropped and counted.
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
        self.core.traced = true;
        self.core.vm.trace = Some(Vec::new());
        self.run(now_us, ingress_port, frame, out);
        let steps = self.core.vm.trace.take().unwrap_or_default();
        self.core.traced = false;
        Trace { time_us: self.core.vm.now_us, ingress_port, length: frame.len(), steps }
    }

    /// Says what would happen to a packet, and what would come out, and changes nothing: it runs on a copy of
    /// the state (tables, registers, meters), which takes some milliseconds where these are large. Random
    /// numbers and turns are those of the next packet.
    pub fn dry_run(&mut self, now_us: u64, ingress_port: u32, frame: &[u8], out: &mut impl Output) -> Trace {
        self.take_commands();
        let copy = self.home.with(|live| live.map(|l| Arc::new(l.copy())));
        let mut path = DataPath::new(self.core.apart(), Home::Own(copy), Arc::new(Inbox::closed()));
        path.trace(now_us.max(self.core.vm.now_us), ingress_port, frame, out)
    }

    /// Takes control commands and sends what is due from queues with a rate. Returns when to call again at the
    /// latest because of such a queue (microseconds on the switch's clock), if any packet waits in one.
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
            head: Vec::new(),
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

    /// From now on other threads run packets with the same state.
    pub(crate) fn shared(mut self) -> Core {
        self.vm.many = true;
        self
    }

    /// One whose packets nobody hears of.
    fn apart(&self) -> Core {
        let mut core = Core::new(self.config.clone(), Arc::default(), sync_channel(1).0, sync_channel(1).0);
        (core.vm.rng, core.vm.round_robin, core.vm.now_us) =
            (self.vm.rng, self.vm.round_robin, self.vm.now_us);
        core
    }

    /// Readies the frame for the pipeline and the code that runs, if it was another's.
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
            // Packets in queues belong to the old program: they are gone with it, as in BMv2.
            self.drop_queued();
        }
        self.loaded = (live.rt.serial, self.traced);
    }

    /// A packet that comes in.
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

    /// Runs a part of the program, as machine code if there is any.
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
