//! What is remembered of a destination (section 2.6): what it speaks, how long packets may be on the way there,
//! and the address token that spares the next connection a round trip.
//!
//! All of it is soft: what is forgotten costs a round trip or a lost packet, nothing else.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Destinations that are remembered; when there are more, those that are too old go, or else all.
const MAX: usize = 4096;
/// Age up to which what was learned is believed: paths and servers change (RFC 1191 has ten minutes).
const GOOD_FOR: Duration = Duration::from_secs(600);

/// What is known of one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// It answered as plain TCP does.
    pub plain_tcp: bool,
    /// What a router on the way said about its MTU, octets.
    pub path_mtu: Option<u16>,
    token: Option<Vec<u8>>,
    at: Instant,
}

/// All that is remembered; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destinations(Arc<Mutex<HashMap<SocketAddr, Destination>>>);

impl Destinations {
    /// What is known and not too old.
    pub fn get(&self, remote: SocketAddr) -> Option<Destination> {
        self.0.lock().get(&remote).filter(|d| d.at.elapsed() < GOOD_FOR).cloned()
    }

    /// A server of this destination answered as plain TCP does, or as Rivulet.
    pub fn answered(&self, remote: SocketAddr, plain_tcp: bool) {
        self.change(remote, |d| d.plain_tcp = plain_tcp);
    }

    /// Longer packets did not come through.
    pub fn path_mtu(&self, remote: SocketAddr, mtu: u16) {
        self.change(remote, |d| d.path_mtu = Some(d.path_mtu.map_or(mtu, |known| known.min(mtu))));
    }

    /// A token for the next connection.
    pub fn keep_token(&self, remote: SocketAddr, token: Vec<u8>) {
        self.change(remote, |d| d.token = Some(token));
    }

    /// The token, once: a second use is refused.
    pub fn take_token(&self, remote: SocketAddr) -> Option<Vec<u8>> {
        self.0.lock().get_mut(&remote).filter(|d| d.at.elapsed() < GOOD_FOR)?.token.take()
    }

    fn change(&self, remote: SocketAddr, change: impl FnOnce(&mut Destination)) {
        let mut known = self.0.lock();
        if known.len() >= MAX && !known.contains_key(&remote) {
            known.retain(|_, d| d.at.elapsed() < GOOD_FOR);
            if known.len() >= MAX {
                known.clear();
            }
        }
        let fresh = || Destination { plain_tcp: false, path_mtu: None, token: None, at: Instant::now() };
        let destination = known.entry(remote).or_insert_with(fresh);
        if destination.at.elapsed() >= GOOD_FOR {
            *destination = fresh();
        }
        change(destination);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_is_kept_and_bounded() {
        let all = Destinations::default();
        let at = |n: u32| SocketAddr::from((n.to_be_bytes(), 80));
        assert_eq!(all.get(at(1)), None);
        all.answered(at(1), true);
        all.path_mtu(at(1), 1400);
        all.path_mtu(at(1), 1450);
        let known = all.get(at(1)).unwrap();
        assert_eq!((known.plain_tcp, known.path_mtu), (true, Some(1400)));
        all.keep_token(at(1), vec![1]);
        assert_eq!(
            (all.take_token(at(1)), all.take_token(at(1)), all.take_token(at(2))),
            (Some(vec![1]), None, None)
        );
        (0..2 * MAX as u32).for_each(|n| all.answered(at(n), false));
        assert!(all.0.lock().len() <= MAX);
    }
}
