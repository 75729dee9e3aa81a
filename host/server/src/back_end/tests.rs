//! Exchanges with back ends that answer late, wrongly, by TCP or not at all; the tests control the
//! clock.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use rivulet_packet::{EthHeader, TcpFlags};
use rivulet_plain::{
    Class, CookieKey, CookieKeys, Flow, Header, Judged, Options, Protocol, Relay, Scale, Segment, Stamp,
    Stamps,
};

use super::exchanges::Exchanges;
use super::{BackEnd, BackEndCounters};

const MINUTE: u32 = 1000;
const SECOND: u64 = 1_000_000;

#[test]
fn addresses_of_back_ends_are_read() {
    let of = |text: &str| text.parse::<BackEnd>().map(|b| (b.protocol, b.address.to_string()));
    assert_eq!(of("dns://127.0.0.1:53"), Ok((Protocol::Dns, "127.0.0.1:53".into())));
    assert_eq!(of("udp://[::1]:8081"), Ok((Protocol::Http, "[::1]:8081".into())));
    for bad in
        ["127.0.0.1:53", "http://127.0.0.1:80", "dns://localhost:53", "dns://127.0.0.1", "udp://1.2.3.4:0"]
    {
        assert!(of(bad).unwrap_err().starts_with("want dns://"), "{bad}");
    }
}

/// A replica and its back end.
struct Rig {
    exchanges: Exchanges,
    counters: BackEndCounters,
    relay: Relay,
    program: UdpSocket,
    now: u64,
}

/// A client's address and the bytes that it gets.
type Got = (SocketAddr, Option<Vec<u8>>);

impl Rig {
    fn new(protocol: Protocol) -> Rig {
        let program = UdpSocket::bind("127.0.0.1:0").unwrap();
        program.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Rig::with(protocol, program)
    }

    fn with(protocol: Protocol, program: UdpSocket) -> Rig {
        let back_end = BackEnd { protocol, address: program.local_addr().unwrap(), deterministic: false };
        let keys = CookieKeys { current: CookieKey::new([1; 8]), others: [None; 2] };
        Rig {
            exchanges: Exchanges::new(back_end).unwrap(),
            counters: BackEndCounters::default(),
            relay: Relay { keys, protocol, deterministic: false, mtu: 1500 },
            program,
            now: 10 * SECOND,
        }
    }

    /// A client sends this request.
    fn ask(&mut self, port: u16, request: &[u8]) {
        let (src, dst) = (SocketAddr::from(([10, 0, 0, 1], port)), SocketAddr::from(([10, 9, 0, 1], 53)));
        let flow = Flow::new(src, dst);
        let (seq, keys) = (5000, &self.relay.keys);
        let echo = Stamp::opening(&flow, keys, MINUTE, seq, Scale::of(7));
        let header = Header {
            src,
            dst,
            seq,
            ack: flow.stamped(keys.current, Class::of(1460).unwrap()).wrapping_add(1),
            flags: TcpFlags(TcpFlags::ACK),
            window: 500,
            options: Options { stamps: Some(Stamps { value: 1, echo }), ..Options::default() },
        };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(request);
        header.finish(&mut packet, request.len()).unwrap();
        let ethernet = EthHeader { dst: [2; 6], src: [4; 6], vlan: None };
        let mut frame = vec![0; ethernet.length()];
        assert!(ethernet.fill(&mut frame, 0x800));
        frame.extend_from_slice(&packet);
        let segment = Segment::parse(&packet).unwrap();
        let Judged::Ask(ask) = self.relay.judge(&segment, MINUTE) else { panic!("nothing is asked") };
        self.exchanges.ask(&frame, &segment, ask, self.now, &mut self.counters);
    }

    /// The requests received by the back end.
    fn receive_query(&self) -> (Vec<u8>, SocketAddr) {
        let mut datagram = vec![0; 1 << 16];
        let (length, from) = self.program.recv_from(&mut datagram).unwrap();
        datagram.truncate(length);
        (datagram, from)
    }

    /// Polls until a request was answered, or a counter has the expected value.
    fn until(&mut self, done: impl Fn(&BackEndCounters) -> bool) -> Vec<Got> {
        let mut all = Vec::new();
        let started = Instant::now();
        while !done(&self.counters) {
            assert!(started.elapsed() < Duration::from_secs(20), "{:?}", self.counters);
            all.extend(self.poll());
            std::thread::sleep(Duration::from_millis(1));
        }
        all
    }

    /// Polls until the back end counts as live.
    fn until_alive(&mut self) {
        let started = Instant::now();
        while self.exchanges.is_dead() {
            assert!(started.elapsed() < Duration::from_secs(20), "{:?}", self.counters);
            self.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn poll(&mut self) -> Vec<Got> {
        let mut all = Vec::new();
        self.exchanges.poll(self.now, &mut self.counters);
        while let Some(answered) = self.exchanges.next(&mut self.counters) {
            let packet = Segment::parse(&answered.frame[14..]).unwrap();
            all.push((packet.header.src, answered.bytes.map(<[u8]>::to_vec)));
            let lane = answered.lane;
            self.exchanges.put_to_rest(lane, false);
        }
        all
    }
}

/// A query for a name of one byte, framed.
fn query(id: u16, name: u8) -> Vec<u8> {
    let mut out = vec![0, 19];
    out.extend(id.to_be_bytes());
    out.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, name, 0, 0, 1, 0, 1]);
    out
}

/// The response to a query: its header and question only.
fn respond(message: &[u8]) -> Vec<u8> {
    let mut out = message[..19].to_vec();
    out[2] |= 0x80;
    out[10..12].fill(0);
    out
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], port))
}

#[test]
fn several_queries_are_put_together_in_their_order() {
    let mut rig = Rig::new(Protocol::Dns);
    rig.ask(1, &[query(70, b'a'), query(71, b'b')].concat());
    let (first, from) = rig.receive_query();
    let (second, _) = rig.receive_query();
    assert_eq!(first.len(), 19 + 11, "an OPT record was added");
    rig.program.send_to(&respond(&second), from).unwrap();
    assert_eq!(rig.until(|c| c.answers == 1), []);
    rig.program.send_to(&respond(&first), from).unwrap();
    let want = [query(70, b'a'), query(71, b'b')]
        .map(|query| [&[0, 19][..], &respond(&query[2..])].concat())
        .concat();
    assert_eq!(rig.until(|c| c.answers == 2), [(client(1), Some(want))]);
    assert_eq!(rig.counters.queries, 2);
}

#[test]
fn answers_to_other_queries_are_ignored() {
    let mut rig = Rig::new(Protocol::Dns);
    rig.ask(1, &query(70, b'a'));
    let (asked, from) = rig.receive_query();
    let mut number = respond(&asked);
    number[0] ^= 1;
    let mut question = respond(&asked);
    question[13] = b'z';
    for forged in [&number[..], &question, &asked, b"", b"x"] {
        rig.program.send_to(forged, from).unwrap();
    }
    // A correct answer from another address is not accepted either.
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    other.send_to(&respond(&asked), from).unwrap();
    assert_eq!(rig.until(|c| c.late == 5), []);
    rig.program.send_to(&respond(&asked), from).unwrap();
    assert_eq!(rig.until(|c| c.answers == 1).len(), 1);
    assert_eq!(rig.counters.late, 5);
    // Sent twice: no request waits for the second one.
    rig.program.send_to(&respond(&asked), from).unwrap();
    assert_eq!(rig.until(|c| c.late == 6), []);
}

#[test]
fn a_repeated_request_is_sent_again_and_answered_once() {
    let mut rig = Rig::new(Protocol::Dns);
    rig.ask(1, &query(70, b'a'));
    rig.ask(1, &query(70, b'a'));
    assert_eq!(rig.counters.queries, 1, "not so soon");
    rig.now += SECOND / 5;
    rig.ask(1, &query(70, b'a'));
    assert_eq!(rig.counters.queries, 2);
    let ((first, from), (second, _)) = (rig.receive_query(), rig.receive_query());
    assert_eq!(first, second, "one number: who answers both says the same");
    rig.program.send_to(&respond(&first), from).unwrap();
    rig.program.send_to(&respond(&second), from).unwrap();
    assert_eq!(rig.until(|c| c.answers == 1 && c.late == 1).len(), 1);
    // Another request of the same client replaces the previous one.
    rig.ask(1, &query(71, b'b'));
    rig.ask(1, &query(72, b'c'));
    let (_, (third, from)) = (rig.receive_query(), rig.receive_query());
    rig.program.send_to(&respond(&third), from).unwrap();
    let got = rig.until(|c| c.answers == 2);
    assert_eq!(got[0].1.as_ref().unwrap()[2..4], 72u16.to_be_bytes());
}

#[test]
fn requests_are_bounded_in_number_and_time() {
    let mut rig = Rig::new(Protocol::Dns);
    for port in 1..=300 {
        rig.ask(port, &query(port, b'a'));
    }
    assert_eq!((rig.counters.queries, rig.counters.dropped), (256, 44));
    rig.now += 3 * SECOND;
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.counters.timeouts, 256);
    // All lanes are free again; answers to abandoned requests are late.
    let late: Vec<_> = (0..256).map(|_| rig.receive_query()).collect();
    for port in 1001..=1256 {
        rig.ask(port, &query(port, b'b'));
    }
    assert_eq!((rig.counters.queries, rig.counters.dropped), (512, 44));
    for (asked, from) in &late {
        rig.program.send_to(&respond(asked), from).unwrap();
    }
    assert_eq!(rig.until(|c| c.late == 256), []);
    for _ in 0..256 {
        let (asked, from) = rig.receive_query();
        rig.program.send_to(&respond(&asked), from).unwrap();
    }
    let mut got = rig.until(|c| c.answers == 256);
    got.sort_by_key(|(client, _)| client.port());
    assert!(got.iter().zip(1001..).all(|((client, bytes), port)| {
        client.port() == port && bytes.as_ref().is_some_and(|o| o[2..4] == port.to_be_bytes())
    }));
}

#[test]
fn late_answer_is_recognised_by_its_query_id() {
    let mut rig = Rig::new(Protocol::Dns);
    rig.ask(1, &query(1, b'a'));
    let (before, from) = rig.receive_query();
    rig.now += 3 * SECOND;
    assert_eq!(rig.poll(), []);
    // Another client sends the same query from the same port of ours; the first client's answer is
    // not accepted for it.
    rig.ask(2, &query(2, b'a'));
    let (asked, now_from) = rig.receive_query();
    assert!(from == now_from && asked[2..] == before[2..] && asked[..2] != before[..2]);
    rig.program.send_to(&respond(&before), from).unwrap();
    assert_eq!(rig.until(|c| c.late == 1), []);
    rig.program.send_to(&respond(&asked), from).unwrap();
    assert_eq!(rig.until(|c| c.answers == 1).len(), 1);
}

#[test]
fn late_answers_of_http_find_their_port_closed() {
    let mut rig = Rig::new(Protocol::Http);
    let request = |path: &str| format!("GET /{path} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes();
    rig.ask(1, &request("a"));
    let (asked, from) = rig.receive_query();
    assert_eq!(asked, request("a"));
    rig.now += 3 * SECOND;
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.counters.timeouts, 1);
    rig.ask(2, &request("b"));
    let (asked, now_from) = rig.receive_query();
    assert!(asked == request("b") && from != now_from);
    rig.program.send_to(b"HTTP/1.1 200 a", from).unwrap();
    rig.program.send_to(b"no answer", now_from).unwrap();
    rig.program.send_to(b"HTTP/1.1 200 b", now_from).unwrap();
    let got = rig.until(|c| c.answers == 1);
    assert_eq!(got, [(client(2), Some(b"HTTP/1.1 200 b".to_vec()))]);
    assert_eq!(rig.counters.late, 1);
    // A query sent twice may be answered twice, so its port is not reused either.
    rig.ask(3, &request("c"));
    rig.now += SECOND;
    rig.ask(3, &request("c"));
    let ((_, from), _) = (rig.receive_query(), rig.receive_query());
    rig.program.send_to(b"HTTP/1.1 200 c", from).unwrap();
    assert_eq!(rig.until(|c| c.answers == 2).len(), 1);
    rig.ask(4, &request("d"));
    assert_ne!(rig.receive_query().1, from);
    // An answer longer than the limit is reported as such.
    let long = [&b"HTTP/1.1 200 d"[..], &[b'x'; 20_000]].concat();
    rig.ask(5, &request("e"));
    rig.program.send_to(&long, rig.receive_query().1).unwrap();
    assert_eq!(rig.until(|c| c.answers == 3), [(client(5), None)]);
}

#[test]
fn a_back_end_that_is_not_there_costs_no_lane() {
    let program = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut rig = Rig::with(Protocol::Dns, program.try_clone().unwrap());
    let address = program.local_addr().unwrap();
    drop(program);
    // The back end is closed from here on.
    rig.program = UdpSocket::bind("127.0.0.1:0").unwrap();
    rig.ask(1, &query(1, b'a'));
    assert_eq!(rig.until(|c| c.timeouts == 1), []);
    rig.program = UdpSocket::bind(address).unwrap();
    rig.ask(1, &query(1, b'a'));
    let (asked, from) = rig.receive_query();
    rig.program.send_to(&respond(&asked), from).unwrap();
    assert_eq!(rig.until(|c| c.answers == 1).len(), 1);
}

#[test]
fn truncated_answers_are_queried_by_tcp() {
    // The same port for UDP and TCP, like a name server.
    let (listener, program) = (0..50)
        .find_map(|_| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let program = UdpSocket::bind(listener.local_addr().unwrap()).ok()?;
            Some((listener, program))
        })
        .unwrap();
    program.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rig = Rig::with(Protocol::Dns, program);
    // Two queries on a connection, then it is closed. Its thread ends with the process.
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                for _ in 0..2 {
                    let mut asked = [0; 21];
                    if stream.read_exact(&mut asked).is_err() {
                        return;
                    }
                    let mut answer = respond(&asked[2..]);
                    match asked[15] {
                        b'd' => answer[13] = b'z',
                        _ => answer.extend([7; 600]),
                    }
                    let length = (answer.len() as u16).to_be_bytes();
                    // Slowly.
                    stream.write_all(&length[..1]).unwrap();
                    stream.write_all(&length[1..]).unwrap();
                    stream.write_all(&answer).unwrap();
                }
            });
        }
    });
    for (n, name) in (1..).zip(*b"abcefghd") {
        rig.ask(n, &query(n, name));
        let (asked, from) = rig.receive_query();
        let mut answer = respond(&asked);
        answer[2] |= 2;
        rig.program.send_to(&answer, from).unwrap();
        if name == b'd' {
            assert_eq!(rig.until(|c| c.tcp_failed == 1), []);
            continue;
        }
        let mut got = Vec::new();
        while got.is_empty() {
            got = rig.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = got[0].1.as_ref().unwrap();
        assert_eq!((bytes.len(), bytes[2..4] == n.to_be_bytes()), (2 + 19 + 600, true));
    }
    assert_eq!((rig.counters.by_tcp, rig.counters.answers), (8, 8));
}

#[test]
fn a_back_end_is_dead_until_it_answers_and_when_it_does_not() {
    for protocol in [Protocol::Dns, Protocol::Http] {
        let mut rig = Rig::new(protocol);
        let reply = |asked: &[u8]| match protocol {
            Protocol::Dns => [&asked[..2], &[0x80, 5], &asked[4..]].concat(),
            Protocol::Http => b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec(),
        };
        assert!(!rig.exchanges.is_dead(), "nobody looks");
        rig.exchanges.probe().unwrap();
        assert!(rig.exchanges.is_dead(), "it has not answered yet");
        rig.poll();
        let (asked, from) = rig.receive_query();
        assert_eq!((asked.len(), rig.counters.probes), (if protocol == Protocol::Dns { 17 } else { 54 }, 1));
        // A datagram that is not an answer does not count.
        rig.program.send_to(b"what", from).unwrap();
        rig.program.send_to(&reply(&asked), from).unwrap();
        rig.until_alive();
        assert!(rig.counters.late == 0 && rig.counters.answers == 0, "no request's");
        // Three probes without an answer.
        for probes in 2..=4 {
            rig.now += SECOND;
            rig.poll();
            // Any answer replaces a probe's.
            if rig.counters.probes < probes {
                rig.now += SECOND;
                rig.poll();
            }
            assert!(rig.counters.probes == probes && !rig.exchanges.is_dead(), "{probes}");
            rig.receive_query();
        }
        rig.now += SECOND;
        rig.poll();
        assert!(rig.exchanges.is_dead());
        let (asked, from) = rig.receive_query();
        rig.program.send_to(&reply(&asked), from).unwrap();
        rig.until_alive();
    }
}

#[test]
fn an_answer_to_a_request_is_a_sign_of_life_and_a_closed_port_none() {
    let mut rig = Rig::new(Protocol::Dns);
    rig.exchanges.probe().unwrap();
    rig.poll();
    let _ = rig.receive_query();
    rig.ask(1, &query(70, b'a'));
    let (asked, from) = rig.receive_query();
    rig.program.send_to(&respond(&asked), from).unwrap();
    assert_eq!(rig.until(|c| c.answers == 1).len(), 1);
    assert!(!rig.exchanges.is_dead());
    rig.now += SECOND;
    rig.poll();
    assert_eq!(rig.counters.probes, 1, "it is known that it lives");
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut gone = Rig::with(Protocol::Dns, free);
    gone.program = UdpSocket::bind("127.0.0.1:0").unwrap();
    gone.exchanges.probe().unwrap();
    for probes in 1..10 {
        gone.poll();
        assert!(gone.exchanges.is_dead() && gone.counters.probes == probes, "{probes}");
        gone.now += SECOND;
    }
}
