//! Limits what clients make a replica store: in total, for each address and for each network, so
//! that no client uses up the others' share.

use std::collections::HashMap;
use std::net::IpAddr;

/// One address (for IPv6, a /64) may use this fraction of the limit: a quarter.
const PER_ADDRESS: usize = 4;
/// One network (a /24 of IPv4, a /48 of IPv6) may use this fraction of the limit: half.
const PER_NETWORK: usize = 2;

/// Counts the units (bytes of frames, or queued objects) in use, by client.
#[derive(Debug)]
pub(crate) struct Room {
    most: usize,
    held: usize,
    /// Units in use by address prefix; only prefixes with any.
    clients: HashMap<(bool, u128), usize>,
}

/// The prefixes of an address and of its network.
fn keys(client: IpAddr) -> [((bool, u128), usize); 2] {
    let bits = |v4: u32, v6: u32| match client.to_canonical() {
        IpAddr::V4(ip) => u128::from(u32::from(ip) >> (32 - v4)) | 1 << 127,
        IpAddr::V6(ip) => u128::from(ip) >> (128 - v6),
    };
    [((true, bits(32, 64)), PER_ADDRESS), ((false, bits(24, 48)), PER_NETWORK)]
}

impl Room {
    /// `most`: the limit on the units of all clients together.
    pub(crate) fn new(most: usize) -> Room {
        Room { most, held: 0, clients: HashMap::new() }
    }

    /// Whether `count` more units of this client fit.
    pub(crate) fn has(&self, client: IpAddr, count: usize) -> bool {
        let of = |key| self.clients.get(&key).copied().unwrap_or(0);
        self.held + count <= self.most
            && keys(client).iter().all(|(key, part)| of(*key) + count <= self.most / *part)
    }

    pub(crate) fn take(&mut self, client: IpAddr, bytes: usize) {
        self.held += bytes;
        for (key, _) in keys(client) {
            *self.clients.entry(key).or_default() += bytes;
        }
    }

    pub(crate) fn give_back(&mut self, client: IpAddr, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
        for (key, _) in keys(client) {
            if let Some(held) = self.clients.get_mut(&key) {
                *held = held.saturating_sub(bytes);
                if *held == 0 {
                    self.clients.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 64 << 20;
    const SHARE: usize = MOST / PER_ADDRESS;

    fn v4(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    #[test]
    fn room_is_limited_by_client_and_network() {
        let mut room = Room::new(MOST);
        let mut fill = |client: IpAddr, bytes| {
            let has = room.has(client, bytes);
            if has {
                room.take(client, bytes);
            }
            has
        };
        assert!(fill(v4(1), SHARE) && !fill(v4(1), 1));
        assert!(fill(v4(2), SHARE) && !fill(v4(3), 1), "a network's share");
        assert!(fill(v4(256), SHARE) && fill(v4(512), SHARE) && !fill(v4(1 << 20), 1), "all");
        for client in [v4(1), v4(2), v4(256), v4(512)] {
            room.give_back(client, SHARE);
        }
        assert!(room.held == 0 && room.clients.is_empty());
        let v6 = |n: u128| IpAddr::from(std::net::Ipv6Addr::from(0xfd00 << 112 | n));
        room.take(v6(1), SHARE);
        assert!(!room.has(v6(2), 1) && room.has(v6(1 << 64), 1));
    }
}
