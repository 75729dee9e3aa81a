//! Experiments on one window of a connection: each of its packets has a given fate, and all later
//! packets arrive.

use std::collections::{BTreeMap, BTreeSet};

use rivulet_packet::{
    EntryKind, NewContinuation, RequestClass, SealedContinuation, Segment, SegmentHeader,
    TransportContinuation,
};
use rivulet_transport::client::{Config, Statistics};
use rivulet_transport::seal_continuation;
use rivulet_transport::server::{HeadKind, Policy, Verdict, step};
use rivulet_transport::{KeyRing, Time};

use super::{Way, World, expected, keys};

/// What happens to the packet with this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Arrives,
    RequestLost,
    ResponseLost,
}

/// The window before the examined one.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub cwnd: u16,
    pub ssthresh: u16,
}

/// One experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub start: Start,
    /// Fates of the numbers that the requests of the first window yield.
    pub fates: Vec<Fate>,
    /// The packet that is late by an eighth of an RTT.
    pub delayed: Option<usize>,
    /// Bit i: the i-th packet under K' is lost.
    pub primes_lost: u32,
}

/// Result of an experiment.
#[derive(Debug, Default)]
pub struct Outcome {
    pub done: bool,
    pub whole: bool,
    pub time: u64,
    /// Numbers issued under K in generation 0, with their counts.
    pub issued: BTreeMap<u32, u32>,
    /// Pieces of issued continuations, by number.
    pub pieces: BTreeMap<u32, BTreeSet<(u32, u16, u16)>>,
    /// First number of the examined window.
    pub window: u32,
    pub statistics: Statistics,
    pub primes: u32,
    pub refused: usize,
    pub timeouts: u64,
    pub probed: bool,
}

pub const RTT: u64 = 40_000;
const SIZE: u64 = 15_000;

/// The answer to the SYN, changed to another window in its continuation.
fn with_window(packet: &mut Vec<u8>, start: Start, keys: &KeyRing) -> u32 {
    let segment = Segment::parse_packet(packet).unwrap();
    let mut response = segment.response().unwrap();
    let NewContinuation::Full(old) = response.continuation else { panic!("a SYN is answered in full") };
    let fields = TransportContinuation { start_cwnd: start.cwnd, ssthresh: start.ssthresh, ..old.fields };
    let sealed: SealedContinuation =
        seal_continuation(keys.seal(fields.seal_epoch).unwrap(), &fields, segment.dst);
    response.continuation = NewContinuation::Full(sealed);
    let header = SegmentHeader {
        src: segment.src,
        dst: segment.dst,
        ecn: segment.ecn,
        seq: segment.seq,
        ack: segment.ack,
        flags: segment.flags,
        option: segment.option,
        syn_options: segment.syn_options,
    };
    let mut out = vec![0; 2048];
    let at = header.payload_offset();
    let payload = response.write(&mut out[at..]).unwrap();
    let length = header.finish_packet(&mut out, payload).unwrap();
    out.truncate(length);
    *packet = out;
    fields.number
}

pub fn run(experiment: &Experiment) -> Outcome {
    let config = Config { mtu: 400, ..Config::default() };
    let mut world = World::new(config);
    let mut out = Outcome::default();
    world.write(0, format!("{SIZE}\n").as_bytes());
    let ring = keys();
    let policy = Policy::default();
    let mut window: Option<u32> = None;
    let mut clock = world.now;
    let fate_of = |window: Option<u32>, number: u32| {
        let index = number.wrapping_sub(window?) as usize;
        experiment.fates.get(index).copied().map(|f| (index, f))
    };
    out.done = world.run_damaging(
        120_000_000,
        |way, packet| {
            let is_syn = packet[33] & 0x02 != 0;
            if way == Way::Down && is_syn {
                let first = with_window(packet, experiment.start, &ring);
                window = Some(first + 1 + u32::from(experiment.start.cwnd));
                return vec![RTT / 2];
            }
            clock += 1;
            let segment = Segment::parse_packet(packet).unwrap();
            if std::env::var_os("TRACE").is_some() {
                match way {
                    Way::Down => println!("    < {}", segment.response().unwrap()),
                    Way::Up => println!("  > {}", segment.request().map_or(String::new(), |r| r.to_string())),
                }
            }
            if way == Way::Down {
                let response = segment.response().unwrap();
                if response.prime {
                    out.primes += 1;
                    let lost = experiment.primes_lost >> (out.primes - 1).min(31) & 1 == 1;
                    return if lost { vec![] } else { vec![RTT / 2] };
                }
                return match fate_of(window, response.number) {
                    Some((_, Fate::ResponseLost)) => vec![],
                    Some((index, _)) if experiment.delayed == Some(index) => vec![RTT / 2 + RTT / 8],
                    _ => vec![RTT / 2],
                };
            }
            let Ok(request) = segment.request() else { return vec![RTT / 2] };
            // The server's verdict, also for requests that are lost.
            let verdict = step(&segment, &ring, Time(world_time(packet, clock)), &policy);
            let mut dies = false;
            if let (Ok(Verdict::Respond(plan)), Some(c)) = (&verdict, request.continuation) {
                let ours = c.fields.generation == 0 && request.class == RequestClass::Normal;
                for head in plan.heads().iter().filter(|h| ours && h.kind == HeadKind::New && !h.prime) {
                    *out.issued.entry(head.number).or_default() += 1;
                    dies |= matches!(fate_of(window, head.number), Some((_, Fate::RequestLost)));
                }
            }
            out.probed |= request.class == RequestClass::Probe;
            if let Some(c) = request.continuation.filter(|c| c.fields.generation == 0) {
                let piece = (c.fields.tcp_base, c.fields.start_cwnd, c.fields.ssthresh);
                let regenerated = request.proof.ranges().any(|e| {
                    e.kind == EntryKind::Retransmitted
                        && c.fields.number.wrapping_sub(c.fields.base) <= u32::from(e.last)
                });
                if !regenerated {
                    out.pieces.entry(c.fields.number).or_default().insert(piece);
                }
            }
            if dies { vec![] } else { vec![RTT / 2] }
        },
        |w| w.got(0).len() as u64 >= SIZE,
    );
    out.whole = world.got(0) == expected(SIZE);
    out.time = world.now;
    out.window = window.unwrap_or(0);
    out.statistics = world.client.statistics();
    out.refused = world.refusals.len();
    out.timeouts = out.statistics.timeouts + out.statistics.restarts;
    out
}

/// A time at which this request's continuation is fresh; the shadow step examines only numbers.
fn world_time(packet: &[u8], fallback: u64) -> u64 {
    Segment::parse_packet(packet)
        .ok()
        .and_then(|s| s.request().ok()?.continuation)
        .map_or(fallback, |c| c.fields.time + 1)
}
