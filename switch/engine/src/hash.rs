//! The hash and checksum algorithms of simple_switch.

/// An algorithm by its name in the JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc(Crc),
    Csum16,
    Xor16,
    Xor32,
    Identity,
    Xxh64,
    Random,
    /// A counter.
    RoundRobin,
}

/// Parameters of a CRC in the Rocksoft model; the `*_custom` algorithms of the JSON have BMv2's
/// defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crc {
    width: u32,
    poly: u64,
    init: u64,
    xor: u64,
    reflected: bool,
}

const CRC16: Crc = Crc { width: 16, poly: 0x8005, init: 0, xor: 0, reflected: true };
const CRC32: Crc = Crc { width: 32, poly: 0x04c1_1db7, init: 0xffff_ffff, xor: 0xffff_ffff, reflected: true };

impl Algorithm {
    pub(crate) fn by_name(name: &str) -> Option<Algorithm> {
        Some(match name {
            "crc16" | "crc16_custom" => Algorithm::Crc(CRC16),
            "crc32" | "crc32_custom" => Algorithm::Crc(CRC32),
            "crcCCITT" => {
                Algorithm::Crc(Crc { width: 16, poly: 0x1021, init: 0xffff, xor: 0, reflected: false })
            }
            "crc8_custom" => Algorithm::Crc(Crc { width: 8, poly: 0x07, init: 0, xor: 0, reflected: false }),
            "crc64_custom" => Algorithm::Crc(Crc { width: 64, poly: 0x1b, init: 0, xor: 0, reflected: true }),
            "csum16" | "cksum16" => Algorithm::Csum16,
            "xor16" => Algorithm::Xor16,
            "xor32" => Algorithm::Xor32,
            "identity" => Algorithm::Identity,
            "xxh64" | "bmv2_hash" => Algorithm::Xxh64,
            "random" => Algorithm::Random,
            "round_robin" | "round_robin_consistent" => Algorithm::RoundRobin,
            _ => return None,
        })
    }
}

impl Crc {
    fn table(&self) -> [u64; 256] {
        let top = 1u64 << (self.width - 1);
        let mask = u64::MAX >> (64 - self.width);
        let mut table = [0; 256];
        for (byte, entry) in table.iter_mut().enumerate() {
            let byte = byte as u64;
            *entry = if self.reflected {
                let poly = self.poly.reverse_bits() >> (64 - self.width);
                (0..8).fold(byte, |r, _| if r & 1 != 0 { r >> 1 ^ poly } else { r >> 1 })
            } else {
                let start = byte << (self.width - 8);
                (0..8).fold(
                    start,
                    |r, _| if r & top != 0 { (r << 1 ^ self.poly) & mask } else { (r << 1) & mask },
                )
            };
        }
        table
    }

    /// The CRC of `data`; the tables of CRC-16 and CRC-32 are cached.
    pub(crate) fn compute(&self, data: &[u8]) -> u64 {
        use std::sync::OnceLock;
        static TABLES: [OnceLock<[u64; 256]>; 4] = [const { OnceLock::new() }; 4];
        let index = match (self.width, self.reflected) {
            (16, true) => 0,
            (32, _) => 1,
            (16, false) => 2,
            _ => 3,
        };
        let own;
        // The two rare widths share the last cache entry; the first one to be used keeps it.
        let table = if index < 3 {
            TABLES[index].get_or_init(|| self.table())
        } else {
            own = self.table();
            &own
        };
        let mask = u64::MAX >> (64 - self.width);
        let sum = if self.reflected {
            let init = self.init.reverse_bits() >> (64 - self.width);
            data.iter().fold(init, |r, b| table[((r ^ u64::from(*b)) & 0xff) as usize] ^ r >> 8)
        } else {
            let step = |r: u64, b: &u8| {
                let index = (r >> (self.width - 8) ^ u64::from(*b)) & 0xff;
                (table[index as usize] ^ r << 8) & mask
            };
            data.iter().fold(self.init, step)
        };
        (sum ^ self.xor) & mask
    }
}

/// The Internet checksum (RFC 1071); an odd last byte counts as the high half of a word.
pub(crate) fn csum16(data: &[u8]) -> u64 {
    fold(words16(data))
}

/// The sum of the 16-bit words, not folded.
pub(crate) fn words16(data: &[u8]) -> u64 {
    let words = data.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |b| u64::from(*b) << 8);
    words.map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u64>() + odd
}

/// Ends an Internet checksum: folds the carries and complements.
#[inline]
pub(crate) fn fold(mut sum: u64) -> u64 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !sum & 0xffff
}

/// XOR of words of N bytes, the last one padded with zeros.
pub(crate) fn xor<const N: usize>(data: &[u8]) -> u64 {
    data.chunks(N)
        .fold(0, |sum, c| sum ^ (0..N).fold(0, |w, i| w << 8 | u64::from(c.get(i).copied().unwrap_or(0))))
}

/// The first eight bytes as a number.
pub(crate) fn identity(data: &[u8]) -> u64 {
    data.iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
}

/// XXH64 with seed 0.
pub(crate) fn xxh64(data: &[u8]) -> u64 {
    const P: [u64; 5] = [
        0x9E37_79B1_85EB_CA87,
        0xC2B2_AE3D_27D4_EB4F,
        0x1656_67B1_9E37_79F9,
        0x85EB_CA77_C2B2_AE63,
        0x27D4_EB2F_1656_67C5,
    ];
    let read64 = |b: &[u8]| b.iter().take(8).rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
    let round = |acc: u64, v: u64| acc.wrapping_add(v.wrapping_mul(P[1])).rotate_left(31).wrapping_mul(P[0]);
    let blocks = data.chunks_exact(32);
    let mut rest = blocks.remainder();
    let mut h = if data.len() >= 32 {
        let mut v = [P[0].wrapping_add(P[1]), P[1], 0, 0u64.wrapping_sub(P[0])];
        for block in blocks {
            for (i, v) in v.iter_mut().enumerate() {
                *v = round(*v, read64(&block[8 * i..]));
            }
        }
        let mut h = v[0]
            .rotate_left(1)
            .wrapping_add(v[1].rotate_left(7))
            .wrapping_add(v[2].rotate_left(12))
            .wrapping_add(v[3].rotate_left(18));
        for v in v {
            h = (h ^ round(0, v)).wrapping_mul(P[0]).wrapping_add(P[3]);
        }
        h
    } else {
        P[4]
    };
    h = h.wrapping_add(data.len() as u64);
    while rest.len() >= 8 {
        h = (h ^ round(0, read64(rest))).rotate_left(27).wrapping_mul(P[0]).wrapping_add(P[3]);
        rest = &rest[8..];
    }
    if rest.len() >= 4 {
        let word = rest[..4].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        h = (h ^ word.wrapping_mul(P[0])).rotate_left(23).wrapping_mul(P[1]).wrapping_add(P[2]);
        rest = &rest[4..];
    }
    for b in rest {
        h = (h ^ u64::from(*b).wrapping_mul(P[4])).rotate_left(11).wrapping_mul(P[0]);
    }
    h = (h ^ h >> 33).wrapping_mul(P[1]);
    h = (h ^ h >> 29).wrapping_mul(P[2]);
    h ^ h >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check values of the CRC catalogue, over "123456789".
    #[test]
    fn crcs_give_their_check_values() {
        let crc = |name: &str| match Algorithm::by_name(name) {
            Some(Algorithm::Crc(c)) => c.compute(b"123456789"),
            _ => panic!(),
        };
        assert_eq!(crc("crc16"), 0xbb3d);
        assert_eq!(crc("crc32"), 0xcbf4_3926);
        assert_eq!(crc("crcCCITT"), 0x29b1);
        assert_eq!(crc("crc8_custom"), 0xf4);
        assert_eq!(crc("crc64_custom"), 0x46a5_a938_8a5b_effe);
    }

    #[test]
    fn internet_checksum_matches_rfc_1071() {
        // The example of RFC 1071, section 3.
        assert_eq!(csum16(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2 & 0xffff);
        assert_eq!(csum16(&[1]), !0x0100 & 0xffff);
    }

    #[test]
    fn xor_identity_and_xxh64_match_references() {
        assert_eq!(xor::<2>(&[1, 2, 3, 4, 5]), 0x0102 ^ 0x0304 ^ 0x0500);
        assert_eq!(identity(&[1, 2, 3]), 0x010203);
        assert_eq!(xxh64(b""), 0xef46_db37_51d8_e999);
        assert_eq!(xxh64(b"abc"), 0x44bc_2cf5_ad77_0999);
    }
}
