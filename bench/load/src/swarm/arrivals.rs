//! Start times of requests.

use std::time::{Duration, Instant};

use super::Swarm;

/// Connections opened in parallel when many are to be held.
const OPENING: u64 = 256;

/// Counts started requests, and decides whether more may start.
pub(super) struct Arrivals {
    began: Instant,
    pub(super) count: u64,
    /// Answered or failed requests.
    pub(super) over: u64,
    most: u64,
    at_a_time: u64,
    until: Duration,
    poisson: Option<Poisson>,
}

impl Arrivals {
    pub(super) fn new(swarm: &Swarm) -> Arrivals {
        Arrivals {
            began: Instant::now(),
            count: 0,
            over: 0,
            most: if swarm.hold { swarm.clients as u64 } else { swarm.requests },
            at_a_time: if swarm.hold { OPENING } else { swarm.clients as u64 },
            until: swarm.until,
            poisson: swarm.rate.filter(|_| !swarm.hold).map(Poisson::new),
        }
    }

    /// Starts a request if one is due; returns its due time, which lies before now if it had to wait for a
    /// free client.
    pub(super) fn next(&mut self) -> Option<Instant> {
        let now = self.began.elapsed();
        let due = self.poisson.as_ref().map_or(now, |poisson| poisson.next);
        let may = self.count - self.over < self.at_a_time && self.count < self.most;
        if !may || due > now || due >= self.until {
            return None;
        }
        self.count += 1;
        if let Some(poisson) = &mut self.poisson {
            poisson.step();
        }
        Some(self.began + due)
    }

    /// Starts no more requests.
    pub(super) fn end(&mut self) {
        self.until = self.until.min(self.began.elapsed());
    }

    /// Time until the next request is due.
    pub(super) fn pause(&self) -> Option<Duration> {
        let poisson = self.poisson.as_ref()?;
        let more =
            poisson.next < self.until && self.count < self.most && self.count - self.over < self.at_a_time;
        more.then(|| poisson.next.saturating_sub(self.began.elapsed()))
    }

    /// Whether all requests have ended and none will start.
    pub(super) fn is_over(&self) -> bool {
        let comes =
            self.poisson.as_ref().is_some_and(|poisson| poisson.next < self.until) && self.count < self.most;
        self.over >= self.count && !comes
    }
}

/// A Poisson process: the intervals are exponentially distributed, and the same in each run.
struct Poisson {
    mean_s: f64,
    next: Duration,
    state: u64,
}

impl Poisson {
    fn new(rate: f64) -> Poisson {
        let mut this = Poisson { mean_s: 1.0 / rate, next: Duration::ZERO, state: 0x52_69_76 };
        this.step();
        this
    }

    fn step(&mut self) {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64;
        self.next += Duration::from_secs_f64(-self.mean_s * (1.0 - uniform).ln());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_poisson_at_the_given_rate() {
        let mut poisson = Poisson::new(1000.0);
        let mut gaps = Vec::new();
        for _ in 0..100_000 {
            let before = poisson.next;
            poisson.step();
            gaps.push((poisson.next - before).as_secs_f64() * 1000.0);
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let spread = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        // Mean and variance of an exponential distribution of mean 1 are 1.
        assert!((0.98..1.02).contains(&mean) && (0.95..1.05).contains(&spread), "{mean} {spread}");
    }
}
