//! A filter of a few kilobytes that shows that a group lacks a hash: a blocked Bloom filter, with
//! all bits of a hash in one word (Putze, Sanders and Singler 2007).

/// Bits for each value when the filter is built; it is rebuilt at half as many.
const BITS: usize = 32;
/// Bits set for a value.
const PROBES: u32 = 3;

#[derive(Clone)]
pub(super) struct Filter {
    /// A power of two of words.
    words: Box<[u64]>,
    removed: usize,
}

/// The bits of a hash within its word; other bits of the hash select the word.
#[inline(always)]
fn bits(hash: u64) -> u64 {
    (0..PROBES).fold(0, |bits, i| bits | 1 << (hash >> (46 + 6 * i) & 63))
}

impl Filter {
    /// Creates a filter for `count` values with the given hashes.
    pub(super) fn new(count: usize, hashes: impl Iterator<Item = u64>) -> Filter {
        let words = (count * BITS / 64).next_power_of_two();
        let mut filter = Filter { words: vec![0; words].into_boxed_slice(), removed: 0 };
        hashes.for_each(|h| filter.add(h));
        filter
    }

    /// Whether it is still useful for `count` values, including removed ones.
    pub(super) fn holds(&self, count: usize) -> bool {
        (count + self.removed) * BITS / 2 <= self.words.len() * 64
    }

    pub(super) fn add(&mut self, hash: u64) {
        self.words[hash as usize & (self.words.len() - 1)] |= bits(hash);
    }

    /// Records a removal; returns true if the filter should be rebuilt.
    pub(super) fn stale(&mut self) -> bool {
        self.removed += 1;
        self.removed * BITS * 4 > self.words.len() * 64
    }

    /// False if the value is certainly absent.
    #[inline(always)]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        let bits = bits(hash);
        self.words[hash as usize & (self.words.len() - 1)] & bits == bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(i: u64) -> u64 {
        let m = u128::from(i ^ 0x5555) * 0x9E37_79B9_7F4A_7C15_u128;
        (m as u64) ^ (m >> 64) as u64
    }

    #[test]
    fn filter_misses_nothing_and_excludes_most_others() {
        let mut f = Filter::new(1000, (0..1000).map(hash));
        assert!((0..1000).all(|i| f.may_hold(hash(i))));
        let mut count = 1000;
        while f.holds(count + 1) {
            f.add(hash(count as u64));
            count += 1;
        }
        assert!(count >= 2000, "{count}");
        assert!((0..count as u64).all(|i| f.may_hold(hash(i))));
        let wrong = (1_000_000..1_100_000).filter(|i| f.may_hold(hash(*i))).count();
        assert!(wrong < 3000, "{wrong} of 100,000");
    }

    #[test]
    fn removals_make_it_stale() {
        let mut f = Filter::new(100, (0..100).map(hash));
        assert!((0..1000).any(|_| f.stale()));
    }
}
