//! Compares the window step by step with Reno as RFC 5681 defines it, and checks each rule with
//! numbers.

use proptest::prelude::*;

use super::*;
use crate::{MILLISECOND, SECOND};

const MTU: u64 = 1000;
const MS: Nanos = MILLISECOND;

fn window(initial: u32) -> Aimd {
    Aimd::new(Rules { initial, limit: 2 }, MTU as u32)
}

fn arrived(bytes: u64) -> Report {
    Report { flow: 1, resolved: bytes, acked: bytes, limited: true, rtt: 100 * MS, ..Report::default() }
}

fn lost(bytes: u64, congestion: Congestion) -> Report {
    Report { flow: 1, resolved: bytes, congestion, ..Report::default() }
}

/// Textbook RFC 5681 Reno: one MTU a segment, one acknowledgement a segment, counted in packets.
struct Reno {
    cwnd: u64,
    ssthresh: u64,
    credit: u64,
}

impl Reno {
    fn acknowledged(&mut self) {
        if self.cwnd < self.ssthresh {
            self.cwnd += 1;
        } else {
            self.credit += 1;
            if self.credit >= self.cwnd {
                (self.cwnd, self.credit) = (self.cwnd + 1, 0);
            }
        }
    }

    fn lost(&mut self) {
        self.ssthresh = (self.cwnd / 2).max(2);
        (self.cwnd, self.credit) = (self.ssthresh, 0);
    }

    fn timed_out(&mut self) {
        self.ssthresh = (self.cwnd / 2).max(2);
        (self.cwnd, self.credit) = (1, 0);
    }
}

/// Sends a whole window and acknowledges it packet by packet within one round trip.
fn round(w: &mut Aimd, now: Nanos) {
    let packets = w.window() / MTU;
    for _ in 0..packets {
        w.charge(now, MTU);
    }
    for _ in 0..packets {
        w.report(now + 100 * MS, &arrived(MTU));
    }
}

#[test]
fn slow_start_doubles_exactly_until_the_threshold() {
    let mut w = window(1);
    for (n, expected) in [1, 2, 4, 8, 16, 32].into_iter().enumerate() {
        assert_eq!(w.window(), expected * MTU, "round {n}");
        round(&mut w, n as Nanos * 100 * MS + 1);
    }
    w.charge(SECOND, 64 * MTU);
    w.report(SECOND, &lost(MTU, Congestion::Transient));
    assert_eq!((w.window(), w.ssthresh()), (32 * MTU, 32 * MTU));
}

/// The same losses and timeouts in the same rounds give Reno's windows, to within one packet: byte
/// counting and packet counting round differently.
#[test]
fn window_matches_reno_in_each_round() {
    let mut w = window(10);
    let mut reno = Reno { cwnd: 10, ssthresh: u64::MAX, credit: 0 };
    let mut now = 0;
    for n in 0..400 {
        let packets = w.window() / MTU;
        assert!(packets.abs_diff(reno.cwnd) <= 1, "round {n}: {} against Reno's {}", w.window(), reno.cwnd);
        // Start each round equal, so that rounding differences do not accumulate.
        reno.cwnd = packets;
        now += 100 * MS;
        for _ in 0..packets {
            w.charge(now, MTU);
        }
        now += 100 * MS;
        match n % 40 {
            6 | 25 => {
                // The first packet is lost; all others arrive after the sender has noticed the
                // loss.
                w.report(now, &lost(MTU, Congestion::Transient));
                for _ in 1..packets {
                    w.report(now, &arrived(MTU));
                }
                reno.lost();
            }
            39 => {
                now += SECOND;
                w.report(now, &lost(packets * MTU, Congestion::Persistent));
                reno.timed_out();
            }
            _ => {
                for _ in 0..packets {
                    w.report(now, &arrived(MTU));
                    reno.acknowledged();
                }
            }
        }
    }
}

#[test]
fn avoidance_adds_an_mtu_a_window_and_carries_the_remainder() {
    let mut w = window(10);
    w.charge(1, 10 * MTU);
    w.report(1, &lost(0, Congestion::Transient));
    w.report(1, &arrived(10 * MTU));
    // 5 MTUs: the report that ended the recovery covered a window, and a report adds at most one
    // MTU.
    assert_eq!(w.window(), 6 * MTU);
    for n in 1..=20 {
        w.charge(2, 700);
        w.report(2, &arrived(700));
        // 6000 bytes are acknowledged by the ninth report, with 300 left over; 7000 by the
        // nineteenth.
        assert_eq!(w.window() / MTU, 6 + u64::from(n >= 9) + u64::from(n >= 19), "report {n}");
    }
}

/// Dividing acknowledgements gains nothing (Savage et al., 1999); one that covers many bytes adds
/// at most two MTUs in slow start.
#[test]
fn window_counts_bytes_not_acknowledgements() {
    let (mut whole, mut divided) = (window(10), window(10));
    for w in [&mut whole, &mut divided] {
        w.charge(1, 10 * MTU);
    }
    whole.report(2, &arrived(MTU));
    for _ in 0..MTU {
        divided.report(2, &arrived(1));
    }
    assert_eq!((whole.window(), divided.window()), (11 * MTU, 11 * MTU));
    whole.report(2, &arrived(9 * MTU));
    assert_eq!(whole.window(), 13 * MTU);
}

#[test]
fn a_window_is_halved_once_until_all_before_is_reported() {
    for congestion in [Congestion::Transient, Congestion::Ecn] {
        let mut w = window(20);
        w.charge(1, 20 * MTU);
        for n in 0..20 {
            assert_eq!(w.recovering(), n > 0, "report {n}");
            w.report(2, &lost(MTU, congestion));
            assert_eq!((w.window(), w.ssthresh(), w.reductions()), (10 * MTU, 10 * MTU, 1), "report {n}");
        }
        w.charge(3, 10 * MTU);
        w.report(4, &lost(MTU, congestion));
        assert_eq!((w.window(), w.reductions()), (5 * MTU, 2));
    }
}

#[test]
fn window_does_not_grow_during_recovery_or_when_unused() {
    let mut w = window(10);
    w.charge(1, 10 * MTU);
    w.report(2, &lost(MTU, Congestion::Transient));
    w.report(2, &arrived(8 * MTU));
    assert_eq!((w.window(), w.credit), (5 * MTU, 0));
    w.report(2, &arrived(MTU));
    assert_eq!((w.window(), w.credit), (5 * MTU, MTU));
    w.charge(5, 4 * MTU);
    w.report(6, &Report { limited: false, ..arrived(4 * MTU) });
    assert_eq!((w.window(), w.credit), (5 * MTU, MTU));
}

#[test]
fn the_least_window_is_two_mtus() {
    let mut w = window(3);
    for now in 1..5 {
        w.charge(now, 2 * MTU);
        w.report(now, &lost(2 * MTU, Congestion::Transient));
        assert_eq!(w.window(), 2 * MTU);
    }
}

#[test]
fn persistent_congestion_leaves_one_mtu_and_half_of_the_window_as_threshold() {
    let mut w = window(16);
    w.charge(1, 16 * MTU);
    w.report(2, &lost(16 * MTU, Congestion::Persistent));
    assert_eq!((w.window(), w.ssthresh()), (MTU, 8 * MTU));
    // The timer expires again: the threshold keeps its value (RFC 5681 §3.1).
    w.charge(3, MTU);
    w.report(4, &lost(MTU, Congestion::Persistent));
    assert_eq!((w.window(), w.ssthresh()), (MTU, 8 * MTU));
    for expected in [2000, 4000, 8000, 9000] {
        round(&mut w, 5);
        assert_eq!(w.window(), expected);
    }
}

#[test]
fn timeout_is_transient_while_a_sibling_arrives() {
    let sibling = Report { flow: 2, ..arrived(MTU) };
    let mut w = window(16);
    w.charge(1, 16 * MTU);
    w.report(100 * MS, &arrived(MTU));
    w.report(100 * MS, &sibling);
    assert_eq!(w.rtt().timeout(), 250 * MS);
    let before = w.window();
    for (after, expected) in [(250, before / 2), (251, MTU)] {
        let mut w = w;
        w.report((100 + after) * MS, &lost(8 * MTU, Congestion::Persistent));
        assert_eq!(w.window(), expected, "{after} ms after the sibling's");
    }
    // Packets of the flow itself do not count as a sibling's.
    w.report(300 * MS, &arrived(MTU));
    let mut other = w;
    w.report(351 * MS, &lost(8 * MTU, Congestion::Persistent));
    assert_eq!(w.window(), MTU);
    other.report(351 * MS, &Report { flow: 2, ..lost(MTU, Congestion::Persistent) });
    assert!(other.window() > 2 * MTU);
}

#[test]
fn reports_beyond_sent_bytes_are_ignored() {
    let mut w = window(10);
    w.charge(1, 2 * MTU);
    w.report(2, &arrived(u64::MAX));
    assert_eq!((w.outstanding(), w.window()), (0, 12 * MTU));
    w.report(3, &arrived(u64::MAX));
    assert_eq!((w.outstanding(), w.window()), (0, 12 * MTU));
}

#[test]
fn idleness_halves_towards_the_first_window_and_doubles_the_threshold() {
    let mut w = window(4);
    for n in 0..4 {
        round(&mut w, n * 100 * MS + 1);
    }
    let last = 400 * MS + 1;
    w.charge(last, 64 * MTU);
    w.report(last, &lost(64 * MTU, Congestion::Transient));
    assert_eq!((w.window(), w.ssthresh()), (32 * MTU, 32 * MTU));
    for (idle, cwnd, ssthresh) in
        [(999, 32, 32), (1000, 16, 64), (1999, 16, 64), (2000, 8, 128), (3000, 4, 256), (9000, 4, 16_384)]
    {
        let mut w = w;
        w.age(last + idle * MS);
        assert_eq!((w.window() / MTU, w.ssthresh() / MTU), (cwnd, ssthresh), "{idle} ms");
        w.age(last + idle * MS);
        assert_eq!((w.window() / MTU, w.ssthresh() / MTU), (cwnd, ssthresh), "{idle} ms, asked again");
    }
    // Ageing in small steps gives the same result.
    for idle in (0..3000).step_by(10) {
        w.age(last + idle * MS);
    }
    w.age(last + 3000 * MS);
    assert_eq!((w.window() / MTU, w.ssthresh() / MTU), (4, 256));
    assert!(w.rtt().smoothed().is_some());
    // Ten minutes after the last use; ageing moved that time.
    w.age(last + 3000 * MS + FORGET);
    assert_eq!((w.window(), w.ssthresh(), w.rtt().smoothed()), (4 * MTU, MAX_WINDOW, None));
}

/// The paper's Figure 7: a later transfer starts with the window of one second before. A collapsed
/// window recovers the same way.
#[test]
fn a_small_window_ages_upwards() {
    let mut w = window(10);
    w.charge(1, 10 * MTU);
    w.report(2, &lost(10 * MTU, Congestion::Persistent));
    assert_eq!(w.window(), MTU);
    w.age(2 + SECOND);
    assert_eq!((w.window(), w.ssthresh()), (2 * MTU, 10 * MTU));
    w.age(2 + 5 * SECOND);
    assert_eq!(w.window(), 10 * MTU);
}

#[test]
fn window_does_not_age_while_bytes_are_outstanding() {
    let mut w = window(4);
    round(&mut w, 1);
    w.charge(200 * MS, MTU);
    w.age(3600 * SECOND);
    assert_eq!(w.window(), 8 * MTU);
}

#[test]
fn undo_reverts_only_the_last_reduction_once() {
    let mut w = window(20);
    w.charge(1, 20 * MTU);
    w.report(2, &lost(MTU, Congestion::Transient));
    let first = w.reductions();
    let mut later = w;
    w.undo(first);
    assert_eq!((w.window(), w.ssthresh(), w.recovering()), (20 * MTU, MAX_WINDOW, false));
    w.undo(first);
    w.report(3, &lost(MTU, Congestion::Transient));
    assert_eq!(w.window(), 10 * MTU);
    later.report(3, &lost(19 * MTU, Congestion::None));
    later.charge(4, 10 * MTU);
    later.report(5, &lost(MTU, Congestion::Transient));
    later.undo(first);
    later.undo(0);
    assert_eq!(later.window(), 5 * MTU);
}

#[test]
fn next_threshold_predicts_the_reduction() {
    let mut w = window(20);
    assert_eq!(w.next_threshold(false), 10 * MTU);
    w.charge(1, 20 * MTU);
    w.report(2, &lost(MTU, Congestion::Transient));
    assert_eq!(w.next_threshold(false), 10 * MTU);
}

/// A late report of a loss, of packets that the flow sent before it learned of the reduction, is
/// the same congestion.
#[test]
fn loss_from_before_a_known_reduction_reduces_nothing() {
    let mut w = window(20);
    w.charge(1, 20 * MTU);
    w.report(2, &lost(MTU, Congestion::Transient));
    w.report(3, &arrived(19 * MTU));
    w.charge(4, 10 * MTU);
    assert!(!w.recovering());
    let (before, old) = (w.window(), Report { flow: 2, old: true, ..lost(MTU, Congestion::Transient) });
    assert_eq!((before, w.next_threshold(true)), (11 * MTU, 10 * MTU));
    w.report(5, &old);
    assert_eq!((w.window(), w.reductions()), (before, 1));
    // A timeout reduces nothing either while another flow's packets arrive. If none do, the window
    // becomes one packet and the threshold stays.
    w.report(6, &Report { congestion: Congestion::Persistent, ..old });
    assert_eq!((w.window(), w.reductions()), (before, 1));
    let mut alone = w;
    alone.report(20 * SECOND, &Report { congestion: Congestion::Persistent, ..old });
    assert_eq!((alone.window(), alone.ssthresh(), alone.reductions()), (MTU, 10 * MTU, 1));
    w.report(7, &lost(MTU, Congestion::Transient));
    assert_eq!((w.window(), w.reductions()), (before / 2, 2));
}

fn any_report() -> impl Strategy<Value = Report> {
    let congestion = prop_oneof![
        6 => Just(Congestion::None),
        1 => Just(Congestion::Transient),
        1 => Just(Congestion::Ecn),
        1 => Just(Congestion::Persistent)
    ];
    let bytes = prop_oneof![Just(0), 1..200_000u64, any::<u64>()];
    let rtt = prop_oneof![Just(0), 1..SECOND, any::<u64>()];
    (1..4u64, bytes.clone(), bytes, congestion, any::<bool>(), any::<bool>(), rtt).prop_map(
        |(flow, resolved, acked, congestion, old, limited, rtt)| Report {
            flow,
            resolved,
            acked,
            congestion,
            old,
            limited,
            rtt,
        },
    )
}

proptest! {
    /// Checks the window's bounds and the effect of a report for any sequence of events.
    #[test]
    fn bounds_hold(
        mtu in any::<u32>(), initial in 0..50u32,
        steps in prop::collection::vec((0..5 * SECOND, prop::option::of(any_report()), 0..100_000u64), 1..300),
    ) {
        let mut w = Aimd::new(Rules { initial, limit: 2 }, mtu);
        let mtu = clamp_mtu(mtu);
        let mut now = 1;
        for (later, report, bytes) in steps {
            now += later;
            w.charge(now, bytes);
            let Some(report) = report else { continue };
            let before = w;
            w.report(now, &report);
            prop_assert!(w.window() >= mtu && w.window() <= MAX_WINDOW);
            prop_assert!(w.ssthresh() >= 2 * mtu);
            prop_assert!(w.credit < w.window());
            prop_assert!(w.window() <= before.window() + 2 * mtu, "at most two MTUs more");
            prop_assert!(w.reductions() <= before.reductions() + 1);
            if report.congestion == Congestion::None {
                prop_assert!(w.window() >= before.window());
            } else {
                prop_assert!(w.window() <= before.window());
            }
            if report.congestion != Congestion::Persistent {
                prop_assert!(w.window() >= before.window().min((before.window() / 2).max(2 * mtu)));
            }
            prop_assert!(w.outstanding() <= before.outstanding());
        }
    }
}
