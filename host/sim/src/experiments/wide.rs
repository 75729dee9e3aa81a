//! The wide area: the rate of one connection at random loss, and the share of Cubic beside Cubic.

use crate::client::{self, Plan};
use crate::dumbbell::{Dumbbell, TcpFlow, queue_for};
use crate::link::{self, Discipline};
use crate::net::Network;
use crate::service::{Config, ReplicaConfig, Service};
use crate::tcp::Client;
use crate::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::Config as ClientConfig;
use rivulet_transport::server::{Congestion, Policy};

/// Bits per second of the link.
pub const RATE: u64 = 100_000_000;

fn ours(
    net: &mut Network,
    d: Dumbbell,
    up: link::Config,
    congestion: Congestion,
    plan: Plan,
) -> crate::ids::NodeId {
    let c = Config::default();
    let policy = Policy { congestion, ..c.policy };
    let service = Service::on(net, d.down, up, &[ReplicaConfig::default()], c.tor, c.tor_checks, policy);
    service.client(net, plan)
}

fn plan(seed: u64, start: Nanos) -> Plan {
    Plan { start, size: 1 << 46, config: ClientConfig { seed, ..ClientConfig::default() }, ..Plan::default() }
}

/// Bits per second on the wire of one Rivulet download during `time`, after a warm-up of as long.
pub fn rate(seed: u64, congestion: Congestion, loss: f64, rtt: Nanos, time: Nanos) -> f64 {
    let mut net = Network::new(seed);
    let (delay, queue) = (rtt / 2, queue_for(RATE, rtt));
    let down = link::Config { rate: RATE, delay, queue, loss, ..link::Config::default() };
    let up = link::Config { delay, ..link::Config::default() };
    let d = Dumbbell::new(&mut net, down, up.clone());
    let client = ours(&mut net, d, up, congestion, plan(seed, 0));
    net.run_until(time);
    let before = net.node::<client::Client>(client).wire_bytes();
    net.run_until(2 * time);
    let bytes = net.node::<client::Client>(client).wire_bytes() - before;
    bytes as f64 * 8.0 * SECOND as f64 / time as f64
}

/// The same for one download by the reference TCP, goodput.
pub fn reference(seed: u64, cubic: bool, loss: f64, rtt: Nanos, time: Nanos) -> f64 {
    let mut net = Network::new(seed);
    let (delay, queue) = (rtt / 2, queue_for(RATE, rtt));
    let down = link::Config { rate: RATE, delay, queue, loss, ..link::Config::default() };
    let d = Dumbbell::new(&mut net, down, link::Config { delay, ..link::Config::default() });
    let (client, _) = d.tcp(&mut net, TcpFlow { cubic, ..TcpFlow::default() });
    net.run_until(time);
    let before = net.node::<Client>(client).received_bytes();
    net.run_until(2 * time);
    let bytes = net.node::<Client>(client).received_bytes() - before;
    bytes as f64 * 8.0 * SECOND as f64 / time as f64
}

/// Wire bytes of one Rivulet download by Cubic, divided by those of one of `others` downloads by
/// the reference Cubic, which share a link of 10 Mb/s for each, during `time` after 20 s.
pub fn share(seed: u64, others: usize, rtt: Nanos, time: Nanos) -> f64 {
    let mut net = Network::new(seed);
    let rate = 10_000_000 * (others as u64 + 1);
    let (delay, queue) = (rtt / 2, queue_for(rate, rtt));
    let discipline = Discipline::RandomDrop;
    let down = link::Config { rate, delay, queue, discipline, ..link::Config::default() };
    let up = link::Config { delay, reorder: (1.0, 2 * MILLISECOND), ..link::Config::default() };
    let d = Dumbbell::new(&mut net, down, up.clone());
    let mut rng = net.rng();
    let mut start = || rng.below(SECOND);
    let flow = |start| TcpFlow { start, cubic: true, ..TcpFlow::default() };
    let flows: Vec<_> = (0..others).map(|_| d.tcp(&mut net, flow(start())).0).collect();
    let plain_up = link::Config { delay, ..link::Config::default() };
    let client = ours(&mut net, d, plain_up, Congestion::Cubic, plan(seed, start()));
    let read = |net: &Network| -> (f64, f64) {
        let sum: u64 = flows.iter().map(|f| net.node::<Client>(*f).received_bytes()).sum();
        (net.node::<client::Client>(client).wire_bytes() as f64, sum as f64 / others as f64)
    };
    net.run_until(20 * SECOND);
    let before = read(&net);
    net.run_until(20 * SECOND + time);
    let after = read(&net);
    (after.0 - before.0) / (after.1 - before.1)
}
