//! The connections of dead replicas: their records, the probes to their clients, and what these answer.
//!
//! Every survivor has all records and parks all connections, since the ToR decides who gets what a client sends; who is expected
//! to get it sends the probe. Whoever gets an answer goes on with the connection.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Pin};
use rivulet_pktio::in_netns;
use rivulet_pktio::repair::Connection;
use rivulet_plain::Segment;

use super::{Hold, HoldError, PATIENCE};
use crate::record::Record;
use crate::store;
use crate::wake::{self, Prober, Told};

/// When a probe is sent, milliseconds after the record was read.
const PROBES: [u64; 6] = [0, 30, 100, 300, 1000, 3000];
/// After so long a connection that goes on here has a record of its own here, or has been let go.
const STORED: Duration = Duration::from_secs(1);
/// Connections that are looked for at a time.
const MAX_ORPHANS: usize = 65_536;
/// For so long an answer is awaited that shows that nothing else is on its way to the client; then any will do.
const FRESH: Duration = Duration::from_millis(200);
/// After this a connection is not looked for any more: its client is gone.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Nor is one that another is expected to go on with: what comes of it is handed on from then on.
const LEAVE: Duration = Duration::from_secs(5);

/// A replica that is dead, or was excluded.
pub struct Departed {
    /// What the keys of its records begin with ([`store::prefix`]).
    pub prefix: String,
    /// The servers of its store.
    pub servers: Vec<SocketAddr>,
    /// Who is expected to get what the client sends to the service; `None` is this replica itself.
    pub other: Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send>,
    /// Whether this replica gets no connections for now: then what is another's is never looked for here.
    pub waits: bool,
}

impl std::fmt::Debug for Departed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Departed({})", self.prefix)
    }
}

/// Whose record it is that was read, to be deleted when it is another's: whoever looks for it later must not find it there.
#[derive(Debug)]
struct Origin {
    servers: Vec<SocketAddr>,
    prefix: String,
}

/// A record, and who else is expected to go on with the connection.
#[derive(Debug)]
struct Found {
    record: Record,
    origin: Arc<Origin>,
    number: u32,
    other: Option<Pin>,
    waits: bool,
}

/// A connection that is looked for.
#[derive(Debug)]
struct Orphan {
    record: Record,
    began: Instant,
    probes: usize,
    /// Who else is expected to go on with it.
    other: Option<Pin>,
    origin: Arc<Origin>,
    number: u32,
}

/// All connections that are looked for.
#[derive(Debug)]
pub struct Rescue {
    orphans: HashMap<FlowKey, Orphan>,
    due: BinaryHeap<Reverse<(Instant, FlowKey)>>,
    load: Sender<Vec<Found>>,
    loaded: Receiver<Vec<Found>>,
    /// Records of connections that go on here, and since when.
    outdated: Vec<(Instant, Arc<Origin>, u32)>,
    prober: Prober,
}

impl Rescue {
    /// Nobody is looked for.
    ///
    /// # Errors
    /// Without `CAP_NET_RAW`.
    pub fn new(netns: Option<&str>) -> Result<Rescue, HoldError> {
        let prober = in_netns(netns, Prober::open)??;
        let (load, loaded) = channel();
        let (orphans, due, outdated) = (HashMap::new(), BinaryHeap::new(), Vec::new());
        Ok(Rescue { orphans, due, load, loaded, outdated, prober })
    }

    /// Looks for the connections of a replica. `wake` is called when their records have come, on another thread.
    ///
    /// # Errors
    /// No thread.
    pub fn depart(&self, departed: Departed, wake: impl FnOnce() + Send + 'static) -> Result<(), HoldError> {
        let load = self.load.clone();
        std::thread::Builder::new().name("records".into()).spawn(move || {
            let loaded = store::load(&departed.servers, &departed.prefix, PATIENCE);
            tracing::info!(
                records = loaded.records.len(),
                servers = loaded.servers,
                "the records of {departed:?}"
            );
            let Departed { prefix, servers, other, waits } = departed;
            let origin = Arc::new(Origin { servers, prefix });
            let records = loaded.records.into_iter().filter(|(_, r)| !r.unprotected);
            let records = records.map(|(number, record)| {
                let other = other(record.tuple.client, record.tuple.service);
                Found { record, origin: Arc::clone(&origin), number, other, waits }
            });
            // Whoever has ended has no use for them.
            let _ = load.send(records.collect());
            wake();
        })?;
        Ok(())
    }

    /// When there is something to do.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes records in, probes clients, gives clients up.
    ///
    /// # Errors
    /// The system's.
    pub fn turn(&mut self, now: Instant, now_ms: u64, hold: &Hold) -> Result<(), HoldError> {
        while let Ok(records) = self.loaded.try_recv() {
            for Found { record, origin, number, other, waits } in records {
                let key = FlowKey::new(record.tuple.client, record.tuple.service);
                if let Some(pin) = other.filter(|_| waits) {
                    hold.programs().pin(&key, pin)?;
                    continue;
                }
                if self.orphans.len() >= MAX_ORPHANS {
                    tracing::warn!("more connections than can be looked for");
                    break;
                }
                hold.programs().park(&key)?;
                // Whoever was known to hold it is the one that is gone.
                hold.programs().unpin(&key)?;
                let probes = if other.is_none() { 0 } else { PROBES.len() };
                self.due.push(Reverse((if other.is_none() { now } else { now + LEAVE }, key)));
                self.orphans.insert(key, Orphan { record, began: now, probes, other, origin, number });
            }
        }
        self.erase(now)?;
        while let Some(&Reverse((at, key))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            let Some(orphan) = self.orphans.get_mut(&key) else { continue };
            if now >= orphan.began + if orphan.other.is_some() { LEAVE } else { GIVE_UP } {
                // What comes here later than its holder's return is the holder's.
                if let Some(pin) = orphan.other {
                    hold.programs().pin(&key, pin)?;
                }
                self.orphans.remove(&key);
                hold.programs().unpark(&key)?;
                continue;
            }
            if orphan.probes < PROBES.len() {
                orphan.probes += 1;
                let next = PROBES.get(orphan.probes).map_or(GIVE_UP, |ms| Duration::from_millis(*ms));
                self.due.push(Reverse((orphan.began + next, key)));
                if let Err(e) = self.prober.send(&orphan.record, now_ms) {
                    tracing::debug!(error = %e, client = %key.client(), "not probed");
                }
            }
        }
        Ok(())
    }

    /// A packet of a connection that is looked for. If it says where its client is, the connection is not looked for any more:
    /// the record, the socket that goes on with it, and what the client has behind a hole. Its packets stay parked until who
    /// adopts it says otherwise.
    pub fn heard(&mut self, key: &FlowKey, packet: &[u8], now_ms: u64) -> Option<(Record, Connection, u32)> {
        let orphan = self.orphans.get(key)?;
        let segment = Segment::parse(packet).ok()?;
        match wake::read(&orphan.record, &segment, now_ms) {
            Told::Waits(place) if !place.fresh && orphan.began.elapsed() < FRESH => None,
            Told::Waits(place) => {
                let orphan = self.orphans.remove(key)?;
                self.outdated.push((Instant::now(), orphan.origin, orphan.number));
                let connection = wake::connection(&orphan.record, &place, now_ms);
                Some((orphan.record.taken_over(&connection, now_ms), connection, place.sacked))
            }
            // Parked until it is given up: nobody is there to be reset.
            Told::Gone | Told::Nothing => None,
        }
    }

    /// Deletes the records of others' whose connections go on here under an own name by now.
    fn erase(&mut self, now: Instant) -> Result<(), HoldError> {
        if self.outdated.first().is_none_or(|(since, ..)| now < *since + STORED) {
            return Ok(());
        }
        let outdated = std::mem::take(&mut self.outdated);
        std::thread::Builder::new().name("outdated".into()).spawn(move || {
            for of in outdated.chunk_by(|a, b| Arc::ptr_eq(&a.1, &b.1)) {
                let numbers: Vec<u32> = of.iter().map(|(.., number)| *number).collect();
                let Origin { servers, prefix } = &*of[0].1;
                // What cannot be reached expires.
                let _ = store::erase(servers, prefix, &numbers, PATIENCE);
            }
        })?;
        Ok(())
    }

    /// Connections that are looked for.
    #[must_use]
    pub fn count(&self) -> usize {
        self.orphans.len()
    }
}
