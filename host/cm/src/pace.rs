//! Paces the first window after a pause: sent at once, it would overflow a queue that other traffic
//! may have filled meanwhile.

use crate::Nanos;

/// Spreads grants over one round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Pace {
    /// When pacing ends, and when the next grant is due, ns; 0: not pacing.
    until: Nanos,
    next: Nanos,
    /// Time per byte as a fraction: (ns of the whole window, bytes of the whole window).
    span: (Nanos, u64),
}

impl Pace {
    /// Starts pacing `window` bytes over `srtt` ns. The first `burst` bytes may leave at once, as
    /// on any new connection (RFC 6928).
    pub fn begin(&mut self, now: Nanos, window: u64, srtt: Nanos, burst: u64) {
        *self = Self::default();
        if window > burst {
            self.span = (srtt, window);
            self.until = now + srtt;
            // Count the burst as if it had been paced already.
            self.next = now.saturating_sub(self.time(burst));
        }
    }

    /// When the next grant is due, or `None` if it may be given now.
    pub fn wait(&mut self, now: Nanos) -> Option<Nanos> {
        if now >= self.until {
            *self = Self::default();
        }
        (self.next > now).then_some(self.next)
    }

    /// Records a grant of this many bytes.
    pub fn granted(&mut self, bytes: u64) {
        if self.until > 0 {
            self.next += self.time(bytes);
        }
    }

    fn time(&self, bytes: u64) -> Nanos {
        (u128::from(bytes) * u128::from(self.span.0) / u128::from(self.span.1.max(1))) as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_takes_a_round_trip() {
        let mut pace = Pace::default();
        let start = 1_000_000;
        pace.begin(start, 50_000, 100_000, 10_000);
        let mut now = start;
        let mut times = vec![];
        for _ in 0..50 {
            if let Some(at) = pace.wait(now) {
                now = at;
            }
            times.push(now - start);
            pace.granted(1000);
        }
        assert!(times[..11].iter().all(|t| *t == 0), "{times:?}");
        assert_eq!((times[11], times[12], times[49]), (2000, 4000, 78_000));
        assert_eq!(pace.wait(start + 100_000), None);
        assert_eq!(pace, Pace::default());
    }

    #[test]
    fn a_small_window_is_not_paced() {
        let mut pace = Pace::default();
        pace.begin(5, 10_000, 100_000, 10_000);
        for _ in 0..20 {
            pace.granted(1000);
            assert_eq!(pace.wait(5), None);
        }
    }
}
