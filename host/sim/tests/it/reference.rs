//! Checks that the reference TCP behaves like Reno with SACK and RACK.

use rivulet_sim::dumbbell::{Dumbbell, TcpFlow, queue_for, tcp_completion};
use rivulet_sim::link::{Config, Discipline};
use rivulet_sim::net::Network;
use rivulet_sim::tcp::MSS;
use rivulet_sim::tcp::{Client, Server};
use rivulet_sim::{MILLISECOND, Nanos, SECOND, stats};

fn wire(delay: Nanos) -> Config {
    Config { delay, ..Config::default() }
}

/// Round trips from SYN to last byte without loss: handshake, then windows of 10, 20, 40, ...
#[test]
fn a_clean_transfer_takes_the_round_trips_of_slow_start() {
    for (segments, rtts) in [(1, 2), (10, 2), (11, 3), (30, 3), (31, 4), (70, 4), (71, 5)] {
        let bytes = segments * u64::from(MSS);
        let took = tcp_completion(1, wire(50 * MILLISECOND), wire(50 * MILLISECOND), bytes, 60 * SECOND);
        assert_eq!(took, Some(rtts * 100 * MILLISECOND), "{segments} segments");
    }
}

#[test]
fn every_transfer_finishes_under_any_loss_reordering_and_duplication() {
    for seed in 0..200 {
        let loss = (seed % 5) as f64 * 0.06;
        let config = Config {
            loss,
            reorder: (0.1, 30 * MILLISECOND),
            duplicate: 0.02,
            rate: 10_000_000,
            queue: 20,
            ..wire(20 * MILLISECOND)
        };
        let took = tcp_completion(seed, config.clone(), config, 150_000, 3600 * SECOND);
        assert!(took.is_some(), "seed {seed}, loss {loss}");
    }
}

/// The goodput of a long flow under random loss is close to the square-root law of Mathis et al.
/// (1997); with an acknowledgement for every packet its constant is sqrt(3/2).
#[test]
fn goodput_follows_the_square_root_law() {
    for (loss, low, high) in [(0.01, 0.75, 1.25), (0.002, 0.75, 1.25)] {
        let mut net = Network::new(3);
        let d = Dumbbell::new(&mut net, Config { loss, ..wire(50 * MILLISECOND) }, wire(50 * MILLISECOND));
        let (client, server) = d.tcp(&mut net, TcpFlow::default());
        net.run_until(1000 * SECOND);
        let got = net.node::<Client>(client).received_bytes() as f64 / 1538.0 / 1000.0;
        let law = (1.5 / loss).sqrt() / 0.1;
        assert!((low..high).contains(&(got / law)), "{got} segments/s, the law says {law}");
        let counters = net.node::<Server>(server).sender().unwrap().counters();
        assert!(counters.timeouts < counters.recoveries / 20, "{counters:?}");
    }
}

#[test]
fn flows_share_a_bottleneck_evenly_and_fill_it() {
    let mut ratios = vec![];
    for seed in 0..30 {
        let mut net = Network::new(seed);
        let rate = 20_000_000;
        let queue = queue_for(rate, 100 * MILLISECOND);
        let down = Config { rate, queue, discipline: Discipline::RandomDrop, ..wire(40 * MILLISECOND) };
        let d = Dumbbell::new(&mut net, down, wire(40 * MILLISECOND));
        let flow = |start| TcpFlow { start, ..TcpFlow::default() };
        let flows: Vec<_> = (0..5).map(|i| d.tcp(&mut net, flow(i * 137 * MILLISECOND)).0).collect();
        net.run_until(10 * SECOND);
        let before: Vec<_> = flows.iter().map(|f| net.node::<Client>(*f).received_bytes()).collect();
        net.run_until(70 * SECOND);
        let got = flows.iter().zip(before).map(|(f, b)| net.node::<Client>(*f).received_bytes() - b);
        let got: Vec<f64> = got.map(|b| b as f64).collect();
        let total: f64 = got.iter().sum();
        assert!(total * 8.0 / 60.0 > 0.95 * rate as f64, "utilisation {}", total * 8.0 / 60.0 / rate as f64);
        ratios.push(got[0] / stats::mean(&got[1..]));
    }
    let (low, high) = stats::confidence_95(&ratios);
    assert!(low < 1.0 && high > 1.0 && high - low < 0.2, "{low} to {high}");
}

#[test]
fn a_lost_tail_is_probed_not_timed_out() {
    // The first ten data segments: the last two are lost by a link that fails for a moment.
    let mut net = Network::new(1);
    let d = Dumbbell::new(&mut net, wire(20 * MILLISECOND), wire(20 * MILLISECOND));
    let (client, server) = d.tcp(&mut net, TcpFlow { bytes: 30 * u64::from(MSS), ..TcpFlow::default() });
    // Data leaves at 60 ms; the second window, segments 10 to 29, at 100 ms. Lose the end of it.
    net.run_until(99 * MILLISECOND);
    net.run_while(SECOND, |net| net.node::<Server>(server).sender().is_none_or(|s| s.counters().sent < 24));
    net.link_mut(d.down).config.loss = 1.0;
    net.run_until(120 * MILLISECOND);
    net.link_mut(d.down).config.loss = 0.0;
    net.run_until(SECOND);
    let counters = net.node::<Server>(server).sender().unwrap().counters();
    assert!(counters.probes > 0 && counters.timeouts == 0, "{counters:?}");
    assert!(net.node::<Client>(client).completion().unwrap() < 400 * MILLISECOND);
}

#[test]
fn reordering_within_a_quarter_of_the_round_trip_is_soon_not_taken_for_loss() {
    let mut net = Network::new(5);
    let down = Config { reorder: (0.2, 8 * MILLISECOND), ..wire(20 * MILLISECOND) };
    let d = Dumbbell::new(&mut net, down, wire(20 * MILLISECOND));
    let (client, server) = d.tcp(&mut net, TcpFlow { bytes: 3_000_000, ..TcpFlow::default() });
    net.run_until(60 * SECOND);
    assert!(net.node::<Client>(client).completion().is_some());
    let counters = net.node::<Server>(server).sender().unwrap().counters();
    assert!(counters.recoveries <= 2, "{counters:?}");
}

#[test]
fn marks_halve_the_window_without_a_loss() {
    let mut net = Network::new(2);
    let down = Config { rate: 10_000_000, queue: 1000, mark_above: Some(30), ..wire(20 * MILLISECOND) };
    let d = Dumbbell::new(&mut net, down, wire(20 * MILLISECOND));
    let (_, server) = d.tcp(&mut net, TcpFlow { ecn: true, ..TcpFlow::default() });
    net.run_until(30 * SECOND);
    let counters = net.node::<Server>(server).sender().unwrap().counters();
    assert_eq!((counters.retransmitted, net.link(d.down).counters.dropped), (0, 0));
    assert!(net.link(d.down).counters.marked > 5);
    assert!(net.link(d.down).counters.sent_bytes * 8 / 30 > 9_000_000);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let config = Config { loss: 0.1, reorder: (0.1, 5 * MILLISECOND), ..wire(10 * MILLISECOND) };
        tcp_completion(seed, config.clone(), config, 300_000, 600 * SECOND)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
