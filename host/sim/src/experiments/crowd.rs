//! Very many clients in one process.

use crate::client::{Client, Outcome, Plan};
use crate::dumbbell::queue_for;
use crate::link::{self, Discipline};
use crate::net::Network;
use crate::service::{Config, ReplicaConfig, Service};
use crate::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::Config as ClientConfig;

/// Result of a crowd.
#[derive(Debug, Clone)]
pub struct Crowd {
    /// Clients that got every byte.
    pub done: usize,
    /// Outcomes of the other clients.
    pub others: Vec<Outcome>,
    /// Virtual time of the last completion, seconds.
    pub time: f64,
    /// Events handled.
    pub events: u64,
}

/// Lets `clients` open within a second. Each downloads `size` bytes through one link of 10 Gb/s
/// with a loss of 0.1 %, from 8 replicas, one of which dies after half a second.
pub fn run(seed: u64, clients: usize, size: u64) -> Crowd {
    let mut net = Network::new(seed);
    let down = link::Config {
        rate: 10_000_000_000,
        delay: 20 * MILLISECOND,
        queue: 20_000,
        discipline: Discipline::RandomDrop,
        loss: 0.001,
        ..link::Config::default()
    };
    let up = link::Config { delay: 20 * MILLISECOND, loss: 0.001, ..link::Config::default() };
    let mut replicas = vec![ReplicaConfig::default(); 8];
    replicas[3].life = crate::life::Life::new(vec![(SECOND / 2, crate::life::State::Dead)]);
    let service = Service::new(&mut net, Config { replicas, down, up, ..Config::default() });
    let mut rng = net.rng();
    let ids: Vec<_> = (0..clients)
        .map(|i| {
            let config = ClientConfig { seed: rng.u64(), ..ClientConfig::default() };
            let plan = Plan {
                start: rng.below(SECOND),
                size,
                content: i as u64,
                v6: i % 2 == 1,
                config,
                ..Plan::default()
            };
            service.client(&mut net, plan)
        })
        .collect();
    let mut left = ids.clone();
    while !left.is_empty() && net.now() < 600 * SECOND {
        let next = net.now() + SECOND / 10;
        net.run_until(next);
        left.retain(|id| *net.node::<Client>(*id).outcome() == Outcome::Running);
    }
    let outcomes = ids.iter().map(|id| net.node::<Client>(*id).outcome().clone());
    let (done, others): (Vec<_>, Vec<_>) = outcomes.partition(|o| matches!(o, Outcome::Done(_)));
    Crowd { done: done.len(), others, time: net.now() as f64 / SECOND as f64, events: net.handled() }
}

/// Fraction of a link's rate that `clients` receive as content in the second half of `time`: 100
/// Mb/s, 10 ms, a drop-tail queue of one bandwidth-delay product. With a thousand clients the fair
/// window is a sixth of a packet, and every loss hits a tail.
pub fn goodput(seed: u64, clients: usize, time: Nanos) -> f64 {
    let (rate, delay) = (100_000_000, 5 * MILLISECOND);
    let wire = link::Config { rate, delay, queue: queue_for(rate, 2 * delay), ..link::Config::default() };
    let mut net = Network::new(seed);
    let service = Service::new(&mut net, Config { down: wire.clone(), up: wire, ..Config::default() });
    let ids: Vec<_> = (0..clients as u64)
        .map(|i| {
            let config = ClientConfig { seed: seed ^ i, ..ClientConfig::default() };
            let start = i * MILLISECOND;
            service.client(&mut net, Plan { start, size: 1 << 40, content: i, config, ..Plan::default() })
        })
        .collect();
    let mut received = [0, 0];
    for (half, sum) in received.iter_mut().enumerate() {
        net.run_until(time / 2 * (half as u64 + 1));
        *sum = ids.iter().map(|id| net.node::<Client>(*id).received()).sum::<u64>();
    }
    let seconds = (time / 2) as f64 / SECOND as f64;
    (received[1] - received[0]) as f64 * 8.0 / seconds / rate as f64
}
