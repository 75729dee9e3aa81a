//! The replay defence: one use of each response number, with bounded memory (section 2.2).
//!
//! Two banks of fingerprints: one being written, one of the horizon before. A bank that is full lets packets through and counts
//! them: the memory fails open, as the ToR's does. Only authentic requests are remembered, so nobody can fill it with garbage.

use rivulet_packet::RequestClass;

use crate::time::{Micros, Time};

/// How often one key may be used within the horizon.
fn limit(class: RequestClass) -> u8 {
    match class {
        RequestClass::Probe | RequestClass::Timeout | RequestClass::Restart | RequestClass::Close => 4,
        RequestClass::Normal | RequestClass::Rekey | RequestClass::Syn => 1,
    }
}

/// What one use of a request is remembered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayKey {
    /// Class of the request.
    pub class: RequestClass,
    /// Nonce epoch and generation, or 0.
    pub epoch: u32,
    /// Connection tag, or a digest of an address token.
    pub tag: u32,
    /// Response number; 0 for RESTART, which counts per generation.
    pub number: u32,
}

/// The answer of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Allowed, and remembered.
    First,
    /// Used as often as allowed.
    Spent,
    /// Allowed, but there was no room to remember it.
    Forgotten,
}

/// Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayStatistics {
    /// Uses allowed.
    pub allowed: u64,
    /// Uses refused.
    pub refused: u64,
    /// Uses allowed because the memory was full.
    pub overflowed: u64,
}

/// How far a key may lie from where it belongs: the work of one look-up is bounded by it.
const REACH: usize = 16;

/// The memory. Its size never changes.
pub struct ReplayMemory {
    banks: [Box<[u64]>; 2],
    current: usize,
    turned: Time,
    horizon: Micros,
    secret: u64,
    statistics: ReplayStatistics,
}

impl std::fmt::Debug for ReplayMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplayMemory")
            .field("slots", &self.banks[0].len())
            .field("counts", &self.statistics)
            .finish()
    }
}

impl ReplayMemory {
    /// A memory of at least `uses` uses a horizon (twice 8 bytes each). `secret` is drawn at random, so that nobody can
    /// choose keys that collide.
    pub fn new(uses: usize, horizon: Micros, secret: u64) -> Self {
        // Half full at most, so that a key nearly always finds a place within reach.
        let slots = uses.saturating_mul(2).next_power_of_two().max(REACH * 2);
        let bank = || vec![0u64; slots].into_boxed_slice();
        Self {
            banks: [bank(), bank()],
            current: 0,
            turned: Time(0),
            horizon,
            secret,
            statistics: ReplayStatistics::default(),
        }
    }

    /// Counts so far.
    pub fn statistics(&self) -> ReplayStatistics {
        self.statistics
    }

    /// Bytes it takes, for ever.
    pub fn bytes(&self) -> usize {
        2 * self.banks[0].len() * size_of::<u64>()
    }

    /// Asks for one use of `key` at `now`, and remembers it.
    pub fn take(&mut self, key: ReplayKey, now: Time) -> Use {
        self.turn(now);
        let fingerprint = self.fingerprint(key);
        let allowed = u64::from(limit(key.class));
        // The count stands in the low three bits; what the bank before remembers counts on.
        let before =
            self.find(1 - self.current, fingerprint).map_or(0, |at| self.banks[1 - self.current][at] & 7);
        let result = match self.place(fingerprint) {
            Some(at) => {
                let bank = &mut self.banks[self.current];
                let used = if bank[at] == 0 { before } else { bank[at] & 7 };
                if used >= allowed {
                    Use::Spent
                } else {
                    bank[at] = fingerprint | (used + 1);
                    Use::First
                }
            }
            None if before >= allowed => Use::Spent,
            None => Use::Forgotten,
        };
        match result {
            Use::First => self.statistics.allowed += 1,
            Use::Spent => self.statistics.refused += 1,
            Use::Forgotten => self.statistics.overflowed += 1,
        }
        result
    }

    /// A new horizon forgets the one before the last.
    fn turn(&mut self, now: Time) {
        if now.since(self.turned) < self.horizon {
            return;
        }
        if now.since(self.turned) >= 2 * self.horizon {
            self.banks[self.current].fill(0);
        }
        self.current = 1 - self.current;
        self.banks[self.current].fill(0);
        self.turned = now;
    }

    /// A keyed 61-bit fingerprint, never zero, its low three bits clear.
    fn fingerprint(&self, key: ReplayKey) -> u64 {
        let a = u64::from(key.tag) << 32 | u64::from(key.number);
        let b = u64::from(key.epoch) << 8 | key.class as u64;
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

    fn slots(&self, fingerprint: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.banks[0].len() - 1;
        let home = (fingerprint >> 20) as usize;
        (0..REACH).map(move |i| home.wrapping_add(i) & mask)
    }

    fn find(&self, bank: usize, fingerprint: u64) -> Option<usize> {
        let bank = &self.banks[bank];
        self.slots(fingerprint).take_while(|at| bank[*at] != 0).find(|at| bank[*at] & !7 == fingerprint)
    }

    /// Where the key stands or would stand in the current bank.
    fn place(&self, fingerprint: u64) -> Option<usize> {
        let bank = &self.banks[self.current];
        self.slots(fingerprint).find(|at| bank[*at] == 0 || bank[*at] & !7 == fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(class: RequestClass, number: u32) -> ReplayKey {
        ReplayKey { class, epoch: 1, tag: 9, number }
    }

    #[test]
    fn one_use_of_a_normal_request_and_four_of_a_probe() {
        let mut m = ReplayMemory::new(1000, 4_000_000, 77);
        let now = Time(100_000_000);
        assert_eq!(m.take(key(RequestClass::Normal, 1), now), Use::First);
        assert_eq!(m.take(key(RequestClass::Normal, 1), now), Use::Spent);
        assert_eq!(m.take(key(RequestClass::Normal, 2), now), Use::First);
        for n in 0..6 {
            let want = if n < 4 { Use::First } else { Use::Spent };
            assert_eq!(m.take(key(RequestClass::Probe, 1), now), want);
        }
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
