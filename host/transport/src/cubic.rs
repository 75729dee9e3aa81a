//! Cubic's window (RFC 9438) as a closed form of the acknowledgements since the last reduction.
//!
//! RFC 9438 gives the window as a function of time. The numbers of the responses must not depend on
//! the moment at which each request arrives, because another replica answers the next one
//! (`docs/recovery.md`, "Cubic"). So time is counted in round trips of a sealed length: a window
//! of acknowledgements is one round trip, and the time of the n-th acknowledgement is the one at
//! which the window's integral has reached n round trips.
//!
//! All arithmetic is in integers, so that client and server compute the same window.

/// Units of area in a packet-microsecond. With it, the integral of `C (t - K)^3` for C = 0.4
/// packets/s^3 (RFC 9438 section 5.1) is `(t - K)^4`.
const UNIT: i128 = 10_000_000_000_000_000_000;
/// Longest time since a reduction, microseconds. Before it every window reaches the largest.
const LONGEST_US: i128 = 100_000_000;
/// The largest round trip that makes the window grow faster, microseconds. Longer ones count as
/// this, so that a request never has more responses than fit in an answer.
const LARGEST_ROUND_TRIP_US: i128 = 1_000_000;

/// Smallest value of the byte in a continuation that selects Cubic.
pub const LEAST_CLOCK: u8 = rivulet_packet::LEAST_CLOCK;
/// The shortest round trip that a clock encodes, microseconds.
pub const SHORTEST_US: u64 = 125;
/// 2^(i/8) in 65,536ths: the steps of an octave.
const STEPS: [u64; 8] = [65_536, 71_468, 77_936, 84_990, 92_682, 101_070, 110_218, 120_194];

/// The clock byte for a smoothed round trip time in microseconds: the nearest of eight steps an
/// octave, from 125 us to 3.7 s. `None` for an unknown round trip time (0).
pub fn clock(srtt: u32) -> Option<u8> {
    let wanted = u64::from(srtt) + u64::from(srtt) / 23; // half a step more, then rounded down
    let fits = |index: &u8| round_trip_us(index << 1) <= wanted;
    let index = (LEAST_CLOCK >> 1..=u8::MAX >> 1).rev().find(fits).unwrap_or(LEAST_CLOCK >> 1);
    (srtt > 0).then_some(index << 1)
}

/// The round trip time of a clock byte, microseconds.
pub fn round_trip_us(clock: u8) -> u64 {
    let index = u32::from(clock.max(LEAST_CLOCK) >> 1) - u32::from(LEAST_CLOCK >> 1);
    ((SHORTEST_US * STEPS[index as usize % 8]) << (index / 8)) >> 16
}

/// Whether the piece of this clock byte began with a loss or mark, so that its threshold is W_max.
pub fn is_epoch(clock: u8) -> bool {
    clock >= LEAST_CLOCK && clock & 1 == 1
}

/// Window after a loss or mark: `max(floor(0.7 cwnd), 2)` (RFC 9438 section 4.6).
pub fn reduced(cwnd: u32) -> u32 {
    (cwnd * 7 / 10).max(2)
}

/// W_max of the next epoch: the window at the loss, and less if it had not reached the last W_max
/// (fast convergence, RFC 9438 section 4.7).
pub fn next_w_max(cwnd: u32, last: Option<u32>) -> u32 {
    if last.is_some_and(|last| cwnd < last) { cwnd * 17 / 20 } else { cwnd }
}

/// The window after `acked` acknowledgements, packets: `total` of both regions, and the part that
/// Reno's region alone yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The window.
    pub total: u32,
    /// W_est of RFC 9438 section 4.3.
    pub reno: u32,
}

/// The window of `acked` packets after an epoch began with `start` packets.
pub fn window(start: u32, w_max: u32, round_trip_us: u64, acked: u32, largest: u32) -> Window {
    let start = start.clamp(1, largest);
    let curve = Curve::new(start, w_max.min(largest), round_trip_us);
    let t = curve.time(i128::from(acked));
    let packets = |scaled: i128| (scaled / UNIT).clamp(i128::from(start), i128::from(largest)) as u32;
    let reno = packets(curve.est(t));
    // RFC 9438 section 4.4: at most 1.5 windows in one round trip.
    let allowed = start.saturating_add(acked / 2);
    Window { total: packets(curve.cubic(t).max(curve.est(t))).min(allowed.max(reno)), reno }
}

/// W_cubic and W_est of one epoch. Times are microseconds since its start; windows are packets times
/// `UNIT`.
struct Curve {
    start: i128,
    w_max: i128,
    /// Round trip time.
    tau: i128,
    /// When W_cubic is `w_max` again.
    k: i128,
    /// When W_est reaches `w_max`: from then on it grows by one packet a round trip instead of 9/17.
    turn: i128,
    /// When W_est is above W_cubic before the turn.
    before: (i128, i128),
    /// The same after the turn.
    after: (i128, i128),
}

impl Curve {
    fn new(start: u32, w_max: u32, round_trip_us: u64) -> Self {
        let (start, w_max) = (i128::from(start), i128::from(w_max.max(start)));
        let tau = i128::from(round_trip_us).clamp(1, LARGEST_ROUND_TRIP_US);
        // RFC 9438 section 4.2: C K^3 = W_max - cwnd_epoch.
        let k = cube_root((w_max - start) * (UNIT / 4));
        let turn = ((w_max - start) * 17 * tau / 9).min(LONGEST_US);
        let mut curve = Self { start, w_max, tau, k, turn, before: (0, 0), after: (0, 0) };
        // W_cubic - W_est before the turn is t times a parabola, so its roots have a formula.
        let discriminant = 4 * (9 * UNIT / (68 * tau)) - 3 * k * k;
        if discriminant > 0 {
            let root = discriminant.isqrt();
            curve.before = ((3 * k - root).max(0) / 2, ((3 * k + root) / 2).min(turn));
        }
        curve.after = curve.ahead_after_turn();
        curve
    }

    /// When W_est is above W_cubic after the turn, where both are monotonic in parts.
    fn ahead_after_turn(&self) -> (i128, i128) {
        let ahead = |t: i128| UNIT * (t - self.turn) - 4 * self.tau * cube(t - self.k) > 0;
        // The largest lead is where both grow equally fast.
        let peak = self.k + (UNIT / (12 * self.tau)).isqrt();
        if self.turn < self.k {
            return (self.turn, boundary(self.k, LONGEST_US, ahead));
        }
        if peak <= self.turn || peak >= LONGEST_US || !ahead(peak) {
            let end = if peak >= LONGEST_US && ahead(LONGEST_US) { LONGEST_US } else { self.turn };
            return (self.turn, end);
        }
        (boundary(self.turn, peak, |t| !ahead(t)), boundary(peak, LONGEST_US, ahead))
    }

    fn cubic(&self, t: i128) -> i128 {
        4 * cube(t - self.k) + UNIT * self.w_max
    }

    /// RFC 9438 section 4.3, with alpha = 3 (1 - 0.7) / (1 + 0.7) = 9/17.
    fn est(&self, t: i128) -> i128 {
        if t < self.turn {
            UNIT * self.start + UNIT * 9 * t / (17 * self.tau)
        } else {
            UNIT * self.w_max + UNIT * (t - self.turn) / self.tau
        }
    }

    /// The integral of the window, the larger of the two, from 0 to `t`.
    fn area(&self, t: i128) -> i128 {
        let fourth = |t: i128| (t - self.k) * cube(t - self.k);
        let cubic = |t: i128| fourth(t) - fourth(0) + UNIT * self.w_max * t;
        let early = |t: i128| UNIT * self.start * t + UNIT * 9 * t * t / (34 * self.tau) - cubic(t);
        let late = |t: i128| {
            let since = t - self.turn;
            UNIT * since * since / (2 * self.tau) - fourth(t)
        };
        let lead = |(from, to): (i128, i128), integral: &dyn Fn(i128) -> i128| {
            if t > from && to > from { integral(t.min(to)) - integral(from) } else { 0 }
        };
        cubic(t) + lead(self.before, &early).max(0) + lead(self.after, &late).max(0)
    }

    /// The last microsecond at which at most `acked` packets were acknowledged.
    fn time(&self, acked: i128) -> i128 {
        let target = UNIT * acked * self.tau;
        let mut t = (acked * self.tau / self.start.max(1) + 1).min(LONGEST_US);
        // Newton's method. The integral is convex, so each step stays above the solution.
        loop {
            let excess = self.area(t) - target;
            let step = excess / self.cubic(t).max(self.est(t));
            if excess <= 0 || step == 0 {
                break;
            }
            t -= step;
        }
        while t > 0 && self.area(t) > target {
            t -= 1;
        }
        t
    }
}

fn cube(x: i128) -> i128 {
    x * x * x
}

/// The largest integer whose cube is at most `x`, which is not negative.
fn cube_root(x: i128) -> i128 {
    boundary(0, 1 << 27, |root| cube(root) <= x)
}

/// The largest value of `from..to` for which `holds`, which is true up to some value; `from` if it
/// holds nowhere.
fn boundary(mut from: i128, mut to: i128, holds: impl Fn(i128) -> bool) -> i128 {
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        if holds(middle) { from = middle } else { to = middle }
    }
    from
}

#[cfg(test)]
#[path = "cubic/tests.rs"]
mod tests;
