//! The connections of dead replicas: their records, the probes to their clients, and what these answer.
//!
//! Every survivor has all records and parks all connections, since the ToR decides who gets what a client sends; who is expected
//! to get it sends the probe. Whoever gets an answer goes on with the connection.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;
use rivulet_pktio::in_netns;
use rivulet_pktio::repair::Connection;
use rivulet_plain::Segment;

use super::{Hold, HoldError};
use crate::record::Record;
use crate::store;
use crate::wake::{self, Prober, Told};

/// A server of the store that has not told all it has in this time is done without.
const PATIENCE: Duration = Duration::from_millis(500);
/// When a probe is sent, milliseconds after the record was read.
const PROBES: [u64; 6] = [0, 30, 100, 300, 1000, 3000];
/// Connections that are looked for at a time.
const MAX_ORPHANS: usize = 65_536;
/// For so long an answer is awaited that shows that nothing else is on its way to the client; then any will do.
const FRESH: Duration = Duration::from_millis(200);
/// After this a connection is not looked for any more: its client went to another replica, or is gone.
const GIVE_UP: Duration = Duration::from_secs(60);

/// A replica that is dead, or was excluded.
pub struct Departed {
    /// What the keys of its records begin with ([`store::prefix`]).
    pub prefix: String,
    /// The servers of its store.
    pub servers: Vec<SocketAddr>,
    /// Whether this replica is expected to get what the client sends to the service.
    pub is_ours: Box<dyn Fn(SocketAddr, SocketAddr) -> bool + Send>,
}

impl std::fmt::Debug for Departed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Departed({})", self.prefix)
    }
}

/// A connection that is looked for.
#[derive(Debug)]
struct Orphan {
    record: Record,
    began: Instant,
    probes: usize,
}

/// All connections that are looked for.
#[derive(Debug)]
pub struct Rescue {
    orphans: HashMap<FlowKey, Orphan>,
    due: BinaryHeap<Reverse<(Instant, FlowKey)>>,
    load: Sender<Vec<(Record, bool)>>,
    loaded: Receiver<Vec<(Record, bool)>>,
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
        Ok(Rescue { orphans: HashMap::new(), due: BinaryHeap::new(), load, loaded, prober })
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
            let records = loaded.records.into_iter().map(|(_, record)| record).filter(|r| !r.unprotected);
            let records = records.map(|r| {
                let ours = (departed.is_ours)(r.tuple.client, r.tuple.service);
                (r, ours)
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
            for (record, ours) in records {
                if self.orphans.len() >= MAX_ORPHANS {
                    tracing::warn!("more connections than can be looked for");
                    break;
                }
                let key = FlowKey::new(record.tuple.client, record.tuple.service);
                hold.programs().park(&key)?;
                let probes = if ours { 0 } else { PROBES.len() };
                self.due.push(Reverse((if ours { now } else { now + GIVE_UP }, key)));
                self.orphans.insert(key, Orphan { record, began: now, probes });
            }
        }
        while let Some(&Reverse((at, key))) = self.due.peek()
            && at <= now
        {
            self.due.pop();
            let Some(orphan) = self.orphans.get_mut(&key) else { continue };
            if now >= orphan.began + GIVE_UP {
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
                let connection = wake::connection(&orphan.record, &place, now_ms);
                Some((orphan.record.taken_over(&connection, now_ms), connection, place.sacked))
            }
            // Parked until it is given up: nobody is there to be reset.
            Told::Gone | Told::Nothing => None,
        }
    }

    /// Connections that are looked for.
    #[must_use]
    pub fn count(&self) -> usize {
        self.orphans.len()
    }
}
