//! A client with repeated fetches, as in Figure 7 of the Congestion Manager's paper: each fetch is
//! a stream of one connection, or a separate connection.

use std::any::Any;

use rivulet_transport::Time;
use rivulet_transport::client::{self, Connection, Event, Read, Statistics};

use crate::ids::{LinkId, NodeId};
use crate::net::{Context, Node};
use crate::packet::{Body, Packet};
use crate::{MICROSECOND, Nanos, address, content};

/// The fetches to make.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Number of fetches.
    pub count: u16,
    /// Bytes of each fetch.
    pub size: u64,
    /// Time from the end of one fetch to the start of the next.
    pub gap: Nanos,
    /// Each fetch uses a new connection, as if from separate processes.
    pub separate: bool,
    /// Each connection opens with the token of the one before, and sends a CLOSE.
    pub tokens: bool,
    /// When the first fetch starts.
    pub start: Nanos,
    /// Distinguishes the connections of several clients.
    pub seed: u64,
}

/// The client.
pub struct Fetcher {
    plan: Plan,
    tor: NodeId,
    link: LinkId,
    connection: Option<Connection>,
    token: Option<Vec<u8>>,
    /// The running fetch: its stream, start time, and bytes received.
    running: Option<(u16, Nanos, u64)>,
    took: Vec<Nanos>,
    next: Nanos,
    wake: Option<Nanos>,
}

impl Fetcher {
    /// Creates a client that sends to `tor` over `link`.
    pub fn new(plan: Plan, tor: NodeId, link: LinkId) -> Self {
        let (wake, next) = (Some(plan.start), plan.start);
        Self { plan, tor, link, connection: None, token: None, running: None, took: vec![], next, wake }
    }

    /// Durations of the finished fetches.
    pub fn took(&self) -> &[Nanos] {
        &self.took
    }

    /// Bytes of content read, of the running fetch too.
    pub fn received(&self) -> u64 {
        self.took.len() as u64 * self.plan.size + self.running.map_or(0, |(_, _, received)| received)
    }

    /// Counters of the connection, or of the last one.
    pub fn statistics(&self) -> Statistics {
        self.connection.as_ref().map(Connection::statistics).unwrap_or_default()
    }

    fn seed(&self) -> u64 {
        7 + self.took.len() as u64 + (self.plan.seed << 16)
    }

    fn begin(&mut self, ctx: &Context) {
        let now = Time(ctx.now / MICROSECOND);
        let number = self.took.len() as u16;
        if self.plan.separate || self.connection.is_none() {
            let seed = self.seed().wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let config = client::Config { seed, token: self.token.take(), ..client::Config::default() };
            let local = address::client(ctx.id, 0, false, 40_000 + number);
            self.connection = Some(Connection::open(config, local, address::service(false), now));
        }
        let request = content::request(self.plan.size, self.seed(), true);
        let Some(c) = &mut self.connection else { return };
        let stream = if self.plan.separate || number == 0 { 0 } else { c.stream().unwrap_or_default() };
        c.write(stream, &request, now);
        c.finish(stream);
        self.running = Some((stream, ctx.now, 0));
    }

    fn read(&mut self, now: Nanos) {
        let seed = self.seed();
        let (Some(c), Some((stream, began, received))) = (&mut self.connection, &mut self.running) else {
            return;
        };
        let mut buffer = [0; 16384];
        loop {
            match c.read(*stream, &mut buffer) {
                Read::Bytes(n) => {
                    let wrong = content::mismatch(seed, *received, &buffer[..n]);
                    assert_eq!(wrong, None, "a byte of fetch {} is wrong", self.took.len());
                    *received += n as u64;
                }
                Read::Blocked => return,
                Read::End => break,
            }
        }
        assert_eq!(*received, self.plan.size, "fetch {} is whole", self.took.len());
        c.forget(*stream);
        if self.plan.tokens {
            c.close(Time(now / MICROSECOND));
        }
        self.took.push(now - *began);
        self.running = None;
        self.next = now + self.plan.gap;
    }

    fn pump(&mut self, ctx: &mut Context) {
        self.read(ctx.now);
        let now = Time(ctx.now / MICROSECOND);
        let Some(c) = &mut self.connection else { return };
        let mut buffer = [0; 9100];
        while let Some(n) = c.poll_transmit(now, &mut buffer) {
            ctx.send(self.link, Packet::ip(ctx.id, self.tor, buffer[..n].to_vec()));
        }
        while let Some(event) = c.poll() {
            assert!(!matches!(event, Event::Failed(_) | Event::StreamFailed(..)), "{event:?}");
            if let Event::Token(token) = event {
                self.token = Some(token);
            }
        }
        let timer = c.poll_timeout().map(|t| t.0 * MICROSECOND);
        let more = self.running.is_none() && self.took.len() < usize::from(self.plan.count);
        self.wake = timer.into_iter().chain(more.then_some(self.next)).min();
    }
}

impl Node for Fetcher {
    fn on_packet(&mut self, packet: Packet, ctx: &mut Context) {
        let (Some(c), Body::Ip(bytes)) = (&mut self.connection, &packet.body) else { return };
        // The connection ignores late and foreign packets.
        let _ = c.handle_input(Time(ctx.now / MICROSECOND), bytes);
        self.pump(ctx);
    }

    fn on_wake(&mut self, ctx: &mut Context) {
        if let Some(c) = &mut self.connection {
            c.handle_timeout(Time(ctx.now / MICROSECOND));
        }
        if self.running.is_none() && self.next <= ctx.now && self.took.len() < usize::from(self.plan.count) {
            self.begin(ctx);
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
