//! Signals of network and application beside data: ECN marks, WAIT, NOT_MINE. Each test names the
//! defect that makes it fail.

use crate::support::{Way, World, expected};
use rivulet_packet::{Ecn, RequestClass, Segment, checksum};
use rivulet_transport::client::{Config, ConnectionError, Event};
use rivulet_transport::server::{Answer, Policy};

const RTT: u64 = 20_000;

fn complete(size: u64) -> impl FnMut(&World) -> bool {
    move |w| w.got(0).len() as u64 >= size
}

/// Sets CE in an IPv4 header that is ECN-capable, as a congested router does.
fn mark(packet: &mut [u8]) -> bool {
    let capable = matches!(packet[1] & 3, 1 | 2);
    if capable {
        let old = [packet[0], packet[1]];
        packet[1] |= 3;
        let sum = checksum::replace(u16::from_be_bytes([packet[10], packet[11]]), &old, &packet[..2]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    capable
}

/// Windows (startCwnd) of the received continuations, in order and without repeats. `marked`
/// selects the data packets that get a mark.
fn windows(policy: Policy, mut marked: impl FnMut(u32) -> bool) -> (Vec<u16>, u64) {
    let mut w = World::new(Config { receive_buffer: 120_000, ..Config::default() });
    w.policy = policy;
    let size = 1_500_000;
    w.write(0, format!("{size}\n").as_bytes());
    let (mut down, mut seen) = (0, Vec::new());
    let done = w.run_damaging(
        60_000_000,
        |way, packet| {
            if way == Way::Down {
                down += 1;
                if marked(down) {
                    mark(packet);
                }
            } else {
                // The presented continuation shows its piece.
                let segment = Segment::parse_packet(packet).unwrap();
                let request = segment.request().unwrap();
                let start = request.continuation.map(|c| c.fields.start_cwnd);
                if let Some(start) = start.filter(|_| request.class == RequestClass::Normal)
                    && seen.last() != Some(&start)
                {
                    seen.push(start);
                }
            }
            vec![RTT / 2]
        },
        complete(size),
    );
    assert!(done && w.got(0) == expected(size));
    let s = w.client.statistics();
    assert_eq!((s.declared, s.timeouts), (0, 0), "a mark is no loss: {s:?}");
    assert!(w.refusals.is_empty(), "{:?}", w.refusals);
    (seen, s.requests)
}

/// Fails without the mark entry in the proof, or with a reaction to every mark: RFC 3168 section
/// 6.1.2 reduces the window once per window.
#[test]
fn marks_halve_the_window_once_a_window() {
    let (unmarked, _) = windows(Policy::default(), |_| false);
    assert_eq!(unmarked, [10], "without a mark slow start goes on");
    let (once, _) = windows(Policy::default(), |n| n == 200);
    assert_eq!(once.len(), 2, "{once:?}");
    // Ten marks in the window of the first one.
    let (often, _) = windows(Policy::default(), |n| (200..210).contains(&n));
    assert_eq!(often, once);
    // A second mark some windows later halves the window again, from its grown size.
    let (twice, _) = windows(Policy::default(), |n| n == 200 || n == 800);
    assert_eq!((twice.len(), twice[1]), (3, once[1]), "{twice:?}");
    assert!(twice[2] < twice[1] && twice[2] > twice[1] / 3, "{twice:?}");
}

/// Fails if an old mark hides a mark of the next window, so that only some of its trickles react,
/// or if the answer to a SYN can count as a congested window.
#[test]
fn marks_of_window_after_window() {
    for first in 1..20 {
        for last in (first..50).step_by(4) {
            windows(Policy::default(), |n| (first..=last).contains(&n));
        }
    }
    for (seed, share) in (1..60u32).zip((1..=10).cycle()) {
        windows(Policy::default(), |n| {
            (n ^ seed << 8).wrapping_mul(0x9e37_79b9) >> 16 < 0x10000 / 12 * share
        });
    }
}

/// Fails if requests that wait long at the server are not marked, if this requires ECN on the path,
/// or if small windows are reduced.
#[test]
fn a_queue_at_the_server_halves_large_windows() {
    for ecn in [true, false] {
        let (windows, _) = windows(Policy { ecn, congested: true, ..Policy::default() }, |_| false);
        // 6 and 7 become 3 repeatedly.
        assert_eq!(windows, [10, 5, 3]);
    }
}

/// Fails if a server sends ECN-capable data although ECN is off for the service.
#[test]
fn without_ecn_nothing_can_be_marked() {
    let (seen, _) = windows(Policy { ecn: false, ..Policy::default() }, |n| (200..210).contains(&n));
    assert_eq!(seen, [10]);
}

/// Fails without the seal of a mark on a request: input is ECN-capable, and the response must
/// report the mark.
#[test]
fn a_mark_on_a_request_with_input_is_answered_with_a_smaller_window() {
    let mut w = World::new(Config::default());
    let sizes = [400_000u64, 400_000, 400_000];
    let mut marked = 0;
    let mut halved = false;
    let mut fate = |way, packet: &mut Vec<u8>| {
        if way == Way::Up {
            let segment = Segment::parse_packet(packet).unwrap();
            let request = segment.request().unwrap();
            let normal = request.class == RequestClass::Normal;
            let start = request.continuation.map(|c| c.fields.start_cwnd);
            let capable = request.input.is_some() && normal;
            assert!(!capable || segment.ecn == Ecn::Ect0);
            if capable && marked == 0 {
                marked += usize::from(mark(packet));
            }
            halved |= marked > 0 && normal && start != Some(10);
        }
        vec![RTT / 2]
    };
    let mut total = 0;
    for size in sizes {
        w.write(0, format!("{size}\n").as_bytes());
        total += size as usize;
        assert!(
            w.run_damaging(60_000_000, &mut fate, |w| w.got(0).len() >= total),
            "{:?}",
            w.client.statistics()
        );
    }
    assert_eq!(marked, 1);
    assert!(halved);
}

/// Fails if WAIT does not pause its continuation (a flood of requests), or counts as data (missing
/// bytes).
#[test]
fn want_is_repeated_after_the_wait() {
    let mut w = World::new(Config::default());
    let size = 200_000;
    let ready = w.now + 2_000_000;
    w.instead = Some(Box::new(move |now, _| (now < ready).then_some(Answer::Wait { milliseconds: 100 })));
    w.write(0, format!("{size}\n").as_bytes());
    let mut asked = 0;
    let fate = |way, packet: &[u8]| {
        asked += u32::from(
            way == Way::Up && Segment::parse_packet(packet).unwrap().request().unwrap().want_count() > 0,
        );
        vec![RTT / 2]
    };
    assert!(
        w.run(ready - 100_000, fate, complete(size)) || w.got(0).len() < 2000,
        "nothing but the first bytes"
    );
    // Twenty pauses of 0.1 s, with at most 140 packets each; without a pause there would be as many
    // in each round trip.
    assert!((10..=20 * 140).contains(&asked), "{asked} requests with wants while it was not ready");
    assert!(w.run(ready + 2_000_000, |_, _| vec![RTT / 2], complete(size)), "{:?}", w.client.statistics());
    assert!(w.got(0) == expected(size));
}

/// Fails if a want is not repeated after NOT_MINE, or if refusals count although other replicas
/// send data.
#[test]
fn a_replica_without_the_content_sends_the_client_elsewhere() {
    let mut w = World::new(Config::default());
    let size = 300_000;
    let mut n = 0;
    // Every third want reaches a replica without the content.
    w.instead = Some(Box::new(move |_, _| {
        n += 1;
        (n % 3 == 0).then_some(Answer::NotMine { code: 7 })
    }));
    w.write(0, format!("{size}\n").as_bytes());
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], complete(size)), "{:?}", w.events);
    assert!(w.got(0) == expected(size));
}

/// Fails without the count of refusals: no replica has the content, so the application must get an
/// error, and no wrong bytes.
#[test]
fn content_missing_at_all_replicas_is_an_error() {
    let mut w = World::new(Config::default());
    w.instead = Some(Box::new(|_, _| Some(Answer::NotMine { code: 7 })));
    w.write(0, b"300000\n");
    let failed = |w: &World| w.events.contains(&Event::Failed(ConnectionError::NotMine));
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], failed), "{:?}", w.events);
    assert!(w.now < 5_000_000, "soon: {}", w.now);
    assert!(expected(300_000).starts_with(w.got(0)));
}
