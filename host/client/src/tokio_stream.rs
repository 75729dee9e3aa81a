//! A stream for tasks: tokio's `AsyncRead` and `AsyncWrite`.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rivulet_transport::client::Statistics;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::Ending;
use crate::error::ConnectError;
use crate::stack::Stack;
use crate::stream::Stream;

/// A [`Stream`] for tokio tasks.
///
/// If the server supports only plain TCP, reads and writes return `Unsupported`. The task can then
/// open a [`tokio::net::TcpStream`]; the blocking [`Stream`] falls back to plain TCP itself.
pub struct AsyncStream {
    inner: Arc<Stream>,
}

impl Stack {
    /// As [`connect`](Stack::connect), without blocking the task during neighbour discovery.
    pub async fn connect_async(&self, remote: SocketAddr) -> Result<AsyncStream, ConnectError> {
        let stack = self.clone();
        match tokio::task::spawn_blocking(move || stack.connect(remote)).await {
            Ok(stream) => stream.map(AsyncStream::from),
            Err(_) => Err(ConnectError::Ended),
        }
    }
}

impl From<Stream> for AsyncStream {
    fn from(stream: Stream) -> AsyncStream {
        AsyncStream { inner: Arc::new(stream) }
    }
}

impl AsyncStream {
    /// Our address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    /// Counters of the whole connection.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.inner.statistics()
    }
}

/// The error for a server that supports only plain TCP.
fn plain() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the server speaks plain TCP only")
}

/// Stores the waker of the current task in place of an earlier one (the contract of `poll_read` and
/// `poll_write`).
fn note(place: &mut Option<Waker>, waker: &Waker) {
    match place {
        Some(there) => there.clone_from(waker),
        None => *place = Some(waker.clone()),
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (shared, stream) = (self.inner.shared(), self.inner.end.id);
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut state = shared.state.lock();
        if let Ending::PlainTcp(_) = state.ending {
            return Poll::Ready(Err(plain()));
        }
        match state.try_read(stream, into.initialize_unfilled())? {
            Some(n) => {
                drop(state);
                into.advance(n);
                shared.touch();
                Poll::Ready(Ok(()))
            }
            None => {
                // Events are reported under the same lock, so none is missed.
                if let Some(line) = state.lines.get_mut(&stream) {
                    note(&mut line.reader, context.waker());
                }
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let (shared, stream) = (self.inner.shared(), self.inner.end.id);
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = shared.state.lock();
        if let Ending::PlainTcp(_) = state.ending {
            return Poll::Ready(Err(plain()));
        }
        match state.try_write(stream, data, shared.mailbox.now())? {
            Some(n) => {
                drop(state);
                shared.touch();
                Poll::Ready(Ok(n))
            }
            None => {
                if let Some(line) = state.lines.get_mut(&stream) {
                    note(&mut line.writer, context.waker());
                }
                Poll::Pending
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.finish();
        Poll::Ready(Ok(()))
    }
}
