//! Macroflows, parsed from the maps of `src/bpf/cm.c` and `calls.c` (`cm.h`, `macroflow.h`).

use std::net::{IpAddr, Ipv6Addr};

/// Bytes of `struct cm_key`, with which `struct cm_share_key` begins.
const KEY: usize = 32;
/// Offset of `struct macroflow` in `struct cm_entry` and `struct cm_shared`: after lock and
/// generation.
const OFFSET: usize = 16;
/// Bytes of `struct macroflow`.
const SIZE: usize = 17 * 8 + 5 * 4 + 4;

/// A macroflow: the state that the connections to one destination share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Macroflow {
    /// Cookie of the network namespace.
    pub netns: u64,
    /// Destination address of its packets.
    pub destination: IpAddr,
    /// Differentiated services code point of its packets.
    pub dscp: u8,
    /// The user of the programs that have the flows; `None`: the flows are TCP connections of the kernel.
    pub user: Option<u32>,
    /// Number of a separate macroflow, made for flows that left the first one of their destination.
    pub apart: Option<u64>,
    /// The state of its window.
    pub numbers: Numbers,
}

/// `struct macroflow`, in its order. Bytes and nanoseconds; `host/cm/src/controller/aimd.rs` and
/// `group.rs` explain the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Numbers {
    pub cwnd: u64,
    pub ssthresh: u64,
    pub credit: u64,
    pub sent: u64,
    pub reported: u64,
    pub recover: u64,
    pub reductions: u64,
    pub prior_cwnd: u64,
    pub prior_ssthresh: u64,
    pub srtt: u64,
    pub rttvar: u64,
    pub active: u64,
    pub arrived: u64,
    pub arrived_by: u64,
    pub arrived_other: u64,
    pub joined: u64,
    pub aside: u64,
    pub flows: u32,
    pub hungry: u32,
    pub mtu: u32,
    pub initial: u32,
    pub limit: u32,
    pub collapsed: bool,
    pub silent: bool,
}

impl Numbers {
    /// Outstanding bytes.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.sent.saturating_sub(self.reported)
    }

    /// Rate of the window in bytes a second; `None` before the first round trip time.
    #[must_use]
    pub fn rate(&self) -> Option<u64> {
        let rate = u128::from(self.cwnd) * 1_000_000_000;
        (self.srtt > 0).then(|| (rate / u128::from(self.srtt)) as u64)
    }

    /// Parses `struct macroflow`; `None` if the slice is too short.
    #[must_use]
    pub fn parse(octets: &[u8]) -> Option<Numbers> {
        let octets = octets.get(..SIZE)?;
        let (long, rest) = octets.split_at(17 * 8);
        let mut long = long.as_chunks::<8>().0.iter().map(|o| u64::from_ne_bytes(*o));
        let mut short = rest.as_chunks::<4>().0.iter().map(|o| u32::from_ne_bytes(*o));
        Some(Numbers {
            cwnd: long.next()?,
            ssthresh: long.next()?,
            credit: long.next()?,
            sent: long.next()?,
            reported: long.next()?,
            recover: long.next()?,
            reductions: long.next()?,
            prior_cwnd: long.next()?,
            prior_ssthresh: long.next()?,
            srtt: long.next()?,
            rttvar: long.next()?,
            active: long.next()?,
            arrived: long.next()?,
            arrived_by: long.next()?,
            arrived_other: long.next()?,
            joined: long.next()?,
            aside: long.next()?,
            flows: short.next()?,
            hungry: short.next()?,
            mtu: short.next()?,
            initial: short.next()?,
            limit: short.next()?,
            collapsed: rest[20] != 0,
            silent: rest[21] != 0,
        })
    }
}

impl Macroflow {
    /// Parses a key and a value of the map; `None` if their sizes are wrong, or the macroflow is
    /// still being created.
    pub(super) fn parse(key: &[u8], value: &[u8]) -> Option<Macroflow> {
        let (fixed, apart) = key.split_first_chunk::<KEY>()?;
        let apart = match apart {
            [] => 0,
            apart => u64::from_ne_bytes(apart.try_into().ok()?),
        };
        let generation = u64::from_ne_bytes(*value.get(8..16)?.first_chunk()?);
        if generation == 0 {
            return None;
        }
        let netns = u64::from_ne_bytes(*fixed.first_chunk()?);
        let address: [u8; 16] = fixed[8..24].try_into().ok()?;
        let dscp = u32::from_ne_bytes(fixed[24..28].try_into().ok()?) as u8;
        // The key has the user's number + 1.
        let user = u32::from_ne_bytes(fixed[28..32].try_into().ok()?).checked_sub(1);
        let destination = Ipv6Addr::from(address).to_canonical();
        let numbers = Numbers::parse(value.get(OFFSET..)?)?;
        let apart = (apart > 0).then_some(apart);
        Some(Macroflow { netns, destination, dscp, user, apart, numbers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets() -> Vec<u8> {
        let mut octets = vec![];
        (1..=17u64).for_each(|n| octets.extend(n.to_ne_bytes()));
        (18..=22u32).for_each(|n| octets.extend(n.to_ne_bytes()));
        octets.extend([1, 0, 0, 0]);
        octets
    }

    #[test]
    fn struct_fields_are_parsed_at_their_offsets() {
        let n = Numbers::parse(&octets()).unwrap();
        assert_eq!((n.cwnd, n.srtt, n.active, n.aside), (1, 10, 12, 17));
        assert_eq!((n.flows, n.hungry, n.mtu, n.initial, n.limit), (18, 19, 20, 21, 22));
        assert!(n.collapsed && !n.silent);
        assert_eq!(Numbers::parse(&octets()[1..]), None);
        assert_eq!((n.outstanding(), n.rate()), (0, Some(100_000_000)));
    }

    #[test]
    fn entry_of_wrong_size_parses_to_none() {
        let mut value = vec![0; OFFSET];
        value[8] = 1;
        value.extend(octets());
        let mut key = vec![0; KEY];
        key[18..24].copy_from_slice(&[255, 255, 192, 0, 2, 7]);
        key[24] = 46;
        let m = Macroflow::parse(&key, &value).unwrap();
        assert_eq!((m.destination.to_string(), m.dscp, m.netns), ("192.0.2.7".into(), 46, 0));
        assert_eq!(m.user, None);
        key[28] = 1;
        assert_eq!(Macroflow::parse(&key, &value).unwrap().user, Some(0));
        assert_eq!(Macroflow::parse(&key[1..], &value), None);
        let of_calls = |apart: u64| [&key[..], &apart.to_ne_bytes()].concat();
        assert_eq!(Macroflow::parse(&of_calls(0), &value).unwrap().apart, None);
        assert_eq!(Macroflow::parse(&of_calls(9), &value).unwrap().apart, Some(9));
        assert_eq!(Macroflow::parse(&of_calls(9)[..39], &value), None);
        assert_eq!(Macroflow::parse(&key, &value[..100]), None);
        value[8] = 0;
        assert_eq!(Macroflow::parse(&key, &value), None);
    }
}
