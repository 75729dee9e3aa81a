//! The connections that the kernel's TCP has here, a listener's and adopted ones together: how many a client may have, and which one is
//! closed when there is no room for another.
//!
//! Each has a thread, so their number is bounded. A client that holds many, or sends or reads slowly, keeps none of the others out: a client
//! has a share ([`Limits::per_address`], [`Limits::per_prefix`]). Where a share or the whole is used up, the connection that waits for a
//! request for longest gives way, and if none waits, the slowest of those that move fewer bytes a second than [`Limits::slow_rate`].

use std::collections::HashMap;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_pktio::repair::unacknowledged;

/// Limit on simultaneous connections.
pub(super) const MAX_CONNECTIONS: usize = 512;

/// Limits on the number of connections, and on their slowness.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    /// Limit on simultaneous connections.
    pub(super) all: usize,
    /// Limit on simultaneous connections of one address (IPv6: a /64); a network behind one address
    /// has many clients.
    pub(super) per_address: usize,
    /// Limit on simultaneous connections of one network: a /24 of IPv4, a /48 of IPv6.
    pub(super) per_prefix: usize,
    /// Limit on displaced connections with threads that have not ended yet. At the limit no
    /// connection is displaced.
    pub(super) ending: usize,
    /// Time limit of a request's head, from its first byte to its last, and of a body's beginning,
    /// before [`least_rate`](Self::least_rate) applies.
    pub(super) head: Duration,
    /// Time after which a connection without a request, or without a transfer, is closed.
    pub(super) idle: Duration,
    /// Rate at which a client must send a body and accept an answer, bytes a second.
    pub(super) least_rate: u64,
    /// When all places are taken, a body or an answer below this rate (bytes a second) may be
    /// displaced. A client that holds all places must then transfer 8 MB a second.
    pub(super) slow_rate: u64,
    /// Age at which a body or an answer may be displaced.
    pub(super) young: Duration,
    /// How long a client's bytes are read and discarded after the last answer.
    pub(super) linger: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            all: MAX_CONNECTIONS,
            per_address: 128,
            per_prefix: 256,
            ending: 64,
            head: Duration::from_secs(20),
            idle: Duration::from_secs(60),
            least_rate: 1024,
            slow_rate: 16 << 10,
            young: Duration::from_secs(2),
            linger: Duration::from_secs(5),
        }
    }
}

/// Counters of connections, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Connections that were refused because there was no room.
    pub(super) refused: u64,
    /// Connections that were closed to make room for others.
    pub(super) displaced: u64,
    /// Connections with a client that sent a head or body, or accepted an answer, too slowly.
    pub(super) late: u64,
}

/// The table of connections: of all listeners, and adopted ones.
#[derive(Clone, Debug, Default)]
pub(super) struct Connections(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    limits: Limits,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<u64, Open>,
    last: u64,
    counts: Counts,
}

#[derive(Debug)]
struct Open {
    client: IpAddr,
    /// Another handle of the socket, through which another thread closes it.
    socket: TcpStream,
    phase: Phase,
    since: Instant,
    progress: Arc<Progress>,
}

/// Activity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The thread waits for a complete head, for content to be read, or for the client to close.
    Waiting,
    /// The thread receives a request's body.
    Body,
    /// The thread sends an answer.
    Answer,
}

/// State that a connection's thread and the table share without a lock.
#[derive(Debug, Default)]
struct Progress {
    /// Bytes of the body or answer that were read or written.
    bytes: AtomicU64,
    displaced: AtomicBool,
}

/// A connection's entry in the table, until it is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    connections: Connections,
    client: IpAddr,
    number: u64,
    progress: Arc<Progress>,
}

/// The first bits of an address.
fn prefix(address: IpAddr, v4: u32, v6: u32) -> u128 {
    match address.to_canonical() {
        IpAddr::V4(ip) => u128::from(u32::from(ip) >> (32 - v4)) | 1 << 127,
        IpAddr::V6(ip) => u128::from(ip) >> (128 - v6),
    }
}

impl Connections {
    #[cfg(test)]
    pub(super) fn new(limits: Limits) -> Connections {
        Connections(Arc::new(Shared { limits, table: Mutex::default() }))
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Admits a connection of this client. `None` if its share, or the whole table, is full of
    /// connections that may not be displaced.
    pub(super) fn admit(&self, client: SocketAddr, socket: TcpStream) -> Option<Guest> {
        let client = client.ip();
        let limits = &self.0.limits;
        let mut table = self.0.table.lock();
        let address = prefix(client, 32, 64);
        let network = prefix(client, 24, 48);
        let room = table.open.len() < limits.all + limits.ending
            && table.make_room(limits, limits.per_address, |other| prefix(other, 32, 64) == address)
            && table.make_room(limits, limits.per_prefix, |other| prefix(other, 24, 48) == network)
            && table.make_room(limits, limits.all, |_| true);
        if !room {
            table.counts.refused += 1;
            return None;
        }
        table.last += 1;
        let (number, progress) = (table.last, Arc::new(Progress::default()));
        let (phase, since) = (Phase::Waiting, Instant::now());
        table.open.insert(number, Open { client, socket, phase, since, progress: progress.clone() });
        Some(Guest { connections: self.clone(), client, number, progress })
    }

    /// Number of open connections.
    pub(super) fn open(&self) -> usize {
        self.0.table.lock().open.len()
    }

    pub(super) fn counts(&self) -> Counts {
        self.0.table.lock().counts
    }
}

impl Open {
    /// Rate at which the client sent or acknowledged, bytes a second, if the connection is old
    /// enough and the rate is below the limit.
    fn slowness(&self, limits: &Limits) -> Option<u64> {
        let age = self.since.elapsed();
        if self.phase == Phase::Waiting || age < limits.young {
            return None;
        }
        let mut bytes = self.progress.bytes.load(Ordering::Relaxed);
        if self.phase == Phase::Answer {
            // Bytes in the kernel's send queue have not reached the client.
            bytes = bytes.saturating_sub(unacknowledged(&self.socket).map_or(0, u64::from));
        }
        let rate = u128::from(bytes) * 1000 / age.as_millis().max(1);
        u64::try_from(rate).ok().filter(|rate| *rate < limits.slow_rate)
    }
}

impl Table {
    /// Whether fewer than `most` connections match `of`, after one of them was displaced if
    /// necessary.
    fn make_room(&mut self, limits: &Limits, most: usize, of: impl Fn(IpAddr) -> bool) -> bool {
        let counted = || {
            let open = self.open.iter();
            open.filter(|(_, open)| !open.progress.displaced.load(Ordering::Relaxed) && of(open.client))
        };
        if counted().count() < most {
            return true;
        }
        let waiting = counted().filter(|(_, open)| open.phase == Phase::Waiting);
        let oldest = waiting.map(|(number, open)| (open.since, *number)).min().map(|(_, number)| number);
        let slowest = || counted().filter_map(|(number, open)| Some((open.slowness(limits)?, *number))).min();
        let Some(number) = oldest.or_else(|| slowest().map(|(_, number)| number)) else { return false };
        let Some(open) = self.open.get(&number) else { return false };
        open.progress.displaced.store(true, Ordering::Release);
        self.counts.displaced += 1;
        // Wakes up the connection's thread. An error means that the socket is closed already.
        let _ = open.socket.shutdown(Shutdown::Both);
        true
    }
}

impl Guest {
    /// The client's address.
    pub(super) fn client(&self) -> IpAddr {
        self.client
    }

    /// Notes the connection's activity. Consecutive waits without a request count as one.
    pub(super) fn enter(&self, phase: Phase) {
        if let Some(open) = self.connections.0.table.lock().open.get_mut(&self.number)
            && (open.phase, phase) != (Phase::Waiting, Phase::Waiting)
        {
            open.phase = phase;
            open.since = Instant::now();
            self.progress.bytes.store(0, Ordering::Relaxed);
        }
    }

    /// Counts bytes of the body or answer that were transferred.
    pub(super) fn count(&self, bytes: usize) {
        self.progress.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Whether it was closed to make room for another connection.
    pub(super) fn is_displaced(&self) -> bool {
        self.progress.displaced.load(Ordering::Acquire)
    }

    pub(super) fn limits(&self) -> &Limits {
        self.connections.limits()
    }

    /// Counts a connection that was closed because it was too slow.
    pub(super) fn count_late(&self) {
        self.connections.0.table.lock().counts.late += 1;
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.connections.0.table.lock().open.remove(&self.number);
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
    fn connections_are_limited_by_address_and_network() {
        let (connections, mut sockets) = (Connections::default(), Sockets::new());
        let Limits { per_address, per_prefix, all, .. } = Limits::default();
        assert_eq!((2 * per_address, 2 * per_prefix), (per_prefix, all));
        let of = |n: u32| SocketAddr::new(Ipv4Addr::from(0x0a00_0000 + n).into(), 9);
        let mut admit =
            |client| connections.admit(client, sockets.next()).inspect(|guest| guest.enter(Phase::Answer));
        let first: Vec<Guest> = (0..per_address).map(|_| admit(of(1)).unwrap()).collect();
        assert!(admit(of(1)).is_none(), "all of its own have requests");
        let second: Vec<Guest> = (0..per_address).map(|_| admit(of(2)).unwrap()).collect();
        assert!(admit(of(3)).is_none(), "a network's share");
        let others: Vec<Guest> = (0..per_address as u32).map(|n| admit(of(256 + n)).unwrap()).collect();
        // IPv6 counts by network, and a mapped address is IPv4.
        let v6 = |n: u128| SocketAddr::new(Ipv6Addr::from(0xfd00 << 112 | n).into(), 9);
        let sixth: Vec<Guest> = (0..per_address as u128).map(|n| admit(v6(n)).unwrap()).collect();
        assert!(admit(v6(0)).is_none());
        assert!(admit(SocketAddr::new(Ipv4Addr::from(0x0a00_0001).to_ipv6_mapped().into(), 9)).is_none());
        assert!(admit(of(1 << 20)).is_none(), "as many as there may be");
        assert_eq!((connections.open(), connections.counts().refused), (all, 5));
        drop((first, second, others, sixth));
        assert_eq!(connections.open(), 0);
    }

    #[test]
    fn longest_waiting_connection_is_displaced() {
        let (connections, mut sockets) = (Connections::default(), Sockets::new());
        let client = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9);
        let guests: Vec<Guest> = (0..Limits::default().per_address)
            .map(|_| connections.admit(client, sockets.next()).unwrap())
            .collect();
        guests[0].enter(Phase::Body);
        let more = connections.admit(client, sockets.next()).unwrap();
        let displaced = |guests: &[Guest]| guests.iter().position(Guest::is_displaced);
        assert_eq!((displaced(&guests), more.is_displaced()), (Some(1), false));
        assert_eq!(connections.counts(), Counts { displaced: 1, ..Counts::default() });
    }

    #[test]
    fn slowest_transfer_gives_way_when_none_waits() {
        let limits = Limits { all: 3, young: Duration::ZERO, slow_rate: 1 << 30, ..Limits::default() };
        let (connections, mut sockets) = (Connections::new(limits), Sockets::new());
        let client = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9);
        let guests: Vec<Guest> = (0..3).map(|_| connections.admit(client, sockets.next()).unwrap()).collect();
        for (guest, bytes) in guests.iter().zip([300_000, 100_000, 200_000]) {
            guest.enter(Phase::Body);
            guest.count(bytes);
        }
        std::thread::sleep(Duration::from_millis(50));
        let _more = connections.admit(client, sockets.next()).unwrap();
        let displaced: Vec<bool> = guests.iter().map(Guest::is_displaced).collect();
        assert_eq!(displaced, [false, true, false]);
    }

    #[test]
    fn displaced_threads_are_limited() {
        let limits = Limits { all: 2, ending: 3, ..Limits::default() };
        let (connections, mut sockets) = (Connections::new(limits), Sockets::new());
        let client = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 9);
        let mut guests = Vec::new();
        while let Some(guest) = connections.admit(client, sockets.next()) {
            guests.push(guest);
        }
        assert_eq!((guests.len(), connections.counts().displaced), (5, 3));
        drop(guests.remove(0));
        assert!(connections.admit(client, sockets.next()).is_some(), "one of them has ended");
    }
}
