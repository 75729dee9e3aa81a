//! When a subscribed client gets an update about its share (`cm_thresh`, `cmapp_update`).

use crate::{Error, Status};

/// Factors of change that cause an update (RFC 3124 §3.2.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Update when the rate is at most this times the last reported one; 0 to 1.
    pub rate_down: f64,
    /// Update when the rate is at least this times the last reported one; at least 1.
    pub rate_up: f64,
    /// Update when the round trip time is at most this times the last reported one; 0 to 1.
    pub rtt_down: f64,
    /// Update when the round trip time is at least this times the last reported one; at least 1.
    pub rtt_up: f64,
}

impl Default for Thresholds {
    /// Any change of the rate, no change of the round trip time.
    fn default() -> Self {
        Self { rate_down: 1.0, rate_up: 1.0, rtt_down: 0.0, rtt_up: f64::INFINITY }
    }
}

impl Thresholds {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let down = |factor: f64| (0.0..=1.0).contains(&factor);
        let up = |factor: f64| factor >= 1.0;
        if down(self.rate_down) && down(self.rtt_down) && up(self.rate_up) && up(self.rtt_up) {
            return Ok(());
        }
        Err(Error::Thresholds)
    }
}

/// Subscription of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub token: u64,
    pub thresholds: Thresholds,
    /// The status last reported, or about to be reported.
    pub reported: Option<Status>,
    /// An update event is queued.
    pub due: bool,
}

impl Watch {
    /// Whether the status crosses a threshold.
    pub fn crossed(&self, status: &Status) -> bool {
        let Some(reported) = self.reported else { return true };
        let t = &self.thresholds;
        outside(reported.rate, status.rate, t.rate_down, t.rate_up)
            || outside(reported.rtt, status.rtt, t.rtt_down, t.rtt_up)
    }
}

fn outside(reported: u64, now: u64, down: f64, up: f64) -> bool {
    let (reported, new) = (reported as f64, now as f64);
    new != reported && (new <= reported * down || new >= reported * up)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(thresholds: Thresholds) -> Watch {
        let reported = Some(Status { rate: 1000, rtt: 100, ..Status::default() });
        Watch { token: 0, thresholds, reported, due: false }
    }

    #[test]
    fn a_factor_is_reached_exactly() {
        let w = watch(Thresholds { rate_down: 0.5, rate_up: 2.0, rtt_down: 0.5, rtt_up: 3.0 });
        for (rate, rtt, expected) in [
            (1000, 100, false),
            (501, 100, false),
            (500, 100, true),
            (1999, 100, false),
            (2000, 100, true),
            (1000, 299, false),
            (1000, 300, true),
            (1000, 50, true),
        ] {
            assert_eq!(w.crossed(&Status { rate, rtt, ..Status::default() }), expected, "{rate} {rtt}");
        }
        let w = watch(Thresholds::default());
        assert!(!w.crossed(&Status { rate: 1000, rtt: 1, ..Status::default() }));
        assert!(w.crossed(&Status { rate: 1001, rtt: 100, ..Status::default() }));
        assert!(Watch { reported: None, ..w }.crossed(&Status { rate: 1000, rtt: 100, ..Status::default() }));
    }

    #[test]
    fn out_of_range_factors_are_refused() {
        let good = Thresholds::default();
        for bad in [
            Thresholds { rate_down: 1.1, ..good },
            Thresholds { rate_down: -0.1, ..good },
            Thresholds { rate_up: 0.9, ..good },
            Thresholds { rtt_up: f64::NAN, ..good },
            Thresholds { rtt_down: f64::NAN, ..good },
        ] {
            assert_eq!(bad.check(), Err(Error::Thresholds), "{bad:?}");
        }
        assert_eq!(good.check(), Ok(()));
    }
}
