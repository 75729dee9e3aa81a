//! A link in one direction: a queue, a transmitter with a rate, and a wire with delay and damage.

use std::collections::VecDeque;

use rivulet_packet::Ecn;

use crate::Nanos;
use crate::ids::{LinkId, NodeId};
use crate::packet::{Body, Packet};
use crate::rng::Rng;

/// The far end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A node.
    Node(NodeId),
    /// Another link.
    Link(LinkId),
    /// The packet's destination: the link is shared by many nodes.
    Destination,
}

/// What to drop when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discipline {
    /// The arriving packet.
    #[default]
    DropTail,
    /// The arriving packet or a waiting one, with equal probability, so that no flow gains from its
    /// phase.
    RandomDrop,
}

/// A link's properties.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bits per second; 0: no limit and no queue.
    pub rate: u64,
    /// Propagation delay.
    pub delay: Nanos,
    /// Length of the queue in packets.
    pub queue: usize,
    /// What to drop when the queue is full.
    pub discipline: Discipline,
    /// Probability that a packet is lost on the wire.
    pub loss: f64,
    /// Probability that a packet is delayed, and the largest delay.
    pub reorder: (f64, Nanos),
    /// Probability that a packet arrives twice, the second time up to a millisecond later.
    pub duplicate: f64,
    /// Probability that a burst of 1 to 15 bits is flipped.
    pub corrupt: f64,
    /// Queue length above which ECN-capable packets are marked; `None`: no marking.
    pub mark_above: Option<usize>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rate: 0,
            delay: 0,
            queue: 1000,
            discipline: Discipline::DropTail,
            loss: 0.0,
            reorder: (0.0, 0),
            duplicate: 0.0,
            corrupt: 0.0,
            mark_above: None,
        }
    }
}

/// Counters of a link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets and bytes that left the transmitter.
    pub sent: u64,
    /// Bytes of them, framing included.
    pub sent_bytes: u64,
    /// Dropped because the queue was full.
    pub dropped: u64,
    /// Lost on the wire.
    pub lost: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Marked.
    pub marked: u64,
}

/// One direction of a cable.
#[derive(Debug)]
pub struct Link {
    /// Its properties, which may change during a run.
    pub config: Config,
    /// Its far end.
    pub end: End,
    /// What it did.
    pub counters: Counters,
    waiting: VecDeque<Box<Packet>>,
    transmitting: Option<Box<Packet>>,
    rng: Rng,
}

/// Arrivals at the far end: time and packet.
pub type Arrivals = Vec<(Nanos, Box<Packet>)>;

impl Link {
    pub(crate) fn new(config: Config, end: End, rng: Rng) -> Self {
        let (waiting, transmitting) = (VecDeque::new(), None);
        Self { config, end, counters: Counters::default(), waiting, transmitting, rng }
    }

    /// Waiting packets, without the one being transmitted.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Accepts a packet. Returns when the transmitter finishes it if the transmitter was idle.
    /// Without a rate the packet goes straight to `arrivals`.
    pub(crate) fn offer(&mut self, now: Nanos, mut packet: Box<Packet>, out: &mut Arrivals) -> Option<Nanos> {
        if self.config.rate == 0 {
            self.onto_wire(now, packet, out);
            return None;
        }
        if self.transmitting.is_none() {
            let done = now + self.transmission_time(&packet);
            self.transmitting = Some(packet);
            return Some(done);
        }
        if self.config.mark_above.is_some_and(|n| self.waiting.len() >= n) && capable(packet.ecn()) {
            packet.mark();
            self.counters.marked += 1;
        }
        if self.waiting.len() >= self.config.queue {
            self.counters.dropped += 1;
            if self.config.discipline == Discipline::DropTail {
                return None;
            }
            let victim = self.rng.below(self.waiting.len() as u64 + 1) as usize;
            if victim == self.waiting.len() {
                return None;
            }
            // The victim is removed, and the others keep their order.
            self.waiting.remove(victim);
        }
        self.waiting.push_back(packet);
        None
    }

    /// The transmitter has finished: puts its packet on the wire and starts the next one.
    pub(crate) fn transmitted(&mut self, now: Nanos, out: &mut Arrivals) -> Option<Nanos> {
        if let Some(packet) = self.transmitting.take() {
            self.onto_wire(now, packet, out);
        }
        let next = self.waiting.pop_front()?;
        let done = now + self.transmission_time(&next);
        self.transmitting = Some(next);
        Some(done)
    }

    fn transmission_time(&self, packet: &Packet) -> Nanos {
        u64::from(packet.size) * 8 * 1_000_000_000 / self.config.rate
    }

    fn onto_wire(&mut self, now: Nanos, mut packet: Box<Packet>, out: &mut Arrivals) {
        self.counters.sent += 1;
        self.counters.sent_bytes += u64::from(packet.size);
        let c = &self.config;
        if self.rng.chance(c.loss) {
            self.counters.lost += 1;
            return;
        }
        let twin = self.rng.chance(c.duplicate).then(|| packet.clone());
        if self.rng.chance(c.corrupt) {
            self.counters.corrupted += 1;
            if !corrupt(&mut packet, &mut self.rng) {
                return;
            }
        }
        let held = if self.rng.chance(c.reorder.0) { self.rng.below(c.reorder.1 + 1) } else { 0 };
        out.push((now + c.delay + held, packet));
        if let Some(twin) = twin {
            out.push((now + c.delay + held + self.rng.below(crate::MILLISECOND), twin));
        }
    }
}

fn capable(ecn: Ecn) -> bool {
    matches!(ecn, Ecn::Ect0 | Ecn::Ect1)
}

/// Flips a burst of 1 to 15 bits, always including the first and the last. Returns false if the
/// packet counts as lost (reference TCP segments have no bytes; their checksum would detect the
/// damage).
fn corrupt(packet: &mut Packet, rng: &mut Rng) -> bool {
    let Body::Ip(bytes) = &mut packet.body else { return false };
    let bits = bytes.len() as u64 * 8;
    let length = rng.range(1, 15).min(bits);
    let start = rng.below(bits - length + 1);
    for i in 0..length {
        if i == 0 || i == length - 1 || rng.chance(0.5) {
            let bit = start + i;
            bytes[(bit / 8) as usize] ^= 0x80 >> (bit % 8);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(n: u8) -> Box<Packet> {
        Box::new(Packet::ip(NodeId(0), NodeId(1), vec![n; 1000 - 38]))
    }

    fn run(config: Config, packets: usize) -> (Arrivals, Counters) {
        let mut link = Link::new(config, End::Destination, Rng::new(1));
        let mut out = vec![];
        let mut done = None;
        for n in 0..packets {
            done = link.offer(0, packet(n as u8), &mut out).or(done);
        }
        while let Some(at) = done {
            done = link.transmitted(at, &mut out);
        }
        (out, link.counters)
    }

    #[test]
    fn packets_leave_at_the_rate_and_arrive_after_the_delay() {
        let (out, _) = run(Config { rate: 8_000_000, delay: 5, ..Config::default() }, 3);
        assert_eq!(out.iter().map(|a| a.0).collect::<Vec<_>>(), [1_000_005, 2_000_005, 3_000_005]);
    }

    #[test]
    fn a_full_queue_drops_the_tail_or_anyone() {
        let config = Config { rate: 8_000_000, queue: 4, ..Config::default() };
        let first = |out: &Arrivals| -> Vec<u8> {
            out.iter()
                .map(|(_, p)| match &p.body {
                    Body::Ip(b) => b[0],
                    Body::Tcp(_) => 0,
                })
                .collect()
        };
        let (out, counters) = run(config.clone(), 20);
        assert_eq!((first(&out), counters.dropped), (vec![0, 1, 2, 3, 4], 15));
        let (out, counters) = run(Config { discipline: Discipline::RandomDrop, ..config }, 20);
        assert_eq!((out.len(), counters.dropped), (5, 15));
        assert!(first(&out).is_sorted() && first(&out) != [0, 1, 2, 3, 4]);
    }

    #[test]
    fn losses_and_duplicates_occur_at_the_configured_rate() {
        let (out, counters) = run(Config { loss: 0.3, ..Config::default() }, 10_000);
        assert!((2_800..3_200).contains(&counters.lost));
        assert_eq!(out.len() as u64, 10_000 - counters.lost);
        let (out, _) = run(Config { duplicate: 0.1, ..Config::default() }, 10_000);
        assert!((10_900..11_100).contains(&out.len()));
    }

    #[test]
    fn damage_is_a_burst_of_at_most_15_bits() {
        let (out, counters) = run(Config { corrupt: 1.0, ..Config::default() }, 200);
        assert_eq!(counters.corrupted, 200);
        for (n, (_, p)) in out.iter().enumerate() {
            let Body::Ip(b) = &p.body else { panic!() };
            let flipped: Vec<usize> =
                (0..b.len() * 8).filter(|i| (b[i / 8] ^ n as u8) & (0x80 >> (i % 8)) != 0).collect();
            assert!(!flipped.is_empty() && flipped[flipped.len() - 1] - flipped[0] < 15);
        }
    }
}
