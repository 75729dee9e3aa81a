//! How long a download stalls when a replica dies.

use crate::client::{Client, Plan};
use crate::dumbbell::queue_for;
use crate::life::{Life, State};
use crate::link;
use crate::net::Network;
use crate::service::{Config, ReplicaConfig, Service};
use crate::tor::{self, Policy};
use crate::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::Config as ClientConfig;

/// Effect of one kill on one download.
#[derive(Debug, Clone, Copy)]
pub struct Stall {
    /// Longest time without a new byte in order in the second after the kill.
    pub longest: Nanos,
    /// Numbers declared lost in that second.
    pub declared: u64,
    /// PROBEs in that second.
    pub probes: u64,
    /// TIMEOUTs in that second.
    pub timeouts: u64,
    /// Time from the kill to the first four round trips in which the application gets 90 % of the
    /// goodput of the half second before, as `make bench-figure16` measures it; `None`: more than
    /// observed.
    pub recovered: Option<Nanos>,
}

const BEFORE: Nanos = SECOND / 2;

/// See [`Stall::recovered`].
fn recovered(reads: &[(Nanos, u64)], kill: Nanos, span: Nanos) -> Option<Nanos> {
    let until = |at: Nanos| reads[..reads.partition_point(|(t, _)| *t <= at)].last().map_or(0, |r| r.1);
    let got = |from, to| (until(to) - until(from)) as f64 / (to - from) as f64;
    let usual = got(kill - BEFORE, kill);
    let last = reads.last()?.0;
    let after = &reads[reads.partition_point(|(t, _)| *t < kill)..];
    let mut starts = after.iter().map(|(t, _)| *t).take_while(|t| t + span <= last);
    starts.find(|t| got(*t, t + span) >= 0.9 * usual).map(|t| t - kill)
}

/// The first of `replicas` dies about 5 s (plus up to four `rtt`, depending on the seed) into a
/// download at `rate` bits a second.
pub fn stall(seed: u64, replicas: usize, rate: u64, rtt: Nanos) -> Stall {
    let mut net = Network::new(seed);
    let at = 5 * SECOND + net.rng().below(4 * rtt);
    let delay = rtt / 2;
    let down = link::Config { rate, delay, queue: queue_for(rate, rtt), ..link::Config::default() };
    let up = link::Config { delay, rate, ..link::Config::default() };
    let mut places = vec![ReplicaConfig::default(); replicas];
    places[0].life = Life::new(vec![(at, State::Dead)]);
    let tor = tor::Config { policy: Policy::Block, ..tor::Config::default() };
    let config = Config { replicas: places, down, up, tor, ..Config::default() };
    let service = Service::new(&mut net, config);
    let config = ClientConfig { seed, ..ClientConfig::default() };
    let client = service.client(&mut net, Plan { size: 1 << 46, config, ..Plan::default() });
    net.with_node(client, |c: &mut Client, _| c.measure(MILLISECOND));
    net.run_until(at - 1);
    let before = net.node::<Client>(client).statistics();
    net.run_until(at + SECOND);
    let later = net.node::<Client>(client).statistics();
    net.run_until(at + 3 * SECOND);
    let c = net.node::<Client>(client);
    let recovered = recovered(c.reads(), at, 4 * rtt);
    let counts = c.progress().iter().skip((at / MILLISECOND) as usize).take(1000);
    let (mut longest, mut run) = (0, 0);
    for n in counts {
        run = if *n == 0 { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    Stall {
        longest: longest * MILLISECOND,
        declared: later.declared - before.declared,
        probes: later.probes - before.probes,
        timeouts: later.timeouts - before.timeouts,
        recovered,
    }
}
