//! Many connections at once, with more traffic than the interface can send. Needs root; skipped if
//! namespaces cannot be created.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::rig::{Rig, SERVICE, request};
use rivulet_client::{Stack, Stream};
use rivulet_pktio::in_netns;

/// If the transfer takes longer than this (the interface needs 1.4 s), the machine is slower than
/// the interface, and the test shows nothing.
const IN_TIME: Duration = Duration::from_secs(3);

/// The first windows together are several times the interface's queue. The server keeps the rest as
/// requests: the queueing discipline drops nothing, heartbeats continue, and connections are marked
/// for the queue.
#[test]
fn simultaneous_downloads_drop_no_packet() {
    // 256 full frames, like the queue of a switch port.
    if let Some((queue, _)) = crowd(387_584) {
        assert!(queue.contains("(dropped 0,"), "{queue}");
    }
}

/// The server passes at most four times as much as this discipline can hold, which refuses a frame
/// now and then. The server sends that frame later, and passes less at a time.
#[test]
fn simultaneous_downloads_survive_a_short_queue() {
    if let Some((queue, took)) = crowd(96_896) {
        assert!(!queue.contains("(dropped 0,") || took > IN_TIME, "it never was full: {queue}");
    }
}

/// A hundred downloads through a queueing discipline of this many bytes; returns its statistics and
/// the duration.
fn crowd(limit: u32) -> Option<(String, Duration)> {
    const CROWD: usize = 100;
    let rig = Rig::new()?;
    rig.server.run(&format!("tc qdisc add dev s0 root tbf rate 60mbit burst 16kb limit {limit}"));
    let member = rig.member();
    let flags =
        ["--metrics", "127.0.0.1:9090", "--plain", "none", "--member", &member, "--heartbeat-us", "5000"];
    let _server = rig.serve(&flags);
    let content = rig.file("file", 100_000);
    let address = format!("{SERVICE}:80").parse().unwrap();
    // A thread opens connections in the namespace that it has entered.
    let inside = |streams: &mut Vec<Stream>| {
        let stack = Stack::start().unwrap().separate();
        streams.extend((0..CROWD).map(|_| stack.connect(address).unwrap()));
        stack
    };
    let mut streams = Vec::new();
    let _stack = in_netns(Some(rig.client.name()), || inside(&mut streams)).unwrap();
    let mut heartbeats = rig.heartbeats();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for mut stream in streams {
            let content = &content;
            scope.spawn(move || {
                stream.write_all(request("file").as_bytes()).unwrap();
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).unwrap();
                assert!(answer.ends_with(content), "{} octets", answer.len());
            });
        }
    });
    let took = began.elapsed();
    let heard: Vec<u32> = Rig::read_heartbeats(&mut heartbeats).iter().map(|beat| beat.sequence).collect();
    let queue = rig.server.run("tc -s qdisc show dev s0 root");
    for reason in ["unsent", "receive_queue", "transmit_queue"] {
        assert_eq!(rig.metric(&format!("rivulet_dropped_total{{reason=\"{reason}\"}}")), 0, "{reason}");
    }
    assert!(rig.metric("rivulet_late_requests_total") > 0 || took > IN_TIME);
    // 10 MB take at least 1.4 s, which is 280 heartbeat intervals.
    assert!(heard.len() > 50, "{} heartbeats", heard.len());
    assert!(heard.windows(2).all(|pair| pair[1] == pair[0] + 1), "some are missing: {heard:?}");
    Some((queue, took))
}
