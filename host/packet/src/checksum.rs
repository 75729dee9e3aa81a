//! The Internet checksum (RFC 1071): over bytes, with a pseudo header (RFC 9293 §3.1, RFC 8200
//! §8.1), and incremental (RFC 1624, equation 3).

use core::net::IpAddr;

/// An unfinished ones' complement sum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// An empty sum.
    pub fn new() -> Self {
        Self(0)
    }

    /// Adds bytes that begin at an even offset; an odd last byte is padded with zero, so only the last
    /// call may have one.
    #[must_use]
    pub fn bytes(mut self, b: &[u8]) -> Self {
        // Four bytes at a time into 64 bits: no carry can be lost below 2^32 words, and a packet has
        // fewer. 2^16 = 1 modulo 0xffff, so 32-bit words fold to the same result as 16-bit ones.
        let mut words = b.chunks_exact(4);
        for w in &mut words {
            self.0 += u64::from(u32::from_be_bytes([w[0], w[1], w[2], w[3]]));
        }
        let rest = words.remainder();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        self.0 += u64::from(u32::from_be_bytes(last));
        self
    }

    /// Adds one 16-bit word.
    #[must_use]
    pub fn word(mut self, w: u16) -> Self {
        self.0 += u64::from(w);
        self
    }

    /// Adds the pseudo header of a segment of `len` bytes.
    #[must_use]
    pub fn pseudo_header(self, src: IpAddr, dst: IpAddr, protocol: u8, len: usize) -> Self {
        let sum = match (src, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => self.bytes(&s.octets()).bytes(&d.octets()),
            (IpAddr::V6(s), IpAddr::V6(d)) => self.bytes(&s.octets()).bytes(&d.octets()),
            // Mixed families never occur in one packet; map to IPv6 so that the function is total.
            (s, d) => self.bytes(&to_v6(s)).bytes(&to_v6(d)),
        };
        sum.word(u16::from(protocol)).bytes(&(len as u32).to_be_bytes())
    }

    /// The checksum: the complement of the folded sum.
    pub fn finish(self) -> u16 {
        let mut s = self.0;
        while s > 0xffff {
            s = (s & 0xffff) + (s >> 16);
        }
        !(s as u16)
    }
}

fn to_v6(a: IpAddr) -> [u8; 16] {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// Updates a checksum after the even-aligned field `old` was replaced by `new` of the same length
/// (RFC 1624, equation 3: `HC' = ~(~HC + ~m + m')`).
///
/// A wrong checksum stays wrong by the same difference, so damage is not hidden. If the lengths
/// differ, the shorter field counts as padded with zeros.
pub fn replace(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let mut sum = Sum::new().word(!checksum).bytes(new);
    for w in old.chunks(2) {
        sum = sum.word(!u16::from_be_bytes([w[0], w.get(1).copied().unwrap_or(0)]));
    }
    sum.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn example_of_rfc_1071() {
        let b = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::new().bytes(&b).finish(), !0xddf2);
    }

    #[test]
    fn example_of_rfc_1624() {
        // §4: HC = 0xDD2F, m = 0x5555, m' = 0x3285 gives 0x0000, where equation 2 gave 0xFFFF.
        assert_eq!(replace(0xdd2f, &[0x55, 0x55], &[0x32, 0x85]), 0x0000);
    }

    proptest::proptest! {
        #[test]
        fn replacing_equals_summing_again(
            mut b in proptest::collection::vec(proptest::prelude::any::<u8>(), 6..200),
            new: [u8; 4],
        ) {
            // A first word that is never zero: an all-zero message has two representations of its sum.
            b[0] |= 1;
            let before = Sum::new().bytes(&b).finish();
            let old = [b[2], b[3], b[4], b[5]];
            b[2..6].copy_from_slice(&new);
            proptest::prop_assert_eq!(replace(before, &old, &new), Sum::new().bytes(&b).finish());
        }
    }
}
