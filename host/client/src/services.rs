//! One connection for each service: further connects of a stack find it here and open streams on
//! it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::connection::Shared;

/// Number of services from which on entries without a connection are removed.
const SWEEP: usize = 256;

/// The newest connection to a service. Locked while one is being opened, so that of several
/// simultaneous connects one opens it and the others join it.
pub(crate) type Service = Arc<Mutex<Weak<Shared>>>;

/// All services of a stack, by (our address, their address and port).
#[derive(Default)]
pub(crate) struct Services(Mutex<Known>);

#[derive(Default)]
struct Known {
    services: HashMap<(IpAddr, SocketAddr), Service>,
    /// Entries left after the last sweep. The next sweep runs at twice this number.
    kept: usize,
}

impl Services {
    /// The entry of one service, created if missing.
    pub fn of(&self, source: IpAddr, remote: SocketAddr) -> Service {
        let mut known = self.0.lock();
        if known.services.len() >= SWEEP.max(2 * known.kept) {
            // No thread is connecting (no other reference), and there is no connection.
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
