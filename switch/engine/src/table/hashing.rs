//! Hashes of keys.

/// Hashes a key. The seed prevents deliberate collisions.
#[inline(always)]
pub(super) fn hash(words: &[u64], seed: u64) -> u64 {
    words.iter().fold(seed, |h, w| mix(h, *w))
}

/// Hashes the bits of a key that a mask keeps.
#[inline(always)]
pub(super) fn hash_masked(words: &[u64], mask: &[u64], seed: u64) -> u64 {
    words.iter().zip(mask).fold(seed, |h, (w, k)| mix(h, w & k))
}

#[inline(always)]
fn mix(h: u64, word: u64) -> u64 {
    let m = u128::from(h ^ word) * 0x9E37_79B9_7F4A_7C15_u128;
    (m as u64) ^ (m >> 64) as u64
}
