//! Measures a download as the application sees it.

use std::time::{Duration, Instant};

use serde::Serialize;

/// Limit on the samples; beyond it, every second one is dropped and the interval doubled.
const MAX_SAMPLES: usize = 20_000;

/// Counts bytes as they arrive.
#[derive(Debug)]
pub struct Meter {
    started: Instant,
    last: Option<Instant>,
    first: Option<Duration>,
    bytes: u64,
    gap: Duration,
    gap_at: Duration,
    interval: Duration,
    sampled: Duration,
    samples: Vec<(f64, u64)>,
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Reading {
    /// Number of bytes that arrived.
    pub bytes: u64,
    /// Seconds from the start to the last byte.
    pub seconds: f64,
    /// Megabits a second over that time.
    pub mbit_per_s: f64,
    /// Milliseconds from the start to the first byte of the body.
    pub first_byte_ms: Option<f64>,
    /// Longest time between two arrivals, milliseconds.
    pub longest_gap_ms: f64,
    /// Start of that gap, milliseconds from the start.
    pub longest_gap_at_ms: f64,
    /// Samples: milliseconds from the start, bytes so far.
    pub samples: Vec<(f64, u64)>,
}

impl Meter {
    /// Starts to count; samples `interval` apart.
    #[must_use]
    pub fn new(interval: Duration) -> Meter {
        Meter {
            started: Instant::now(),
            last: None,
            first: None,
            bytes: 0,
            gap: Duration::ZERO,
            gap_at: Duration::ZERO,
            interval,
            sampled: Duration::ZERO,
            samples: Vec::new(),
        }
    }

    /// Counts `n` bytes.
    pub fn take(&mut self, n: usize) {
        let now = Instant::now();
        let since = now - self.started;
        if let Some(last) = self.last
            && now - last > self.gap
        {
            (self.gap, self.gap_at) = (now - last, last - self.started);
        }
        self.last = Some(now);
        self.first.get_or_insert(since);
        self.bytes += n as u64;
        if self.samples.is_empty() || since >= self.sampled + self.interval {
            self.sampled = since;
            self.samples.push((millis(since), self.bytes));
        }
        if self.samples.len() > MAX_SAMPLES {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.interval *= 2;
        }
    }

    /// Number of bytes that have arrived so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The result of the measurement so far.
    #[must_use]
    pub fn reading(&self) -> Reading {
        let time = self.last.map_or(Duration::ZERO, |last| last - self.started);
        let mut samples = self.samples.clone();
        if samples.last().is_some_and(|(_, bytes)| *bytes != self.bytes) {
            samples.push((millis(time), self.bytes));
        }
        let seconds = time.as_secs_f64();
        Reading {
            bytes: self.bytes,
            seconds,
            mbit_per_s: if seconds > 0.0 { self.bytes as f64 * 8e-6 / seconds } else { 0.0 },
            first_byte_ms: self.first.map(millis),
            longest_gap_ms: millis(self.gap),
            longest_gap_at_ms: millis(self.gap_at),
            samples,
        }
    }
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_gap_and_samples_are_measured() {
        let mut meter = Meter::new(Duration::from_millis(1));
        meter.take(10);
        std::thread::sleep(Duration::from_millis(30));
        let paused = Instant::now();
        meter.take(5);
        meter.take(5);
        let after = paused.elapsed();
        let reading = meter.reading();
        assert_eq!(reading.bytes, 20);
        assert!(reading.longest_gap_ms >= 30.0, "{reading:?}");
        // Unless this process was paused in the second gap for longer than the first one lasted.
        if after < Duration::from_millis(30) {
            assert_eq!(Some(reading.longest_gap_at_ms), reading.first_byte_ms, "{reading:?}");
        }
        assert_eq!(reading.samples.last().unwrap().1, 20);
    }

    #[test]
    fn samples_are_bounded() {
        let mut meter = Meter::new(Duration::ZERO);
        (0..3 * MAX_SAMPLES).for_each(|_| meter.take(1));
        assert!(meter.reading().samples.len() <= MAX_SAMPLES + 1);
    }
}
