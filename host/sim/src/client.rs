//! A client: a transport connection in a node, with a reader that checks every byte.

use std::any::Any;
use std::net::SocketAddr;

use rivulet_packet::Segment;
use rivulet_transport::Time;
use rivulet_transport::client::{self, Connection, ConnectionError, Event, Read, Statistics};

use crate::ids::{LinkId, NodeId};
use crate::net::{Context, Node};
use crate::packet::{Body, Packet};
use crate::{MICROSECOND, Nanos, address, content};

/// A client's task.
#[derive(Debug, Clone)]
pub struct Plan {
    /// When it opens the connection.
    pub start: Nanos,
    /// Number of bytes to request.
    pub size: u64,
    /// Seed of the content.
    pub content: u64,
    /// IPv6 instead of IPv4.
    pub v6: bool,
    /// The connection's settings.
    pub config: client::Config,
    /// Interval in which the reader does not read.
    pub pause: Option<(Nanos, Nanos)>,
    /// When the client changes its address.
    pub moves: Option<Nanos>,
}

impl Default for Plan {
    fn default() -> Self {
        let config = client::Config::default();
        Self { start: 0, size: 100_000, content: 1, v6: false, config, pause: None, moves: None }
    }
}

/// Result of a transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The transfer is running.
    Running,
    /// All bytes arrived and were right, after this time.
    Done(Nanos),
    /// The byte at this offset was wrong.
    Wrong(u64),
    /// More bytes arrived than were requested.
    TooLong,
    /// The stream ended too early.
    TooShort(u64),
    /// The connection failed.
    Failed(ConnectionError),
}

/// One client.
pub struct Client {
    plan: Plan,
    tor: NodeId,
    link: LinkId,
    connection: Option<Connection>,
    outcome: Outcome,
    received: u64,
    wake: Option<Nanos>,
    wire_bytes: u64,
    moved: u8,
    statistics: Statistics,
    log: Option<Vec<String>>,
    proofs: Proofs,
    progress: Option<(Nanos, Vec<u64>)>,
    /// Times of reads, and bytes read so far.
    reads: Vec<(Nanos, u64)>,
}

/// Counters of the proofs in a client's requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proofs {
    /// Requests with a proof.
    pub requests: u64,
    /// Their entries in total.
    pub entries: u64,
    /// Entries in the longest proof.
    pub longest: usize,
}

impl Client {
    /// Creates a client that sends to `tor` over `link`.
    pub fn new(plan: Plan, tor: NodeId, link: LinkId) -> Self {
        let wake = Some(plan.start);
        Self {
            plan,
            tor,
            link,
            connection: None,
            outcome: Outcome::Running,
            received: 0,
            wake,
            wire_bytes: 0,
            moved: 0,
            statistics: Statistics::default(),
            log: None,
            proofs: Proofs::default(),
            progress: None,
            reads: vec![],
        }
    }

    /// The proofs sent so far.
    pub fn proofs(&self) -> Proofs {
        self.proofs
    }

    /// Resets the counters of proofs.
    pub fn forget_proofs(&mut self) {
        self.proofs = Proofs::default();
    }

    /// Counts received wire bytes in each time span of this length from the start of the run.
    pub fn measure(&mut self, span: Nanos) {
        self.progress = Some((span, vec![]));
    }

    /// The counts of [`Client::measure`].
    pub fn progress(&self) -> &[u64] {
        self.progress.as_ref().map_or(&[], |p| &p.1)
    }

    /// Since [`Client::measure`]: when the application read, and how many bytes until then.
    pub fn reads(&self) -> &[(Nanos, u64)] {
        &self.reads
    }

    /// From now on logs every packet sent and received.
    pub fn record(&mut self) {
        self.log.get_or_insert_default();
    }

    /// The log of [`Client::record`].
    pub fn log(&self) -> &[String] {
        self.log.as_deref().unwrap_or_default()
    }

    fn note(log: &mut Option<Vec<String>>, now: Nanos, direction: &str, packet: &[u8], remark: &str) {
        let Some(log) = log else { return };
        let what = match Segment::parse_packet(packet).and_then(|s| s.verify().map(|()| s)) {
            Ok(s) => match (s.request(), s.response()) {
                (Ok(r), _) => {
                    let wants: Vec<_> = r.wants().map(|w| (w.offset, w.length, w.retransmit)).collect();
                    format!("{r} wants {wants:?}")
                }
                (_, Ok(r)) => format!("{r}, {} uconts", r.uconts.len()),
                _ => s.to_string(),
            },
            Err(e) => e.to_string(),
        };
        log.push(format!("{:>10} us {direction} {what} {remark}", now / MICROSECOND));
    }

    /// The result so far.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Bytes of content read.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Wire bytes received, framing included.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// The connection's counters.
    pub fn statistics(&self) -> Statistics {
        self.connection.as_ref().map_or(self.statistics, Connection::statistics)
    }

    /// Trickles in flight and held back.
    pub fn window(&self) -> usize {
        self.connection.as_ref().map_or(0, Connection::window)
    }

    /// The connection, if it is open.
    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    fn time(now: Nanos) -> Time {
        Time(now / MICROSECOND)
    }

    fn local(&self, id: NodeId) -> SocketAddr {
        address::client(id, self.moved, self.plan.v6, 40_000 + u16::from(self.moved))
    }

    fn open(&mut self, ctx: &Context) {
        let now = Self::time(ctx.now);
        let mut config = self.plan.config.clone();
        config.seed ^= u64::from(ctx.id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut c = Connection::open(config, self.local(ctx.id), address::service(self.plan.v6), now);
        let request = content::request(self.plan.size, self.plan.content, true);
        let written = c.write(0, &request, now);
        debug_assert_eq!(written, request.len(), "a fresh connection takes a request");
        c.finish(0);
        self.connection = Some(c);
    }

    /// Continues from another address, as after a change of network.
    fn change_address(&mut self, ctx: &Context) {
        let Some(c) = self.connection.take() else { return };
        let now = Self::time(ctx.now);
        self.moved += 1;
        let mut config = self.plan.config.clone();
        config.seed ^= u64::from(ctx.id.0).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(self.moved);
        // A connection without a continuation cannot be suspended: open again.
        let Some(suspended) = c.suspend() else { return self.open(ctx) };
        match Connection::resume(&suspended, config, self.local(ctx.id), now) {
            Ok(c) => self.connection = Some(c),
            Err(e) => panic!("a connection just suspended does not resume: {e}"),
        }
    }

    fn reading(&self, now: Nanos) -> bool {
        self.plan.pause.is_none_or(|(from, to)| now < from || now >= to)
    }

    fn pump(&mut self, ctx: &mut Context) {
        let now = Self::time(ctx.now);
        let reading = self.reading(ctx.now);
        let Some(c) = &mut self.connection else { return };
        let before = self.received;
        if reading {
            let mut buffer = [0; 16384];
            loop {
                match c.read(0, &mut buffer) {
                    Read::Bytes(n) => {
                        if let Some(at) = content::mismatch(self.plan.content, self.received, &buffer[..n]) {
                            self.outcome = Outcome::Wrong(at);
                        }
                        self.received += n as u64;
                        if self.received > self.plan.size {
                            self.outcome = Outcome::TooLong;
                        }
                    }
                    Read::Blocked => break,
                    Read::End => {
                        if self.outcome == Outcome::Running {
                            self.outcome = if self.received == self.plan.size {
                                Outcome::Done(ctx.now - self.plan.start)
                            } else {
                                Outcome::TooShort(self.received)
                            };
                        }
                        break;
                    }
                }
            }
        }
        if self.progress.is_some() && self.received > before {
            self.reads.push((ctx.now, self.received));
        }
        let mut buffer = [0; 9100];
        while let Some(n) = c.poll_transmit(now, &mut buffer) {
            Self::note(&mut self.log, ctx.now, ">", &buffer[..n], "");
            if let Some(entries) = proof_length(&buffer[..n]) {
                self.proofs.requests += 1;
                self.proofs.entries += entries as u64;
                self.proofs.longest = self.proofs.longest.max(entries);
            }
            ctx.send(self.link, Packet::ip(ctx.id, self.tor, buffer[..n].to_vec()));
        }
        while let Some(event) = c.poll() {
            if let Event::Failed(error) = event
                && self.outcome == Outcome::Running
            {
                self.outcome = Outcome::Failed(error);
            }
        }
        let mut wake = c.poll_timeout().map(|t| t.0 * MICROSECOND);
        if self.outcome != Outcome::Running {
            self.statistics = c.statistics();
            (self.connection, wake) = (None, None);
        }
        let more = |wake: Option<Nanos>, at: Nanos| Some(wake.map_or(at, |w| w.min(at)));
        if let Some((from, to)) = self.plan.pause.filter(|_| self.connection.is_some()) {
            for at in [from, to].into_iter().filter(|at| *at > ctx.now) {
                wake = more(wake, at);
            }
        }
        if let Some(at) = self.plan.moves.filter(|_| self.connection.is_some()) {
            wake = more(wake, at);
        }
        self.wake = wake;
    }
}

/// Number of proof entries in a built request, which is at a fixed offset.
fn proof_length(packet: &[u8]) -> Option<usize> {
    let tcp = if packet.first()? >> 4 == 4 { 20 } else { 40 };
    packet.get(tcp + 28 + 18).map(|n| usize::from(*n)).filter(|_| packet[tcp + 13] & 0x02 == 0)
}

impl Node for Client {
    fn on_packet(&mut self, packet: Packet, ctx: &mut Context) {
        self.wire_bytes += u64::from(packet.size);
        if let Some((span, counts)) = &mut self.progress {
            let index = (ctx.now / *span) as usize;
            if counts.len() <= index {
                counts.resize(index + 1, 0);
            }
            counts[index] += u64::from(packet.size);
        }
        let (Some(c), Body::Ip(bytes)) = (&mut self.connection, &packet.body) else { return };
        // The connection ignores and counts damaged, late and foreign packets.
        let taken = c.handle_input(Self::time(ctx.now), bytes);
        let remark = taken.err().map_or(String::new(), |e| format!("({e})"));
        Self::note(&mut self.log, ctx.now, "<", bytes, &remark);
        self.pump(ctx);
    }

    fn on_wake(&mut self, ctx: &mut Context) {
        if self.connection.is_none() {
            if self.outcome != Outcome::Running {
                return;
            }
            self.open(ctx);
        } else if self.plan.moves.is_some_and(|at| at <= ctx.now) {
            self.plan.moves = None;
            self.change_address(ctx);
        } else if let Some(c) = &mut self.connection {
            c.handle_timeout(Self::time(ctx.now));
        }
        self.pump(ctx);
    }

    fn next_wake(&self) -> Option<Nanos> {
        self.wake
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
