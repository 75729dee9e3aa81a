//! Parallel requests on one connection (section 5.2), each on a separate stream.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rivulet_transport::client::RequestError;

use crate::connection::Ending;
use crate::core::Core;
use crate::end::{Blocking, End};
use crate::stream::Stream;

/// The response to one request. All responses of a connection share its window.
pub struct SubStream {
    end: End,
    /// Keeps the stack thread running.
    _core: Arc<Core>,
}

impl Stream {
    /// Sends `request` on a new stream of this connection. Its response can be read independently
    /// of all other data. A connection has at most [`MAX_REQUESTS`](crate::MAX_REQUESTS) such
    /// streams at a time, each until it is dropped, and 65,534 in its lifetime, further connects to
    /// the service included; above these limits it returns `QuotaExceeded`. Returns `Unsupported`
    /// if the server supports only plain TCP.
    pub fn request(&self, request: &[u8]) -> io::Result<SubStream> {
        let shared = self.shared();
        let mut state = shared.state.lock();
        if let Some(e) = state.error(self.end.id) {
            return Err(e);
        }
        if state.ending != Ending::Open {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let now = shared.mailbox.now();
        let quota = |e: RequestError| io::Error::new(io::ErrorKind::QuotaExceeded, e);
        let id = state.connection.request(request, now).map_err(quota)?;
        let end = End::entered(shared, &mut state, id);
        drop(state);
        shared.touch();
        Ok(SubStream { end, _core: self.core.clone() })
    }
}

impl SubStream {
    /// Number of the stream.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.end.id
    }

    /// Reads in order; 0 at the end of the stream. `TimedOut` if no bytes arrive until `deadline`.
    pub fn read_until(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        match self.end.read_until(buffer, deadline)? {
            Blocking::Bytes(n) => Ok(n),
            Blocking::PlainTcp(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl io::Read for SubStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_until(buffer, None)
    }
}
