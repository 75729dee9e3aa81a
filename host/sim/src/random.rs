//! Random transfers: a network, a service with dying replicas and a client, all drawn from a seed.

use crate::client::{Client, Outcome, Plan};
use crate::life::{Life, State};
use crate::link::{self, Discipline};
use crate::net::Network;
use crate::rng::Rng;
use crate::service::{Config, ReplicaConfig, Service};
use crate::tor::Policy;
use crate::{MICROSECOND, MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::{self, Statistics};
use rivulet_transport::server::Congestion;

/// Virtual time after which a transfer counts as stuck.
pub const LIMIT: Nanos = 3600 * SECOND;

/// The random choices.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The service.
    pub config: Config,
    /// The client.
    pub plan: Plan,
}

/// Result of a transfer.
#[derive(Debug, Clone)]
pub struct Report {
    /// The client's outcome; `Running` means stuck.
    pub outcome: Outcome,
    /// The connection's counters.
    pub statistics: Statistics,
    /// Bytes received until the end.
    pub received: u64,
    /// Time of the end.
    pub end: Nanos,
}

impl Report {
    /// Whether every byte arrived and was right.
    pub fn is_good(&self) -> bool {
        matches!(self.outcome, Outcome::Done(_))
    }
}

/// Draws lives so that one replica is always up; the others sometimes die, stall or turn sick.
fn lives(rng: &mut Rng, count: usize) -> Vec<Life> {
    let spared = rng.below(count as u64) as usize;
    (0..count)
        .map(|i| {
            if i == spared || rng.chance(0.3) {
                return Life::default();
            }
            let mut changes = vec![];
            let mut at = rng.below(3 * SECOND);
            for _ in 0..rng.range(1, 4) {
                // Dead and stalled replicas get excluded, sick ones do not, so sickness is shorter
                // (a ready replica that drops requests is a bug).
                let (state, longest) = match rng.below(5) {
                    0 => (State::Sick, 200 * MILLISECOND),
                    1 | 2 => (State::Stalled, 2 * SECOND),
                    _ => (State::Dead, 5 * SECOND),
                };
                changes.push((at, state));
                at += rng.range(MILLISECOND, longest);
                changes.push((at, State::Up));
                at += rng.range(50 * MILLISECOND, 3 * SECOND);
            }
            Life::new(changes)
        })
        .collect()
}

/// The scenario of a seed.
pub fn scenario(seed: u64) -> Scenario {
    let mut rng = Rng::new(seed ^ 0x7261_6e64_6f6d);
    let severe = rng.chance(0.3);
    let loss = if severe { rng.unit() * 0.2 } else { rng.unit() * 0.05 };
    let delay = rng.range(MILLISECOND / 10, 100 * MILLISECOND);
    let rate = [0, 2_000_000, 10_000_000, 100_000_000, 1_000_000_000][rng.below(5) as usize];
    let link = |rng: &mut Rng, loss: f64| link::Config {
        rate,
        delay,
        queue: rng.range(5, 300) as usize,
        discipline: if rng.chance(0.5) { Discipline::DropTail } else { Discipline::RandomDrop },
        loss,
        reorder: if rng.chance(0.5) { (rng.unit() * 0.3, rng.below(delay) + MICROSECOND) } else { (0.0, 0) },
        duplicate: if rng.chance(0.3) { rng.unit() * 0.05 } else { 0.0 },
        corrupt: if rng.chance(0.3) { rng.unit() * 0.05 } else { 0.0 },
        mark_above: rng.chance(0.2).then(|| rng.range(2, 30) as usize),
    };
    let (down, up) = (link(&mut rng, loss), link(&mut rng, loss));
    let count = rng.range(1, 8) as usize;
    let skew = if rng.chance(0.5) { rng.below(10 * MILLISECOND) } else { 0 };
    let replicas = lives(&mut rng, count)
        .into_iter()
        .map(|life| ReplicaConfig {
            life,
            delay: rng.below(skew + 1),
            jitter: rng.below(MILLISECOND),
            ..ReplicaConfig::default()
        })
        .collect();
    let policy =
        [Policy::Block, Policy::RoundRobin, Policy::Random, Policy::LeastLoaded][rng.below(4) as usize];
    let tor = crate::tor::Config { policy, stamps: rng.chance(0.8), ..crate::tor::Config::default() };
    let mut config = Config { replicas, down, up, tor, tor_checks: rng.chance(0.5), ..Config::default() };
    config.policy.trust_tor = config.tor.stamps;
    if seed.is_multiple_of(3) {
        config.policy.congestion = Congestion::Cubic;
    }
    let size = match rng.below(4) {
        0 => rng.below(3_000),
        1 => rng.below(50_000),
        2 => rng.below(300_000),
        _ => rng.below(1_000_000),
    };
    let client = client::Config {
        delayed_acks: rng.chance(0.3) && !config.policy.trust_tor,
        seed: rng.u64(),
        receive_buffer: if rng.chance(0.2) { rng.range(3_000, 60_000) as usize } else { 1 << 20 },
        bare_syn: rng.chance(0.1),
        // At a loss of 20 % each way six SYNs in a row are lost in one of 450 connections, and,
        // less often, so are the few RESTARTs of two minutes. These tests are not about such
        // limits.
        syn_attempts: 30,
        give_up_after: 3_000 * 1_000_000,
        ..client::Config::default()
    };
    let plan = Plan { size, content: seed, v6: rng.chance(0.5), config: client, ..Plan::default() };
    Scenario { config, plan }
}

/// Runs the scenario of a seed.
pub fn transfer(seed: u64) -> Report {
    run(seed, false).0
}

/// Runs a seed's scenario and returns the client's packet log.
pub fn trace(seed: u64) -> (Report, Vec<String>) {
    run(seed, true)
}

fn run(seed: u64, record: bool) -> (Report, Vec<String>) {
    let Scenario { config, plan } = scenario(seed);
    let mut net = Network::new(seed);
    let service = Service::new(&mut net, config);
    let client = service.client(&mut net, plan);
    if record {
        net.with_node(client, |c: &mut Client, _| c.record());
    }
    net.run_while(LIMIT, |net| *net.node::<Client>(client).outcome() == Outcome::Running);
    let c = net.node::<Client>(client);
    let (outcome, statistics) = (c.outcome().clone(), c.statistics());
    (Report { outcome, statistics, received: c.received(), end: net.now() }, c.log().to_vec())
}
