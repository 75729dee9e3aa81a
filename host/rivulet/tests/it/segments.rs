//! Single segments of plain clients and the replica's reactions, mostly while plain TCP is switched
//! between the kernel and stateless TCP: the kernel has some connections, others are answered
//! without state, and some belong to another replica. A server in this process, behind a socket
//! that acts as the ToR. Needs root; skipped if namespaces cannot be created.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rivulet_packet::checksum::replace;
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::testing::Netns;
use rivulet_pktio::{AfPacket, Config as IoConfig, Interface, IoChoice, PacketIo, TxFrame, repair};
use rivulet_plain::{
    Class, CookieKey, CookieKeys, Download, Entry, Flow, Header, LargeStamp, Object, Options, Scale, Seal,
    Segment, Stamps, Table,
};
use rivulet_server::keys::{CookieEpoch, KeySet, Secret};
use rivulet_server::service::{Member, Plain, Service};
use rivulet_server::{Application, Config, Minisocket, Server};
use rivulet_transport::server::Refusal;

const SERVICE: &str = "10.9.0.1:80";
/// The offset of a client of a large answer: a place at which segments may end, with a window in
/// the timestamp.
const AT: u32 = 12_800;
/// Sequence number after the bytes that the kernel's socket has received.
const RECEIVED: u32 = 30;

/// An application that refuses Rivulet's clients.
struct Nothing;

impl Application for Nothing {
    fn event(&mut self, _: &mut Minisocket<'_, '_>) -> Result<(), Refusal> {
        Err(Refusal::User)
    }
}

fn table() -> Table {
    let object = |octets| {
        Entry::Object(Object { kind: "text/plain".into(), hash: [7; 16], body: vec![1; octets].into() })
    };
    Table::new(vec![("large".into(), object(1_000_000)), ("small".into(), object(5000))], true).unwrap()
}

/// A connection's acknowledgement and echo that look like those of a large answer's client.
fn large(client: SocketAddr) -> (u32, u32) {
    let flow = Flow::new(client, SERVICE.parse().unwrap());
    let keys = CookieKeys { current: CookieKey::new([1; 8]), others: [None; 2] };
    let of = Download { object: 0, scale: Scale::of(8) };
    let seal = Seal::new(&flow, keys.current, table().version());
    let stamp = LargeStamp { slot: 0, repair: false, window: 20, all: false, of };
    (flow.stamped(keys.current, Class::of(1460).unwrap()).wrapping_add(1 + AT), stamp.value(&flow, &seal))
}

struct Rig {
    server: Server,
    tor: AfPacket,
    mac: [u8; 6],
    replica: [u8; 6],
    /// Hop limit of the packets that the ToR sends.
    hops: u8,
    /// Whether the segment has a SACK block.
    sack: bool,
    /// Remaining hops of the returned segment.
    left: Option<u8>,
    /// The last segments to the client: header, and length of the data.
    said: Vec<(Header, usize)>,
    _namespaces: [Netns; 2],
}

/// Reactions of the replica to a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Brought {
    /// Number of segments with data to the client.
    answers: usize,
    /// Number of RSTs to the client.
    resets: usize,
    /// Number of segments of the client that were returned to the ToR.
    back: usize,
    /// Number of segments that were passed to the kernel.
    passed: u64,
}

impl Rig {
    /// Starts a replica with objects.
    fn new(plain: Plain, drains: Plain, clients: &[SocketAddr]) -> Option<(Rig, Vec<TcpStream>)> {
        let (mut rig, sockets) = Rig::open(plain, drains, clients)?;
        rig.server.set_objects(Arc::new(table()));
        Some((rig, sockets))
    }

    /// Starts a replica without objects. The kernel gets a connection with each of these clients,
    /// with a next sequence number and timestamp like those of a large answer.
    fn open(plain: Plain, drains: Plain, clients: &[SocketAddr]) -> Option<(Rig, Vec<TcpStream>)> {
        let (tor, host) = (Netns::new("chg-t")?, Netns::new("chg-s")?);
        tor.veth("c0", &host, "s0");
        host.ip("addr add 10.88.0.2/24 dev s0");
        host.ip("addr add 10.9.0.1/32 dev lo");
        host.ip("route add default via 10.88.0.1");
        let (mac, replica) = (tor.mac("c0"), host.mac("s0"));
        let colons = mac.map(|octet| format!("{octet:02x}")).join(":");
        host.ip(&format!("neigh add 10.88.0.1 lladdr {colons} dev s0"));
        let sockets = clients.iter().map(|client| {
            let (send_next, timestamp) = large(*client);
            let connection = repair::Connection {
                local: SERVICE.parse().unwrap(),
                remote: *client,
                send_next,
                receive_next: RECEIVED,
                send_window: 1 << 16,
                receive_window: 1 << 16,
                mss: 1460,
                scales: Some((8, 0)),
                sack: true,
                timestamp: Some(timestamp),
            };
            repair::restore(&connection, Some(host.name())).unwrap()
        });
        let sockets = sockets.collect();
        let cookie = CookieEpoch { epoch: 1, key: Secret([1; 8]) };
        let keys = KeySet { cookie: vec![cookie], usable_cookie: 1, ..KeySet::generate(1).unwrap() };
        let service = Service {
            member: Some(Member {
                pool: 1,
                replica: 0,
                tor_mac: mac,
                heartbeat: Duration::from_secs(5),
                bound: Duration::from_secs(10),
            }),
            trust_tor: true,
            drains,
            ..Service::standalone("www", vec!["10.9.0.1".parse().unwrap()], 80, keys, plain)
        };
        let interface = Interface::new(Some(host.name()), "s0").unwrap();
        let config = Config { interface, services: vec![service], incarnation: 1, io: IoChoice::default() };
        let mut server = Server::open(&config).unwrap();
        server.set_large(true);
        let tor_io = AfPacket::open(&tor.interface("c0"), IoConfig::default()).unwrap();
        Some((
            Rig {
                server,
                tor: tor_io,
                mac,
                replica,
                hops: 60,
                sack: false,
                left: None,
                said: Vec::new(),
                _namespaces: [tor, host],
            },
            sockets,
        ))
    }

    /// Sends a segment without data from this Ethernet address, and returns the reactions to it.
    fn bring(&mut self, from: [u8; 6], client: SocketAddr, ack: u32, echo: Option<u32>) -> Brought {
        let mut header = Header {
            src: client,
            dst: SERVICE.parse().unwrap(),
            seq: RECEIVED,
            ack,
            flags: TcpFlags(TcpFlags::ACK),
            window: 1000,
            options: Options { stamps: echo.map(|echo| Stamps { value: 5, echo }), ..Options::default() },
        };
        if self.sack {
            header.options.sack.push((ack.wrapping_add(1460), ack.wrapping_add(2920)));
        }
        self.exchange(from, &header, &[])
    }

    /// Sends a segment and returns the reactions to it.
    fn exchange(&mut self, from: [u8; 6], header: &Header, payload: &[u8]) -> Brought {
        let client = header.src;
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(payload);
        header.finish(&mut packet, payload.len()).unwrap();
        let sum = replace(
            u16::from_be_bytes([packet[10], packet[11]]),
            &[packet[8], packet[9]],
            &[self.hops, packet[9]],
        );
        packet[8] = self.hops;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        let head = [&self.replica[..], &from, &[8, 0]].concat();
        let before = self.server.counters().plain_passed;
        let judged = self.server.counters().plain;
        self.tor.send(&[TxFrame { body: &packet, ..TxFrame::new(&head) }]).unwrap();
        let mut brought = Brought::default();
        self.said.clear();
        // The server sends its answer in the same turn in which it counts the segment.
        while self.server.counters().plain == judged {
            self.server.turn(&mut Nothing, Duration::from_millis(5));
        }
        while let count @ 1.. = self.tor.recv().unwrap() {
            for n in 0..count {
                let data = self.tor.frame(n).data;
                let Some(segment) = data.get(14..).and_then(|p| Segment::parse(p).ok()) else { continue };
                if segment.header.src == client {
                    brought.back += 1;
                    self.left = data.get(14 + 8).copied();
                }
                if segment.header.dst == client {
                    self.said.push((segment.header, segment.payload.len()));
                    brought.resets += usize::from(segment.has(TcpFlags::RST));
                    brought.answers += usize::from(!segment.payload.is_empty());
                }
            }
        }
        brought.passed = self.server.counters().plain_passed - before;
        brought
    }
}

const WAYS: [(Plain, Plain); 2] = [(Plain::Kernel, Plain::Stateless), (Plain::Stateless, Plain::Kernel)];
/// Another replica's address.
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const NOTHING: Brought = Brought { answers: 0, resets: 0, back: 0, passed: 0 };
const BACK: Brought = Brought { back: 1, ..NOTHING };
const KERNELS: Brought = Brought { passed: 1, ..NOTHING };
/// Longer than a packet may arrive before its socket exists, or after it has closed.
const LATER: Duration = Duration::from_millis(2);

#[test]
fn kernel_keeps_segments_that_resemble_large_answers() {
    let [here, elsewhere] = [40_001, 40_002].map(|port| SocketAddr::from(([10, 88, 0, 9], port)));
    for (plain, drains) in WAYS {
        let Some((mut rig, _socket)) = Rig::new(plain, drains, &[here]) else { return };
        let mac = rig.mac;
        let (ack, echo) = large(here);
        assert_eq!(rig.bring(mac, here, ack, Some(echo)), KERNELS, "{plain:?}");
        // Without a socket the segment counts as a large answer's, unless another replica forwarded
        // it.
        let (ack, echo) = large(elsewhere);
        assert_eq!(rig.bring(mac, elsewhere, ack, Some(echo)), BACK, "{plain:?}");
        let ours = rig.bring(OTHER, elsewhere, ack, Some(echo));
        assert!(ours.answers > 0 && ours.passed == 0 && ours.back == 0, "{plain:?}: {ours:?}");
        // The replica knows the connection by now.
        let ours = rig.bring(mac, elsewhere, ack, Some(echo));
        assert!(ours.passed == 0 && ours.back == 0, "{plain:?}: {ours:?}");
    }
}

#[test]
fn segment_unknown_to_both_returns_to_the_tor_once() {
    let ends = |port| SocketAddr::from(([10, 88, 0, 9], port));
    let here = ends(40_001);
    // Echoes of every kind of timestamp, and none.
    let echoes = [Some(5), Some(1 << 22 | 77), Some(2 << 22 | 77), Some(3 << 22 | 77), None];
    for (plain, drains) in WAYS {
        let Some((mut rig, _socket)) = Rig::new(plain, drains, &[here]) else { return };
        let mac = rig.mac;
        for (echo, port) in echoes.into_iter().zip(40_010..) {
            // A segment of a large answer's client that lacks the answer's beginning.
            rig.sack = echo == Some(5);
            // Far from every cookie under the only key.
            let far = |client| large(client).0.wrapping_sub(1 << 20);
            for _ in 0..2 {
                assert_eq!(rig.bring(mac, here, far(here), echo), KERNELS, "{plain:?} {echo:?}");
                std::thread::sleep(LATER);
            }
            // The socket may be created a moment later, or may have closed a moment ago.
            let elsewhere = ends(port);
            assert_eq!(rig.bring(mac, elsewhere, far(elsewhere), echo), KERNELS, "{plain:?} {echo:?}");
            std::thread::sleep(LATER);
            assert_eq!(rig.bring(mac, elsewhere, far(elsewhere), echo), BACK, "{plain:?} {echo:?}");
            // The other candidate has returned it, so no replica has the connection.
            let refused = rig.bring(OTHER, elsewhere, far(elsewhere), echo);
            assert_eq!(refused, Brought { resets: 1, ..NOTHING }, "{plain:?} {echo:?}");
        }
    }
}

/// Every segment comes from the Ethernet address of a ToR that also distributes new connections, so
/// only the hop count shows whether another replica forwarded it.
#[test]
fn hop_count_shows_a_forwarded_segment() {
    let elsewhere = SocketAddr::from(([10, 88, 0, 9], 40_002));
    let Some((mut rig, _)) = Rig::new(Plain::Stateless, Plain::Kernel, &[]) else { return };
    let mac = rig.mac;
    let (ack, echo) = large(elsewhere);
    for hops in [60, 5] {
        rig.hops = hops;
        assert_eq!(rig.bring(mac, elsewhere, ack, Some(echo)), BACK);
        assert_eq!(rig.left, Some(4), "of {hops} hops");
    }
    rig.hops = 4;
    assert!(rig.bring(mac, elsewhere, ack, Some(echo)).answers > 0);
}

/// A segment with a valid cookie and a wrong timestamp is forwarded to the other candidate. If that
/// one does not know the connection either, the segment may merely be late, so no RST is sent.
#[test]
fn valid_cookie_with_wrong_timestamp_is_not_reset() {
    let elsewhere = SocketAddr::from(([10, 88, 0, 9], 40_002));
    // Within the range of the cookie, with the timestamp of an answer that begins after it.
    let ack = large(elsewhere).0;
    let echo = Some(200 << 24);
    for (plain, drains) in WAYS {
        let Some((mut rig, _)) = Rig::new(plain, drains, &[]) else { return };
        let mac = rig.mac;
        assert_eq!(rig.bring(mac, elsewhere, ack, echo), KERNELS, "{plain:?}");
        std::thread::sleep(LATER);
        assert_eq!(rig.bring(mac, elsewhere, ack, echo), BACK, "{plain:?}");
        assert_eq!(rig.bring(OTHER, elsewhere, ack, echo), NOTHING, "{plain:?}");
    }
}

/// A segment that was forwarded to a replica without content is forwarded from there, once.
#[test]
fn replica_without_content_forwards_segments_once() {
    let [here, elsewhere] = [40_001, 40_002].map(|port| SocketAddr::from(([10, 88, 0, 9], port)));
    for (plain, drains) in WAYS {
        let Some((mut rig, _socket)) = Rig::open(plain, drains, &[here]) else { return };
        let mac = rig.mac;
        for client in [here, elsewhere] {
            let (ack, echo) = large(client);
            for (hops, further) in [(3, Some(2)), (1, None)] {
                (rig.hops, rig.left) = (hops, None);
                let further = further.filter(|_| client == elsewhere);
                let brought = rig.bring(OTHER, client, ack, Some(echo));
                assert_eq!((brought.back, rig.left), (usize::from(further.is_some()), further), "{plain:?}");
            }
            rig.hops = 60;
            let far = ack.wrapping_sub(1 << 20);
            assert_eq!(rig.bring(mac, client, far, Some(5)), NOTHING, "{plain:?}");
            std::thread::sleep(LATER);
            let back = usize::from(client == elsewhere);
            assert_eq!(rig.bring(mac, client, far, Some(5)), Brought { back, ..NOTHING }, "{plain:?}");
        }
    }
}

/// A client that lacks the first segment acknowledges none of the answer and reports later bytes by
/// SACK. On a service with large answers such an acknowledgement may still belong to a small
/// answer.
#[test]
fn lost_first_segment_of_small_answer_is_resent() {
    let client = SocketAddr::from(([10, 88, 0, 9], 40_002));
    let Some((mut rig, _)) = Rig::new(Plain::Stateless, Plain::Stateless, &[]) else { return };
    let mac = rig.mac;
    let syn = Header {
        src: client,
        dst: SERVICE.parse().unwrap(),
        seq: 100,
        ack: 0,
        flags: TcpFlags(TcpFlags::SYN),
        window: 60_000,
        options: Options {
            mss: Some(1460),
            scale: Some(7),
            sack_permitted: true,
            stamps: Some(Stamps { value: 1, echo: 0 }),
            ..Options::default()
        },
    };
    rig.exchange(mac, &syn, &[]);
    let [(welcome, 0)] = rig.said[..] else { panic!("{:?}", rig.said) };
    let echo = welcome.options.stamps.unwrap().value;
    let stamps = Some(Stamps { value: 2, echo });
    let mut header = Header {
        seq: 101,
        ack: welcome.seq.wrapping_add(1),
        flags: TcpFlags(TcpFlags::ACK),
        window: 1000,
        options: Options { stamps, ..Options::default() },
        ..syn
    };
    let request = b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n";
    assert!(rig.exchange(mac, &header, request).answers > 2);
    let [(first, _), (second, _), .., (last, length)] = rig.said[..] else { panic!("{:?}", rig.said) };
    header.seq += request.len() as u32;
    header.options.sack.push((second.seq, last.seq.wrapping_add(length as u32)));
    assert_eq!(rig.exchange(mac, &header, &[]), Brought { answers: 1, ..NOTHING });
    assert_eq!(rig.said[0].0.seq, first.seq);
}
