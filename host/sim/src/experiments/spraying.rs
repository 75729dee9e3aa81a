//! The cost of a replica's death by policy, and the effect of different speeds of replicas.

use crate::client::{Client, Outcome, Plan};
use crate::dumbbell::queue_for;
use crate::life::{Life, State};
use crate::link;
use crate::net::Network;
use crate::service::{Config, ReplicaConfig, Service};
use crate::tor::{self, Policy};
use crate::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::Config as ClientConfig;

/// Cost of one replica's death.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    /// Trickles in flight just before.
    pub window: usize,
    /// Entries of the longest proof after the death.
    pub longest_proof: usize,
    /// Bytes of proof per request in the second after the death.
    pub proof_bytes: f64,
    /// Numbers declared lost in that second.
    pub declared: u64,
    /// Time from the death to the first 100 ms with 90 % of the earlier rate; `None`: longer than
    /// observed.
    pub recovery: Option<Nanos>,
    /// TIMEOUTs in the second after the death.
    pub timeouts: u64,
    /// Trickles in flight two and a half round trips after the death, when its losses are repaired.
    pub window_after: usize,
}

const SPAN: Nanos = 20 * MILLISECOND;
const DEATH: Nanos = 10 * SECOND;

/// One of `replicas` dies while a client downloads through a link with a bandwidth-delay product of
/// `window` packets. Observes `after` (at least one second) from then on.
pub fn death(seed: u64, policy: Policy, replicas: usize, window: u64, after: Nanos) -> Death {
    let mut net = Network::new(seed);
    let delay = 25 * MILLISECOND;
    let rate = window * 1538 * 8 * SECOND / (2 * delay);
    // A queue of half the product: with a halved window the link is still full two thirds of the
    // time.
    let down = link::Config { rate, delay, queue: queue_for(rate, delay), ..link::Config::default() };
    let up = link::Config { delay, ..link::Config::default() };
    let dead = Life::new(vec![(DEATH, State::Dead)]);
    let mut places = vec![ReplicaConfig::default(); replicas];
    places[0].life = dead;
    let tor = tor::Config { policy, ..tor::Config::default() };
    let config = Config { replicas: places, down, up, tor, ..Config::default() };
    let service = Service::new(&mut net, config);
    let config = ClientConfig { seed, ..ClientConfig::default() };
    let client = service.client(&mut net, Plan { size: 1 << 46, config, ..Plan::default() });
    net.with_node(client, |c: &mut Client, _| c.measure(SPAN));
    net.run_until(DEATH - 1);
    let (before, in_flight) = {
        let c = net.node::<Client>(client);
        (c.statistics(), c.window())
    };
    net.with_node(client, |c: &mut Client, _| c.forget_proofs());
    net.run_until(DEATH + 5 * delay);
    let window_after = net.node::<Client>(client).window();
    net.run_until(DEATH + SECOND);
    let (later, proofs) = {
        let c = net.node::<Client>(client);
        (c.statistics(), c.proofs())
    };
    net.run_until(DEATH + after);
    let spans = |from: Nanos, to: Nanos| (from / SPAN) as usize..(to / SPAN) as usize;
    let counts = net.node::<Client>(client).progress();
    let old = &counts[spans(DEATH - 2 * SECOND, DEATH)];
    let rate = old.iter().sum::<u64>() as f64 / old.len() as f64;
    // The rate over 100 ms, so that a single burst does not count as recovery.
    let five = counts.get(spans(DEATH, DEATH + after)).unwrap_or_default().windows(5);
    // Responses sent before the death arrive for another round trip: start after it.
    let skip = (2 * delay / SPAN + 1) as usize;
    let back = five
        .enumerate()
        .skip(skip)
        .find(|(_, w)| w.iter().sum::<u64>() as f64 >= 0.9 * 5.0 * rate)
        .map(|(i, _)| i as Nanos * SPAN);
    Death {
        window: in_flight,
        longest_proof: proofs.longest,
        proof_bytes: 8.0 * proofs.entries as f64 / proofs.requests.max(1) as f64,
        declared: later.declared - before.declared,
        recovery: back,
        timeouts: later.timeouts - before.timeouts,
        window_after,
    }
}

/// Effect of a speed difference between two replicas on a transfer.
#[derive(Debug, Clone, Copy)]
pub struct Skewed {
    /// Numbers declared lost although no packet was lost.
    pub declared: u64,
    /// Numbers among them that arrived later.
    pub spurious: u64,
    /// Duration of the transfer; `None`: stuck.
    pub completion: Option<Nanos>,
}

/// A transfer of 2 MB from two replicas, the second one slower by `skew`, over a lossless network
/// with this round trip time.
pub fn skew(seed: u64, policy: Policy, skew: Nanos, rtt: Nanos) -> Skewed {
    let mut net = Network::new(seed);
    let wire = link::Config { delay: rtt / 2, rate: 50_000_000, queue: 1000, ..link::Config::default() };
    let places = vec![ReplicaConfig::default(), ReplicaConfig { delay: skew, ..ReplicaConfig::default() }];
    let tor = tor::Config { policy, ..tor::Config::default() };
    let config = Config { replicas: places, down: wire.clone(), up: wire, tor, ..Config::default() };
    let service = Service::new(&mut net, config);
    let config = ClientConfig { seed, ..ClientConfig::default() };
    let client = service.client(&mut net, Plan { size: 2_000_000, config, ..Plan::default() });
    net.run_while(600 * SECOND, |net| *net.node::<Client>(client).outcome() == Outcome::Running);
    let c = net.node::<Client>(client);
    let completion = match c.outcome() {
        Outcome::Done(t) => Some(*t),
        _ => None,
    };
    Skewed { declared: c.statistics().declared, spurious: c.statistics().spurious, completion }
}
