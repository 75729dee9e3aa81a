//! What the stack remembers about a destination (section 2.6): whether it
//! supports Rivulet, the path MTU, and the address token that saves the next connection a round
//! trip.
//!
//! All of this is soft state: losing it costs a round trip or a lost packet.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::tokens::{Store, Token};

/// Destinations remembered. At this number the expired ones are removed, or all if none expired.
const MAX: usize = 4096;
/// Entries expire after this time because paths and servers change (RFC 1191 suggests ten minutes).
/// Tokens have their own lifetime.
const GOOD_FOR: Duration = Duration::from_secs(600);

/// What is known about one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// It answered with plain TCP.
    pub plain_tcp: bool,
    /// Path MTU in bytes, reported by a router on the way.
    pub path_mtu: Option<u16>,
    token: Option<Token>,
    at: Instant,
}

/// All remembered destinations; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destinations {
    known: Arc<Mutex<HashMap<SocketAddr, Destination>>>,
    /// File that tokens are moved to when the stack ends, and taken from.
    store: Arc<OnceLock<Store>>,
}

impl Destinations {
    /// The entry of a destination, unless it has expired.
    pub fn get(&self, remote: SocketAddr) -> Option<Destination> {
        self.known.lock().get(&remote).filter(|d| d.at.elapsed() < GOOD_FOR).cloned()
    }

    /// Records whether the server answered with plain TCP or with Rivulet.
    pub fn answered(&self, remote: SocketAddr, plain_tcp: bool) {
        self.change(remote, |d| d.plain_tcp = plain_tcp);
    }

    /// Records that packets longer than `mtu` bytes do not arrive; the smallest value counts.
    pub fn path_mtu(&self, remote: SocketAddr, mtu: u16) {
        self.change(remote, |d| d.path_mtu = Some(d.path_mtu.map_or(mtu, |known| known.min(mtu))));
    }

    /// Stores a token for the next connection from this address.
    pub fn keep_token(&self, source: IpAddr, remote: SocketAddr, token: Vec<u8>) {
        if let Some(token) = Token::new(source, token) {
            self.change(remote, |d| d.token = Some(token));
        }
    }

    /// Removes and returns the token. A server refuses the second use of a token.
    pub fn take_token(&self, source: IpAddr, remote: SocketAddr) -> Option<Vec<u8>> {
        let mut known = self.known.lock();
        let here = known.get_mut(&remote).and_then(|d| d.token.take_if(|token| token.is_good_for(source)));
        drop(known);
        here.map(|token| token.bytes).or_else(|| self.store.get()?.take(source, remote))
    }

    /// Sets the file for tokens. The first call counts.
    pub fn remember(&self, store: Store) {
        // Fails if a store is set already.
        let _ = self.store.set(store);
    }

    /// Moves the tokens to the file, if one is set, so that they survive this process.
    pub fn save(&self) {
        let Some(store) = self.store.get() else { return };
        let mut known = self.known.lock();
        let tokens = known.iter_mut().filter_map(|(remote, d)| Some((*remote, d.token.take()?)));
        let tokens: Vec<(SocketAddr, Token)> = tokens.collect();
        drop(known);
        if !tokens.is_empty() {
            store.put(tokens);
        }
    }

    fn change(&self, remote: SocketAddr, change: impl FnOnce(&mut Destination)) {
        let mut known = self.known.lock();
        if known.len() >= MAX && !known.contains_key(&remote) {
            known.retain(|_, d| d.at.elapsed() < GOOD_FOR);
            if known.len() >= MAX {
                known.clear();
            }
        }
        let fresh = |token| Destination { plain_tcp: false, path_mtu: None, token, at: Instant::now() };
        let destination = known.entry(remote).or_insert_with(|| fresh(None));
        if destination.at.elapsed() >= GOOD_FOR {
            *destination = fresh(destination.token.take());
        }
        change(destination);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u32) -> SocketAddr {
        SocketAddr::from((n.to_be_bytes(), 80))
    }

    #[test]
    fn destination_facts_are_kept_and_bounded() {
        let all = Destinations::default();
        let source = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(all.get(at(1)), None);
        all.answered(at(1), true);
        all.path_mtu(at(1), 1400);
        all.path_mtu(at(1), 1450);
        let known = all.get(at(1)).unwrap();
        assert_eq!((known.plain_tcp, known.path_mtu), (true, Some(1400)));
        all.keep_token(source, at(1), vec![1]);
        assert_eq!(all.take_token([10, 0, 0, 2].into(), at(1)), None, "it proves another address");
        let take = |n| all.take_token(source, at(n));
        assert_eq!((take(1), take(1), take(2)), (Some(vec![1]), None, None));
        (0..2 * MAX as u32).for_each(|n| all.answered(at(n), false));
        assert!(all.known.lock().len() <= MAX);
    }

    #[test]
    fn tokens_move_to_the_next_stack_without_copies() {
        let dir = tempfile::tempdir().unwrap();
        let stack = || {
            let all = Destinations::default();
            all.remember(Store::open(dir.path()).unwrap());
            all
        };
        let source = IpAddr::from([10, 0, 0, 1]);
        let first = stack();
        first.keep_token(source, at(1), vec![1]);
        first.save();
        assert_eq!(stack().take_token(source, at(1)), Some(vec![1]));
        assert_eq!((first.take_token(source, at(1)), stack().take_token(source, at(1))), (None, None));
    }
}
