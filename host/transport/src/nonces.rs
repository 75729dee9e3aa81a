//! Nonces and the sums of a proof (section 2.2): two hashes for a range of any length.

use rivulet_packet::{EntryKind, ProofEntry};
use subtle::ConstantTimeEq;

use crate::keys::NonceKeys;

/// Whether the sum of every range is right. The time depends on the number and kinds of the
/// entries, never on the sums.
///
/// A forged range passes once in 2^32 attempts.
pub fn sums_are_right(
    keys: &NonceKeys,
    tag: u32,
    base: u32,
    entries: impl Iterator<Item = ProofEntry>,
) -> bool {
    let original = keys.original.tag(tag);
    let mut difference = 0u32;
    for entry in entries {
        let first = base.wrapping_add(u32::from(entry.first));
        let last = base.wrapping_add(u32::from(entry.last));
        difference |= match entry.kind {
            EntryKind::Original => original.range_sum(first, last) ^ entry.sum,
            EntryKind::Retransmitted => keys.retransmitted.tag(tag).range_sum(first, last) ^ entry.sum,
            EntryKind::Mark => 0,
        };
    }
    difference.ct_eq(&0).into()
}

/// The nonce of response `number`, made with K' if `prime`.
pub fn nonce(keys: &NonceKeys, tag: u32, number: u32, prime: bool) -> u32 {
    let key = if prime { keys.retransmitted } else { keys.original };
    key.tag(tag).nonce(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::MacKey;
    use rivulet_packet::NonceKey;

    fn keys() -> NonceKeys {
        NonceKeys {
            original: NonceKey { k0: 1, k1: 2 },
            retransmitted: NonceKey { k0: 3, k1: 4 },
            opening: MacKey::new(&[5; 16]),
        }
    }

    fn sum(numbers: core::ops::RangeInclusive<u32>, prime: bool) -> u32 {
        numbers.fold(0, |sum, n| sum ^ nonce(&keys(), 9, n, prime))
    }

    #[test]
    fn sums_of_received_nonces_pass_and_no_other() {
        let good = [
            ProofEntry::range(EntryKind::Original, 0, 4, sum(100..=104, false)),
            ProofEntry::range(EntryKind::Retransmitted, 5, 6, sum(105..=106, true)),
            ProofEntry::mark(3),
        ];
        assert!(sums_are_right(&keys(), 9, 100, good.into_iter()));
        assert!(!sums_are_right(&keys(), 8, 100, good.into_iter()), "another tag");
        assert!(!sums_are_right(&keys(), 9, 101, good.into_iter()), "another base");
        for i in 0..2 {
            let mut bad = good;
            bad[i].sum ^= 1;
            assert!(!sums_are_right(&keys(), 9, 100, bad.into_iter()));
            let mut other_key = good;
            other_key[i].kind = if i == 0 { EntryKind::Retransmitted } else { EntryKind::Original };
            assert!(!sums_are_right(&keys(), 9, 100, other_key.into_iter()), "a nonce of the other key");
        }
    }
}
