//! A download through a drop-tail bottleneck that slow start overshoots. Then every second packet
//! of a window is lost, which makes more gaps than a proof has ranges, and the speed of repairing
//! them decides.

use crate::client::{Client, Outcome, Plan};
use crate::dumbbell::{queue_for, tcp_completion};
use crate::link;
use crate::net::Network;
use crate::service::{Config, Service};
use crate::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::{Config as ClientConfig, Statistics};

/// Time after which a download counts as stuck.
const LIMIT: Nanos = 600 * SECOND;

/// One Rivulet download, and one of the reference with the same size.
#[derive(Debug, Clone, Copy)]
pub struct Overshoot {
    /// Rivulet's time; `None`: stuck.
    pub ours: Option<Nanos>,
    /// The reference's time.
    pub reference: Option<Nanos>,
    /// Rivulet's longest time without a new byte in order, after the first one.
    pub stall: Nanos,
    /// The Rivulet client's counters.
    pub statistics: Statistics,
}

/// Downloads `size` bytes at `rate` bits a second with a round trip time of `rtt` and a queue of
/// one bandwidth-delay product.
pub fn overshoot(seed: u64, rate: u64, rtt: Nanos, size: u64) -> Overshoot {
    let down = link::Config { rate, delay: rtt / 2, queue: queue_for(rate, rtt), ..link::Config::default() };
    let up = link::Config { rate, delay: rtt / 2, ..link::Config::default() };
    let mut net = Network::new(seed);
    let service = Service::new(&mut net, Config { down: down.clone(), up: up.clone(), ..Config::default() });
    let config = ClientConfig { seed, ..ClientConfig::default() };
    let id = service.client(&mut net, Plan { size, content: seed, config, ..Plan::default() });
    net.with_node(id, |c: &mut Client, _| c.measure(MILLISECOND));
    net.run_while(LIMIT, |net| *net.node::<Client>(id).outcome() == Outcome::Running);
    let client = net.node::<Client>(id);
    let ours = match client.outcome() {
        Outcome::Done(t) => Some(*t),
        _ => None,
    };
    let counts = client.progress();
    let first = counts.iter().position(|n| *n > 0).unwrap_or(0);
    let (mut stall, mut run) = (0, 0);
    for n in &counts[first..] {
        run = if *n == 0 { run + 1 } else { 0 };
        stall = stall.max(run);
    }
    Overshoot {
        ours,
        reference: tcp_completion(seed, down, up, size, LIMIT),
        stall: stall * MILLISECOND,
        statistics: client.statistics(),
    }
}
