//! What is remembered of a destination (section 2.6): what it speaks, how long packets may be on the way there,
//! and the address token that spares the next connection a round trip.
//!
//! All of it is soft: what is forgotten costs a round trip or a lost packet, nothing else.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::tokens::{Store, Token};

/// Destinations that are remembered; when there are more, those that are too old go, or else all.
const MAX: usize = 4096;
/// Age up to which what was learned is believed: paths and servers change (RFC 1191 has ten minutes). Tokens have an age of their own.
const GOOD_FOR: Duration = Duration::from_secs(600);

/// What is known of one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// It answered as plain TCP does.
    pub plain_tcp: bool,
    /// What a router on the way said about its MTU, octets.
    pub path_mtu: Option<u16>,
    token: Option<Token>,
    at: Instant,
}

/// All that is remembered; clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Destinations {
    known: Arc<Mutex<HashMap<SocketAddr, Destination>>>,
    /// Where tokens go when the stack ends, and come from.
    store: Arc<OnceLock<Store>>,
}

impl Destinations {
    /// What is known and not too old.
    pub fn get(&self, remote: SocketAddr) -> Option<Destination> {
        self.known.lock().get(&remote).filter(|d| d.at.elapsed() < GOOD_FOR).cloned()
    }

    /// A server of this destination answered as plain TCP does, or as Rivulet.
    pub fn answered(&self, remote: SocketAddr, plain_tcp: bool) {
        self.change(remote, |d| d.plain_tcp = plain_tcp);
    }

    /// Longer packets did not come through.
    pub fn path_mtu(&self, remote: SocketAddr, mtu: u16) {
        self.change(remote, |d| d.path_mtu = Some(d.path_mtu.map_or(mtu, |known| known.min(mtu))));
    }

    /// A token for the next connection from this address.
    pub fn keep_token(&self, source: IpAddr, remote: SocketAddr, token: Vec<u8>) {
        if let Some(token) = Token::new(source, token) {
            self.change(remote, |d| d.token = Some(token));
        }
    }

    /// The token, once: a second use is refused.
    pub fn take_token(&self, source: IpAddr, remote: SocketAddr) -> Option<Vec<u8>> {
        let mut known = self.known.lock();
        let here = known.get_mut(&remote).and_then(|d| d.token.take_if(|token| token.is_good_for(source)));
        drop(known);
        here.map(|token| token.octets).or_else(|| self.store.get()?.take(source, remote))
    }

    /// Tokens are kept there from now on; the first place stands.
    pub fn remember(&self, store: Store) {
        // A second one is dropped.
        let _ = self.store.set(store);
    }

    /// Moves the tokens to where they outlast this process, if there is such a place.
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
    fn what_was_learned_is_kept_and_bounded() {
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
    fn tokens_go_to_the_next_stack_and_are_nowhere_twice() {
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
