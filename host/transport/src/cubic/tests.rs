//! The closed form beside RFC 9438's equations, acknowledgement by acknowledgement.

use super::*;
use crate::cwnd::MAX_CWND;
use proptest::prelude::*;

/// RFC 9438 step by step, in real numbers.
struct Rfc {
    cwnd: f64,
    est: f64,
    start: f64,
    w_max: f64,
    rtt: f64,
    t: f64,
}

impl Rfc {
    fn new(start: u32, w_max: u32, rtt_us: u64) -> Self {
        let (start, w_max) = (f64::from(start), f64::from(w_max.max(start)));
        Self { cwnd: start, est: start, start, w_max, rtt: rtt_us as f64 / 1e6, t: 0.0 }
    }

    fn w_cubic(&self, t: f64) -> f64 {
        let k = ((self.w_max - self.start) / 0.4).cbrt();
        0.4 * (t - k).powi(3) + self.w_max
    }

    fn ack(&mut self) {
        self.t += self.rtt / self.cwnd;
        let alpha = if self.est >= self.w_max { 1.0 } else { 9.0 / 17.0 };
        self.est += alpha / self.cwnd;
        if self.w_cubic(self.t) < self.est {
            self.cwnd = self.est.max(self.cwnd);
        } else {
            let target = self.w_cubic(self.t + self.rtt).clamp(self.cwnd, 1.5 * self.cwnd);
            self.cwnd += (target - self.cwnd) / self.cwnd;
        }
    }
}

fn compare(start: u32, w_max: u32, rtt_us: u64, steps: u32) {
    let mut rfc = Rfc::new(start, w_max, rtt_us);
    let mut last = 0;
    for acked in 0..steps {
        let got = window(start, w_max, rtt_us, acked, MAX_CWND);
        let what = format!("start {start}, W_max {w_max}, {rtt_us} us, {acked} acknowledged");
        assert!(got.total >= last && got.total - last <= 2 || acked == 0, "{what}: {last}, then {got:?}");
        last = got.total;
        let cwnd = rfc.cwnd.min(f64::from(MAX_CWND));
        // The equation runs one step of a round trip behind W_cubic where that is steep.
        let bound = 1.5 + 0.04 * cwnd;
        assert!((f64::from(got.total) - cwnd).abs() <= bound, "{what}: {got:?}, RFC 9438 {cwnd}");
        rfc.ack();
    }
}

#[test]
fn equals_rfc_9438_for_usual_paths() {
    for rtt_ms in [1, 10, 50, 100, 200] {
        for (start, w_max) in [(7, 10), (70, 100), (595, 850), (10, 10), (100, 100), (40, 49)] {
            compare(start, w_max, rtt_ms * 1000, 20_000);
        }
    }
}

/// The points of RFC 9438 section 4.2: W_max again after K, and 0.7 of it at the start.
#[test]
fn plateau_is_reached_after_k() {
    let curve = Curve::new(700, 1000, 100_000);
    assert_eq!(curve.k, 9_085_602, "the cube root of 300 / 0.4 seconds");
    assert!((curve.cubic(0) - 700 * UNIT).abs() < UNIT / 1000);
    assert_eq!(curve.cubic(curve.k), 1000 * UNIT);
}

#[test]
fn short_round_trips_grow_like_reno() {
    let got = window(70, 100, 1_000, 5_000, MAX_CWND);
    assert_eq!(got.total, got.reno);
    // From there on one packet a window: 100 + n, where the integral of the window is 5,000.
    assert!((129..=131).contains(&window(100, 100, 1_000, 3_450, MAX_CWND).total));
}

#[test]
fn clocks_are_within_half_a_step() {
    assert_eq!(clock(0), None);
    assert_eq!(clock(1), Some(LEAST_CLOCK));
    for srtt in [125, 900, 10_000, 99_000, 100_000, 300_000, 3_600_000] {
        let got = round_trip_us(clock(srtt).unwrap());
        let off = got as f64 / f64::from(srtt);
        assert!((0.955..1.047).contains(&off), "{srtt} us became {got}");
    }
    assert_eq!(clock(u32::MAX), Some(254));
    assert!(!is_epoch(254) && is_epoch(255) && !is_epoch(7));
}

#[test]
fn reductions_are_those_of_section_4() {
    assert_eq!([1, 2, 3, 10, 100].map(reduced), [2, 2, 2, 7, 70]);
    assert_eq!(next_w_max(100, Some(90)), 100);
    assert_eq!(next_w_max(80, Some(100)), 68);
    assert_eq!(next_w_max(80, None), 80);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn equals_rfc_9438_beyond(start in 2u32..2000, more in 0u32..1000, rtt_us in 200u64..300_000) {
        compare(start, start + start * more / 2300, rtt_us, 6_000);
    }

    /// Any values that a continuation can hold: no overflow, no fall, at most two packets an acknowledgement.
    #[test]
    fn never_falls_or_leaps(start in 1u32..=65_535, w_max in 0u32..=65_535, clock: u8, acked in 0u32..1 << 31) {
        let at = |acked| window(start, w_max, round_trip_us(clock), acked, MAX_CWND).total;
        let (before, now) = (at(acked), at(acked + 1));
        prop_assert!(before <= now && now - before <= 2, "{} then {}", before, now);
    }
}
