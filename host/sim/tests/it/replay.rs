//! The ToR's replay memory in a whole system.

use rivulet_sim::client::{Client, Outcome, Plan};
use rivulet_sim::link;
use rivulet_sim::net::Network;
use rivulet_sim::replica::Replica;
use rivulet_sim::service::{Config, ReplicaConfig, Service};
use rivulet_sim::tor::{Policy, Tor};
use rivulet_sim::{MILLISECOND, SECOND};

/// A transfer with every request duplicated on the way to the ToR. Returns the client's requests,
/// all replicas' responses, and the requests that the ToR refused as used.
fn doubled(sketch: usize) -> (u64, u64, u64) {
    let mut net = Network::new(3);
    let wire =
        link::Config { delay: 10 * MILLISECOND, rate: 50_000_000, queue: 400, ..link::Config::default() };
    let up = link::Config { duplicate: 1.0, ..wire.clone() };
    let mut config =
        Config { replicas: vec![ReplicaConfig::default(); 3], down: wire, up, ..Config::default() };
    // Round robin sends the copy to another replica than the original.
    (config.tor.policy, config.tor.sketch) = (Policy::RoundRobin, sketch);
    let service = Service::new(&mut net, config);
    let client = service.client(&mut net, Plan { size: 2_000_000, ..Plan::default() });
    net.run_while(600 * SECOND, |net| *net.node::<Client>(client).outcome() == Outcome::Running);
    assert!(matches!(net.node::<Client>(client).outcome(), Outcome::Done(_)));
    let responses = service.replicas.iter().map(|r| net.node::<Replica>(*r).counters.responses).sum();
    (
        net.node::<Client>(client).statistics().requests,
        responses,
        net.node::<Tor>(service.tor).counters.replayed,
    )
}

/// Defence: the sketch. Without shared memory N replicas would answer a request N times.
#[test]
fn request_used_at_one_replica_is_refused_at_all() {
    let (requests, responses, refused) = doubled(1 << 12);
    assert!(refused * 100 >= requests * 95, "{refused} of {requests}");
    let (_, undefended, none) = doubled(0);
    assert_eq!(none, 0);
    assert!(undefended * 100 > responses * 150, "{undefended} without, {responses} with the sketch");
}
