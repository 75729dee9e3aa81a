//! How adopted connections end: when their server closes, or the agent closes on its behalf, and
//! for no other reason. Needs root; skipped if namespaces cannot be created.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_bpf::trods::{FlowKey, Lease};
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::repair::{Connection, restore};
use rivulet_pktio::testing::{Netns, PATIENCE, eventually, read_once};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns};
use rivulet_plain::{Header, Options, Segment};
use rivulet_trods::hold::{Hold, Watch};
use rivulet_trods::replica::Counts;
use rivulet_trods::testing::idle;
use rivulet_trods::{Settings, Tuple};

use crate::survive::{Plan, Rig, SERVICE};
use crate::watch::Shared;

/// An idle connection that a replica adopted; the test sends the client's segments itself.
struct Idle {
    watch: Watch<Shared>,
    key: FlowKey,
    tuple: Tuple,
    socket: TcpStream,
    io: AfPacket,
    macs: [[u8; 6]; 2],
    _client: Netns,
    _replica: Netns,
}

/// Offsets: the server's bytes that the client has, and the client's next byte.
const ACKED: u32 = 900;
const NEXT: u32 = 30;

impl Idle {
    fn new() -> Option<Idle> {
        if skipped(Feature::Tcx) {
            return None;
        }
        let (client, replica) = (Netns::new("leav-c")?, Netns::new("leav-r")?);
        client.veth("c0", &replica, "r0");
        // No kernel has the client's address, so the test alone answers for it.
        replica.ip("addr add 10.7.0.2/24 dev r0");
        let macs = [replica.mac("r0"), client.mac("c0")];
        let address = macs[1].map(|octet| format!("{octet:02x}")).join(":");
        replica.ip(&format!("neigh add 10.7.0.1 lladdr {address} dev r0"));
        let tuple = Tuple { client: "10.7.0.1:1025".parse().ok()?, service: "10.7.0.2:8080".parse().ok()? };
        let key = FlowKey::new(tuple.client, tuple.service);
        let hold = Hold::open(&replica.interface("r0")).unwrap_or_else(|e| panic!("{e}"));
        let lease = Lease { until: u64::MAX, settling: 0, ..Lease::default() };
        hold.programs().leases().unwrap().set(0, lease).unwrap();
        let mut watch = Watch::new(hold, Shared::default()).unwrap();
        watch.set_services(&[(tuple.service, 0, Settings::default())]).unwrap();
        let record = idle(tuple, ACKED, NEXT);
        watch.adopt(&record, ACKED).unwrap();
        // The limits are set once the record is stored under this replica's name.
        eventually("its limits", || {
            watch.turn(|key, _| panic!("an orphan: {key:?}")).unwrap();
            watch.status().protected == 1
        });
        let connection = Connection {
            local: tuple.service,
            remote: tuple.client,
            send_next: ACKED,
            receive_next: NEXT,
            send_window: 1000,
            receive_window: 1000,
            mss: 1460,
            scales: None,
            sack: false,
            timestamp: None,
        };
        let socket = restore(&connection, Some(replica.name())).unwrap();
        watch.begin(&key).unwrap();
        let io = AfPacket::open(&client.interface("c0"), Config::default()).unwrap();
        Some(Idle { watch, key, tuple, socket, io, macs, _client: client, _replica: replica })
    }

    /// Sequence numbers of the FINs and RSTs that the client received since the last call, each
    /// number once.
    fn ends(&mut self) -> Vec<u32> {
        let mut ends = Vec::new();
        while let count @ 1.. = self.io.recv().unwrap() {
            for n in 0..count {
                let packet = self.io.frame(n).data.get(14..);
                let Some(Ok(segment)) = packet.map(Segment::parse) else { continue };
                let is_end = segment.has(TcpFlags::FIN) || segment.has(TcpFlags::RST);
                if is_end && segment.header.src == self.tuple.service {
                    ends.push(segment.end().wrapping_sub(1));
                }
            }
        }
        ends.dedup();
        ends
    }

    /// Whether the watch reported that the connection ended too early; the BPF programs let no
    /// segment of that end leave.
    fn is_reported(&mut self) -> bool {
        self.watch.turn(|key, _| panic!("an orphan: {key:?}")).unwrap();
        self.watch.ended_early() == [self.key]
    }

    /// Sends a client's segment with acknowledgement number `ack` and `data`.
    fn say(&mut self, ack: u32, data: &[u8]) {
        let (src, dst, flags) = (self.tuple.client, self.tuple.service, TcpFlags(TcpFlags::ACK));
        let header = Header { src, dst, seq: NEXT, ack, flags, window: 1000, options: Options::default() };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(data);
        header.finish(&mut packet, data.len()).unwrap();
        let frame = [&self.macs[0][..], &self.macs[1], &[8, 0], &packet].concat();
        self.io.send(&[TxFrame::new(&frame)]).unwrap();
    }
}

/// A FIN or RST of the kernel may come from a process that died, so only an end that the agent
/// announced reaches the client.
#[test]
fn adopted_connection_ends_only_by_announced_end() {
    let Some(mut idle) = Idle::new() else { return };
    idle.socket.shutdown(Shutdown::Both).unwrap();
    eventually("it is told", || idle.is_reported());
    let counters = idle.watch.hold().counters().unwrap();
    assert!(counters.fins > 0, "{counters:?}");
    assert_eq!(idle.ends(), [0; 0], "nor is the client told");
    idle.watch.leave(&idle.key.clone()).unwrap();
    let mut ends = Vec::new();
    eventually("the FIN", || {
        ends.extend(idle.ends());
        !ends.is_empty()
    });
    assert_eq!(ends, [ACKED]);
    idle.say(ACKED + 1, b"");
    eventually("it is over", || {
        idle.watch.turn(|_, _| ()).unwrap();
        idle.watch.status().watched == 0
    });
    assert_eq!(idle.watch.status().unprotected.len(), 0);
}

/// The client would retransmit unacknowledged data only after a timeout, so a move would stall it.
#[test]
fn unread_client_data_keeps_connection_here() {
    let Some(mut idle) = Idle::new() else { return };
    let key = idle.key;
    assert!(idle.watch.movable(&key).unwrap().is_some());
    let said = b"GET / HTTP/1.1\r\n";
    idle.say(ACKED, said);
    idle.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    idle.socket.read_exact(&mut vec![0; said.len()]).unwrap();
    assert!(idle.watch.movable(&key).unwrap().is_none());
}

/// Requests a small file on a keep-alive connection.
fn get(stream: &mut TcpStream, name: &str, content: &[u8]) {
    ask(stream, name);
    read(stream, content);
}

fn ask(stream: &mut TcpStream, name: &str) {
    stream.write_all(format!("GET /{name} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).unwrap();
}

fn read(stream: &mut TcpStream, content: &[u8]) {
    let (mut head, mut octet) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(read_once(stream, &mut octet).unwrap(), 1, "the client was told of an end");
        head.push(octet[0]);
    }
    let mut body = vec![0; content.len()];
    stream.read_exact(&mut body).unwrap();
    assert!(body == content);
}

/// The adopter's web server is killed as well: once while the connection is idle, once in the
/// middle of a response.
#[test]
fn adopted_connection_survives_death_of_its_server() {
    let Some(mut rig) = Rig::new(&Plan::default()) else { return };
    let (small, large) = (rig.file("small", 700), rig.file("large", 20_000_000));
    let service: SocketAddr = SERVICE.parse().unwrap();
    let connect = || TcpStream::connect(service).unwrap();
    let mut stream = in_netns(Some(rig.client.name()), connect).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    get(&mut stream, "small", &small);
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell(1, 1);
    get(&mut stream, "small", &small);
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 1);
    rig.restart(1);
    get(&mut stream, "small", &small);
    ask(&mut stream, "large");
    let mut first = vec![0; 1_000_000];
    stream.read_exact(&mut first).unwrap();
    rig.restart(1);
    let head = first.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let mut rest = vec![0; head + large.len() - first.len()];
    stream.read_exact(&mut rest).unwrap();
    assert!([&first[head..], &rest].concat() == large);
    get(&mut stream, "small", &small);
    // Each adoption has created one socket.
    let counts = || rig.hosts[1].replica.counts();
    eventually("it is counted", || counts().adopted >= 3);
    let Counts { adopted, refused, unprotected, .. } = counts();
    assert_eq!((adopted, refused, unprotected), (3, 0, Default::default()));
}

/// Sockets that a former process had adopted are reset once the next process may send.
#[test]
fn former_process_sockets_are_reset() {
    let Some(mut idle) = Idle::new() else { return };
    idle.socket.shutdown(Shutdown::Both).unwrap();
    eventually("its FIN is held", || idle.is_reported());
    let Idle { watch, tuple, socket, _replica: replica, .. } = idle;
    let closing = || replica.run("ss -Htan state fin-wait-1").lines().count();
    drop(socket);
    assert_eq!(closing(), 1);
    // The BPF programs usually outlive their process; here they are removed before its sockets
    // close.
    drop(watch);
    let mut watch = Watch::new(Hold::open(&replica.interface("r0")).unwrap(), Shared::default()).unwrap();
    watch.set_services(&[(tuple.service, 0, Settings::default())]).unwrap();
    let now = Instant::now();
    let later = now + Duration::from_secs(10);
    for at in [now, later] {
        watch.reset_closing(at, |_| false).unwrap();
        assert_eq!(closing(), 1, "it may not send");
    }
    let leases = watch.hold().programs().leases().unwrap();
    leases.set(0, Lease { until: u64::MAX, settling: 0, ..Lease::default() }).unwrap();
    watch.reset_closing(now, |_| false).unwrap();
    assert_eq!(closing(), 1, "a record may tell of it");
    assert_eq!(watch.refused(), []);
    watch.reset_closing(later, |_| false).unwrap();
    assert_eq!(closing(), 0);
    // The RST may be lost, so the client is probed.
    let refused: Vec<_> = watch.refused().into_iter().map(|(key, _)| key).collect();
    assert_eq!(refused, [FlowKey::new(tuple.client, tuple.service)]);
    // The server's listening socket is not closed.
    in_netns(Some(replica.name()), || TcpListener::bind(tuple.service).unwrap()).unwrap();
}
