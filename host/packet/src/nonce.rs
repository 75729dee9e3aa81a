//! HalfSipHash-2-4 and the nonces of a connection.
//!
//! HalfSipHash is the 32-bit variant of SipHash (Aumasson and Bernstein, INDOCRYPT 2012); the reference
//! is in the public domain (CC0). A nonce key is one 64-bit key of it. Random numbers of packets,
//! `r(x) = HalfSipHash(K, tag ‖ x)`, give the nonce of packet x as `r(x) ^ r(x+1)`, so that the nonces
//! of a whole range XOR to two of them (section 2.4 of the Trickles paper).

use core::fmt;

#[derive(Clone, Copy)]
struct State {
    v0: u32,
    v1: u32,
    v2: u32,
    v3: u32,
}

impl State {
    fn new(k0: u32, k1: u32) -> Self {
        Self { v0: k0, v1: k1, v2: 0x6c79_6765 ^ k0, v3: 0x7465_6462 ^ k1 }
    }

    #[inline(always)]
    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(5) ^ self.v0;
        self.v0 = self.v0.rotate_left(16);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(8) ^ self.v2;
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(7) ^ self.v0;
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(13) ^ self.v2;
        self.v2 = self.v2.rotate_left(16);
    }

    #[inline(always)]
    fn absorb(&mut self, word: u32) {
        self.v3 ^= word;
        self.round();
        self.round();
        self.v0 ^= word;
    }

    #[inline(always)]
    fn finish(&mut self) -> u32 {
        for _ in 0..4 {
            self.round();
        }
        self.v1 ^ self.v3
    }
}

/// The last word: the bytes left over, and the message's length modulo 256 on top.
fn last_word(message: &[u8]) -> u32 {
    let rest = message.chunks_exact(4).remainder();
    let mut w = [0; 4];
    w[..rest.len()].copy_from_slice(rest);
    w[3] = message.len() as u8;
    u32::from_le_bytes(w)
}

/// HalfSipHash-2-4 of a message with a 32-bit result: the reference's general form. The integer in
/// little-endian byte order is the reference's output.
pub fn half_sip_hash_32(key: [u8; 8], message: &[u8]) -> u32 {
    let [a, b, c, d, e, f, g, h] = key;
    let mut s = State::new(u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    for w in message.chunks_exact(4) {
        s.absorb(u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    }
    s.absorb(last_word(message));
    s.v2 ^= 0xff;
    s.finish()
}

/// HalfSipHash-2-4 of a message of 32-bit words, each little-endian, with a 32-bit result: the form
/// that switches calculate.
pub fn half_sip_hash_words(key: [u32; 2], words: &[u32]) -> u32 {
    let mut s = State::new(key[0], key[1]);
    for &w in words {
        s.absorb(w);
    }
    s.absorb((words.len() as u32 * 4) << 24);
    s.v2 ^= 0xff;
    s.finish()
}

/// HalfSipHash-2-4 of any message with a 64-bit result; first word in the low half.
///
/// Used for verification: the authors' vectors cover both forms, and passing both verifies all four
/// words of the state.
pub fn half_sip_hash_64(key: [u8; 8], message: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h] = key;
    let mut s = State::new(u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    s.v1 ^= 0xee;
    for w in message.chunks_exact(4) {
        s.absorb(u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    }
    s.absorb(last_word(message));
    s.v2 ^= 0xee;
    let low = s.finish();
    s.v1 ^= 0xdd;
    u64::from(low) | u64::from(s.finish()) << 32
}

/// K or K' of a nonce epoch: the two words of a HalfSipHash key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NonceKey {
    /// First word.
    pub k0: u32,
    /// Second word.
    pub k1: u32,
}

impl fmt::Debug for NonceKey {
    // Keeps the key out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NonceKey(..)")
    }
}

impl NonceKey {
    /// The nonces of one connection tag. The rounds that depend only on the tag are done once here.
    pub fn tag(self, tag: u32) -> TaggedNonces {
        let mut state = State::new(self.k0, self.k1);
        state.absorb(tag);
        TaggedNonces { state }
    }

    /// `r(x)` of one tag; use [`NonceKey::tag`] for several numbers of a tag.
    pub fn r(self, tag: u32, number: u32) -> u32 {
        self.tag(tag).r(number)
    }
}

/// The nonces of one connection tag under one key.
#[derive(Clone, Copy)]
pub struct TaggedNonces {
    state: State,
}

impl fmt::Debug for TaggedNonces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaggedNonces(..)")
    }
}

impl TaggedNonces {
    /// `r(x)`; a server never reveals it directly.
    #[inline]
    pub fn r(&self, number: u32) -> u32 {
        let mut s = self.state;
        s.absorb(number);
        // An 8-byte message has no remaining bytes: the last word contains only the length.
        s.absorb(8 << 24);
        s.v2 ^= 0xff;
        s.finish()
    }

    /// The nonce of packet `number`: `r(number) ^ r(number + 1)`.
    #[inline]
    pub fn nonce(&self, number: u32) -> u32 {
        self.r(number) ^ self.r(number.wrapping_add(1))
    }

    /// XOR of the nonces of the packets `first..=last`, by two hashes for any length.
    #[inline]
    pub fn range_sum(&self, first: u32, last: u32) -> u32 {
        self.r(first) ^ self.r(last.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_authors_vectors_at_every_length() {
        let file: serde_json::Value =
            serde_json::from_str(include_str!("../tests/data/halfsiphash-2-4.json")).unwrap();
        let key: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        let message: Vec<u8> = (0..64).collect();
        let hex = |v: &serde_json::Value| u64::from_str_radix(v.as_str().unwrap(), 16).unwrap();
        let (short, long) = (&file["tag32_hex"], &file["tag64_hex"]);
        assert_eq!((short.as_array().unwrap().len(), long.as_array().unwrap().len()), (64, 64));
        for n in 0..64 {
            let m = &message[..n];
            assert_eq!(
                u64::from(half_sip_hash_32(key, m).swap_bytes()),
                hex(&short[n]),
                "32 bits of {n} bytes"
            );
            assert_eq!(half_sip_hash_64(key, m).swap_bytes(), hex(&long[n]), "64 bits of {n} bytes");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_short_form_is_the_general_one(k0: u32, k1: u32, tag: u32, number: u32) {
            let mut key = [0; 8];
            key[..4].copy_from_slice(&k0.to_le_bytes());
            key[4..].copy_from_slice(&k1.to_le_bytes());
            let mut message = [0; 8];
            message[..4].copy_from_slice(&tag.to_le_bytes());
            message[4..].copy_from_slice(&number.to_le_bytes());
            proptest::prop_assert_eq!(NonceKey { k0, k1 }.r(tag, number), half_sip_hash_32(key, &message));
        }

        #[test]
        fn words_are_little_endian_bytes(k0: u32, k1: u32, words in proptest::collection::vec(0u32.., 0..80)) {
            let bytes = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
            let key: [u8; 8] = bytes(&[k0, k1]).try_into().unwrap();
            proptest::prop_assert_eq!(half_sip_hash_words([k0, k1], &words), half_sip_hash_32(key, &bytes(&words)));
        }

        #[test]
        fn a_range_sums_to_its_ends(k0: u32, k1: u32, tag: u32, first: u32, len in 1u32..200) {
            let n = NonceKey { k0, k1 }.tag(tag);
            let last = first.wrapping_add(len - 1);
            let sum = (0..len).fold(0, |s, i| s ^ n.nonce(first.wrapping_add(i)));
            proptest::prop_assert_eq!(sum, n.range_sum(first, last));
        }
    }
}
