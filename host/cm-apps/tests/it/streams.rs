//! Streams over the real kernel's calls, by threads without privileges. Loopback limits no window,
//! so tests stop after counts.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use rivulet_cm_apps::audio::Drop;
use rivulet_cm_apps::layers::{Clock, Layers};
use rivulet_cm_apps::receive::{Options, Stream};
use rivulet_cm_apps::server::Content;
use rivulet_cm_apps::wire::{Cookie, Feedback, Message};
use rivulet_pktio::testing::{PATIENCE, eventually};

use crate::rig::ALICE;
use crate::stage::{DATAGRAM_BYTES, Hand, Lines, Stage};

fn layers() -> Layers {
    "250k,500k,1M,2M".parse().unwrap()
}

fn alf() -> Content {
    Content::Alf(layers())
}

fn numbers(packets: &[(u64, u8)]) -> Vec<u64> {
    packets.iter().map(|(number, _)| *number).collect()
}

/// Receives until `enough` accepts the receiver's lines, and returns them.
fn receive(from: SocketAddr, every: u16, delay_ms: u16, enough: impl Fn(&Lines) -> bool) -> Lines {
    let lines = Lines::default();
    let options = Options { from, feedback: Feedback { every, delay_ms }, forward: None };
    let mut stream = Stream::new(&options, lines.journal()).unwrap();
    let mut turns = 0;
    let ended = stream.run(|| {
        turns += 1;
        assert!(turns < 1_000_000, "never enough");
        enough(&lines)
    });
    assert!(ended.unwrap(), "nothing arrived");
    lines
}

fn count(line: &serde_json::Value, field: &str) -> u64 {
    line[field].as_u64().unwrap_or_else(|| panic!("{field} of {line}"))
}

fn steps(lines: &Lines) -> Vec<(Option<u64>, u64)> {
    lines.of("layer").iter().map(|line| (line["from"].as_u64(), count(line, "to"))).collect()
}

#[test]
fn by_request_it_climbs_from_the_lowest_layer_and_both_ends_agree() {
    let Some(mut stage) = Stage::new() else { return };
    let lines = stage.lines.clone();
    let seen = stage.serve(alf, |at| {
        let seen = receive(at, 1, 0, |lines| lines.of("arrived").len() >= 5);
        eventually("the stream ends", || !lines.of("close").is_empty());
        seen
    });
    let (open, close, end) = (stage.lines.one("open"), stage.lines.one("close"), seen.one("end"));
    assert_eq!((count(&open, "octets"), count(&open, "every")), (u64::from(DATAGRAM_BYTES), 1));
    assert_eq!(close["why"], "the receiver ends");
    let sum = |line: &serde_json::Value| {
        line["layers"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>()
    };
    let (sent, arrived) = (sum(&close), count(&end, "packets"));
    assert_eq!(sum(&end), arrived);
    assert_eq!(count(&close, "octets"), sent * u64::from(DATAGRAM_BYTES));
    assert_eq!(count(&end, "octets"), arrived * u64::from(DATAGRAM_BYTES));
    assert!(arrived + count(&end, "missing") <= sent);
    // The sender counts as lost only what the receiver reported as missing.
    assert!(count(&close, "lost") <= count(&end, "missing"), "{close} {end}");
    let (left, came) = (steps(&stage.lines), steps(&seen));
    assert_eq!(left[0], (None, 0), "nothing is known at first");
    assert_eq!(left[1], (Some(0), 3), "loopback takes all layers");
    assert_eq!(came[..2], left[..2], "in the order in which they were sent");
    assert_eq!(count(&close, "switches"), left.len() as u64 - 1);
}

#[test]
fn by_rate_callback_a_period_at_a_time() {
    let Some(mut stage) = Stage::new() else { return };
    let clock = Clock { period: 50_000_000, ..Clock::default() };
    let content = move || Content::Clocked(layers(), clock);
    let seen = stage.serve(content, |at| receive(at, 1, 0, |lines| lines.of("layer").len() >= 2));
    assert_eq!(steps(&seen)[..2], [(None, 0), (Some(0), 3)]);
    let close = stage.lines.one("close");
    // The first period used the lowest layer: of its 1,562 bytes one datagram is sent, and the rest
    // waits.
    assert_eq!(close["layers"][0], 1, "{close}");
    assert_eq!((count(&close, "lost"), close["layers"][1].as_u64()), (0, Some(0)));
}

#[test]
fn late_report_about_a_window_counts_like_one_per_packet() {
    let Some(mut stage) = Stage::new() else { return };
    let seen = stage.serve(alf, |at| {
        let hand = Hand::admitted(at, 500, 2000);
        let first = numbers(&hand.packets(10));
        hand.report(9, 10);
        // The window grows by what arrived: from 10 packets to 20.
        let second = numbers(&hand.packets(20));
        let alike = hand.packets(0);
        hand.report(29, 30);
        let third = hand.packets(40);
        (first, second, alike, third)
    });
    assert_eq!(seen.0, (0..10).collect::<Vec<_>>());
    assert_eq!(seen.1, (10..30).collect::<Vec<_>>());
    assert_eq!(numbers(&seen.3), (30..70).collect::<Vec<_>>());
    let close = stage.lines.one("close");
    assert_eq!((count(&close, "reports"), count(&close, "octets")), (2, 70 * u64::from(DATAGRAM_BYTES)));
}

#[test]
fn losses_halve_the_window_and_lower_layers_leave() {
    let Some(mut stage) = Stage::new() else { return };
    stage.serve(alf, |at| {
        let hand = Hand::admitted(at, 1, 0);
        hand.packets(10);
        hand.report(9, 10);
        hand.packets(20);
        // One of the twenty is missing: the window is halved to 10 packets, all of them free.
        hand.report(29, 29);
        assert_eq!(numbers(&hand.packets(10)), (30..40).collect::<Vec<_>>());
    });
    assert_eq!(count(&stage.lines.one("close"), "lost"), 1);
}

#[test]
fn receiver_without_feedback_times_out() {
    let Some(mut stage) = Stage::new() else { return };
    let lines = stage.lines.clone();
    stage.serve(alf, |at| {
        let hand = Hand::admitted(at, 1, 0);
        assert_eq!(numbers(&hand.packets(10)), (0..10).collect::<Vec<_>>());
        // One packet probes.
        assert_eq!(numbers(&hand.packets(1)), [10]);
        assert_eq!(count(&lines.of("silence")[0], "octets"), 10 * u64::from(DATAGRAM_BYTES));
        hand.report(10, 1);
        assert_eq!(numbers(&hand.packets(2)), [11, 12]);
        eventually("the stream ends", || !lines.of("close").is_empty());
    });
    assert_eq!(stage.lines.one("close")["why"], "the receiver does not answer");
}

#[test]
fn forged_addresses_get_no_stream_and_foreign_messages_are_ignored() {
    let Some(mut stage) = Stage::new() else { return };
    stage.serve(alf, |at| {
        let mut forger = Hand::new(at);
        for n in 0..20 {
            forger.cookie = [n; 16];
            forger.hello(1, 0);
            let answered = forger.receive(|message, bytes| (matches!(message, Message::Cookie(_)), bytes));
            assert_eq!(answered, (true, 20), "less than what was asked by");
        }
        let hand = Hand::admitted(at, 1, 0);
        hand.packets(10);
        // Another address's cookie and a malformed message have no effect.
        let real = hand.cookie;
        forger.cookie = real;
        forger.hello(1, 0);
        assert!(forger.receive(|message, _| matches!(message, Message::Cookie(other) if other != real)));
        forger.send(&Message::Bye(real));
        forger.report(9, 10);
        let mut wrong = hand;
        wrong.cookie = Cookie::default();
        wrong.report(9, 10);
        wrong.send(&Message::Bye(wrong.cookie));
        for noise in [&[][..], b"x", &[0xca; 60], &[0xca, 4]] {
            wrong.socket.send(noise).unwrap();
        }
        wrong.cookie = real;
        wrong.report(9, 10);
        assert_eq!(numbers(&wrong.packets(20)), (10..30).collect::<Vec<_>>());
    });
    assert_eq!(stage.lines.of("open").len(), 1);
    let close = stage.lines.one("close");
    assert_eq!((count(&close, "reports"), close["why"].as_str()), (1, Some("the server ends")));
}

#[test]
fn receivers_beyond_the_most_are_not_served_until_one_ends() {
    let Some(mut stage) = Stage::new() else { return };
    stage.serve(alf, |at| {
        let first = Hand::admitted(at, 1, 0);
        first.packets(5);
        let _second = Hand::admitted(at, 1, 0);
        let third = Hand::admitted(at, 1, 0);
        third.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        assert!(third.socket.recv(&mut [0; 2000]).is_err());
        first.send(&Message::Bye(first.cookie));
        third.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        third.hello(1, 0);
        third.packets(1);
    });
    assert_eq!(stage.lines.of("open").len(), 3);
}

#[test]
fn audio_is_forwarded_unchanged() {
    let Some(mut stage) = Stage::new() else { return };
    let lines = stage.lines.clone();
    let source = stage.rig.as_user(ALICE, || UdpSocket::bind("127.0.0.1:0").unwrap());
    let input = stage.rig.as_user(ALICE, || UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = input.local_addr().unwrap();
    let content = move || Content::Audio { input, buffer: 8, drop: Drop::Head };
    let (played, end) = stage.serve(content, |at| {
        let player = UdpSocket::bind("127.0.0.1:0").unwrap();
        player.set_nonblocking(true).unwrap();
        let seen = Lines::default();
        let feedback = Feedback { every: 1, delay_ms: 0 };
        let options = Options { from: at, feedback, forward: player.local_addr().ok() };
        let mut stream = Stream::new(&options, seen.journal()).unwrap();
        let (mut sent, mut played) = (0u8, vec![]);
        let ended = stream.run(|| {
            // One datagram at a time, so that the buffer drops none.
            if played.len() == usize::from(sent) && sent < 50 && !lines.of("open").is_empty() {
                source.send_to(&vec![sent; 100 + usize::from(sent)], to).unwrap();
                sent += 1;
            }
            let mut room = [0; 2000];
            while let Ok(bytes) = player.recv(&mut room) {
                played.push((bytes, room[0], room[bytes - 1]));
            }
            played.len() == 50
        });
        assert!(ended.unwrap());
        (played, seen.one("end"))
    });
    assert_eq!(played, (0..50u8).map(|n| (100 + usize::from(n), n, n)).collect::<Vec<_>>());
    assert_eq!((count(&end, "packets"), count(&end, "missing")), (50, 0));
    let close = stage.lines.one("close");
    assert_eq!(close["layers"][0], 50);
    assert_eq!(close["dropped"], serde_json::json!({"policed": 0, "buffer": 0, "large": 0}));
}
