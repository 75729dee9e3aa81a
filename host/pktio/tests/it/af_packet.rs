//! Frames over veth pairs in network namespaces of the test's own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_pktio::filter::{Rule, TcpRule};
use rivulet_pktio::testing::{Netns, PATIENCE, eventually};
use rivulet_pktio::{
    AfPacket, Checksum, ChecksumPolicy, Config, Filter, IoError, PacketIo, TxFrame, in_netns, internet_sum,
};

const PREFIX: &str = "pio-";

fn frame(len: usize, mark: u8) -> Vec<u8> {
    let mut f: Vec<u8> = (0..len).map(|i| i as u8 ^ mark).collect();
    f[..6].fill(0xff);
    f[6..12].copy_from_slice(&[2, 0, 0, 0, 0, mark]);
    f[12..14].copy_from_slice(&[0x88, 0xb6]);
    f
}

/// How long a test waits for something that must not happen.
const SILENCE: Duration = Duration::from_millis(500);

/// Receives until `done` returns true, for at most `PATIENCE`.
fn collect(
    io: &mut dyn PacketIo,
    done: impl FnMut(&[(Vec<u8>, Checksum)]) -> bool,
) -> Vec<(Vec<u8>, Checksum)> {
    collect_within(PATIENCE, io, done)
}

fn collect_within(
    patience: Duration,
    io: &mut dyn PacketIo,
    mut done: impl FnMut(&[(Vec<u8>, Checksum)]) -> bool,
) -> Vec<(Vec<u8>, Checksum)> {
    let mut got = Vec::new();
    let deadline = Instant::now() + patience;
    while !done(&got) && Instant::now() < deadline {
        let n = io.recv().unwrap();
        for i in 0..n {
            let f = io.frame(i);
            got.push((f.data.to_vec(), f.checksum));
        }
        if n == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    got
}

fn pair() -> Option<(Netns, Netns)> {
    let (a, b) = (Netns::new(PREFIX)?, Netns::new(PREFIX)?);
    a.quiet();
    b.quiet();
    a.veth("va", &b, "vb");
    Some((a, b))
}

fn open(ns: &Netns, name: &str, config: Config) -> AfPacket {
    AfPacket::open(&ns.interface(name), config).unwrap()
}

#[test]
fn frames_of_both_send_paths_arrive_in_order() {
    let Some((a, b)) = pair() else { return };
    let (mut tx, mut rx) = (open(&a, "va", Config::default()), open(&b, "vb", Config::default()));
    let sent: Vec<Vec<u8>> = (0..200u32).map(|i| frame(14 + (i as usize * 37) % 1500, i as u8)).collect();
    for batch in sent[..100].chunks(10) {
        for f in &batch[..5] {
            tx.reserve(f.len() + 3).unwrap()[..f.len()].copy_from_slice(f);
            tx.commit(f.len());
        }
        let split: Vec<TxFrame> = batch[5..]
            .iter()
            .map(|f| TxFrame { head: &f[..14], body: &f[14..], ..TxFrame::default() })
            .collect();
        assert_eq!(tx.send(&split).unwrap(), 5);
    }
    for f in &sent[100..] {
        tx.reserve(f.len()).unwrap().copy_from_slice(f);
        tx.commit(f.len());
    }
    tx.flush().unwrap();
    let got = collect(&mut rx, |g| g.len() == sent.len());
    assert_eq!(got.len(), sent.len());
    for (i, ((got, _), sent)) in got.iter().zip(&sent).enumerate() {
        assert!(got == sent, "frame {i}");
    }
    assert_eq!(collect(&mut tx, |_| true).len(), 0, "own frames do not come back");
    assert_eq!((tx.stats().tx_frames, rx.stats().rx_frames), (200, 200));
}

#[test]
fn frames_carry_timestamps_if_enabled() {
    let Some((a, b)) = pair() else { return };
    let (mut tx, mut rx) = (open(&a, "va", Config::default()), open(&b, "vb", Config::default()));
    let now = || u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap();
    // With a tag, the control messages contain auxdata beside the time.
    let mut tagged = frame(200, 2);
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x2a]);
    for stamped in [false, true, false] {
        rx.set_stamps(stamped);
        // The kernel starts to record times some time after the request; until then a frame has its
        // reading time.
        eventually("frames are stamped as wanted", || {
            let before = now();
            assert_eq!(tx.send(&[TxFrame::new(&frame(100, 1)), TxFrame::new(&tagged)]).unwrap(), 2);
            std::thread::sleep(Duration::from_millis(20));
            let mut got = Vec::new();
            eventually("both frames come", || {
                let count = rx.recv().unwrap();
                got.extend((0..count).map(|i| (rx.frame(i).data.len(), rx.frame(i).came)));
                got.len() == 2
            });
            let after = now();
            let mut noted = 0;
            for ((length, came), sent) in got.into_iter().zip([100, 204]) {
                assert_eq!((length, came.is_some()), (sent, stamped));
                let came = came.unwrap_or(before);
                assert!(before <= came && came <= after, "{before} {came} {after}");
                noted += usize::from(came + 15_000 <= after);
            }
            noted == 2
        });
    }
}

#[test]
fn vlan_tags_stay_in_place() {
    let Some((a, b)) = pair() else { return };
    let (mut tx, mut rx) = (open(&a, "va", Config::default()), open(&b, "vb", Config::default()));
    let mut sent = Vec::new();
    // Beyond the MTU the kernel allows one 802.1Q tag, but no other kind.
    for (tpid, len) in [([0x81, 0x00], 1514), ([0x88, 0xa8], 1510)] {
        let mut f = frame(len, 9);
        f.splice(12..12, [tpid[0], tpid[1], 0x60, 0x2a]);
        sent.push(f.clone());
        f.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
        f.truncate(1000);
        sent.push(f);
    }
    let frames: Vec<_> = sent.iter().map(|f| TxFrame::new(f)).collect();
    assert_eq!(tx.send(&frames).unwrap(), 4);
    let got = collect(&mut rx, |g| g.len() == 4);
    assert_eq!(got.len(), 4);
    for (i, ((got, _), sent)) in got.iter().zip(&sent).enumerate() {
        assert_eq!(got[..24], sent[..24], "frame {i}");
        assert!(got == sent, "frame {i}");
    }
}

/// A UDP datagram from the kernel, whose checksum veth leaves partial.
fn udp_datagram(policy: ChecksumPolicy) -> Option<(Vec<u8>, Checksum)> {
    let (a, b) = pair()?;
    a.ip("addr add 10.0.0.1/24 dev va");
    a.ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev va");
    let mut rx = open(&b, "vb", Config { checksum: policy, ..Config::default() });
    in_netns(Some(a.name()), || {
        UdpSocket::bind("10.0.0.1:1111").unwrap().send_to(&[7; 99], "10.0.0.2:9").unwrap()
    })
    .unwrap();
    collect(&mut rx, |g| !g.is_empty()).pop()
}

fn udp_sum(frame: &[u8]) -> u16 {
    let mut pseudo = frame[26..34].to_vec();
    pseudo.extend([0, 17]);
    pseudo.extend(&frame[38..40]);
    internet_sum(&frame[34..], internet_sum(&pseudo, 0))
}

#[test]
fn partial_checksums_are_completed_or_reported() {
    let Some((frame, checksum)) = udp_datagram(ChecksumPolicy::Complete) else { return };
    assert_eq!((checksum, udp_sum(&frame)), (Checksum::Verified, 0xffff));
    let Some((frame, checksum)) = udp_datagram(ChecksumPolicy::Report) else { return };
    assert_eq!(checksum, Checksum::Partial { start: 34, offset: 6 });
    assert_ne!(udp_sum(&frame), 0xffff);
}

/// A TCP connection between two kernels with all offloads on, whose frames we forward.
#[test]
fn large_segments_are_cut_and_tcp_works_across() {
    let (Some(a), Some(m), Some(b)) = (Netns::new(PREFIX), Netns::new(PREFIX), Netns::new(PREFIX)) else {
        return;
    };
    for ns in [&a, &m, &b] {
        ns.quiet();
    }
    a.veth("va", &m, "ma");
    b.veth("vb", &m, "mb");
    a.ip("addr add 10.0.0.1/24 dev va");
    b.ip("addr add 10.0.0.2/24 dev vb");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let longest = std::thread::scope(|s| {
        let forward = s.spawn(|| {
            let mut ports = [open(&m, "ma", Config::default()), open(&m, "mb", Config::default())];
            let mut longest = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for from in 0..2 {
                    let [x, y] = &mut ports;
                    let (rx, tx) = if from == 0 { (x, y) } else { (y, x) };
                    for i in 0..rx.recv().unwrap() {
                        let f = rx.frame(i);
                        longest = longest.max(f.data.len());
                        tx.reserve(f.data.len()).unwrap().copy_from_slice(f.data);
                        tx.commit(f.data.len());
                    }
                    tx.flush().unwrap();
                }
            }
            longest
        });
        let listener = in_netns(Some(b.name()), || TcpListener::bind("10.0.0.2:80").unwrap()).unwrap();
        let data: Vec<u8> =
            (0..4_000_000u32).map(|i| ((i.wrapping_mul(2_654_435_761)) >> 24) as u8).collect();
        let expected = data.clone();
        let server = s.spawn(move || {
            let mut all = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
            all
        });
        let mut client = in_netns(Some(a.name()), || TcpStream::connect("10.0.0.2:80").unwrap()).unwrap();
        client.write_all(&data).unwrap();
        drop(client);
        assert!(server.join().unwrap() == expected, "the bytes differ");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        forward.join().unwrap()
    });
    assert_eq!(longest, 1514, "no frame is longer than the MTU and some are as long");
}

#[test]
fn filter_keeps_other_frames_away_and_can_be_replaced() {
    let Some((a, b)) = pair() else { return };
    let only_heartbeats = Filter::new(&[Rule::EtherType(0x88b5)]).unwrap();
    let config = Config { filter: Some(only_heartbeats), ..Config::default() };
    let (mut tx, mut rx) = (open(&a, "va", Config::default()), open(&b, "vb", config));
    let (other, mut heartbeat) = (frame(60, 1), frame(60, 2));
    heartbeat[13] = 0xb5;
    let both = [TxFrame::new(&other), TxFrame::new(&heartbeat)];
    tx.send(&both).unwrap();
    let mut got = collect(&mut rx, |g| !g.is_empty());
    got.extend(collect_within(SILENCE, &mut rx, |g| !g.is_empty()));
    assert_eq!(got.iter().map(|g| &g.0).collect::<Vec<_>>(), [&heartbeat]);
    rx.set_filter(Some(&Filter::new(&[Rule::Tcp(TcpRule::default())]).unwrap())).unwrap();
    tx.send(&both).unwrap();
    assert!(collect_within(SILENCE, &mut rx, |g| !g.is_empty()).is_empty());
    rx.set_filter(None).unwrap();
    rx.set_filter(None).unwrap();
    tx.send(&both).unwrap();
    assert_eq!(collect(&mut rx, |g| g.len() == 2).len(), 2);
}

#[test]
fn only_the_configured_ether_type_is_received() {
    let Some((a, b)) = pair() else { return };
    let of = |ether_type| Config { ether_type: Some(ether_type), ..Config::default() };
    let (mut deaf, mut rx) = (open(&a, "va", of(0)), open(&b, "vb", of(0x88b5)));
    let (other, mut heartbeat) = (frame(60, 1), frame(60, 2));
    heartbeat[13] = 0xb5;
    let both = [TxFrame::new(&other), TxFrame::new(&heartbeat)];
    assert_eq!(deaf.send(&both).unwrap(), 2);
    let mut got = collect(&mut rx, |g| !g.is_empty());
    got.extend(collect_within(SILENCE, &mut rx, |g| !g.is_empty()));
    assert_eq!(got.iter().map(|g| &g.0).collect::<Vec<_>>(), [&heartbeat]);
    rx.send(&both).unwrap();
    assert!(collect_within(SILENCE, &mut deaf, |g| !g.is_empty()).is_empty());
}

#[test]
fn refused_frames_are_counted_and_do_not_hold_up_the_rest() {
    let Some((a, b)) = pair() else { return };
    let (mut tx, mut rx) = (open(&a, "va", Config::default()), open(&b, "vb", Config::default()));
    let (good, long, short) = (frame(100, 1), frame(4000, 2), [0u8; 5]);
    let n = tx.send(&[TxFrame::new(&long), TxFrame::new(&good), TxFrame::new(&short), TxFrame::new(&good)]);
    assert_eq!(n.unwrap(), 4);
    assert!(tx.reserve(4000).is_none() && tx.reserve(usize::MAX).is_none());
    assert_eq!(collect(&mut rx, |g| g.len() == 2).len(), 2);
    let stats = tx.stats();
    assert_eq!((stats.tx_frames, stats.tx_errors), (2, 4));
}

#[test]
fn jumbo_frames_work_after_the_mtu_was_raised() {
    let Some((a, b)) = pair() else { return };
    let (mut tx, mut rx) = (open(&a, "va", Config::default()), open(&b, "vb", Config::default()));
    a.ip("link set va mtu 9000");
    b.ip("link set vb mtu 9000");
    assert_eq!(tx.link().unwrap().mtu, 9000);
    let jumbo = frame(9014, 3);
    tx.reserve(jumbo.len()).unwrap().copy_from_slice(&jumbo);
    tx.commit(jumbo.len());
    tx.flush().unwrap();
    assert!(collect(&mut rx, |g| !g.is_empty()) == [(jumbo, Checksum::Unknown)]);
}

#[test]
fn down_recovers_and_deletion_needs_reopening() {
    let Some((a, b)) = pair() else { return };
    let (mut tx, mut rx) = (open(&a, "va", Config::default()), open(&b, "vb", Config::default()));
    let f = frame(60, 1);
    b.ip("link set vb down");
    eventually("the link is down", || !tx.link().unwrap().up);
    assert!(matches!(rx.recv(), Err(IoError::Down(_))));
    assert_eq!(rx.recv().unwrap(), 0, "told once");
    assert!(matches!(rx.send(&[TxFrame::new(&f)]), Err(IoError::Down(_))));
    b.ip("link set vb up");
    eventually("the link is up", || tx.link().unwrap().up);
    tx.send(&[TxFrame::new(&f)]).unwrap();
    assert_eq!(collect(&mut rx, |g| !g.is_empty()).len(), 1, "works again by itself");

    a.ip("link del va");
    for io in [&mut tx, &mut rx] {
        assert!(matches!(io.recv(), Err(IoError::Gone(_))));
        assert!(matches!(io.link(), Err(IoError::Gone(_))));
        assert!(matches!(io.send(&[TxFrame::new(&f)]), Err(IoError::Gone(_))));
        assert!(io.reopen().is_err());
    }
    a.veth("va", &b, "vb");
    tx.reopen().unwrap();
    rx.reopen().unwrap();
    tx.send(&[TxFrame::new(&f)]).unwrap();
    assert_eq!(collect(&mut rx, |g| !g.is_empty()).len(), 1);
}

#[test]
fn the_receive_queue_is_bounded_and_its_drops_are_counted() {
    let Some((a, b)) = pair() else { return };
    let config = Config { rx_bytes: 64 << 10, ..Config::default() };
    let (mut tx, mut rx) = (open(&a, "va", Config::default()), open(&b, "vb", config));
    let f = frame(1000, 1);
    for _ in 0..100 {
        assert_eq!(tx.send(&[TxFrame::new(&f); 10]).unwrap(), 10);
    }
    // Nothing is read until all frames have arrived, which may take the kernel a while.
    let dropped = || a.run("cat /sys/class/net/va/statistics/tx_dropped").trim().parse::<u64>().unwrap();
    let came = || b.run("cat /sys/class/net/vb/statistics/rx_packets").trim().parse::<u64>().unwrap();
    eventually("all are accounted for", || came() + dropped() >= 1000);
    let mut got = 0;
    eventually("all are read or counted", || {
        got += rx.recv().unwrap() as u64;
        got + rx.stats().rx_dropped + dropped() >= 1000
    });
    assert!(got < 200, "{got} frames in 64 KiB");
    assert_eq!(rx.stats().rx_dropped, 1000 - got - dropped());
}

/// Waits until the socket can send again.
fn wait_for_room(io: &dyn PacketIo) {
    use std::os::fd::AsRawFd;
    let mut entry = libc::pollfd { fd: io.sender().as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry that lives through the call.
    let n = unsafe { libc::poll(&raw mut entry, 1, PATIENCE.as_millis() as i32) };
    assert_eq!(n, 1, "no room in the end");
}

/// Sends frames numbered from 0, waiting where there is no room.
fn send_numbered(io: &mut dyn PacketIo, count: u16, length: usize) {
    for number in 0..count {
        while io.pending() == 64 {
            io.flush().unwrap();
            if io.pending() == 64 {
                wait_for_room(io);
            }
        }
        let mut f = frame(length, 1);
        f[14..16].copy_from_slice(&number.to_be_bytes());
        io.reserve(length).unwrap().copy_from_slice(&f);
        io.commit(length);
    }
    while io.pending() > 0 {
        io.flush().unwrap();
        if io.pending() > 0 {
            wait_for_room(io);
        }
    }
}

/// How many full frames a socket accepts while almost none leaves.
fn room(io: &mut dyn PacketIo, netns: &Netns) -> usize {
    netns.run("tc qdisc replace dev va root tbf rate 8kbit burst 1600 limit 10mb");
    let f = frame(1514, 1);
    (0..1000).take_while(|_| io.send(&[TxFrame::new(&f)]).unwrap() == 1).count()
}

#[test]
fn frames_refused_by_a_short_queue_are_kept() {
    let Some((a, b)) = pair() else { return };
    const COUNT: u16 = 400;
    // Room for twenty full frames.
    const SHORT: &str = "tc qdisc replace dev va root tbf rate 50mbit burst 16kb limit 30280";
    let patient = Config { tx_bytes: 512 << 10, keep_refused: true, ..Config::default() };
    let mut rx = open(&b, "vb", Config::default());
    let numbers = |frames: &[(Vec<u8>, Checksum)]| -> Vec<u16> {
        frames.iter().map(|(f, _)| u16::from_be_bytes([f[14], f[15]])).collect()
    };

    a.run(SHORT);
    let mut tx = open(&a, "va", Config { keep_refused: false, ..patient.clone() });
    send_numbered(&mut tx, COUNT, 1514);
    let lost = tx.stats().tx_dropped as usize;
    assert!(lost > 0, "the discipline is too long for this test");
    assert_eq!(collect(&mut rx, |g| g.len() + lost == COUNT.into()).len() + lost, COUNT.into());

    let mut tx = open(&a, "va", patient.clone());
    send_numbered(&mut tx, COUNT, 1514);
    let came = collect(&mut rx, |g| g.len() == COUNT.into());
    assert_eq!(numbers(&came), (0..COUNT).collect::<Vec<_>>(), "all, in order");
    assert_eq!((tx.stats().tx_dropped, tx.stats().tx_frames), (0, COUNT.into()));

    // The learned limit is slowly forgotten.
    assert!(room(&mut tx, &a) < 40);
    a.run("tc qdisc del dev va root");
    for _ in 0..40 {
        send_numbered(&mut tx, 4096, 60);
        rx.recv().unwrap();
    }
    let room = room(&mut tx, &a);
    assert!((150..300).contains(&room), "{room} frames in 512 KiB");

    // If other senders fill the queue, frames are dropped, not kept.
    let mut other = open(&a, "va", Config::default());
    a.run("tc qdisc replace dev va root tbf rate 8kbit burst 1600 limit 30280");
    let f = frame(1514, 1);
    eventually("the queue is full", || {
        other.send(&[TxFrame::new(&f)]).unwrap() == 1 && other.stats().tx_dropped > 0
    });
    let mut tx = open(&a, "va", patient);
    assert_eq!(tx.send(&[TxFrame::new(&f); 3]).unwrap(), 3);
    assert_eq!(tx.stats().tx_dropped, 3);
}

#[test]
fn frames_bypassing_the_queue_arrive_first() {
    let Some((a, b)) = pair() else { return };
    a.run("tc qdisc add dev va root tbf rate 2mbit burst 3kb limit 1mb");
    let mut rx = open(&b, "vb", Config::default());
    let mut behind = open(&a, "va", Config::default());
    let mut around = open(&a, "va", Config { qdisc_bypass: true, ..Config::default() });
    assert_eq!(behind.send(&[TxFrame::new(&frame(1514, 1)); 60]).unwrap(), 60);
    assert_eq!(around.send(&[TxFrame::new(&frame(60, 2))]).unwrap(), 1);
    let came = collect(&mut rx, |g| g.len() == 61);
    let at = came.iter().position(|(f, _)| f.len() == 60).expect("it came");
    assert!(at < 50 && came.len() == 61, "{at} of {}", came.len());
}
