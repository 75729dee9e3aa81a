//! The BPF programs on a real interface, between a server and a client in the kernel: a segment
//! leaves only if the test's limits permit it. Needs root; skipped if namespaces cannot be created.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_bpf::trods::{FlowKey, Lease, Limits, What};
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::repair::unacknowledged;
use rivulet_pktio::testing::{Netns, PATIENCE, eventually};
use rivulet_pktio::{AfPacket, Config, Filter, PacketIo, TxFrame, in_netns};
use rivulet_plain::{Header, Options};
use rivulet_trods::hold::{Frame, Hold};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// A client's namespace, a replica's, and the BPF programs on the replica's interface.
struct Rig {
    client: Netns,
    replica: Netns,
    hold: Hold,
    service: SocketAddr,
    told: Vec<Told>,
    frames: Vec<Frame>,
}

#[derive(Debug, PartialEq)]
enum Told {
    Opened,
    Request(Vec<u8>, bool),
    Ended,
    Fin,
    Aborted,
}

impl Rig {
    fn new(ipv6: bool) -> Option<Rig> {
        if skipped(Feature::Tcx) {
            return None;
        }
        let (client, replica) = (Netns::new("hold-c")?, Netns::new("hold-r")?);
        client.veth("c0", &replica, "r0");
        let (address, nodad) = if ipv6 { ("fd00:7::", " nodad") } else { ("10.7.0.", "") };
        client.ip(&format!("addr add {address}1/24 dev c0{nodad}"));
        replica.ip(&format!("addr add {address}2/24 dev r0{nodad}"));
        let mut service: SocketAddr = if ipv6 { "[fd00:7::2]:80" } else { "10.7.0.2:80" }.parse().unwrap();
        service.set_port(8080);
        let hold = Hold::open(&replica.interface("r0")).unwrap_or_else(|e| panic!("{e}"));
        hold.programs()
            .leases()
            .unwrap()
            .set(0, Lease { until: u64::MAX, settling: 0, ..Lease::default() })
            .unwrap();
        hold.programs().protect(service, 0).unwrap();
        Some(Rig { client, replica, hold, service, told: Vec::new(), frames: Vec::new() })
    }

    /// Opens a connection: returns both sockets and its key in the BPF maps. The client has not
    /// sent any data.
    fn connect(&mut self) -> (TcpStream, TcpStream, FlowKey) {
        let service = self.service;
        let listener = in_netns(Some(self.replica.name()), || TcpListener::bind(service).unwrap()).unwrap();
        let client = in_netns(Some(self.client.name()), || TcpStream::connect(service).unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        client.set_nonblocking(true).unwrap();
        let key = FlowKey::new(client.local_addr().unwrap(), service);
        self.until("opened", |rig| rig.told.contains(&Told::Opened));
        self.told.clear();
        (client, server, key)
    }

    /// Reads all events and held frames.
    fn look(&mut self) {
        let told = &mut self.told;
        let mut note = |what: What<'_>| {
            told.push(match what {
                What::Opened { .. } => Told::Opened,
                What::Request { octets, fin, .. } => Told::Request(octets.into(), fin),
                What::Ended => Told::Ended,
                What::Fin { .. } => Told::Fin,
                What::Aborted { .. } => Told::Aborted,
                _ => panic!("{what:?}"),
            });
        };
        while self.hold.events(64, |event| note(event.what)).unwrap() > 0 {}
        while let Some(frame) = self.hold.take().unwrap() {
            self.frames.push(frame);
        }
    }

    fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Rig) -> bool) {
        eventually(what, || {
            self.look();
            condition(self)
        });
    }

    /// Sets limits: `ack` as given, the others in bytes from the beginning of the server's data.
    fn limit(&self, key: &FlowKey, ack: u32, data: u32, fin_at: Option<u32>) {
        let now = self.hold.programs().limits(key).unwrap().unwrap();
        let first = now.first;
        let fin_at = fin_at.map(|at| first.wrapping_add(at));
        let limits = Limits { ack, data: first.wrapping_add(data), fin_at, ..now };
        assert!(self.hold.programs().set_limits(key, &limits).unwrap());
    }

    /// The state of a connection, for the failure message.
    fn described(&mut self, key: &FlowKey) -> String {
        self.look();
        let sockets = self.replica.run("ss -Htanoi");
        let counts = self.replica.run("nstat -as");
        let counters = self.hold.counters();
        let limits = self.hold.programs().limits(key);
        format!("{:?}\n{counters:?}\n{limits:?}\n{} frames\n{sockets}{counts}", self.told, self.frames.len())
    }

    fn send_all(&mut self) {
        for frame in std::mem::take(&mut self.frames) {
            self.hold.send(frame);
        }
    }
}

/// Reads the bytes that have arrived.
fn at_hand(stream: &mut TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    match stream.read_to_end(&mut got) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
        Err(e) => panic!("{e}"),
    }
    got
}

fn body(octets: usize) -> Vec<u8> {
    (0..octets).map(|n| (n * 7 + n / 251) as u8).collect()
}

#[test]
fn nothing_is_acknowledged_or_sent_beyond_limits() {
    for ipv6 in [false, true] {
        let Some(mut rig) = Rig::new(ipv6) else { return };
        let (mut client, mut server, key) = rig.connect();
        let start = rig.hold.programs().limits(&key).unwrap().unwrap().ack;
        let requested = start.wrapping_add(REQUEST.len() as u32);
        client.write_all(REQUEST).unwrap();
        let mut request = vec![0; REQUEST.len()];
        server.read_exact(&mut request).unwrap();
        rig.until("the copy", |rig| rig.told.contains(&Told::Request(REQUEST.into(), false)));
        // The kernel acknowledges at once or after 40 ms. No acknowledgement leaves, and no answer
        // to the client's retransmissions.
        rig.until("an acknowledgement", |rig| rig.hold.counters().unwrap().acks > 1);
        assert_eq!(unacknowledged(&client).unwrap() as usize, REQUEST.len());
        rig.limit(&key, requested, 0, None);
        rig.hold.send_withheld(&key).unwrap();
        eventually("acknowledged", || unacknowledged(&client).unwrap() == 0);
        // A released response leaves in the frames in which it was held; the FIN after it does not.
        let sent = body(300_000);
        // The server's send buffer has no room for more.
        server.write_all(&sent[..10_000]).unwrap();
        rig.until("a frame", |rig| !rig.frames.is_empty());
        assert!(at_hand(&mut client).is_empty());
        rig.limit(&key, requested, sent.len() as u32, None);
        rig.send_all();
        let writer = std::thread::spawn(move || {
            server.write_all(&sent[10_000..]).unwrap();
            server
        });
        let mut got = Vec::new();
        rig.until("the response", |rig| {
            rig.send_all();
            got.extend(at_hand(&mut client));
            got.len() >= 300_000
        });
        assert!(got == body(300_000));
        // Shut down rather than closed: a child process that another test has forked may hold the
        // socket too, and would close it last.
        let server = writer.join().unwrap();
        server.shutdown(std::net::Shutdown::Write).unwrap();
        rig.until("a FIN", |rig| rig.told.contains(&Told::Fin));
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "the end is not told");
        rig.limit(&key, requested, 300_000, Some(300_000));
        rig.hold.send_withheld(&key).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_or_else(|e| panic!("{e}: {}", rig.described(&key))), 0);
        rig.until("the end", |rig| rig.told.contains(&Told::Ended));
        let counters = rig.hold.counters().unwrap();
        assert_eq!((counters.opened, counters.full, counters.lost, counters.muted), (1, 0, 0, 0));
        drop(server);
    }
}

/// If the kernel counted the muted segments as window probes, it would give up the connection after
/// 15 attempts, without a RST (tcp_retries2).
#[test]
fn connection_survives_long_mute_before_first_answer() {
    let Some(mut rig) = Rig::new(false) else { return };
    let (mut client, mut server, key) = rig.connect();
    rig.hold.programs().free(&key).unwrap();
    let leases = rig.hold.programs().leases().unwrap();
    leases.set(0, Lease { until: 1, settling: 0, ..Lease::default() }).unwrap();
    server.write_all(b"answer").unwrap();
    rig.until("more than 15 attempts", |rig| rig.hold.counters().unwrap().muted >= 18);
    assert!(server.take_error().unwrap().is_none());
    leases.set(0, Lease { until: u64::MAX, settling: 0, ..Lease::default() }).unwrap();
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; 6];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
}

#[test]
fn frames_are_held_as_large_as_they_were_made() {
    let Some(mut rig) = Rig::new(false) else { return };
    let (mut client, mut server, key) = rig.connect();
    client.write_all(REQUEST).unwrap();
    server.write_all(&body(10_000)).unwrap();
    rig.until("ten thousand octets", |rig| {
        rig.frames.iter().map(|f| f.data().len()).sum::<usize>() >= 10_000
    });
    let longest = rig.frames.iter().map(|f| f.data().len()).max().unwrap();
    assert!(longest > 4 * 1460, "{longest} octets");
    rig.limit(&key, rig.hold.programs().limits(&key).unwrap().unwrap().ack, 10_000, None);
    rig.send_all();
    let mut got = Vec::new();
    eventually("the response", || {
        got.extend(at_hand(&mut client));
        got.len() >= 10_000
    });
    assert!(got == body(10_000));
    assert!(unacknowledged(&client).unwrap() > 0, "what was asked is not acknowledged by it");
}

#[test]
fn allowed_part_of_frame_leaves_first() {
    for ipv6 in [false, true] {
        let Some(mut rig) = Rig::new(ipv6) else { return };
        let (mut client, mut server, key) = rig.connect();
        client.write_all(REQUEST).unwrap();
        server.read_exact(&mut [0; REQUEST.len()]).unwrap();
        // TCP_CORK: the kernel holds an incomplete last segment until the socket is closed.
        rustix::net::sockopt::set_tcp_cork(&server, true).unwrap();
        server.write_all(&body(10_000)).unwrap();
        drop(server);
        rig.until("ten thousand octets and an end", |rig| {
            rig.frames.iter().map(|f| f.data().len()).sum::<usize>() >= 10_000
                && rig.frames.iter().any(Frame::fin)
        });
        let Limits { ack, first, .. } = rig.hold.programs().limits(&key).unwrap().unwrap();
        let mut got = Vec::new();
        // One segment, several, and all that is left up to the end.
        for may in [1, 700, 6000, 6001, 9999, 10_000] {
            let is_all = may == 10_000;
            rig.limit(&key, ack, may, Some(may).filter(|_| is_all));
            let at = first.wrapping_add(may);
            for mut frame in std::mem::take(&mut rig.frames) {
                let (from, to) = (frame.seq().wrapping_sub(first), frame.end().wrapping_sub(first));
                if to <= may {
                    rig.hold.send(frame);
                    continue;
                }
                let fin = frame.fin();
                if from < may {
                    rig.hold.send_until(&mut frame, at);
                    assert_eq!((frame.seq(), frame.end().wrapping_sub(first), frame.fin()), (at, to, fin));
                    assert_eq!(frame.data(), &body(10_000)[may as usize..to as usize]);
                }
                rig.frames.push(frame);
            }
            eventually("as much as may", || {
                got.extend(at_hand(&mut client));
                got.len() >= may as usize
            });
            assert!(got == body(10_000)[..may as usize], "{may}");
        }
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "its end");
        assert_eq!(rig.hold.dropped(), 0);
    }
}

#[test]
fn held_frames_of_one_client_are_limited() {
    let Some(mut rig) = Rig::new(false) else { return };
    let src = rig.service;
    let to = |client: &str| {
        let (flags, options) = (TcpFlags(TcpFlags::ACK), Options::default());
        let header = Header { src, dst: client.parse().unwrap(), seq: 1, ack: 1, flags, window: 9, options };
        let mut packet = vec![0; header.length() + 1400];
        header.finish(&mut packet, 1400).unwrap();
        [&[2; 12][..], &[8, 0], &packet].concat()
    };
    let frame = to("10.7.0.1:1025");
    let config = Config { promiscuous: false, filter: Some(Filter::new(&[]).unwrap()), ..Config::default() };
    let mut tap = AfPacket::open(&rig.replica.interface("trods0"), config).unwrap();
    let room = (16 << 20) / frame.len();
    // The kernel also sends frames that are not TCP segments.
    while rig.hold.dropped() == 0 && rig.frames.len() <= room {
        tap.send(&[TxFrame::new(&frame)]).unwrap();
        rig.look();
    }
    assert_eq!(rig.frames.len(), room);
    // Each frame that is sent makes room for another one.
    let Rig { hold, frames, .. } = &mut rig;
    frames.drain(..10).for_each(|frame| hold.forget(frame));
    for _ in 0..20 {
        tap.send(&[TxFrame::new(&frame)]).unwrap();
    }
    rig.until("ten of twenty", |rig| rig.frames.len() == room && rig.hold.dropped() == 11);
    // Frames of another client are still held.
    tap.send(&[TxFrame::new(&to("10.7.0.9:1025"))]).unwrap();
    rig.until("another client's", |rig| rig.frames.len() == room + 1);
    assert_eq!(rig.hold.dropped(), 11);
}

#[test]
fn fin_of_dead_server_does_not_leave() {
    let Some(mut rig) = Rig::new(false) else { return };
    let (mut client, server, _) = rig.connect();
    client.write_all(REQUEST).unwrap();
    // The server has not read the request, so the kernel sends a RST when it dies.
    rig.until("the request", |rig| !rig.told.is_empty());
    drop(OwnedFd::from(server));
    rig.until("the RST", |rig| rig.told.contains(&Told::Aborted));
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(client.take_error().unwrap().map(|e| e.kind()), None);
    // Nor do the kernel's answers to the client's retransmissions leave.
    rig.until("more of them", |rig| rig.hold.counters().unwrap().resets > 2);
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // Without the BPF programs they leave.
    drop(rig.hold);
    eventually("the RST", || client.read(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
}
