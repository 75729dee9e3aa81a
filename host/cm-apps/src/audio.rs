//! Audio whose source cannot adapt (the paper's §3.6 and Figure 2, there vat). A policer drops what
//! exceeds the flow's rate for long, and an application buffer holds datagrams until they are
//! granted, which absorbs short changes. A full buffer drops its oldest datagram, because late
//! audio is useless to the listener.

use std::collections::VecDeque;

use libcm::{Status, Thresholds};

use crate::source::{Dropped, Next, Source};
use crate::time::SECOND;
use crate::wire::HEADER;
use crate::{Nanos, time::MILLISECOND};

/// Which datagram a full buffer drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Drop {
    /// The oldest.
    Head,
    /// The newest.
    Tail,
}

/// A token bucket that fills at the flow's rate.
#[derive(Debug)]
pub struct Policer {
    /// Bytes a second; `None`: unknown yet, and every datagram passes.
    rate: Option<u64>,
    /// Bucket depth: nanoseconds at the rate.
    depth: Nanos,
    /// Tokens: bytes times nanoseconds in a second.
    tokens: u128,
    filled: Nanos,
}

impl Policer {
    /// Creates a policer whose bucket holds `depth` nanoseconds of the rate.
    #[must_use]
    pub fn new(depth: Nanos) -> Policer {
        Policer { rate: None, depth, tokens: 0, filled: 0 }
    }

    /// Sets the rate. The first rate finds the bucket full.
    pub fn set(&mut self, now: Nanos, rate: u64) {
        let full = u128::from(rate) * u128::from(self.depth);
        match self.rate {
            None => (self.tokens, self.filled) = (full, now),
            Some(_) => self.fill(now),
        }
        self.rate = Some(rate);
        self.tokens = self.tokens.min(full);
    }

    fn fill(&mut self, now: Nanos) {
        let Some(rate) = self.rate.map(u128::from) else { return };
        let passed = u128::from(now.saturating_sub(self.filled));
        self.filled = now;
        self.tokens = (self.tokens + rate * passed).min(rate * u128::from(self.depth));
    }

    /// Whether a datagram of this many bytes passes.
    pub fn passes(&mut self, now: Nanos, bytes: usize) -> bool {
        self.fill(now);
        let cost = bytes as u128 * u128::from(SECOND);
        if self.rate.is_none() {
            return true;
        }
        let passes = self.tokens >= cost;
        if passes {
            self.tokens -= cost;
        }
        passes
    }
}

/// The audio stream of one receiver.
#[derive(Debug)]
pub struct Audio {
    policer: Policer,
    buffer: VecDeque<Vec<u8>>,
    limit: usize,
    drop: Drop,
    /// Largest content of a datagram in bytes.
    most: usize,
    dropped: Dropped,
}

/// Bucket depth of the policer: longer than the controller's probing, shorter than a change that
/// listeners notice.
pub const DEPTH: Nanos = 500 * MILLISECOND;

impl Audio {
    /// Creates a buffer of `limit` datagrams with up to `most` bytes each.
    #[must_use]
    pub fn new(limit: usize, drop: Drop, most: usize) -> Audio {
        let (policer, buffer) = (Policer::new(DEPTH), VecDeque::with_capacity(limit));
        Audio { policer, buffer, limit: limit.max(1), drop, most, dropped: Dropped::default() }
    }
}

impl Source for Audio {
    fn ready(&self) -> u32 {
        self.buffer.len() as u32
    }

    fn next(&mut self, _now: Nanos, _status: Option<Status>, room: &mut [u8]) -> Option<Next> {
        let content = self.buffer.pop_front()?;
        room.get_mut(..content.len())?.copy_from_slice(&content);
        Some(Next { layer: 0, bytes: content.len() })
    }

    fn thresholds(&self) -> Option<Thresholds> {
        Some(Thresholds { rate_down: 0.9, rate_up: 1.1, rtt_down: 0.0, rtt_up: f64::INFINITY })
    }

    fn changed(&mut self, now: Nanos, status: &Status) {
        self.policer.set(now, status.rate);
    }

    fn offer(&mut self, now: Nanos, content: &[u8]) {
        if content.len() > self.most {
            self.dropped.large += 1;
            return;
        }
        if !self.policer.passes(now, HEADER + content.len()) {
            self.dropped.policed += 1;
            return;
        }
        if self.buffer.len() >= self.limit {
            self.dropped.buffer += 1;
            if self.drop == Drop::Tail {
                return;
            }
            self.buffer.pop_front();
        }
        self.buffer.push_back(content.to_vec());
    }

    fn dropped(&self) -> Dropped {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(audio: &mut Audio) -> Vec<u8> {
        let mut room = [0; 1000];
        std::iter::from_fn(|| audio.next(0, None, &mut room).map(|next| (next.bytes, room[0])))
            .map(|(bytes, first)| {
                assert_eq!(bytes, 100);
                first
            })
            .collect()
    }

    #[test]
    fn a_full_buffer_drops_from_its_head_or_its_tail() {
        for (drop, left) in [(Drop::Head, [2, 3, 4]), (Drop::Tail, [0, 1, 2])] {
            let mut audio = Audio::new(3, drop, 100);
            (0..5).for_each(|n| audio.offer(0, &[n; 100]));
            assert_eq!((audio.ready(), audio.dropped().buffer), (3, 2));
            assert_eq!(taken(&mut audio), left);
        }
    }

    #[test]
    fn datagrams_larger_than_the_path_are_counted() {
        let mut audio = Audio::new(3, Drop::Head, 100);
        audio.offer(0, &[0; 101]);
        assert_eq!((audio.ready(), audio.dropped().large), (0, 1));
    }

    #[test]
    fn the_policer_lets_the_rate_through_for_long_and_a_bucket_at_once() {
        let mut policer = Policer::new(SECOND / 2);
        assert!(policer.passes(0, usize::MAX / 2), "nothing is known yet");
        policer.set(SECOND, 10_000);
        let mut passed = |from: Nanos, every: Nanos, count: u64| {
            (0..count).filter(|n| policer.passes(from + n * every, 100)).count()
        };
        assert_eq!(passed(SECOND, 0, 100), 50, "half a second of it at once");
        // Twice the rate for ten seconds: half of the datagrams pass.
        assert_eq!(passed(SECOND, 5 * MILLISECOND, 2000), 999);
        // Unused tokens accumulate only up to the bucket's depth.
        assert_eq!(passed(100 * SECOND, 0, 100), 50);
    }

    #[test]
    fn falling_rate_cuts_saved_tokens() {
        let mut policer = Policer::new(SECOND / 2);
        policer.set(0, 10_000);
        policer.set(0, 1_000);
        assert_eq!((0..100).filter(|_| policer.passes(0, 100)).count(), 5);
        policer.set(SECOND, 0);
        assert!(!policer.passes(9 * SECOND, 1));
    }

    #[test]
    fn the_policer_stands_before_the_buffer() {
        let mut audio = Audio::new(100, Drop::Head, 100);
        audio.changed(0, &Status { rate: 2400, ..Status::default() });
        (0..20).for_each(|n| audio.offer(0, &[n; 100]));
        assert_eq!((audio.dropped().policed, audio.dropped().buffer), (10, 0));
        assert_eq!(taken(&mut audio), (0..10).collect::<Vec<_>>());
    }
}
