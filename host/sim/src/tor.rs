//! A model of the ToR: checks sums, freshness and replay, stamps its clock, and chooses a live
//! replica.

use std::any::Any;
use std::net::IpAddr;

use rivulet_packet::{Class, NonceKey, RequestClass, Segment, TorBlock, checksum, tor};

use crate::ids::{LinkId, NodeId};
use crate::life::Life;
use crate::net::{Context, Node};
use crate::packet::{Body, Packet};
use crate::rng::Rng;
use crate::sketch::{Key, Left, Opinion, Sketch};
use crate::{MICROSECOND, MILLISECOND, Nanos};

/// How the ToR chooses a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// By hash of tag, number / 8 and attempt: blocks of consecutive numbers stay together.
    #[default]
    Block,
    /// Round robin, packet by packet.
    RoundRobin,
    /// At random.
    Random,
    /// The less loaded of two replicas by hash; the load is the number of packets sent in the last
    /// heartbeat interval.
    LeastLoaded,
}

/// The ToR's data of a replica.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its node.
    pub node: NodeId,
    /// The link to it.
    pub link: LinkId,
    /// Its state over time, which determines its heartbeats.
    pub life: Life,
}

/// Settings of the ToR.
#[derive(Debug, Clone)]
pub struct Config {
    /// How a replica is chosen.
    pub policy: Policy,
    /// Time between heartbeats.
    pub heartbeat: Nanos,
    /// Time without a heartbeat after which a replica is excluded.
    pub bound: Nanos,
    /// Switch number and incarnation.
    pub id: u16,
    /// The common clock at the start of the run, microseconds.
    pub clock: u64,
    /// Whether the offset is set, so that `clock` is the common clock.
    pub time_valid: bool,
    /// Newest usable epochs (seal, nonce), 0 for unknown.
    pub epochs: (u16, u16),
    /// Whether it stamps requests; without stamps hosts use their own clocks.
    pub stamps: bool,
    /// Keys of the nonce epochs (epoch, K, K'). With keys the ToR checks the sums of proofs and
    /// drops wrong ones. Without keys it checks and marks nothing.
    pub nonce_keys: Vec<(u16, NonceKey, NonceKey)>,
    /// Age in microseconds beyond which a continuation is dropped (except in a RESTART).
    pub horizon: u64,
    /// Words in a row of the replay sketch, a power of two; 0: no sketch. It counts requests with
    /// right sums, and requests without sums.
    pub sketch: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::Block,
            heartbeat: 2 * MILLISECOND,
            bound: 20 * MILLISECOND,
            id: 0x0101,
            clock: 1_700_000_000_000_000 & ((1 << 48) - 1),
            time_valid: true,
            epochs: (0, 0),
            stamps: true,
            nonce_keys: vec![],
            horizon: 4_000_000,
            sketch: 1 << 12,
        }
    }
}

/// Counters of the ToR.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests forwarded.
    pub forwarded: u64,
    /// Packets that could not be parsed.
    pub malformed: u64,
    /// Proofs with a wrong sum.
    pub wrong_sum: u64,
    /// Continuations older than the horizon, or from the future.
    pub stale: u64,
    /// Repeated uses beyond what the class allows.
    pub replayed: u64,
    /// Requests that were not known while the sketch was full.
    pub unjudged: u64,
    /// Requests while no replica was alive.
    pub nowhere: u64,
    /// Replicas excluded.
    pub exclusions: u64,
}

/// The ToR.
#[derive(Debug)]
pub struct Tor {
    /// Its settings; a restart changes them.
    pub config: Config,
    /// Its counters.
    pub counters: Counters,
    members: Vec<Member>,
    excluded: u64,
    turn: u64,
    load: Vec<(u64, u32)>,
    /// Sketches of proved requests, and of openings.
    sketches: Option<[Sketch; 2]>,
    left: Left,
    rng: Rng,
}

impl Tor {
    /// Creates a ToR without replicas.
    pub fn new(config: Config, mut rng: Rng) -> Self {
        let key = rng.u64();
        let sketches = (config.sketch > 0)
            .then(|| [Sketch::new(config.sketch, key), Sketch::new(config.sketch / 8, !key)]);
        Self {
            config,
            sketches,
            left: Left::new(),
            counters: Counters::default(),
            members: vec![],
            excluded: 0,
            turn: 0,
            load: vec![],
            rng,
        }
    }

    /// Adds a replica, 64 at most.
    pub fn add(&mut self, member: Member) {
        debug_assert!(self.members.len() < 64, "a pool has 64 members at most");
        self.members.push(member);
        self.load.push((0, 0));
    }

    /// Replaces the process: it loses its counters and gets another id.
    pub fn restart(&mut self, id: u16, clock: u64, time_valid: bool) {
        (self.config.id, self.config.clock, self.config.time_valid) = (id, clock, time_valid);
        (self.excluded, self.turn) = (0, 0);
        let key = self.rng.u64();
        let words = self.config.sketch;
        self.left = Left::new();
        self.sketches = (words > 0).then(|| [Sketch::new(words, key), Sketch::new(words / 8, !key)]);
    }

    /// The ToR's clock, microseconds.
    pub fn clock(&self, now: Nanos) -> u64 {
        (self.config.clock + now / MICROSECOND) & ((1 << 48) - 1)
    }

    /// Updates a replica's state from its last heartbeats; true: it may be chosen.
    fn alive(&mut self, index: usize, now: Nanos) -> bool {
        let (bit, config) = (1 << index, &self.config);
        let life = &self.members[index].life;
        if !life.excluded(now, config.heartbeat, config.bound) {
            self.excluded &= !bit;
            return true;
        }
        if self.excluded & bit == 0 {
            self.excluded |= bit;
            self.counters.exclusions += 1;
        }
        false
    }

    fn choose(&mut self, segment: &Segment<'_>, now: Nanos) -> Option<usize> {
        let n = self.members.len() as u64;
        if n == 0 {
            return None;
        }
        let hash = flow_or_block(segment);
        let (first, second) = match self.config.policy {
            Policy::Block => (hash % n, (hash >> 32) % n),
            Policy::RoundRobin => {
                self.turn += 1;
                ((self.turn - 1) % n, self.turn % n)
            }
            Policy::Random => (self.rng.below(n), self.rng.below(n)),
            Policy::LeastLoaded => {
                let (a, b) = (hash % n, (hash >> 32) % n);
                if self.load_of(b, now) < self.load_of(a, now) { (b, a) } else { (a, b) }
            }
        };
        // The first, else the second, else any live replica from a place that depends on the hash.
        let all = [first, second].into_iter().chain((0..n).map(|i| (hash.rotate_left(16) % n + i) % n));
        let chosen = all.map(|i| i as usize).find(|i| self.alive(*i, now))?;
        let interval = now / self.config.heartbeat;
        let load = &mut self.load[chosen];
        *load = if load.0 == interval { (interval, load.1 + 1) } else { (interval, 1) };
        Some(chosen)
    }

    fn load_of(&self, index: u64, now: Nanos) -> u32 {
        let (interval, count) = self.load[index as usize];
        if interval == now / self.config.heartbeat { count } else { 0 }
    }

    /// Whether the proof's sums are right. `None`: a key is missing, or the host must check.
    fn sums(&self, segment: &Segment<'_>) -> Option<bool> {
        let request = segment.request().ok()?;
        let c = request.continuation?.fields;
        let (_, k, k_prime) = self.config.nonce_keys.iter().find(|e| e.0 == c.nonce_epoch)?;
        // The switch reads four ranges; for more the host checks.
        if request.proof.len() > 4 {
            return None;
        }
        Some(request.proof.ranges().all(|e| {
            let key = if e.kind == rivulet_packet::EntryKind::Original { k } else { k_prime };
            let at = |o: u16| c.base.wrapping_add(u32::from(o));
            key.tag(c.tag).range_sum(at(e.first), at(e.last)) == e.sum
        }))
    }
}

/// The key under which a request is counted, and whether it proves nothing.
fn replay_key(segment: &Segment<'_>) -> Option<(Key, bool)> {
    let request = segment.request().ok()?;
    let (class, attempt) = (request.class, request.attempt);
    let opening = request.proof.ranges().next().is_none();
    let key = match request.continuation.map(|c| c.fields) {
        Some(c) if class != RequestClass::Restart || c.nonce_epoch != 0 => {
            let opens = matches!(class, RequestClass::Timeout | RequestClass::Restart | RequestClass::Rekey);
            Key { class, attempt, tag: c.tag, number: if opens { 0 } else { c.number } }
        }
        _ => {
            let mut flow = Rng::new(u64::from(segment.src.port()) << 16 ^ u64::from(segment.dst.port()));
            let tag = match segment.src.ip() {
                IpAddr::V4(ip) => Rng::new(flow.u64() ^ u64::from(u32::from(ip))).u64(),
                IpAddr::V6(ip) => Rng::new(flow.u64() ^ u128::from(ip) as u64).u64(),
            };
            Key { class, attempt, tag: tag as u32, number: segment.seq }
        }
    };
    Some((key, opening))
}

/// The value that the block policy hashes; for a SYN, which has no number, its flow.
fn flow_or_block(segment: &Segment<'_>) -> u64 {
    let mut key = u64::from(segment.src.port()) << 32 ^ u64::from(segment.seq);
    if let Class::Request(class) = segment.option.class
        && class != RequestClass::Syn
        && let Ok(request) = segment.request()
        && let Some(c) = request.continuation
    {
        key = u64::from(c.fields.tag) << 32 | u64::from(c.fields.number >> 3);
        key ^= u64::from(request.attempt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    Rng::new(key).u64()
}

impl Node for Tor {
    fn on_packet(&mut self, mut packet: Packet, ctx: &mut Context) {
        let Body::Ip(bytes) = &mut packet.body else { return };
        let Ok(segment) = Segment::parse_packet(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        let clock = self.clock(ctx.now);
        let bare = segment.is_bare_syn();
        let mut checked = false;
        if !bare {
            let Ok(request) = segment.request() else {
                self.counters.malformed += 1;
                return;
            };
            let restart = request.class == RequestClass::Restart;
            if let Some(c) = request.continuation.filter(|_| !restart && self.config.time_valid) {
                let age = clock.wrapping_sub(c.fields.time) & ((1 << 48) - 1);
                // Within the horizon, or up to 100 ms in the future.
                if age > self.config.horizon && age < (1 << 48) - 100_000 {
                    self.counters.stale += 1;
                    return;
                }
            }
            match self.sums(&segment) {
                Some(false) if !restart => {
                    self.counters.wrong_sum += 1;
                    return;
                }
                sums => checked = sums == Some(true),
            }
            // One use per number. Only proved requests, and those that cannot be proved, are
            // counted.
            if let (Some(sketches), Some((key, opening))) = (&mut self.sketches, replay_key(&segment))
                && (checked || opening)
            {
                if self.left.is_over(key.class, key.tag, clock) {
                    self.counters.replayed += 1;
                    return;
                }
                if checked && matches!(key.class, RequestClass::Timeout | RequestClass::Rekey) {
                    self.left.leave(key.tag, key.class == RequestClass::Rekey, clock);
                }
                match sketches[usize::from(opening)].take(key, clock) {
                    Opinion::Fresh => {}
                    Opinion::Used => {
                        self.counters.replayed += 1;
                        return;
                    }
                    Opinion::Unjudged => {
                        self.counters.unjudged += 1;
                        checked = false;
                    }
                }
            }
        }
        let Some(chosen) = self.choose(&segment, ctx.now) else {
            self.counters.nowhere += 1;
            return;
        };
        if !bare && self.config.stamps {
            let block = TorBlock {
                time: clock,
                id: self.config.id,
                seal_epoch: self.config.epochs.0,
                nonce_epoch: self.config.epochs.1,
                checked: checked && self.config.time_valid,
                time_valid: self.config.time_valid,
                ..TorBlock::default()
            };
            let payload = segment.payload.as_ptr() as usize - bytes.as_ptr() as usize;
            stamp(bytes, payload, &block);
        }
        self.counters.forwarded += 1;
        let member = &self.members[chosen];
        packet.dst = member.node;
        ctx.send(member.link, packet);
    }

    fn on_wake(&mut self, _: &mut Context) {}

    fn next_wake(&self) -> Option<Nanos> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Writes the block at the start of the payload and updates the TCP checksum; a wrong checksum
/// stays wrong.
fn stamp(packet: &mut [u8], payload: usize, block: &TorBlock) {
    let tcp = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let mut old = [0; tor::LENGTH];
    let Some(room) = packet.get(payload..payload + tor::LENGTH) else { return };
    old.copy_from_slice(room);
    if block.stamp(&mut packet[payload..]).is_ok() {
        let sum = u16::from_be_bytes([packet[tcp + 16], packet[tcp + 17]]);
        let new = checksum::replace(sum, &old, &packet[payload..payload + tor::LENGTH]);
        packet[tcp + 16..tcp + 18].copy_from_slice(&new.to_be_bytes());
    }
}
