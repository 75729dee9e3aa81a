//! The retransmission timeout of RFC 6298, with Linux's minimum.

use crate::{MILLISECOND, Nanos, SECOND};

/// Smallest timeout.
pub const MIN: Nanos = 200 * MILLISECOND;
/// Largest timeout.
pub const MAX: Nanos = 60 * SECOND;
/// Timeout before the first sample (§2.1).
pub const INITIAL: Nanos = SECOND;

/// Round trip time estimates of one side.
#[derive(Debug, Clone, Default)]
pub struct Rto {
    srtt: Nanos,
    variation: Nanos,
    min: Nanos,
    backoff: u32,
}

impl Rto {
    /// Adds a sample and ends the back-off.
    pub fn sample(&mut self, rtt: Nanos) {
        let rtt = rtt.max(1);
        self.backoff = 0;
        if self.srtt == 0 {
            (self.srtt, self.variation, self.min) = (rtt, rtt / 2, rtt);
        } else {
            self.min = self.min.min(rtt);
            self.variation = (3 * self.variation + self.srtt.abs_diff(rtt)) / 4;
            self.srtt = (7 * self.srtt + rtt) / 8;
        }
    }

    /// Smoothed round trip time; 0 without a sample.
    pub fn smoothed(&self) -> Nanos {
        self.srtt
    }

    /// Smallest round trip time sample; 0 without a sample.
    pub fn least(&self) -> Nanos {
        self.min
    }

    /// The timeout, including the back-off.
    pub fn timeout(&self) -> Nanos {
        let base = if self.srtt == 0 { INITIAL } else { (self.srtt + 4 * self.variation).max(MIN) };
        (base << self.backoff.min(16)).min(MAX)
    }

    /// Doubles the timeout (§5.5).
    pub fn back_off(&mut self) {
        self.backoff += 1;
    }

    /// Timeout of a tail loss probe (RFC 8985 §7.2).
    pub fn probe_timeout(&self) -> Nanos {
        if self.srtt == 0 { self.timeout() } else { (2 * self.srtt + 2 * MILLISECOND).min(self.timeout()) }
    }
}
