//! Simulated ordinary clients of stateless TCP.

use std::net::SocketAddr;

use rivulet_packet::TcpFlags;
use rivulet_plain::{Cause, Flow, Header, Options, Reason, Segment, Site, Table, Verdict};

use crate::support::client::{Client, Nature};
use crate::support::net::{Fate, Net, Outcome, Way};
use crate::support::{SIZES, bodies, content, get, site};

fn fine(_: Way, _: usize) -> Fate {
    Fate::Arrives
}

/// Bytes of an answer that are sent at once on a bare connection.
const AT_ONCE: usize = 9_500;

fn run(net: &Net<'_>, nature: Nature, requests: &[Vec<u8>]) -> (Client, Outcome) {
    let mut client = Client::new(nature, 4000, 0xffff_fe00, requests);
    // Each packet reaches another replica.
    let outcome = net.run(&mut client, &mut fine, &mut |n| n);
    (client, outcome)
}

fn closing(size: usize) -> Vec<u8> {
    get(size, "Connection: close\r\n")
}

#[test]
fn every_size_arrives_complete_in_two_round_trips() {
    let site = site();
    for stamps in [true, false] {
        for v6 in [false, true] {
            for size in SIZES {
                let nature = Nature { stamps, v6, ..Nature::default() };
                let (client, outcome) = run(&Net::new(&site), nature, &[closing(size)]);
                assert_eq!(bodies(&client.stream), [content(size)], "{size}");
                assert!(client.is_done() && client.had_fin() && client.paws == 0, "{size}");
                if stamps || size < AT_ONCE {
                    assert_eq!(
                        (client.retransmissions, outcome.milliseconds),
                        (0, 60),
                        "{size}: handshake, answer, end"
                    );
                }
            }
        }
    }
}

#[test]
fn each_segment_size_and_window_is_respected() {
    let site = site();
    for mss in [536, 900, 1220, 1400, 1440, 1460, 9000] {
        for buffer in [300, 1100, 1300, 3000, 5000, 20_000, 60_000, 4 << 20] {
            for stamps in [true, false] {
                let nature = Nature { stamps, mss, buffer, shift: Some(8), ..Nature::default() };
                let (client, outcome) = run(&Net::new(&site), nature, &[closing(5000)]);
                if !stamps && (mss < 1024 || buffer < 1024) {
                    assert!(outcome.kernel.iter().all(|c| *c == Cause::Syn) && !outcome.kernel.is_empty());
                    continue;
                }
                // The simulated client asserts that its window is respected.
                assert_eq!(bodies(&client.stream), [content(5000)], "{mss} {buffer} {stamps}");
                assert!(client.is_done(), "{mss} {buffer} {stamps}");
            }
        }
    }
    assert!(
        run(&Net::new(&site), Nature { mss: 500, ..Nature::default() }, &[closing(1)]).1.kernel[0]
            == Cause::Syn
    );
}

#[test]
fn connection_with_timestamps_is_kept_alive() {
    let site = site();
    let replicas = site.clone();
    let net = Net { replicas: vec![&site, &replicas], ..Net::new(&site) };
    let mut requests: Vec<_> = (0..200).map(|n| get(SIZES[n % SIZES.len()], "")).collect();
    requests.push(closing(100));
    let (client, outcome) = run(&net, Nature::default(), &requests);
    let whole = bodies(&client.stream);
    // About 48 kB in ten answers; after half a megabyte the server closes the connection.
    assert!((100..121).contains(&whole.len()), "{} answers", whole.len());
    for (n, body) in whole.iter().enumerate() {
        assert!(*body == content(SIZES[n % SIZES.len()]), "answer {n}");
    }
    assert!(client.is_done() && client.had_fin());
    assert_eq!((client.paws, client.retransmissions, outcome.kernel.len()), (0, 0, 0));
    // One round trip for each answer, and two for the handshake and the end.
    assert_eq!(outcome.milliseconds, 20 * (whole.len() as u64 + 2));
    let bare = Nature { stamps: false, ..Nature::default() };
    let (client, _) = run(&net, bare, &requests);
    assert_eq!(bodies(&client.stream), [content(0)], "told to close, and closed");
    assert!(client.is_done() && String::from_utf8_lossy(&client.stream).contains("Connection: close"));
}

#[test]
fn fin_on_idle_connection_is_answered() {
    let site = site();
    let (client, outcome) = run(&Net::new(&site), Nature::default(), &[get(2000, ""), get(100, "")]);
    assert_eq!(bodies(&client.stream), [content(2000), content(100)]);
    assert!(client.is_done() && client.had_fin());
    assert_eq!((outcome.milliseconds, client.retransmissions), (80, 0));
}

#[test]
fn pipelined_requests_are_answered_in_turn() {
    let site = site();
    let sizes = [2000, 100, 5000, 0, 900];
    let requests: Vec<_> = sizes.iter().map(|n| get(*n, "")).collect();
    let want: Vec<_> = sizes.iter().map(|n| content(*n)).collect();
    let pipelined = Nature { pipelines: true, ..Nature::default() };
    let (client, _) = run(&Net::new(&site), pipelined.clone(), &requests);
    assert_eq!(bodies(&client.stream), want, "segments of their own");
    assert!(client.is_done());
    let (client, _) = run(&Net::new(&site), pipelined, &[requests.concat()]);
    assert_eq!(bodies(&client.stream), want, "one segment, which the client repeats");
    // Without timestamps only the first request is answered, and the connection ends.
    let bare = Nature { stamps: false, pipelines: true, ..Nature::default() };
    let (client, _) = run(&Net::new(&site), bare, &requests);
    assert_eq!(bodies(&client.stream), want[..1]);
    assert!(client.is_done());
}

#[test]
fn half_closing_clients_get_their_answer() {
    let site = site();
    for stamps in [true, false] {
        for size in [0, 900, 10_000] {
            for apart in [false, true] {
                let nature = Nature { half_close: !apart, fin_apart: apart, stamps, ..Nature::default() };
                // Even if the whole answer is lost once, the FIN alone is not acknowledged, because
                // the client would not repeat its request.
                for lost in 0..=12 {
                    let mut client = Client::new(nature.clone(), 4000, 7, &[closing(size)]);
                    let mut fate = |way, n| match way {
                        Way::ToClient if (1..=lost).contains(&n) => Fate::Lost,
                        _ => Fate::Arrives,
                    };
                    Net::new(&site).run(&mut client, &mut fate, &mut |n| n);
                    assert_eq!(bodies(&client.stream), [content(size)]);
                    assert!(client.is_done() && client.had_fin());
                }
            }
        }
    }
}

#[test]
fn path_mtu_is_found_without_icmp() {
    let site = site();
    for stamps in [true, false] {
        for v6 in [false, true] {
            let nature = Nature { stamps, v6, ..Nature::default() };
            let net = Net { path: 1280, ..Net::new(&site) };
            let (client, _) = run(&net, nature.clone(), &[closing(10_000)]);
            assert_eq!(bodies(&client.stream), [content(10_000)]);
            // From the second retransmission on the replica knows that the path is narrow.
            assert!(client.is_done() && client.retransmissions <= 2, "{}", client.retransmissions);
            if stamps {
                let net = Net { path: 700, told: Some(700), ..Net::new(&site) };
                let (client, _) = run(&net, nature, &[closing(5000)]);
                assert_eq!(bodies(&client.stream), [content(5000)]);
                assert_eq!(client.retransmissions, 0);
            }
        }
    }
}

/// The window has room for the answer without its FIN, or exactly for both.
#[test]
fn window_of_exactly_one_answer_completes() {
    let site = site();
    for stamps in [true, false] {
        let nature = Nature { stamps, shift: Some(0), ..Nature::default() };
        let length = run(&Net::new(&site), nature.clone(), &[closing(2000)]).0.stream.len() as u32;
        for buffer in length - 1..length + 2 {
            let (client, _) = run(&Net::new(&site), Nature { buffer, ..nature.clone() }, &[closing(2000)]);
            assert_eq!(bodies(&client.stream), [content(2000)]);
            assert!(client.is_done() && client.had_fin(), "{buffer}");
        }
    }
}

#[test]
fn paused_reader_gets_the_rest_when_it_resumes() {
    let site = site();
    for stamps in [true, false] {
        let nature = Nature { stamps, buffer: 4000, ..Nature::default() };
        let mut client = Client::new(nature, 4000, 9, &[closing(10_000)]);
        client.stalled = true;
        let net = Net { resume: Some(30_000), ..Net::new(&site) };
        let outcome = net.run(&mut client, &mut fine, &mut |_| 0);
        assert_eq!(bodies(&client.stream), [content(10_000)]);
        assert!(client.is_done() && outcome.milliseconds > 30_000);
    }
}

#[test]
fn request_in_pieces_is_answered_or_adopted() {
    let site = site();
    // A request longer than a segment: only its request line counts, and the connection ends.
    let long = get(5000, &format!("Range: bytes=1-2\r\nCookie: {}\r\n", "c".repeat(3000)));
    for stamps in [true, false] {
        let nature = Nature { stamps, segment: if stamps { 1448 } else { 1460 }, ..Nature::default() };
        let (client, outcome) = run(&Net::new(&site), nature, std::slice::from_ref(&long));
        assert_eq!(bodies(&client.stream), [content(5000)], "{stamps} {:?}", outcome.kernel);
        assert!(client.is_done() && client.had_fin());
        // A request shorter than a segment that is sent in two pieces: it may be divided elsewhere
        // when it is repeated.
        let nature = Nature { stamps, segment: 30, ..Nature::default() };
        let (client, outcome) = run(&Net::new(&site), nature, &[closing(100)]);
        assert!(client.stream.is_empty() && outcome.adopted[0].0 == Cause::Split);
    }
}

#[test]
fn unlisted_request_goes_to_the_kernel() {
    let site = site();
    for (text, cause) in [
        ("POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", Cause::Request),
        ("GET /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx", Cause::Request),
        ("\u{16}\u{3}\u{1}\u{2}", Cause::Request),
        ("GET /big HTTP/1.1\r\nHost: h\r\n\r\n", Cause::Object),
    ] {
        for stamps in [true, false] {
            let nature = Nature { stamps, ..Nature::default() };
            let (client, outcome) = run(&Net::new(&site), nature, &[text.into()]);
            assert!(client.stream.is_empty() && outcome.adopted[0].0 == cause, "{text}");
            assert!(outcome.kernel.is_empty(), "{text}");
        }
    }
}

/// A kernel socket never gets options that the client's SYN did not offer.
#[test]
fn kernel_takes_over_the_negotiated_options() {
    let site = site();
    let put = b"PUT /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx".to_vec();
    for (stamps, mss, shift, want) in [
        (true, 1460, Some(7), (1460, Some(7))),
        (true, 9000, Some(14), (1460, Some(11))),
        (true, 1439, Some(3), (1220, Some(2))),
        (true, 536, None, (536, Some(0))),
        (false, 1460, Some(7), (1024, None)),
    ] {
        let nature = Nature { stamps, mss, shift, ..Nature::default() };
        let (_, outcome) = run(&Net::new(&site), nature, std::slice::from_ref(&put));
        let (cause, handshake) = outcome.adopted[0];
        assert_eq!(
            (cause, handshake.mss, handshake.scale.map(|s| s.shift())),
            (Cause::Request, want.0, want.1)
        );
    }
}

/// The kernel takes over a request that it must answer, after the end of a stateless answer.
#[test]
fn kernel_takes_over_behind_a_stateless_answer() {
    let site = site();
    let put = b"PUT /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx".to_vec();
    let big = b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n".to_vec();
    for (later, cause) in [(put, Cause::Request), (big, Cause::Object)] {
        let first = get(2000, "");
        let (client, outcome) = run(&Net::new(&site), Nature::default(), &[first.clone(), later]);
        assert_eq!(bodies(&client.stream), [content(2000)], "all of the first and nothing of the second");
        assert!(outcome.kernel.is_empty());
        for (why, handshake) in outcome.adopted {
            assert_eq!((why, handshake.start as usize), (cause, client.stream.len()));
            // The sequence number of the first byte that the client sends.
            assert_eq!(handshake.receive_next, 0xffff_fe01u32.wrapping_add(first.len() as u32));
            assert_eq!(handshake.answer, None);
        }
    }
}

/// The kernel takes over a pipelining client with the first answer, if other requests follow its
/// request in the same segment or in the next.
#[test]
fn pipelining_client_is_offered_to_the_kernel() {
    let site = site();
    let requests: Vec<_> = [2000, 100, 5000].iter().map(|n| get(*n, "")).collect();
    let pipelined = Nature { pipelines: true, ..Nature::default() };
    // All requests in one segment, or one segment each, which only a replica with the first answer
    // in its ring can recognise.
    for (requests, remembers) in [(vec![requests.concat()], false), (requests.clone(), true)] {
        let net = Net::new(&site);
        let net = if remembers { net.remembering(1) } else { net };
        let (_, outcome) = run(&net, pipelined.clone(), &requests);
        assert!(outcome.handed.iter().any(|handshake| handshake.start == 0), "{remembers}");
        for handshake in outcome.handed.iter().filter(|handshake| handshake.start == 0) {
            let first = get(2000, "").len() as u32;
            assert_eq!(handshake.receive_next, 0xffff_fe01u32.wrapping_add(first));
        }
    }
    // Not pipelining: waiting for each answer, empty lines after a request, and data after a
    // closing request.
    for requests in [
        vec![get(2000, ""), get(100, "")],
        vec![[get(2000, ""), b"\r\n".to_vec()].concat()],
        vec![[closing(2000), get(100, "")].concat()],
    ] {
        let (_, outcome) = run(&Net::new(&site).remembering(1), Nature::default(), &requests);
        assert!(outcome.handed.is_empty());
    }
}

/// Without timestamps eight bits identify the first segment. Data that matches by chance and does
/// not look like a request is dropped, since the kernel would begin in the middle of a stream.
#[test]
fn kernel_adopts_no_stream_from_its_middle() {
    let site = site();
    let (src, dst): (SocketAddr, SocketAddr) =
        ("10.0.0.1:4000".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
    let isn = Flow::new(src, dst).bare(site.keys.current, 1000);
    let told = |seq: u32, payload: &[u8]| {
        let flags = TcpFlags(TcpFlags::ACK);
        let header = Header {
            src,
            dst,
            seq,
            ack: isn.wrapping_add(1),
            flags,
            window: 9000,
            options: Options::default(),
        };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(payload);
        header.finish(&mut packet, payload.len()).unwrap();
        match site.judge(&Segment::parse(&packet).unwrap(), 1000, None) {
            Verdict::Adopt(..) => "adopted",
            Verdict::Kernel(_) => "refused",
            Verdict::Drop(Reason::Early) => "dropped",
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(told(1000, b"POST / HTTP/1.1\r\n"), "adopted");
    assert_eq!(told(1000, b"\x16\x03\x01"), "adopted");
    assert_eq!(told(1000 + 1460, b"POST / HTTP/1.1\r\n"), "dropped");
    assert_eq!(told(1000 + 512, b"data in the middle of an upload"), "refused");
}

#[test]
fn other_table_does_not_finish_an_answer() {
    let one = site();
    let other = Site {
        table: Table::new(vec![("5000".into(), crate::support::object(4000))], false).unwrap().into(),
        ..one.clone()
    };
    assert_ne!(one.table.version() & 3, other.table.version() & 3);
    let net = Net { replicas: vec![&one, &other], ..Net::new(&one) };
    let mut client = Client::new(Nature::default(), 4000, 9, &[closing(5000)]);
    // The second segment of the answer is lost; the repeated request reaches the other replica, and
    // then the first one again.
    let mut fate = |way, n| if (way, n) == (Way::ToClient, 2) { Fate::Lost } else { Fate::Arrives };
    let mut asked = 0;
    net.run(&mut client, &mut fate, &mut |n| {
        asked = n;
        usize::from((5..9).contains(&n))
    });
    assert_eq!(bodies(&client.stream), [content(5000)]);
    assert!(client.is_done() && client.retransmissions >= 2, "{} {asked}", client.retransmissions);
}

#[test]
fn keys_change_under_a_connection() {
    let old = site();
    let mut new = old.clone();
    new.keys.others[0] = Some(old.keys.current);
    new.keys.current = rivulet_plain::CookieKey::new(*b"the next");
    for stamps in [true, false] {
        let net = Net { replicas: vec![&old, &new], ..Net::new(&old) };
        let mut client = Client::new(Nature { stamps, ..Nature::default() }, 4000, 9, &[closing(5000)]);
        net.run(&mut client, &mut fine, &mut |n| usize::from(n > 1));
        assert_eq!(bodies(&client.stream), [content(5000)]);
        assert!(client.is_done());
    }
}

#[test]
fn a_syn_ack_is_good_for_minutes() {
    let site = site();
    for (later, answered) in [(0, true), (14, true), (16, false), (30, false), (100_000, false)] {
        let early = Net { minute: 1000, ..Net::new(&site) };
        let mut client = Client::new(Nature::default(), 4000, 9, &[closing(100)]);
        let late = Site { ..site.clone() };
        // The clock of the second replica, which judges the request, is ahead.
        let packets = std::cell::RefCell::new(Vec::new());
        let outcome = early.run_with(&mut client, &mut fine, &mut |packet, net, now, outcome| {
            packets.borrow_mut().push(packet.len());
            let ahead = Net { minute: 1000 + later, ..Net::new(&late) };
            let net = if packets.borrow().len() > 1 { &ahead } else { net };
            net.answer(&late, packet, now, outcome)
        });
        assert_eq!(client.is_done(), answered, "{later} {outcome:?}");
    }
}
