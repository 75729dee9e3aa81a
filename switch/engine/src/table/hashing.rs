//! Hashes of keys.

/// Hashes a key. The seed prevents deliberate collisions.
#[inline(always)]
pub(super) fn hash(words: &[u64], seed: u64) -> u64 {
    words.iter().fold(seed, |h, w| {
        let m = u128::from(h ^ w) * 0x9E37_79B9_7F4A_7C15_u128;
        (m as u64) ^ (m >> 64) as u64
    })
}

#[inline(always)]
pub(super) fn hash_masked(words: &[u64], mask: &[u64], seed: u64) -> u64 {
    words.iter().zip(mask).fold(seed, |h, (w, k)| {
        let m = u128::from(h ^ (w & k)) * 0x9E37_79B9_7F4A_7C15_u128;
        (m as u64) ^ (m >> 64) as u64
    })
}
