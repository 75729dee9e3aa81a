//! Tests that run single segments through both programs by `BPF_PROG_TEST_RUN`.

mod beyond;
mod inputs;
mod stamped;
mod unknown;

use std::net::IpAddr;

use libbpf_rs::ProgramInput as Input;

use super::*;
use crate::kernel::{self, Feature};

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const NEXT: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;
/// Verdict on a segment that is redirected to an interface that does not exist, and so vanishes.
const SWALLOWED: i32 = REDIRECT;
/// Bytes of `struct __sk_buff`, and the offset of `gso_segs`.
const SKB: usize = 192;
const GSO_SEGS: usize = 164;
/// A value of `enum happened`.
const HAPPENED_DEATH: u32 = 0;

/// The client's ISN, so high that sequence numbers wrap within the first bytes.
const CLIENT_ISN: u32 = u32::MAX - 2;
const SERVER_ISN: u32 = u32::MAX - 1;
const CLIENT: u32 = CLIENT_ISN.wrapping_add(1);
const SERVER: u32 = SERVER_ISN.wrapping_add(1);
/// MSS 1460, SACK, timestamps 7 and 0, scale 7.
const OPTIONS: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7];

/// A TCP segment, from which a frame is made.
#[derive(Clone)]
struct Segment {
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    ack: u32,
    flags: u8,
    options: Vec<u8>,
    data: Vec<u8>,
}

impl Segment {
    fn frame(&self) -> Vec<u8> {
        let mut tcp = [self.from.port().to_be_bytes(), self.to.port().to_be_bytes()].concat();
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend([(5 + self.options.len() as u8 / 4) << 4, self.flags, 1, 0, 0, 0, 0, 0]);
        tcp.extend(&self.options);
        tcp.extend(&self.data);
        let pseudo = pseudo(self.from.ip(), self.to.ip(), tcp.len());
        let sum = !sum(&[&pseudo[..], &tcp].concat());
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut frame = vec![2; 12];
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((20 + tcp.len() as u16).to_be_bytes());
                frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((tcp.len() as u16).to_be_bytes());
                frame.extend([6, 64]);
                frame.extend(from.octets());
                frame.extend(to.octets());
            }
            _ => panic!("two families"),
        }
        frame.extend(tcp);
        frame
    }
}

fn pseudo(from: IpAddr, to: IpAddr, length: usize) -> Vec<u8> {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    [&octets(from)[..], &octets(to), &(length as u32).to_be_bytes(), &[0, 0, 0, 6]].concat()
}

/// The Internet checksum (RFC 1071).
fn sum(octets: &[u8]) -> u16 {
    let words = octets.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0)));
    let sum = words.fold(0u64, |sum, word| sum + u64::from(word));
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The programs with one protected service, and a client of it.
struct Rig {
    trods: Trods,
    client: SocketAddr,
    service: SocketAddr,
}

/// An event, with its data owned.
#[derive(Debug, PartialEq)]
enum Seen {
    Opened(Vec<u8>, Vec<u8>),
    Request(u32, Vec<u8>, bool),
    Reset(u32),
    Ended,
    Fin(u32, bool),
    Aborted(bool),
    Parked(Vec<u8>),
    Stamped(u32),
    Unnamed { seq: u32, end: u32, is_known: bool, adopted: bool },
    Replaced,
    Refused(u32),
}

impl Rig {
    fn new(client: &str, service: &str) -> Option<Rig> {
        if kernel::skipped(Feature::Tcx) {
            return None;
        }
        Some(Rig::of(Trods::load().unwrap_or_else(|e| panic!("{e}")), client, service))
    }

    fn of(trods: Trods, client: &str, service: &str) -> Rig {
        let (client, service) = (client.parse().unwrap(), service.parse().unwrap());
        trods.protect(service, 3).unwrap();
        trods.leases().unwrap().set(3, Lease { until: u64::MAX, settling: 0, ..Lease::default() }).unwrap();
        Rig { trods, client, service }
    }

    fn v4() -> Option<Rig> {
        Rig::new("192.0.2.7:1025", "10.9.0.1:80")
    }

    fn run(&self, program: &'static str, frame: &[u8]) -> (i32, Vec<u8>) {
        self.run_cut(program, frame, 0)
    }

    /// Runs a frame that the kernel would cut into this many segments as it leaves.
    fn run_cut(&self, program: &'static str, frame: &[u8], segments: u32) -> (i32, Vec<u8>) {
        let program = self.trods.object.progs_mut().find(|p| p.name() == program).unwrap();
        let mut out = vec![0; frame.len() + 256];
        let mut skb = [0; SKB];
        skb[GSO_SEGS..GSO_SEGS + 4].copy_from_slice(&segments.to_ne_bytes());
        let input = Input {
            context_in: Some(&mut skb),
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..Input::default()
        };
        let output = program.test_run(input).unwrap_or_else(|e| panic!("{} bytes: {e}", frame.len()));
        (output.return_value as i32, output.data.unwrap().to_vec())
    }

    /// Marks the process as dead, as its [links](crate::linger) would.
    fn set_dead(&self, is: bool) {
        let dead = map(&self.trods.object, ".data.dead").unwrap();
        update(&dead, &0u32.to_ne_bytes(), &u32::from(is).to_ne_bytes(), MapFlags::ANY).unwrap();
    }

    /// Sends a segment of the client; `seq` and `ack` count from the ends of the SYNs.
    fn up(&self, flags: u8, seq: u32, ack: u32, data: &[u8]) -> i32 {
        let (seq, ack) = (CLIENT.wrapping_add(seq), SERVER.wrapping_add(ack));
        let (from, to, options, data) = (self.client, self.service, vec![], data.into());
        let frame = Segment { from, to, seq, ack, flags, options, data }.frame();
        let (verdict, out) = self.run("trods_ingress", &frame);
        assert_eq!(out, frame, "the program must not change a client's segment");
        verdict
    }

    /// Sends a segment of the server; returns the verdict and the segment that leaves.
    fn down(&self, flags: u8, seq: u32, ack: u32, data: &[u8]) -> (i32, Segment) {
        let (seq, ack) = (SERVER.wrapping_add(seq), CLIENT.wrapping_add(ack));
        let (from, to, options) = (self.service, self.client, vec![]);
        let segment = Segment { from, to, seq, ack, flags, options, data: data.into() };
        let frame = segment.frame();
        let (verdict, out) = self.run("trods_egress", &frame);
        let tcp = &out[frame.len() - 20 - data.len()..];
        let changed = Segment {
            ack: u32::from_be_bytes(tcp[8..12].try_into().unwrap()).wrapping_sub(CLIENT),
            flags: tcp[13],
            ..segment.clone()
        };
        // The checksum is valid after every change, and no other byte changes.
        let whole = Segment { ack: changed.ack.wrapping_add(CLIENT), ..changed.clone() };
        assert_eq!(out, whole.frame());
        (verdict, changed)
    }

    /// Moves the times of withheld RSTs this many seconds back.
    fn refused_before(&self, seconds: u64) {
        let refused = map(&self.trods.object, "refused").unwrap();
        let Some(bytes) = refused.lookup(self.key().octets(), MapFlags::ANY).unwrap() else { return };
        let moved = bytes.chunks(8).map(|time| {
            (u64::from_ne_bytes(time.try_into().unwrap()) - seconds * 1_000_000_000).to_ne_bytes()
        });
        let moved: Vec<_> = moved.collect();
        update(&refused, self.key().octets(), &moved.concat(), MapFlags::ANY).unwrap();
    }

    /// Runs a whole handshake: both SYNs and the client's acknowledgement.
    fn open(&mut self) {
        assert_eq!(self.syn(), NEXT);
        assert_eq!(self.syn_ack(SERVER_ISN), NEXT);
        assert_eq!(self.up(ACK, 0, 0, &[]), NEXT);
        assert!(matches!(&self.events()[..], [Seen::Opened(..)]));
    }

    fn syn(&self) -> i32 {
        let (from, to, options) = (self.client, self.service, OPTIONS.to_vec());
        let syn = Segment { from, to, seq: CLIENT_ISN, ack: 0, flags: SYN, options, data: vec![] };
        self.run("trods_ingress", &syn.frame()).0
    }

    fn syn_ack(&self, seq: u32) -> i32 {
        let (from, to, options) = (self.service, self.client, OPTIONS.to_vec());
        let syn = Segment { from, to, seq, ack: CLIENT, flags: SYN | ACK, options, data: vec![] };
        self.run("trods_egress", &syn.frame()).0
    }

    fn key(&self) -> FlowKey {
        FlowKey::new(self.client, self.service)
    }

    /// Sets the connection's limits, in bytes after the SYNs.
    fn limit(&self, ack: u32, data: u32, fin_at: Option<u32>) {
        self.limit_closing(ack, data, fin_at, false);
    }

    fn limit_closing(&self, ack: u32, data: u32, fin_at: Option<u32>, closes: bool) {
        let fin_at = fin_at.map(|at| SERVER.wrapping_add(at));
        let (ack, data) = (CLIENT.wrapping_add(ack), SERVER.wrapping_add(data));
        let limits = Limits { ack, data, fin_at, closes, first: SERVER, acked: SERVER, ..Limits::default() };
        assert!(self.trods.set_limits(&self.key(), &limits).unwrap());
    }

    fn events(&mut self) -> Vec<Seen> {
        let (mut told, key) = (Vec::new(), self.key());
        while self
            .trods
            .events(1, |event| {
                assert_eq!(event.key, key);
                told.push(match event.what {
                    What::Opened { syn, syn_ack } => Seen::Opened(syn.into(), syn_ack.into()),
                    What::Request { seq, octets, fin } => {
                        Seen::Request(seq.wrapping_sub(CLIENT), octets.into(), fin)
                    }
                    What::Reset { seq } => Seen::Reset(seq.wrapping_sub(CLIENT)),
                    What::Ended => Seen::Ended,
                    What::Fin { seq, of_dead } => Seen::Fin(seq.wrapping_sub(SERVER), of_dead),
                    What::Aborted { of_dead } => Seen::Aborted(of_dead),
                    What::Parked { packet } => Seen::Parked(packet.into()),
                    What::Stamped { seq } => Seen::Stamped(seq.wrapping_sub(CLIENT)),
                    What::Unnamed { seq, end, isn, base, adopted } => Seen::Unnamed {
                        seq: seq.wrapping_sub(CLIENT),
                        end: end.wrapping_sub(SERVER),
                        is_known: (isn, base) == (SERVER_ISN, stamped::BASE),
                        adopted,
                    },
                    What::Replaced => Seen::Replaced,
                    What::Refused { seq } => Seen::Refused(seq.wrapping_sub(SERVER)),
                });
            })
            .unwrap()
            > 0
        {}
        told
    }

    fn counters(&self) -> Counters {
        self.trods.counters().unwrap()
    }
}

#[test]
fn completed_handshake_opens_connection_and_copies_client_data() {
    for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:1025", "[fd00:9::1]:80")] {
        let Some(mut rig) = Rig::new(client, service) else { return };
        assert_eq!((rig.syn(), rig.syn_ack(SERVER_ISN)), (NEXT, NEXT));
        // Only a segment that completes the handshake opens the connection.
        for (seq, ack) in [(1, 0), (0, 1), (u32::MAX, 0)] {
            assert_eq!(rig.up(ACK, seq, ack, b"GET"), NEXT);
        }
        assert_eq!((rig.events(), rig.counters().opened), (vec![], 0));
        assert_eq!(rig.syn(), NEXT, "the client retransmits its SYN");
        assert_eq!(rig.up(ACK, 0, 0, b"GET"), NEXT);
        let told = rig.events();
        let [Seen::Opened(syn, syn_ack), Seen::Request(0, octets, false)] = &told[..] else {
            panic!("{told:?}")
        };
        for (header, flags, seq, ack) in [(syn, SYN, CLIENT_ISN, 0), (syn_ack, SYN | ACK, SERVER_ISN, CLIENT)]
        {
            assert_eq!((header.len(), header[13]), (40, flags));
            assert_eq!((&header[4..8], &header[8..12]), (&seq.to_be_bytes()[..], &u32::to_be_bytes(ack)[..]));
            assert_eq!(header[20..], OPTIONS);
        }
        assert_eq!(octets, b"GET");
        let limits = Limits {
            ack: CLIENT,
            data: SERVER,
            fin_at: None,
            closes: false,
            first: SERVER,
            acked: SERVER,
            ..Limits::default()
        };
        assert_eq!(rig.trods.limits(&rig.key()).unwrap(), Some(limits));
        rig.limit(3, 9, None);
        // More data than one event carries. (BPF_PROG_TEST_RUN takes at most a page.)
        let data: Vec<u8> = (0..EVENT_OCTETS + 1200).map(|n| n as u8).collect();
        for (length, fin) in [(EVENT_OCTETS, FIN), (EVENT_OCTETS + 1, 0), (data.len(), FIN), (0, FIN)] {
            assert_eq!(rig.up(ACK | fin, 3, 9, &data[..length]), NEXT);
            let (mut got, mut last) = (Vec::new(), false);
            for told in rig.events() {
                let Seen::Request(seq, octets, fin) = told else { panic!("{told:?}") };
                assert_eq!((seq, last), (3 + got.len() as u32, false));
                (got, last) = ([&got[..], &octets].concat(), fin);
            }
            assert_eq!((&got[..], last), (&data[..length], fin != 0));
        }
        let acked = |rig: &Rig| rig.trods.limits(&rig.key()).unwrap().unwrap().acked;
        assert_eq!((acked(&rig), rig.counters().opened), (SERVER.wrapping_add(9), 1));
        for ack in [8, 10, 1 << 30] {
            assert_eq!(rig.up(ACK, 3, ack, &[]), NEXT);
            assert_eq!(acked(&rig), SERVER.wrapping_add(9), "older, or of data that was never sent");
        }
    }
}

#[test]
fn damaged_segment_is_left_to_the_kernel() {
    for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:1025", "[fd00:9::1]:80")] {
        let Some(mut rig) = Rig::new(client, service) else { return };
        rig.open();
        rig.limit(0, 9, Some(9));
        let (from, to, seq, options) = (rig.client, rig.service, CLIENT, vec![]);
        let ack = SERVER.wrapping_add(10);
        for (flags, length) in
            [(ACK, 0), (FIN | ACK, 0), (RST, 0), (ACK, 1), (ACK, 3), (ACK, 1400), (ACK, 2047)]
        {
            let data: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let frame = Segment { from, to, seq, ack, flags, options: options.clone(), data }.frame();
            let tcp = frame.len() - 20 - length;
            for at in [tcp + 8, tcp + 16, frame.len() - 1] {
                let mut damaged = frame.clone();
                damaged[at] ^= 4;
                assert_eq!(rig.run("trods_ingress", &damaged).0, NEXT);
            }
            assert_eq!(rig.events(), [], "{flags} {length}");
            assert_eq!(rig.trods.limits(&rig.key()).unwrap().unwrap().acked, SERVER);
            // A segment with a partial checksum.
            let mut partial = frame.clone();
            let pseudo = sum(&pseudo(from.ip(), to.ip(), 20 + length));
            partial[tcp + 16..tcp + 18].copy_from_slice(&pseudo.to_be_bytes());
            for whole in [partial, frame] {
                assert_eq!(rig.run("trods_ingress", &whole).0, NEXT);
                assert!(!rig.events().is_empty(), "{flags} {length}");
            }
            rig.limit(0, 9, Some(9));
        }
        // A damaged SYN opens nothing either.
        rig.client.set_port(1026);
        let mut syn =
            Segment { from: rig.client, to, seq: CLIENT_ISN, ack: 0, flags: SYN, options, data: vec![] }
                .frame();
        syn[8] ^= 1;
        let last = syn.len() - 1;
        syn[last] ^= 1;
        assert_eq!(rig.run("trods_ingress", &syn).0, NEXT);
        assert_eq!((rig.syn_ack(SERVER_ISN), rig.up(ACK, 0, 0, &[])), (NEXT, NEXT));
        assert_eq!(rig.events(), []);
    }
}

#[test]
fn data_beyond_limit_goes_to_tap() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    assert_eq!(rig.down(ACK, 0, 0, b"HTTP").0, SWALLOWED, "there is no TAP");
    rig.trods.set_tap(1).unwrap();
    assert_eq!(rig.down(ACK, 0, 0, b"HTTP").0, REDIRECT);
    rig.limit(0, 4, None);
    for (seq, data, verdict) in
        [(0, &b"HTTP"[..], NEXT), (2, b"TP/", REDIRECT), (4, b"/", REDIRECT), (3, b"P", NEXT)]
    {
        assert_eq!(rig.down(ACK, seq, 0, data).0, verdict, "{seq}");
    }
    assert_eq!((rig.counters().held, rig.events()), (4, vec![]));
    rig.trods.free(&rig.key()).unwrap();
    assert_eq!(rig.down(ACK, 4, 0, b"/1.1").0, NEXT);
}

#[test]
fn acknowledgement_beyond_limit_is_lowered_or_withheld() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    rig.limit(10, 100, None);
    assert_eq!(rig.down(ACK, 0, 10, &[]).0, NEXT);
    assert_eq!(rig.trods.take_withheld(&rig.key()).unwrap(), None);
    assert_eq!(rig.down(ACK, 0, 11, &[]).0, SWALLOWED);
    assert_eq!(rig.down(ACK, 0, 12, &[]).0, SWALLOWED);
    let (verdict, sent) = rig.down(ACK, 0, 13, b"HTTP");
    assert_eq!((verdict, sent.ack), (NEXT, 10));
    let (verdict, sent) = rig.down(ACK, 0, 9, b"HTTP");
    assert_eq!((verdict, sent.ack), (NEXT, 9), "an old one");
    let last = rig.trods.take_withheld(&rig.key()).unwrap().unwrap();
    assert_eq!(last[last.len() - 12..][..4], CLIENT.wrapping_add(12).to_be_bytes());
    assert_eq!(rig.trods.take_withheld(&rig.key()).unwrap(), None, "the first call has removed it");
    assert_eq!((rig.counters().acks, rig.counters().clamped), (2, 1));
}

#[test]
fn fin_leaves_only_at_allowed_number() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    rig.limit(0, 4, None);
    assert_eq!(rig.down(FIN | ACK, 4, 0, &[]).0, SWALLOWED);
    assert_eq!(rig.events(), [Seen::Fin(4, false)]);
    assert!(rig.trods.take_withheld(&rig.key()).unwrap().is_some());
    let (verdict, sent) = rig.down(FIN | ACK, 0, 5, b"HTTP");
    assert_eq!((verdict, sent.flags, sent.ack), (NEXT, ACK, 0), "its data leaves without the FIN");
    assert_eq!(rig.events(), [Seen::Fin(4, false)]);
    rig.limit(0, 4, Some(4));
    assert_eq!(rig.down(FIN | ACK, 3, 0, &[]).0, SWALLOWED);
    let (verdict, sent) = rig.down(FIN | ACK, 4, 5, &[]);
    assert_eq!((verdict, sent.flags, sent.ack), (NEXT, FIN | ACK, 0));
    assert_eq!(rig.down(FIN | ACK, 0, 0, b"HTTP").1.flags, FIN | ACK);
    assert_eq!(rig.events(), [Seen::Fin(3, false)]);
    // The FIN counts as acknowledged by its own number only.
    for (ack, told) in [(4, vec![]), (6, vec![]), (5, vec![Seen::Ended])] {
        assert_eq!(rig.up(ACK, 0, ack, &[]), NEXT);
        assert_eq!(rig.events(), told, "{ack}");
    }
    assert_eq!(rig.counters().fins, 3);
}

#[test]
fn fin_of_dying_process_leaves_only_at_announced_end() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    let dies = |rig: &Rig| {
        rig.trods.happens(HAPPENED_DEATH).unwrap();
        let dying = map(&rig.trods.object, "dying").unwrap();
        update(&dying, rig.key().octets(), &[1], MapFlags::ANY).unwrap();
    };
    dies(&rig);
    rig.limit(0, 4, Some(4));
    assert_eq!(rig.down(FIN | ACK, 4, 0, &[]).0, SWALLOWED);
    assert_eq!(rig.down(RST | ACK, 4, 0, &[]).0, SWALLOWED);
    assert_eq!(rig.events(), [Seen::Fin(4, true), Seen::Aborted(true)]);
    rig.limit_closing(0, 4, Some(4), true);
    assert_eq!(rig.down(FIN | ACK, 4, 0, &[]).0, NEXT);
    // The next connection between these ports belongs to another process.
    rig.trods.free(&rig.key()).unwrap();
    rig.open();
    assert_eq!(rig.down(RST | ACK, 0, 0, &[]).0, SWALLOWED);
    assert_eq!(rig.events(), [Seen::Aborted(false)]);
    // It does not inherit the death, even if the entries of the former connection were not removed.
    dies(&rig);
    assert_eq!((rig.syn(), rig.syn_ack(SERVER_ISN.wrapping_add(50))), (NEXT, NEXT));
    assert_eq!(rig.up(ACK, 0, 50, &[]), NEXT);
    assert!(matches!(&rig.events()[..], [Seen::Opened(..)]));
    assert_eq!(rig.down(RST | ACK, 50, 0, &[]).0, SWALLOWED);
    assert_eq!(rig.events(), [Seen::Aborted(false)]);
}

/// Runs three processes: one exits with an open connection, one closes it first, and one exits with
/// the client's end, so that the kernel handles the client's FIN while the process exits.
#[test]
fn close_by_dying_process_is_distinguished() {
    let Some(mut rig) = Rig::v4() else { return };
    let inode = rustix::fs::stat("/proc/thread-self/ns/net").unwrap().st_ino;
    rig.trods.see_deaths(inode as u32).unwrap_or_else(|e| panic!("{e}"));
    let dying = map(&rig.trods.object, "dying").unwrap();
    let (closes, dies) = ("read x <&3; exec 3>&-", "read x <&3; kill -9 $$");
    // A connection with unread data is closed at once by a RST.
    let (read, unread) = (b"go\n".as_slice(), b"go\nand".as_slice());
    let ways: [fn(&Trods, &FlowKey); 3] = [
        |trods, key| trods.insert(key, &Limits::default()).unwrap(),
        |trods, key| stamped::put(trods, key, Phase::Named),
        |trods, key| stamped::put(trods, key, Phase::Free),
    ];
    for (way, of_server, script, words, died) in [
        (0, true, closes, read, false),
        (0, true, dies, read, true),
        (0, true, closes, unread, false),
        (0, true, dies, unread, true),
        (0, false, dies, read, false),
        (1, true, closes, read, false),
        (1, true, dies, read, true),
        (2, true, dies, read, false),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let service = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(service).unwrap();
        let (server, _) = listener.accept().unwrap();
        let key = FlowKey::new(client.local_addr().unwrap(), service);
        ways[way](&rig.trods, &key);
        let (its, mut ours) = if of_server { (server, client) } else { (client, server) };
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &format!("exec 3<&0 0</dev/null; {script}; true")]).stdin(OwnedFd::from(its));
        let mut child = shell.spawn().unwrap();
        drop(shell);
        std::io::Write::write_all(&mut ours, words).unwrap();
        // Waits for the end of the connection, which arrives after the event.
        assert_eq!(std::io::Read::read(&mut ours, &mut [0; 8]).unwrap_or(0), 0);
        child.wait().unwrap();
        let found = dying.lookup(key.octets(), MapFlags::ANY).unwrap();
        assert_eq!(found.is_some(), died, "{way}, {script}, {words:?}, of the server: {of_server}");
    }
    // A connection that the dead process's listener had not accepted.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let service = listener.local_addr().unwrap();
    let mut client = std::net::TcpStream::connect(service).unwrap();
    let key = FlowKey::new(client.local_addr().unwrap(), service);
    rig.trods.insert(&key, &Limits::default()).unwrap();
    let mut waits = std::process::Command::new("sleep");
    let mut child = waits.arg("60").stdin(OwnedFd::from(listener)).spawn().unwrap();
    drop(waits);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(std::io::Read::read(&mut client, &mut [0; 8]).is_err(), "it is reset");
    assert!(dying.lookup(key.octets(), MapFlags::ANY).unwrap().is_some());
}

/// `CLOCK_MONOTONIC`, as programs read it, in nanoseconds.
fn clock() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is a local.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) }, 0);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn nothing_leaves_after_lease_ends() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    rig.limit(10, 10, Some(10));
    for until in [0, 1] {
        rig.trods.leases().unwrap().set(3, Lease { until, settling: 0, ..Lease::default() }).unwrap();
        // Segments with data are dropped, which the server's TCP notices, so that it retries soon.
        for (flags, data, verdict) in [
            (ACK, &b""[..], SWALLOWED),
            (ACK, b"HTTP", DROP),
            (FIN | ACK, b"HTTP/1.1 2", DROP),
            (RST, b"", SWALLOWED),
        ] {
            assert_eq!(rig.down(flags, 0, 0, data).0, verdict);
        }
    }
    rig.trods.leases().unwrap().set(4, Lease { until: u64::MAX, settling: 0, ..Lease::default() }).unwrap();
    assert_eq!(rig.down(ACK, 0, 0, b"HTTP").0, DROP, "the service has another lease");
    // A lease that ended a moment ago may be extended before TCP would retransmit.
    rig.trods.leases().unwrap().set(3, Lease { until: clock(), settling: 0, ..Lease::default() }).unwrap();
    assert_eq!(rig.down(ACK, 0, 0, b"HTTP").0, SWALLOWED);
    assert_eq!((rig.counters().muted, rig.events()), (10, vec![]));
    rig.trods.leases().unwrap().set(3, Lease { until: 1, settling: 0, ..Lease::default() }).unwrap();
    // Segments of unknown connections are withheld as well: another replica may have adopted these.
    let limits = rig.trods.limits(&rig.key()).unwrap().unwrap();
    rig.trods.free(&rig.key()).unwrap();
    assert_eq!(rig.down(ACK, 0, 0, b"HTTP").0, DROP);
    assert_eq!((rig.down(RST, 7, 0, b"").0, rig.events()), (SWALLOWED, vec![Seen::Refused(7)]));
    assert_eq!(rig.syn_ack(SERVER_ISN), NEXT, "a connection may begin");
    rig.trods.insert(&rig.key(), &limits).unwrap();
    rig.trods.leases().unwrap().set(3, Lease { until: u64::MAX, settling: 0, ..Lease::default() }).unwrap();
    assert_eq!(rig.down(ACK, 0, 0, b"HTTP").0, NEXT);
}

/// The record of a connection that begins here would be stored by no process.
#[test]
fn dead_process_gets_no_new_connections() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    rig.limit(10, 10, None);
    rig.set_dead(true);
    assert_eq!(rig.down(ACK, 0, 0, b"HTTP").0, NEXT, "segments that other replicas can resume leave");
    assert_eq!(rig.syn_ack(SERVER_ISN.wrapping_add(50)), SWALLOWED);
    rig.trods.free(&rig.key()).unwrap();
    assert_eq!(rig.syn_ack(SERVER_ISN), SWALLOWED);
    assert_eq!(rig.counters().muted, 2);
}

#[test]
fn new_connection_between_same_ports_replaces_former() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    rig.limit(10, 100, None);
    assert_eq!(rig.syn_ack(SERVER_ISN), NEXT, "sent again");
    assert!(rig.trods.limits(&rig.key()).unwrap().is_some());
    assert_eq!((rig.syn(), rig.syn_ack(SERVER_ISN.wrapping_add(50))), (NEXT, NEXT));
    assert_eq!(rig.trods.limits(&rig.key()).unwrap(), None);
    assert_eq!(rig.up(ACK, 0, 50, &[]), NEXT);
    assert!(matches!(&rig.events()[..], [Seen::Opened(..)]));
    let limits = rig.trods.limits(&rig.key()).unwrap().unwrap();
    assert_eq!((limits.data, limits.first), (SERVER.wrapping_add(50), SERVER.wrapping_add(50)));
    let limits = Limits { ack: 0, ..limits };
    assert!(rig.trods.insert(&rig.key(), &limits).is_err(), "the connection has limits already");
    rig.trods.free(&rig.key()).unwrap();
    assert!(!rig.trods.set_limits(&rig.key(), &limits).unwrap(), "it has none");
    rig.trods.insert(&rig.key(), &limits).unwrap();
}

/// Removed by a new handshake of the client, and by an adoption here.
#[test]
fn withheld_segment_is_removed_with_its_connection() {
    let Some(mut rig) = Rig::v4() else { return };
    for adopts in [false, true] {
        rig.open();
        rig.limit(0, 4, None);
        assert_eq!(rig.down(FIN | ACK, 4, 0, &[]).0, SWALLOWED);
        assert_eq!(rig.events(), [Seen::Fin(4, false)]);
        let limits = rig.trods.limits(&rig.key()).unwrap().unwrap();
        rig.trods.free(&rig.key()).unwrap();
        if adopts {
            rig.trods.insert(&rig.key(), &limits).unwrap();
        } else {
            rig.open();
        }
        assert_eq!(rig.trods.take_withheld(&rig.key()).unwrap(), None, "{adopts}");
        rig.trods.free(&rig.key()).unwrap();
    }
    // A later handshake segment does not overwrite limits that the process has set.
    rig.open();
    assert_eq!(rig.down(FIN | ACK, 4, 0, &[]).0, SWALLOWED);
    let limits = rig.trods.limits(&rig.key()).unwrap().unwrap();
    assert!(rig.trods.insert(&rig.key(), &limits).is_err());
    assert!(rig.trods.take_withheld(&rig.key()).unwrap().is_some());
}

#[test]
fn syn_with_data_opens_no_connection() {
    let Some(mut rig) = Rig::v4() else { return };
    let (from, to) = (rig.client, rig.service);
    let syn =
        Segment { from, to, seq: CLIENT_ISN, ack: 0, flags: SYN, options: vec![], data: b"GET".to_vec() };
    assert_eq!(rig.run("trods_ingress", &syn.frame()).0, NEXT);
    assert_eq!((rig.syn_ack(SERVER_ISN), rig.up(ACK, 0, 0, &[])), (NEXT, NEXT));
    assert_eq!((rig.events(), rig.down(ACK, 0, 0, b"HTTP").0), (vec![], NEXT));
}

#[test]
fn segment_without_room_for_event_is_dropped() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    let mut passed = 0;
    for octets in [EVENT_OCTETS, 130, 1] {
        while rig.up(ACK, passed % 32 * 2048, 0, &vec![1; octets]) == NEXT {
            passed += 1;
            assert!(passed < 4096, "the ring is not full yet");
        }
    }
    assert_eq!(rig.counters().lost, 3);
    // No connection is opened without room for its event.
    let first = std::mem::replace(&mut rig.client, "192.0.2.8:1025".parse().unwrap());
    assert_eq!((rig.syn(), rig.syn_ack(SERVER_ISN), rig.up(ACK, 0, 0, &[])), (NEXT, NEXT, DROP));
    assert_eq!(rig.trods.limits(&rig.key()).unwrap(), None);
    rig.client = first;
    assert_eq!(rig.events().len(), passed as usize);
    assert_eq!(rig.up(ACK, 0, 0, b"GET"), NEXT);
    rig.client = "192.0.2.8:1025".parse().unwrap();
    assert_eq!(rig.trods.events(9, |_| ()).unwrap(), 1);
    assert_eq!(rig.up(ACK, 0, 0, &[]), NEXT);
    assert!(matches!(&rig.events()[..], [Seen::Opened(..)]));
}

#[test]
fn segments_of_other_services_pass() {
    for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:1025", "[fd00:9::1]:80")] {
        let Some(mut rig) = Rig::new(client, service) else { return };
        rig.open();
        let segment = Segment {
            from: rig.service,
            to: rig.client,
            seq: SERVER,
            ack: CLIENT,
            flags: ACK,
            options: OPTIONS.to_vec(),
            data: b"HTTP".to_vec(),
        };
        let frame = segment.frame();
        assert_eq!(rig.run("trods_egress", &frame).0, SWALLOWED);
        let port = SocketAddr::new(rig.service.ip(), 81);
        let mut others = vec![Segment { from: port, ..segment.clone() }.frame()];
        // Truncated frames, and frames with wrong lengths in their headers.
        let tcp = frame.len() - 44;
        others.extend((tcp..frame.len()).map(|length| frame[..length].to_vec()));
        for (at, octet) in
            [(tcp + 12, 0x40), (tcp + 12, 0xf0), (12, 9), (if tcp == 34 { 23 } else { 20 }, 17)]
        {
            let mut other = frame.clone();
            other[at] = octet;
            others.push(other);
        }
        if tcp == 34 {
            let mut fragment = frame.clone();
            fragment[20] = 0x20;
            others.push(fragment);
        }
        for other in others {
            assert_eq!(rig.run("trods_egress", &other), (NEXT, other.clone()), "{other:02x?}");
        }
        // Ethernet pads short frames.
        let mut padded = Segment { data: vec![], options: vec![], ..segment }.frame();
        padded.resize(padded.len() + 6, 0);
        assert_eq!(rig.run("trods_egress", &padded).0, NEXT, "no data");
        rig.trods.release(rig.service).unwrap();
        assert_eq!(rig.run("trods_egress", &frame).0, NEXT);
        assert_eq!(rig.events(), []);
    }
}

/// Segments that the kernel would not accept cause no event of data, FIN, RST or acknowledgement.
#[test]
fn segments_outside_window_change_no_state() {
    let Some(mut rig) = Rig::v4() else { return };
    rig.open();
    rig.limit(100, 5000, Some(5000));
    let near = 1 << 16;
    let acked = |rig: &Rig| rig.trods.limits(&rig.key()).unwrap().unwrap().acked.wrapping_sub(SERVER);
    // The sequence number or the acknowledgement is too far ahead or behind.
    for (seq, ack) in [
        (100 + near, 10),
        (0u32.wrapping_sub(near - 99), 10),
        (1 << 31, 10),
        (100, 5002),
        (100, 0u32.wrapping_sub(1 << 26) - 1),
        (100, 1 << 31),
    ] {
        let before = rig.counters().outside;
        for flags in [ACK, ACK | FIN] {
            assert_eq!(rig.up(flags, seq, ack, b"x"), NEXT, "the kernel gets the segment unchanged");
        }
        assert_eq!(rig.up(ACK, seq, ack, b""), NEXT);
        assert_eq!((rig.events(), acked(&rig)), (vec![], 0), "{seq} {ack}");
        assert_eq!(rig.counters().outside - before, 3);
    }
    assert_eq!(rig.up(RST, 100 + near, 0, b""), NEXT);
    assert_eq!(rig.up(ACK, 100 + near, 5001, b""), NEXT);
    assert_eq!(rig.events(), [], "there is neither a reset nor an end");
    for (seq, ack) in [(100 + near - 1, 10), (100u32.wrapping_sub(near), 20), (100, 5001)] {
        assert_eq!(rig.up(ACK, seq, ack, b"x"), NEXT);
        let told = rig.events();
        assert!(matches!(&told[told.len() - 1..], [Seen::Request(at, ..)] if *at == seq), "{told:?}");
        assert_eq!(acked(&rig), ack);
    }
    assert_eq!(rig.up(RST, 100, 0, b""), NEXT);
    assert_eq!(rig.events(), [Seen::Reset(100)]);
}
