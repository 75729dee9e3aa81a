//! The first window after a pause is not sent at once: the queue that it would fill is not known to be empty any more.

use crate::Nanos;

/// Spreads what is granted over one round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Pace {
    /// When it ends, and when the next grant may be given, ns; 0: not pacing.
    until: Nanos,
    next: Nanos,
    /// Between two bytes, as a fraction: ns of all, bytes of all.
    span: (Nanos, u64),
}

impl Pace {
    /// A macroflow of which nothing is outstanding goes on: `window` bytes in `srtt` ns, but the first `burst` bytes at once,
    /// as any new connection may send them (RFC 6928).
    pub fn begin(&mut self, now: Nanos, window: u64, srtt: Nanos, burst: u64) {
        *self = Self::default();
        if window > burst {
            self.span = (srtt, window);
            self.until = now + srtt;
            // The burst is as long ago as it would have taken.
            self.next = now.saturating_sub(self.time(burst));
        }
    }

    /// When a grant may be given, if not now.
    pub fn wait(&mut self, now: Nanos) -> Option<Nanos> {
        if now >= self.until {
            *self = Self::default();
        }
        (self.next > now).then_some(self.next)
    }

    /// One was given.
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
