//! The records of a replica that is gone, as another one reads them.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use super::MAX_NUMBER;
use crate::record::{MAX_RECORD, Record, Tuple};

/// Records that are asked for at first, however many there are, and at a time then.
const FIRST: u32 = 64;
const BATCH: u32 = 256;
/// Octets of a line.
const MAX_LINE: u64 = 512;

/// What was found.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The newest record of each connection, with its number; unprotected ones are among them.
    pub records: Vec<(u32, Record)>,
    /// Servers that told all they have.
    pub servers: usize,
    /// Values that are no records.
    pub damaged: usize,
}

/// Loads what the replica of this [`prefix`](super::prefix) stored, from all servers at a time; one that takes longer than
/// `patience` is done without. Blocks.
#[must_use]
pub fn load(servers: &[SocketAddr], prefix: &str, patience: Duration) -> Loaded {
    let until = Instant::now() + patience;
    let found = thread::scope(|scope| {
        let threads: Vec<_> = servers
            .iter()
            .map(|server| {
                scope.spawn(move || {
                    let mut found = Vec::new();
                    let whole =
                        Reader::connect(*server, until).and_then(|mut from| from.all(prefix, &mut found));
                    if let Err(e) = &whole {
                        tracing::debug!(%server, "records of {prefix}: {e}");
                    }
                    (found, whole.is_ok())
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let mut loaded = Loaded::default();
    let mut newest: HashMap<Tuple, (u32, Record)> = HashMap::new();
    for (values, whole) in found {
        loaded.servers += usize::from(whole);
        for (n, value) in values {
            let Ok(record) = Record::decode(&value) else {
                loaded.damaged += 1;
                continue;
            };
            if newest.get(&record.tuple).is_none_or(|(_, other)| record.age().is_after(&other.age())) {
                newest.insert(record.tuple, (n, record));
            }
        }
    }
    loaded.records = newest.into_values().collect();
    loaded
}

/// [`load`] of several replicas at a time, in their order.
#[must_use]
pub fn load_all(servers: &[SocketAddr], prefixes: &[&str], patience: Duration) -> Vec<Loaded> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            prefixes.iter().map(|prefix| scope.spawn(|| load(servers, prefix, patience))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

/// Deletes records of another replica, which are now stored under an own name; those on servers that cannot be reached
/// expire. Blocks. How many servers did so.
pub fn erase(servers: &[SocketAddr], prefix: &str, numbers: &[u32], patience: Duration) -> usize {
    let until = Instant::now() + patience;
    let done = servers.iter().filter(|server| {
        let gone = Reader::connect(**server, until).and_then(|mut from| from.erase(prefix, numbers));
        gone.is_ok()
    });
    done.count()
}

struct Reader {
    from: BufReader<TcpStream>,
    until: Instant,
}

impl Reader {
    fn connect(server: SocketAddr, until: Instant) -> io::Result<Reader> {
        let stream = TcpStream::connect_timeout(&server, left(until)?)?;
        stream.set_nodelay(true)?;
        Ok(Reader { from: BufReader::with_capacity(1 << 16, stream), until })
    }

    fn ask(&mut self, commands: &[u8]) -> io::Result<()> {
        self.from.get_ref().set_write_timeout(Some(left(self.until)?))?;
        self.from.get_mut().write_all(commands)
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        self.from.get_ref().set_read_timeout(Some(left(self.until)?))?;
        let mut line = Vec::new();
        (&mut self.from).take(MAX_LINE).read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(line.to_vec()),
            None => Err(rubbish()),
        }
    }

    /// The next value, if there is one.
    fn value(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line()?;
        if line == b"EN" {
            return Ok(None);
        }
        let length = line.strip_prefix(b"VA ").and_then(number).filter(|length| *length <= MAX_RECORD as u64);
        let mut value = vec![0; length.ok_or_else(rubbish)? as usize + 2];
        self.from.read_exact(&mut value)?;
        value.truncate(value.len() - 2);
        Ok(Some(value))
    }

    fn all(&mut self, prefix: &str, found: &mut Vec<(u32, Vec<u8>)>) -> io::Result<()> {
        let ask = |numbers: Range<u32>| numbers.map(|n| format!("mg {prefix}.{n} v\r\n")).collect::<String>();
        // The first ones with the question how many there are: a client waits for each round trip.
        self.ask(format!("mg {prefix} v\r\n{}", ask(0..FIRST)).as_bytes())?;
        let count = match self.value()? {
            Some(count) => number(&count).ok_or_else(rubbish)?.min(u64::from(MAX_NUMBER)) as u32,
            None => 0,
        };
        let mut asked = 0..FIRST;
        loop {
            for n in asked.clone() {
                found.extend(self.value()?.map(|value| (n, value)));
            }
            asked = asked.end..(asked.end + BATCH).min(count);
            if asked.is_empty() {
                return Ok(());
            }
            self.ask(ask(asked.clone()).as_bytes())?;
        }
    }

    fn erase(&mut self, prefix: &str, numbers: &[u32]) -> io::Result<()> {
        for batch in numbers.chunks(BATCH as usize) {
            let commands: String = batch.iter().map(|n| format!("md {prefix}.{n}\r\n")).collect();
            self.ask(commands.as_bytes())?;
            for _ in batch {
                if !matches!(&self.line()?[..], b"HD" | b"NF") {
                    return Err(rubbish());
                }
            }
        }
        Ok(())
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.split(|&b| b == b' ').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn rubbish() -> io::Error {
    io::ErrorKind::InvalidData.into()
}
