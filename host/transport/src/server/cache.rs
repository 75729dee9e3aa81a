//! The minisocket cache (section 5.1): continuations that this replica sealed a moment ago need no MAC again.
//!
//! Soft state: dropping any of it at any time costs one MAC. A hit needs the whole continuation, MAC included, and the client's
//! address and port equal to what was sealed; anything less goes the long way.

use std::net::SocketAddr;

use rivulet_packet::SealedContinuation;

/// The cache: a table of fixed size, the newest of equal places wins.
pub struct MinisocketCache {
    slots: Box<[Option<(SealedContinuation, SocketAddr)>]>,
    hits: u64,
    misses: u64,
}

impl std::fmt::Debug for MinisocketCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MinisocketCache").field("slots", &self.slots.len()).field("hits", &self.hits).finish()
    }
}

impl MinisocketCache {
    /// A cache of at least `continuations` places, about 140 bytes each.
    pub fn new(continuations: usize) -> Self {
        let slots = continuations.next_power_of_two().max(2);
        Self { slots: vec![None; slots].into_boxed_slice(), hits: 0, misses: 0 }
    }

    fn place(&self, sealed: &SealedContinuation) -> usize {
        let c = &sealed.fields;
        // Neighbouring numbers of a connection get neighbouring places.
        (c.tag.wrapping_mul(0x9e37_79b1).wrapping_add(c.number)) as usize & (self.slots.len() - 1)
    }

    /// Whether this very continuation was sealed here for this client. The comparison is of public bytes the client holds itself.
    pub fn knows(&mut self, sealed: &SealedContinuation, client: SocketAddr) -> bool {
        let known = self.slots[self.place(sealed)].as_ref().is_some_and(|(s, c)| s == sealed && *c == client);
        if known {
            self.hits += 1
        } else {
            self.misses += 1
        }
        known
    }

    /// Remembers what was sealed.
    pub fn insert(&mut self, sealed: &SealedContinuation, client: SocketAddr) {
        let place = self.place(sealed);
        self.slots[place] = Some((*sealed, client));
    }

    /// Forgets everything, as when a key is withdrawn.
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
        assert!(!cache.knows(&sealed, client));
        cache.insert(&sealed, client);
        assert!(cache.knows(&sealed, client));
        assert!(!cache.knows(&sealed, "192.0.2.1:2".parse().unwrap()));
        let mut mac = sealed;
        mac.mac[11] ^= 1;
        assert!(!cache.knows(&mac, client));
        let mut window = sealed;
        window.fields.start_cwnd = 1000;
        assert!(!cache.knows(&window, client));
        cache.clear();
        assert!(!cache.knows(&sealed, client));
    }
}
