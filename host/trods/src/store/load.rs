//! Reads the records of a dead replica.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{MAX_NUMBER, RecordKeys, SEALED};
use crate::record::{MAX_STORED, Record, Tuple};

/// Number of records in the first query, and in each further one.
const FIRST: u32 = 64;
const BATCH: u32 = 256;
/// Largest difference of two hosts' clocks that is tolerated, in whole seconds because memcached
/// has no finer ones; the timestamps of probes leave the same margin.
const MOST_APART: u64 = 2;
/// Limit on the lines of a server's statistics that are read to find its time.
const MOST_STATS: usize = 64;
/// Limit on the length of a line, bytes.
const MAX_LINE: u64 = 512;

/// Identifies a stored value. Its key alone does not: the number may belong to another connection
/// by the time of the deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The store server that has the record.
    pub server: SocketAddr,
    /// The connection's number, the last part of the key.
    pub number: u32,
    /// memcached's unique number (CAS) of this value, which a later value under the same key does
    /// not have.
    pub cas: u64,
}

/// Result of a search for records.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The newest record of each connection, with all its stored copies; unprotected ones are
    /// included.
    pub records: Vec<(Vec<Stored>, Record)>,
    /// Number of servers that sent all their records.
    pub servers: usize,
    /// Values that no replica of the service stored, or that are not records.
    pub damaged: usize,
}

/// Loads the records that the replica with this [`prefix`](super::prefix) stored, from all servers
/// at the same time; a server that takes longer than `patience` is left out. Blocks.
#[must_use]
pub fn load(servers: &[SocketAddr], prefix: &str, keys: &RecordKeys, patience: Duration) -> Loaded {
    gather(servers, (prefix, keys), patience, |from, found| from.all(prefix, keys, found))
}

/// Like [`load`], for the records with these numbers only.
#[must_use]
pub fn load_some(
    servers: &[SocketAddr],
    prefix: &str,
    keys: &RecordKeys,
    numbers: &[u32],
    patience: Duration,
) -> Loaded {
    gather(servers, (prefix, keys), patience, |from, found| from.some(prefix, numbers, found))
}

type Values = Vec<(Stored, Vec<u8>)>;

fn gather(
    servers: &[SocketAddr],
    (prefix, keys): (&str, &RecordKeys),
    patience: Duration,
    read: impl Fn(&mut Reader, &mut Values) -> io::Result<()> + Sync,
) -> Loaded {
    let (until, read) = (Instant::now() + patience, &read);
    let found = thread::scope(|scope| {
        let threads: Vec<_> = servers
            .iter()
            .map(|server| {
                scope.spawn(move || {
                    let mut found = Vec::new();
                    let whole =
                        Reader::connect(*server, until).and_then(|mut from| read(&mut from, &mut found));
                    if let Err(e) = &whole {
                        tracing::debug!(%server, "records: {e}");
                    }
                    (found, whole.is_ok())
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let mut loaded = Loaded::default();
    let mut newest: HashMap<Tuple, (Vec<Stored>, Record)> = HashMap::new();
    for (values, whole) in found {
        loaded.servers += usize::from(whole);
        for (stored, value) in values {
            let value = keys.open(&super::place(prefix, stored.number), &value);
            let Some(record) = value.and_then(|value| Record::decode(&value).ok()) else {
                loaded.damaged += 1;
                continue;
            };
            match newest.entry(record.tuple) {
                Entry::Occupied(mut known) => {
                    let (all, newest) = known.get_mut();
                    all.push(stored);
                    if record.age().is_after(&newest.age()) {
                        *newest = record;
                    }
                }
                Entry::Vacant(place) => {
                    place.insert((vec![stored], record));
                }
            }
        }
    }
    if loaded.damaged > 0 {
        tracing::warn!(values = loaded.damaged, prefix, "the store has values that no replica sealed");
    }
    loaded.records = newest.into_values().collect();
    loaded
}

/// All incarnations of the replica with this [`prefix`](super::prefix) that may have records,
/// whichever incarnation the prefix has. Values that no replica sealed are ignored. Blocks.
#[must_use]
pub fn incarnations(
    servers: &[SocketAddr],
    prefix: &str,
    keys: &RecordKeys,
    patience: Duration,
) -> BTreeSet<u64> {
    let until = Instant::now() + patience;
    let (key, _) = super::index(prefix);
    let ask = &|server: &SocketAddr| -> io::Result<Option<Vec<u8>>> {
        let mut reader = Reader::connect(*server, until)?;
        reader.ask(format!("mg {key} v c\r\n").as_bytes())?;
        let value = reader.value()?.and_then(|(_, sealed)| open(keys, &key, &sealed));
        Ok(value)
    };
    let values = thread::scope(|scope| {
        let threads: Vec<_> = servers.iter().map(|server| scope.spawn(move || ask(server))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()?.ok()?).collect::<Vec<_>>()
    });
    let all = |value: &Vec<u8>| -> Vec<u64> {
        value.split(|&b| b == b' ').take(super::MAX_INCARNATIONS).filter_map(number).collect()
    };
    values.iter().flat_map(all).collect()
}

/// By how many seconds this host's clock is ahead of a server's host, and of which one, if the
/// difference is more than TRODS tolerates ([`MOST_APART`]). Blocks.
#[must_use]
pub fn clock_ahead(servers: &[SocketAddr], patience: Duration) -> Option<(SocketAddr, i64)> {
    let until = Instant::now() + patience;
    let theirs = |server: SocketAddr| -> io::Result<i64> {
        let mut reader = Reader::connect(server, until)?;
        reader.ask(b"stats\r\n")?;
        for _ in 0..MOST_STATS {
            let line = reader.line()?;
            if let Some(time) = line.strip_prefix(b"STAT time ") {
                return number(time).and_then(|time| i64::try_from(time).ok()).ok_or_else(rubbish);
            }
        }
        Err(rubbish())
    };
    servers.iter().find_map(|server| {
        let theirs = theirs(*server).ok()?;
        let own = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs();
        let ahead = i64::try_from(own).ok()?.saturating_sub(theirs);
        (ahead.unsigned_abs() >= MOST_APART).then_some((*server, ahead))
    })
}

/// Like [`load`], for several replicas at the same time; results in their order.
#[must_use]
pub fn load_all(servers: &[SocketAddr], prefixes: &[(&str, &RecordKeys)], patience: Duration) -> Vec<Loaded> {
    thread::scope(|scope| {
        let one = |(prefix, keys): &(&str, &RecordKeys)| load(servers, prefix, keys, patience);
        let threads: Vec<_> = prefixes.iter().map(|of| scope.spawn(move || one(of))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

/// Deletes another replica's records that are now stored under this one's name, unless they
/// changed. Records on unreachable servers expire. Blocks. Returns the number of servers that
/// answered.
pub fn erase(prefix: &str, mut outdated: Vec<Stored>, patience: Duration) -> usize {
    let until = Instant::now() + patience;
    outdated.sort_by_key(|stored| stored.server);
    let done = outdated.chunk_by(|a, b| a.server == b.server).filter(|of| {
        let gone = Reader::connect(of[0].server, until).and_then(|mut from| from.erase(prefix, of));
        gone.is_ok()
    });
    done.count()
}

/// A blocking connection to a server, with a deadline.
#[derive(Debug)]
pub(super) struct Reader {
    server: SocketAddr,
    from: BufReader<TcpStream>,
    pub until: Instant,
}

impl Reader {
    pub fn connect(server: SocketAddr, until: Instant) -> io::Result<Reader> {
        let stream = TcpStream::connect_timeout(&server, left(until)?)?;
        stream.set_nodelay(true)?;
        Ok(Reader { server, from: BufReader::with_capacity(1 << 16, stream), until })
    }

    pub fn ask(&mut self, commands: &[u8]) -> io::Result<()> {
        self.from.get_ref().set_write_timeout(Some(left(self.until)?))?;
        self.from.get_mut().write_all(commands)
    }

    pub fn line(&mut self) -> io::Result<Vec<u8>> {
        self.from.get_ref().set_read_timeout(Some(left(self.until)?))?;
        let mut line = Vec::new();
        (&mut self.from).take(MAX_LINE).read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(line.to_vec()),
            None => Err(rubbish()),
        }
    }

    /// Reads the next value, if there is one, with its CAS number.
    pub fn value(&mut self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let line = self.line()?;
        if line == b"EN" {
            return Ok(None);
        }
        let told = line.strip_prefix(b"VA ").ok_or_else(rubbish)?;
        let mut told = told.split(|&b| b == b' ');
        let length = told.next().and_then(number).filter(|length| *length <= (MAX_STORED + SEALED) as u64);
        let cas = told.next().and_then(|cas| cas.strip_prefix(b"c")).and_then(number).ok_or_else(rubbish)?;
        let mut value = vec![0; length.ok_or_else(rubbish)? as usize + 2];
        self.from.read_exact(&mut value)?;
        value.truncate(value.len() - 2);
        Ok(Some((cas, value)))
    }

    fn all(&mut self, prefix: &str, keys: &RecordKeys, found: &mut Values) -> io::Result<()> {
        let ask = |numbers: Range<u32>| questions(prefix, numbers);
        // The first records are requested together with the bound, because a client waits for each
        // round trip.
        self.ask(format!("mg {prefix} v c\r\n{}", ask(0..FIRST)).as_bytes())?;
        let count = self.value()?.and_then(|(_, sealed)| number(&open(keys, prefix, &sealed)?));
        let mut asked = 0..FIRST;
        loop {
            let before = found.len();
            self.answers(asked.clone(), found)?;
            // Numbers are the lowest free ones, so without a bound the first empty batch is the
            // end.
            let end = count.unwrap_or(if found.len() > before { MAX_NUMBER.into() } else { 0 });
            asked = asked.end..(asked.end + BATCH).min(end.min(MAX_NUMBER.into()) as u32);
            if asked.is_empty() {
                return Ok(());
            }
            self.ask(ask(asked.clone()).as_bytes())?;
        }
    }

    fn some(&mut self, prefix: &str, numbers: &[u32], found: &mut Values) -> io::Result<()> {
        for numbers in numbers.chunks(BATCH as usize) {
            self.ask(questions(prefix, numbers.iter().copied()).as_bytes())?;
            self.answers(numbers.iter().copied(), found)?;
        }
        Ok(())
    }

    fn answers(&mut self, numbers: impl Iterator<Item = u32>, found: &mut Values) -> io::Result<()> {
        for number in numbers {
            let server = self.server;
            found.extend(self.value()?.map(|(cas, value)| (Stored { server, number, cas }, value)));
        }
        Ok(())
    }

    fn erase(&mut self, prefix: &str, outdated: &[Stored]) -> io::Result<()> {
        for batch in outdated.chunks(BATCH as usize) {
            let command = |of: &Stored| format!("md {prefix}.{} C{}\r\n", of.number, of.cas);
            let commands: String = batch.iter().map(command).collect();
            self.ask(commands.as_bytes())?;
            for _ in batch {
                if !matches!(&self.line()?[..], b"HD" | b"NF" | b"EX") {
                    return Err(rubbish());
                }
            }
        }
        Ok(())
    }
}

/// Decrypts a value that a replica of the service sealed for this key.
fn open(keys: &RecordKeys, key: &str, sealed: &[u8]) -> Option<Vec<u8>> {
    let value = keys.open(key, sealed);
    if value.is_none() {
        tracing::warn!(key, "the store has a value that no replica sealed");
    }
    value
}

fn questions(prefix: &str, numbers: impl Iterator<Item = u32>) -> String {
    numbers.map(|n| format!("mg {prefix}.{n} v c\r\n")).collect()
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

pub(super) fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

pub(super) fn rubbish() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
