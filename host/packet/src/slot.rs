//! The ToR's choice of a replica for a packet: the slot of a connection or of a block of numbers,
//! and the slot's owner while some replicas are excluded. Survivors use it to determine which
//! replica has a flow now (`p4src/core/control/pick.p4` is the switch's half).

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use crate::nonce::half_sip_hash_words;

/// Multiplying a hash by this and taking the upper half spreads the hashes of one slot evenly.
const SPREAD: u32 = 0x9e37_79b9;

/// The hash that the ToR's program chooses slots by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SlotHash {
    /// HalfSipHash-2-4 under the slot key.
    #[default]
    HalfSipHash,
    /// CRC-32 (IEEE 802.3) of the slot key and the message: the program for switching chips.
    Crc32,
}

/// Key for the slots of a service; clients do not know it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SlotKey {
    /// First word.
    pub k0: u32,
    /// Second word.
    pub k1: u32,
    /// The hash under this key.
    pub hash: SlotHash,
}

impl fmt::Debug for SlotKey {
    // Keeps the key out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotKey(..)")
    }
}

impl SlotKey {
    /// From the 8 bytes that the controller distributes: both words little-endian.
    pub fn new(key: [u8; 8], hash: SlotHash) -> Self {
        let [a, b, c, d, e, f, g, h] = key;
        Self { k0: u32::from_le_bytes([a, b, c, d]), k1: u32::from_le_bytes([e, f, g, h]), hash }
    }

    fn of_words(self, words: &[u32]) -> u32 {
        match self.hash {
            SlotHash::HalfSipHash => half_sip_hash_words([self.k0, self.k1], words),
            SlotHash::Crc32 => crc32([self.k0, self.k1].iter().chain(words)),
        }
    }

    /// Derives a key for another purpose shared by the same hosts.
    pub fn secret(self, purpose: &[u8]) -> [u8; 8] {
        let mut key = [0; 8];
        key[..4].copy_from_slice(&self.k0.to_le_bytes());
        key[4..].copy_from_slice(&self.k1.to_le_bytes());
        crate::nonce::half_sip_hash_64(key, purpose).to_le_bytes()
    }

    /// Hash of a plain TCP connection's packets, and of the SYN that opens a connection.
    pub fn flow(self, client: SocketAddr, service: SocketAddr) -> u32 {
        let mut words = [0; 9];
        words[..4].copy_from_slice(&address_words(client.ip()));
        words[4..8].copy_from_slice(&address_words(service.ip()));
        words[8] = u32::from(client.port()) << 16 | u32::from(service.port());
        self.of_words(&words)
    }

    /// Hash of all of a client's plain TCP packets to a service with [`Affinity::Client`], whatever
    /// its ports.
    pub fn client(self, client: IpAddr) -> u32 {
        self.of_words(&address_words(client))
    }

    /// Hash of the requests with this connection tag whose numbers differ only in the last three
    /// bits. Another attempt gets another hash.
    pub fn block(self, tag: u32, number: u32, attempt: u8) -> u32 {
        self.of_words(&[tag, u32::from(attempt & 7) << 29 | number >> 3])
    }
}

/// Results of CRC-32 for each byte.
const CRC_OF_BYTE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ (0xedb8_8320 & 0u32.wrapping_sub(crc & 1));
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// CRC-32 (IEEE 802.3) of these words, each in big-endian order.
fn crc32<'a>(words: impl Iterator<Item = &'a u32>) -> u32 {
    !words
        .flat_map(|word| word.to_be_bytes())
        .fold(!0, |crc, byte| crc >> 8 ^ CRC_OF_BYTE[usize::from(crc as u8 ^ byte)])
}

/// Unit of placement of plain TCP and of new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Each connection separately ([`SlotKey::flow`]).
    #[default]
    Flow,
    /// All connections of a client address ([`SlotKey::client`]).
    Client,
}

/// An address in the switch's form: 128 bits, IPv4 mapped to IPv6, as big-endian words.
pub fn address_words(ip: IpAddr) -> [u32; 4] {
    let bits = match ip {
        IpAddr::V4(a) => a.to_ipv6_mapped().to_bits(),
        IpAddr::V6(a) => a.to_bits(),
    };
    [(bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32]
}

/// The two preferred replicas of a slot: indices in the pool, below 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Owner of the slot.
    pub first: u8,
    /// Owner while the first is excluded.
    pub second: u8,
}

/// The replica that gets a hash; bit r of `candidates` stands for replica r. `None` without
/// candidates or slots. The number of slots is a power of two.
pub fn owner(hash: u32, slots: &[Slot], candidates: u64) -> Option<u8> {
    let mask = slots.len().checked_sub(1)?;
    let slot = slots[hash as usize & mask];
    let may = |r: u8| candidates >> (r & 63) & 1 == 1;
    match slot {
        Slot { first, .. } if may(first) => Some(first),
        Slot { second, .. } if may(second) => Some(second),
        _ => nth_of(candidates, (hash.wrapping_mul(SPREAD) >> 16) as u16),
    }
}

/// The member at the fraction `share` / 2^16 of the set.
fn nth_of(mut set: u64, share: u16) -> Option<u8> {
    let rank = (u32::from(share) * set.count_ones()) >> 16;
    for _ in 0..rank {
        set &= set.wrapping_sub(1);
    }
    (set != 0).then(|| set.trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: [Slot; 4] = [
        Slot { first: 0, second: 1 },
        Slot { first: 1, second: 2 },
        Slot { first: 2, second: 3 },
        Slot { first: 3, second: 0 },
    ];

    // Expected values: zlib's crc32.
    #[test]
    fn crc_slots_match_zlib() {
        let key = SlotKey::new([0, 1, 2, 3, 4, 5, 6, 7], SlotHash::Crc32);
        let (client, service) = ("192.0.2.1:40000".parse::<SocketAddr>(), "10.9.0.1:80".parse());
        let (client, service) = (client.unwrap(), service.unwrap());
        assert_eq!(key.flow(client, service), 0x69fc0fd9);
        assert_eq!(key.client(client.ip()), 0xf7d7efdb);
        assert_eq!(key.block(0xdead_beef, 0x1234_5678, 3), 0x47328355);
    }

    #[test]
    fn first_then_second_then_any() {
        for hash in 0..4u32 {
            let slot = SLOTS[hash as usize];
            assert_eq!(owner(hash, &SLOTS, 0b1111), Some(slot.first));
            assert_eq!(owner(hash, &SLOTS, !(1 << slot.first)), Some(slot.second));
        }
        assert_eq!(owner(0, &SLOTS, 0), None);
        assert_eq!(owner(0, &[], 1), None);
    }

    #[test]
    fn the_third_choice_is_even() {
        let mut counts = [0u32; 64];
        let candidates = 1 << 2 | 1 << 5 | 1 << 41 | 1 << 63;
        for turn in 0..4096u32 {
            counts[usize::from(owner(turn << 2, &SLOTS, candidates).unwrap())] += 1;
        }
        for (replica, &count) in counts.iter().enumerate() {
            let wanted = if candidates >> replica & 1 == 1 { 1000..1050 } else { 0..1 };
            assert!(wanted.contains(&count), "replica {replica} got {count} of 4096");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_owner_is_a_candidate(hash: u32, candidates: u64) {
            let owner = owner(hash, &SLOTS, candidates);
            proptest::prop_assert_eq!(owner.is_some(), candidates != 0);
            proptest::prop_assert!(owner.is_none_or(|r| candidates >> r & 1 == 1));
        }
    }
}
