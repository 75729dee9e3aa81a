//! Paths that take less than the interface, as routers on them said (RFC 1191, RFC 8201).
//!
//! Soft state beside the stateless step, by client address, bounded and short-lived: forgotten, it costs the
//! packets of one round trip. A server cannot tell whether a quoted segment was its own, so the most that
//! somebody who forges such errors gets is packets of the least size that every path takes, for a while.

use std::collections::HashMap;
use std::net::IpAddr;

/// Clients that are remembered; beyond, all are forgotten.
const MAX: usize = 4096;
/// How long, microseconds: the path may be another one by then.
const GOOD_FOR: u64 = 60_000_000;

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    known: HashMap<IpAddr, (u16, u64)>,
}

impl Paths {
    /// Packets of more than `mtu` octets do not reach `client`.
    pub fn learn(&mut self, client: IpAddr, mtu: u16, now: u64) {
        if self.known.len() >= MAX && !self.known.contains_key(&client) {
            self.known.clear();
        }
        let entry = self.known.entry(client).or_insert((mtu, now));
        *entry = (if now.saturating_sub(entry.1) < GOOD_FOR { entry.0.min(mtu) } else { mtu }, now);
    }

    /// MTU of the path to `client`, if it is known to be smaller than others.
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
