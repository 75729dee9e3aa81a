//! One connection for each service: further connects of a stack find it here, and become streams of it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::connection::Shared;

/// Services from which on those without a connection are looked for, to be forgotten.
const SWEEP: usize = 256;

/// A service's connection, the newest of those that there may be. Locked while one is opened, so that of several connects at a time
/// one opens it and the others find it.
pub(crate) type Service = Arc<Mutex<Weak<Shared>>>;

/// All services of a stack, by our address and theirs.
#[derive(Default)]
pub(crate) struct Services(Mutex<Known>);

#[derive(Default)]
struct Known {
    services: HashMap<(IpAddr, SocketAddr), Service>,
    /// As many as there were behind the last look.
    kept: usize,
}

impl Services {
    /// This one.
    pub fn of(&self, source: IpAddr, remote: SocketAddr) -> Service {
        let mut known = self.0.lock();
        if known.services.len() >= SWEEP.max(2 * known.kept) {
            // Neither anybody who is connecting nor a connection.
            let idle = |service: &Service| {
                Arc::strong_count(service) == 1 && service.try_lock().is_some_and(|s| s.strong_count() == 0)
            };
            known.services.retain(|_, service| !idle(service));
            known.kept = known.services.len();
        }
        known.services.entry((source, remote)).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_bounded_by_those_in_use() {
        let all = Services::default();
        let source = IpAddr::from([10, 0, 0, 1]);
        let at = |n: u32| SocketAddr::from((n.to_be_bytes(), 80));
        let held: Vec<Service> = (0..1000).map(|n| all.of(source, at(n))).collect();
        assert!(Arc::ptr_eq(&held[7], &all.of(source, at(7))));
        (1000..20_000).for_each(|n| drop(all.of(source, at(n))));
        assert!(all.0.lock().services.len() <= 2000, "{}", all.0.lock().services.len());
        assert!(held.iter().zip(0..).all(|(service, n)| Arc::ptr_eq(service, &all.of(source, at(n)))));
        drop(held);
        (0..20_000).for_each(|n| drop(all.of(source, at(n))));
        assert!(all.0.lock().services.len() <= SWEEP);
    }
}
