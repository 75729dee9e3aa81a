//! Which replica the ToR gives a packet to: the slot of a connection or of a block of numbers, and who has a slot while
//! some replicas are out. A survivor computes so who has a flow now (`p4src/include/control/pick.p4` is the other half).

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use crate::nonce::half_sip_hash_words;

/// Multiplied with a hash or a turn, the upper half of the product is even over what falls into one slot.
const SPREAD: u32 = 0x9e37_79b9;

/// The key under which a service's slots are chosen; clients do not know it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SlotKey {
    /// First word.
    pub k0: u32,
    /// Second word.
    pub k1: u32,
}

impl fmt::Debug for SlotKey {
    // Keys do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SlotKey(..)")
    }
}

impl SlotKey {
    /// From the 8 bytes that the controller hands out: both words little-endian.
    pub fn new(key: [u8; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = key;
        Self { k0: u32::from_le_bytes([a, b, c, d]), k1: u32::from_le_bytes([e, f, g, h]) }
    }

    /// A key for something else that the same hosts share.
    pub fn secret(self, purpose: &[u8]) -> [u8; 8] {
        let mut key = [0; 8];
        key[..4].copy_from_slice(&self.k0.to_le_bytes());
        key[4..].copy_from_slice(&self.k1.to_le_bytes());
        crate::nonce::half_sip_hash_64(key, purpose).to_le_bytes()
    }

    /// Of all packets of plain TCP between these two, and of the SYN that opens a connection.
    pub fn flow(self, client: SocketAddr, service: SocketAddr) -> u32 {
        let mut words = [0; 9];
        words[..4].copy_from_slice(&address_words(client.ip()));
        words[4..8].copy_from_slice(&address_words(service.ip()));
        words[8] = u32::from(client.port()) << 16 | u32::from(service.port());
        half_sip_hash_words([self.k0, self.k1], &words)
    }

    /// Of all packets of plain TCP of this client to the service, whichever of its addresses and ports, where the service
    /// has [`Affinity::Client`].
    pub fn client(self, client: IpAddr) -> u32 {
        half_sip_hash_words([self.k0, self.k1], &address_words(client))
    }

    /// Of the requests under a connection tag whose numbers differ only in the last three bits; another attempt goes
    /// elsewhere.
    pub fn block(self, tag: u32, number: u32, attempt: u8) -> u32 {
        half_sip_hash_words([self.k0, self.k1], &[tag, u32::from(attempt & 7) << 29 | number >> 3])
    }
}

/// What has one slot, of what goes by flow: plain TCP and what opens a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Each connection for itself ([`SlotKey::flow`]).
    #[default]
    Flow,
    /// All of a client's address ([`SlotKey::client`]).
    Client,
}

/// An address as the switch has it: 128 bits, IPv4 mapped into IPv6, as big-endian words.
pub fn address_words(ip: IpAddr) -> [u32; 4] {
    let bits = match ip {
        IpAddr::V4(a) => a.to_ipv6_mapped().to_bits(),
        IpAddr::V6(a) => a.to_bits(),
    };
    [(bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32]
}

/// Two candidates of a slot: indices in the pool, below 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Who has it.
    pub first: u8,
    /// Who has it while the first is out.
    pub second: u8,
}

/// Who gets what a hash falls to, bit r of `candidates` being replica r; None without candidates or slots. The number
/// of slots is a power of two.
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

/// The member that stands `share` / 2^16 of the way through the set.
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
