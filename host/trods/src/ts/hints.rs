//! Hints: UDP datagrams in which replicas announce their connections to each other, because a
//! client that only receives sends nothing by itself after its replica's death. No connection waits
//! for a hint; a lost one delays an adoption until the next one.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_bpf::trods::{FlowKey, Generation};
use rivulet_packet::nonce::half_sip_hash_64;

use super::read::is_near;

/// UDP port for hints.
pub const PORT: u16 = 7113;
/// Lifetime of a hint.
const LIFETIME: Duration = Duration::from_millis(3500);
/// Limit on the connections that are remembered; further hints are dropped.
const MAX_KNOWN: usize = 1 << 18;
/// Length of a datagram's header: sender, number of connections, service, serial number.
const HEAD: usize = 4 + 2 + 2 + 18 + 8;
/// After this long without a datagram, a sender's serial numbers may restart: its clock may have
/// been set back.
const NUMBERED: Duration = Duration::from_secs(60);
const ENTRY: usize = 32;
const TAG: usize = 8;
/// Number of entries that fit into an Ethernet frame.
const MAX_ENTRIES: usize = 44;
const MAGIC: [u8; 4] = *b"RvT\x03";
/// Flags of an entry. The bits above hold the member to which the connection is left.
const NAMED: u8 = 1 << 0;
const LEFT: u8 = 1 << 1;
const HEIR: u8 = 2;
/// Shift of the bits above an entry's generation: the time since its client's last segment
/// ([`quiet`]).
const QUIET: u8 = 5;

/// A replica's announcement that it has a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The client's next sequence number: everything before it was acknowledged.
    pub client_next: u32,
    /// The bits that are equal in all timestamps of the connection.
    pub base: u32,
    /// Number of the object that is being sent; 0: none yet.
    pub object: u32,
    /// Whether any replica can resume the connection by its timestamps; if not, the hint announces
    /// only the holder.
    pub is_named: bool,
    /// Number of adoptions so far, because the former holder may still announce the connection.
    pub generation: Generation,
    /// The member that should adopt the connection, which its holder has muted.
    pub left_to: Option<u8>,
    /// Time since the client's last segment ([`quiet`]).
    pub quiet: u8,
}

/// Encodes a time in three bits: 0 below a second, then one more for each factor of four.
#[must_use]
pub fn quiet(nanoseconds: u64) -> u8 {
    let seconds = nanoseconds / 1_000_000_000;
    seconds.checked_ilog2().map_or(0, |log| (log / 2 + 1).min(7) as u8)
}

impl Hint {
    /// Whether this hint takes precedence over `other`. For one connection, the hint of the later
    /// adopter does. For two connections between the same addresses and ports, that with the more
    /// recent segment of its client does, or else the later one: ISNs grow with time (RFC 6528), in
    /// Linux once around in 275 seconds.
    #[must_use]
    pub fn is_after(&self, other: &Hint) -> bool {
        if is_near(self.client_next, other.client_next) {
            return self.generation.is_after(other.generation);
        }
        if self.quiet != other.quiet {
            return self.quiet < other.quiet;
        }
        self.client_next.wrapping_sub(other.client_next) as i32 > 0
    }
}

/// The replicas that exchange hints about a service's connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// This replica's number.
    pub own: u8,
    /// The other replicas' numbers, and the UDP addresses of their agents.
    pub others: Vec<(u8, SocketAddr)>,
    /// Secret shared by all replicas of the service, which authenticates hints.
    pub secret: [u8; 8],
}

/// This replica's socket for hints, and the hints that it has received.
#[derive(Debug)]
pub struct Hints {
    socket: UdpSocket,
    peers: HashMap<SocketAddr, Peers>,
    known: HashMap<FlowKey, (u8, Hint, Instant)>,
    /// Connections with a last hint from another replica than the one before.
    moved: Vec<FlowKey>,
    /// Connections that a hint leaves to a member.
    left: Vec<FlowKey>,
    waiting: HashMap<SocketAddr, Vec<(FlowKey, Hint)>>,
    /// Serial number of the next datagram.
    next: u64,
    /// The highest serial number of each sender of a service, and its time: a lower one is a
    /// replay, or late.
    heard: HashMap<(SocketAddr, u8), (u64, Instant)>,
}

impl Hints {
    /// Opens the socket, in the calling thread's network namespace.
    ///
    /// # Errors
    /// A system call fails.
    pub fn open(port: u16) -> io::Result<Hints> {
        let any: SocketAddr = (std::net::Ipv6Addr::UNSPECIFIED, port).into();
        let socket =
            UdpSocket::bind(any).or_else(|_| UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, port)))?;
        socket.set_nonblocking(true)?;
        let (peers, known, waiting) = (HashMap::new(), HashMap::new(), HashMap::new());
        // From the clock: larger than all serial numbers of the former process, which sent less
        // than one datagram a microsecond.
        let next = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64);
        let (moved, left, heard) = (Vec::new(), Vec::new(), HashMap::new());
        Ok(Hints { socket, peers, known, moved, left, waiting, next, heard })
    }

    /// Sets the senders and receivers of hints for these services.
    pub fn set_peers(&mut self, peers: HashMap<SocketAddr, Peers>) {
        self.known.retain(|key, _| peers.contains_key(&key.service()));
        self.heard.retain(|(service, _), _| peers.contains_key(service));
        self.peers = peers;
    }

    /// Readable when a hint has arrived.
    #[must_use]
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Announces a connection to the other replicas with the next [`Hints::flush`].
    pub fn tell(&mut self, key: FlowKey, hint: Hint) {
        let waiting = self.waiting.entry(key.service()).or_default();
        waiting.push((key, hint));
        if waiting.len() >= MAX_ENTRIES {
            self.flush();
        }
    }

    /// Sends the waiting hints. Those that cannot be sent are lost, like any datagram.
    pub fn flush(&mut self) {
        for (service, waiting) in &mut self.waiting {
            let Some(peers) = self.peers.get(service) else {
                waiting.clear();
                continue;
            };
            for batch in waiting.chunks(MAX_ENTRIES) {
                let octets = encode(peers, *service, batch, self.next);
                self.next += 1;
                for (_, other) in &peers.others {
                    let _ = self
                        .socket
                        .send_to(&octets, to_v6(*other))
                        .or_else(|_| self.socket.send_to(&octets, other));
                }
            }
            waiting.clear();
        }
    }

    /// Reads all received hints.
    pub fn hear(&mut self, now: Instant) {
        let mut octets = [0; 2048];
        while let Ok((length, from)) = self.socket.recv_from(&mut octets) {
            self.take(&octets[..length], from.ip(), now);
        }
    }

    fn take(&mut self, octets: &[u8], from: IpAddr, now: Instant) {
        let Some((service, sender, entries, number)) = decode(octets, &self.peers) else { return };
        let Some(peers) = self.peers.get(&service) else { return };
        let from = from.to_canonical();
        if !peers.others.iter().any(|(n, address)| *n == sender && address.ip() == from) {
            return;
        }
        let (highest, heard) = self.heard.entry((service, sender)).or_insert((0, now));
        if number <= *highest && now.saturating_duration_since(*heard) < NUMBERED {
            return;
        }
        (*highest, *heard) = (number, now);
        for (key, hint) in entries {
            let is_new = match self.known.get(&key) {
                Some((holder, known, _)) => *holder == sender || !known.is_after(&hint),
                None => self.known.len() < MAX_KNOWN,
            };
            if !is_new {
                continue;
            }
            if self.known.insert(key, (sender, hint, now)).is_none_or(|(before, ..)| before != sender) {
                self.moved.push(key);
            }
            if hint.left_to.is_some() {
                self.left.push(key);
            }
        }
    }

    /// Drops hints that were not repeated within 3.5 s.
    pub fn age(&mut self, now: Instant) {
        self.known.retain(|_, (.., at)| now.saturating_duration_since(*at) < LIFETIME);
    }

    /// The connections of a service in a replica's last hints.
    pub fn of(&self, service: SocketAddr, member: u8) -> impl Iterator<Item = (FlowKey, Hint)> {
        let is_its = move |key: &FlowKey, sender: u8| sender == member && key.service() == service;
        self.known
            .iter()
            .filter(move |(key, (sender, ..))| is_its(key, *sender))
            .map(|(key, (_, hint, _))| (*key, *hint))
    }

    /// The holder of a connection, and its hint.
    pub fn holder(&self, key: &FlowKey) -> Option<(u8, &Hint)> {
        self.known.get(key).map(|(sender, hint, _)| (*sender, hint))
    }

    /// Connections with another holder since the last call.
    pub fn moved(&mut self) -> Vec<FlowKey> {
        std::mem::take(&mut self.moved)
    }

    /// Connections that were left to a member since the last call.
    pub fn left(&mut self) -> Vec<FlowKey> {
        std::mem::take(&mut self.left)
    }

    /// All hints of other replicas: connection, holder, hint and its time.
    pub fn all(&self) -> impl Iterator<Item = (FlowKey, u8, Hint, Instant)> {
        self.known.iter().map(|(key, (sender, hint, told))| (*key, *sender, *hint, *told))
    }

    /// Drops the hint of a connection that this replica resumed.
    pub fn forget(&mut self, key: &FlowKey) {
        self.known.remove(key);
    }
}

fn to_v6(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

fn put_address(address: SocketAddr, out: &mut Vec<u8>) {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    out.extend_from_slice(&octets);
    out.extend_from_slice(&address.port().to_be_bytes());
}

fn get_address(octets: &[u8]) -> Option<SocketAddr> {
    let (address, port) = octets.split_first_chunk::<16>()?;
    let ip = IpAddr::from(*address).to_canonical();
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port.first_chunk()?)))
}

fn encode(peers: &Peers, service: SocketAddr, entries: &[(FlowKey, Hint)], number: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + ENTRY * entries.len() + TAG);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[peers.own, 0]);
    out.extend_from_slice(&(entries.len() as u16).to_be_bytes());
    put_address(service, &mut out);
    out.extend_from_slice(&number.to_be_bytes());
    for (key, hint) in entries {
        put_address(key.client(), &mut out);
        let named = if hint.is_named { NAMED } else { 0 };
        let left = hint.left_to.map_or(0, |heir| heir << HEIR | LEFT);
        out.extend_from_slice(&[named | left, hint.quiet << QUIET | hint.generation.number()]);
        out.extend_from_slice(&hint.client_next.to_be_bytes());
        out.extend_from_slice(&hint.base.to_be_bytes());
        out.extend_from_slice(&hint.object.to_be_bytes());
    }
    let tag = half_sip_hash_64(peers.secret, &out);
    out.extend_from_slice(&tag.to_be_bytes());
    out
}

type Told = (SocketAddr, u8, Vec<(FlowKey, Hint)>, u64);

fn decode(octets: &[u8], peers: &HashMap<SocketAddr, Peers>) -> Option<Told> {
    let (octets, tag) = octets.split_last_chunk::<TAG>()?;
    let (head, entries) = octets.split_at_checked(HEAD)?;
    let service = get_address(head.get(8..)?)?;
    let is_ours = head.starts_with(&MAGIC)
        && peers
            .get(&service)
            .is_some_and(|p| half_sip_hash_64(p.secret, octets) == u64::from_be_bytes(*tag));
    let (entries, rest) = entries.as_chunks::<ENTRY>();
    let count = usize::from(u16::from_be_bytes(*head.get(6..)?.first_chunk()?));
    if !is_ours || !rest.is_empty() || entries.len() != count {
        return None;
    }
    let word = |octets: &[u8]| octets.first_chunk().map_or(0, |word| u32::from_be_bytes(*word));
    let read = |entry: &[u8; ENTRY]| {
        let client = get_address(entry)?;
        let hint = Hint {
            is_named: entry[18] & NAMED != 0,
            generation: Generation::new(entry[19]),
            client_next: word(&entry[20..]),
            base: word(&entry[24..]),
            object: word(&entry[28..]),
            left_to: (entry[18] & LEFT != 0).then_some(entry[18] >> HEIR),
            quiet: entry[19] >> QUIET,
        };
        (client.is_ipv4() == service.is_ipv4()).then(|| (FlowKey::new(client, service), hint))
    };
    let number = u64::from_be_bytes(*head.get(HEAD - 8..)?.first_chunk()?);
    Some((service, *head.get(4)?, entries.iter().filter_map(read).collect(), number))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A serial number larger than all earlier ones.
    fn number() -> u64 {
        static LAST: AtomicU64 = AtomicU64::new(1);
        LAST.fetch_add(1, Ordering::Relaxed)
    }

    fn peers(own: u8, secret: u8) -> Peers {
        let other = |n: u8| (n, SocketAddr::from(([10, 0, 0, n], PORT)));
        Peers {
            own,
            others: [1, 2].map(other).into_iter().filter(|(n, _)| *n != own).collect(),
            secret: [secret; 8],
        }
    }

    #[test]
    fn hints_of_unknown_peers_are_ignored() {
        for (client, service) in [("192.0.2.7:1025", "10.9.0.1:80"), ("[2001:db8::7]:1025", "[fd00:9::1]:80")]
        {
            let (client, service): (SocketAddr, SocketAddr) =
                (client.parse().unwrap(), service.parse().unwrap());
            let key = FlowKey::new(client, service);
            let hint = Hint {
                client_next: 7,
                base: 0x1234_5678,
                object: 0x7_0001,
                is_named: true,
                generation: Generation::new(3),
                left_to: Some(63),
                quiet: 5,
            };
            let octets = encode(&peers(1, 5), service, &[(key, hint)], number());
            let mut hints = Hints::open(0).unwrap();
            let (now, from) = (Instant::now(), "10.0.0.1".parse().unwrap());
            hints.set_peers([(service, peers(2, 6))].into());
            hints.take(&octets, from, now);
            assert_eq!(hints.all().count(), 0, "another secret");
            hints.set_peers([(service, peers(2, 5))].into());
            hints.take(&octets, "10.0.0.3".parse().unwrap(), now);
            for at in 0..octets.len() {
                let mut other = octets.clone();
                other[at] ^= 1;
                hints.take(&other, from, now);
                hints.take(&octets[..at], from, now);
            }
            assert_eq!(hints.all().count(), 0);
            hints.take(&octets, from, now);
            assert_eq!(hints.of(service, 1).collect::<Vec<_>>(), [(key, hint)]);
            assert_eq!(hints.of(service, 2).count(), 0);
            hints.age(now + LIFETIME / 2);
            assert_eq!(hints.all().count(), 1);
            hints.age(now + LIFETIME);
            assert_eq!(hints.all().count(), 0);
        }
    }

    #[test]
    fn replayed_hints_are_ignored() {
        let (client, service) = ("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        let mut hints = Hints::open(0).unwrap();
        hints.set_peers([(service, peers(2, 5))].into());
        let (key, from, now) = (FlowKey::new(client, service), "10.0.0.1".parse().unwrap(), Instant::now());
        let hint = |client_next| Hint {
            client_next,
            base: 0,
            object: 9,
            is_named: true,
            generation: Generation::default(),
            left_to: None,
            quiet: 0,
        };
        let batches = [7, 9].map(|next| encode(&peers(1, 5), service, &[(key, hint(next))], number()));
        let mut has = |octets: &[u8], at| {
            hints.take(octets, from, at);
            hints.holder(&key).map(|(_, hint)| hint.client_next)
        };
        assert_eq!([has(&batches[0], now), has(&batches[1], now)], [Some(7), Some(9)]);
        for octets in &batches {
            assert_eq!(has(octets, now + LIFETIME), Some(9));
        }
        hints.age(now + LIFETIME);
        hints.take(&batches[1], from, now + LIFETIME);
        assert_eq!(hints.all().count(), 0, "a replayed datagram extends no lifetime");
        hints.take(&batches[0], from, now + NUMBERED);
        assert_eq!(hints.all().count(), 1, "the sender's serial numbers may have restarted");
    }

    #[test]
    fn quiet_time_is_encoded_roughly() {
        let seconds =
            [0, 1, 3, 4, 15, 16, 63, 64, 255, 256, 1023, 1024, 4095, 4096, u64::MAX / 1_000_000_000];
        let told = seconds.map(|seconds| quiet(seconds * 1_000_000_000));
        assert_eq!(told, [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]);
    }

    /// An excluded replica with a live agent still announces connections that others have adopted.
    #[test]
    fn former_holder_does_not_hide_the_adopter() {
        let service: SocketAddr = "10.9.0.1:80".parse().unwrap();
        let key = FlowKey::new("192.0.2.7:1025".parse().unwrap(), service);
        let mut hints = Hints::open(0).unwrap();
        hints.set_peers([(service, peers(0, 5))].into());
        let told = |hints: &mut Hints, own: u8, generation: u8, now: Instant| {
            let hint = Hint {
                client_next: 7,
                base: 0,
                object: 0,
                is_named: true,
                generation: Generation::new(generation),
                left_to: None,
                quiet: 0,
            };
            let octets = encode(&peers(own, 5), service, &[(key, hint)], number());
            hints.take(&octets, [10, 0, 0, own].into(), now);
            hints.all().map(|(_, holder, hint, _)| (holder, hint.generation.number())).collect::<Vec<_>>()
        };
        let now = Instant::now();
        assert_eq!(told(&mut hints, 1, 0, now), [(1, 0)]);
        assert_eq!(told(&mut hints, 2, 1, now), [(2, 1)]);
        assert_eq!(told(&mut hints, 1, 0, now + LIFETIME / 2), [(2, 1)]);
        assert_eq!(told(&mut hints, 1, 1, now), [(1, 1)], "of two that went on with it whoever told last");
        assert_eq!(told(&mut hints, 1, 0, now), [(1, 0)], "its next one between the same ports");
        // A later connection between the same ports takes precedence over the former one, even if
        // the former was adopted 9 times.
        let begins = 7 + (1 << 30);
        // Unless the former connection's client has sent something since, or recently: then the ISN
        // has wrapped.
        let cases = [
            (begins, 0, 1),
            (7, 0, 2),
            (begins - (1 << 17), 0, 2),
            (begins + (1 << 17), 0, 1),
            (begins + (1 << 17), 2, 2),
            (7, 2, 2),
        ];
        for (before, quiet, holder) in cases {
            let (generation, left_to) = (Generation::new(9), None);
            let hint =
                Hint { client_next: before, base: 0, object: 0, is_named: true, generation, left_to, quiet };
            let later = Hint { client_next: begins, generation: Generation::default(), quiet: 0, ..hint };
            let mut hints = Hints::open(0).unwrap();
            hints.set_peers([(service, peers(0, 5))].into());
            for (own, hint) in [(1, hint), (2, later)] {
                hints.take(
                    &encode(&peers(own, 5), service, &[(key, hint)], number()),
                    [10, 0, 0, own].into(),
                    now,
                );
            }
            assert_eq!(hints.holder(&key).unwrap().0, holder, "{before}");
        }
        // A rejected datagram extends no lifetime.
        assert_eq!(told(&mut hints, 2, 1, now), [(2, 1)]);
        assert_eq!(told(&mut hints, 1, 0, now + LIFETIME / 2), [(2, 1)]);
        hints.age(now + LIFETIME);
        assert_eq!(told(&mut hints, 1, 0, now + LIFETIME), [(1, 0)]);
    }
}
