//! A replica: the transport's server step with a lifetime, a processing delay and an application.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rivulet_packet::Segment;
use rivulet_transport::KeyRing;
use rivulet_transport::Time;
use rivulet_transport::server::{Policy, ReplayMemory, Server, Verdict};

use crate::ids::LinkId;
use crate::life::{Life, State};
use crate::net::{Context, Node};
use crate::packet::{Body, Packet};
use crate::rng::Rng;
use crate::{MICROSECOND, Nanos, address, content};

/// Uses that a replica with a replay memory can store per horizon.
const REPLAY_USES: usize = 10_000;

/// Settings of a replica.
#[derive(Debug, Clone)]
pub struct Config {
    /// Its state over time.
    pub life: Life,
    /// Least processing time of a request.
    pub delay: Nanos,
    /// Mean of an additional, exponentially distributed processing time.
    pub jitter: Nanos,
    /// Its clock in microseconds at the start of the run, used without a ToR's stamp.
    pub clock: u64,
    /// The service's policy.
    pub policy: Policy,
    /// Counting from 1, the response that gets a changed nonce and a right checksum: damage that
    /// checksums do not detect.
    pub poison: Option<u64>,
    /// Whether it has a replay memory, already warm at the start of the run.
    pub remembers: bool,
}

/// Counters of a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets received while it was up.
    pub requests: u64,
    /// Responses sent.
    pub responses: u64,
    /// Requests that were damaged on the way.
    pub damaged: u64,
    /// Requests that ended their trickle.
    pub terminated: u64,
    /// Requests refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Packets received while it was not up.
    pub lost: u64,
}

/// One replica.
pub struct Replica {
    /// Its settings.
    pub config: Config,
    /// Its keys; a scenario replaces them to rotate epochs.
    pub keys: Rc<KeyRing>,
    /// Its counters.
    pub counters: Counters,
    server: Server,
    link: LinkId,
    waiting: VecDeque<Packet>,
    resume: Option<Nanos>,
    rng: Rng,
}

impl Replica {
    /// Creates a replica that sends its responses over `link`.
    pub fn new(config: Config, keys: Rc<KeyRing>, link: LinkId, rng: Rng) -> Self {
        let (waiting, resume) = (VecDeque::new(), None);
        let mut server = Server::new(config.policy);
        let horizon = config.policy.horizon;
        let began = Time(config.clock.saturating_sub(horizon));
        server.replay = config.remembers.then(|| ReplayMemory::new(REPLAY_USES, horizon, 1).since(began));
        Self { config, keys, counters: Counters::default(), server, link, waiting, resume, rng }
    }

    fn serve(&mut self, bytes: &[u8], ctx: &mut Context) {
        self.counters.requests += 1;
        let Ok(segment) = Segment::parse_packet(bytes) else {
            self.counters.damaged += 1;
            return;
        };
        if segment.verify().is_err() {
            self.counters.damaged += 1;
            return;
        }
        let now = Time(self.config.clock + ctx.now / MICROSECOND);
        let plan = match self.server.accept(&segment, &self.keys, now) {
            Ok(Verdict::Respond(plan)) => plan,
            Ok(Verdict::Terminate) => {
                self.counters.terminated += 1;
                return;
            }
            Err(refusal) => {
                *self.counters.refused.entry(refusal.name()).or_default() += 1;
                return;
            }
        };
        let jitter = self.rng.exponential(self.config.jitter as f64) as Nanos;
        let delay = self.config.delay + jitter;
        let (link, counters, poison) = (self.link, &mut self.counters, self.config.poison);
        let outcome = content::answer(&plan, &self.keys, |mut packet| {
            if let Some(client) = address::destination(&packet) {
                counters.responses += 1;
                if poison == Some(counters.responses) {
                    change_nonce(&mut packet);
                }
                ctx.send_after(delay, link, Packet::ip(ctx.id, address::node(client), packet));
            }
        });
        if let Err(refusal) = outcome {
            *self.counters.refused.entry(refusal.name()).or_default() += 1;
        }
    }
}

/// Flips a bit of a response's nonce and repairs the checksum.
fn change_nonce(packet: &mut [u8]) {
    let tcp = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let nonce = tcp + usize::from(packet[tcp + 12] >> 4) * 4 + 4;
    if packet.len() < nonce + 4 {
        return;
    }
    let old = [packet[nonce], packet[nonce + 1]];
    packet[nonce] ^= 0x40;
    let sum = u16::from_be_bytes([packet[tcp + 16], packet[tcp + 17]]);
    let new = rivulet_packet::checksum::replace(sum, &old, &packet[nonce..nonce + 2]);
    packet[tcp + 16..tcp + 18].copy_from_slice(&new.to_be_bytes());
}

impl Node for Replica {
    fn on_packet(&mut self, packet: Packet, ctx: &mut Context) {
        match self.config.life.at(ctx.now) {
            State::Up => {
                if let Body::Ip(bytes) = &packet.body {
                    self.serve(bytes, ctx);
                }
            }
            State::Dead | State::Sick => self.counters.lost += 1,
            State::Stalled => {
                self.resume = self.config.life.resumes(ctx.now);
                self.waiting.push_back(packet);
            }
        }
    }

    fn on_wake(&mut self, ctx: &mut Context) {
        self.resume = None;
        for packet in std::mem::take(&mut self.waiting) {
            self.on_packet(packet, ctx);
        }
    }

    fn next_wake(&self) -> Option<Nanos> {
        self.resume
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
