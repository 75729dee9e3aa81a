//! Values other than records that replicas exchange through a common store (used by `moves`);
//! sealed like records.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::RecordKeys;
use super::load::{Reader, rubbish};

/// A server that takes longer is left out, and asked again after a while.
const PATIENCE: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Server {
    address: SocketAddr,
    reader: Option<Reader>,
    retry_at: Option<Instant>,
}

/// The servers of a store, each with a blocking connection.
#[derive(Debug)]
pub(crate) struct Notices {
    servers: Vec<Server>,
    keys: RecordKeys,
}

impl Notices {
    pub fn new(servers: &[SocketAddr], keys: &RecordKeys) -> Notices {
        let server = |address: &SocketAddr| Server { address: *address, reader: None, retry_at: None };
        Notices { servers: servers.iter().map(server).collect(), keys: keys.clone() }
    }

    /// Sets the sealing keys.
    pub fn set_keys(&mut self, keys: &RecordKeys) {
        self.keys = keys.clone();
    }

    /// Passes the values under these keys to `take`, from each server, with the index of the key.
    pub fn get(&mut self, keys: &[String], mut take: impl FnMut(usize, &[u8])) {
        let commands: String = keys.iter().map(|key| format!("mg {key} v c\r\n")).collect();
        let Notices { servers, keys: seals } = self;
        for server in servers {
            server.talk(|reader| {
                reader.ask(commands.as_bytes())?;
                for (place, key) in keys.iter().enumerate() {
                    let value = reader.value()?.and_then(|(_, sealed)| seals.open(key, &sealed));
                    value.into_iter().for_each(|value| take(place, &value));
                }
                Ok(())
            });
        }
    }

    /// Stores a value for this many seconds; returns the number of servers that stored it.
    pub fn put(&mut self, key: &str, seconds: u32, value: &[u8]) -> usize {
        let Some(value) = self.keys.seal(key, value) else { return 0 };
        let mut command = Vec::with_capacity(key.len() + value.len() + 32);
        // Writing into memory does not fail.
        let _ = write!(command, "ms {key} {} T{seconds}\r\n", value.len());
        command.extend_from_slice(&value);
        command.extend_from_slice(b"\r\n");
        let mut kept = 0;
        for server in &mut self.servers {
            server.talk(|reader| {
                reader.ask(&command)?;
                match reader.line()?.starts_with(b"HD") {
                    true => kept += 1,
                    // Only the first two letters of the answer show the result.
                    false => return Err(rubbish()),
                }
                Ok(())
            });
        }
        kept
    }
}

impl Server {
    fn talk(&mut self, what: impl FnOnce(&mut Reader) -> io::Result<()>) {
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        let until = now + PATIENCE;
        let reader = match self.reader.take() {
            Some(reader) => Ok(reader),
            None => Reader::connect(self.address, until),
        };
        let told = reader.and_then(|mut reader| {
            reader.until = until;
            what(&mut reader).map(|()| reader)
        });
        (self.reader, self.retry_at) = match told {
            Ok(reader) => (Some(reader), None),
            Err(e) => {
                tracing::debug!(server = %self.address, "moves: {e}");
                (None, Some(now + RETRY))
            }
        };
    }
}
