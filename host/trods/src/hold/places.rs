//! Assigns each connection the number of its record in the store. It is the lowest free number,
//! because a replica that searches for a dead replica's records requests all numbers up to the
//! highest.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rivulet_bpf::trods::FlowKey;

use super::Keeper;
use crate::digest::{self, Digests, Wanted};
use crate::record::{MAX_RECORD, Record};
use crate::store::{Done, RecordKeys, Store, StoreConfig};

/// A store, and the number of each connection's record in it.
#[derive(Debug)]
struct Places {
    store: Store,
    config: StoreConfig,
    numbers: HashMap<FlowKey, u32>,
    /// Owners of the numbers, indexed by number.
    taken: Vec<Option<Taken>>,
    free: BinaryHeap<Reverse<u32>>,
}

/// The owner of a number, and its last record, as the store has it and as the flow passed it, with
/// the epoch of its sealing key.
#[derive(Clone, Copy, Debug)]
struct Taken {
    key: FlowKey,
    handed: u64,
    ticket: u64,
    epoch: u16,
}

impl Places {
    fn new(store: Store, config: StoreConfig) -> Places {
        let (numbers, taken, free) = (HashMap::new(), Vec::new(), BinaryHeap::new());
        Places { store, config, numbers, taken, free }
    }

    fn number(&mut self, key: &FlowKey) -> u32 {
        *self.numbers.entry(*key).or_insert_with(|| match self.free.pop() {
            Some(Reverse(n)) => n,
            None => {
                self.taken.push(None);
                self.taken.len() as u32 - 1
            }
        })
    }
}

/// A replica's stores; each holds the records of some services.
#[derive(Debug, Default)]
pub struct Stores {
    all: Vec<Places>,
    services: HashMap<SocketAddr, usize>,
    /// Number of records passed to stores so far. A result is matched to its record by this count.
    handed: u64,
    done: Vec<Done>,
    digests: Digests,
    /// Connections with records that lack digests, and the objects to which the digests belong.
    undigested: HashMap<FlowKey, Vec<Wanted>>,
}

impl Stores {
    /// Adds digests to the records that are stored from now on.
    pub fn set_digests(&mut self, digests: &Digests) {
        self.digests = digests.clone();
    }

    /// The record with all digests that are known.
    fn with_digests<'r>(&mut self, key: &FlowKey, whole: &'r Record) -> Cow<'r, Record> {
        let lacking = |response| digest::lacking(key.service(), response);
        let lacks: Vec<Wanted> = whole.responses.iter().filter_map(lacking).collect();
        if lacks.is_empty() {
            self.undigested.remove(key);
            return Cow::Borrowed(whole);
        }
        let mut record = whole.clone();
        if self.digests.fill(key, &mut record.responses) {
            self.undigested.insert(*key, lacks);
        } else {
            self.undigested.remove(key);
        }
        if record.size() > MAX_RECORD {
            // A record without the digest can still be resumed with `unknown: trust`.
            return Cow::Borrowed(whole);
        }
        Cow::Owned(record)
    }

    /// Stores the records of these services in this store from now on. Records in other stores stay
    /// there.
    pub fn add(
        &mut self,
        store: Store,
        config: &StoreConfig,
        services: impl IntoIterator<Item = SocketAddr>,
    ) {
        let at = self.all.len();
        self.all.push(Places::new(store, config.clone()));
        self.services.extend(services.into_iter().map(|service| (service, at)));
    }

    /// Seals the records of a service with these keys from now on; existing records are stored
    /// again.
    pub fn set_keys(&mut self, service: &SocketAddr, keys: &RecordKeys) {
        if let Some(places) = self.services.get(service).and_then(|at| self.all.get_mut(*at)) {
            places.store.set_keys(keys, Instant::now());
        }
    }

    /// Whether a store with this configuration holds the records of a service.
    #[must_use]
    pub fn has(&self, service: &SocketAddr, config: &StoreConfig) -> bool {
        self.services
            .get(service)
            .and_then(|at| self.all.get(*at))
            .is_some_and(|places| places.config == *config)
    }

    /// The number of a connection's record, if it has one.
    #[must_use]
    pub fn number(&self, key: &FlowKey) -> Option<u32> {
        let places = self.services.get(&key.service()).and_then(|at| self.all.get(*at))?;
        places.numbers.get(key).copied()
    }

    /// Whether any store holds the records of a service.
    #[must_use]
    pub fn serves(&self, service: &SocketAddr) -> bool {
        self.services.contains_key(service)
    }
}

impl Keeper for Stores {
    fn store(&mut self, key: &FlowKey, ticket: u64, record: &Record) {
        let record = self.with_digests(key, record);
        let Some(places) = self.services.get(&key.service()).and_then(|at| self.all.get_mut(*at)) else {
            return;
        };
        let n = places.number(key);
        self.handed += 1;
        if let Some(taken) = places.taken.get_mut(n as usize) {
            *taken =
                Some(Taken { key: *key, handed: self.handed, ticket, epoch: places.store.keys().usable() });
        }
        places.store.put(n, self.handed, &record, Instant::now());
    }

    fn forget(&mut self, key: &FlowKey) {
        self.undigested.remove(key);
        let Some(places) = self.services.get(&key.service()).and_then(|at| self.all.get_mut(*at)) else {
            return;
        };
        if let Some(n) = places.numbers.remove(key) {
            places.store.forget(n);
            if let Some(taken) = places.taken.get_mut(n as usize) {
                *taken = None;
            }
            places.free.push(Reverse(n));
        }
    }

    fn is_stale(&self, key: &FlowKey) -> bool {
        // Digests that became known since the last record are stored with this one.
        if self
            .undigested
            .get(key)
            .is_some_and(|lacks| lacks.iter().any(|wanted| self.digests.has_digest(wanted)))
        {
            return true;
        }
        let places = self.services.get(&key.service()).and_then(|at| self.all.get(*at));
        places.is_some_and(|places| {
            places.numbers.get(key).is_some_and(|n| {
                let taken = places.taken.get(*n as usize).copied().flatten();
                let is_old = taken.is_some_and(|taken| taken.epoch != places.store.keys().usable());
                is_old || places.store.is_stale(*n, Instant::now())
            })
        })
    }

    fn turn(&mut self, settled: &mut dyn FnMut(&FlowKey, u64, bool)) {
        for places in &mut self.all {
            places.store.turn(Instant::now(), &mut self.done);
            for Done { n, ticket: handed, kept } in self.done.drain(..) {
                if let Some(&Some(taken)) = places.taken.get(n as usize)
                    && taken.handed == handed
                {
                    settled(&taken.key, taken.ticket, kept);
                }
            }
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.all.iter().map(|places| places.store.deadline()).min()
    }

    fn wait<'k>(&'k self, on: &mut Vec<(BorrowedFd<'k>, bool)>) {
        on.extend(self.all.iter().flat_map(|places| places.store.descriptors()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::RENEWAL;

    #[test]
    fn connection_gets_lowest_free_number() {
        let config = StoreConfig {
            servers: vec!["192.0.2.9:11211".parse().unwrap()],
            own: Vec::new(),
            copies: 1,
            prefix: "p.0.1".into(),
            formers: Vec::new(),
            patience: Duration::from_millis(2),
            renewal: RENEWAL,
        };
        let service: SocketAddr = "10.9.0.1:80".parse().unwrap();
        let mut stores = Stores::default();
        assert!(!stores.serves(&service));
        let keys = RecordKeys::new(1, 1, &[(1, [1; 16])]);
        stores.add(Store::new(&config, &keys, Instant::now()).unwrap(), &config, [service]);
        assert!(stores.serves(&service) && stores.has(&service, &config));
        assert!(!stores.has(&service, &StoreConfig { copies: 2, ..config }));
        let key = |port: u16| FlowKey::new(SocketAddr::from(([192, 0, 2, 7], port)), service);
        let places = &mut stores.all[0];
        for port in 0..4 {
            assert_eq!((places.number(&key(port)), places.number(&key(port))), (port.into(), port.into()));
        }
        for port in [2, 0] {
            stores.forget(&key(port));
            stores.forget(&key(port));
        }
        let places = &mut stores.all[0];
        assert_eq!([9, 8, 7].map(|port| places.number(&key(port))), [0, 2, 4]);
        assert_eq!((places.number(&key(1)), places.number(&key(3))), (1, 3));
    }
}
