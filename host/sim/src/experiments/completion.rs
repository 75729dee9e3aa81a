//! Completion time of transfers against SACK-Reno with RACK.

use crate::client::{Client, Outcome, Plan};
use crate::dumbbell::tcp_completion;
use crate::link;
use crate::net::Network;
use crate::rng::Rng;
use crate::service::{Config, Service};
use crate::{MILLISECOND, Nanos, SECOND, stats};
use rivulet_transport::client;

/// Time after which a transfer counts as stuck.
const LIMIT: Nanos = 3600 * SECOND;

/// One transfer of each kind, with the same size and round trip time.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Bytes.
    pub size: u64,
    /// Rivulet with a loss of p both ways; `None`: stuck or wrong.
    pub ours: Option<Nanos>,
    /// The reference with a loss of 1 - (1 - p)^2 from server to client and no loss of
    /// acknowledgements.
    pub reference: Option<Nanos>,
    /// Another run of the reference, to show the difference between two runs of one protocol.
    pub control: Option<Nanos>,
    /// Median of five more runs of the reference: the typical time for this size and round trip
    /// time.
    pub typical: Option<Nanos>,
    /// The reference with a loss of p both ways.
    pub both_ways: Option<Nanos>,
}

/// Runs a seed's transfers at a loss of p.
pub fn sample(seed: u64, p: f64) -> Sample {
    let mut rng = Rng::new(seed ^ 0x636f_6d70);
    let delay = rng.range(5 * MILLISECOND, 50 * MILLISECOND);
    // Sizes spread evenly over their logarithm, 10 kB to 1 MB.
    let size = (10_000.0 * 100f64.powf(rng.unit())) as u64;
    let wire = |loss| link::Config { delay, loss, ..link::Config::default() };
    let double = 1.0 - (1.0 - p) * (1.0 - p);
    let reference = |n: u64| tcp_completion(seed ^ n << 32, wire(double), wire(0.0), size, LIMIT);
    let mut net = Network::new(seed);
    let service = Service::new(&mut net, Config { down: wire(p), up: wire(p), ..Config::default() });
    let config = client::Config { seed, ..client::Config::default() };
    let id = service.client(&mut net, Plan { size, content: seed, config, ..Plan::default() });
    net.run_while(LIMIT, |net| *net.node::<Client>(id).outcome() == Outcome::Running);
    let ours = match net.node::<Client>(id).outcome() {
        Outcome::Done(t) => Some(*t),
        _ => None,
    };
    let both_ways = tcp_completion(seed, wire(p), wire(p), size, LIMIT);
    let mut more: Vec<_> = (2..7).map(|n| reference(n).unwrap_or(LIMIT)).collect();
    more.sort_unstable();
    let typical = more.get(2).copied();
    Sample { size, ours, reference: reference(0), control: reference(1), typical, both_ways }
}

/// Ratios over many transfers at one loss.
#[derive(Debug, Clone, Copy)]
pub struct Summary {
    /// Probability of loss each way.
    pub loss: f64,
    /// Transfers.
    pub count: usize,
    /// Transfers that did not finish.
    pub stuck: usize,
    /// Median and 99th percentile of ours / reference for each transfer.
    pub ratio: (f64, f64),
    /// The same for control / reference: two runs of one protocol.
    pub control: (f64, f64),
    /// Median and 99th percentile of ours / typical and of reference / typical. A lucky run as the
    /// denominator cannot distort them.
    pub over_typical: [(f64, f64); 2],
    /// Ratio of the 99th percentiles of the times.
    pub tail: f64,
    /// 50th, 90th and 99th percentile of our times, seconds.
    pub ours: [f64; 3],
    /// The same for the reference.
    pub reference: [f64; 3],
    /// Median and 99th percentile of ours / reference with p both ways.
    pub both_ways: (f64, f64),
}

/// Runs `count` transfers at a loss of p.
pub fn run(p: f64, seed: u64, count: usize) -> Summary {
    let samples: Vec<Sample> = (0..count as u64).map(|i| sample(seed + i, p)).collect();
    let pairs = |a: fn(&Sample) -> Option<Nanos>, b: fn(&Sample) -> Option<Nanos>| -> Vec<f64> {
        samples.iter().filter_map(|s| Some(a(s)? as f64 / b(s)? as f64)).collect()
    };
    let both = |v: Vec<f64>| (stats::percentile(&v, 0.5), stats::percentile(&v, 0.99));
    let times = |f: fn(&Sample) -> Option<Nanos>| -> [f64; 3] {
        let v: Vec<f64> = samples.iter().filter_map(f).map(|t| t as f64 / SECOND as f64).collect();
        [0.5, 0.9, 0.99].map(|share| stats::percentile(&v, share))
    };
    let (ours, reference) = (times(|s| s.ours), times(|s| s.reference));
    Summary {
        loss: p,
        count,
        stuck: samples.iter().filter(|s| s.ours.is_none()).count(),
        ratio: both(pairs(|s| s.ours, |s| s.reference)),
        control: both(pairs(|s| s.control, |s| s.reference)),
        over_typical: [both(pairs(|s| s.ours, |s| s.typical)), both(pairs(|s| s.reference, |s| s.typical))],
        tail: ours[2] / reference[2],
        ours,
        reference,
        both_ways: both(pairs(|s| s.ours, |s| s.both_ways)),
    }
}
