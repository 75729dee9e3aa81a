//! Figure 17 in virtual time: shares of two clients whose packets go round robin to two replicas.
//!
//! As in `make bench-figure17`, each client repeats fetches of 2 MB, and the replicas' links of
//! 50 Mb/s are the bottleneck.

use crate::dumbbell::{Dumbbell, TcpFlow};
use crate::fetches::{Fetcher, Plan};
use crate::link;
use crate::net::Network;
use crate::service::{Config, ReplicaConfig, Service};
use crate::tcp;
use crate::tor::{self, Policy};
use crate::{MILLISECOND, Nanos};

/// Bytes of a fetch.
const SIZE: u64 = 2_000_000;
/// Bits per second of a replica's link.
const RATE: u64 = 50_000_000;
/// One-way delay.
const DELAY: Nanos = 5 * MILLISECOND;
/// Most time between the starts of two connections' first fetches.
const SPREAD: u64 = 50 * MILLISECOND;

/// The setting of a run.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Connections of each client.
    pub connections: usize,
    /// Packets that a replica's link queues; one bandwidth-delay product is 41.
    pub queue: usize,
    /// Whether each fetch opens a connection. Otherwise all fetches of a connection follow each
    /// other on it.
    pub separate: bool,
}

/// Jain's index of these shares.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|s| *s as f64).sum();
    let squares: f64 = shares.iter().map(|s| (*s as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Bytes that each of two clients got in `time`.
pub fn sprayed(seed: u64, case: Case, time: Nanos) -> [u64; 2] {
    let mut net = Network::new(seed);
    let mut rng = net.rng();
    let own = link::Config { rate: RATE, queue: case.queue, ..link::Config::default() };
    let replicas = vec![ReplicaConfig { down: Some(own), ..ReplicaConfig::default() }; 2];
    let wire = link::Config { delay: DELAY, ..link::Config::default() };
    let tor = tor::Config { policy: Policy::RoundRobin, ..tor::Config::default() };
    let config = Config { replicas, down: wire.clone(), up: wire, tor, ..Config::default() };
    let service = Service::new(&mut net, config);
    let clients = [0, 1].map(|client| -> Vec<_> {
        let plan = |n: usize, start| Plan {
            count: u16::MAX,
            size: SIZE,
            gap: 0,
            separate: case.separate,
            tokens: false,
            start,
            seed: (seed << 8) | (2 * n + client) as u64,
        };
        (0..case.connections).map(|n| service.fetcher(&mut net, plan(n, rng.below(SPREAD)))).collect()
    });
    net.run_until(time);
    clients.map(|nodes| nodes.iter().map(|n| net.node::<Fetcher>(*n).received()).sum())
}

/// The same with the reference TCP, whose connections share one link of twice the rate and queue.
/// Each fetch opens a connection.
pub fn reference(seed: u64, case: Case, time: Nanos) -> [u64; 2] {
    let mut net = Network::new(seed);
    let mut rng = net.rng();
    let wire = link::Config { delay: DELAY, ..link::Config::default() };
    let down = link::Config { rate: 2 * RATE, queue: 2 * case.queue, ..wire.clone() };
    let d = Dumbbell::new(&mut net, down, wire);
    let start =
        |net: &mut Network, at| d.tcp(net, TcpFlow { start: at, bytes: SIZE, ..TcpFlow::default() }).0;
    let mut running = vec![];
    for client in [0, 1] {
        for _ in 0..case.connections {
            let at = rng.below(SPREAD);
            running.push((client, start(&mut net, at)));
        }
    }
    let mut got = [0; 2];
    let mut now = 0;
    while now < time {
        now += MILLISECOND;
        net.run_until(now);
        for (client, node) in &mut running {
            if net.node::<tcp::Client>(*node).completion().is_some() {
                got[*client] += SIZE;
                *node = start(&mut net, now);
            }
        }
    }
    for (client, node) in running {
        got[client] += net.node::<tcp::Client>(node).received_bytes();
    }
    got
}
