//! AF_XDP over veth pairs in network namespaces of the test's own.

use std::time::{Duration, Instant};

use rivulet_pktio::filter::Rule;
use rivulet_pktio::testing::Netns;
use rivulet_pktio::{
    AfPacket, AfXdp, Backend, Checksum, Config, Filter, IoError, OpenError, PacketIo, TxFrame, internet_sum,
};

const PREFIX: &str = "pio-";
/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A pair whose first end lets AF_XDP be used on the second. `None`, and a line that says so, where the
/// tools or rights are missing.
fn pair() -> Option<(Netns, Netns)> {
    let (a, b) = (Netns::new(PREFIX)?, Netns::new(PREFIX)?);
    if std::process::Command::new("ethtool").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no ethtool");
        return None;
    }
    a.quiet();
    b.quiet();
    a.veth("va", &b, "vb");
    a.run("ethtool -K va tx off txvlan off gro off");
    b.run("ethtool -K vb tx off txvlan off gro off");
    Some((a, b))
}

fn frame(len: usize, mark: u8) -> Vec<u8> {
    let mut f: Vec<u8> = (0..len).map(|i| i as u8 ^ mark).collect();
    f[12..14].copy_from_slice(&[0x88, 0xb6]);
    f
}

fn collect(io: &mut dyn PacketIo, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while got.len() < count && Instant::now() < deadline {
        for i in 0..io.recv().unwrap() {
            got.push(io.frame(i).data.to_vec());
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    got
}

fn xdp(ns: &Netns, name: &str) -> Result<AfXdp, OpenError> {
    AfXdp::open(&ns.interface(name), Config::default())
}

#[test]
fn frames_go_both_ways_in_order_and_memory_is_reused() {
    let Some((a, b)) = pair() else { return };
    let mut tap = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
    let mut x = xdp(&b, "vb").unwrap();
    b.wait_until_up("vb");
    a.wait_until_up("va");
    assert_eq!(x.backend(), Backend::AfXdp);
    // Several times what the rings hold.
    let mut tagged = frame(1518, 9);
    tagged[12..16].copy_from_slice(&[0x81, 0, 0, 5]);
    for round in 0..60u8 {
        let mut sent: Vec<Vec<u8>> = (0..100).map(|i| frame(14 + i * 15, round ^ i as u8)).collect();
        sent.push(tagged.clone());
        let frames: Vec<TxFrame> = sent.iter().map(|f| TxFrame::new(f)).collect();
        assert_eq!(tap.send(&frames).unwrap(), frames.len());
        assert!(collect(&mut x, sent.len()) == sent, "in, round {round}");

        for f in &sent[..50] {
            x.reserve(f.len() + 2).unwrap()[..f.len()].copy_from_slice(f);
            x.commit(f.len());
        }
        let split: Vec<TxFrame> = sent[50..]
            .iter()
            .map(|f| TxFrame { head: &f[..14], body: &f[14..], ..TxFrame::default() })
            .collect();
        assert_eq!(x.send(&split).unwrap(), split.len());
        assert!(collect(&mut tap, sent.len()) == sent, "out, round {round}");
    }
    let s = x.stats();
    assert_eq!((s.rx_frames, s.tx_frames, s.rx_dropped, s.tx_dropped), (6060, 6060, 0, 0));
}

#[test]
fn a_partial_checksum_is_completed_on_the_way_out_and_bad_frames_are_refused() {
    let Some((a, b)) = pair() else { return };
    let mut tap = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
    let mut x = xdp(&b, "vb").unwrap();
    b.wait_until_up("vb");
    let mut f = frame(100, 1);
    f[50..52].fill(0);
    let partial = |start| TxFrame { checksum: Checksum::Partial { start, offset: 16 }, ..TxFrame::new(&f) };
    let long = vec![0; 5000];
    let frames = [partial(34), partial(99), TxFrame::new(&long), TxFrame::new(&[1, 2])];
    assert_eq!(x.send(&frames).unwrap(), 4);
    assert!(x.reserve(5000).is_none());
    let got = collect(&mut tap, 1);
    assert_eq!(internet_sum(&got[0][34..], 0), 0xffff);
    assert_eq!((x.stats().tx_frames, x.stats().tx_errors), (1, 4));
    // Reservations that are not committed do not leak.
    (0..5000).for_each(|_| assert!(x.reserve(60).is_some()));
}

#[test]
fn what_it_cannot_do_is_refused_with_what_to_change() {
    let Some((a, b)) = pair() else { return };
    let refused = |what: &str| match xdp(&b, "vb") {
        Err(OpenError::Unsupported(name, why)) => {
            assert!(name.ends_with("vb") && why.contains(what), "{why}")
        }
        other => panic!("{what}: {:?}", other.err()),
    };
    for offload in ["tx", "txvlan", "gro"] {
        a.run(&format!("ethtool -K va {offload} on"));
        refused("ethtool -K va tx off txvlan off gro off");
        a.run(&format!("ethtool -K va {offload} off"));
    }
    b.ip("link set vb mtu 9000");
    refused("MTU 9000");
    b.ip("link set vb mtu 1500");
    let filter = Some(Filter::new(&[Rule::EtherType(1)]).unwrap());
    let filtered = AfXdp::open(&b.interface("vb"), Config { filter, ..Config::default() });
    assert!(matches!(filtered, Err(OpenError::Unsupported(..))));
    assert!(matches!(xdp(&b, "nowhere"), Err(OpenError::NoSuchInterface(_))));
    let _first = xdp(&b, "vb").unwrap();
    assert!(xdp(&b, "vb").is_err(), "the queue is taken");
    b.ip("link add vq numrxqueues 4 numtxqueues 4 type veth peer name vr numrxqueues 4 numtxqueues 4");
    b.run("ethtool -L vq rx 4 tx 4");
    match xdp(&b, "vq") {
        Err(OpenError::Unsupported(_, why)) => assert!(why.contains("4 receive queues"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn the_program_goes_with_the_socket_and_gone_needs_reopening() {
    let Some((a, b)) = pair() else { return };
    let attached = || b.run("ip link show dev vb").contains("prog/xdp");
    let mut x = xdp(&b, "vb").unwrap();
    assert!(attached());
    drop(x);
    assert!(!attached());
    x = xdp(&b, "vb").unwrap();
    a.ip("link del va");
    let deadline = Instant::now() + PATIENCE;
    while !matches!(x.recv(), Err(IoError::Gone(_))) {
        assert!(Instant::now() < deadline, "not told");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(x.link(), Err(IoError::Gone(_))));
    let f = frame(60, 1);
    assert!(x.send(&[TxFrame::new(&f)]).is_err() && x.reopen().is_err());
    a.veth("va", &b, "vb");
    a.run("ethtool -K va tx off txvlan off gro off");
    x.reopen().unwrap();
    a.wait_until_up("va");
    b.wait_until_up("vb");
    let mut tap = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
    tap.send(&[TxFrame::new(&f)]).unwrap();
    assert!(collect(&mut x, 1) == [f]);
}
