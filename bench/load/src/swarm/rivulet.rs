//! Rivulet clients: the transport's connections on one packet socket, without a kernel socket for each.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rivulet_client::NextHop;
use rivulet_packet::option::EX_ID;
use rivulet_pktio::filter::{Rule, TcpRule};
use rivulet_pktio::guard::KernelGuard;
use rivulet_pktio::{ChecksumPolicy, Filter, Interface, PacketIo};
use rivulet_transport::Time;
use rivulet_transport::client::{Config, Connection, Event, Read};

use super::{Arrivals, LONGEST, Swarm, settle, wait};
use crate::report::Outcome;
use crate::response::Parser;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Local ports used.
const PORTS: std::ops::RangeInclusive<u16> = 1024..=65_535;
/// Batches of packets between two checks of the timers.
const MAX_BATCHES: usize = 16;
/// Stored address tokens.
const TOKENS: usize = 4096;

struct Client {
    connection: Connection,
    parser: Parser,
    began: Instant,
    timer: Option<Time>,
    /// Answered, and kept open.
    held: bool,
}

/// A local address and port, as the key of a connection.
type Local = (IpAddr, u16);

struct Loop<'a> {
    swarm: &'a Swarm,
    io: Box<dyn PacketIo>,
    hop: NextHop,
    source_mac: [u8; 6],
    mtu: u16,
    started: Instant,
    clients: HashMap<Local, Client>,
    timers: BinaryHeap<Reverse<(Time, Local)>>,
    sources: Vec<IpAddr>,
    next: u64,
    /// Connections with a packet in this batch.
    touched: Vec<Local>,
    tokens: VecDeque<Vec<u8>>,
    arrivals: Arrivals,
    outcome: Outcome,
    buffer: Vec<u8>,
}

/// Runs until the time is over and the last request is answered. `held` is called once all connections are
/// held; until `released` only packets that keep them are sent. If none are to be held, no request begins
/// after `released`.
///
/// # Errors
/// Errors of the packet socket.
pub fn run(swarm: &Swarm, held: impl FnOnce(), released: &AtomicBool) -> anyhow::Result<Outcome> {
    let hop = rivulet_client::resolve(swarm.server.ip())?;
    let sources = if swarm.sources.is_empty() { vec![hop.source] } else { swarm.sources.clone() };
    let rule = TcpRule { exid: Some(EX_ID), destinations: sources.clone(), ..TcpRule::default() };
    let interface = Interface::new(None, &hop.interface)?;
    let _guard = KernelGuard::install(None, &[&hop.interface], std::slice::from_ref(&rule))?;
    let config = rivulet_pktio::Config {
        checksum: ChecksumPolicy::Complete,
        promiscuous: false,
        rx_bytes: 16 << 20,
        filter: Some(Filter::new(&[Rule::Tcp(rule)])?),
        ..rivulet_pktio::Config::default()
    };
    let io = swarm.io.open(&interface, |_| Ok(config.clone()))?.io;
    let link = io.link()?;
    let mut this = Loop {
        swarm,
        io,
        source_mac: link.mac,
        mtu: link.mtu.clamp(576, 9216) as u16,
        hop,
        started: Instant::now(),
        clients: HashMap::new(),
        timers: BinaryHeap::new(),
        sources,
        // Ports differ from run to run, because a server may remember the last run's connections.
        next: u64::from(std::process::id()) * 977,
        touched: Vec::new(),
        tokens: VecDeque::new(),
        arrivals: Arrivals::new(swarm),
        outcome: Outcome { log: swarm.log.then(Vec::new), ..Outcome::default() },
        buffer: vec![0; 64 * 1024],
    };
    this.run(held, released)?;
    Ok(this.outcome)
}

impl Loop<'_> {
    fn run(&mut self, held: impl FnOnce(), released: &AtomicBool) -> anyhow::Result<()> {
        let mut held = Some(held);
        loop {
            if !self.swarm.hold && released.load(Ordering::Relaxed) {
                self.arrivals.end();
            }
            while let Some(at) = self.arrivals.next() {
                self.open(at)?;
            }
            if self.arrivals.is_over() {
                if !self.swarm.hold || released.load(Ordering::Relaxed) {
                    return Ok(());
                }
                if let Some(held) = held.take() {
                    held();
                }
            }
            self.io.flush()?;
            self.sleep();
            self.receive()?;
            self.fire_timers();
        }
    }

    fn now(&self) -> Time {
        // 0 means that a packet has no time.
        Time(self.started.elapsed().as_micros() as u64 + 1)
    }

    fn open(&mut self, began: Instant) -> anyhow::Result<()> {
        let ports = u64::from(PORTS.end() - PORTS.start()) + 1;
        let local = (0..ports * self.sources.len() as u64)
            .map(|i| {
                let n = self.next + i;
                let source = self.sources[(n / ports) as usize % self.sources.len()];
                (n, (source, PORTS.start() + (n % ports) as u16))
            })
            .find(|(_, local)| !self.clients.contains_key(local));
        let Some((n, local)) = local else { bail!("no local port is free: more --source addresses") };
        self.next = n + 1;
        let config = Config {
            mtu: self.mtu,
            seed: n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.started.elapsed().as_nanos() as u64,
            token: self.tokens.pop_front(),
            ..Config::default()
        };
        let now = self.now();
        let mut connection = Connection::open(config, local.into(), self.swarm.server, now);
        if connection.write(0, &self.swarm.request, now) != self.swarm.request.len() {
            bail!("a request longer than the send buffer");
        }
        let parser = Parser::expecting(self.swarm.ask, self.swarm.expected.clone());
        let client = Client { connection, parser, began, timer: None, held: false };
        self.clients.insert(local, client);
        self.transmit(local);
        Ok(())
    }

    /// Sends a connection's packets and records its timer.
    fn transmit(&mut self, local: Local) {
        let now = self.now();
        let Some(client) = self.clients.get_mut(&local) else { return };
        let room = ETHERNET + usize::from(self.mtu);
        while let Some(frame) = self.io.reserve(room) {
            let Some(length) = client.connection.poll_transmit(now, &mut frame[ETHERNET..]) else { break };
            frame[..6].copy_from_slice(&self.hop.mac);
            frame[6..12].copy_from_slice(&self.source_mac);
            let kind: u16 = if frame[ETHERNET] >> 4 == 6 { 0x86dd } else { 0x0800 };
            frame[12..14].copy_from_slice(&kind.to_be_bytes());
            self.io.commit(ETHERNET + length);
        }
        let next = client.connection.poll_timeout();
        if client.timer != next {
            client.timer = next;
            self.timers.extend(next.map(|at| Reverse((at, local))));
        }
    }

    /// Waits for packets or a timer.
    fn sleep(&mut self) {
        let now = self.now();
        let timer =
            self.timers.peek().map_or(LONGEST, |Reverse((at, _))| Duration::from_micros(at.since(now)));
        let longest = self.arrivals.pause().unwrap_or(LONGEST).min(timer);
        wait(&self.io.as_fd(), self.io.pending() > 0, longest);
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        for _ in 0..MAX_BATCHES {
            let count = self.io.recv().context("receiving")?;
            if count == 0 {
                break;
            }
            for i in 0..count {
                let now = self.now();
                let packet = self.io.frame(i).data.get_mut(ETHERNET..).unwrap_or_default();
                let Some(local) = destination(packet) else { continue };
                let Some(client) = self.clients.get_mut(&local) else { continue };
                if client.connection.handle_input(now, packet).is_ok() {
                    self.touched.push(local);
                }
            }
            // All received packets are handled before new requests begin, because they may contain the wanted
            // bytes.
            let mut touched = std::mem::take(&mut self.touched);
            touched.sort_unstable();
            touched.dedup();
            for local in touched.drain(..) {
                self.progress(local);
            }
            self.touched = touched;
            self.io.flush()?;
        }
        Ok(())
    }

    fn fire_timers(&mut self) {
        let now = self.now();
        while let Some(&Reverse((at, local))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            // A timer that was set again since then has another entry in the heap.
            if let Some(client) = self.clients.get_mut(&local).filter(|c| c.timer == Some(at)) {
                client.timer = None;
                client.connection.handle_timeout(now);
                self.progress(local);
            }
        }
    }

    /// Handles a connection's events, and sends its next packets.
    fn progress(&mut self, local: Local) {
        let Some(client) = self.clients.get_mut(&local) else { return };
        let mut answer = None;
        while let Some(event) = client.connection.poll() {
            match event {
                Event::Failed(e) => answer = Some(Err(e.into())),
                Event::FallbackToTcp(_) => answer = Some(Err(anyhow::anyhow!("the server speaks TCP"))),
                Event::Token(token) if self.swarm.token && self.tokens.len() < TOKENS => {
                    self.tokens.push_back(token);
                }
                _ => {}
            }
        }
        while answer.is_none() {
            match client.connection.read(0, &mut self.buffer) {
                Read::Bytes(n) => answer = client.parser.feed(&self.buffer[..n]).transpose(),
                Read::Blocked => break,
                Read::End => {
                    let why = client.parser.progress();
                    answer = Some(Err(anyhow::anyhow!("the connection ended {why}")));
                }
            }
        }
        if answer.is_none() && client.began.elapsed() > self.swarm.timeout && !client.held {
            answer = Some(Err(anyhow::anyhow!("no answer in {:?}", self.swarm.timeout)));
        }
        if client.held {
            if client.connection.is_over() {
                self.outcome.fail(&anyhow::anyhow!("a connection ended while it was held"));
                self.clients.remove(&local);
                return;
            }
        } else if let Some(answer) = answer {
            let took: Duration = client.began.elapsed();
            let ok = answer.is_ok();
            settle(&mut self.outcome, took, answer);
            self.arrivals.over += 1;
            if self.swarm.hold && ok {
                client.held = true;
            } else {
                // The client closes, like any client, so the server keeps nothing that the answer could
                // concern.
                client.connection.close(Time(self.started.elapsed().as_micros() as u64 + 1));
                self.transmit(local);
                self.clients.remove(&local);
                return;
            }
        }
        self.transmit(local);
    }
}

/// Destination address and port of a TCP packet.
fn destination(packet: &[u8]) -> Option<Local> {
    let port = |at: usize| Some(u16::from_be_bytes([*packet.get(at)?, *packet.get(at + 1)?]));
    match packet.first()? >> 4 {
        4 => {
            let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            let header = usize::from(packet[0] & 15) * 4;
            Some((IpAddr::from(octets), port(header + 2)?))
        }
        6 => {
            let octets: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some((IpAddr::from(octets), port(42)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_of_both_families_and_of_nonsense() {
        let mut v4 = vec![0x45; 24];
        v4[16..20].copy_from_slice(&[10, 9, 0, 1]);
        v4[22..24].copy_from_slice(&[0x1f, 0x90]);
        assert_eq!(destination(&v4), Some((IpAddr::from([10, 9, 0, 1]), 8080)));
        let mut v6 = vec![0x60; 44];
        v6[24..40].copy_from_slice(&[7; 16]);
        v6[42..44].copy_from_slice(&[0, 80]);
        assert_eq!(destination(&v6), Some((IpAddr::from([7; 16]), 80)));
        for n in 0..24 {
            assert_eq!(destination(&v4[..n]), None, "{n}");
        }
        for n in 0..44 {
            assert_eq!(destination(&v6[..n]), None, "{n}");
        }
        assert_eq!(destination(&[0x25; 60]), None);
    }
}
