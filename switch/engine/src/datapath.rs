//! The packet path.

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

    /// A new packet's metadata.
    fn begin(&mut self, program: &Program, port: u32, length: usize) {
        self.passes = 0;
        self.copies = 0;
        self.vm.clear(program);
        let s = &program.special;
        self.set(s.ingress_port, port.into());
        self.set(s.packet_length, length as u64);
        self.set(s.ingress_timestamp, self.vm.now_us);
        self.vm.frame[s.length as usize] = length as u64;
    }

    /// A packet that came in, and all that comes of it.
    fn packet(&mut self, program: &Program, rt: &mut Runtime, frame: &[u8], port: u32, out: &mut dyn Output) {
        let length = frame.len();
        let current =
            Current { bytes: Bytes::Frame, length, ingress_length: length as u64, ingress_port: port };
        self.ingress(program, rt, frame, current, out);
        self.work(program, rt, frame, out);
    }

    /// Runs what waits.
    #[inline]
    fn work(&mut self, program: &Program, rt: &mut Runtime, frame: &[u8], out: &mut dyn Output) {
        while let Some(job) = self.jobs.pop_front() {
            self.job(program, rt, frame, job, out);
        }
        if !self.vm.logs.is_empty() {
            for text in std::mem::take(&mut self.vm.logs) {
                if self.logs.try_send(text).is_err() {
                    bump(&self.stats.logs_lost);
                }
            }
        }
    }

    fn job(&mut self, program: &Program, rt: &mut Runtime, frame: &[u8], job: Job, out: &mut dyn Output) {
        let Job { phv, bytes, length, taken, ingress_length, ingress_port, egress, .. } = job;
        self.restore(&phv);
        self.phvs.push(phv);
        let current = Current { bytes, length, ingress_length, ingress_port };
        match egress {
            Some(port) => self.egress(program, rt, frame, &current, taken, port, out),
            None => self.ingress(program, rt, frame, current, out),
        }
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

    /// Starts the metadata over but for the fields of a list.
    fn keep_list(&mut self, program: &Program, list: u64, headers_too: bool) {
        let found = program.field_lists.iter().find(|l| u64::from(l.0) == list);
        let fields: &[Field] = found.map_or(&[], |l| &l.1);
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        let slots = |f: &Field| f.slot as usize..f.slot as usize + limb_count(f.width);
        for f in fields.iter().filter(|f| !f.vl) {
            kept.extend_from_slice(&self.vm.frame[slots(f)]);
        }
        if headers_too {
            self.vm.clear(program);
        } else {
            self.clear_metadata(program);
        }
        let mut at = 0;
        for f in fields.iter().filter(|f| !f.vl) {
            let n = limb_count(f.width);
            self.vm.frame[slots(f)].copy_from_slice(&kept[at..at + n]);
            at += n;
        }
        self.kept = kept;
    }

    fn clear_metadata(&mut self, program: &Program) {
        for (base, end) in &program.metadata {
            self.vm.frame[*base as usize..*end as usize].fill(0);
            self.vm.frame[*base as usize] = 1;
        }
        let s = &program.special;
        let length = self.vm.frame[s.length as usize];
        self.vm.frame[s.first as usize..(s.first + s.count) as usize].fill(0);
        self.vm.frame[s.length as usize] = length;
        self.vm.frame[s.truncate as usize] = u64::MAX;
        self.vm.frame[s.error as usize] = program.errors.none;
    }

    /// Gives the packet up if an assertion failed.
    fn faulted(&mut self, program: &Program) -> bool {
        let Some(id) = self.vm.fault.take() else { return false };
        bump(&self.stats.faults);
        let text = program.asserts.get(id as usize).cloned().unwrap_or_else(|| "a loop without end".into());
        self.note(|| Step::Drop { reason: text.clone() });
        if self.logs.try_send(text).is_err() {
            bump(&self.stats.logs_lost);
        }
        true
    }

    /// Counts a pass; false beyond the bound.
    fn another_pass(&mut self) -> bool {
        self.passes += 1;
        if self.passes <= self.config.max_passes {
            return true;
        }
        bump(&self.stats.pass_limit);
        self.drop_step("too many passes");
        false
    }

    fn pass_step(&mut self, program: &Program, pipeline: &str, port: Option<u32>) {
        let kind = match self.get(program.special.instance_type) {
            instance::NORMAL => "normal",
            instance::INGRESS_CLONE | instance::EGRESS_CLONE => "clone",
            instance::RECIRC => "recirculate",
            instance::REPLICATION => "replica",
            instance::RESUBMIT => "resubmit",
            _ => "other",
        };
        self.note(|| Step::Pass { kind: kind.into(), pipeline: pipeline.into(), port });
    }

    /// Parser, ingress and what simple_switch does after it. Resubmissions go round here.
    fn ingress(
        &mut self,
        program: &Program,
        rt: &mut Runtime,
        frame: &[u8],
        current: Current,
        out: &mut dyn Output,
    ) {
        let code = self.code(program);
        let s = &program.special;
        loop {
            let data = match &current.bytes {
                Bytes::Frame => &frame[..current.length],
                Bytes::Own(b) => &b[..current.length.min(b.len())],
            };
            if self.traced {
                self.pass_step(program, "ingress", None);
            }
            let ingress_size = self.vm.frame[s.length as usize];
            let mut packet = Packet { data, taken: 0, ingress_length: current.ingress_length };
            self.execute(program, rt, &mut packet, code.parser);
            if self.vm.fault.is_some() && self.faulted(program) {
                return;
            }
            let error = self.vm.frame[s.error as usize];
            if error != program.errors.none {
                bump(&self.stats.parser_errors);
            }
            self.set(s.parser_error, error);
            let bad = self.vm.frame[s.bad_sum as usize];
            self.set(s.checksum_error, bad);

            self.execute(program, rt, &mut packet, code.ingress);
            if self.vm.fault.is_some() && self.faulted(program) {
                return;
            }
            self.vm.frame[s.exit as usize] = 0;

            let clone = self.vm.frame[s.clone as usize];
            if clone != 0 {
                self.vm.frame[s.clone as usize] = 0;
                let list = self.vm.frame[s.clone_list as usize];
                self.ingress_clone(program, rt, &current, data, clone & 0x7fff, list, ingress_size, frame);
            }
            let digest = self.vm.frame[s.digest as usize];
            if digest != 0 {
                self.digest(program, rt, digest);
                // Not again in egress.
                self.vm.frame[s.digest as usize] = 0;
            }
            let resubmit = self.vm.frame[s.resubmit as usize];
            if resubmit != 0 {
                if !self.another_pass() {
                    return;
                }
                self.note(|| Step::Again { kind: "resubmit".into() });
                self.keep_list(program, resubmit, true);
                self.set(s.instance_type, instance::RESUBMIT);
                self.set(s.packet_length, ingress_size);
                self.vm.frame[s.length as usize] = ingress_size;
                continue;
            }
            let taken = packet.taken;
            let group = self.get(s.mcast_grp);
            if group != 0 {
                self.set(s.instance_type, instance::REPLICATION);
                self.multicast(program, rt, &current, taken, group as u16, frame);
                return;
            }
            let port = self.get(s.egress_spec) as u32;
            let drop_port = u64::from(self.config.drop_port);
            if u64::from(port) == drop_port {
                bump(&self.stats.ingress_dropped);
                self.drop_step("end of ingress");
                return;
            }
            self.set(s.instance_type, instance::NORMAL);
            if self.jobs.is_empty() && self.ports.is_empty() && self.all_ports.is_none() {
                if self.priority(program).is_some() {
                    self.set(s.enq_timestamp, self.vm.now_us);
                    self.set(s.enq_qdepth, 0);
                    self.egress(program, rt, frame, &current, taken, port, out);
                }
            } else {
                self.enqueue(program, &current, taken, port, frame);
            }
            return;
        }
    }

    /// The queue a packet asks for; `None` (and a count) if there is no such queue.
    fn priority(&mut self, program: &Program) -> Option<usize> {
        let priority = self.get(program.special.priority);
        if priority < u64::from(self.config.priority_queues.max(1)) {
            return Some(priority as usize);
        }
        bump(&self.stats.queue_full);
        self.drop_step("no queue of that priority");
        None
    }

    /// Puts the packet in the frame aside for an egress pass.
    fn enqueue(&mut self, program: &Program, current: &Current, taken: usize, port: u32, frame: &[u8]) {
        let Some(priority) = self.priority(program) else { return };
        let depth = self.ports.get(&port).map_or(0, |q| q.len(priority)) as u64;
        self.set(program.special.enq_timestamp, self.vm.now_us);
        self.set(program.special.enq_qdepth, depth);
        let mut job = Job {
            phv: self.save(program),
            bytes: current.bytes.clone(),
            length: current.length,
            taken,
            ingress_length: current.ingress_length,
            ingress_port: current.ingress_port,
            egress: Some(port),
            priority,
        };
        let rated = self.ports.contains_key(&port) || self.all_ports.is_some();
        if !rated {
            self.jobs.push_back(job);
            return;
        }
        // It will outlive the frame.
        if let Bytes::Frame = job.bytes {
            job.bytes = Bytes::Own(self.buffer(|b| b.extend_from_slice(&frame[..current.length])));
        }
        let (now, queues) = (self.vm.now_us, self.config.priority_queues.max(1) as usize);
        if let Some((rate, depth)) = self.all_ports {
            self.ports.entry(port).or_insert_with(|| PortQueue::new(rate, depth, queues));
        }
        if let Some(q) = self.ports.get_mut(&port)
            && let Err(job) = q.push(job, now)
        {
            self.phvs.push(job.phv);
            bump(&self.stats.queue_full);
            self.drop_step("queue full");
        }
    }

    /// A buffer that nobody else holds, filled.
    fn buffer(&mut self, fill: impl FnOnce(&mut Vec<u8>)) -> Arc<Vec<u8>> {
        const POOL: usize = 64;
        let free = self.buffers.iter().position(|b| Arc::strong_count(b) == 1);
        let mut own = match free {
            Some(i) => self.buffers.swap_remove(i),
            None => Arc::new(Vec::new()),
        };
        match Arc::get_mut(&mut own) {
            Some(b) => {
                b.clear();
                fill(b);
            }
            None => {
                let mut b = Vec::new();
                fill(&mut b);
                own = Arc::new(b);
            }
        }
        if self.buffers.len() < POOL {
            self.buffers.push(own.clone());
        }
        own
    }

    /// Counts a copy; false beyond the bound.
    fn another_copy(&mut self, kind: &str, port: u32) -> bool {
        self.copies += 1;
        if self.copies <= self.config.max_copies {
            self.note(|| Step::Copy { kind: kind.into(), port });
            return true;
        }
        bump(&self.stats.pass_limit);
        self.drop_step("too many copies");
        false
    }

    fn replicate(
        &mut self,
        program: &Program,
        current: &Current,
        taken: usize,
        to: &Replica,
        kind: &str,
        frame: &[u8],
    ) {
        if self.another_copy(kind, to.port) {
            self.set(program.special.egress_rid, to.instance.into());
            self.enqueue(program, current, taken, to.port, frame);
        }
    }

    fn multicast(
        &mut self,
        program: &Program,
        rt: &Runtime,
        current: &Current,
        taken: usize,
        group: u16,
        frame: &[u8],
    ) {
        let replicas = rt.multicast.get(&group).map_or(&[][..], |r| r);
        if replicas.is_empty() {
            bump(&self.stats.no_multicast_group);
            self.drop_step("multicast group without replicas");
        }
        // Flags of the packet are not those of its copies.
        let s = &program.special;
        for slot in [s.clone, s.clone_list, s.digest, s.resubmit, s.recirculate] {
            self.vm.frame[slot as usize] = 0;
        }
        for to in replicas {
            self.replicate(program, current, taken, to, "multicast", frame);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn ingress_clone(
        &mut self,
        program: &Program,
        rt: &mut Runtime,
        current: &Current,
        data: &[u8],
        session: u64,
        list: u64,
        ingress_size: u64,
        frame: &[u8],
    ) {
        let Some(clone) = rt.clones.get(&(session as u32)).cloned() else { return };
        let s = &program.special;
        let original = self.save(program);
        let length = (data.len() as u64).min(self.vm.frame[s.truncate as usize]) as usize;
        // The clone is parsed again from what came in; its metadata is that of the list only.
        let found = program.field_lists.iter().find(|l| u64::from(l.0) == list);
        let fields: SmallVec<[Field; 16]> = found.map_or(SmallVec::new(), |l| l.1.iter().copied().collect());
        self.vm.clear(program);
        self.set(s.ingress_port, current.ingress_port.into());
        self.vm.frame[s.length as usize] = ingress_size;
        let mut packet = Packet { data: &data[..length], taken: 0, ingress_length: current.ingress_length };
        let code = self.code(program);
        let trace = self.vm.trace.take();
        self.execute(program, rt, &mut packet, code.parser);
        self.vm.trace = trace;
        self.vm.fault = None;
        let taken = packet.taken;
        self.clear_metadata(program);
        for f in fields.iter().filter(|f| !f.vl) {
            let at = f.slot as usize..f.slot as usize + limb_count(f.width);
            self.vm.frame[at.clone()].copy_from_slice(&original.slots[at]);
        }
        self.set(s.instance_type, instance::INGRESS_CLONE);
        self.vm.frame[s.truncate as usize] = clone.truncate;
        let copy = Current { length, ..current.clone() };
        self.send_clones(program, rt, &copy, taken, &clone, "ingress clone", frame);
        self.restore(&original);
        self.phvs.push(original);
    }

    #[allow(clippy::too_many_arguments)]
    fn send_clones(
        &mut self,
        program: &Program,
        rt: &Runtime,
        copy: &Current,
        taken: usize,
        clone: &crate::runtime::RtClone,
        kind: &str,
        frame: &[u8],
    ) {
        if self.config.priority_queues > 1 {
            self.set(program.special.priority, clone.class_of_service.into());
        }
        if let Some(group) = clone.group {
            for to in rt.multicast.get(&group).map_or(&[][..], |r| r) {
                self.replicate(program, copy, taken, to, kind, frame);
            }
        }
        for to in &clone.replicas {
            self.replicate(program, copy, taken, to, kind, frame);
        }
    }

    fn digest(&mut self, program: &Program, rt: &Runtime, id: u64) {
        let Some(index) = program.digests.iter().position(|d| u64::from(d.0) == id) else { return };
        let name = &program.info.digests[index].name;
        self.note(|| Step::Digest { name: name.clone() });
        if !rt.digests_on[index] {
            return;
        }
        let mut data = SmallVec::new();
        for f in &program.digests[index].1 {
            let limbs = &self.vm.frame[f.slot as usize..][..limb_count(f.width)];
            padded(limbs.iter().copied(), f.width, |b| data.push(b));
        }
        let sample = DigestSample {
            digest: DigestId(index as u32),
            pipeline: rt.serial,
            time_us: self.vm.now_us,
            data,
        };
        if self.digests.try_send(sample).is_err() {
            bump(&self.stats.digests_lost);
        }
    }

    /// Egress, deparser and what simple_switch does after them.
    #[allow(clippy::too_many_arguments)]
    fn egress(
        &mut self,
        program: &Program,
        rt: &mut Runtime,
        frame: &[u8],
        current: &Current,
        taken: usize,
        port: u32,
        out: &mut dyn Output,
    ) {
        let code = self.code(program);
        let s = &program.special;
        let data = match &current.bytes {
            Bytes::Frame => &frame[..current.length],
            Bytes::Own(b) => &b[..current.length.min(b.len())],
        };
        self.set(s.egress_timestamp, self.vm.now_us);
        let waited = self.vm.now_us.wrapping_sub(self.get(s.enq_timestamp));
        self.set(s.deq_timedelta, waited);
        if s.deq_qdepth.is_some() {
            let priority = self.get(s.priority) as usize;
            let depth = self.ports.get(&port).map_or(0, |q| q.len(priority)) as u64;
            self.set(s.deq_qdepth, depth);
            self.set(s.qid, priority as u64);
        }
        self.set(s.egress_port, port.into());
        self.set(s.egress_spec, u64::from(self.config.drop_port) + 1);
        let length = self.vm.frame[s.length as usize];
        self.set(s.packet_length, length);
        if self.traced {
            self.pass_step(program, "egress", Some(port));
        }
        let mut packet = Packet { data, taken, ingress_length: current.ingress_length };
        self.execute(program, rt, &mut packet, code.egress);
        if self.vm.fault.is_some() && self.faulted(program) {
            return;
        }
        self.vm.frame[s.exit as usize] = 0;
        let clone = self.vm.frame[s.clone as usize];
        if clone != 0 {
            self.vm.frame[s.clone as usize] = 0;
            if let Some(config) = rt.clones.get(&((clone & 0x7fff) as u32)).cloned() {
                self.egress_clone(program, rt, current, taken, &config, frame);
            }
        }
        if self.get(s.egress_spec) == u64::from(self.config.drop_port) {
            bump(&self.stats.egress_dropped);
            self.drop_step("end of egress");
            return;
        }
        self.execute(program, rt, &mut packet, code.deparser);
        if self.vm.fault.is_some() && self.faulted(program) {
            return;
        }
        let mut head = std::mem::take(&mut self.head);
        self.vm.deparse(program, &mut head);
        let rest = &data[packet.taken.min(data.len())..];
        let most = self.vm.frame[s.truncate as usize];
        let keep = ((head.len() + rest.len()) as u64).min(most) as usize;
        let head_keep = keep.min(head.len());
        let (first, second) = (&head[..head_keep], &rest[..keep - head_keep]);
        let again = self.vm.frame[s.recirculate as usize];
        if again != 0 {
            if self.another_pass() {
                self.note(|| Step::Again { kind: "recirculate".into() });
                let bytes = self.buffer(|b| {
                    b.extend_from_slice(first);
                    b.extend_from_slice(second);
                });
                self.keep_list(program, again, true);
                self.set(s.instance_type, instance::RECIRC);
                self.set(s.packet_length, keep as u64);
                self.vm.frame[s.length as usize] = keep as u64;
                let job = Job {
                    phv: self.save(program),
                    bytes: Bytes::Own(bytes),
                    length: keep,
                    taken: 0,
                    ingress_length: keep as u64,
                    ingress_port: current.ingress_port,
                    egress: None,
                    priority: 0,
                };
                self.jobs.push_back(job);
            }
        } else {
            bump(&self.stats.emitted);
            self.note(|| Step::Emit { port, length: keep });
            out.emit(port, first, second);
        }
        self.head = head;
    }

    fn egress_clone(
        &mut self,
        program: &Program,
        rt: &Runtime,
        current: &Current,
        taken: usize,
        clone: &crate::runtime::RtClone,
        frame: &[u8],
    ) {
        let s = &program.special;
        let original = self.save(program);
        let list = self.vm.frame[s.clone_list as usize];
        let cut = self.vm.frame[s.truncate as usize];
        self.keep_list(program, list, false);
        self.set(s.instance_type, instance::EGRESS_CLONE);
        self.vm.frame[s.truncate as usize] = clone.truncate;
        let rest = (current.length.saturating_sub(taken) as u64).min(cut) as usize;
        let copy = Current { length: taken + rest, ..current.clone() };
        self.send_clones(program, rt, &copy, taken, clone, "egress clone", frame);
        self.restore(&original);
        self.phvs.push(original);
    }

    fn set_queue(&mut self, port: Option<u32>, rate_pps: Option<u64>, depth: usize) {
        let queues = self.config.priority_queues.max(1) as usize;
        match (port, rate_pps) {
            (Some(port), Some(rate)) => {
                self.ports
                    .entry(port)
                    .or_insert_with(|| PortQueue::new(rate, depth, queues))
                    .set(rate, depth);
            }
            (Some(port), None) => {
                if let Some(q) = self.ports.get_mut(&port) {
                    q.set(u64::MAX, depth);
                }
            }
            (None, Some(rate)) => {
                self.all_ports = Some((rate, depth));
                self.ports.values_mut().for_each(|q| q.set(rate, depth));
            }
            (None, None) => {
                self.all_ports = None;
                self.ports.values_mut().for_each(|q| q.set(u64::MAX, depth));
            }
        }
    }

    fn drop_queued(&mut self) {
        self.ports.values_mut().for_each(|q| q.clear());
        self.jobs.clear();
    }

    /// Sends what is due; when the next is.
    fn due(&mut self, program: &Program, rt: &mut Runtime, out: &mut dyn Output) -> Option<u64> {
        loop {
            let now = self.vm.now_us;
            let job = self.ports.values_mut().find_map(|q| q.pop(now));
            let Some(job) = job else { break };
            self.passes = 0;
            self.copies = 0;
            self.job(program, rt, &[], job, out);
            self.work(program, rt, &[], out);
        }
        if self.all_ports.is_none() {
            // Queues without a rate are none.
            self.ports.retain(|_, q| q.rated() || !q.is_empty());
        }
        self.ports.values().filter_map(|q| q.next_due()).min()
    }
}
