//! Streams of one connection, which replace separate connections to one service: they share one
//! window fairly, and no stream waits for another or ends with it.

use crate::support::{self, Random, Way, World, expected};
use rivulet_packet::{RequestClass, Segment};
use rivulet_transport::Time;
use rivulet_transport::client::{Config, ConnectionError, Event};
use rivulet_transport::server::Answer;

const RTT: u64 = 20_000;

/// Opens a stream and requests this many bytes on it.
fn ask(w: &mut World, size: u64) -> u16 {
    let stream = w.client.stream().unwrap();
    w.write(stream, format!("{size}\n").as_bytes());
    stream
}

/// The class of a request, and the stream that its input belongs to.
fn request(packet: &[u8]) -> (RequestClass, Option<u16>) {
    let segment = Segment::parse_packet(packet).unwrap();
    let request = segment.request().unwrap();
    (request.class, request.input.map(|input| input.stream))
}

#[test]
fn streams_arrive_complete_in_both_directions_despite_loss() {
    for (seed, loss) in [(1, 0.0), (2, 0.02), (3, 0.1)] {
        let mut w = World::new(Config::default());
        let mut random = Random(seed);
        let sizes: Vec<u64> = (0..40).map(|i| 1 + i * i * 97).collect();
        w.write(0, format!("{}\n", sizes[0]).as_bytes());
        let streams: Vec<u16> = sizes[1..].iter().map(|size| ask(&mut w, *size)).collect();
        let mut fate =
            |_, _: &[u8]| if random.chance(loss) { vec![] } else { vec![RTT / 2 + random.below(2000)] };
        // Each stream requests more later, when the connection has long been open.
        let first =
            |w: &World| streams.iter().zip(&sizes[1..]).all(|(s, size)| w.got(*s).len() as u64 == *size);
        assert!(w.run(120_000_000, &mut fate, first), "{:?}", w.client.statistics());
        for stream in &streams {
            w.write(*stream, b"2000\n");
        }
        let both = |w: &World| {
            streams.iter().zip(&sizes[1..]).all(|(s, size)| w.got(*s).len() as u64 == size + 2000)
        };
        assert!(w.run(120_000_000, &mut fate, both), "{:?}", w.client.statistics());
        assert!(w.got(0) == expected(sizes[0]));
        for (stream, size) in streams.iter().zip(&sizes[1..]) {
            assert!(w.got(*stream) == [expected(*size), expected(2000)].concat(), "stream {stream}");
        }
    }
}

/// Fails if turns are assigned by position: the turns of idle streams would go to their neighbour.
#[test]
fn active_streams_get_equal_shares_beside_idle_ones() {
    let mut w = World::new(Config::default());
    w.write(0, b"10\n");
    let size = 2_000_000;
    let streams: Vec<u16> = (0..12)
        .map(|i| ask(&mut w, if i % 4 == 3 { size } else { 10 }))
        .filter(|stream| stream % 4 == 0)
        .collect();
    assert_eq!(streams.len(), 3);
    let some = |w: &World| streams.iter().any(|s| w.got(*s).len() > 1_000_000);
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], some));
    let got: Vec<usize> = streams.iter().map(|s| w.got(*s).len()).collect();
    let (least, most) = (got.iter().min().unwrap(), got.iter().max().unwrap());
    assert!(most - least < 60_000, "{got:?}");
}

/// Fails if the first stream with input always goes first.
#[test]
fn an_upload_keeps_no_other_input_waiting() {
    let mut w = World::new(Config::default());
    // Requests of 300 digits each, most of them zeros.
    w.write(0, format!("{:0>300}\n", 5).repeat(600).as_bytes());
    assert!(!w.run(w.now + 4 * RTT, |_, _| vec![RTT / 2], |_| false));
    let stream = ask(&mut w, 500);
    let mut uploads = 0;
    let fate = |way, packet: &[u8]| {
        uploads += u32::from(way == Way::Up && request(packet).1 == Some(0));
        vec![RTT / 2]
    };
    assert!(w.run(60_000_000, fate, |w| w.got(stream).len() == 500));
    // The upload gets one continuation per round trip, so two packets may leave before the first
    // response.
    assert!(uploads <= 3 && w.client.unconsumed(0) > 100_000, "{uploads} {}", w.client.unconsumed(0));
    assert!(w.run(600_000_000, |_, _| vec![RTT / 2], |w| w.got(0).len() == 3000));
}

#[test]
fn unread_stream_is_bounded_and_blocks_no_other() {
    let mut w = World::new(Config { receive_buffer: 50_000, ..Config::default() });
    w.write(0, b"10\n");
    let stuck = ask(&mut w, 3_000_000);
    w.unread = Some(stuck);
    let streams: Vec<u16> = (0..5).map(|_| ask(&mut w, 1_000_000)).collect();
    let done = |w: &World| streams.iter().all(|s| w.got(*s).len() == 1_000_000);
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], done), "{:?}", w.client.statistics());
    assert!(w.client.buffered() <= 50_000 + (64 << 10), "{}", w.client.buffered());
    assert_eq!(w.client.statistics().timeouts, 0);
    w.unread = None;
    w.read(stuck);
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], |w| w.got(stuck).len() == 3_000_000));
    assert!(w.got(stuck) == expected(3_000_000));
}

/// Fails if an error on one stream ends the connection.
#[test]
fn a_stream_that_fails_ends_no_other() {
    let error = Answer::Error { code: 400, message: "no" };
    let told = ConnectionError::Refused { code: 400, message: "no".into() };
    for (answer, why) in [(Answer::NotMine { code: 7 }, ConnectionError::NotMine), (error, told)] {
        let mut w = World::new(Config::default());
        w.instead = Some(Box::new(move |_, want| (want.offset >> 48 == 2).then_some(answer)));
        w.write(0, b"300000\n");
        let streams: Vec<u16> = (0..4).map(|_| ask(&mut w, 300_000)).collect();
        let good = [0, streams[0], streams[2], streams[3]];
        let done = |w: &World| good.iter().all(|s| w.got(*s).len() == 300_000);
        let mut random = Random(3);
        let fate = |_, _: &[u8]| if random.chance(0.02) { vec![] } else { vec![RTT / 2] };
        assert!(w.run(60_000_000, fate, done), "{:?}", w.events);
        assert!(good.iter().all(|s| w.got(*s) == expected(300_000)));
        let failures: Vec<&Event> =
            w.events.iter().filter(|e| matches!(e, Event::StreamFailed(..) | Event::Failed(_))).collect();
        assert_eq!(failures, [&Event::StreamFailed(2, why)], "once, and the connection did not");
        assert!(w.client.stream().is_ok());
    }
}

#[test]
fn the_last_stream_that_fails_ends_the_connection() {
    let mut w = World::new(Config::default());
    w.instead = Some(Box::new(|_, _| Some(Answer::Error { code: 400, message: "no" })));
    let stream = ask(&mut w, 300_000);
    w.client.forget(0);
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], |w| w.client.is_over()), "{:?}", w.events);
    assert!(matches!(w.events.last(), Some(Event::Failed(ConnectionError::Refused { code: 400, .. }))));
    assert_eq!(w.client.unconsumed(stream), 0);
}

#[test]
fn forgotten_streams_leave_their_share_to_others() {
    let mut w = World::new(Config::default());
    w.write(0, b"3000000\n");
    let stream = ask(&mut w, 1_000_000);
    let begun = |w: &World| w.got(stream).len() > 200_000 && w.got(0).len() > 200_000;
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], begun));
    // Data in flight for the forgotten stream is discarded; its trickles serve the other streams.
    w.client.forget(0);
    let before = w.got(0).len();
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], |w| w.got(stream).len() == 1_000_000));
    let s = w.client.statistics();
    assert_eq!((w.got(0).len(), s.timeouts, s.declared), (before, 0, 0));
}

/// Nine fetches of 128 kB, half a second apart, as in Figure 7 of the Congestion Manager's paper;
/// returns the round trips of each.
fn fetches(pause: u64) -> (Vec<u64>, World) {
    const ROUND: u64 = 75_000;
    let mut w = World::new(Config::default());
    let mut took = vec![];
    for n in 0..9 {
        let start = w.now;
        let stream = if n == 0 { 0 } else { w.client.stream().unwrap() };
        w.write(stream, b"131072\n");
        assert!(w.run(60_000_000, |_, _| vec![ROUND / 2], |w| w.got(stream).len() == 131_072));
        assert!(w.got(stream) == expected(131_072));
        took.push((w.now - start).div_ceil(ROUND));
        w.client.forget(stream);
        let until = w.now + pause;
        assert!(!w.run(until, |_, _| vec![ROUND / 2], |_| false));
        w.now = until;
    }
    (took, w)
}

/// Fails if a window is discarded after a timeout of 200 ms.
#[test]
fn later_fetches_take_three_round_trips() {
    let (took, w) = fetches(500_000);
    assert_eq!(took[0], 5, "by the initial window");
    assert!(took[1..].iter().all(|n| *n <= 3), "{took:?}");
    let s = w.client.statistics();
    assert_eq!((s.rekeys, s.timeouts, s.restarts, s.declared), (0, 0, 0, 0), "{s:?}");
}

#[test]
fn window_unused_for_over_a_second_restarts() {
    let (took, w) = fetches(1_200_000);
    let s = w.client.statistics();
    assert_eq!((s.rekeys, s.timeouts, s.declared), (8, 0, 0), "{s:?}");
    assert!(took[1..].iter().all(|n| *n == 4), "the restart window, and the threshold: {took:?}");
}

/// A request carries one packet of input, and an opening has one request in its first round trip.
/// Requests that start together wait for continuations.
#[test]
fn simultaneous_requests_wait_for_continuations() {
    const ROUND: u64 = 75_000;
    let rounds = |token: Option<Vec<u8>>| {
        let mut w = World::new(Config { token, ..Config::default() });
        let start = w.now;
        let streams: Vec<u16> = (0..6).map(|n| if n == 0 { 0 } else { w.client.stream().unwrap() }).collect();
        streams.iter().for_each(|stream| w.write(*stream, b"300\n"));
        let mut took = vec![0; streams.len()];
        w.run(
            60_000_000,
            |_, _| vec![ROUND / 2],
            |w| {
                for (took, stream) in took.iter_mut().zip(&streams) {
                    if *took == 0 && w.got(*stream).len() == 300 {
                        *took = (w.now - start).div_ceil(ROUND);
                    }
                }
                took.iter().all(|rounds| *rounds > 0)
            },
        );
        took
    };
    assert_eq!(rounds(None), [1, 2, 3, 3, 3, 3]);
    let (keys, client) = (support::keys(), support::CLIENT.parse::<std::net::SocketAddr>().unwrap());
    let token = rivulet_transport::address_token(&keys, 1, 1_000_000, client.ip()).unwrap();
    assert_eq!(rounds(Some(token.to_vec())), [1, 2, 2, 2, 2, 2]);
}

/// Fails if a window that was unused for a timeout is sent at once.
#[test]
fn the_first_window_after_a_pause_takes_a_round_trip() {
    const ROUND: u64 = 75_000;
    let mut w = World::new(Config::default());
    w.write(0, b"1000000\n");
    assert!(w.run(60_000_000, |_, _| vec![ROUND / 2], |w| w.got(0).len() == 1_000_000));
    let window = w.client.window();
    assert!(window > 100, "{window}");
    let until = w.now + 500_000;
    assert!(!w.run(until, |_, _| vec![ROUND / 2], |_| false));
    w.now = until;
    let start = w.now;
    let stream = ask(&mut w, 4_000_000);
    let mut sent = vec![];
    let clock = w.clock.clone();
    let fate = |way, _: &[u8]| {
        if way == Way::Up {
            sent.push(clock.get());
        }
        vec![ROUND / 2]
    };
    assert!(w.run(60_000_000, fate, |w| w.got(stream).len() > 400_000));
    assert_eq!(sent.iter().filter(|at| **at < start + ROUND).count(), 1, "the request, alone");
    // After the first response the client sends ten requests at once, and the rest of the window
    // evenly spaced over a round trip.
    let second: Vec<u64> =
        sent.iter().filter(|at| (start + ROUND..start + 2 * ROUND).contains(*at)).copied().collect();
    let at_once = second.iter().filter(|at| **at < start + ROUND + 200).count();
    assert!((9..=12).contains(&at_once), "{at_once} of {}", second.len());
    for tenth in 1..10 {
        let part = start + ROUND + tenth * ROUND / 10..start + ROUND + (tenth + 1) * ROUND / 10;
        let n = second.iter().filter(|at| part.contains(at)).count();
        assert!(n <= window / 10 + 3, "{n} of {window} in a tenth of a round trip");
    }
}

/// A plain TCP server that accepted the SYN's data has input of one stream, which takes over the
/// handshake.
#[test]
fn plain_tcp_handshake_belongs_to_the_stream_in_the_syn() {
    for written in [0, 2] {
        let mut w = World::new(Config::default());
        let other = [w.client.stream().unwrap(), w.client.stream().unwrap()];
        assert_eq!(other, [1, 2]);
        w.write(written, b"100\n");
        let mut syn = vec![];
        let lost = |_, packet: &[u8]| {
            syn = packet.to_vec();
            vec![]
        };
        w.run(w.now + 1000, lost, |_| false);
        let seq = u32::from_be_bytes(syn[24..28].try_into().unwrap());
        let answer = plain_syn_ack(&syn, seq + 1);
        w.client.handle_input(Time(w.now), &answer).unwrap();
        let told = std::iter::from_fn(|| w.client.poll()).find_map(|e| match e {
            Event::FallbackToTcp(handshake) => Some(handshake.stream),
            _ => None,
        });
        assert_eq!(told, Some(written));
    }
}

/// A SYN-ACK without our option, as the kernel's TCP answers a SYN.
fn plain_syn_ack(syn: &[u8], ack: u32) -> Vec<u8> {
    use rivulet_packet::checksum::Sum;
    let mut tcp = [syn[22..24].to_vec(), syn[20..22].to_vec()].concat();
    tcp.extend(7u32.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([0x50, 0x12, 0xff, 0xff, 0, 0, 0, 0]);
    let (from, to) = (&syn[16..20], &syn[12..16]);
    let sum =
        Sum::new().bytes(from).bytes(to).bytes(&[0, 6]).bytes(&20u16.to_be_bytes()).bytes(&tcp).finish();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(from);
    ip.extend(to);
    let sum = Sum::new().bytes(&ip).finish();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [ip, tcp].concat()
}
