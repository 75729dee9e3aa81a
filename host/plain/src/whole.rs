//! The timestamp of a back end's answer. It is the only answer of its connection, so the timestamp
//! has its length, where others have the offset of their beginning.
//!
//! ```text
//! kind 0   length / 4, from 32 on, high 8 | 00 2 | low 5 | class 2 | check 10 | length % 4, 2 | scale 3
//! ```
//!
//! A back end's bytes cannot be padded, so its answer may end anywhere. With the length, the
//! client's acknowledgement shows whether it has everything. With the check, a replica that asks
//! the back end again notices a different answer before bytes of two answers are mixed.

use rivulet_packet::nonce::half_sip_hash_32;

use crate::codec::{Class, FIRST_START, MAX_ANSWER};
use crate::stamp::Scale;

/// Bits of [`Whole::check`].
const CHECK: u32 = 0x3ff;
/// Not a secret: it distinguishes answers and proves nothing.
const CHECK_KEY: [u8; 8] = *b"rivulet\x01";

/// The contents of the timestamp of a back end's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Length of the answer, at most [`MAX_ANSWER`].
    pub length: u32,
    /// The class of the client's segments.
    pub class: Class,
    /// Ten bits of a hash of the answer.
    pub check: u16,
    /// The client's window scale.
    pub scale: Scale,
}

impl Whole {
    /// The timestamp fields for this answer.
    #[must_use]
    pub fn of(octets: &[u8], class: Class, scale: Scale) -> Whole {
        let check = (half_sip_hash_32(CHECK_KEY, octets) & CHECK) as u16;
        Whole { length: octets.len() as u32, class, check, scale }
    }

    /// Encodes the timestamp.
    #[must_use]
    pub fn value(self) -> u32 {
        let length = self.length.min(MAX_ANSWER);
        let (high, low) = (length / 4 + FIRST_START, length & 3);
        let middle = u32::from(self.class.number()) << 10 | u32::from(self.check) & CHECK;
        high >> 5 << 24 | (high & 31) << 17 | middle << 5 | low << 3 | u32::from(self.scale.number())
    }

    /// Decodes a timestamp; `None` if it is not of this format.
    #[must_use]
    pub fn parse(value: u32) -> Option<Whole> {
        let high = (value >> 24 << 5 | value >> 17 & 31).checked_sub(FIRST_START)?;
        let length = high * 4 + (value >> 3 & 3);
        (value >> 22 & 3 == 0 && length <= MAX_ANSWER).then(|| Whole {
            length,
            class: Class::numbered(value >> 15),
            check: (value >> 5 & CHECK) as u16,
            scale: Scale::numbered(value),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{CookieKey, CookieKeys, Flow};
    use crate::stamp::{Stamp, kernel_value};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoding_round_trips(length in 0..=MAX_ANSWER, class in 0u32..4, shift in 0u8..15) {
            let octets = vec![7; length as usize];
            let whole = Whole::of(&octets, Class::numbered(class), Scale::of(shift));
            prop_assert_eq!(Whole::parse(whole.value()), Some(whole));
            // The ToR recognises it as an answer's timestamp, and PAWS as later than the SYN-ACK's.
            prop_assert!(matches!(Stamp::parse(whole.value()), Stamp::Answer(_)));
            let flow = Flow::new("10.0.0.1:4000".parse().unwrap(), "10.9.0.1:53".parse().unwrap());
            let keys = CookieKeys { current: CookieKey::new([1; 8]), others: [None; 2] };
            prop_assert!(Stamp::opening(&flow, &keys, 15, u32::MAX, Scale::of(14)) < whole.value());
        }

        #[test]
        fn others_are_not_taken(value: u32) {
            match Stamp::parse(value) {
                Stamp::Answer(_) => prop_assert!(Whole::parse(value).is_none_or(|w| w.value() == value)),
                _ => prop_assert_eq!(Whole::parse(value), None),
            }
        }
    }

    #[test]
    fn changed_answer_of_equal_length_is_detected() {
        let whole = |octets: &[u8]| Whole::of(octets, Class::numbered(3), Scale::of(7));
        let mut octets = vec![0; 3000];
        let first = whole(&octets);
        let same = (0..3000).filter(|&n| {
            octets[n] ^= 0x55;
            let same = whole(&octets) == first;
            octets[n] ^= 0x55;
            same
        });
        // The check has ten bits: about 3 of 3,000 match by chance.
        let same = same.count();
        assert!(same < 12, "{same}");
        assert!(Whole::parse(kernel_value(0)).is_none());
    }
}
