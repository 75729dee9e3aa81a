//! Parallel requests on one connection (section 5.2): each a stream of its own.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rivulet_transport::client::RequestError;

use crate::connection::{Blocking, Ending, Shared};
use crate::stream::Stream;

/// The answer to one request; all of a connection's share its window.
pub struct SubStream {
    shared: Arc<Shared>,
    id: u16,
}

impl Stream {
    /// Sends `request` on a stream of its own, beside everything else on this connection; no other data
    /// need be read before its answer. A connection has [`MAX_REQUESTS`](crate::MAX_REQUESTS) of them at a time, each until it is dropped, and
    /// 65,534 in all: `QuotaExceeded` beyond that. Fails with `Unsupported` towards a server of plain TCP.
    pub fn request(&self, request: &[u8]) -> io::Result<SubStream> {
        let mut state = self.shared.state.lock();
        if let Some(e) = state.ending.error() {
            return Err(e);
        }
        if state.ending != Ending::Open {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let now = self.shared.mailbox.now();
        let quota = |e: RequestError| io::Error::new(io::ErrorKind::QuotaExceeded, e);
        let id = state.connection.request(request, now).map_err(quota)?;
        drop(state);
        self.shared.touch();
        Ok(SubStream { shared: self.shared.clone(), id })
    }
}

impl SubStream {
    /// Number of the stream.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Reads in order; 0 is the end. `TimedOut` when nothing came until `deadline`.
    pub fn read_until(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        match self.shared.read_until(self.id, buffer, deadline)? {
            Blocking::Octets(n) => Ok(n),
            Blocking::PlainTcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl io::Read for SubStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_until(buffer, None)
    }
}

impl Drop for SubStream {
    fn drop(&mut self) {
        self.shared.state.lock().connection.forget(self.id);
        self.shared.touch();
    }
}
