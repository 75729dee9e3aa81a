//! The connections that the kernel's TCP has here, a listener's and adopted ones together: how many a client may have, and which one is
//! closed when there is no room for another.
//!
//! Each has a thread, so their number is bounded. A client that holds many, or sends too slowly, keeps none of the others out: a client has a
//! share ([`PER_ADDRESS`], [`PER_PREFIX`]), and where a share or the whole is used up, the connection that waits for a request for longest
//! gives way. Only connections without a whole request do.

use std::collections::HashMap;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

/// Connections at a time.
pub(super) const MAX_CONNECTIONS: usize = 512;
/// Connections of one address at a time, of IPv6 of 64 bits: networks behind one address have many clients.
pub(super) const PER_ADDRESS: usize = 128;
/// Connections of one network at a time: 24 bits of IPv4, 48 of IPv6.
const PER_PREFIX: usize = 256;

/// What became of connections; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Connections that found no room.
    pub(super) refused: u64,
    /// Connections that gave way to others while they waited for a request.
    pub(super) displaced: u64,
    /// Connections that sent a head or a body, or took an answer, too slowly.
    pub(super) late: u64,
}

/// The connections of all listeners, and those that were adopted.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    open: HashMap<u64, Open>,
    last: u64,
    counts: Counts,
}

#[derive(Debug)]
struct Open {
    client: IpAddr,
    /// Another handle of the socket, by which it is closed.
    socket: TcpStream,
    /// Since when it has been waiting for a request; none while it has one.
    waits: Option<Instant>,
    displaced: bool,
}

/// One connection's place among them, until it is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    connections: Connections,
    number: u64,
}

/// An address's first bits.
fn prefix(address: IpAddr, v4: u32, v6: u32) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(ip) => u128::from(u32::from(ip) >> (32 - v4)) | 1 << 127,
        IpAddr::V6(ip) => u128::from(ip) >> (128 - v6),
    }
}

impl Connections {
    /// A place for a connection of this client; none if it has its share and waits for nothing with it, or all have.
    pub(super) fn admit(&self, client: SocketAddr, socket: TcpStream) -> Option<Guest> {
        let client = client.ip();
        let mut table = self.0.lock();
        let address = prefix(client, 32, 64);
        let network = prefix(client, 24, 48);
        let room = table.make_room(PER_ADDRESS, |other| prefix(other, 32, 64) == address)
            && table.make_room(PER_PREFIX, |other| prefix(other, 24, 48) == network)
            && table.make_room(MAX_CONNECTIONS, |_| true);
        if !room {
            table.counts.refused += 1;
            return None;
        }
        table.last += 1;
        let number = table.last;
        let waits = Some(Instant::now());
        table.open.insert(number, Open { client, socket, waits, displaced: false });
        Some(Guest { connections: self.clone(), number })
    }

    /// How many are open.
    pub(super) fn open(&self) -> usize {
        self.0.lock().open.len()
    }

    pub(super) fn counts(&self) -> Counts {
        self.0.lock().counts
    }
}

impl Table {
    /// Whether fewer than `most` of these clients' connections are open; if not, the one that waits for longest gives way.
    fn make_room(&mut self, most: usize, of: impl Fn(IpAddr) -> bool) -> bool {
        let counted = || self.open.iter().filter(|(_, open)| !open.displaced && of(open.client));
        if counted().count() < most {
            return true;
        }
        let oldest = counted().filter_map(|(number, open)| Some((open.waits?, *number))).min();
        let Some(open) = oldest.and_then(|(_, number)| self.open.get_mut(&number)) else { return false };
        open.displaced = true;
        self.counts.displaced += 1;
        // Its thread wakes up. A socket that refuses this is gone.
        let _ = open.socket.shutdown(Shutdown::Both);
        true
    }
}

impl Guest {
    /// It has a request now, or waits for one from now on.
    pub(super) fn set_waiting(&self, waiting: bool) {
        if let Some(open) = self.connections.0.lock().open.get_mut(&self.number) {
            open.waits = waiting.then(|| open.waits.unwrap_or_else(Instant::now));
        }
    }

    /// It gave way to another.
    pub(super) fn is_displaced(&self) -> bool {
        self.connections.0.lock().open.get(&self.number).is_none_or(|open| open.displaced)
    }

    /// It is closed since it was too slow.
    pub(super) fn count_late(&self) {
        self.connections.0.lock().counts.late += 1;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.connections.0.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    struct Sockets(TcpListener, Vec<TcpStream>);

    impl Sockets {
        fn new() -> Sockets {
            Sockets(TcpListener::bind("127.0.0.1:0").unwrap(), Vec::new())
        }

        fn next(&mut self) -> TcpStream {
            self.1.push(TcpStream::connect(self.0.local_addr().unwrap()).unwrap());
            self.0.accept().unwrap().0
        }
    }

    #[test]
    fn an_address_and_a_network_have_a_share_each() {
        let (connections, mut sockets) = (Connections::default(), Sockets::new());
        let of = |n: u32| SocketAddr::new(Ipv4Addr::from(0x0a00_0000 + n).into(), 9);
        let mut admit =
            |client| connections.admit(client, sockets.next()).inspect(|guest| guest.set_waiting(false));
        let first: Vec<Guest> = (0..PER_ADDRESS).map(|_| admit(of(1)).unwrap()).collect();
        assert!(admit(of(1)).is_none(), "all of its own have requests");
        let second: Vec<Guest> = (0..PER_ADDRESS).map(|_| admit(of(2)).unwrap()).collect();
        assert!(admit(of(3)).is_none(), "a network's share");
        let others: Vec<Guest> = (0..PER_ADDRESS as u32).map(|n| admit(of(256 + n)).unwrap()).collect();
        // Of IPv6 networks are counted, and what is mapped is IPv4.
        let v6 = |n: u128| SocketAddr::new(Ipv6Addr::from(0xfd00 << 112 | n).into(), 9);
        let sixth: Vec<Guest> = (0..PER_ADDRESS as u128).map(|n| admit(v6(n)).unwrap()).collect();
        assert!(admit(v6(0)).is_none());
        assert!(admit(SocketAddr::new(Ipv4Addr::from(0x0a00_0001).to_ipv6_mapped().into(), 9)).is_none());
        assert!(admit(of(1 << 20)).is_none(), "as many as there may be");
        assert_eq!((connections.open(), connections.counts().refused), (MAX_CONNECTIONS, 5));
        drop((first, second, others, sixth));
        assert_eq!(connections.open(), 0);
    }

    #[test]
    fn who_waits_for_longest_gives_way() {
        let (connections, mut sockets) = (Connections::default(), Sockets::new());
        let client = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9);
        let guests: Vec<Guest> =
            (0..PER_ADDRESS).map(|_| connections.admit(client, sockets.next()).unwrap()).collect();
        guests[0].set_waiting(false);
        let more = connections.admit(client, sockets.next()).unwrap();
        let displaced = |guests: &[Guest]| guests.iter().position(Guest::is_displaced);
        assert_eq!((displaced(&guests), more.is_displaced()), (Some(1), false));
        assert_eq!(connections.counts(), Counts { displaced: 1, ..Counts::default() });
    }
}
