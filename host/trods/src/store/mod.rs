//! Stores records in memcached servers on other hosts, by memcached's meta commands.
//!
//! Nothing here blocks: wait on [`Store::descriptors`] until [`Store::deadline`], then call
//! [`Store::turn`]. A record is sent to the preferred server that works, and to the next one too if
//! the first has not answered within the patience; a later answer of the first still counts.
//! Servers on this host are not used: their memory is lost with it.
//!
//! All values are sealed ([`RecordKeys`]). The record of connection number `n` has the key
//! `pool.replica.incarnation.n`. The key without a number holds a bound above all numbers in use,
//! so that another replica finds all records ([`load`]). The key `pool.replica.all` holds the
//! replica's incarnations, so that it finds earlier ones ([`incarnations`]).

mod load;
mod notice;
mod sealed;
mod server;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use self::sealed::Sealer;
use self::server::{Answer, Names, Server};
use crate::record::Record;

pub use load::{Loaded, Stored, clock_ahead, erase, incarnations, load, load_all, load_some};
pub(crate) use notice::Notices;
pub use sealed::{RecordKeys, SEALED};

/// Lifetime of a record in the store, seconds.
pub const LIFETIME: u32 = 3600;
/// Default time after which a record is also sent to the next server ([`StoreConfig::patience`]).
pub const PATIENCE: Duration = Duration::from_millis(2);
/// An attempt fails after this many times the patience, or after [`GIVE_UP_BUSY`] times if the
/// server is still answering earlier commands.
const GIVE_UP: u32 = 100;
const GIVE_UP_BUSY: u32 = 1000;
/// How long a server that was late is used only if no other one is left.
const SUSPECT: Duration = Duration::from_secs(1);
/// The bound on the numbers in use is rounded up to a multiple of this, and stored again after a
/// third of its lifetime.
const STEP: u32 = 256;
const ANNOUNCE: Duration = Duration::from_secs(LIFETIME as u64 / 3);
/// Age at which a record is stored again. It varies up to twice this, so that renewals are spread
/// over time.
pub const RENEWAL: Duration = Duration::from_secs(LIFETIME as u64 / 3);
/// Delay after which a record with fewer copies than configured is stored again.
const AGAIN: Duration = Duration::from_secs(10);
/// Maximum number of connections with records.
pub const MAX_NUMBER: u32 = 1 << 20;
/// Limit on the incarnations of a replica that are searched for.
const MAX_INCARNATIONS: usize = 16;
/// Maximum number of buffers kept for later records.
const SPARE: usize = 256;
/// Maximum number of servers of a store.
pub const MAX_SERVERS: usize = 16;

/// Configuration of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// The servers.
    pub servers: Vec<SocketAddr>,
    /// Addresses of this host; store servers on it are not used.
    pub own: Vec<IpAddr>,
    /// Number of servers that must store a record, 1 or 2.
    pub copies: u8,
    /// First part of all keys, made by [`prefix`].
    pub prefix: String,
    /// Earlier incarnations that may have records; they are stored in the list of [`incarnations`].
    pub formers: Vec<u64>,
    /// Time after which a record is also sent to the next server.
    pub patience: Duration,
    /// Minimum age at which a record is stored again ([`Store::is_stale`]).
    pub renewal: Duration,
}

/// Why a store's configuration is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// All configured servers are on this host.
    #[error("no server of the store is on another host")]
    Alone,
    /// More than [`MAX_SERVERS`].
    #[error("{0} servers are too many")]
    Servers(usize),
    /// The number of copies is neither 1 nor 2.
    #[error("{0} copies: 1 or 2 can be had")]
    Copies(u8),
    /// A name that cannot be part of a key.
    #[error("{0:?} cannot be part of a key")]
    Name(String),
}

/// Result of storing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The connection's number.
    pub n: u32,
    /// The ticket that was passed with the record.
    pub ticket: u64,
    /// Whether the record is stored. If two copies are configured and only one server is left, one
    /// copy suffices.
    pub kept: bool,
}

/// The first part of a replica's keys.
///
/// # Errors
/// [`StoreError::Name`]: names are printable ASCII without spaces and dots, at most 64 bytes.
pub fn prefix(pool: &str, replica: &str, incarnation: u64) -> Result<String, StoreError> {
    for name in [pool, replica] {
        let good = name.bytes().all(|b| b.is_ascii_graphic() && b != b'.');
        if !good || !(1..=64).contains(&name.len()) {
            return Err(StoreError::Name(name.to_owned()));
        }
    }
    Ok(format!("{pool}.{replica}.{incarnation}"))
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    job: Option<u64>,
    /// Bit sets of servers: those that may have any of its records, and those that acknowledged the
    /// last one.
    holders: u16,
    keep: u16,
    /// Time at which the last record was passed to a server.
    since: Option<Instant>,
}

#[derive(Debug)]
struct Job {
    n: u32,
    ticket: u64,
    /// The sealed record.
    record: Vec<u8>,
    /// Bit sets of servers: those to which it was sent, those that have not answered, and those
    /// that stored it.
    asked: u16,
    waiting: u32,
    kept: u32,
    begun: Instant,
    give_up: Instant,
}

/// A store, as one replica writes to it.
#[derive(Debug)]
pub struct Store {
    names: Names,
    sealer: Sealer,
    /// The replica's incarnations, its own first.
    incarnations: String,
    spare: Vec<Vec<u8>>,
    /// The key of the record that is being sealed; reused to save allocations.
    place: String,
    patience: Duration,
    copies: u32,
    servers: Vec<Server>,
    jobs: HashMap<u64, Job>,
    count: u64,
    /// Times at which jobs are checked.
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    renewal: Duration,
    /// The state of each connection, by its number.
    current: Vec<Entry>,
    /// The stored bound, above all numbers in use.
    announced: u32,
    announce_at: Instant,
    done: Vec<Done>,
}

impl Store {
    /// A store that connects to its servers and seals with these keys.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn new(config: &StoreConfig, keys: &RecordKeys, now: Instant) -> Result<Store, StoreError> {
        let count = config.servers.len();
        if count > MAX_SERVERS {
            return Err(StoreError::Servers(count));
        }
        if !(1..=2).contains(&config.copies) {
            return Err(StoreError::Copies(config.copies));
        }
        let mut others: Vec<SocketAddr> = config.servers.clone();
        others.retain(|server| !config.own.contains(&server.ip()));
        if others.is_empty() {
            return Err(StoreError::Alone);
        }
        // Replicas prefer different servers, to spread the load.
        let turn = crc32c::crc32c(config.prefix.as_bytes()) as usize % others.len();
        others.rotate_left(turn);
        let (index_key, own) = index(&config.prefix);
        let all = std::iter::once(own).chain(config.formers.iter().copied()).take(MAX_INCARNATIONS);
        let incarnations = all.map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        let (prefix, index, count) = (config.prefix.clone(), Vec::new(), Vec::new());
        let mut store = Store {
            names: Names { prefix, index_key, index, count },
            sealer: Sealer::new(keys),
            incarnations,
            spare: Vec::new(),
            place: String::new(),
            patience: config.patience,
            copies: u32::from(config.copies).min(others.len() as u32),
            servers: others.into_iter().map(|address| Server::new(address, now)).collect(),
            jobs: HashMap::new(),
            count: 0,
            timers: BinaryHeap::new(),
            renewal: config.renewal,
            current: Vec::new(),
            announced: 0,
            announce_at: now + ANNOUNCE,
            done: Vec::new(),
        };
        store.seal_names();
        for server in &mut store.servers {
            server.reconnect(now, &store.names);
        }
        Ok(store)
    }

    /// The keys that seal its values.
    #[must_use]
    pub fn keys(&self) -> &RecordKeys {
        &self.sealer.keys
    }

    /// Seals with these keys from now on. The caller has to store existing records again.
    pub fn set_keys(&mut self, keys: &RecordKeys, now: Instant) {
        let is_other = self.sealer.keys.epochs() != keys.epochs();
        self.sealer.keys = keys.clone();
        if is_other {
            self.announce(now);
        }
    }

    /// Stores the record of connection `n` (below [`MAX_NUMBER`]) in place of its last one.
    /// [`Store::turn`] reports the result, unless a later record replaced this one before it was
    /// sent. Without keys nothing is stored.
    pub fn put(&mut self, n: u32, ticket: u64, record: &Record, now: Instant) {
        use std::fmt::Write;
        self.place.clear();
        // Writing into memory does not fail.
        let _ = write!(self.place, "{}.{n}", self.names.prefix);
        let mut sealed = self.spare.pop().unwrap_or_default();
        let is_sealed = n < MAX_NUMBER
            && self.sealer.seal(&self.place, &mut sealed, |out| record.encode_into(out)).is_some();
        if !is_sealed {
            self.spare.push(sealed);
            self.done.push(Done { n, ticket, kept: false });
            return;
        }
        if n >= self.announced {
            self.announced = (n / STEP + 1) * STEP;
            self.announce(now);
        }
        self.count += 1;
        let serial = self.count;
        let entry = self.entry(n);
        (entry.keep, entry.since) = (0, Some(now));
        if let Some(before) = entry.job.replace(serial) {
            self.end(before);
        }
        let give_up = now + self.patience * GIVE_UP;
        let job = Job { n, ticket, record: sealed, asked: 0, waiting: 0, kept: 0, begun: now, give_up };
        self.jobs.insert(serial, job);
        for _ in 0..self.copies {
            self.ask_next(serial, now);
        }
        self.timers.push(Reverse((now + self.patience, serial)));
        self.judge(serial, false);
    }

    /// Deletes the record of connection `n`; the number may be used again.
    pub fn forget(&mut self, n: u32) {
        if n >= self.current.len() as u32 {
            return;
        }
        let entry = std::mem::take(self.entry(n));
        if let Some(serial) = entry.job {
            self.end(serial);
        }
        for (at, server) in self.servers.iter_mut().enumerate() {
            if entry.holders & 1 << at != 0 {
                server.delete(n);
            }
        }
    }

    /// Whether the record of connection `n` must be stored again: it is old, or a server that had
    /// it lost it while another server works. `false` while it is being stored.
    #[must_use]
    pub fn is_stale(&self, n: u32, now: Instant) -> bool {
        let Some(Entry { job: None, keep, since: Some(since), .. }) = self.current.get(n as usize) else {
            return false;
        };
        let age = now.saturating_duration_since(*since);
        // The multiplication (by 2^32 over the golden ratio) spreads consecutive numbers evenly over
        // 0 to 1, so that records stored together are not renewed together.
        let spread = self.renewal.mul_f64(f64::from(n.wrapping_mul(0x9e37_79b9)) / f64::from(u32::MAX));
        let takers = self.servers.iter().filter(|server| server.takes()).count() as u32;
        let copies = keep.count_ones();
        takers > 0
            && (copies == 0
                || age >= self.renewal + spread
                || age >= AGAIN && copies < self.copies.min(takers))
    }

    /// Sends, receives, and connects to servers; results of records are appended to `done`. Call it
    /// when a descriptor is ready or the deadline has passed.
    pub fn turn(&mut self, now: Instant, done: &mut Vec<Done>) {
        if now >= self.announce_at {
            self.announce(now);
        }
        for at in 0..self.servers.len() {
            let mut answers = Vec::new();
            let server = &mut self.servers[at];
            if server.reconnect(now, &self.names) {
                server.turn(&self.names.prefix, &mut answers, now);
            }
            for answer in answers {
                self.answered(at, answer, now);
            }
            if self.servers[at].take_lost() {
                // A restarted memcached has lost all values.
                self.current.iter_mut().for_each(|entry| entry.keep &= !(1 << at));
            }
        }
        while self.timers.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, serial))) = self.timers.pop() else { break };
            self.look_at(serial, now);
        }
        // Sends what the steps above queued.
        for server in &mut self.servers {
            server.flush(now);
        }
        done.append(&mut self.done);
    }

    /// Descriptors to wait on, each with whether there is something to write.
    pub fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.servers.iter().filter_map(Server::descriptor)
    }

    /// Time of the next call of [`Store::turn`] if no descriptor becomes ready.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let servers = self.servers.iter().map(Server::deadline);
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        servers.chain(timer).fold(self.announce_at, Instant::min)
    }

    /// Number of records that are being stored.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.jobs.len()
    }

    fn entry(&mut self, n: u32) -> &mut Entry {
        let n = n as usize;
        if n >= self.current.len() {
            self.current.resize(n + 1, Entry::default());
        }
        &mut self.current[n]
    }

    fn announce(&mut self, now: Instant) {
        self.announce_at = now + ANNOUNCE;
        self.seal_names();
        for server in &mut self.servers {
            server.announce(&self.names, now);
        }
    }

    /// Seals the values by which other replicas find the records.
    fn seal_names(&mut self) {
        let Names { prefix, index_key, index, count } = &mut self.names;
        let all = self.incarnations.as_bytes();
        if self.sealer.seal(index_key, index, |out| out.extend_from_slice(all)).is_none() {
            index.clear();
        }
        let number = Some(self.announced).filter(|n| *n > 0).map(|n| n.to_string());
        let sealed =
            number.and_then(|n| self.sealer.seal(prefix, count, |out| out.extend_from_slice(n.as_bytes())));
        if sealed.is_none() {
            count.clear();
        }
    }

    /// Removes a job and keeps its buffer for later ones.
    fn end(&mut self, serial: u64) {
        if let Some(job) = self.jobs.remove(&serial).filter(|_| self.spare.len() < SPARE) {
            self.spare.push(job.record);
        }
    }

    /// Sends a job's record to the best server that does not have it yet. Returns `false` if there
    /// is none.
    fn ask_next(&mut self, serial: u64, now: Instant) -> bool {
        let Some(job) = self.jobs.get_mut(&serial) else { return false };
        let open = (0..self.servers.len()).filter(|at| job.asked & 1 << at == 0 && self.servers[*at].takes());
        let Some(at) = open.min_by_key(|at| self.servers[*at].suspect_until > now) else { return false };
        let server = &mut self.servers[at];
        server.put(&self.names.prefix, job.n, serial, &job.record, now);
        job.asked |= 1 << at;
        job.waiting += 1;
        let n = job.n;
        self.entry(n).holders |= 1 << at;
        true
    }

    /// At a job's timer: tries the next server, or ends the job.
    fn look_at(&mut self, serial: u64, now: Instant) {
        let Some(job) = self.jobs.get(&serial) else { return };
        let (give_up, last) = (job.give_up, job.begun + self.patience * GIVE_UP_BUSY);
        let waits = self.patience * GIVE_UP;
        for (at, server) in self.servers.iter_mut().enumerate() {
            if job.asked & 1 << at != 0 && server.is_late(now, self.patience) {
                server.suspect_until = now + SUSPECT;
            }
        }
        if now >= give_up {
            let busy =
                |(at, server): (usize, &Server)| job.asked & 1 << at != 0 && server.answers(now, waits);
            if now < last && self.servers.iter().enumerate().any(busy) {
                self.timers.push(Reverse((now + waits, serial)));
            } else {
                self.judge(serial, true);
            }
        } else {
            let again = if self.ask_next(serial, now) { now + self.patience } else { give_up };
            self.timers.push(Reverse((again.min(give_up), serial)));
        }
    }

    fn answered(&mut self, at: usize, answer: Answer, now: Instant) {
        let Some(job) = self.jobs.get_mut(&answer.serial) else { return };
        job.waiting -= 1;
        if answer.kept {
            job.kept += 1;
            let n = job.n;
            self.entry(n).keep |= 1 << at;
        } else {
            self.servers[at].suspect_until = now + SUSPECT;
            self.ask_next(answer.serial, now);
        }
        self.judge(answer.serial, false);
    }

    /// Completes a job if its result is known.
    fn judge(&mut self, serial: u64, late: bool) {
        let Some(job) = self.jobs.get(&serial) else { return };
        if job.kept >= self.copies || job.waiting == 0 || late {
            let (n, ticket, kept) = (job.n, job.ticket, job.kept > 0);
            self.done.push(Done { n, ticket, kept });
            self.end(serial);
            self.entry(n).job = None;
        }
    }
}

/// The key of the list of a replica's incarnations, and the incarnation in this prefix.
fn index(prefix: &str) -> (String, u64) {
    let (replica, incarnation) = prefix.rsplit_once('.').unwrap_or((prefix, ""));
    (format!("{replica}.all"), incarnation.parse().unwrap_or(0))
}

/// The prefix of the same replica's other incarnation.
pub(crate) fn sibling(prefix: &str, incarnation: u64) -> String {
    let (replica, _) = prefix.rsplit_once('.').unwrap_or((prefix, ""));
    format!("{replica}.{incarnation}")
}

/// The key of the record with this number.
pub(crate) fn place(prefix: &str, number: u32) -> String {
    format!("{prefix}.{number}")
}

/// The command that stores a value under a key.
fn put_command(key: std::fmt::Arguments<'_>, opaque: u64, value: &[u8], out: &mut Vec<u8>) {
    use std::io::Write;
    // Writing into memory does not fail.
    let _ = write!(out, "ms {key} {} T{LIFETIME} O{opaque}\r\n", value.len());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

// A set of servers is one bit each in a `u16`.
const _: () = assert!(MAX_SERVERS <= u16::BITS as usize);
