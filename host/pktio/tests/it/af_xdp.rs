//! AF_XDP over veth pairs in network namespaces of the test's own.

use std::time::{Duration, Instant};

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use rivulet_pktio::filter::{Rule, TcpRule};
use rivulet_pktio::testing::{Netns, PATIENCE, lacks_af_xdp};
use rivulet_pktio::{
    AfPacket, AfXdp, Backend, Checksum, Config, Filter, IoChoice, IoError, OpenError, PacketIo, TxFrame,
    in_netns, internet_sum,
};

const PREFIX: &str = "pio-";

/// A veth pair whose second end supports AF_XDP. `None`, with a line that says so, where tools or
/// privileges are missing.
fn pair() -> Option<(Netns, Netns)> {
    if lacks_af_xdp() {
        return None;
    }
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

/// Waits until a program has left its interface. A command that another test starts at this moment
/// briefly shares its descriptors, between fork and exec.
fn wait_until_free(ns: &Netns, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    while ns.run(&format!("ip link show dev {name}")).contains("prog/xdp") {
        assert!(Instant::now() < deadline, "the program stays on {name}");
    }
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
    // Several times the rings' size.
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
    // Uncommitted reservations do not leak.
    (0..5000).for_each(|_| assert!(x.reserve(60).is_some()));
}

#[test]
fn unsupported_interfaces_are_refused_with_the_remedy() {
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
    let shared = AfXdp::open(&b.interface("vb"), Config { share: Some(1), ..Config::default() });
    assert!(matches!(shared, Err(OpenError::Unsupported(..))));
    assert!(matches!(xdp(&b, "nowhere"), Err(OpenError::NoSuchInterface(_))));
    let first = xdp(&b, "vb").unwrap();
    refused("is on it already");
    let second = IoChoice::Auto.open(&b.interface("vb"), |_| Ok(Config::default())).unwrap();
    assert_eq!(second.io.backend(), Backend::AfPacket);
    assert!(second.instead.unwrap().to_string().contains("is on it already"));
    drop((first, second.io));
    wait_until_free(&b, "vb");
    let alone = IoChoice::Auto.open(&b.interface("vb"), |_| Ok(Config::default())).unwrap();
    assert_eq!((alone.io.backend(), alone.instead.is_none()), (Backend::AfXdp, true));
    drop(alone);
    b.ip("link add vq numrxqueues 4 numtxqueues 4 type veth peer name vr numrxqueues 4 numtxqueues 4");
    b.run("ethtool -L vq rx 4 tx 4");
    match xdp(&b, "vq") {
        Err(OpenError::Unsupported(_, why)) => assert!(why.contains("4 receive queues"), "{why}"),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn program_is_detached_with_its_socket() {
    let Some((a, b)) = pair() else { return };
    let mut x = xdp(&b, "vb").unwrap();
    assert!(b.run("ip link show dev vb").contains("prog/xdp"));
    drop(x);
    wait_until_free(&b, "vb");
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

/// A segment from 10.0.0.1 to 10.0.0.2 with our option, or a packet of another protocol in its
/// place.
fn packet(protocol: u8, port: u16, option: &[u8], mark: u8) -> Vec<u8> {
    let mut f = vec![0xff; 6];
    f.extend([2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 48, 0, mark, 0x40, 0, 64, protocol, 0, 0]);
    f.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
    f.extend(port.to_be_bytes());
    f.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x70, 0x10, 1, 0, 0, 0, 0, 0]);
    f.extend(option);
    f.extend([0; 4]);
    f
}

const OURS: [u8; 4] = [253, 8, 0x52, 0x56];
const OTHER: [u8; 4] = [1, 1, 1, 1];

fn tagged(frame: &[u8]) -> Vec<u8> {
    [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat()
}

fn ours() -> Rule {
    Rule::Tcp(TcpRule { exid: Some(0x5256), ..TcpRule::default() })
}

fn filtered(ns: &Netns, name: &str, rules: &[Rule]) -> AfXdp {
    let filter = Some(Filter::new(rules).unwrap());
    AfXdp::open(&ns.interface(name), Config { filter, promiscuous: false, ..Config::default() }).unwrap()
}

/// Frames that the filter takes arrive at the socket, tagged or not; the kernel gets the rest, and
/// both get ICMP errors.
#[test]
fn a_filter_leaves_the_rest_to_the_kernel() {
    let Some((a, b)) = pair() else { return };
    let mut tap = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
    let mut x = filtered(&b, "vb", &[ours(), Rule::IcmpError(vec!["10.0.0.2".parse().unwrap()])]);
    let mut kernel = AfPacket::open(&b.interface("vb"), Config::default()).unwrap();
    b.wait_until_up("vb");
    a.wait_until_up("va");
    let mine = [packet(6, 80, &OURS, 1), tagged(&packet(6, 80, &OURS, 2)), packet(6, 81, &OURS, 3)];
    let mut error = packet(1, 0, &OTHER, 4);
    error[34] = 3;
    let theirs = [packet(6, 80, &OTHER, 5), tagged(&packet(6, 80, &OTHER, 6)), packet(17, 80, &OURS, 7)];
    let all: Vec<Vec<u8>> = mine.iter().chain([&error]).chain(&theirs).cloned().collect();
    let frames: Vec<TxFrame> = all.iter().map(|f| TxFrame::new(f)).collect();
    assert_eq!(tap.send(&frames).unwrap(), frames.len());
    let mut got = collect(&mut x, 4);
    got.sort();
    let mut wanted: Vec<Vec<u8>> = mine.iter().chain([&error]).cloned().collect();
    wanted.sort();
    assert!(got == wanted, "{got:02x?}");
    let rest: Vec<Vec<u8>> = [error].into_iter().chain(theirs).collect();
    assert!(collect(&mut kernel, 4) == rest);
    assert_eq!((x.recv().unwrap(), kernel.recv().unwrap()), (0, 0), "nothing twice");
    assert_eq!(x.stats().rx_frames, 4);
}

/// The kernel's TCP works in both directions beside it.
#[test]
fn plain_tcp_works_beside_it() {
    let Some((a, b)) = pair() else { return };
    a.ip("addr add 10.0.0.1/24 dev va");
    b.ip("addr add 10.0.0.2/24 dev vb");
    let _x = filtered(&b, "vb", &[ours(), Rule::IcmpError(Vec::new())]);
    b.wait_until_up("vb");
    a.wait_until_up("va");
    for (server, client, address) in [(&b, &a, "10.0.0.2:80"), (&a, &b, "10.0.0.1:80")] {
        let listener = in_netns(Some(server.name()), || TcpListener::bind(address)).unwrap().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&vec![7; 1_000_000]).unwrap();
        });
        let mut stream = in_netns(Some(client.name()), || TcpStream::connect(address)).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got == vec![7; 1_000_000]);
        serving.join().unwrap();
    }
}

/// Filters are replaced under traffic that all of them accept: every frame arrives once and in
/// order, and the kernel sees none.
#[test]
fn a_filter_is_replaced_without_losing_a_frame() {
    const FRAMES: usize = 4000;
    /// Fewer than the rings hold.
    const AHEAD: usize = 256;
    let Some((a, b)) = pair() else { return };
    let mut tap = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
    let mut x = filtered(&b, "vb", &[ours()]);
    let mut kernel = AfPacket::open(&b.interface("vb"), Config::default()).unwrap();
    b.wait_until_up("vb");
    a.wait_until_up("va");
    let ports = |range| Rule::Tcp(TcpRule { destination_ports: vec![range], ..TcpRule::default() });
    let filters = [vec![ours()], vec![Rule::EtherType(1), ports(80..=80)], vec![ports(0..=90), ours()]]
        .map(|rules| Filter::new(&rules).unwrap());
    let received = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let end = Instant::now() + PATIENCE;
            let mut sent = 0;
            while sent < FRAMES && Instant::now() < end {
                if sent >= received.load(Ordering::Relaxed) + AHEAD {
                    std::thread::yield_now();
                    continue;
                }
                let mut f = packet(6, 80, &OURS, 0);
                f[38..42].copy_from_slice(&(sent as u32).to_be_bytes());
                sent += tap.send(&[TxFrame::new(&f)]).unwrap();
            }
        });
        let end = Instant::now() + PATIENCE;
        let (mut next, mut replaced) = (0, 0);
        while next < FRAMES && Instant::now() < end {
            x.set_filter(Some(&filters[replaced % 3])).unwrap();
            replaced += 1;
            for i in 0..x.recv().unwrap() {
                let sequence = u32::from_be_bytes(x.frame(i).data[38..42].try_into().unwrap());
                assert_eq!(sequence as usize, next);
                next += 1;
            }
            received.store(next, Ordering::Relaxed);
        }
        assert_eq!(next, FRAMES, "after {replaced} filters");
        assert!(replaced > 10, "{replaced}");
    });
    assert_eq!(kernel.recv().unwrap(), 0, "the kernel saw one");
    assert!(x.set_filter(None).is_err(), "opened with a filter");
}

/// "Down" is reported and passes once the interface is up; "gone" is reported until the interface
/// is reopened, and the descriptor stays the same.
#[test]
fn with_a_filter_it_survives_its_interface() {
    use std::os::fd::{AsFd, AsRawFd};
    let Some((a, b)) = pair() else { return };
    let mut x = filtered(&b, "vb", &[ours()]);
    b.wait_until_up("vb");
    let readable = |x: &AfXdp, time| {
        let mut entry = libc::pollfd { fd: x.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as the count says.
        unsafe { libc::poll(&raw mut entry, 1, time) > 0 }
    };
    let told = |x: &mut AfXdp, what: fn(&IoError) -> bool| {
        let end = Instant::now() + PATIENCE;
        while !x.recv().is_err_and(|e| what(&e)) {
            assert!(Instant::now() < end, "not told");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let arrives = |x: &mut AfXdp| {
        let mut tap = AfPacket::open(&a.interface("va"), Config::default()).unwrap();
        let f = packet(6, 80, &OURS, 1);
        tap.send(&[TxFrame::new(&f)]).unwrap();
        assert!(readable(x, PATIENCE.as_millis() as i32));
        assert!(collect(x, 1) == [f]);
    };
    arrives(&mut x);
    b.ip("link set vb down");
    told(&mut x, |e| matches!(e, IoError::Down(_)));
    b.ip("link set vb up");
    a.wait_until_up("va");
    b.wait_until_up("vb");
    arrives(&mut x);
    a.ip("link del va");
    told(&mut x, |e| matches!(e, IoError::Gone(_)));
    assert!(matches!(x.recv(), Err(IoError::Gone(_))), "told again");
    assert!(!readable(&x, 0), "and not by spinning");
    let descriptor = x.as_fd().as_raw_fd();
    a.veth("va", &b, "vb");
    a.run("ethtool -K va tx off txvlan off gro off");
    x.reopen().unwrap();
    a.wait_until_up("va");
    b.wait_until_up("vb");
    arrives(&mut x);
    assert_eq!(x.as_fd().as_raw_fd(), descriptor);
}
