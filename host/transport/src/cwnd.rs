//! The window of a loss-free piece of a connection in closed form (section 2.5 of the paper, Figure
//! 5 corrected).
//!
//! Without a loss, TCP Reno's window after acknowledgement `k` depends only on `k`, so a server
//! without connection state can compute it. The formula printed in Figure 5 is wrong; this one
//! equals the stepwise simulation (`docs/recovery.md`).

use crate::cubic;

/// Largest window in packets. Offsets in a proof have 16 bits, and a window and its predecessor
/// must fit in half of that range.
pub const MAX_CWND: u32 = 16_384;

/// A loss-free piece of a connection: the parameters of `TCPCwnd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// TCPBase: the acknowledgement number at which the window was [`Piece::start_cwnd`].
    pub tcp_base: u32,
    /// startCwnd, packets; at least 1.
    pub start_cwnd: u16,
    /// Slow-start threshold, packets. In a piece of Cubic that began with a loss or mark: W_max.
    pub ssthresh: u16,
    /// For a piece that starts with a returned window: how many packets each of the first
    /// [`Piece::start_cwnd`] acknowledgements adds beyond slow start. From `LEAST_CLOCK` on: the
    /// clock of Cubic. 0 in every other piece.
    pub gain: u8,
}

impl Piece {
    /// `TCPCwnd(k)`: the window in packets once `k` and all numbers before it are acknowledged.
    /// Numbers are serial (RFC 1982); a `k` before TCPBase counts as TCPBase.
    ///
    /// Each acknowledged packet adds one in slow start (RFC 3465 with L = 2, which a delayed
    /// acknowledgement of two never exceeds), and one per window in congestion avoidance (RFC 5681
    /// section 3.1).
    pub fn cwnd(&self, k: u32) -> u32 {
        let (start, acked) = (u64::from(self.start_cwnd), u64::from(self.acked(k)));
        let (jumped, threshold) = (self.jumped(), u64::from(self.ssthresh));
        match self.gain {
            0 => cwnd_after(start, threshold, acked),
            cubic::LEAST_CLOCK.. => self.cubic(k).total,
            gain if acked < start => cap(start + acked * (1 + u64::from(gain))),
            _ => cwnd_after(jumped, threshold, acked - start),
        }
    }

    /// Whether the window follows Cubic.
    pub fn is_cubic(&self) -> bool {
        self.gain >= cubic::LEAST_CLOCK
    }

    /// Whether Cubic makes the window at `k` larger than its Reno-friendly region alone would.
    pub fn is_ahead_of_reno(&self, k: u32) -> bool {
        self.is_cubic() && {
            let window = self.cubic(k);
            window.total > window.reno
        }
    }

    /// Slow start to the threshold, except after a loss; then Cubic from there.
    fn cubic(&self, k: u32) -> cubic::Window {
        let (start, threshold) = (u32::from(self.start_cwnd), u32::from(self.ssthresh));
        let (acked, round_trip) = (self.acked(k), cubic::round_trip_us(self.gain));
        if cubic::is_epoch(self.gain) {
            return cubic::window(start, threshold, round_trip, acked, MAX_CWND);
        }
        let slow = threshold.saturating_sub(start);
        if acked < slow {
            let total = cap(u64::from(start) + u64::from(acked));
            return cubic::Window { total, reno: total };
        }
        // RFC 9438 section 4.8: after slow start to a threshold, K = 0 and W_max is the window.
        let from = start.max(threshold);
        cubic::window(from, from, round_trip, acked - slow, MAX_CWND)
    }

    /// The piece after a loss or mark in the numbers after `k`, which begins at `tcp_base`.
    pub fn next(&self, k: u32, tcp_base: u32) -> Piece {
        let start_cwnd = self.after_loss(k) as u16;
        if !self.is_cubic() {
            return Piece { tcp_base, start_cwnd, ssthresh: start_cwnd, gain: 0 };
        }
        let last = cubic::is_epoch(self.gain).then_some(u32::from(self.ssthresh));
        let w_max = cubic::next_w_max(self.cwnd(k), last);
        Piece { tcp_base, start_cwnd, ssthresh: w_max as u16, gain: self.gain | 1 }
    }

    /// Slow-start threshold for a generation that takes over this piece without a loss, packets.
    pub fn kept_threshold(&self, window: u16) -> u16 {
        if cubic::is_epoch(self.gain) { window } else { window.max(self.ssthresh) }
    }

    /// Window and threshold after a loss or mark in the numbers after `k`: half of the packets in
    /// flight, as [`halved`], or 0.7 of them with Cubic. A returned window counts only as far as it
    /// was acknowledged here.
    /// Until all of it was, the result is half of that part, or half of the first window if that is
    /// more (the Safe Retreat of RFC 9959).
    pub fn after_loss(&self, k: u32) -> u32 {
        let (window, acked) = (self.cwnd(k), self.acked(k));
        let proved = u64::from(acked) >= u64::from(self.start_cwnd) + self.jumped();
        match self.gain {
            0 => halved(window),
            cubic::LEAST_CLOCK.. => cubic::reduced(window),
            _ if proved => halved(window),
            _ => halved(window.min(acked.max(u32::from(self.start_cwnd)))),
        }
    }

    /// Whether `k` is among the acknowledgements that restore a returned window.
    pub fn is_jumping(&self, k: u32) -> bool {
        self.gain > 0 && !self.is_cubic() && self.acked(k) <= u32::from(self.start_cwnd)
    }

    fn acked(&self, k: u32) -> u32 {
        let distance = k.wrapping_sub(self.tcp_base);
        if distance >= 1 << 31 { 0 } else { distance }
    }

    /// The window when the first of them is acknowledged.
    fn jumped(&self) -> u64 {
        u64::from(self.start_cwnd) * (2 + u64::from(self.gain))
    }
}

/// The window after `acked` packets, from `start_cwnd` with threshold `ssthresh`.
fn cwnd_after(start_cwnd: u64, ssthresh: u64, acked: u64) -> u32 {
    let slow = ssthresh.saturating_sub(start_cwnd);
    if acked < slow {
        return cap(start_cwnd + acked);
    }
    // The largest c with c(c-1)/2 - s(s-1)/2 <= acked - slow: each window of c packets takes c
    // acknowledgements.
    let s = start_cwnd.max(ssthresh);
    let triangle = acked - slow + s * s.saturating_sub(1) / 2;
    cap((1 + 8 * triangle).isqrt().div_ceil(2))
}

fn cap(cwnd: u64) -> u32 {
    cwnd.clamp(1, u64::from(MAX_CWND)) as u32
}

/// Window and threshold after a loss or mark: `max(floor(cwndAtLoss / 2), 2)` (RFC 5681 eq. 4).
pub fn halved(cwnd: u32) -> u32 {
    (cwnd / 2).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rivulet_packet::MAX_GAIN;

    /// TCP Reno step by step, in packets; the closed form must give the same.
    struct Reno {
        cwnd: u32,
        ssthresh: u32,
        acked_in_window: u32,
        /// Acknowledgements left that add `gain` packets more.
        jump: (u32, u32),
    }

    impl Reno {
        fn ack(&mut self) {
            let (left, gain) = self.jump;
            if left > 0 && gain > 0 {
                self.cwnd += 1 + gain;
                self.jump.0 -= 1;
                return;
            }
            if self.cwnd < self.ssthresh {
                self.cwnd += 1;
                return;
            }
            self.acked_in_window += 1;
            if self.acked_in_window >= self.cwnd {
                self.acked_in_window = 0;
                self.cwnd += 1;
            }
        }
    }

    fn check(start: u16, ssthresh: u16, gain: u8, steps: u32) {
        let base = 0xffff_fff0; // serial arithmetic: every run wraps
        let piece = Piece { tcp_base: base, start_cwnd: start, ssthresh, gain };
        let mut reno = Reno {
            cwnd: u32::from(start),
            ssthresh: u32::from(ssthresh),
            acked_in_window: 0,
            jump: (u32::from(start), u32::from(gain)),
        };
        for k in 0..=steps {
            let closed = piece.cwnd(base.wrapping_add(k));
            let what = format!("start {start}, ssthresh {ssthresh}, gain {gain}, k {k}");
            assert_eq!(closed, reno.cwnd.min(MAX_CWND), "{what}");
            reno.ack();
        }
    }

    #[test]
    fn equals_stepwise_reno_for_every_small_start() {
        for start in 1..=64 {
            for ssthresh in 0..=64 {
                check(start, ssthresh, 0, 4096);
            }
        }
    }

    #[test]
    fn returned_window_is_restored_at_its_first_acknowledgement() {
        for (start, gain) in (1..=16).flat_map(|start| (1..=MAX_GAIN).map(move |gain| (start, gain))) {
            for ssthresh in [0, 9, 30, 100, 300, u16::MAX] {
                check(start, ssthresh, gain, 2000);
            }
        }
        let piece = Piece { tcp_base: 99, start_cwnd: 10, ssthresh: u16::MAX, gain: MAX_GAIN };
        assert_eq!([99, 100, 109, 110].map(|k| piece.cwnd(k)), [10, 19, 100, 101]);
    }

    /// Until a returned window is fully acknowledged, a loss leaves half of the acknowledged part.
    #[test]
    fn loss_discards_the_unacknowledged_part_of_a_window() {
        let piece = Piece { tcp_base: 99, start_cwnd: 10, ssthresh: u16::MAX, gain: MAX_GAIN };
        let after = |k: u32| (piece.cwnd(k), piece.after_loss(k));
        assert_eq!(after(99), (10, 5), "as any first window");
        assert_eq!(after(104), (55, 5));
        assert_eq!(after(109), (100, 5));
        assert_eq!(after(149), (140, 25));
        assert_eq!(after(208), (199, 54), "the last number of the jump is missing");
        assert_eq!(after(209), (200, 100), "all of it is proved");
        let ordinary = Piece { gain: 0, ..piece };
        assert_eq!((ordinary.cwnd(149), ordinary.after_loss(149)), (60, 30));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn equals_stepwise_reno_beyond(start in 1u16..2000, ssthresh in 0u16..3000, steps in 0u32..200_000) {
            check(start, ssthresh, 0, steps);
        }
    }

    #[test]
    fn is_capped_and_never_falls() {
        let piece = Piece { tcp_base: 0, start_cwnd: 10, ssthresh: u16::MAX, gain: 0 };
        assert_eq!(piece.cwnd(1 << 30), MAX_CWND);
        assert_eq!(piece.cwnd(u32::MAX), 10, "before TCPBase");
        assert_eq!(halved(1), 2);
        assert_eq!(halved(9), 4);
    }
}
