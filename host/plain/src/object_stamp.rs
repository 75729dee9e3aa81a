//! The timestamps of a connection that the kernel's TCP has and that outlives its replica without a store (TRODS-TS,
//! `docs/trods.md`): the object that is being sent, and what the handshake agreed.
//!
//! ```text
//! index 5 | class 2 | key 1 | 11 2 | scale 3 | object 19
//! ```
//!
//! These are values of kind 3, the kernel's own, of [`Stamp`](crate::Stamp): segments of stateless
//! answers never have that kind. The index is in the highest bits and grows with time, so values of
//! a connection only grow (PAWS, RFC 7323 section 5). Within one index object 0 (no request yet)
//! precedes the number of an object, and that precedes [`NOBODYS`], which no replica can resume.
//!
//! The ISN is a hash of both ends under the key of an epoch, and the value has the epoch's lowest
//! bit. So an acknowledgement alone gives the client's offset.

use core::net::SocketAddr;

use rivulet_packet::nonce::half_sip_hash_words;
use rivulet_packet::slot::address_words;

use crate::codec::{Class, CookieKey};
use crate::stamp::Scale;

/// Prefix of the hash of the ISN, which separates it from stateless cookies ("TROD").
const DOMAIN: u32 = 0x5452_4f44;
/// The kind of the kernel's own values, in place.
const KIND: u32 = 3 << 22;
/// The object number of connections that no replica can resume.
pub const NOBODYS: u32 = (1 << 19) - 1;
/// The largest number of an object; 0 is none.
pub const MAX_OBJECT: u32 = NOBODYS - 1;
/// Number of indices.
pub const INDICES: u32 = 32;
/// How far an index may be ahead of the one that the client echoes: PAWS compares within half of the range.
pub const MAX_AHEAD: u32 = INDICES / 2 - 1;

/// A timestamp that names an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectStamp {
    /// Time, in steps; its lowest five bits are used.
    pub index: u8,
    /// Class of the client's segment size.
    pub class: Class,
    /// The lowest bit of the epoch of the ISN's key.
    pub odd: bool,
    /// The client's window scale.
    pub scale: Scale,
    /// The object, at most [`MAX_OBJECT`]; 0: nothing of the response has been sent; or
    /// [`NOBODYS`].
    pub object: u32,
}

impl ObjectStamp {
    /// Decodes a timestamp value; `None` if it is of another kind.
    #[must_use]
    pub fn parse(value: u32) -> Option<ObjectStamp> {
        (value & KIND == KIND).then(|| ObjectStamp {
            index: (value >> 27) as u8,
            class: Class::numbered(value >> 25),
            odd: value >> 24 & 1 != 0,
            scale: Scale::numbered(value >> 19),
            object: value & NOBODYS,
        })
    }

    /// Encodes the timestamp.
    #[must_use]
    pub fn value(self) -> u32 {
        u32::from(self.index) << 27
            | u32::from(self.class.number()) << 25
            | u32::from(self.odd) << 24
            | KIND
            | u32::from(self.scale.number()) << 19
            | self.object & NOBODYS
    }
}

/// The ISN of a connection between a client and a service. The service's address is not hashed,
/// because each service has its own key.
#[must_use]
pub fn object_isn(key: CookieKey, client: SocketAddr, service: SocketAddr) -> u32 {
    let [a, b, c, d] = address_words(client.ip());
    let ports = u32::from(client.port()) << 16 | u32::from(service.port());
    half_sip_hash_words([key.k0, key.k1], &[DOMAIN, a, b, c, d, ports])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LargeStamp, Stamp};
    use proptest::prelude::*;

    fn later(a: u32, b: u32) -> bool {
        a.wrapping_sub(b) as i32 > 0
    }

    proptest! {
        #[test]
        fn encoding_round_trips(index in 0u8..32, class in 0u32..4, odd: bool, shift in 0u8..15, object in 0..=NOBODYS) {
            let (class, scale) = (Class::numbered(class), Scale::of(shift));
            let stamp = ObjectStamp { index, class, odd, scale, object };
            prop_assert_eq!(ObjectStamp::parse(stamp.value()), Some(stamp));
        }

        #[test]
        fn object_stamps_and_stateless_stamps_are_distinct(value: u32) {
            match ObjectStamp::parse(value) {
                Some(stamp) => {
                    prop_assert_eq!(stamp.value(), value);
                    prop_assert_eq!(Stamp::parse(value), Stamp::Kernel);
                    prop_assert!(!LargeStamp::is_one(value));
                }
                None => prop_assert!(Stamp::parse(value) != Stamp::Kernel),
            }
        }

        #[test]
        fn values_grow_with_the_index_for_any_object(
            index in 0u8..32, ahead in 1..=MAX_AHEAD, class in 0u32..4, odd: bool, first in 0..=NOBODYS, second in 0..=NOBODYS,
        ) {
            let (class, scale) = (Class::numbered(class), Scale::of(7));
            let one = ObjectStamp { index, class, odd, scale, object: first };
            let other = ObjectStamp { index: (index + ahead as u8) % 32, object: second, ..one };
            prop_assert!(later(other.value(), one.value()));
            // Within one index the value grows from no object, to an object, to "no replica can
            // resume".
            let of = |object| ObjectStamp { object, ..one }.value();
            prop_assert!(later(of(NOBODYS), of(MAX_OBJECT)) && later(of(1), of(0)));
        }

        #[test]
        fn one_of_three_indices_is_new_to_any_client(index in 0u8..32, object in 0..=NOBODYS) {
            let one = ObjectStamp { index, class: Class::numbered(3), odd: true, scale: Scale::of(7), object };
            let of = |index| ObjectStamp { index, object: 0, ..one }.value();
            let ahead = |other: u8| other != index && later(of(other), one.value());
            prop_assert!([0, 11, 22].into_iter().any(ahead));
        }
    }
}
