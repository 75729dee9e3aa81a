//! A set of services, by their indices in the server's list.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limits::MAX_SERVICES;

const WORDS: usize = MAX_SERVICES.div_ceil(64);

/// A set of services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceSet([u64; WORDS]);

impl ServiceSet {
    /// All possible services.
    pub const ALL: ServiceSet = ServiceSet([u64::MAX; WORDS]);

    /// Adds the service at this index, below [`MAX_SERVICES`].
    pub fn add(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    /// The union of two sets.
    pub fn or(self, other: ServiceSet) -> ServiceSet {
        ServiceSet(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Whether the other set includes this one.
    pub fn is_within(self, other: ServiceSet) -> bool {
        self.0.iter().zip(other.0).all(|(own, other)| own & !other == 0)
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == [0; WORDS]
    }
}

impl FromIterator<usize> for ServiceSet {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        let mut set = ServiceSet::default();
        places.into_iter().for_each(|index| set.add(index));
        set
    }
}

/// A set written by one thread and read by others. A reader may see a partial change.
#[derive(Debug)]
pub(crate) struct SharedServiceSet([AtomicU64; WORDS]);

impl SharedServiceSet {
    pub fn new(set: ServiceSet) -> SharedServiceSet {
        SharedServiceSet(set.0.map(AtomicU64::new))
    }

    pub fn load(&self) -> ServiceSet {
        ServiceSet(std::array::from_fn(|word| self.0[word].load(Ordering::Relaxed)))
    }

    pub fn store(&self, set: ServiceSet) {
        for (to, word) in self.0.iter().zip(set.0) {
            to.store(word, Ordering::Relaxed);
        }
    }
}

impl Default for SharedServiceSet {
    fn default() -> Self {
        SharedServiceSet::new(ServiceSet::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_a_separate_bit() {
        let mut set = ServiceSet::default();
        assert!(set.is_empty() && set.is_within(set));
        for index in 0..MAX_SERVICES {
            let one: ServiceSet = [index].into_iter().collect();
            assert!(!one.is_within(set), "{index}");
            set.add(index);
            assert!(one.is_within(set) && !set.is_empty());
        }
        assert_eq!(set, ServiceSet::ALL);
        let shared = SharedServiceSet::default();
        shared.store(set);
        assert_eq!(shared.load().or(ServiceSet::default()), ServiceSet::ALL);
    }
}
