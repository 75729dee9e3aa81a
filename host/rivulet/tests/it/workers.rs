//! Several threads on the packet path of one replica. Needs root; skipped if namespaces cannot be
//! created.

use std::process::{Child, Stdio};

use crate::rig::{Rig, url};
use rivulet_packet::heartbeat::{ETHER_TYPE, Heartbeat};
use rivulet_pktio::filter::Rule;
use rivulet_pktio::testing::eventually;
use rivulet_pktio::{AfPacket, Config, Filter, Interface, PacketIo};

/// Number of connections: the probability that all of them hash to one of two workers is 2 to the
/// power of -19.
const CONNECTIONS: usize = 20;
const METRICS: &str = "127.0.0.1:9464";

/// Number of frames that each worker received.
fn frames(rig: &Rig) -> Vec<u64> {
    let page = rig.server.run(&format!("curl -sS http://{METRICS}/metrics"));
    let rows = page.lines().filter(|line| line.starts_with("rivulet_worker_frames_total{"));
    rows.map(|row| row.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

fn download(rig: &Rig, n: usize) -> Child {
    let mut command = rig.get(&["-q", "-o"]);
    let out = rig.dir.path().join(format!("out{n}"));
    command.arg(out).arg(url("file")).stderr(Stdio::inherit()).spawn().unwrap()
}

/// Many connections over two workers, which are killed in the middle and started again: all
/// connections finish, both workers get a share before and after, and nothing is left behind.
#[test]
fn connections_survive_the_death_of_both_workers() {
    let Some(rig) = Rig::new() else { return };
    rig.server.run("tc qdisc add dev s0 root tbf rate 200mbit burst 64kb limit 512kb");
    let content = rig.file("file", 1_500_000);
    let flags = ["--workers", "2", "--metrics", METRICS];
    let server = rig.serve(&flags);
    let mut downloads: Vec<Child> = (0..CONNECTIONS).map(|n| download(&rig, n)).collect();
    let part = |n: usize| {
        let part = rig.dir.path().join(format!("out{n}.part"));
        std::fs::metadata(part).map_or(0, |m| m.len())
    };
    // Each download is in the middle, or complete.
    eventually("progress", || {
        (0..CONNECTIONS).all(|n| part(n) > 100_000 || downloads[n].try_wait().unwrap().is_some())
    });
    eventually("both workers' counters", || frames(&rig).iter().all(|n| *n > 0));
    let taken = frames(&rig);
    assert_eq!(taken.len(), 2);
    let arrived: u64 = rig.server.run("cat /sys/class/net/s0/statistics/rx_packets").trim().parse().unwrap();
    assert!(taken.iter().sum::<u64>() <= arrived, "each frame came to one of them: {taken:?} of {arrived}");
    drop(server);
    let server = rig.serve(&flags);
    for (n, mut download) in downloads.into_iter().enumerate() {
        assert!(download.wait().unwrap().success(), "download {n}");
        assert!(std::fs::read(rig.dir.path().join(format!("out{n}"))).unwrap() == content, "download {n}");
    }
    // Downloads that ended before the kill did not use the second server, so new ones are started
    // for it.
    let more: Vec<Child> = (0..CONNECTIONS).map(|n| download(&rig, n)).collect();
    for mut download in more {
        assert!(download.wait().unwrap().success());
    }
    eventually("both workers' counters", || frames(&rig).iter().all(|n| *n > 0));
    server.stop();
    assert!(!rig.server.run("nft list tables netdev").contains("rivulet"), "everything was taken down");
}

/// One of the workers sends the heartbeats of all: their sequence numbers increase.
#[test]
fn heartbeats_come_from_one_worker() {
    let Some(rig) = Rig::new() else { return };
    let filter = Filter::new(&[Rule::EtherType(ETHER_TYPE)]).unwrap();
    let interface = Interface::new(Some(rig.client.name()), "c0").unwrap();
    let mut ear = AfPacket::open(&interface, Config { filter: Some(filter), ..Config::default() }).unwrap();
    let member = rig.member();
    let server = rig.serve(&["--workers", "3", "--member", &member, "--heartbeat-us", "5000"]);
    let mut beats: Vec<Heartbeat> = Vec::new();
    eventually("heartbeats", || {
        let count = ear.recv().unwrap();
        beats.extend((0..count).map(|i| Heartbeat::parse(&ear.frame(i).data[14..]).unwrap()));
        beats.len() > 50
    });
    assert!(beats.windows(2).all(|pair| pair[1].sequence > pair[0].sequence), "{beats:?}");
    assert!(beats.iter().any(|beat| beat.ready), "it serves");
    server.stop();
}
