//! The minisocket cache (section 5.1). A continuation that this replica sealed recently needs no
//! MAC computation.
//!
//! Soft state: dropping an entry costs one MAC. A hit requires that the whole continuation, MAC
//! included, and the client's address and port equal what was sealed; everything else is verified
//! by MAC.

use alloc::boxed::Box;
use alloc::vec;
use core::net::SocketAddr;

use rivulet_packet::SealedContinuation;

/// The cache: a table of fixed size in which a new entry replaces the old one in its slot.
pub struct MinisocketCache {
    slots: Box<[Option<(SealedContinuation, SocketAddr)>]>,
    hits: u64,
    misses: u64,
}

impl core::fmt::Debug for MinisocketCache {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MinisocketCache").field("slots", &self.slots.len()).field("hits", &self.hits).finish()
    }
}

impl MinisocketCache {
    /// Makes a cache of at least `continuations` slots, about 140 bytes each.
    pub fn new(continuations: usize) -> Self {
        let slots = continuations.next_power_of_two().max(2);
        Self { slots: vec![None; slots].into_boxed_slice(), hits: 0, misses: 0 }
    }

    fn place(&self, sealed: &SealedContinuation) -> usize {
        let c = &sealed.fields;
        // Consecutive numbers of a connection use consecutive slots.
        (c.tag.wrapping_mul(0x9e37_79b1).wrapping_add(c.number)) as usize & (self.slots.len() - 1)
    }

    /// Whether exactly this continuation was sealed here for this client. The client holds these
    /// bytes itself, so the comparison need not take constant time.
    pub fn contains(&mut self, sealed: &SealedContinuation, client: SocketAddr) -> bool {
        let known = self.slots[self.place(sealed)].as_ref().is_some_and(|(s, c)| s == sealed && *c == client);
        if known {
            self.hits += 1
        } else {
            self.misses += 1
        }
        known
    }

    /// Stores a continuation that was just sealed.
    pub fn insert(&mut self, sealed: &SealedContinuation, client: SocketAddr) {
        let place = self.place(sealed);
        self.slots[place] = Some((*sealed, client));
    }

    /// Clears the cache, for example when a key is withdrawn.
    pub fn clear(&mut self) {
        self.slots.fill(None);
    }

    /// Hits and misses so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rivulet_packet::TransportContinuation;

    #[test]
    fn only_the_very_same_continuation_of_the_same_client_hits() {
        let mut cache = MinisocketCache::new(16);
        let client: SocketAddr = "192.0.2.1:1".parse().unwrap();
        let fields = TransportContinuation { tag: 5, number: 6, ..TransportContinuation::default() };
        let sealed = SealedContinuation { fields, mac: [3; 12] };
        assert!(!cache.contains(&sealed, client));
        cache.insert(&sealed, client);
        assert!(cache.contains(&sealed, client));
        assert!(!cache.contains(&sealed, "192.0.2.1:2".parse().unwrap()));
        let mut mac = sealed;
        mac.mac[11] ^= 1;
        assert!(!cache.contains(&mac, client));
        let mut window = sealed;
        window.fields.start_cwnd = 1000;
        assert!(!cache.contains(&window, client));
        cache.clear();
        assert!(!cache.contains(&sealed, client));
    }
}
