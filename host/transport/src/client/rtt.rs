//! Round-trip time, retransmission timeout (RFC 6298) and reordering window (RFC 8985 section 6.2),
//! by the client's clock.

use crate::time::{MILLISECOND, Micros, SECOND};

/// Minimum retransmission timeout: Linux's value, below the second of RFC 6298.
const MIN_RTO: Micros = 200 * MILLISECOND;
/// Maximum timeout estimate (RFC 6298 section 2.5).
const MAX_RTO: Micros = 60 * SECOND;
/// Timeout without a sample (RFC 6298 section 2.1).
const INITIAL_RTO: Micros = SECOND;
/// After this many recoveries without a spurious loss, the reordering window returns to its initial
/// size (RFC 8985).
const REORDERING_PERSISTS: u8 = 16;

/// Maximum displacement between replicas; later packets count as lost.
const MAX_SPREAD: Micros = 200 * MILLISECOND;

/// Estimates of one connection.
#[derive(Clone, Debug)]
pub struct Rtt {
    srtt: Micros,
    variation: Micros,
    min: Micros,
    latest: Micros,
    backoff: u32,
    /// Limit for the back-off, unless the estimate itself is larger.
    largest_backoff: Micros,
    /// The reordering window in quarters of an RTT.
    quarters: u32,
    persists: u8,
    /// Largest displacement seen between replicas; decays.
    spread: Micros,
}

impl Rtt {
    /// Starts without a sample. Timeouts back off up to `largest_backoff`.
    pub fn new(largest_backoff: Micros) -> Self {
        Self {
            srtt: 0,
            variation: 0,
            min: 0,
            latest: 0,
            backoff: 0,
            largest_backoff,
            quarters: 1,
            persists: 0,
            spread: 0,
        }
    }

    /// Adds a sample from the response to a normal request.
    pub fn sample(&mut self, rtt: Micros) {
        let rtt = rtt.max(1);
        self.latest = rtt;
        self.backoff = 0;
        if self.srtt == 0 {
            (self.srtt, self.variation, self.min) = (rtt, rtt / 2, rtt);
            return;
        }
        self.min = self.min.min(rtt);
        self.variation = (3 * self.variation + self.srtt.abs_diff(rtt)) / 4;
        self.srtt = (7 * self.srtt + rtt) / 8;
    }

    /// Smoothed RTT; `None` without a sample.
    pub fn smoothed(&self) -> Option<Micros> {
        (self.srtt > 0).then_some(self.srtt)
    }

    /// The latest sample.
    pub fn latest(&self) -> Micros {
        self.latest
    }

    /// Retransmission timeout with back-off. The cap limits the back-off, never the estimate, so a
    /// path slower than the cap still gets its time.
    pub fn rto(&self) -> Micros {
        let base = if self.srtt == 0 {
            INITIAL_RTO
        } else {
            (self.srtt + (4 * self.variation).max(MILLISECOND)).clamp(MIN_RTO, MAX_RTO)
        };
        (base << self.backoff.min(16)).min(self.largest_backoff.max(base))
    }

    /// How long an unused window stays valid: the timeout, at least the 1 s of RFC 6298 (2.4). The
    /// Congestion Manager ages its windows by the same rule.
    pub fn idle(&self) -> Micros {
        self.rto().max(SECOND)
    }

    /// A TIMEOUT, RESTART or opening was answered. The service responds again, so the back-off ends
    /// (as in RFC 9002 section 6.2.1). This is no RTT sample, because it is unknown which attempt
    /// was answered.
    pub fn answered(&mut self) {
        self.backoff = 0;
    }

    /// A timeout passed without an answer: double it (RFC 6298 section 5.5).
    pub fn back_off(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// When the tail is probed (RFC 8985 section 7.2): after two round trips plus the largest
    /// displacement between replicas, but never later than the timeout.
    pub fn probe_timeout(&self) -> Micros {
        match self.smoothed() {
            Some(srtt) => (2 * srtt + 2 * MILLISECOND + self.spread).min(self.rto().max(self.spread)),
            None => self.rto(),
        }
    }

    /// How long a gap stays undecided beyond one round trip.
    pub fn reordering_window(&self) -> Micros {
        let quarter = u64::from(self.quarters) * self.min / 4;
        quarter.min(self.srtt).max(self.spread).max(MILLISECOND.min(self.srtt))
    }

    /// A number that took `rtt` was received after one requested later. Records its delay over the
    /// fastest response as displacement between replicas.
    pub fn reordered(&mut self, rtt: Micros) {
        let spread = rtt.saturating_sub(self.min);
        self.spread = self.spread.max(spread + spread / 8).min(MAX_SPREAD.max(self.srtt));
    }

    /// A number declared lost was received after all.
    pub fn spurious(&mut self) {
        self.quarters = (self.quarters + 1).min(16);
        self.persists = REORDERING_PERSISTS;
    }

    /// A recovery began.
    pub fn recovery(&mut self) {
        self.spread -= self.spread / 8;
        if self.persists > 0 {
            self.persists -= 1;
            if self.persists == 0 {
                self.quarters = 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: Micros = 2 * SECOND;

    #[test]
    fn follows_rfc_6298() {
        let mut rtt = Rtt::new(CAP);
        assert_eq!(rtt.rto(), SECOND);
        rtt.sample(100 * MILLISECOND);
        assert_eq!(rtt.rto(), 300 * MILLISECOND);
        for _ in 0..100 {
            rtt.sample(100 * MILLISECOND);
        }
        assert_eq!(rtt.rto(), MIN_RTO);
        rtt.back_off();
        assert_eq!(rtt.rto(), 2 * MIN_RTO);
        rtt.sample(100 * MILLISECOND);
        assert_eq!(rtt.rto(), MIN_RTO, "a sample ends the back-off");
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto(), CAP);
        rtt.answered();
        assert_eq!(rtt.rto(), MIN_RTO, "an answer ends it too");
    }

    #[test]
    fn a_path_slower_than_the_cap_is_given_its_time() {
        let mut rtt = Rtt::new(CAP);
        rtt.sample(5 * SECOND);
        assert_eq!(rtt.rto(), 15 * SECOND);
        rtt.back_off();
        assert_eq!(rtt.rto(), 15 * SECOND, "no backing off beyond it");
        rtt.sample(100 * SECOND);
        assert_eq!(rtt.rto(), MAX_RTO);
    }

    #[test]
    fn reordering_window_starts_at_a_quarter_and_adapts() {
        let mut rtt = Rtt::new(CAP);
        rtt.sample(80 * MILLISECOND);
        assert_eq!(rtt.reordering_window(), 20 * MILLISECOND);
        rtt.spurious();
        assert_eq!(rtt.reordering_window(), 40 * MILLISECOND);
        for _ in 0..20 {
            rtt.spurious();
        }
        assert_eq!(rtt.reordering_window(), 80 * MILLISECOND, "at most the RTT");
        for _ in 0..16 {
            rtt.recovery();
        }
        assert_eq!(rtt.reordering_window(), 20 * MILLISECOND);
        rtt.reordered(120 * MILLISECOND);
        assert_eq!(rtt.reordering_window(), 45 * MILLISECOND, "never below the spread between replicas");
        rtt.reordered(240 * MILLISECOND);
        assert_eq!(rtt.reordering_window(), 180 * MILLISECOND, "not even when that is beyond the RTT");
    }
}
