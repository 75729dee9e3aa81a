//! The adopting side of a planned move: reads the lists of replicas that are being drained.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Left, List, POLL, list_key, mark_key};
use crate::hold::HoldError;
use crate::hold::rescue::{Departed, Found, Rescue};
use crate::store::{Notices, RecordKeys, load_some};

/// Interval at which a member announces how far it has read a list; each announcement is valid for
/// a few seconds.
const SAID: Duration = Duration::from_millis(500);
const COUNTS: u32 = 3;
/// Timeout of a store server, and of the search for one record.
const PATIENCE: Duration = Duration::from_millis(100);
const WANTED: Duration = Duration::from_secs(2);
/// How long the expected adopter of a listed connection is computed again, because it may change.
const RECENT: Duration = Duration::from_secs(5);
/// How long a replica's list is still read after it is no longer drained: its last entries may be
/// on their way.
const AFTER: Duration = Duration::from_secs(3);

/// One reading thread for each replica that is being drained.
#[derive(Debug, Default)]
pub struct Followers(Vec<Follower>);

#[derive(Debug)]
struct Follower {
    prefix: String,
    servers: Vec<SocketAddr>,
    shared: Arc<Shared>,
}

/// What a thread shares with its owner: the selection of connections, and the number of changes of
/// it.
#[derive(Debug)]
struct Shared {
    departed: Mutex<Departed>,
    generation: AtomicU64,
    stop: AtomicBool,
}

impl Followers {
    /// Sets the replicas that are being drained; the lists of others are no longer read. `own`:
    /// this replica's index in the pool. `wake` is called on another thread when a connection was
    /// found.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn set(
        &mut self,
        all: Vec<(u8, Departed)>,
        rescue: &Rescue,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> Result<(), HoldError> {
        let mut before = std::mem::take(&mut self.0);
        for (own, departed) in all {
            let same = |f: &Follower| (&f.prefix, &f.servers) == (&departed.prefix, &departed.servers);
            if let Some(at) = before.iter().position(same) {
                let follower = before.swap_remove(at);
                *follower.shared.departed.lock().unwrap_or_else(PoisonError::into_inner) = departed;
                follower.shared.generation.fetch_add(1, Ordering::Relaxed);
                self.0.push(follower);
                continue;
            }
            let (prefix, servers) = (departed.prefix.clone(), departed.servers.clone());
            let keys = departed.keys.clone();
            let (departed, generation, stop) =
                (Mutex::new(departed), AtomicU64::new(0), AtomicBool::new(false));
            let shared = Arc::new(Shared { departed, generation, stop });
            let mut reader = Reader {
                notices: Notices::new(&servers, &keys),
                origin: prefix.as_str().into(),
                servers: servers.clone(),
                keys: [list_key(&prefix)],
                mark: mark_key(&prefix, own),
                load: rescue.inbox(),
                shared: Arc::clone(&shared),
                read: None,
                wanted: VecDeque::new(),
                recent: VecDeque::new(),
            };
            let wake = wake.clone();
            std::thread::Builder::new().name("follows".into()).spawn(move || reader.run(&wake))?;
            self.0.push(Follower { prefix, servers, shared });
        }
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

struct Reader {
    notices: Notices,
    servers: Vec<SocketAddr>,
    origin: Arc<str>,
    keys: [String; 1],
    mark: String,
    load: Sender<Vec<Found>>,
    shared: Arc<Shared>,
    /// Position in the list up to which this member has read.
    read: Option<u64>,
    /// Listed connections, each with the time since when its record must be read.
    wanted: VecDeque<(Instant, Left)>,
    recent: VecDeque<(Instant, Left)>,
}

impl Reader {
    fn run(&mut self, wake: &impl Fn()) {
        let (mut said_at, mut generation, mut stopped) = (None::<Instant>, 0, None::<Instant>);
        while stopped.is_none_or(|at| at.elapsed() < AFTER) {
            if stopped.is_none() && self.shared.stop.load(Ordering::Relaxed) {
                stopped = Some(Instant::now());
            }
            let before = self.read;
            self.look();
            let now = self.shared.generation.load(Ordering::Relaxed);
            if generation != now {
                generation = now;
                self.notices.set_keys(&self.keys());
                self.wanted.extend(self.recent.iter().copied());
            }
            if !self.wanted.is_empty() && self.find() {
                wake();
            }
            // If it announced only on change, the announcement would expire, and the leaving
            // replica would assign this member no connections.
            let is_due = said_at.is_none_or(|at| at.elapsed() >= SAID) || self.read != before;
            if let Some(read) = self.read
                && is_due
                && stopped.is_none()
            {
                said_at = Some(Instant::now());
                self.notices.put(&self.mark, COUNTS, read.to_string().as_bytes());
            }
            std::thread::sleep(POLL);
        }
    }

    /// The keys with which records are sealed now.
    fn keys(&self) -> RecordKeys {
        self.shared.departed.lock().unwrap_or_else(PoisonError::into_inner).keys.clone()
    }

    /// Reads the list and announces the new position.
    fn look(&mut self) {
        let mut newest: Option<List> = None;
        self.notices.get(&self.keys, |_, value| {
            let list = List::decode(value);
            newest = newest.take().into_iter().chain(list).max_by_key(List::end);
        });
        let Some(list) = newest else { return };
        // Entries from before this member's first announcement are for other members.
        let Some(read) = self.read.replace(list.end()) else { return };
        let now = Instant::now();
        self.wanted.extend(list.from(read).map(|left| (now, left)));
        self.recent.extend(list.from(read).map(|left| (now, left)));
        while self.recent.front().is_some_and(|(since, _)| since.elapsed() >= RECENT) {
            self.recent.pop_front();
        }
        self.read = self.read.max(Some(read));
    }

    /// Reads the records of listed connections; returns whether some are still missing.
    fn find(&mut self) -> bool {
        let numbers: Vec<u32> = self.wanted.iter().map(|(_, left)| left.number).collect();
        let keys = self.keys();
        let loaded = load_some(&self.servers, &self.origin, &keys, &numbers, PATIENCE);
        let mut found = Vec::new();
        let departed = self.shared.departed.lock().unwrap_or_else(PoisonError::into_inner);
        for (stored, record) in loaded.records {
            let age = record.age();
            let is_it = |left: &Left| left.age == age && stored.iter().any(|s| s.number == left.number);
            let Some(at) = self.wanted.iter().position(|(_, left)| is_it(left)) else { continue };
            self.wanted.remove(at);
            let (origin, asked) = (Some(Arc::clone(&self.origin)), 0);
            let other = (departed.other)(record.tuple.client, record.tuple.service);
            found.push(Found { record, origin, stored, asked, other, waits: departed.waits });
        }
        self.wanted.retain(|(since, _)| since.elapsed() < WANTED);
        let any = !found.is_empty();
        // The error means that no receiver wants the result any more.
        let _ = self.load.send(found);
        any
    }
}
