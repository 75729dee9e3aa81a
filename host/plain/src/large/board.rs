//! The SACK scoreboard: the ranges that a client has after a hole (RFC 2018, RFC 6675).

use arrayvec::ArrayVec;

/// Limit on the ranges: those of a window in which every other segment is lost. Data of a range
/// beyond it is retransmitted needlessly.
const RANGES: usize = 512;

/// Disjoint ranges `[from, to)`, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Board {
    ranges: ArrayVec<(u32, u32), RANGES>,
}

impl Board {
    /// Adds a range that the client has.
    pub(crate) fn add(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        let first = self.ranges.partition_point(|range| range.1 < from);
        let last = self.ranges.partition_point(|range| range.0 <= to);
        if first == last {
            let _ = self.ranges.try_insert(first, (from, to));
            return;
        }
        let joined = (from.min(self.ranges[first].0), to.max(self.ranges[last - 1].1));
        self.ranges.drain(first + 1..last);
        self.ranges[first] = joined;
    }

    /// Drops ranges below an acknowledgement.
    pub(crate) fn trim(&mut self, una: u32) {
        let gone = self.ranges.partition_point(|range| range.1 <= una);
        self.ranges.drain(..gone);
        if let Some(first) = self.ranges.first_mut() {
            first.0 = first.0.max(una);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// End of the highest range.
    pub(crate) fn top(&self) -> u32 {
        self.ranges.last().map_or(0, |range| range.1)
    }

    /// Bytes of `[from, to)` that the client lacks.
    pub(crate) fn missing(&self, from: u32, to: u32) -> u32 {
        let there = |&(a, b): &(u32, u32)| b.min(to).saturating_sub(a.max(from));
        to.saturating_sub(from) - self.ranges.iter().map(there).sum::<u32>()
    }

    /// The first byte from `at` on that the client lacks.
    pub(crate) fn hole(&self, at: u32) -> u32 {
        self.ranges.iter().find(|range| range.0 <= at && at < range.1).map_or(at, |range| range.1)
    }

    /// Beginning of the first range above `at`.
    pub(crate) fn next(&self, at: u32) -> Option<u32> {
        self.ranges.iter().map(|range| range.0).find(|from| *from > at)
    }

    /// The offset below which missing data counts as lost, because at least `enough` bytes above it
    /// have arrived.
    pub(crate) fn lost_below(&self, enough: u32) -> u32 {
        let mut above = 0;
        for &(from, to) in self.ranges.iter().rev() {
            above += to - from;
            if above >= enough {
                return from;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn board_agrees_with_a_set_of_bytes(
            steps in prop::collection::vec((0u32..300, 0u32..60, prop::bool::weighted(0.1)), 0..60),
            (from, to, enough) in (0u32..400, 0u32..400, 1u32..80),
        ) {
            let (mut board, mut set, mut una) = (Board::default(), std::collections::BTreeSet::new(), 0);
            for (at, length, trim) in steps {
                if trim {
                    una = una.max(at);
                    board.trim(una);
                    set.retain(|n| *n >= una);
                } else if at >= una {
                    let full = board.ranges.is_full();
                    board.add(at, at + length);
                    if !full {
                        set.extend(at..at + length);
                    } else {
                        set = board.ranges.iter().flat_map(|r| r.0..r.1).collect();
                    }
                }
            }
            prop_assert!(board.ranges.windows(2).all(|w| w[0].1 < w[1].0), "{:?}", board);
            prop_assert_eq!(board.top(), set.last().map_or(0, |n| n + 1));
            prop_assert_eq!(board.missing(from, to), (from..to).filter(|n| !set.contains(n)).count() as u32);
            prop_assert_eq!(board.hole(from), (from..).find(|n| !set.contains(n)).unwrap());
            let lost = board.lost_below(enough);
            if lost > 0 {
                prop_assert!(set.range(lost..).count() as u32 >= enough);
                prop_assert!(!set.contains(&(lost - 1)));
            }
        }
    }
}
