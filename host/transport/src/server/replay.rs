//! The replay defence: each request is used once, and none after its generation was left (section
//! 2.2). Memory is bounded.
//!
//! Two banks of fingerprints: one for the current horizon, one for the previous. When a bank is
//! full, packets pass and are counted, so the memory fails open like the ToR's. Only authentic
//! requests are stored, so a flood of forged packets cannot fill it.

use alloc::boxed::Box;
use alloc::vec;
use rivulet_packet::RequestClass;

use crate::time::{Micros, Time};

/// The key under which one use of a request is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayKey {
    /// Class of the request; SYN for an address token and for the completion of a cookie.
    pub class: RequestClass,
    /// Number of the attempt, for requests that may be repeated.
    pub attempt: u8,
    /// Connection tag, or half of a digest of the token.
    pub tag: u32,
    /// Response number; 0 for requests that open the next generation, which are stored for the
    /// whole generation.
    pub number: u32,
}

/// How a generation was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftBy {
    /// By a TIMEOUT or RESTART; both lead to the same next generation.
    Timeout,
    /// By a REKEY, which leads to a different one.
    Rekey,
    /// By a REKEY that returned the window to the service, for another connection.
    Retirement,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// First use: allowed and stored.
    First,
    /// Used before.
    Spent,
    /// Allowed, but there was no room to store it.
    Forgotten,
}

/// Counters of the replay memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayStatistics {
    /// Uses allowed.
    pub allowed: u64,
    /// Uses refused.
    pub refused: u64,
    /// Uses allowed because the memory was full.
    pub overflowed: u64,
}

/// Maximum distance of a key from its home slot; bounds the work of a lookup.
const MAX_DISPLACEMENT: usize = 16;
/// Ratio of uses to generations left. Most generations end with their connection and need no entry.
const USES_A_GENERATION: usize = 16;

/// Fingerprints of the current horizon and the previous one, each with a value of 1 to 7.
struct Banks {
    banks: [Box<[u64]>; 2],
    current: usize,
}

impl Banks {
    fn new(keys: usize) -> Self {
        // At most half full, so that a key nearly always finds a slot within MAX_DISPLACEMENT.
        let slots = keys.saturating_mul(2).next_power_of_two().max(MAX_DISPLACEMENT * 2);
        let bank = || vec![0u64; slots].into_boxed_slice();
        Self { banks: [bank(), bank()], current: 0 }
    }

    fn bytes(&self) -> usize {
        2 * self.banks[0].len() * size_of::<u64>()
    }

    /// Starts a new horizon: clears the bank of the one before the last, or both.
    fn rotate(&mut self, both: bool) {
        if both {
            self.banks[self.current].fill(0);
        }
        self.current = 1 - self.current;
        self.banks[self.current].fill(0);
    }

    fn slots(&self, fingerprint: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.banks[0].len() - 1;
        let home = (fingerprint >> 20) as usize;
        (0..MAX_DISPLACEMENT).map(move |i| home.wrapping_add(i) & mask)
    }

    /// The value that a key was last stored with; 0: not stored.
    fn value(&self, fingerprint: u64) -> u64 {
        let find = |bank: &[u64]| {
            let mut there = self.slots(fingerprint).map(|at| bank[at]).take_while(|word| *word != 0);
            there.find(|word| word & !7 == fingerprint).map(|word| word & 7)
        };
        find(&self.banks[self.current]).or_else(|| find(&self.banks[1 - self.current])).unwrap_or(0)
    }

    /// Stores a key. Returns false if there is no room.
    fn put(&mut self, fingerprint: u64, value: u64) -> bool {
        let mut slots = self.slots(fingerprint);
        let bank = &mut self.banks[self.current];
        let place = slots.find(|at| bank[*at] == 0 || bank[*at] & !7 == fingerprint);
        if let Some(at) = place {
            bank[at] = fingerprint | value;
        }
        place.is_some()
    }
}

/// The replay memory. Its size never changes.
pub struct ReplayMemory {
    uses: Banks,
    left: Banks,
    turned: Time,
    /// When it started to record uses.
    since: Option<Time>,
    horizon: Micros,
    secret: u64,
    statistics: ReplayStatistics,
}

impl core::fmt::Debug for ReplayMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ReplayMemory")
            .field("bytes", &self.bytes())
            .field("counts", &self.statistics)
            .finish()
    }
}

impl ReplayMemory {
    /// A memory for at least `uses` uses in a horizon (some 34 bytes each). `secret` must be
    /// random, so that clients cannot choose keys that collide.
    pub fn new(uses: usize, horizon: Micros, secret: u64) -> Self {
        Self {
            uses: Banks::new(uses),
            left: Banks::new(uses / USES_A_GENERATION),
            turned: Time(0),
            since: None,
            horizon,
            secret,
            statistics: ReplayStatistics::default(),
        }
    }

    /// Counters so far.
    pub fn statistics(&self) -> ReplayStatistics {
        self.statistics
    }

    /// Bytes that it occupies; constant.
    pub fn bytes(&self) -> usize {
        self.uses.bytes() + self.left.bytes()
    }

    /// Records the use of `key` at `now` and returns whether it was the first.
    pub fn take(&mut self, key: ReplayKey, now: Time) -> Use {
        self.rotate(now);
        let fingerprint = self.fingerprint(key);
        let result = if self.uses.value(fingerprint) != 0 {
            Use::Spent
        } else if self.uses.put(fingerprint, 1) {
            Use::First
        } else {
            Use::Forgotten
        };
        match result {
            Use::First => self.statistics.allowed += 1,
            Use::Spent => self.statistics.refused += 1,
            Use::Forgotten => self.statistics.overflowed += 1,
        }
        result
    }

    /// Whether `key` was used.
    pub fn contains(&mut self, key: ReplayKey, now: Time) -> bool {
        self.rotate(now);
        self.uses.value(self.fingerprint(key)) != 0
    }

    /// Sets the time from which uses were recorded. Without it, that is the first call.
    #[must_use]
    pub fn since(self, began: Time) -> Self {
        Self { since: Some(began), ..self }
    }

    /// Whether the memory covers a whole horizon, apart from uses that found no room. After a
    /// restart it does not: it has no record of what an earlier process allowed.
    pub fn is_whole(&mut self, now: Time) -> bool {
        now.since(*self.since.get_or_insert(now)) >= self.horizon
    }

    /// Records that the generation of `tag` was left. Its requests are stale after a horizon, and
    /// refused until then. Returns false if there is no room.
    pub fn leave(&mut self, tag: u32, by: LeftBy, now: Time) -> bool {
        self.rotate(now);
        let fingerprint = self.fingerprint(generation(tag));
        let value = match by {
            LeftBy::Timeout => 1,
            LeftBy::Rekey => 2,
            LeftBy::Retirement => 3,
        };
        let remembered = self.left.put(fingerprint, value);
        self.statistics.overflowed += u64::from(!remembered);
        remembered
    }

    /// How the generation of `tag` was left; `None` if it was not, or more than a horizon ago.
    pub fn left(&mut self, tag: u32, now: Time) -> Option<LeftBy> {
        self.rotate(now);
        match self.left.value(self.fingerprint(generation(tag))) {
            0 => None,
            1 => Some(LeftBy::Timeout),
            2 => Some(LeftBy::Rekey),
            _ => Some(LeftBy::Retirement),
        }
    }

    fn rotate(&mut self, now: Time) {
        let since = now.since(self.turned);
        if since >= self.horizon {
            self.uses.rotate(since >= 2 * self.horizon);
            self.left.rotate(since >= 2 * self.horizon);
            self.turned = now;
        }
    }

    /// A keyed 61-bit fingerprint, never zero; the low three bits are clear.
    fn fingerprint(&self, key: ReplayKey) -> u64 {
        let a = u64::from(key.tag) << 32 | u64::from(key.number);
        let b = u64::from(key.attempt) << 8 | key.class as u64;
        let mut x = self.secret;
        for word in [a, b, self.secret.rotate_left(32)] {
            x ^= word;
            x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
            x ^= x >> 32;
            x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
            x ^= x >> 29;
        }
        (x & !7).max(8)
    }
}

/// The key of a generation.
fn generation(tag: u32) -> ReplayKey {
    ReplayKey { class: RequestClass::Close, attempt: 0, tag, number: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(class: RequestClass, number: u32) -> ReplayKey {
        ReplayKey { class, attempt: 0, tag: 9, number }
    }

    #[test]
    fn every_attempt_of_every_class_is_used_once() {
        let mut m = ReplayMemory::new(1000, 4_000_000, 77);
        let now = Time(100_000_000);
        for class in RequestClass::ALL.iter().copied() {
            for attempt in 0..=3 {
                for number in [1, 2] {
                    let key = ReplayKey { attempt, ..key(class, number) };
                    assert_eq!([m.take(key, now), m.take(key, now)], [Use::First, Use::Spent]);
                }
            }
        }
    }

    #[test]
    fn a_generation_that_was_left_stays_so_for_a_horizon() {
        let horizon = 4_000_000;
        let mut m = ReplayMemory::new(1000, horizon, 77);
        let now = Time(100_000_000);
        assert_eq!(m.left(9, now), None);
        m.leave(9, LeftBy::Timeout, now);
        m.leave(10, LeftBy::Rekey, now);
        for later in [now, now + horizon] {
            assert_eq!(
                [m.left(9, later), m.left(10, later), m.left(11, later)],
                [Some(LeftBy::Timeout), Some(LeftBy::Rekey), None]
            );
        }
        assert_eq!(m.left(9, now + 3 * horizon), None);
    }

    #[test]
    fn remembers_at_least_a_horizon_and_forgets_after_two() {
        let horizon = 4_000_000;
        for offset in [0, 1, 3_999_999] {
            let mut m = ReplayMemory::new(1000, horizon, 77);
            let start = Time(100_000_000);
            m.take(key(RequestClass::Normal, 0), start);
            let used = start + offset;
            assert_eq!(m.take(key(RequestClass::Normal, 1), used), Use::First);
            assert_eq!(m.take(key(RequestClass::Normal, 1), used + horizon), Use::Spent);
            assert_eq!(m.take(key(RequestClass::Normal, 2), used + 3 * horizon), Use::First);
            assert_eq!(
                m.take(key(RequestClass::Normal, 1), used + 3 * horizon),
                Use::First,
                "stale long since"
            );
        }
    }

    #[test]
    fn is_bounded_and_fails_open() {
        let mut m = ReplayMemory::new(1000, 4_000_000, 77);
        let bytes = m.bytes();
        let now = Time(100_000_000);
        let mut refused = 0;
        for n in 0..100_000 {
            refused += u32::from(m.take(key(RequestClass::Normal, n), now) == Use::Spent);
        }
        assert_eq!(refused, 0, "a fingerprint of 61 bits hardly ever refuses the innocent");
        assert_eq!(m.bytes(), bytes);
        assert!(m.statistics().overflowed > 90_000);
        assert_eq!(m.take(key(RequestClass::Normal, 0), now), Use::Spent, "what it holds it still defends");
    }

    #[test]
    fn up_to_its_size_nothing_is_forgotten() {
        let mut m = ReplayMemory::new(100_000, 4_000_000, 77);
        let now = Time(100_000_000);
        for n in 0..100_000 {
            m.take(key(RequestClass::Normal, n), now);
        }
        assert!(m.statistics().overflowed < 100, "{:?}", m.statistics());
    }
}
