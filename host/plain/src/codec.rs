//! What a connection carries instead of state: the SYN cookie, which is the server's ISN, and where on the connection an
//! acknowledgement stands.
//!
//! A connection that has timestamps is *stamped*, one without is *bare*. Both cookies are
//! HalfSipHash-2-4 of the client's address and the ports under a key of the service, with the
//! lowest bits replaced by state that a bare acknowledgement cannot carry otherwise:
//!
//! * stamped, 3 bits: the class of the segment size, and a zero that FIN makes a one. All positions are multiples of 8;
//! * bare, 10 bits: eight bits of the client's own sequence number, so that a second request is not taken for the first,
//!   and a bit that is set where the answer is at its end. Segments end at multiples of 1,024.

use core::fmt;
use core::net::SocketAddr;

use rivulet_packet::nonce::half_sip_hash_words;
use rivulet_packet::slot::address_words;

/// Length of a bare connection's segments, bytes.
pub const BARE_SEGMENT: u32 = 1024;
/// Limit on the length of an answer, which is the reach of a bare cookie, bytes.
pub const MAX_ANSWER: u32 = 15 << 10;
/// Largest offset at which the last answer of a stamped connection may begin, counted in bytes from
/// the first answer's beginning.
pub const MAX_START: u32 = (0x1fff - FIRST_START) * 64;
/// `start` of the first answer in a timestamp; lower values mark a SYN-ACK.
pub(crate) const FIRST_START: u32 = 32;
/// The bits of a client's sequence number that a bare cookie holds.
pub(crate) const BARE_SEQUENCE: u32 = 0x1fe;
/// Answers on a bare connection end in the upper half of a kilobyte.
pub(crate) const BARE_END: u32 = 0x200;

/// A HalfSipHash key with which a service makes its cookies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CookieKey {
    /// First word.
    pub k0: u32,
    /// Second word.
    pub k1: u32,
}

impl CookieKey {
    /// Makes a key of 8 bytes from the controller: two little-endian words.
    #[must_use]
    pub fn new(key: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = key;
        Self { k0: u32::from_le_bytes([a, b, c, d]), k1: u32::from_le_bytes([e, f, g, h]) }
    }

    fn hash(self, words: &[u32]) -> u32 {
        half_sip_hash_words([self.k0, self.k1], words)
    }
}

impl fmt::Debug for CookieKey {
    // Keys do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey(..)")
    }
}

/// The keys in force: new cookies use the first one, and all are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CookieKeys {
    /// The key of the present epoch.
    pub current: CookieKey,
    /// The key of the former epoch, while its connections still exist, and that of the next epoch,
    /// which other replicas may use already.
    pub others: [Option<CookieKey>; 2],
}

impl CookieKeys {
    /// The key with this number: 0 is the current one, then the others.
    pub(crate) fn get(&self, number: usize) -> Option<CookieKey> {
        match number {
            0 => Some(self.current),
            _ => *self.others.get(number - 1)?,
        }
    }
}

/// Segment sizes that a stamped cookie distinguishes, bytes of the client's MSS.
const SIZES: [u16; 4] = [536, 1220, 1440, 1460];

/// Class of the client's segment size: the largest known size that does not exceed the client's
/// MSS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(u8);

impl Class {
    /// The class of a maximum segment size; `None` below the smallest, 536.
    #[must_use]
    pub fn of(mss: u16) -> Option<Class> {
        SIZES.iter().rposition(|&size| size <= mss).map(|n| Class(n as u8))
    }

    /// Its number, 0 to 3.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// The maximum segment size that it stands for.
    #[must_use]
    pub fn mss(self) -> u16 {
        SIZES[usize::from(self.0 & 3)]
    }

    /// Bytes of data in a full segment with timestamps, a multiple of 8.
    #[must_use]
    pub fn segment(self) -> u32 {
        (u32::from(self.mss()) - 12) & !7
    }

    /// The class in the lowest two bits of `number`.
    pub(crate) fn numbered(number: u32) -> Class {
        Class((number & 3) as u8)
    }

    /// All classes.
    pub fn all() -> impl Iterator<Item = Class> {
        (0..4).map(Class)
    }
}

/// What a client has received, derived from its acknowledgement number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On a connection with timestamps.
    Stamped {
        /// The client's class.
        class: Class,
        /// Bytes that the client has, counted over all answers.
        at: u32,
        /// Whether it has the last answer's FIN too.
        fin: bool,
    },
    /// On a connection without timestamps, within its only answer.
    Bare {
        /// Bytes that the client has, a multiple of [`BARE_SEGMENT`].
        at: u32,
        /// The bits of the client's first sequence number that the cookie holds.
        sequence: u32,
    },
    /// On a connection without timestamps, at the end of its answer.
    BareEnd {
        /// Whether the client has the FIN too.
        fin: bool,
    },
}

/// The addresses and ports that a cookie covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    words: [u32; 5],
}

impl Flow {
    /// The connection between this client and this service. The service's address is not hashed,
    /// because each service has its own key.
    #[must_use]
    pub fn new(client: SocketAddr, service: SocketAddr) -> Flow {
        let [a, b, c, d] = address_words(client.ip());
        Flow { words: [a, b, c, d, u32::from(client.port()) << 16 | u32::from(service.port())] }
    }

    /// The ISN of a stamped connection.
    #[must_use]
    pub fn stamped(&self, key: CookieKey, class: Class) -> u32 {
        key.hash(&self.words) & !7 | u32::from(class.0) << 1
    }

    /// The ISN of a bare connection; `first`: sequence number of the client's first byte.
    #[must_use]
    pub fn bare(&self, key: CookieKey, first: u32) -> u32 {
        key.hash(&self.words) & !0x3ff | first & BARE_SEQUENCE
    }

    /// Bytes from the cookie's hash to an acknowledgement, low bits included; `None` if no cookie
    /// is within reach.
    pub(crate) fn distance(&self, keys: &CookieKeys, ack: u32, stamped: bool) -> Option<u32> {
        let read = |key: CookieKey| {
            let (low, reach) =
                if stamped { (7, MAX_START + MAX_ANSWER) } else { (0x3ff, MAX_ANSWER + 2 * BARE_SEGMENT) };
            let distance = ack.wrapping_sub(1).wrapping_sub(key.hash(&self.words) & !low);
            (distance < reach).then_some(distance)
        };
        read(keys.current).or_else(|| keys.others.iter().flatten().find_map(|key| read(*key)))
    }

    /// Bytes from the cookie under key `key` (0: the current one) to an acknowledgement of a
    /// stamped connection, if below `reach`.
    pub(crate) fn distance_within(&self, keys: &CookieKeys, key: usize, ack: u32, reach: u32) -> Option<u32> {
        let distance = ack.wrapping_sub(1).wrapping_sub(keys.get(key)?.hash(&self.words) & !7);
        (distance < reach).then_some(distance)
    }

    /// A hash of these words and the connection under a key.
    pub(crate) fn seal(&self, key: CookieKey, [first, second]: [u32; 2]) -> u32 {
        let [a, b, c, d, ports] = self.words;
        key.hash(&[first, second, a, b, c, d, ports])
    }

    /// A hash of the client's address under the current key; of an IPv6 address, its upper half.
    pub(crate) fn address_hash(&self, keys: &CookieKeys) -> u32 {
        keys.current.hash(&self.network())
    }

    /// The client's network, by which the table of downloads limits evictions: an IPv4 address, or
    /// the upper 64 bits of an IPv6 address.
    pub(crate) fn network(&self) -> [u32; 4] {
        let [a, b, c, d, _] = self.words;
        // In an IPv4-mapped address the last 32 bits are the IPv4 address.
        if (a, b, c) == (0, 0, 0xffff) { [a, b, c, d] } else { [a, b, 0, 0] }
    }

    /// What an acknowledgement shows; `None` if it is out of every cookie's reach.
    #[must_use]
    pub fn place(&self, keys: &CookieKeys, ack: u32, stamped: bool) -> Option<Place> {
        let distance = self.distance(keys, ack, stamped)?;
        Some(match (stamped, distance & BARE_END) {
            (true, _) => Place::Stamped {
                class: Class((distance >> 1 & 3) as u8),
                at: distance & !7,
                fin: distance & 1 != 0,
            },
            (false, 0) => Place::Bare { at: distance & !0x3ff, sequence: distance & 0x1ff },
            (false, _) => Place::BareEnd { fin: distance & 1 != 0 },
        })
    }

    /// Hash that spreads flows over a table of soft state. It needs no secret: an attacker who
    /// fills a cell only slows down the flows of that cell.
    pub(crate) fn spread(&self) -> u32 {
        let [a, b, c, d, ports] = self.words;
        (a ^ b ^ c.rotate_left(9) ^ d.rotate_left(5) ^ ports.rotate_left(16)).wrapping_mul(0x9e37_79b9) >> 8
    }

    /// A pad of 15 bits, depending on the minute, that keeps others from making the timestamp of a
    /// SYN-ACK.
    #[must_use]
    pub(crate) fn pad(&self, key: CookieKey, minute: u32, scale: u8) -> u16 {
        let [a, b, c, d, ports] = self.words;
        (key.hash(&[a, b, c, d, ports, minute << 3 | u32::from(scale)]) >> 17) as u16
    }
}

/// Whether the bits in a bare connection's cookie permit `seq` as the sequence number of the
/// client's first byte.
#[must_use]
pub(crate) fn is_bare_start(sequence: u32, seq: u32) -> bool {
    seq & BARE_SEQUENCE == sequence
}

/// Whether an answer of this length ends at an allowed place, on a bare connection of a client that
/// began at `seq`.
#[must_use]
pub(crate) fn is_bare_end(seq: u32, length: u32) -> bool {
    ((seq & BARE_SEQUENCE) + length) & BARE_END != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keys() -> CookieKeys {
        CookieKeys {
            current: CookieKey::new([1, 2, 3, 4, 5, 6, 7, 8]),
            others: [Some(CookieKey::new([8, 7, 6, 5, 4, 3, 2, 1])), None],
        }
    }

    fn flow(port: u16) -> Flow {
        Flow::new((core::net::Ipv4Addr::new(10, 0, 0, 1), port).into(), "10.9.0.1:80".parse().unwrap())
    }

    #[test]
    fn classes_are_the_largest_that_fit() {
        let class = |mss| Class::of(mss).map(|c| (c.number(), c.segment()));
        assert_eq!(class(535), None);
        assert_eq!(class(536), Some((0, 520)));
        assert_eq!(class(1219), Some((0, 520)));
        assert_eq!(class(1220), Some((1, 1208)));
        assert_eq!(class(1452), Some((2, 1424)));
        assert_eq!(class(65535), Some((3, 1448)));
        assert!(Class::all().all(|c| c.segment() % 8 == 0));
    }

    proptest! {
        #[test]
        fn stamped_acknowledgement_gives_its_offset(
            port: u16, class in 0u8..4, at in 0..(MAX_START + MAX_ANSWER) / 8, fin: bool, before: bool,
        ) {
            let (keys, class, at) = (keys(), Class(class), at * 8);
            let key = if before { keys.others[0].unwrap() } else { keys.current };
            let ack = flow(port).stamped(key, class).wrapping_add(1 + at + u32::from(fin));
            // A cookie of the other key is within this one's reach once in 8,000.
            let alone = flow(port).place(&CookieKeys { others: [None; 2], ..keys }, ack, true);
            prop_assume!(alone.is_none() || !before);
            prop_assert_eq!(alone.is_some(), !before);
            prop_assert_eq!(flow(port).place(&keys, ack, true), Some(Place::Stamped { class, at, fin }));
        }

        #[test]
        fn bare_acknowledgement_gives_its_offset(port: u16, first: u32, segments in 0..15u32, end in 256..MAX_ANSWER / 2, fin: bool) {
            let (keys, at) = (keys(), segments * BARE_SEGMENT);
            let isn = flow(port).bare(keys.current, first);
            let Some(Place::Bare { at: found, sequence }) = flow(port).place(&keys, isn.wrapping_add(1 + at), false)
            else { panic!("no place") };
            prop_assert_eq!(found, at);
            prop_assert!(is_bare_start(sequence, first));
            // A following request that is shorter than a segment does not count as the first one.
            for length in (2..511).chain(515..1023) {
                prop_assert!(!is_bare_start(sequence, first.wrapping_add(length)), "{}", length);
            }
            let end = end * 2;
            if is_bare_end(first, end) {
                let ack = isn.wrapping_add(1 + end + u32::from(fin));
                prop_assert_eq!(flow(port).place(&keys, ack, false), Some(Place::BareEnd { fin }));
            }
        }
    }

    #[test]
    fn acknowledgement_out_of_reach_is_refused() {
        let keys = CookieKeys { others: [None; 2], ..keys() };
        let isn = flow(1).stamped(keys.current, Class(0));
        for ack in [isn, isn.wrapping_add(2 + MAX_START + MAX_ANSWER)] {
            assert_eq!(flow(1).place(&keys, ack, true), None);
        }
        assert_eq!(flow(2).place(&keys, isn.wrapping_add(1), true), None);
        // A random acknowledgement, tried under two keys, each with its reach.
        let keys = CookieKeys { others: [None, Some(CookieKey::new([9; 8]))], ..keys };
        let hits = |stamped| {
            let of = |n: u32| flow(3).place(&keys, n.wrapping_mul(0x9e37_79b9), stamped).is_some();
            (0..1 << 20).filter(|n| of(*n)).count()
        };
        // 2^20 guesses at (522,176 + 15,360) and (15,360 + 2,048) of 2^32, twice.
        assert!((200..330).contains(&hits(true)), "{}", hits(true));
        assert!((1..25).contains(&hits(false)), "{}", hits(false));
    }
}
