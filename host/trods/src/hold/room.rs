//! Room for the frames that are held: of all clients together, of one, and of one network, so that a client that takes nothing keeps no
//! other client's frames from being held.

use std::collections::HashMap;
use std::net::IpAddr;

/// Bytes of all frames that are held; what comes beyond is dropped, and TCP sends it again.
const MAX_HELD: usize = 64 << 20;
/// Of them, those of one address, of IPv6 of 64 bits.
const PER_ADDRESS: usize = MAX_HELD / 4;
/// Those of one network: 24 bits of IPv4, 48 of IPv6.
const PER_NETWORK: usize = MAX_HELD / 2;

/// What is held, by whose it is.
#[derive(Debug, Default)]
pub(super) struct Room {
    held: usize,
    /// By the first bits of addresses; only of those of whom something is held.
    clients: HashMap<(bool, u128), usize>,
}

/// An address and its network.
fn keys(client: IpAddr) -> [((bool, u128), usize); 2] {
    let bits = |v4: u32, v6: u32| match client.to_canonical() {
        IpAddr::V4(ip) => u128::from(u32::from(ip) >> (32 - v4)) | 1 << 127,
        IpAddr::V6(ip) => u128::from(ip) >> (128 - v6),
    };
    [((true, bits(32, 64)), PER_ADDRESS), ((false, bits(24, 48)), PER_NETWORK)]
}

impl Room {
    /// Whether so many bytes more of this client's may be held.
    pub(super) fn has(&self, client: IpAddr, bytes: usize) -> bool {
        let of = |key| self.clients.get(&key).copied().unwrap_or(0);
        self.held + bytes <= MAX_HELD && keys(client).iter().all(|(key, most)| of(*key) + bytes <= *most)
    }

    pub(super) fn take(&mut self, client: IpAddr, bytes: usize) {
        self.held += bytes;
        for (key, _) in keys(client) {
            *self.clients.entry(key).or_default() += bytes;
        }
    }

    pub(super) fn give_back(&mut self, client: IpAddr, bytes: usize) {
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

    fn v4(n: u32) -> IpAddr {
        std::net::Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    #[test]
    fn a_client_and_a_network_have_a_share_each() {
        let mut room = Room::default();
        let mut fill = |client: IpAddr, bytes| {
            let has = room.has(client, bytes);
            if has {
                room.take(client, bytes);
            }
            has
        };
        assert!(fill(v4(1), PER_ADDRESS) && !fill(v4(1), 1));
        assert!(fill(v4(2), PER_ADDRESS) && !fill(v4(3), 1), "a network's share");
        assert!(fill(v4(256), PER_ADDRESS) && fill(v4(512), PER_ADDRESS) && !fill(v4(1 << 20), 1), "all");
        for client in [v4(1), v4(2), v4(256), v4(512)] {
            room.give_back(client, PER_ADDRESS);
        }
        assert!(room.held == 0 && room.clients.is_empty());
        let v6 = |n: u128| IpAddr::from(std::net::Ipv6Addr::from(0xfd00 << 112 | n));
        room.take(v6(1), PER_ADDRESS);
        assert!(!room.has(v6(2), 1) && room.has(v6(1 << 64), 1));
    }
}
