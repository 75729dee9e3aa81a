//! Single connections under pauses, restarts, undetected damage, address changes and expired
//! epochs. Each finishes.

use rivulet_sim::client::{Client, Outcome, Plan};
use rivulet_sim::ids::NodeId;
use rivulet_sim::life::{Life, State};
use rivulet_sim::link;
use rivulet_sim::net::Network;
use rivulet_sim::service::{Config, ReplicaConfig, Service};
use rivulet_sim::tor::{self, Policy, Tor};
use rivulet_sim::{MILLISECOND, Nanos, SECOND};
use rivulet_transport::client::Statistics;

const HOUR: Nanos = 3600 * SECOND;

/// Three replicas behind 20 Mb/s and 40 ms, and a client that downloads 5 MB in about two seconds.
fn service(net: &mut Network, change: impl FnOnce(&mut Config)) -> Service {
    let wire =
        link::Config { delay: 20 * MILLISECOND, rate: 20_000_000, queue: 60, ..link::Config::default() };
    let replicas = vec![ReplicaConfig::default(); 3];
    let mut config = Config { replicas, down: wire.clone(), up: wire, ..Config::default() };
    change(&mut config);
    Service::new(net, config)
}

fn plan() -> Plan {
    Plan { size: 5_000_000, ..Plan::default() }
}

/// Runs to the end of the transfer and returns its duration.
fn finish(net: &mut Network, client: NodeId, limit: Nanos) -> (Nanos, Statistics) {
    net.run_while(limit, |net| *net.node::<Client>(client).outcome() == Outcome::Running);
    let c = net.node::<Client>(client);
    match c.outcome() {
        Outcome::Done(t) => (*t, c.statistics()),
        other => panic!("{other:?} after {} bytes: {:?}", c.received(), c.statistics()),
    }
}

#[test]
fn a_reader_that_pauses_for_an_hour_gets_the_rest() {
    let mut net = Network::new(1);
    let s = service(&mut net, |_| {});
    let client = s.client(&mut net, Plan { pause: Some((SECOND, SECOND + HOUR)), ..plan() });
    let requests = |net: &mut Network, at| {
        net.run_until(at);
        net.node::<Client>(client).statistics().requests
    };
    let before = requests(&mut net, 10 * SECOND);
    let quiet = requests(&mut net, SECOND + HOUR - 1) - before;
    let (time, statistics) = finish(&mut net, client, 2 * HOUR);
    // The buffer of 1 MiB was full at the pause; the other megabytes take two seconds, and a
    // RESTART a round trip.
    assert!(time > HOUR && time < HOUR + 6 * SECOND, "{time}");
    assert!(statistics.restarts >= 1, "an hour is beyond the horizon: {statistics:?}");
    assert_eq!(quiet, 0, "requests while nobody reads");
}

/// The first answer takes three seconds longer than the path, as from a busy server. With that
/// estimate no continuation would live for a round trip within the horizon.
#[test]
fn an_estimate_beyond_the_horizon_is_corrected() {
    let mut net = Network::new(4);
    let s = service(&mut net, |_| {});
    let client = s.client(&mut net, plan());
    net.link_mut(s.down).config.delay = 3200 * MILLISECOND;
    net.run_until(SECOND / 2);
    net.link_mut(s.down).config.delay = 20 * MILLISECOND;
    // The link up is cut so that further SYNs do not arrive.
    net.link_mut(s.up).config.loss = 1.0;
    net.run_until(3200 * MILLISECOND);
    net.link_mut(s.up).config.loss = 0.0;
    let (time, statistics) = finish(&mut net, client, 600 * SECOND);
    assert!(time < 10 * SECOND && statistics.restarts < 3, "{time} {statistics:?}");
}

/// Three of the horizon's four seconds: no continuation lives for two round trips.
#[test]
fn a_round_trip_almost_as_long_as_the_horizon() {
    let mut net = Network::new(5);
    let s = service(&mut net, |_| {});
    for link in [s.up, s.down] {
        net.link_mut(link).config.delay = 1500 * MILLISECOND;
    }
    let client = s.client(&mut net, Plan { size: 300_000, ..Plan::default() });
    let (time, statistics) = finish(&mut net, client, 600 * SECOND);
    assert!(time < 60 * SECOND, "{time} {statistics:?}");
}

#[test]
fn transfers_survive_a_tor_restart_with_new_id_and_clock() {
    let mut net = Network::new(2);
    let s = service(&mut net, |_| {});
    let client = s.client(&mut net, plan());
    net.run_until(SECOND);
    let clock = tor::Config::default().clock;
    // Its clock starts at zero and is not the common clock, until the controller sets the offset
    // half a second later.
    net.with_node(s.tor, |t: &mut Tor, _| t.restart(0x0102, 0, false));
    net.run_until(SECOND + SECOND / 2);
    net.with_node(s.tor, |t: &mut Tor, _| t.restart(0x0102, clock, true));
    let (time, statistics) = finish(&mut net, client, 600 * SECOND);
    assert!(time < 5 * SECOND, "{time} {statistics:?}");
}

#[test]
fn transfers_survive_a_tor_outage_of_ten_seconds() {
    let mut net = Network::new(3);
    let s = service(&mut net, |_| {});
    let client = s.client(&mut net, plan());
    net.run_until(SECOND);
    net.link_mut(s.up).config.loss = 1.0;
    net.run_until(11 * SECOND);
    net.link_mut(s.up).config.loss = 0.0;
    let (time, statistics) = finish(&mut net, client, 600 * SECOND);
    assert!(statistics.restarts >= 1 && time < 30 * SECOND, "{time} {statistics:?}");
}

#[test]
fn one_corrupted_nonce_is_survived() {
    for nth in [1, 2, 5, 50, 500] {
        let mut net = Network::new(4);
        let s = service(&mut net, |c| c.replicas[0].poison = Some(nth));
        let client = s.client(&mut net, plan());
        let (time, statistics) = finish(&mut net, client, 600 * SECOND);
        assert!(time < 15 * SECOND, "response {nth}: {time} {statistics:?}");
    }
}

#[test]
fn changed_address_is_challenged_and_the_transfer_continues() {
    for v6 in [false, true] {
        let mut net = Network::new(5);
        let s = service(&mut net, |_| {});
        let client = s.client(&mut net, Plan { moves: Some(SECOND), v6, ..plan() });
        let (time, statistics) = finish(&mut net, client, 600 * SECOND);
        assert!(statistics.restarts >= 1 && time < 8 * SECOND, "{time} {statistics:?}");
    }
}

#[test]
fn expired_epoch_is_left_by_rekey_or_restart() {
    for (seal, nonce) in [(&[1u16, 2][..], &[2u16][..]), (&[1, 2], &[1, 2])] {
        let mut net = Network::new(6);
        let s = service(&mut net, |_| {});
        let client = s.client(&mut net, plan());
        net.run_until(SECOND);
        s.rotate(&mut net, seal, nonce);
        let (time, statistics) = finish(&mut net, client, 600 * SECOND);
        assert!(time < 10 * SECOND, "{time} {statistics:?}");
        assert!(nonce.len() == 2 || statistics.restarts + statistics.rekeys >= 1, "{statistics:?}");
    }
}

#[test]
fn all_replicas_but_one_die_in_the_middle() {
    for policy in [Policy::Block, Policy::RoundRobin, Policy::Random, Policy::LeastLoaded] {
        let mut net = Network::new(7);
        let s = service(&mut net, |c| {
            c.tor.policy = policy;
            c.replicas = vec![ReplicaConfig::default(); 8];
            for (i, r) in c.replicas.iter_mut().enumerate().skip(1) {
                let at = SECOND / 2 + i as Nanos * 100 * MILLISECOND;
                r.life = Life::new(vec![(at, State::Dead)]);
            }
        });
        let client = s.client(&mut net, plan());
        let (time, statistics) = finish(&mut net, client, 600 * SECOND);
        assert!(time < 20 * SECOND, "{policy:?}: {time} {statistics:?}");
    }
}

#[test]
fn a_service_without_a_tor_clock_works_by_the_replicas_own() {
    let mut net = Network::new(8);
    let s = service(&mut net, |c| {
        c.tor.stamps = false;
        c.tor_checks = false;
        c.policy.trust_tor = false;
    });
    let client = s.client(&mut net, plan());
    let (time, _) = finish(&mut net, client, 600 * SECOND);
    assert!(time < 5 * SECOND, "{time}");
}

#[test]
fn a_thousand_clients_in_one_process_all_finish() {
    let crowd = rivulet_sim::experiments::crowd::run(9, 1000, 50_000);
    assert_eq!((crowd.done, &crowd.others[..]), (1000, &[][..]));
}

/// A life that alternates between dead and up, from `begin` on.
fn storm(period: Nanos, begin: Nanos) -> Life {
    let state = |i| if i % 2 == 0 { State::Dead } else { State::Up };
    Life::new((0..600).map(|i| (begin + i * period, state(i))).collect())
}

/// A transfer, which takes 1.6 s undisturbed, from a service with only this server.
fn under_storm(seed: u64, period: Nanos, begin: Nanos, size: u64) -> (Nanos, Statistics) {
    let mut net = Network::new(100 + seed);
    let s = service(&mut net, |c| {
        c.replicas = vec![ReplicaConfig { life: storm(period, begin), ..ReplicaConfig::default() }];
    });
    let mut plan = Plan { size, ..plan() };
    plan.config.seed = seed;
    let client = s.client(&mut net, plan);
    finish(&mut net, client, 600 * SECOND)
}

#[test]
fn transfers_finish_with_a_server_down_half_the_time() {
    for period in [SECOND / 2, SECOND, 2 * SECOND, 5 * SECOND, 15 * SECOND] {
        for seed in 0..8 {
            // Each seed stops the server at another point of the transfer; the first one does so
            // while the connection opens.
            let (time, statistics) = under_storm(seed, period, seed * 130 * MILLISECOND + 1, 4_000_000);
            // A long outage ends within two and a half seconds after the return; in short ones the
            // window never grows.
            let limit = if period >= 5 * SECOND { period + 6 * SECOND } else { 120 * SECOND };
            assert!(time < limit, "period {period} seed {seed}: {time} {statistics:?}");
        }
    }
}

#[test]
fn absent_server_gets_at_most_one_request_in_two_seconds() {
    let (time, statistics) = under_storm(1, 200 * SECOND / 2, SECOND, 4_000_000);
    assert!(time < 106 * SECOND, "{time} {statistics:?}");
    let asked = statistics.probes + statistics.timeouts + statistics.restarts;
    assert!((40..=56).contains(&asked), "{statistics:?}");
}
