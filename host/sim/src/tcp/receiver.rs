//! The receiving side: acknowledgements with SACK (RFC 2018) and D-SACK (RFC 2883).

use std::collections::VecDeque;

use super::Ack;
use crate::{MILLISECOND, Nanos};

/// Longest delay of an acknowledgement (RFC 1122 allows 500 ms; Linux uses 40).
const DELAY: Nanos = 40 * MILLISECOND;

/// The receiver's state.
#[derive(Debug, Clone, Default)]
pub struct Receiver {
    next: u64,
    /// Ranges `[from, to)` above `next`, the most recently extended one first.
    beyond: VecDeque<(u64, u64)>,
    delayed: bool,
    /// When a delayed acknowledgement is due, and the timestamp of its segment.
    due: Option<(Nanos, Nanos)>,
}

impl Receiver {
    /// Creates an empty receiver. `delayed`: acknowledges every second segment at once, and a
    /// single one after 40 ms.
    pub fn new(delayed: bool) -> Self {
        Self { delayed, ..Self::default() }
    }

    /// All segments below this one arrived.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// When a delayed acknowledgement is due.
    pub fn due(&self) -> Option<Nanos> {
        self.due.map(|d| d.0)
    }

    /// Records a segment; returns an acknowledgement to send at once.
    pub fn segment(&mut self, now: Nanos, seq: u64, timestamp: Nanos, marked: bool) -> Option<Ack> {
        let known = seq < self.next || self.beyond.iter().any(|r| (r.0..r.1).contains(&seq));
        if known {
            return Some(self.ack(Some(seq), marked));
        }
        if seq == self.next && self.beyond.is_empty() {
            self.next += 1;
            if self.delayed && self.due.is_none() && !marked {
                self.due = Some((now + DELAY, timestamp));
                return None;
            }
            return Some(self.ack(None, marked));
        }
        self.insert(seq);
        Some(self.ack(None, marked))
    }

    fn insert(&mut self, seq: u64) {
        let mut merged = (seq, seq + 1);
        self.beyond.retain(|r| {
            let touches = r.0 == merged.1 || r.1 == merged.0;
            if touches {
                merged = (merged.0.min(r.0), merged.1.max(r.1));
            }
            !touches
        });
        if merged.0 <= self.next {
            self.next = merged.1;
        } else {
            self.beyond.push_front(merged);
        }
    }

    /// The delayed acknowledgement, if it is due, with the timestamp to echo.
    pub fn timeout(&mut self, now: Nanos) -> Option<(Ack, Nanos)> {
        let (_, timestamp) = self.due.filter(|d| d.0 <= now)?;
        Some((self.ack(None, false), timestamp))
    }

    fn ack(&mut self, duplicate: Option<u64>, marked: bool) -> Ack {
        self.due = None;
        let mut sacks = [(0, 0); 3];
        for (slot, range) in sacks.iter_mut().zip(&self.beyond) {
            *slot = *range;
        }
        Ack { next: self.next, sacks, duplicate, marked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_reported_and_filled() {
        let mut r = Receiver::new(false);
        let mut got = |seq| {
            let a = r.segment(0, seq, 0, false).unwrap();
            (a.next, a.sacks, a.duplicate)
        };
        assert_eq!(got(0), (1, [(0, 0); 3], None));
        assert_eq!(got(2), (1, [(2, 3), (0, 0), (0, 0)], None));
        assert_eq!(got(4), (1, [(4, 5), (2, 3), (0, 0)], None));
        assert_eq!(got(3), (1, [(2, 5), (0, 0), (0, 0)], None));
        assert_eq!(got(3), (1, [(2, 5), (0, 0), (0, 0)], Some(3)));
        assert_eq!(got(1), (5, [(0, 0); 3], None));
    }

    #[test]
    fn delayed_acknowledgements_cover_two() {
        let mut r = Receiver::new(true);
        assert_eq!(r.segment(0, 0, 5, false), None);
        assert_eq!(r.segment(1, 1, 6, false).unwrap().next, 2);
        assert_eq!(r.segment(2, 2, 7, false), None);
        assert_eq!(r.timeout(3), None);
        let (ack, echo) = r.timeout(2 + DELAY).unwrap();
        assert_eq!((ack.next, echo, r.due()), (3, 7, None));
    }
}
