//! The client half of the C library.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_client::{Config, IoChoice, Stack, Stream, SubStream};

/// Environment variable that selects the packet I/O; the functions of Figure 8 have no parameter
/// for it.
const IO_ENV: &str = "RIVULET_IO";

/// The user's choice of packet I/O; AF_PACKET by default.
pub(crate) fn packet_io() -> Result<IoChoice, Box<dyn std::error::Error>> {
    match std::env::var(IO_ENV) {
        Ok(text) => text.parse::<IoChoice>().map_err(|e| format!("{IO_ENV}: {e}").into()),
        Err(std::env::VarError::NotPresent) => Ok(IoChoice::default()),
        Err(e) => Err(format!("{IO_ENV}: {e}").into()),
    }
}

/// A connection and its parallel requests.
pub struct Client {
    stream: Stream,
    requests: Mutex<Requests>,
}

/// Parallel requests, each kept until its answer is read to the end.
#[derive(Default)]
struct Requests {
    open: HashMap<u16, Arc<SubStream>>,
    /// Number of the last request.
    last: u16,
}

impl Client {
    /// Connects, with a stack of its own.
    pub fn connect(remote: SocketAddr) -> Result<Client, Box<dyn std::error::Error>> {
        let stack = Stack::with_io(Config::default(), packet_io()?)?;
        stack.remember_for_user();
        let stream = stack.connect(remote)?;
        Ok(Client { stream, requests: Mutex::default() })
    }

    /// Sends a request on a new stream.
    pub fn request(&self, request: &[u8]) -> io::Result<u16> {
        let sub = self.stream.request(request)?;
        let id = sub.id();
        let mut requests = self.requests.lock();
        requests.last = requests.last.max(id);
        requests.open.insert(id, Arc::new(sub));
        Ok(id)
    }

    /// Writes to stream 0.
    pub fn write(&self, data: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(data)
    }

    /// Reads from stream 0, or from a request's answer.
    pub fn read(&self, id: u16, into: &mut [u8], timeout: Option<Duration>) -> io::Result<usize> {
        if id == 0 {
            return self.stream.read_until(into, timeout.map(|t| Instant::now() + t));
        }
        let sub = {
            let requests = self.requests.lock();
            match requests.open.get(&id) {
                Some(sub) => sub.clone(),
                // Its answer was read to the end before.
                None if id <= requests.last => return Ok(0),
                None => return Err(io::ErrorKind::NotFound.into()),
            }
        };
        let got = sub.read_until(into, timeout.map(|t| Instant::now() + t))?;
        if got == 0 && !into.is_empty() {
            // Free the slot for another request.
            self.requests.lock().open.remove(&id);
        }
        Ok(got)
    }
}
