//! Clients of ordinary TCP without sockets: segments like Linux's, for a server on a path without loss, sent
//! on one packet socket. A kernel's client costs as much as a server, so with one core each it would limit
//! the measurement; and a hundred thousand held connections would fill the client's kernel with sockets.
//!
//! Segments out of order are dropped, so the server must retransmit them. Paths with loss need the kernel's
//! clients ([`super::tcp`]).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rivulet_client::NextHop;
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::filter::{Rule, TcpRule};
use rivulet_pktio::guard::KernelGuard;
use rivulet_pktio::{Checksum, ChecksumPolicy, Filter, Interface, PacketIo};
use rivulet_plain::{Header, Options, Segment, Stamps};

use super::{Arrivals, LONGEST, Swarm, monotonic_us, settle, wait};
use crate::report::Outcome;
use crate::response::Parser;
use crate::target::Ask;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Local ports used.
const PORTS: std::ops::RangeInclusive<u16> = 1024..=65_535;
/// Batches of packets before new requests begin.
const MAX_BATCHES: usize = 16;
/// Retransmission timeout, doubled each time.
const PATIENCE: Duration = Duration::from_millis(200);
/// Interval between two checks of the timeouts.
const LOOK: Duration = Duration::from_millis(50);
/// Resets sent in one batch.
const AT_ONCE: usize = 64;
/// Longest wait for the server's FIN.
const LINGER: Duration = Duration::from_secs(1);
const SCALE: u8 = 7;
const MOST: u64 = 64_240;
/// A window below one segment counts as closed (RFC 1122 section 4.2.3.3).
const LEAST: u64 = 1460;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The SYN is sent.
    Opening,
    /// The request is sent.
    Asked,
    /// Answered, and kept open.
    Held,
    /// Answered, and closed by the client; the server's FIN is missing.
    Leaving,
}

/// A connection.
struct Talk {
    state: State,
    local: SocketAddr,
    /// Sequence number of the segment that is retransmitted until it is acknowledged.
    seq: u32,
    /// Sequence number of the next segment, and of bare acknowledgements.
    sent: u32,
    /// Next expected sequence number of the server.
    ack: u32,
    /// The server's last timestamp; `None` if it sends none.
    echo: Option<u32>,
    ask: Ask,
    /// Most bytes of the body to read, approximately.
    close_at: Option<u64>,
    parser: Parser,
    began: Instant,
    heard: Instant,
    repeats: u32,
}

/// Effect of a segment.
#[derive(Debug)]
enum Next {
    Nothing,
    Acknowledge,
    /// The handshake is complete.
    Ask,
    /// The connection is over, for this reason.
    Over(anyhow::Result<(u16, u64)>),
    /// The answer is complete, and the server lets the client close the connection.
    Leave(u16, u64),
    /// The answer is complete, and the server has closed the connection too.
    Gone,
}

struct Loop<'a> {
    swarm: &'a Swarm,
    wire: Wire,
    talks: Vec<Option<Talk>>,
    /// Index in `talks` of each local address and port, plus one.
    places: Vec<u32>,
    free: Vec<usize>,
    sources: Vec<IpAddr>,
    next: u64,
    looked: Instant,
    arrivals: Arrivals,
    outcome: Outcome,
}

/// The packet socket, and the headers in front of each packet.
struct Wire {
    io: Box<dyn PacketIo>,
    ethernet: [u8; ETHERNET],
    server: SocketAddr,
}

/// Like [`super::rivulet::run`], over ordinary TCP.
///
/// # Errors
/// Errors of the packet socket.
pub fn run(swarm: &Swarm, held: impl FnOnce(), released: &AtomicBool) -> anyhow::Result<Outcome> {
    let hop: NextHop = rivulet_client::resolve(swarm.server.ip())?;
    let sources = if swarm.sources.is_empty() { vec![hop.source] } else { swarm.sources.clone() };
    let rule = TcpRule { exid: None, destinations: sources.clone(), destination_ports: vec![PORTS] };
    let interface = Interface::new(None, &hop.interface)?;
    // The kernel has no sockets for these connections, and would reset them.
    let _guard = KernelGuard::install(None, &[&hop.interface], std::slice::from_ref(&rule))?;
    let config = rivulet_pktio::Config {
        checksum: ChecksumPolicy::Report,
        promiscuous: false,
        rx_bytes: 16 << 20,
        filter: Some(Filter::new(&[Rule::Tcp(rule)])?),
        ..rivulet_pktio::Config::default()
    };
    let io = swarm.io.open(&interface, |_| Ok(config.clone()))?.io;
    let mut ethernet = [0; ETHERNET];
    ethernet[..6].copy_from_slice(&hop.mac);
    ethernet[6..12].copy_from_slice(&io.link()?.mac);
    ethernet[12..].copy_from_slice(if swarm.server.is_ipv4() { &[8, 0] } else { &[0x86, 0xdd] });
    let mut this = Loop {
        swarm,
        wire: Wire { io, ethernet, server: swarm.server },
        talks: Vec::new(),
        places: vec![0; sources.len() << 16],
        free: Vec::new(),
        sources,
        // Ports differ from run to run, because the server's kernel remembers the last run's connections.
        next: u64::from(std::process::id()) * 977,
        looked: Instant::now(),
        arrivals: Arrivals::new(swarm),
        outcome: Outcome { log: swarm.log.then(Vec::new), ..Outcome::default() },
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
                if !self.swarm.hold {
                    return Ok(());
                }
                if released.load(Ordering::Relaxed) {
                    return self.release();
                }
                if let Some(held) = held.take() {
                    held();
                }
            }
            self.wire.io.flush()?;
            let longest = self.arrivals.pause().unwrap_or(LONGEST);
            wait(&self.wire.io.as_fd(), self.wire.io.pending() > 0, longest);
            self.receive()?;
            if self.looked.elapsed() > LOOK {
                self.looked = Instant::now();
                self.look();
            }
        }
    }

    fn open(&mut self, began: Instant) -> anyhow::Result<()> {
        let ports = u64::from(PORTS.end() - PORTS.start()) + 1;
        let local = (0..ports * self.sources.len() as u64).find_map(|_| {
            let n = self.next;
            self.next += 1;
            let (which, port) =
                ((n / ports) as usize % self.sources.len(), PORTS.start() + (n % ports) as u16);
            let key = which << 16 | usize::from(port);
            (self.places[key] == 0).then(|| (key, SocketAddr::new(self.sources[which], port)))
        });
        let Some((key, local)) = local else { bail!("no local port is free: more --source addresses") };
        let seq = (self.next as u32).wrapping_mul(0x9e37_79b9) ^ monotonic_us() as u32;
        let talk = Talk {
            state: State::Opening,
            local,
            seq,
            sent: seq,
            close_at: self.swarm.close_at,
            ack: 0,
            echo: Some(0),
            ask: self.swarm.ask,
            parser: Parser::expecting(self.swarm.ask, self.swarm.expected.clone()),
            began,
            heard: Instant::now(),
            repeats: 0,
        };
        self.wire.repeat(&talk, &self.swarm.request);
        let place = self.free.pop().unwrap_or_else(|| {
            self.talks.push(None);
            self.talks.len() - 1
        });
        self.talks[place] = Some(talk);
        self.places[key] = place as u32 + 1;
        Ok(())
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        for _ in 0..MAX_BATCHES {
            let count = self.wire.io.recv().context("receiving")?;
            if count == 0 {
                break;
            }
            for i in 0..count {
                self.frame(i);
            }
            self.wire.io.flush()?;
        }
        Ok(())
    }

    fn frame(&mut self, index: usize) {
        let frame = self.wire.io.frame(index);
        let verify = frame.checksum == Checksum::Unknown;
        let Some(Ok(segment)) = frame.data.get(ETHERNET..).map(Segment::parse) else { return };
        if segment.header.src != self.swarm.server || (verify && !segment.is_intact()) {
            return;
        }
        let to = segment.header.dst;
        let Some(which) = self.sources.iter().position(|source| *source == to.ip()) else { return };
        let key = which << 16 | usize::from(to.port());
        let Some(place) = self.places[key].checked_sub(1).map(|place| place as usize) else { return };
        let Some(talk) = &mut self.talks[place] else { return };
        match talk.hear(&segment, &self.swarm.request, self.swarm.hold) {
            Next::Nothing => {}
            Next::Acknowledge => self.wire.say(talk, TcpFlags::ACK, &[]),
            Next::Ask => {
                self.wire.say(talk, TcpFlags::ACK, &[]);
                talk.sent = talk.seq.wrapping_add(self.swarm.request.len() as u32);
                self.wire.repeat(talk, &self.swarm.request);
            }
            Next::Over(answer) => {
                let (held, took) = (talk.state == State::Held, talk.began.elapsed());
                // After the server's FIN the server holds the TIME_WAIT state.
                let flags = if answer.is_ok() { TcpFlags::FIN | TcpFlags::ACK } else { TcpFlags::RST };
                self.wire.say(talk, flags, &[]);
                self.close(place, key, held, took, answer);
            }
            Next::Leave(status, bytes) => {
                self.wire.say(talk, TcpFlags::FIN | TcpFlags::ACK, &[]);
                talk.sent = talk.sent.wrapping_add(1);
                talk.seq = talk.sent;
                (talk.state, talk.heard) = (State::Leaving, Instant::now());
                self.arrivals.over += 1;
                settle(&mut self.outcome, talk.began.elapsed(), Ok((status, bytes)));
            }
            Next::Gone => {
                self.wire.say(talk, TcpFlags::ACK, &[]);
                self.forget(place, key);
            }
        }
        if let Some(talk) = &self.talks[place]
            && talk.state == State::Held
            && talk.repeats == 0
        {
            let closed = (talk.window() == 0).then(|| talk.parser.so_far());
            let (took, answer) = (talk.began.elapsed(), closed.unwrap_or_else(|| talk.parser.whole()));
            if let Some(talk) = &mut self.talks[place] {
                // Counted once.
                talk.repeats = 1;
            }
            self.arrivals.over += 1;
            settle(&mut self.outcome, took, answer.context("held without an answer"));
        }
    }

    fn close(
        &mut self,
        place: usize,
        key: usize,
        held: bool,
        took: Duration,
        answer: anyhow::Result<(u16, u64)>,
    ) {
        self.forget(place, key);
        if held {
            self.outcome.fail(&anyhow::anyhow!("a connection ended while it was held"));
        } else {
            self.arrivals.over += 1;
            settle(&mut self.outcome, took, answer);
        }
    }

    fn forget(&mut self, place: usize, key: usize) {
        self.talks[place] = None;
        self.places[key] = 0;
        self.free.push(place);
    }

    /// Resets held connections, which the server's kernel would otherwise keep for hours.
    fn release(&mut self) -> anyhow::Result<()> {
        for (n, talk) in self.talks.iter().flatten().enumerate() {
            self.wire.say(talk, TcpFlags::RST | TcpFlags::ACK, &[]);
            // The kernel queues a thousand packets for a core and would drop the others.
            if n % AT_ONCE == 0 {
                self.wire.io.flush()?;
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(self.wire.io.flush()?)
    }

    /// Retransmits unacknowledged segments, and gives up requests that take too long.
    fn look(&mut self) {
        for place in 0..self.talks.len() {
            let Some(talk) = self.talks[place].as_mut().filter(|talk| talk.state != State::Held) else {
                continue;
            };
            let which = self.sources.iter().position(|source| *source == talk.local.ip()).unwrap_or(0);
            let key = which << 16 | usize::from(talk.local.port());
            if talk.state == State::Leaving {
                if talk.heard.elapsed() > LINGER {
                    self.forget(place, key);
                }
            } else if talk.began.elapsed() > self.swarm.timeout {
                let why = anyhow::anyhow!("no answer in {:?} ({:?})", self.swarm.timeout, talk.state);
                self.close(place, key, false, self.swarm.timeout, Err(why));
            } else if talk.heard.elapsed() > PATIENCE * 2u32.pow(talk.repeats.min(8)) {
                (talk.repeats, talk.heard) = (talk.repeats + 1, Instant::now());
                self.wire.repeat(talk, &self.swarm.request);
            }
        }
    }
}

impl Talk {
    /// The receive window in bytes.
    fn window(&self) -> u64 {
        let left = self
            .close_at
            .map_or(MOST, |at| at.saturating_sub(self.parser.so_far().map_or(0, |(_, got)| got)).min(MOST));
        if left < LEAST { 0 } else { left }
    }

    /// Handles a segment of the server.
    fn hear(&mut self, segment: &Segment<'_>, request: &[u8], hold: bool) -> Next {
        let header = &segment.header;
        let asked = self.seq.wrapping_add(request.len() as u32);
        if segment.has(TcpFlags::RST) {
            let ours = header.ack == self.seq || header.ack == self.sent || header.seq == self.ack;
            return if ours {
                Next::Over(Err(anyhow::anyhow!("reset by the server")))
            } else {
                Next::Nothing
            };
        }
        match self.state {
            State::Opening => {
                if !segment.has(TcpFlags::SYN | TcpFlags::ACK) || header.ack != self.seq.wrapping_add(1) {
                    return Next::Nothing;
                }
                (self.seq, self.sent, self.ack) = (header.ack, header.ack, header.seq.wrapping_add(1));
                self.echo = header.options.stamps.map(|stamps| stamps.value);
                (self.state, self.heard, self.repeats) = (State::Asked, Instant::now(), 0);
                Next::Ask
            }
            State::Leaving => match segment.has(TcpFlags::FIN) && segment.end() == self.ack.wrapping_add(1) {
                true => {
                    self.ack = segment.end();
                    Next::Gone
                }
                false => Next::Nothing,
            },
            State::Asked | State::Held => {
                if segment.payload.is_empty() && !segment.has(TcpFlags::FIN) {
                    return Next::Nothing;
                }
                if header.seq != self.ack || self.window() == 0 {
                    return Next::Acknowledge;
                }
                if let (Some(echo), Some(stamps)) = (&mut self.echo, header.options.stamps) {
                    *echo = stamps.value;
                }
                self.ack = segment.end();
                self.heard = Instant::now();
                let answer = match segment.payload {
                    [] => self.parser.whole(),
                    payload => match self.parser.feed(payload) {
                        Ok(answer) => answer,
                        Err(error) => return Next::Over(Err(error)),
                    },
                };
                match (answer, segment.has(TcpFlags::FIN)) {
                    (Some(answer), true) => {
                        self.seq = asked;
                        Next::Over(Ok(answer))
                    }
                    (None, true) => {
                        Next::Over(Err(anyhow::anyhow!("the connection ended {}", self.parser.progress())))
                    }
                    (answer, false) if hold && (answer.is_some() || self.window() == 0) => {
                        (self.state, self.seq, self.repeats) = (State::Held, asked, 0);
                        Next::Acknowledge
                    }
                    // Whether the server closes the connection by itself is unknown.
                    (Some((status, bytes)), false) if matches!(self.ask, Ask::Name { .. }) => {
                        self.seq = asked;
                        Next::Leave(status, bytes)
                    }
                    _ => Next::Acknowledge,
                }
            }
        }
    }
}

impl Wire {
    /// The unacknowledged segment of a connection: its SYN, or its request.
    fn repeat(&mut self, talk: &Talk, request: &[u8]) {
        match talk.state {
            State::Opening => self.say(talk, TcpFlags::SYN, &[]),
            _ => self.say(talk, TcpFlags::PSH | TcpFlags::ACK, request),
        }
    }

    fn say(&mut self, talk: &Talk, flags: u8, data: &[u8]) {
        let syn = flags & TcpFlags::SYN != 0;
        // The sequence number behind the request, if the segment carries nothing of it.
        let value = (monotonic_us() / 1000) as u32;
        let header = Header {
            src: talk.local,
            dst: self.server,
            seq: if data.is_empty() { talk.sent } else { talk.seq },
            ack: talk.ack,
            flags: TcpFlags(flags),
            window: if syn { MOST as u16 } else { (talk.window() >> SCALE) as u16 },
            options: Options {
                mss: syn.then_some(1460),
                scale: syn.then_some(SCALE),
                sack_permitted: syn,
                stamps: talk.echo.map(|echo| Stamps { value, echo }),
                ..Options::default()
            },
        };
        let start = ETHERNET + header.length();
        // A packet without room in the queue is lost, and retransmitted later.
        let Some(frame) = self.io.reserve(start + data.len()) else { return };
        frame[..ETHERNET].copy_from_slice(&self.ethernet);
        frame[start..].copy_from_slice(data);
        if header.finish(&mut frame[ETHERNET..], data.len()).is_ok() {
            self.io.commit(start + data.len());
        }
    }
}
