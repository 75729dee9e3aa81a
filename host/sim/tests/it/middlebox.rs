//! Middleboxes between client and ToR accept our packets as those of a TCP connection.

use rivulet_sim::client::{Client, Outcome, Plan};
use rivulet_sim::conntrack::Middlebox;
use rivulet_sim::ids::{LinkId, NodeId};
use rivulet_sim::link::{self, End};
use rivulet_sim::net::Network;
use rivulet_sim::service::{Config, ReplicaConfig, Service};
use rivulet_sim::{MILLISECOND, SECOND};
use rivulet_transport::client::Config as ClientConfig;

/// A transfer through the box, with these links on both sides. Returns the packets passed and the
/// invalid ones.
fn transfer(seed: u64, wire: &link::Config, config: ClientConfig, v6: bool) -> (u64, u64) {
    let mut net = Network::new(seed);
    // Node 0 is the client and node 1 the box; the service's nodes follow.
    let (client, middlebox) = (NodeId(0), NodeId(1));
    let from_client = net.add_link(wire.clone(), End::Node(middlebox));
    let to_client = net.add_link(wire.clone(), End::Node(client));
    let (tor, up) = (NodeId(2), LinkId(3));
    let plan = Plan { size: 700_000, content: seed, v6, config, ..Plan::default() };
    assert_eq!(net.add_node(Client::new(plan, tor, from_client)), client);
    assert_eq!(net.add_node(Middlebox::new(client, tor, up, to_client)), middlebox);
    let down = net.add_link(wire.clone(), End::Node(middlebox));
    let c = Config {
        replicas: vec![
            ReplicaConfig::default(),
            ReplicaConfig { delay: MILLISECOND, ..ReplicaConfig::default() },
        ],
        ..Config::default()
    };
    let service = Service::on(&mut net, down, wire.clone(), &c.replicas, c.tor, c.tor_checks, c.policy);
    assert_eq!((service.tor, service.up), (tor, up));
    net.run_while(600 * SECOND, |net| *net.node::<Client>(client).outcome() == Outcome::Running);
    assert!(matches!(net.node::<Client>(client).outcome(), Outcome::Done(_)), "seed {seed}");
    let seen = net.node::<Middlebox>(middlebox);
    assert!(seen.passed > 500);
    if let Some(first) = seen.first {
        println!("seed {seed}: first of {} invalid ones: {first:?}", seen.invalid);
    }
    (seen.passed, seen.invalid)
}

/// A strict `nf_conntrack` finds no packet invalid under loss, reordering, duplication and
/// corruption.
#[test]
fn a_strict_connection_tracker_finds_no_packet_invalid() {
    for seed in 0..12 {
        let wire = link::Config {
            delay: 10 * MILLISECOND,
            rate: 20_000_000,
            queue: 40,
            loss: [0.0, 0.01, 0.05, 0.1][seed as usize % 4],
            reorder: (0.1, 8 * MILLISECOND),
            duplicate: 0.02,
            corrupt: 0.01,
            ..link::Config::default()
        };
        let config = ClientConfig { seed, bare_syn: seed % 5 == 4, ..ClientConfig::default() };
        let (passed, invalid) = transfer(seed, &wire, config, seed % 3 == 0);
        assert_eq!(invalid, 0, "seed {seed}, of {passed}");
    }
}
