//! Figure 7 of the Congestion Manager's paper (9 fetches of 128 kB, 75 ms) with Rivulet's own connections, in round trips.

use rivulet_sim::fetches::{Fetcher, Plan};
use rivulet_sim::link;
use rivulet_sim::net::Network;
use rivulet_sim::service::{Config, ReplicaConfig, Service};
use rivulet_sim::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::Statistics;

const ROUND: Nanos = 75 * MILLISECOND;

/// Round trips that each of nine fetches took, three replicas behind 100 Mb/s.
fn fetches(gap: Nanos, separate: bool, loss: f64) -> (Vec<u64>, Statistics) {
    fetch(Plan { count: 9, size: 128 * 1024, gap, separate, tokens: false, start: 0, seed: 0 }, loss)
}

/// The same, with separate connections that open with the token of the one before.
fn fetches_with_tokens(gap: Nanos, loss: f64) -> (Vec<u64>, Statistics) {
    fetch(Plan { count: 9, size: 128 * 1024, gap, separate: true, tokens: true, start: 0, seed: 0 }, loss)
}

fn fetch(plan: Plan, loss: f64) -> (Vec<u64>, Statistics) {
    let mut net = Network::new(5);
    let down =
        link::Config { delay: ROUND / 2, rate: 100_000_000, queue: 200, loss, ..link::Config::default() };
    let replicas = vec![ReplicaConfig { remembers: true, ..ReplicaConfig::default() }; 3];
    let config = Config { replicas, down: down.clone(), up: down, ..Config::default() };
    let service = Service::new(&mut net, config);
    let client = service.fetcher(&mut net, plan);
    let done = |net: &Network| net.node::<Fetcher>(client).took().len() == 9;
    net.run_while(120 * SECOND, |net| !done(net));
    assert!(done(&net), "{:?}", net.node::<Fetcher>(client).statistics());
    let fetcher = net.node::<Fetcher>(client);
    // The time to send the last window at this rate does not count as a round trip.
    let took = fetcher.took().iter().map(|t| (t - 10 * MILLISECOND) / ROUND + 1).collect();
    (took, fetcher.statistics())
}

#[test]
fn later_fetches_of_one_connection_take_three_round_trips() {
    let (took, s) = fetches(SECOND / 2, false, 0.0);
    assert_eq!(took[0], 5, "{took:?}");
    assert!(took[1..].iter().all(|n| *n <= 3), "{took:?}, {s:?}");
    assert_eq!((s.declared, s.timeouts, s.restarts, s.rekeys), (0, 0, 0, 0), "{s:?}");
}

#[test]
fn separate_connections_share_no_window() {
    let (took, _) = fetches(SECOND / 2, true, 0.0);
    assert_eq!(took, [5; 9]);
}

/// Separate processes that share only the token.
#[test]
fn later_fetches_with_the_window_of_the_one_before_take_three_round_trips() {
    let (took, s) = fetches_with_tokens(SECOND / 2, 0.0);
    assert_eq!(took, [5, 3, 3, 3, 3, 3, 3, 3, 3]);
    assert_eq!((s.declared, s.timeouts, s.restarts, s.rekeys), (0, 0, 0, 0), "{s:?}");
}

/// The window is halved by every idle second and gone after three; then the token only proves the
/// address.
#[test]
fn a_window_that_was_idle_for_seconds_is_forgotten() {
    let (took, _) = fetches_with_tokens(3 * SECOND, 0.0);
    assert_eq!(took, [5, 4, 4, 4, 4, 4, 4, 4, 4]);
}

#[test]
fn fetches_with_seeded_windows_complete_under_loss() {
    let (took, _) = fetches_with_tokens(SECOND / 2, 0.02);
    assert_eq!(took.len(), 9);
}

#[test]
fn fetches_under_loss_come_whole_on_one_connection() {
    let (took, s) = fetches(SECOND / 2, false, 0.02);
    assert_eq!(took.len(), 9);
    assert!(s.declared > 0, "{s:?}");
}
