//! The Congestion Manager's connections beside Reno, and in the paper's figures.

use rivulet_cm::Config as Rules;

use crate::dumbbell::{Dumbbell, TcpFlow, queue_for};
use crate::link::{Config, Discipline};
use crate::managed::{Host, Style};
use crate::net::Network;
use crate::tcp::Client;
use crate::{MILLISECOND, Nanos, SECOND, stats};

/// Bits per second of the bottleneck for each of the two sides: the group, and the one Reno
/// connection.
pub const RATE: u64 = 10_000_000;
/// One-way delay.
pub const DELAY: Nanos = 25 * MILLISECOND;
/// Largest random delay of an acknowledgement. Without it whole windows wait in the queue one after
/// the other, and drops depend on the moment at which a window grows (phase effects: Floyd and
/// Jacobson, 1991).
pub const JITTER: Nanos = 5 * MILLISECOND;
/// Time before the measurement, in which slow start ends.
pub const WARM_UP: Nanos = 10 * SECOND;

/// Result of a group.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// Wire bytes of all its connections, divided by those of the Reno connection.
    pub of_reno: f64,
    /// Jain's fairness index of the connections.
    pub jain: f64,
}

/// Share of `count` managed connections to one destination beside one Reno connection, during
/// `time` after the warm-up. `None`: independent Reno connections.
pub fn group(seed: u64, style: Option<Style>, count: usize, time: Nanos) -> Share {
    let mut net = Network::new(seed);
    let rate = 2 * RATE;
    let queue = queue_for(rate, 2 * DELAY);
    let down = Config { rate, delay: DELAY, queue, discipline: Discipline::RandomDrop, ..Config::default() };
    let up = Config { delay: DELAY, reorder: (1.0, JITTER), ..Config::default() };
    let d = Dumbbell::new(&mut net, down, up);
    let mut rng = net.rng();
    let mut flow = || TcpFlow { start: rng.below(SECOND), ..TcpFlow::default() };
    let (reno, _) = d.tcp(&mut net, flow());
    let flows: Vec<TcpFlow> = (0..count).map(|_| flow()).collect();
    let clients = match style {
        None => flows.iter().map(|flow| d.tcp(&mut net, *flow).0).collect(),
        Some(style) => d.managed(&mut net, Rules::default(), style, &flows).0,
    };
    let read = |net: &Network| -> (f64, Vec<f64>) {
        let got = |id| net.node::<Client>(id).received_bytes() as f64;
        (got(reno), clients.iter().map(|c| got(*c)).collect())
    };
    net.run_until(WARM_UP);
    let before = read(&net);
    net.run_until(WARM_UP + time);
    let after = read(&net);
    let got: Vec<f64> = after.1.iter().zip(&before.1).map(|(a, b)| a - b).collect();
    Share { of_reno: got.iter().sum::<f64>() / (after.0 - before.0), jain: stats::jain(&got) }
}

/// Bytes a second of one long connection at this loss, managed or Reno: the paper's Figure 3 (10
/// Mb/s, 60 ms).
pub fn goodput(seed: u64, style: Option<Style>, loss: f64, time: Nanos) -> f64 {
    let mut net = Network::new(seed);
    let rate = 10_000_000;
    let delay = 30 * MILLISECOND;
    let queue = queue_for(rate, 2 * delay);
    let down = Config { rate, delay, queue, loss, ..Config::default() };
    let d = Dumbbell::new(&mut net, down, Config { delay, ..Config::default() });
    let client = match style {
        None => d.tcp(&mut net, TcpFlow::default()).0,
        Some(style) => d.managed(&mut net, Rules::default(), style, &[TcpFlow::default()]).0[0],
    };
    net.run_until(time);
    net.node::<Client>(client).received_bytes() as f64 * SECOND as f64 / time as f64
}

/// Times of `count` downloads of `bytes` that start `gap` apart on a path with this round trip time
/// and 20 Mb/s, in ns: the paper's Figure 7. `None`: not finished before the next one started.
pub fn fetches(
    seed: u64,
    style: Option<Style>,
    initial: u32,
    count: u64,
    bytes: u64,
    rtt: Nanos,
    gap: Nanos,
) -> Vec<Option<Nanos>> {
    let mut net = Network::new(seed);
    let rate = 20_000_000;
    let config = Config { rate, delay: rtt / 2, queue: queue_for(rate, rtt), ..Config::default() };
    let d = Dumbbell::new(&mut net, config, Config { delay: rtt / 2, ..Config::default() });
    let flows: Vec<TcpFlow> =
        (0..count).map(|n| TcpFlow { start: n * gap, bytes, ..TcpFlow::default() }).collect();
    let clients = match style {
        None => flows.iter().map(|flow| d.tcp(&mut net, *flow).0).collect(),
        Some(style) => {
            let mut rules = Rules::default();
            rules.rules.initial = initial;
            let (clients, host) = d.managed(&mut net, rules, style, &flows);
            net.run_until(count * gap + 10 * SECOND);
            debug_assert!(net.with_node(host, |host: &mut Host, _| host.manager().counts().0) == 0);
            clients
        }
    };
    net.run_until(count * gap + 10 * SECOND);
    clients.into_iter().map(|c| net.node::<Client>(c).completion()).collect()
}
