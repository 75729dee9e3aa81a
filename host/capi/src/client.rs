//! The client's few functions.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_client::{Config, IoChoice, Stack, Stream, SubStream};

/// Environment variable that says what moves the packets: the functions of Figure 8 have no place for it.
const IO_ENV: &str = "RIVULET_IO";

/// What the user of the program chose; AF_PACKET if nothing.
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
    requests: Mutex<HashMap<u16, SubStream>>,
}

impl Client {
    /// Connects, over a stack of its own.
    pub fn connect(remote: SocketAddr) -> Result<Client, Box<dyn std::error::Error>> {
        let stream = Stack::with_io(Config::default(), packet_io()?)?.connect(remote)?;
        Ok(Client { stream, requests: Mutex::default() })
    }

    /// Sends a request on a stream of its own.
    pub fn request(&self, request: &[u8]) -> io::Result<u16> {
        let sub = self.stream.request(request)?;
        let id = sub.id();
        self.requests.lock().insert(id, sub);
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
        let requests = self.requests.lock();
        let sub = requests.get(&id).ok_or(io::ErrorKind::NotFound)?;
        sub.read_until(into, timeout.map(|t| Instant::now() + t))
    }
}
