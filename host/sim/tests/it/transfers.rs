//! Transfers over damaged networks with dying replicas: every byte arrives, and no transfer gets
//! stuck.

use rivulet_sim::client::{Client, Outcome, Plan};
use rivulet_sim::link;
use rivulet_sim::net::Network;
use rivulet_sim::service::{Config, Service};
use rivulet_sim::{MILLISECOND, Nanos, SECOND};

fn wire(delay: Nanos) -> link::Config {
    link::Config { delay, ..link::Config::default() }
}

#[test]
fn a_clean_transfer_takes_the_round_trips_of_slow_start() {
    let mut net = Network::new(1);
    let delay = 50 * MILLISECOND;
    let s = Service::new(&mut net, Config { down: wire(delay), up: wire(delay), ..Config::default() });
    let client = s.client(&mut net, Plan { size: 100_000, ..Plan::default() });
    net.run_while(60 * SECOND, |net| *net.node::<Client>(client).outcome() == Outcome::Running);
    let c = net.node::<Client>(client);
    println!("{:?} {:?}", c.outcome(), c.statistics());
    assert!(matches!(c.outcome(), Outcome::Done(t) if *t < 700 * MILLISECOND));
}

#[test]
fn random_transfers_are_byte_exact_and_none_is_stuck() {
    let from: u64 = std::env::var("RIVULET_TRANSFERS_FROM").map_or(0, |v| v.parse().unwrap());
    let count: u64 = std::env::var("RIVULET_TRANSFERS").map_or(2000, |v| v.parse().unwrap());
    let mut bad = vec![];
    for seed in from..from + count {
        let report = rivulet_sim::random::transfer(seed);
        if !report.is_good() {
            bad.push((seed, report));
        }
    }
    for (seed, r) in bad.iter().take(20) {
        println!(
            "seed {seed}: {:?}, {} bytes, at {} ms, {:?}",
            r.outcome,
            r.received,
            r.end / MILLISECOND,
            r.statistics
        );
    }
    assert!(bad.is_empty(), "{} of {count} transfers failed", bad.len());
}
