//! Round trip time and retransmission timeout over all flows of a macroflow (RFC 6298, in whole
//! nanoseconds).

use super::rules::{INITIAL_RTO, MAX_RTO, MIN_RTO};
use crate::Nanos;

/// Smoothed round trip time and its deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Rtt {
    pub(super) srtt: Nanos,
    pub(super) var: Nanos,
}

impl Rtt {
    /// Adds a sample in ns; 0 means no sample.
    pub fn sample(&mut self, rtt: Nanos) {
        let rtt = rtt.min(MAX_RTO);
        if rtt == 0 {
            return;
        }
        if self.srtt == 0 {
            (self.srtt, self.var) = (rtt, rtt / 2);
        } else {
            self.var = (3 * self.var + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = ((7 * self.srtt + rtt) / 8).max(1);
        }
    }

    /// Smoothed round trip time in ns; `None` before the first sample.
    #[must_use]
    pub fn smoothed(&self) -> Option<Nanos> {
        (self.srtt > 0).then_some(self.srtt)
    }

    /// Mean deviation of the round trip time in ns; 0 before the first sample.
    #[must_use]
    pub fn deviation(&self) -> Nanos {
        self.var
    }

    /// Retransmission timeout in ns.
    #[must_use]
    pub fn timeout(&self) -> Nanos {
        if self.srtt == 0 { INITIAL_RTO } else { (self.srtt + 4 * self.var).clamp(MIN_RTO, MAX_RTO) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MILLISECOND;

    /// The values of RFC 6298 §2.2 and §2.3, calculated by hand.
    #[test]
    fn samples_are_smoothed_by_rfc_6298() {
        let mut rtt = Rtt::default();
        assert_eq!((rtt.smoothed(), rtt.timeout()), (None, INITIAL_RTO));
        let expected = [
            (100, 100_000, 50_000, 300_000),
            (100, 100_000, 37_500, 250_000),
            (180, 110_000, 48_125, 302_500),
            (30, 100_000, 56_093, 324_375),
        ];
        for (sample, srtt, var, timeout) in expected {
            rtt.sample(sample * MILLISECOND);
            let us = |ns: Nanos| ns / 1000;
            assert_eq!(
                (us(rtt.srtt), us(rtt.var), us(rtt.timeout())),
                (srtt, var, timeout),
                "after {sample} ms"
            );
        }
    }

    #[test]
    fn timeout_is_bounded_and_zero_sample_ignored() {
        let mut rtt = Rtt::default();
        rtt.sample(0);
        assert_eq!(rtt, Rtt::default());
        for _ in 0..100 {
            rtt.sample(1);
        }
        assert_eq!(rtt.timeout(), MIN_RTO);
        rtt = Rtt::default();
        rtt.sample(u64::MAX);
        assert_eq!((rtt.smoothed(), rtt.timeout()), (Some(MAX_RTO), MAX_RTO));
    }
}
