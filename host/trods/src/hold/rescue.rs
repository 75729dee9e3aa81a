//! Searches for the connections of dead replicas: reads their records, probes their clients and reads the answers.
//!
//! Every survivor loads all records of a dead replica and parks all its connections, because only
//! the ToR decides where a client's segments go. The replica that should get them sends the probe,
//! and the replica that gets the answer adopts the connection.

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

/// Probes, milliseconds after the first one: one each second for a while, because the replica that
/// gets the answer may not be allowed to send yet.
const PROBES: [u64; 13] = [0, 30, 100, 300, 1000, 2000, 3000, 4000, 5000, 6000, 8000, 15_000, 30_000];
/// After this time an adopted connection has a record of this replica, or its limits were removed.
const STORED: Duration = Duration::from_secs(1);
/// Maximum number of connections in the search.
const MAX_ORPHANS: usize = 65_536;
/// For this long an answer is awaited that shows that no other data is on its way to the client;
/// after that any answer will do.
const FRESH: Duration = Duration::from_millis(200);
/// After this time the search for a connection ends: its client is gone.
const GIVE_UP: Duration = Duration::from_secs(60);
/// A client that sends on a connection that is searched for, with numbers that fit no record, is
/// reset after this time.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Records that a living replica stored under another incarnation, and that are still there after
/// this time, belong to connections that no other replica has adopted: an adopter would have
/// deleted them ([`STORED`]).
const LEFT: Duration = Duration::from_millis(1500);
/// For this long the time of the first sight of such a record is kept.
const REMEMBERED: Duration = Duration::from_secs(60);
/// The same time for connections that another replica should adopt: their segments are handed on
/// from then on.
const LEAVE: Duration = Duration::from_secs(5);

/// Which incarnations of a replica have their records read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Only the incarnation that the controller reported.
    Told,
    /// All incarnations.
    All,
    /// Only former incarnations, because it is this replica itself.
    OwnFormers,
    /// Only records of former incarnations: the replica lives and may be about to adopt these
    /// connections itself.
    LivingFormers,
}

/// A replica that is dead, or was excluded.
pub struct Departed {
    /// Prefix of the keys of its records ([`store::prefix`]).
    pub prefix: String,
    /// The servers of its store.
    pub servers: Vec<SocketAddr>,
    /// Keys that seal its records.
    pub keys: RecordKeys,
    /// The replica that should get the client's segments to the service; `None` is this one.
    pub other: Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send>,
    /// This replica gets no connections for now: it searches for none of others.
    pub waits: bool,
    /// The records to read.
    pub reads: Reads,
}

impl Departed {
    /// The incarnation of its prefix.
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

/// Whether records of incarnation `n` are read, too. Those that a living replica stores now are its own: an incarnation above the one
/// that is known may be a process that serves beside it.
fn is_read(reads: Reads, n: u64, told: u64) -> bool {
    match reads {
        Reads::Told => false,
        Reads::All | Reads::OwnFormers => n != told,
        Reads::LivingFormers => n < told,
    }
}

/// Whether the store had the same values some time ago.
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

/// A record, and the replica that should adopt the connection.
#[derive(Debug)]
pub(super) struct Found {
    pub record: Record,
    /// Prefix of the keys of the dead replica's records; none: this host's own connection, after the death of its server.
    pub origin: Option<Arc<str>>,
    /// Records to delete after the adoption, so that a later search does not find them.
    pub stored: Vec<Stored>,
    /// Serial number of the query: the result of a later one determines the adopter.
    pub asked: u64,
    pub other: Option<Pin>,
    pub waits: bool,
}

/// A connection that can be resumed.
#[derive(Debug)]
pub struct Heard {
    /// The record for this replica to store.
    pub record: Record,
    /// The state of its new socket.
    pub connection: Connection,
    /// End of all that the client has sent, if known.
    pub sent: Option<u32>,
    /// State of its timestamps in the BPF programs, if they make them.
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

/// A query of a replica's records that is in progress.
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

/// All connections that are searched for.
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
    /// When records of former incarnations of living replicas were seen first.
    seen: Arc<Mutex<HashMap<Stored, Instant>>>,
    /// Clients to reset, each with its last segment.
    unknown: Vec<(FlowKey, Vec<u8>)>,
    /// Records of connections that were resumed here, and when.
    outdated: Vec<(Instant, Arc<str>, Vec<Stored>)>,
    copies: Copies,
    pace: Pace,
    prober: Prober,
    wake: Wake,
}

impl Rescue {
    /// An empty search.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`.
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

    /// Starts the search for the connections of a replica. `wake` is called on another thread when their records have come.
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
        // What named connections wait for is what a death brings.
        let loading = matches!(departed.reads, Reads::Told).then(|| Loading::begin(&self.loading));
        let seen = Arc::clone(&self.seen);
        std::thread::Builder::new().name("records".into()).spawn(move || {
            let alone = matches!(departed.reads, Reads::OwnFormers | Reads::LivingFormers);
            let (read, mut any) = (|prefix: String| departed.read(prefix, asked, &seen), false);
            let mut hand_over = |found: Vec<Found>| {
                any |= !found.is_empty();
                // A receiver that was dropped needs no result.
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

    /// Whether a query for records is without an answer.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.loading.load(Ordering::Acquire) > 0
    }

    /// Whether a connection is searched for.
    #[must_use]
    pub fn looks_for(&self, key: &FlowKey) -> bool {
        self.orphans.contains_key(key)
    }

    /// Whether a connection with a client near this number is searched for: another connection
    /// between the same ports has other numbers.
    #[must_use]
    pub fn looks_for_near(&self, key: &FlowKey, next: u32) -> bool {
        self.orphans.get(key).is_some_and(|orphan| {
            let distance = orphan.found.record.acknowledged().wrapping_sub(next) as i32;
            distance.unsigned_abs() <= MAX_UNKNOWN
        })
    }

    /// The channel for records that other parts have read.
    pub(super) fn inbox(&self) -> Sender<Vec<Found>> {
        self.load.clone()
    }

    /// Time of the next step.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes records in, probes clients, and ends searches that took too long.
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
                // Segments that arrive here after the holder's return belong to the holder.
                let programs = watch.hold().programs();
                if let Some(pin) = orphan.found.other {
                    programs.pin(&key, pin)?;
                }
                tracing::debug!(client = %key.client(), other = ?orphan.found.other, "not looked for any more");
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

    /// Another replica has a record of a connection ([`Watch::hand_over`]). A newer state in the
    /// search here takes precedence; otherwise the connection counts as found.
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
            tracing::debug!(client = %key.client(), ?theirs, holder = to.holder, "looked for behind that");
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

    /// A parked connection of this host is resumed here as soon as its client answers a probe.
    pub fn here(&mut self, key: FlowKey, record: Record, now: Instant) {
        let (origin, stored, asked) = (None, Vec::new(), self.asked);
        let found = Found { record, origin, stored, asked, other: None, waits: false };
        self.due.push(Reverse((now, key)));
        self.orphans.insert(key, Orphan { found, began: now, first: now, probes: 0, unknown: None });
    }

    /// Handles a record that was read.
    fn take_in<K: Keeper>(
        &mut self,
        found: Found,
        now: Instant,
        watch: &mut Watch<K>,
    ) -> Result<(), HoldError> {
        let key = FlowKey::new(found.record.tuple.client, found.record.tuple.service);
        let age = found.record.age();
        if !self.can_resume(&found.record, &key, watch)? {
            return Ok(());
        }
        if watch.is_ahead(&key, &age) || watch.is_elsewhere(&key, &age) {
            tracing::debug!(client = %key.client(), ?age, "is here, or elsewhere");
            return Ok(());
        }
        if let Some(pin) = found.other.filter(|_| found.waits) {
            return self.hand_over(&key, pin, &age, watch);
        }
        // A record may be read again after a further death: then another replica may be the
        // adopter.
        let known = self.orphans.get(&key).map(|orphan| &orphan.found);
        if known.is_some_and(|known| {
            let other = known.record.age();
            other.is_after(&age) || other == age && (known.other == found.other || known.asked > found.asked)
        }) {
            return Ok(());
        }
        if known.is_none() && self.orphans.len() >= MAX_ORPHANS {
            tracing::warn!("more connections than can be looked for");
            return Ok(());
        }
        watch.hold().programs().park(&key)?;
        // The pinned holder is the dead replica, and the state of this replica is older than the
        // holder's.
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

    /// Whether a record suffices to resume a connection here: with timestamps of the programs it
    /// needs such programs, and the state by timestamps alone may be newer than the record.
    fn can_resume<K: Keeper>(
        &self,
        record: &Record,
        key: &FlowKey,
        watch: &Watch<K>,
    ) -> Result<bool, HoldError> {
        let programs = watch.hold().programs();
        if record.handshake.stamps.is_none() {
            return Ok(true);
        }
        if !programs.issues() {
            tracing::warn!(client = %key.client(), "its timestamps cannot be made here");
            return Ok(false);
        }
        let own = programs.stamps().named(key)?;
        Ok(own.is_none_or(|own| record.acknowledged().wrapping_sub(own.client_next) as i32 > 0))
    }

    /// A packet of a connection that is searched for. If it shows the client's state, the search
    /// ends. Its packets stay parked until the adopter changes that.
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
            // Parked until the search is given up, because there is no client to reset.
            Told::Gone => None,
            // A replica that has a newer record would have been found by now.
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

    /// What the client of a connection said that goes on here now, before it did.
    pub fn take_copies(&mut self, key: &FlowKey) -> VecDeque<Vec<u8>> {
        self.copies.take(key)
    }

    /// Probes a client; of its connection only the acknowledged number is known.
    pub(crate) fn ask(&self, key: &FlowKey, acked: u32) {
        let packet = wake::question(key.service(), key.client(), acked).map_err(std::io::Error::other);
        if let Err(e) = packet.and_then(|packet| self.prober.send_packet(key.client(), &packet)) {
            tracing::debug!(error = %e, client = %key.client(), "not asked");
        }
    }

    /// Resets a client that sends segments which fit no record, since no replica can continue its connection. The orphan stays: the
    /// segment may be forged, and then the RST is out of the client's window, which answers it by its own numbers or not at all
    /// (RFC 5961 section 3.2).
    fn reset(&self, key: &FlowKey, packet: &[u8]) {
        tracing::info!(client = %key.client(), "reset: its segments fit no record");
        if let Ok(segment) = Segment::parse(packet)
            && let Some(reset) = wake::reset(&segment)
            && let Err(e) = self.prober.send_packet(key.client(), &reset)
        {
            tracing::debug!(error = %e, client = %key.client(), "not reset");
        }
    }

    /// Deletes records of other replicas for connections that now have a record of this one.
    fn erase(&mut self, now: Instant) -> Result<(), HoldError> {
        if self.outdated.first().is_none_or(|(since, ..)| now < *since + STORED) {
            return Ok(());
        }
        let outdated = std::mem::take(&mut self.outdated);
        std::thread::Builder::new().name("outdated".into()).spawn(move || {
            for of in outdated.chunk_by(|a, b| Arc::ptr_eq(&a.1, &b.1)) {
                let stored = of.iter().flat_map(|(.., stored)| stored).copied().collect();
                // A record on a server that cannot be reached expires by itself.
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

    /// An empty search on a separate interface.
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

        /// These records are read at this time.
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

    /// The record of a client that has all data.
    fn record(client: SocketAddr) -> Record {
        idle(Tuple { client, service: SERVICE.parse().unwrap() }, 900, 30)
    }

    fn one() -> (Record, FlowKey) {
        let client: SocketAddr = "192.0.2.7:1025".parse().unwrap();
        (record(client), FlowKey::new(client, SERVICE.parse().unwrap()))
    }

    /// A client's answer; `fresh`: to a probe.
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
    fn no_more_are_looked_for_than_there_is_room_for() {
        let Some(mut rig) = Rig::new() else { return };
        let clients = (0..MAX_ORPHANS as u32 + 5).map(|n| SocketAddr::from((n.to_be_bytes(), 1025)));
        // Another replica probes these clients.
        rig.found(clients.map(record), Some(PIN), false, Instant::now());
        assert_eq!(rig.rescue.count(), MAX_ORPHANS);
    }

    /// However many there are that wait for nothing, and whatever comes first.
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
        // The others have their turn, too.
        rig.rescue.turn(now + Duration::from_secs(2), 0, &mut rig.watch).unwrap();
        assert!(rig.rescue.orphans.values().all(|orphan| orphan.probes > 0));
    }

    #[test]
    fn an_answer_shows_where_a_client_is() {
        let Some(mut rig) = Rig::new() else { return };
        let (record, key) = one();
        // The search begins now and is old enough that any answer will do.
        let now = Instant::now();
        for (began, fresh, heard) in
            [(now + GIVE_UP, false, false), (now + GIVE_UP, true, true), (now - FRESH, false, true)]
        {
            rig.found(std::iter::once(record.clone()), None, false, began);
            assert_eq!(rig.rescue.take_packet(&key, &answer(&record, fresh), 0).is_some(), heard, "{fresh}");
            assert_eq!(rig.rescue.count(), usize::from(!heard));
        }
        // The others' records stay until there are own ones.
        let (first, last) = (rig.rescue.outdated[0].0, rig.rescue.outdated[1].0);
        for (at, left) in [(first + STORED.saturating_sub(Duration::from_nanos(1)), 2), (last + STORED, 0)] {
            rig.rescue.turn(at, 0, &mut rig.watch).unwrap();
            assert_eq!(rig.rescue.outdated.len(), left);
        }
    }

    /// The sender knows both ends and neither number. The client ignores the RST, and its own answer is still heard.
    #[test]
    fn forged_segments_end_no_connection_that_is_looked_for() {
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
    fn newer_connection_here_is_kept() {
        let Some(mut rig) = Rig::new() else { return };
        let (mut record, key) = one();
        record.version = 5;
        // Stored once more under this replica's name.
        rig.watch.adopt(&record, record.response_at).unwrap();
        for (version, waits) in [(5, false), (6, false), (5, true)] {
            let theirs = Record { version, ..record.clone() };
            rig.found(std::iter::once(theirs), Some(PIN), waits, Instant::now());
            assert!(rig.watch.has(&key) && rig.rescue.count() == 0, "{version} {waits}");
        }
        // As where it was away, and asked what others hold.
        rig.watch.hand_over(&key, PIN, &record.age()).unwrap();
        assert!(rig.watch.has(&key));
        // Another one knows more.
        record.version = 7;
        rig.found(std::iter::once(record), None, false, Instant::now());
        assert!(!rig.watch.has(&key) && rig.rescue.count() == 1);
    }

    /// What a dead replica left behind is older than what another one knows that went on before.
    #[test]
    fn connection_with_newer_state_elsewhere_is_not_searched() {
        let Some(mut rig) = Rig::new() else { return };
        let (left, key) = one();
        let known = Record { version: left.version + 1, ..left.clone() };
        rig.watch.hand_over(&key, PIN, &known.age()).unwrap();
        rig.found(std::iter::once(left), None, false, Instant::now());
        assert_eq!(rig.rescue.count(), 0);
        // The one that knew it is gone.
        rig.found(std::iter::once(known), None, false, Instant::now());
        assert_eq!(rig.rescue.count(), 1);
    }

    /// It is read again when this replica asks what others hold.
    #[test]
    fn stale_record_hides_no_newer_one() {
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
    fn record_read_again_is_probed_by_the_present_adopter() {
        let Some(mut rig) = Rig::new() else { return };
        let (record, key) = one();
        let now = Instant::now();
        for (other, probes) in [(Some(PIN), PROBES.len()), (None, 1), (None, 1), (Some(PIN), PROBES.len())] {
            rig.found(std::iter::once(record.clone()), other, false, now);
            let orphan = &rig.rescue.orphans[&key];
            assert_eq!((orphan.found.other, orphan.probes), (other, probes));
        }
        // The result of an earlier query comes late.
        rig.found(std::iter::once(record.clone()), None, false, now);
        rig.rescue.asked -= 2;
        rig.found(std::iter::once(record.clone()), Some(PIN), false, now);
        assert_eq!(rig.rescue.orphans[&key].found.other, None);
        rig.rescue.asked += 2;
        rig.found(std::iter::once(record), Some(PIN), false, now);
        // A search without a further record of the connection ends after a while.
        rig.rescue.turn(now + LEAVE, 0, &mut rig.watch).unwrap();
        assert_eq!(rig.rescue.count(), 0);
    }

    #[test]
    fn muted_replica_takes_no_client() {
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
