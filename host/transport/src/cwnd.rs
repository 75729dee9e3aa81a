//! The window of a loss-free piece of a connection, in closed form (section 2.5 of the paper, Figure 5 corrected).
//!
//! TCP Reno's window after acknowledgement `k` depends on `k` alone as long as nothing is lost, so a server that
//! remembers nothing can still know it. The printed formula of Figure 5 is wrong; this one equals the stepwise
//! simulation (`docs/recovery.md`).

/// Largest window in packets. Offsets in a proof have 16 bits, and a window and the one before it must fit in half of them.
pub const MAX_CWND: u32 = 16_384;

/// A piece of a connection in which nothing was lost: the parameters of `TCPCwnd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// TCPBase: the acknowledgement number at which the window was [`Piece::start_cwnd`].
    pub tcp_base: u32,
    /// startCwnd, packets; at least 1.
    pub start_cwnd: u16,
    /// Slow-start threshold, packets.
    pub ssthresh: u16,
}

impl Piece {
    /// `TCPCwnd(k)`: the window in packets once `k` and all before it are acknowledged. Numbers are serial (RFC 1982);
    /// a `k` before TCPBase counts as TCPBase.
    ///
    /// Each acknowledged packet adds one in slow start (RFC 3465 with L = 2, which a delayed acknowledgement of two never
    /// exceeds), and one a window in congestion avoidance (RFC 5681 section 3.1).
    pub fn cwnd(&self, k: u32) -> u32 {
        let distance = k.wrapping_sub(self.tcp_base);
        let acked = if distance >= 1 << 31 { 0 } else { u64::from(distance) };
        cwnd_after(u64::from(self.start_cwnd), u64::from(self.ssthresh), acked)
    }
}

/// The window after `acked` packets from `start_cwnd` with threshold `ssthresh`.
fn cwnd_after(start_cwnd: u64, ssthresh: u64, acked: u64) -> u32 {
    let slow = ssthresh.saturating_sub(start_cwnd);
    if acked < slow {
        return cap(start_cwnd + acked);
    }
    // The largest c with c(c-1)/2 - s(s-1)/2 <= acked - slow: each window of c packets takes c acknowledgements.
    let s = start_cwnd.max(ssthresh);
    let triangle = acked - slow + s * s.saturating_sub(1) / 2;
    cap((1 + 8 * triangle).isqrt().div_ceil(2))
}

fn cap(cwnd: u64) -> u32 {
    cwnd.clamp(1, u64::from(MAX_CWND)) as u32
}

/// The window after a loss or a mark, and the threshold with it: `max(floor(cwndAtLoss / 2), 2)` (RFC 5681 eq. 4).
pub fn halved(cwnd: u32) -> u32 {
    (cwnd / 2).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// TCP Reno step by step, in packets: what the closed form must equal.
    struct Reno {
        cwnd: u32,
        ssthresh: u32,
        acked_in_window: u32,
    }

    impl Reno {
        fn ack(&mut self) {
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

    fn check(start: u16, ssthresh: u16, steps: u32) {
        let base = 0xffff_fff0; // serial arithmetic: every run wraps
        let piece = Piece { tcp_base: base, start_cwnd: start, ssthresh };
        let mut reno = Reno { cwnd: u32::from(start), ssthresh: u32::from(ssthresh), acked_in_window: 0 };
        for k in 0..=steps {
            let closed = piece.cwnd(base.wrapping_add(k));
            assert_eq!(closed, reno.cwnd.min(MAX_CWND), "start {start}, ssthresh {ssthresh}, k {k}");
            reno.ack();
        }
    }

    #[test]
    fn equals_stepwise_reno_for_every_small_start() {
        for start in 1..=64 {
            for ssthresh in 0..=64 {
                check(start, ssthresh, 4096);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn equals_stepwise_reno_beyond(start in 1u16..2000, ssthresh in 0u16..3000, steps in 0u32..200_000) {
            check(start, ssthresh, steps);
        }
    }

    #[test]
    fn is_capped_and_never_falls() {
        let piece = Piece { tcp_base: 0, start_cwnd: 10, ssthresh: u16::MAX };
        assert_eq!(piece.cwnd(1 << 30), MAX_CWND);
        assert_eq!(piece.cwnd(u32::MAX), 10, "before TCPBase");
        assert_eq!(halved(1), 2);
        assert_eq!(halved(9), 4);
    }
}
