//! A worker thread: receives, processes and sends packets. There is one, or several that share the
//! frames of each port by flow.

mod changes;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rivulet_engine::Output;
use rivulet_link::poll::{Poller, now, precise_timers};
use rivulet_p4rt::PacketInSender;
use rivulet_pktio::IoError;
use rivulet_pktio::monitor::LinkMonitor;

use crate::port::Port;
use crate::ports::Inbox;
use crate::processor::Processor;
use crate::trace_log::TraceLog;

const STOP: u64 = 0;
const INBOX: u64 = 1;
/// Slot numbers of namespace monitors start here; ports use smaller ones.
const MONITORS: u64 = 1 << 16;
const PORTS: u64 = 1 << 20;

const NS_PER_US: u64 = 1_000;
/// Interval of polling for control commands and retries while packets arrive, and for a while
/// after.
const SHORT_NAP: u64 = 1_000_000;
/// The interval when no packet arrived for [`QUIET`].
const LONG_NAP: u64 = 2_000_000;
const QUIET: u64 = 100_000_000;
/// Interval of updating counters, flushing pcap files, and reopening lost interfaces.
const TICK: u64 = 250_000_000;
/// Largest number of packet-outs in one batch, so that they do not delay packets.
const PACKET_OUTS: usize = 64;

/// Counters outside of ports.
#[derive(Debug, Default)]
pub struct WorkerCounters {
    /// Frames for a port that does not exist.
    pub no_such_port: AtomicU64,
    /// Packet-outs processed.
    pub packet_outs: AtomicU64,
}

/// Settings of a worker.
pub struct WorkerConfig {
    /// Port of packet-in and packet-out, and the channel for packet-ins.
    pub cpu: Option<(u32, PacketInSender)>,
    /// Bytes of each packet to log.
    pub dump_packet_data: usize,
    /// Destination of traces of all packets.
    pub trace: Option<TraceLog>,
    /// Counters for other threads.
    pub counters: Arc<WorkerCounters>,
    /// Start of the switch's clock, a value of [`now`].
    pub start: u64,
    /// Whether to skip messages that the first worker logs too.
    pub quiet: bool,
}

/// The ports and the tables for finding them.
struct Outputs {
    slots: Vec<Option<Port>>,
    /// Slot of each port number; numbers below 512 by index.
    low: Box<[u32; 512]>,
    high: HashMap<u32, u32>,
    cpu: Option<(u32, PacketInSender)>,
    /// Slots to flush.
    dirty: Vec<u32>,
    now: u64,
    dump: usize,
    counters: Arc<WorkerCounters>,
}

const NONE: u32 = u32::MAX;

impl Outputs {
    fn slot(&self, number: u32) -> Option<usize> {
        let slot = match self.low.get(number as usize) {
            Some(slot) => *slot,
            None => *self.high.get(&number)?,
        };
        (slot != NONE).then_some(slot as usize)
    }

    fn set_slot(&mut self, number: u32, slot: Option<usize>) {
        let slot = slot.map_or(NONE, |s| s as u32);
        match self.low.get_mut(number as usize) {
            Some(entry) => *entry = slot,
            None => {
                self.high.insert(number, slot);
            }
        }
    }

    fn port(&mut self, slot: usize) -> Option<&mut Port> {
        self.slots.get_mut(slot)?.as_mut()
    }
}

impl Output for Outputs {
    fn emit(&mut self, port: u32, head: &[u8], rest: &[u8]) {
        if self.dump > 0 {
            dump("out of", port, head, rest, self.dump);
        }
        if let Some((cpu, sender)) = &self.cpu
            && *cpu == port
        {
            // The sender counts it if the controller is too slow.
            sender.send(head, rest);
            return;
        }
        let (slot, now) = (self.slot(port), self.now);
        match slot.and_then(|s| self.slots[s].as_mut()) {
            Some(p) => {
                if p.emit(now, head, rest) {
                    self.dirty.extend(slot.map(|s| s as u32));
                }
            }
            None => {
                self.counters.no_such_port.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Collects the output of a traced frame instead of sending it.
struct Captured(Vec<(u32, Vec<u8>)>);

impl Output for Captured {
    fn emit(&mut self, port: u32, head: &[u8], rest: &[u8]) {
        self.0.push((port, [head, rest].concat()));
    }
}

fn dump(way: &str, port: u32, head: &[u8], rest: &[u8], most: usize) {
    let len = head.len() + rest.len();
    let hex: String = head.iter().chain(rest).take(most).map(|b| format!("{b:02x}")).collect();
    tracing::info!("{len} bytes {way} port {port}: {hex}");
}

/// The packet loop and its state.
pub struct Worker<P> {
    processor: P,
    out: Outputs,
    inbox: Inbox,
    poller: Poller,
    monitors: Vec<(Option<String>, LinkMonitor)>,
    trace: Option<TraceLog>,
    start: u64,
    quiet: bool,
    /// When the processor must be polled, in microseconds of its clock.
    poll_at: Option<u64>,
}

impl<P: Processor> Worker<P> {
    /// Creates a worker without ports.
    pub fn new(processor: P, inbox: Inbox, config: WorkerConfig) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(inbox.as_fd(), INBOX, false)?;
        let out = Outputs {
            slots: Vec::new(),
            low: Box::new([NONE; 512]),
            high: HashMap::new(),
            cpu: config.cpu,
            dirty: Vec::new(),
            now: now(),
            dump: config.dump_packet_data,
            counters: config.counters,
        };
        Ok(Worker {
            processor,
            out,
            inbox,
            poller,
            monitors: Vec::new(),
            trace: config.trace,
            start: config.start,
            quiet: config.quiet,
            poll_at: None,
        })
    }

    /// The switch's clock in microseconds.
    fn clock(&mut self) -> u64 {
        self.out.now = now();
        (self.out.now - self.start) / NS_PER_US
    }

    /// Forwards packets until `stop` is readable.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        precise_timers();
        self.poller.add(stop, STOP, false)?;
        let (mut tick, mut last_packet) = (now(), 0);
        let mut ready = Vec::with_capacity(64);
        loop {
            let wait = self.next_time(last_packet, tick).saturating_sub(now());
            self.poller.wait(Some(Duration::from_nanos(wait)))?;
            let (mut ended, mut inbox, mut monitors) = (false, false, false);
            ready.clear();
            for event in self.poller.events() {
                match event.token {
                    STOP => ended = true,
                    INBOX => inbox = true,
                    token if token >= PORTS => ready.push((token - PORTS) as usize),
                    _ => monitors = true,
                }
            }
            if ended {
                self.finish();
                return Ok(());
            }
            let mut packets = 0;
            for slot in &ready {
                packets += self.receive(*slot);
                self.flush();
            }
            if inbox {
                self.inbox.clear();
                // In this order, so that a packet-out can use a port that was added before.
                self.commands()?;
                packets += self.packet_outs();
            }
            if monitors {
                self.link_events();
            }
            let clock = self.clock();
            if packets > 0 {
                last_packet = self.out.now;
            }
            if packets == 0 || self.poll_at.is_some_and(|at| at <= clock) {
                self.poll_at = self.processor.poll(clock, &mut self.out);
            }
            self.flush();
            self.deliver();
            if self.out.now >= tick {
                self.tick()?;
                tick = self.out.now + TICK;
            }
        }
    }

    /// The next time at which something is due without a packet.
    fn next_time(&self, last_packet: u64, tick: u64) -> u64 {
        let nap = if self.out.now < last_packet + QUIET { SHORT_NAP } else { LONG_NAP };
        let poll = self.poll_at.map(|us| self.start + us * NS_PER_US);
        let links = self.out.slots.iter().flatten().filter_map(|p| p.link.as_ref()?.next_time());
        links.chain(poll).chain([tick]).fold(self.out.now + nap, u64::min)
    }

    /// Processes one batch of frames from a port.
    fn receive(&mut self, slot: usize) -> usize {
        let Some(port) = self.out.port(slot) else { return 0 };
        let number = port.number;
        // The port is out of the table while its frames are borrowed, so that other ports can be
        // written to.
        let Some(mut io) = port.io.take() else { return 0 };
        let result = io.recv();
        if let Ok(n) = &result {
            for i in 0..*n {
                let clock = self.clock();
                let frame = io.frame(i);
                self.run_one(clock, slot, number, frame.data);
                if let Some(port) = self.out.port(slot).filter(|p| !p.hairpin_lens.is_empty()) {
                    port.send_hairpin(&mut *io);
                    if !std::mem::replace(&mut port.dirty, true) {
                        self.out.dirty.push(slot as u32);
                    }
                }
            }
        }
        if let Some(port) = self.out.port(slot) {
            port.io = Some(io);
        }
        match result {
            Ok(n) => n,
            Err(e) => {
                self.failed(slot, &e);
                0
            }
        }
    }

    fn run_one(&mut self, clock: u64, slot: usize, number: u32, frame: &[u8]) {
        if let Some(pcap) = self.out.port(slot).and_then(|p| p.pcap.as_mut()) {
            pcap.input.write(frame, &[]);
        }
        if self.out.dump > 0 {
            dump("into", number, frame, &[], self.out.dump);
        }
        match &mut self.trace {
            None => self.processor.process(clock, number, frame, &mut self.out),
            Some(log) => {
                let trace = self.processor.process_traced(clock, number, frame, &mut self.out);
                log.write(&trace);
            }
        }
    }

    /// Handles the failure of an interface.
    fn failed(&mut self, slot: usize, error: &IoError) {
        let Some(port) = self.out.port(slot) else { return };
        port.shared.up.store(false, Ordering::Relaxed);
        match error {
            IoError::Down(_) if self.quiet => {}
            IoError::Down(_) => tracing::info!("port {}: {error}", port.number),
            IoError::Gone(_) => {
                if !std::mem::replace(&mut port.gone, true) {
                    if !self.quiet {
                        tracing::warn!("port {}: {error}", port.number);
                    }
                    if let Some(io) = &port.io {
                        // Its descriptor reports errors permanently; it is added again after
                        // reopening.
                        let _ = self.poller.remove(io.as_fd());
                    }
                }
            }
            IoError::Os { .. } => tracing::error!("port {}: {error}", port.number),
        }
    }

    /// Sends the frames written to ports.
    fn flush(&mut self) {
        while let Some(slot) = self.out.dirty.pop() {
            let result = self.out.port(slot as usize).map(Port::flush);
            if let Some(Err(e)) = result {
                self.sending_failed(slot as usize, &e);
            }
        }
    }

    /// Handles an error of sending: frames for an interface that is down are lost, and only changes
    /// are logged.
    fn sending_failed(&mut self, slot: usize, error: &IoError) {
        let news = self.out.port(slot).is_some_and(|p| p.shared.up.load(Ordering::Relaxed) && !p.gone);
        if news || matches!(error, IoError::Gone(_)) {
            self.failed(slot, error);
        }
    }

    /// Sends frames that have reached the end of their links.
    fn deliver(&mut self) {
        for slot in 0..self.out.slots.len() {
            let now = self.out.now;
            let result = self.out.port(slot).map(|p| p.deliver(now));
            if let Some(Err(e)) = result {
                self.sending_failed(slot, &e);
            }
        }
    }

    fn packet_outs(&mut self) -> usize {
        let Some((cpu, _)) = self.out.cpu else { return 0 };
        let mut n = 0;
        while n < PACKET_OUTS {
            let Ok(frame) = self.inbox.packet_outs.try_recv() else { return n };
            let clock = self.clock();
            if self.out.dump > 0 {
                dump("into", cpu, &frame, &[], self.out.dump);
            }
            match &mut self.trace {
                None => self.processor.process(clock, cpu, &frame, &mut self.out),
                Some(log) => {
                    let trace = self.processor.process_traced(clock, cpu, &frame, &mut self.out);
                    log.write(&trace);
                }
            }
            self.out.counters.packet_outs.fetch_add(1, Ordering::Relaxed);
            n += 1;
        }
        // More may wait: continue after the ports had their turn.
        self.inbox.ring();
        n
    }

    fn tick(&mut self) -> io::Result<()> {
        for slot in 0..self.out.slots.len() {
            self.ask(slot);
            let Some(port) = self.out.port(slot) else { continue };
            port.publish();
            if let Some(pcap) = &mut port.pcap {
                pcap.flush();
            }
            // Retry frames that did not fit at the last flush.
            if port.io.as_ref().is_some_and(|io| io.pending() > 0) {
                self.out.dirty.push(slot as u32);
            }
        }
        if let Some(log) = &mut self.trace {
            log.flush();
        }
        Ok(())
    }

    /// Sends and flushes everything that is left.
    fn finish(&mut self) {
        self.flush();
        for port in self.out.slots.iter_mut().flatten() {
            port.publish();
            if let Some(pcap) = &mut port.pcap {
                pcap.flush();
            }
        }
        if let Some(log) = &mut self.trace {
            log.flush();
        }
    }
}
