//! Path MTUs smaller than the interface's, as reported by routers (RFC 1191, RFC 8201).
//!
//! Soft state by client address, bounded and short-lived: losing it costs the packets of one round
//! trip. A server without connection state cannot check a quoted segment. So an attacker who forges
//! such errors can reduce packets to the minimum size that every path must carry, for a while.

use std::collections::HashMap;
use std::net::IpAddr;

/// Maximum number of clients; above it all are dropped.
const MAX: usize = 4096;
/// Lifetime of an entry, microseconds; the path may change.
const GOOD_FOR: u64 = 60_000_000;

/// The path MTUs.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: HashMap<IpAddr, (u16, u64)>,
}

impl Paths {
    /// Records that packets longer than `mtu` bytes do not reach `client`.
    pub fn learn(&mut self, client: IpAddr, mtu: u16, now: u64) {
        if self.known.len() >= MAX && !self.known.contains_key(&client) {
            self.known.clear();
        }
        let entry = self.known.entry(client).or_insert((mtu, now));
        *entry = (if now.saturating_sub(entry.1) < GOOD_FOR { entry.0.min(mtu) } else { mtu }, now);
    }

    /// MTU of the path to `client`, if it is known to be smaller than the interface's.
    pub fn mtu(&self, client: IpAddr, now: u64) -> Option<u16> {
        if self.known.is_empty() {
            return None;
        }
        self.known.get(&client).filter(|(_, at)| now.saturating_sub(*at) < GOOD_FOR).map(|(mtu, _)| *mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_learned_forgotten_and_bounded() {
        let mut paths = Paths::default();
        let ip = |n: u32| IpAddr::from(n.to_be_bytes());
        assert_eq!(paths.mtu(ip(1), 0), None);
        paths.learn(ip(1), 1200, 5);
        paths.learn(ip(1), 1300, 6);
        assert_eq!((paths.mtu(ip(1), 7), paths.mtu(ip(2), 7)), (Some(1200), None));
        assert_eq!(paths.mtu(ip(1), 6 + GOOD_FOR), None);
        paths.learn(ip(1), 1400, 6 + GOOD_FOR);
        assert_eq!(paths.mtu(ip(1), 7 + GOOD_FOR), Some(1400));
        (0..2 * MAX as u32).for_each(|n| paths.learn(ip(n), 1000, 0));
        assert!(paths.known.len() <= MAX);
    }
}
