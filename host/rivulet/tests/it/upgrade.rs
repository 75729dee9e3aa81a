//! `rivulet agent --plain-tcp` of a drained replica is stopped and started, as in an upgrade, while
//! it has a connection that cannot move: heartbeats reach the ToR without a gap, and the connection
//! continues. Needs root; skipped if namespaces cannot be created.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;

use rivulet_agent::proto::Service;
use rivulet_pktio::in_netns;
use rivulet_pktio::repair::unacknowledged;
use rivulet_pktio::testing::{PATIENCE, eventually};

use crate::agent::{agent, keep};
use crate::rig::{Rig, SERVICE, request};
use crate::trods::{Ends, FLAGS, Tor, memcached, replicated};

/// Number of processes, agents or stand-ins, with rules that keep the kernel from resetting clients
/// of other replicas.
fn second_chances(rig: &Rig) -> usize {
    rig.server.run("nft list tables netdev").lines().filter(|line| line.contains("rivulet_guard_")).count()
}

/// The service as the controller sends it while replica 2 is drained, or not.
fn service(rig: &Rig, drained: bool) -> Service {
    let pair = if drained { [0, 2] } else { [2, 0] };
    Service { slots: pair.repeat(2), ..replicated(rig, 0) }
}

#[test]
fn drained_replica_serves_through_an_agent_restart() {
    let Some(rig) = Rig::new() else { return };
    let Some(_store) = memcached(&rig) else { return };
    // The test adds the service's address, because the agent would remove it at its end.
    rig.server.ip("addr add 10.9.0.1/32 dev lo");
    let content = rig.file("small", 1000);
    let _python = rig.plain_server();
    // This connection began before the agent could protect it.
    let mut found = None;
    eventually("the server listens", || {
        let connect = || TcpStream::connect(format!("{SERVICE}:80"));
        found = in_netns(Some(rig.client.name()), connect).unwrap().ok();
        found.is_some()
    });
    let mut stream = found.unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let tor = Tor::default();
    tor.alive.store(true, Ordering::Relaxed);
    let socket = rig.dir.path().join("agent.sock.stand-in");
    std::thread::scope(|scope| {
        let _ends = Ends(&tor);
        scope.spawn(|| tor.run(&rig));
        keep(&rig, service(&rig, false));
        let first = agent(&rig, &FLAGS[..1]);
        tor.ready(0);
        first.stop();
        assert!(!socket.exists(), "others go on with what it has");
        // The former agent's BPF programs stay for three seconds and let nothing out; the client's
        // TCP retransmits at growing intervals meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(3500));

        keep(&rig, service(&rig, true));
        let second = agent(&rig, &FLAGS[..1]);
        let heard = tor.ready(tor.ready.load(Ordering::Relaxed));
        let goes_on = |stream: &mut TcpStream, octets: &str| {
            stream.write_all(octets.as_bytes()).unwrap();
            eventually("the server's kernel has it", || unacknowledged(stream).unwrap() == 0);
        };
        let text = request("small");
        goes_on(&mut stream, &text[..4]);
        second.stop();
        assert!(socket.exists(), "nobody stands in for it");
        assert_eq!(second_chances(&rig), 1, "its kernel resets clients");
        let beats = tor.heard.load(Ordering::Relaxed);
        eventually("more heartbeats than were on their way", || {
            tor.heard.load(Ordering::Relaxed) > beats + 50
        });
        assert_eq!(tor.ready.load(Ordering::Relaxed), heard, "of the agent that has ended");
        goes_on(&mut stream, &text[4..8]);

        let unready = tor.unready.load(Ordering::Relaxed);
        tor.pause();
        let _third = agent(&rig, &FLAGS[..1]);
        let mut chances = usize::MAX;
        eventually("nobody stands in for it any more", || {
            chances = chances.min(second_chances(&rig));
            !socket.exists()
        });
        assert!(chances > 0, "its kernel resets clients until the next one has set up its rules");
        assert_ne!(tor.ready(heard), heard);
        eventually("the rules go with who stood in", || second_chances(&rig) == 1);
        assert_eq!(tor.unready.load(Ordering::Relaxed), unready, "it speaks before it is ready");
        goes_on(&mut stream, &text[8..]);
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got.ends_with(&content) && got.starts_with(b"HTTP/1.0 200"));
    });
}
