//! The share of one Rivulet flow among flows of the reference TCP.

use crate::client::{self, Plan};
use crate::dumbbell::{Dumbbell, TcpFlow, queue_for};
use crate::link::{self, Discipline};
use crate::net::Network;
use crate::service::{Config, ReplicaConfig, Service};
use crate::tcp::Client;
use crate::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::Config as ClientConfig;

/// Bits per second of the bottleneck for each flow.
pub const RATE: u64 = 2_000_000;
/// One-way delay.
pub const DELAY: Nanos = 50 * MILLISECOND;
/// Time before the measurement, in which slow start ends.
pub const WARM_UP: Nanos = 10 * SECOND;

/// Wire bytes of the Rivulet flow, divided by the mean of `others` reference flows, during `time`
/// after the warm-up.
pub fn share(seed: u64, others: usize, time: Nanos) -> f64 {
    let mut net = Network::new(seed);
    let rate = RATE * (others as u64 + 1);
    let down = link::Config {
        rate,
        delay: DELAY,
        queue: queue_for(rate, 2 * DELAY),
        discipline: Discipline::RandomDrop,
        ..link::Config::default()
    };
    let up = link::Config { delay: DELAY, ..link::Config::default() };
    let d = Dumbbell::new(&mut net, down, up.clone());
    let mut rng = net.rng();
    let mut start = || rng.below(SECOND);
    let flows: Vec<_> =
        (0..others).map(|_| d.tcp(&mut net, TcpFlow { start: start(), ..TcpFlow::default() }).0).collect();
    let c = Config::default();
    let service =
        Service::on(&mut net, d.down, up, &[ReplicaConfig::default()], c.tor, c.tor_checks, c.policy);
    let config = ClientConfig { seed, ..ClientConfig::default() };
    let plan = Plan { start: start(), size: 1 << 46, config, ..Plan::default() };
    let ours = service.client(&mut net, plan);
    let read = |net: &Network| -> (f64, f64) {
        let sum: u64 = flows.iter().map(|f| net.node::<Client>(*f).received_bytes()).sum();
        (net.node::<client::Client>(ours).wire_bytes() as f64, sum as f64 / others as f64)
    };
    net.run_until(WARM_UP);
    let before = read(&net);
    net.run_until(WARM_UP + time);
    let after = read(&net);
    (after.0 - before.0) / (after.1 - before.1)
}
