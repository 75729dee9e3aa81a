//! Which service answers at an address and port.

use std::net::SocketAddr;

use crate::running::Running;

/// Index of the service at each address and port, sorted.
#[derive(Default)]
pub(crate) struct Sockets(Vec<(SocketAddr, usize)>);

impl Sockets {
    pub(super) fn of(running: &[Running]) -> Sockets {
        let places = running.iter().enumerate();
        let mut sockets: Vec<_> =
            places.flat_map(|(index, r)| r.service.sockets().map(move |socket| (socket, index))).collect();
        sockets.sort_unstable();
        Sockets(sockets)
    }

    /// Index of the service at this address and port.
    pub(crate) fn place(&self, address: SocketAddr) -> Option<usize> {
        let at = self.0.binary_search_by_key(&address, |(socket, _)| *socket).ok()?;
        Some(self.0[at].1)
    }
}
