//! When a client that asked for it is told that its share changed (`cm_thresh`, `cmapp_update`).

use crate::{Error, Status};

/// Factors of change that a client is told of (RFC 3124 §3.2.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// The rate is this times what was told last, or less; 0 to 1.
    pub rate_down: f64,
    /// Or this times, or more; at least 1.
    pub rate_up: f64,
    /// The round trip time is this times what was told last, or less; 0 to 1.
    pub rtt_down: f64,
    /// Or this times, or more; at least 1.
    pub rtt_up: f64,
}

impl Default for Thresholds {
    /// Any change of the rate, and none of the round trip time.
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

/// Of a flow that registered for updates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub token: u64,
    pub thresholds: Thresholds,
    /// What it was told last, or is about to be.
    pub told: Option<Status>,
    /// An event is on its way.
    pub due: bool,
}

impl Watch {
    /// Whether a status is one that the client wants to know.
    pub fn crossed(&self, status: &Status) -> bool {
        let Some(told) = self.told else { return true };
        let t = &self.thresholds;
        outside(told.rate, status.rate, t.rate_down, t.rate_up)
            || outside(told.rtt, status.rtt, t.rtt_down, t.rtt_up)
    }
}

fn outside(told: u64, now: u64, down: f64, up: f64) -> bool {
    let (told, new) = (told as f64, now as f64);
    new != told && (new <= told * down || new >= told * up)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(thresholds: Thresholds) -> Watch {
        let told = Some(Status { rate: 1000, rtt: 100, ..Status::default() });
        Watch { token: 0, thresholds, told, due: false }
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
        assert!(Watch { told: None, ..w }.crossed(&Status { rate: 1000, rtt: 100, ..Status::default() }));
    }

    #[test]
    fn factors_that_say_nothing_are_refused() {
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
