//! Searches for dead replicas' connections: reads records, probes clients and processes answers.
//!
//! Every survivor loads all records of a dead replica and parks all its connections, because only
//! the ToR decides where a client's segments go. The replica that should get them sends the probe,
//! and the replica that gets the answer adopts the connection.

mod registered;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Pin, Stamped};
use rivulet_pktio::in_netns;
use rivulet_pktio::repair::Connection;
use rivulet_plain::Segment;

use super::copies::Copies;
use super::pace::Pace;
use super::{HoldError, Keeper, PATIENCE, Watch};
use crate::flow::Wake;
use crate::record::{Age, Record};
use crate::store::{self, RecordKeys, Stored};
use crate::ts;
use crate::wake::{self, MAX_UNKNOWN, Prober, Told};

/// Times of the probes, milliseconds after the first one. Several are a second apart, because the
/// replica that gets the answer may not be allowed to send yet.
const PROBES: [u64; 13] = [0, 30, 100, 300, 1000, 2000, 3000, 4000, 5000, 6000, 8000, 15_000, 30_000];
/// Time after which an adopted connection has a record of this replica, or has lost its protection.
const STORED: Duration = Duration::from_secs(1);
/// Limit on the connections that are searched for.
const MAX_ORPHANS: usize = 65_536;
/// For this long the search accepts only an answer to its own probe, which shows that no other data
/// is on its way to the client; after that it accepts any segment of the client.
const FRESH: Duration = Duration::from_millis(200);
/// Time after which the search for a connection ends, because its client is gone.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Time after which a client of such a connection is reset if its segments fit no record.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Age at which records of a living replica's former incarnation count as orphaned: if another
/// replica had adopted their connections, it would have deleted them ([`STORED`]).
const LEFT: Duration = Duration::from_millis(1500);
/// How long the time of the first sight of such a record is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Like [`GIVE_UP`], if another replica should adopt: it then gets the client's segments.
const LEAVE: Duration = Duration::from_secs(5);

/// Which incarnations of a replica have their records read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Only the incarnation that the controller reported.
    Told,
    /// Records of every incarnation.
    All,
    /// Only former incarnations, because it is this replica itself.
    OwnFormers,
    /// Only former incarnations of a live replica, which may be about to adopt them itself.
    LivingFormers,
}

/// A replica that is dead or excluded.
pub struct Departed {
    /// Prefix of the keys of its records ([`store::prefix`]).
    pub prefix: String,
    /// The servers of its store.
    pub servers: Vec<SocketAddr>,
    /// Keys that seal its records.
    pub keys: RecordKeys,
    /// The replica that should get the client's segments to the service; `None` is this one.
    pub other: Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send>,
    /// The ToR sends this replica no connections now, so it searches for none.
    pub waits: bool,
    /// Which of its records to read.
    pub reads: Reads,
}

impl Departed {
    /// The incarnation in its prefix.
    fn incarnation(&self) -> u64 {
        self.prefix.rsplit_once('.').and_then(|(_, n)| n.parse().ok()).unwrap_or(0)
    }

    /// Reads the records under one of its prefixes. Blocks.
    fn read(&self, prefix: String, asked: u64, seen: &Mutex<HashMap<Stored, Instant>>) -> Vec<Found> {
        let loaded = store::load(&self.servers, &prefix, &self.keys, PATIENCE);
        let (count, servers) = (loaded.records.len(), loaded.servers);
        if self.reads == Reads::Told || count > 0 {
            tracing::info!(records = count, servers, reads = ?self.reads, "the records of {prefix}");
        }
        let origin: Arc<str> = prefix.into();
        let is_left = |stored: &[Stored]| self.reads != Reads::LivingFormers || are_left(stored, seen);
        let records = loaded.records.into_iter().filter(|(stored, r)| !r.unprotected && is_left(stored));
        let found = records.map(|(stored, record)| {
            let other = (self.other)(record.tuple.client, record.tuple.service);
            Found { record, origin: Some(Arc::clone(&origin)), stored, asked, other, waits: self.waits }
        });
        found.collect()
    }
}

/// Whether records of incarnation `n` are read as well. A living replica's present records are its
/// own, and an incarnation above the reported one may be a process that serves beside it.
fn is_read(reads: Reads, n: u64, told: u64) -> bool {
    match reads {
        Reads::Told => false,
        Reads::All | Reads::OwnFormers => n != told,
        Reads::LivingFormers => n < told,
    }
}

/// Whether the store had the same records [`LEFT`] ago.
fn are_left(stored: &[Stored], seen: &Mutex<HashMap<Stored, Instant>>) -> bool {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if seen.len() > MAX_ORPHANS {
        seen.retain(|_, first| now.duration_since(*first) < REMEMBERED);
    }
    let mut since = |stored: &Stored| now.duration_since(*seen.entry(*stored).or_insert(now));
    stored.iter().map(&mut since).all(|age| age >= LEFT && age < REMEMBERED)
}

impl std::fmt::Debug for Departed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Departed({})", self.prefix)
    }
}

/// A record, and the replica that should adopt its connection.
#[derive(Debug)]
pub(super) struct Found {
    pub record: Record,
    /// Prefix of the keys of the dead replica's records; `None`: this host's own connection, after
    /// the death of its server.
    pub origin: Option<Arc<str>>,
    /// Records to delete after the adoption, so that a later search does not find them.
    pub stored: Vec<Stored>,
    /// Serial number of the query: the latest one determines the adopter.
    pub asked: u64,
    pub other: Option<Pin>,
    pub waits: bool,
}

/// A connection that can be resumed, because its client has answered.
#[derive(Debug)]
pub struct Heard {
    /// The record to store under this replica's name.
    pub record: Record,
    /// The state of its new socket.
    pub connection: Connection,
    /// End of all data that the client has sent, if known.
    pub sent: Option<u32>,
    /// State of its timestamps in the BPF programs, if these make them.
    pub stamped: Option<Stamped>,
}

/// A connection that is searched for.
#[derive(Debug)]
struct Orphan {
    found: Found,
    began: Instant,
    /// Time of the first probe.
    first: Instant,
    probes: usize,
    /// Time of the client's first segment that fits no record.
    unknown: Option<Instant>,
}

/// Guard that counts a query of a replica's records in progress.
#[derive(Debug)]
struct Loading(Arc<AtomicUsize>);

impl Loading {
    fn begin(count: &Arc<AtomicUsize>) -> Loading {
        count.fetch_add(1, Ordering::AcqRel);
        Loading(Arc::clone(count))
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The connections that this replica searches for.
#[derive(Debug)]
pub struct Rescue {
    orphans: HashMap<FlowKey, Orphan>,
    due: BinaryHeap<Reverse<(Instant, FlowKey)>>,
    load: Sender<Vec<Found>>,
    loaded: Receiver<Vec<Found>>,
    /// Queries in progress.
    loading: Arc<AtomicUsize>,
    /// Number of queries so far.
    asked: u64,
    /// When records of living replicas' former incarnations were first seen.
    seen: Arc<Mutex<HashMap<Stored, Instant>>>,
    /// Clients to reset, each with its last segment.
    unknown: Vec<(FlowKey, Vec<u8>)>,
    /// Records of other replicas to delete, and when their connections were resumed here.
    outdated: Vec<(Instant, Arc<str>, Vec<Stored>)>,
    copies: Copies,
    pace: Pace,
    prober: Prober,
    wake: Wake,
}

impl Rescue {
    /// A search without connections.
    ///
    /// # Errors
    /// The process lacks `CAP_NET_RAW`.
    pub fn new(netns: Option<&str>, wake: Wake) -> Result<Rescue, HoldError> {
        let prober = in_netns(netns, Prober::open)??;
        let (load, loaded) = channel();
        let (orphans, due, outdated) = (HashMap::new(), BinaryHeap::new(), Vec::new());
        let (copies, pace, loading) = (Copies::default(), Pace::default(), Arc::default());
        let (seen, unknown) = (Arc::default(), Vec::new());
        Ok(Rescue {
            orphans,
            due,
            load,
            loaded,
            loading,
            asked: 0,
            seen,
            unknown,
            outdated,
            copies,
            pace,
            prober,
            wake,
        })
    }

    /// Starts the search for a replica's connections. `wake` is called on another thread when their
    /// records have arrived.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn depart(
        &mut self,
        departed: Departed,
        wake: impl FnOnce() + Send + 'static,
    ) -> Result<(), HoldError> {
        let load = self.load.clone();
        self.asked += 1;
        let asked = self.asked;
        // Named connections wait only for queries after a death, which may return newer records.
        let loading = matches!(departed.reads, Reads::Told).then(|| Loading::begin(&self.loading));
        let seen = Arc::clone(&self.seen);
        std::thread::Builder::new().name("records".into()).spawn(move || {
            let alone = matches!(departed.reads, Reads::OwnFormers | Reads::LivingFormers);
            let (read, mut any) = (|prefix: String| departed.read(prefix, asked, &seen), false);
            let mut hand_over = |found: Vec<Found>| {
                any |= !found.is_empty();
                // The error means that no receiver wants the records any more.
                let _ = load.send(found);
            };
            if !alone {
                hand_over(read(departed.prefix.clone()));
            }
            if departed.reads != Reads::Told {
                let Departed { servers, prefix, keys, .. } = &departed;
                let all = store::incarnations(servers, prefix, keys, PATIENCE);
                let told = departed.incarnation();
                let is_wanted = |n: &u64| is_read(departed.reads, *n, told);
                for former in all.iter().filter(|n| is_wanted(n)) {
                    hand_over(read(store::sibling(&departed.prefix, *former)));
                }
            }
            drop(loading);
            if any || !alone {
                wake();
            }
        })?;
        Ok(())
    }

    /// Whether a query for records is in progress.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.loading.load(Ordering::Acquire) > 0
    }

    /// Whether a connection is searched for.
    #[must_use]
    pub fn looks_for(&self, key: &FlowKey) -> bool {
        self.orphans.contains_key(key)
    }

    /// Whether a connection with a client near sequence number `next` is searched for: a later
    /// connection between the same addresses and ports has other numbers.
    #[must_use]
    pub fn looks_for_near(&self, key: &FlowKey, next: u32) -> bool {
        self.orphans.get(key).is_some_and(|orphan| {
            let distance = orphan.found.record.acknowledged().wrapping_sub(next) as i32;
            distance.unsigned_abs() <= MAX_UNKNOWN
        })
    }

    /// The channel for records that other modules have read.
    pub(super) fn inbox(&self) -> Sender<Vec<Found>> {
        self.load.clone()
    }

    /// Time of the next step.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes in records that were read, probes clients, and ends searches that took too long.
    ///
    /// # Errors
    /// A system call fails.
    pub fn turn<K: Keeper>(
        &mut self,
        now: Instant,
        now_ms: u64,
        watch: &mut Watch<K>,
    ) -> Result<(), HoldError> {
        while let Ok(records) = self.loaded.try_recv() {
            for found in records {
                self.take_in(found, now, watch)?;
            }
        }
        self.erase(now)?;
        for (key, packet) in std::mem::take(&mut self.unknown) {
            self.reset(&key, &packet);
        }
        while let Some(&Reverse((at, key))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            let Some(orphan) = self.orphans.get_mut(&key) else { continue };
            if now >= orphan.began + if orphan.found.other.is_some() { LEAVE } else { GIVE_UP } {
                // By now the holder has returned, and segments that arrive here belong to it.
                let programs = watch.hold().programs();
                if let Some(pin) = orphan.found.other {
                    programs.pin(&key, pin)?;
                }
                tracing::debug!(client = %key.client(), other = ?orphan.found.other, "gave up the search for the connection");
                let is_own = orphan.found.origin.is_none();
                self.orphans.remove(&key);
                programs.unpark(&key)?;
                if is_own {
                    watch.forget(&key);
                }
                continue;
            }
            if orphan.probes < PROBES.len() {
                orphan.probes += 1;
                let next = PROBES.get(orphan.probes).map(|ms| orphan.first + Duration::from_millis(*ms));
                self.due.push(Reverse((next.unwrap_or(orphan.began + GIVE_UP), key)));
                if let Err(e) = self.prober.send(&orphan.found.record, now_ms) {
                    tracing::debug!(error = %e, client = %key.client(), "not probed");
                }
            }
        }
        Ok(())
    }

    /// Notes that another replica has a record of a connection ([`Watch::hand_over`]). If the
    /// search here has a newer state, it goes on; otherwise that replica is the holder and the
    /// search ends.
    ///
    /// # Errors
    /// A system call fails.
    pub fn hand_over<K: Keeper>(
        &mut self,
        key: &FlowKey,
        to: Pin,
        theirs: &Age,
        watch: &mut Watch<K>,
    ) -> Result<(), HoldError> {
        if self.orphans.get(key).is_some_and(|orphan| orphan.found.record.age().is_after(theirs)) {
            tracing::debug!(client = %key.client(), ?theirs, holder = to.holder, "this search has a newer state than the other replica's record");
            return Ok(());
        }
        if watch.hand_over(key, to, theirs)?
            && let Some(orphan) = self.orphans.remove(key)
        {
            watch.hold().programs().unpark(key)?;
            if orphan.found.origin.is_none() {
                watch.forget(key);
            }
        }
        Ok(())
    }

    /// Makes this replica resume its own parked connection once the client answers a probe.
    pub fn here(&mut self, key: FlowKey, record: Record, now: Instant) {
        let (origin, stored, asked) = (None, Vec::new(), self.asked);
        let found = Found { record, origin, stored, asked, other: None, waits: false };
        self.due.push(Reverse((now, key)));
        self.orphans.insert(key, Orphan { found, began: now, first: now, probes: 0, unknown: None });
    }

    /// Processes a record that was read.
    fn take_in<K: Keeper>(
        &mut self,
        found: Found,
        now: Instant,
        watch: &mut Watch<K>,
    ) -> Result<(), HoldError> {
        let key = FlowKey::new(found.record.tuple.client, found.record.tuple.service);
        let age = found.record.age();
        let may_register = found.record.tls.is_some() && watch.awaits_registration(&key);
        if may_register || !self.can_resume(&found.record, &key, watch)? {
            return Ok(());
        }
        if watch.is_ahead(&key, &age) || watch.is_elsewhere(&key, &age) {
            tracing::debug!(client = %key.client(), ?age, "is here, or elsewhere");
            self.outdate(&key, found, watch);
            return Ok(());
        }
        if let Some(pin) = found.other.filter(|_| found.waits) {
            return self.hand_over(&key, pin, &age, watch);
        }
        // After a further death a record is read again, possibly with another adopter.
        let known = self.orphans.get(&key).map(|orphan| &orphan.found);
        if known.is_some_and(|known| {
            let other = known.record.age();
            other.is_after(&age) || other == age && (known.other == found.other || known.asked > found.asked)
        }) {
            return Ok(());
        }
        if known.is_none() && self.orphans.len() >= MAX_ORPHANS {
            tracing::warn!("too many connections to search for: the rest is not resumed");
            return Ok(());
        }
        watch.hold().programs().park(&key)?;
        // The pinned holder is dead, and the record is newer than the state that was pinned.
        watch.hold().programs().unpin(&key)?;
        if watch.has(&key) {
            watch.abandon(&key)?;
        }
        let (probes, at) = match found.other {
            None if self.wake == Wake::Client => (PROBES.len(), now + GIVE_UP),
            None => (0, self.pace.next(found.record.is_waited_for(), now)),
            Some(_) => (PROBES.len(), now + LEAVE),
        };
        tracing::debug!(client = %key.client(), ?age, other = ?found.other, "looked for");
        self.due.push(Reverse((at, key)));
        let unknown = self.orphans.get(&key).and_then(|before| before.unknown);
        self.orphans.insert(key, Orphan { found, began: now, first: at, probes, unknown });
        Ok(())
    }

    /// Processes a packet of a connection that is searched for. If it shows the client's state, the
    /// search ends. The connection's packets stay parked until the adopter changes that.
    pub fn take_packet(&mut self, key: &FlowKey, packet: &[u8], now_ms: u64) -> Option<Heard> {
        let segment = Segment::parse(packet).ok()?;
        self.copies.keep(key, packet, &segment, Instant::now());
        let orphan = self.orphans.get_mut(key)?;
        match wake::read(&orphan.found.record, &segment, now_ms) {
            Told::Waits(place) if !place.fresh && orphan.began.elapsed() < FRESH => None,
            Told::Waits(place) => {
                let Found { record, origin, stored, .. } = self.orphans.remove(key)?.found;
                self.outdated.extend(origin.map(|origin| (Instant::now(), origin, stored)));
                let connection = wake::connection(&record, &place, now_ms);
                let stamped = ts::recorded(&record, &segment);
                let record = record.taken_over(&connection, now_ms);
                Some(Heard { record, connection, sent: place.sent, stamped })
            }
            // Stays parked until the search is given up: there is no client to reset.
            Told::Gone => None,
            // By now a newer record at another replica would have been found.
            Told::Nothing => {
                let speaks = wake::is_of(&orphan.found.record, &segment);
                let since = speaks.then(|| *orphan.unknown.get_or_insert_with(Instant::now));
                if since.is_some_and(|since| since.elapsed() >= UNKNOWN) {
                    orphan.unknown = Some(Instant::now());
                    self.unknown.push((*key, packet.to_vec()));
                }
                None
            }
        }
    }

    /// Takes the copied segments of a client whose connection is resumed here.
    pub fn take_copies(&mut self, key: &FlowKey) -> VecDeque<Vec<u8>> {
        self.copies.take(key)
    }

    /// Probes a client of which only the acknowledgement number is known.
    pub(crate) fn ask(&self, key: &FlowKey, acked: u32) {
        let packet = wake::question(key.service(), key.client(), acked).map_err(std::io::Error::other);
        if let Err(e) = packet.and_then(|packet| self.prober.send_packet(key.client(), &packet)) {
            tracing::debug!(error = %e, client = %key.client(), "not asked");
        }
    }

    /// Resets a client that sends segments which fit no record, since no replica can continue its
    /// connection. The search goes on, because the segment may be forged: then the RST is outside
    /// of the client's window and ends nothing (RFC 5961 section 3.2).
    fn reset(&self, key: &FlowKey, packet: &[u8]) {
        tracing::info!(client = %key.client(), "reset: its segments fit no record");
        if let Ok(segment) = Segment::parse(packet)
            && let Some(reset) = wake::reset(&segment)
            && let Err(e) = self.prober.send_packet(key.client(), &reset)
        {
            tracing::debug!(error = %e, client = %key.client(), "not reset");
        }
    }

    /// Deletes other replicas' records of connections that now have a record of this replica.
    fn erase(&mut self, now: Instant) -> Result<(), HoldError> {
        if self.outdated.first().is_none_or(|(since, ..)| now < *since + STORED) {
            return Ok(());
        }
        let outdated = std::mem::take(&mut self.outdated);
        std::thread::Builder::new().name("outdated".into()).spawn(move || {
            for of in outdated.chunk_by(|a, b| Arc::ptr_eq(&a.1, &b.1)) {
                let stored = of.iter().flat_map(|(.., stored)| stored).copied().collect();
                // A record on a server that cannot be reached expires.
                let _ = store::erase(&of[0].1, stored, PATIENCE);
            }
        })?;
        Ok(())
    }

    /// Number of connections for which this replica searches.
    #[must_use]
    pub fn count(&self) -> usize {
        self.orphans.len()
    }
}

#[cfg(test)]
mod tests {
    use rivulet_bpf::kernel::{Feature, skipped};
    use rivulet_bpf::trods::Lease;
    use rivulet_packet::segment::TcpFlags;
    use rivulet_pktio::testing::{Netns, eventually};
    use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame};
    use rivulet_plain::{Header, Options};

    use super::*;
    use crate::Settings;
    use crate::hold::{Hold, Stores};
    use crate::record::{Body, Response, Tuple, UNKNOWN};
    use crate::testing::idle;

    const SERVICE: &str = "10.9.0.1:80";
    const PIN: Pin = Pin { tor: [2; 6], holder: 1 };

    /// A search without connections, on an interface in a separate namespace.
    struct Rig {
        rescue: Rescue,
        watch: Watch<Stores>,
        client: Netns,
        _replica: Netns,
    }

    impl Rig {
        fn new() -> Option<Rig> {
            if skipped(Feature::Tcx) {
                return None;
            }
            let (client, replica) = (Netns::new("rescue-c")?, Netns::new("rescue-r")?);
            client.veth("c0", &replica, "r0");
            let hold = Hold::open(&replica.interface("r0")).unwrap_or_else(|e| panic!("{e}"));
            let mut watch = Watch::new(hold, Stores::default()).unwrap();
            watch
                .set_services(&[(
                    SERVICE.parse().unwrap(),
                    0,
                    Settings { closed: true, ..Settings::default() },
                )])
                .unwrap();
            let rescue = Rescue::new(Some(replica.name()), Wake::Server).unwrap();
            Some(Rig { rescue, watch, client, _replica: replica })
        }

        fn lease(&self, until: u64) {
            let leases = self.watch.hold().programs().leases().unwrap();
            leases.set(0, Lease { until, settling: 0, ..Lease::default() }).unwrap();
        }

        /// Feeds the search these records, as if they were read at time `now`.
        fn found(
            &mut self,
            records: impl Iterator<Item = Record>,
            other: Option<Pin>,
            waits: bool,
            at: Instant,
        ) {
            let origin: Arc<str> = "p.0.1".into();
            self.rescue.asked += 1;
            let asked = self.rescue.asked;
            let found = |record| Found {
                record,
                origin: Some(origin.clone()),
                stored: Vec::new(),
                asked,
                other,
                waits,
            };
            self.rescue.load.send(records.map(found).collect()).unwrap();
            self.rescue.turn(at, 0, &mut self.watch).unwrap();
        }
    }

    /// The record of a connection with a client that has all data.
    fn record(client: SocketAddr) -> Record {
        idle(Tuple { client, service: SERVICE.parse().unwrap() }, 900, 30)
    }

    fn one() -> (Record, FlowKey) {
        let client: SocketAddr = "192.0.2.7:1025".parse().unwrap();
        (record(client), FlowKey::new(client, SERVICE.parse().unwrap()))
    }

    /// An ACK of a client; `fresh`: it answers a probe.
    fn answer(record: &Record, fresh: bool) -> Vec<u8> {
        let mut options = Options::default();
        if fresh {
            options.sack.push((record.response_at.wrapping_sub(1), record.response_at));
        }
        let (src, dst, flags) = (record.tuple.client, record.tuple.service, TcpFlags(TcpFlags::ACK));
        let header = Header { src, dst, seq: 30, ack: record.response_at, flags, window: 10, options };
        let mut packet = vec![0; header.length()];
        header.finish(&mut packet, 0).unwrap();
        packet
    }

    #[test]
    fn number_of_searches_is_limited() {
        let Some(mut rig) = Rig::new() else { return };
        let clients = (0..MAX_ORPHANS as u32 + 5).map(|n| SocketAddr::from((n.to_be_bytes(), 1025)));
        // Another replica probes these clients.
        rig.found(clients.map(record), Some(PIN), false, Instant::now());
        assert_eq!(rig.rescue.count(), MAX_ORPHANS);
    }

    /// Clients that wait for data are probed before idle ones, whatever the order of records.
    #[test]
    fn waiting_clients_are_probed_first() {
        let Some(mut rig) = Rig::new() else { return };
        let clients = |from: u16| (from..).map(|port| SocketAddr::from(([192, 0, 2, 7], port)));
        let idle: Vec<_> = clients(2000).take(500).map(record).collect();
        let mut asks = record(clients(1000).next().unwrap());
        asks.requests = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        let mut reads = record(clients(1001).next().unwrap());
        let whole = Body::Whole(b"HTTP/1.1 200 OK\r\n\r\n".to_vec());
        reads.responses = vec![Response { length: UNKNOWN, passed: 19, close: true, body: whole }];
        let now = Instant::now();
        rig.found(idle.into_iter().chain([asks.clone(), reads.clone()]), None, false, now);
        let probed = |rig: &Rig| rig.rescue.orphans.values().filter(|orphan| orphan.probes == 1).count();
        for record in [&asks, &reads] {
            let key = FlowKey::new(record.tuple.client, record.tuple.service);
            assert_eq!(rig.rescue.orphans[&key].probes, 1);
        }
        let first = probed(&rig);
        assert!(first < 50, "{first}");
        // The idle clients are probed as well, later.
        rig.rescue.turn(now + Duration::from_secs(2), 0, &mut rig.watch).unwrap();
        assert!(rig.rescue.orphans.values().all(|orphan| orphan.probes > 0));
    }

    #[test]
    fn probe_answer_ends_the_search() {
        let Some(mut rig) = Rig::new() else { return };
        let (record, key) = one();
        // The search is already so old that it accepts any segment of the client.
        let now = Instant::now();
        for (began, fresh, heard) in
            [(now + GIVE_UP, false, false), (now + GIVE_UP, true, true), (now - FRESH, false, true)]
        {
            rig.found(std::iter::once(record.clone()), None, false, began);
            assert_eq!(rig.rescue.take_packet(&key, &answer(&record, fresh), 0).is_some(), heard, "{fresh}");
            assert_eq!(rig.rescue.count(), usize::from(!heard));
        }
        // The other replica's records stay until this replica's own are stored.
        let (first, last) = (rig.rescue.outdated[0].0, rig.rescue.outdated[1].0);
        for (at, left) in [(first + STORED.saturating_sub(Duration::from_nanos(1)), 2), (last + STORED, 0)] {
            rig.rescue.turn(at, 0, &mut rig.watch).unwrap();
            assert_eq!(rig.rescue.outdated.len(), left);
        }
    }

    /// An off-path sender knows the addresses and ports but neither sequence number. The client
    /// ignores the RST, and its own answer still counts.
    #[test]
    fn forged_segments_do_not_end_a_search() {
        let Some(mut rig) = Rig::new() else { return };
        let (record, key) = one();
        rig.lease(u64::MAX);
        rig.found(std::iter::once(record.clone()), None, false, Instant::now());
        let forged = Record { response_at: record.response_at.wrapping_add(1_000_000), ..record.clone() };
        for resets in [0, 1, 1] {
            assert!(rig.rescue.take_packet(&key, &answer(&forged, true), 0).is_none());
            assert_eq!(rig.rescue.unknown.len(), resets);
            rig.rescue.turn(Instant::now(), 0, &mut rig.watch).unwrap();
            assert_eq!(rig.rescue.count(), 1, "it is looked for");
            let orphan = rig.rescue.orphans.get_mut(&key).unwrap();
            orphan.unknown = orphan.unknown.map(|since| since - super::UNKNOWN);
        }
        assert!(rig.rescue.take_packet(&key, &answer(&record, true), 0).is_some(), "its client is heard");
    }

    #[test]
    fn older_record_does_not_replace_live_connection() {
        let Some(mut rig) = Rig::new() else { return };
        let (mut record, key) = one();
        record.version = 5;
        // The adoption stores the record under this replica's name.
        rig.watch.adopt(&record, record.response_at).unwrap();
        for (version, waits) in [(5, false), (6, false), (5, true)] {
            let theirs = Record { version, ..record.clone() };
            rig.found(std::iter::once(theirs), Some(PIN), waits, Instant::now());
            assert!(rig.watch.has(&key) && rig.rescue.count() == 0, "{version} {waits}");
        }
        // This replica was excluded, and has read the pins.
        rig.watch.hand_over(&key, PIN, &record.age()).unwrap();
        assert!(rig.watch.has(&key));
        // The other replica's record is newer.
        record.version = 7;
        rig.found(std::iter::once(record), None, false, Instant::now());
        assert!(!rig.watch.has(&key) && rig.rescue.count() == 1);
    }

    /// A dead replica's record is older than the state of an earlier adopter.
    #[test]
    fn connection_with_newer_state_elsewhere_is_not_searched() {
        let Some(mut rig) = Rig::new() else { return };
        let (left, key) = one();
        let known = Record { version: left.version + 1, ..left.clone() };
        rig.watch.hand_over(&key, PIN, &known.age()).unwrap();
        rig.found(std::iter::once(left), None, false, Instant::now());
        assert_eq!(rig.rescue.count(), 0);
        // The replica with the newer state is dead too.
        rig.found(std::iter::once(known), None, false, Instant::now());
        assert_eq!(rig.rescue.count(), 1);
    }

    /// The dead replica's stale record is read again when this replica reads the pins.
    #[test]
    fn stale_record_does_not_hide_newer_record() {
        let Some(mut rig) = Rig::new() else { return };
        let (left, key) = one();
        let newer = |by| Record { version: left.version + by, ..left.clone() };
        let third = Pin { holder: 3, ..PIN };
        let pinned = |rig: &Rig| rig.watch.hold().programs().pinned(&key).unwrap();
        rig.found(std::iter::once(newer(1)), None, false, Instant::now());
        rig.rescue.hand_over(&key, PIN, &left.age(), &mut rig.watch).unwrap();
        assert_eq!((rig.rescue.count(), pinned(&rig)), (1, None), "it is looked for");
        // The dead replica has returned.
        rig.rescue.hand_over(&key, third, &newer(1).age(), &mut rig.watch).unwrap();
        assert_eq!((rig.rescue.count(), pinned(&rig)), (0, Some(third)));
        rig.rescue.turn(Instant::now() + LEAVE, 0, &mut rig.watch).unwrap();
        rig.rescue.hand_over(&key, PIN, &left.age(), &mut rig.watch).unwrap();
        assert_eq!(pinned(&rig), Some(third), "the third one is known to hold it");
    }

    #[test]
    fn search_ends_when_another_replica_holds_it() {
        let Some(mut rig) = Rig::new() else { return };
        let (record, key) = one();
        rig.watch.adopt(&record, record.response_at).unwrap();
        rig.watch.abandon(&key).unwrap();
        rig.rescue.here(key, record.clone(), Instant::now());
        let theirs = Record { version: record.version + 1, ..record };
        rig.rescue.hand_over(&key, PIN, &theirs.age(), &mut rig.watch).unwrap();
        assert_eq!(rig.rescue.count(), 0);
    }

    /// A record is read again when the expected adopter dies or returns.
    #[test]
    fn record_read_again_is_probed_by_current_adopter() {
        let Some(mut rig) = Rig::new() else { return };
        let (record, key) = one();
        let now = Instant::now();
        for (other, probes) in [(Some(PIN), PROBES.len()), (None, 1), (None, 1), (Some(PIN), PROBES.len())] {
            rig.found(std::iter::once(record.clone()), other, false, now);
            let orphan = &rig.rescue.orphans[&key];
            assert_eq!((orphan.found.other, orphan.probes), (other, probes));
        }
        // The result of an earlier query arrives late.
        rig.found(std::iter::once(record.clone()), None, false, now);
        rig.rescue.asked -= 2;
        rig.found(std::iter::once(record.clone()), Some(PIN), false, now);
        assert_eq!(rig.rescue.orphans[&key].found.other, None);
        rig.rescue.asked += 2;
        rig.found(std::iter::once(record), Some(PIN), false, now);
        // Without a further record of the connection, its search ends after a while.
        rig.rescue.turn(now + LEAVE, 0, &mut rig.watch).unwrap();
        assert_eq!(rig.rescue.count(), 0);
    }

    #[test]
    fn muted_replica_adopts_no_connection() {
        let Some(mut rig) = Rig::new() else { return };
        let (record, key) = one();
        rig.found(std::iter::once(record.clone()), Some(PIN), false, Instant::now());
        let mut client = AfPacket::open(&rig.client.interface("c0"), Config::default()).unwrap();
        let frame = [&[0xff; 12][..], &[8, 0], &answer(&record, true)].concat();
        for (parked, (until, heard)) in (1..).zip([(0, 0), (u64::MAX, 1)]) {
            rig.lease(until);
            client.send(&[TxFrame::new(&frame)]).unwrap();
            let counted = || rig.watch.hold().counters().unwrap().parked;
            eventually("it is parked", || counted() == parked);
            let mut told = Vec::new();
            rig.watch.turn(|of, _| told.push(*of)).unwrap();
            assert_eq!(told, vec![key; heard]);
        }
    }
}
