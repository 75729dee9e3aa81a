//! A connection's stream 0 with the face of an ordinary blocking socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use rivulet_transport::Time;
use rivulet_transport::client::{Read, Statistics};

use crate::connection::{Ending, Shared, State};
use crate::fallback;
use crate::stack::Stack;

/// The stream that an ordinary socket sees.
const MAIN: u16 = 0;

/// A connection. Reading and writing block; tasks of tokio have `AsyncStream` (feature `tokio`).
pub struct Stream {
    pub(crate) shared: Arc<Shared>,
    /// Keeps the thread alive.
    _stack: Stack,
}

impl Stream {
    pub(crate) fn new(shared: Arc<Shared>, stack: Stack) -> Stream {
        Stream { shared, _stack: stack }
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.shared.remote
    }

    /// Our address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared.local
    }

    /// Sends the SYN without data, for protocols in which the server speaks first, and waits until the
    /// server answers, `timeout` at most.
    pub fn connect_now(&self, timeout: Duration) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.state.lock();
        state.connection.connect(self.shared.mailbox.now());
        self.shared.touch();
        loop {
            if let Some(e) = state.ending.error() {
                return Err(e);
            }
            if state.connected || state.ending != Ending::Open {
                return Ok(());
            }
            if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Sends the SYN without data if nothing was written yet, for protocols in which the server speaks first.
    pub fn open_silently(&self) {
        self.shared.state.lock().connection.connect(self.shared.mailbox.now());
        self.shared.touch();
    }

    /// Says that nothing more is written (what `shutdown(SHUT_WR)` does).
    pub fn finish(&self) {
        if let Some(plain) = self.shared.plain.get() {
            let _ = plain.shutdown(std::net::Shutdown::Write);
            return;
        }
        let mut state = self.shared.state.lock();
        state.finished = true;
        state.connection.finish(MAIN);
        drop(state);
        self.shared.touch();
    }

    /// Ends the connection at once; whoever waits on it gets `ConnectionAborted`.
    pub fn abort(&self) {
        let mut state = self.shared.state.lock();
        state.finish_with(Ending::Aborted);
        state.connection.close(self.shared.mailbox.now());
        state.wake_all();
        self.shared.changed.notify_all();
        drop(state);
        if let Some(plain) = self.shared.plain.get() {
            let _ = plain.shutdown(std::net::Shutdown::Both);
        }
        self.shared.touch();
    }

    /// Counters of this connection.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shared.state.lock().connection.statistics()
    }

    /// Smoothed round-trip time, if one was measured.
    #[must_use]
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.shared.state.lock().connection.smoothed_rtt().map(Duration::from_micros)
    }

    /// True if the peer turned out to speak plain TCP only.
    #[must_use]
    pub fn is_plain_tcp(&self) -> bool {
        matches!(self.shared.state.lock().ending, Ending::PlainTcp(_))
    }

    /// As `Read::read`, with an end to the waiting: `TimedOut`.
    pub fn read_until(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut state = self.shared.state.lock();
        loop {
            if let Ending::PlainTcp(handshake) = state.ending {
                drop(state);
                let mut plain = fallback::plain(&self.shared, &handshake)?;
                let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                plain.set_read_timeout(left.map(|left| left.max(Duration::from_millis(1))))?;
                return io::Read::read(&mut plain, buffer);
            }
            if let Some(n) = try_read(&mut state, MAIN, buffer)? {
                drop(state);
                // Reading makes room, which may allow the connection to ask for more.
                self.shared.touch();
                return Ok(n);
            }
            match deadline {
                None => self.shared.changed.wait(&mut state),
                Some(at) => {
                    if self.shared.changed.wait_until(&mut state, at).timed_out() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }
}

/// Octets that are at hand, `Ok(Some(0))` at the end of the stream, `Ok(None)` if there is nothing yet.
pub(crate) fn try_read(
    state: &mut MutexGuard<'_, State>,
    stream: u16,
    buffer: &mut [u8],
) -> io::Result<Option<usize>> {
    match state.connection.read(stream, buffer) {
        Read::Bytes(n) => Ok(Some(n)),
        Read::End => Ok(Some(0)),
        Read::Blocked => match (state.ending.error(), &state.ending) {
            (Some(e), _) => Err(e),
            (None, Ending::Closed) => Ok(Some(0)),
            (None, _) => Ok(None),
        },
    }
}

/// Octets taken, `Ok(None)` if there is no room yet.
pub(crate) fn try_write(
    state: &mut MutexGuard<'_, State>,
    data: &[u8],
    now: Time,
) -> io::Result<Option<usize>> {
    if let Some(e) = state.ending.error() {
        return Err(e);
    }
    if state.ending == Ending::Closed || state.finished {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    match state.connection.write(MAIN, data, now) {
        0 => Ok(None),
        n => {
            if !state.connected {
                // Bounded by the send buffer, which is not emptied before the server has answered.
                state.early.extend_from_slice(&data[..n]);
            }
            Ok(Some(n))
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl io::Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_until(buffer, None)
    }
}

impl io::Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self).write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Write for &Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let mut state = self.shared.state.lock();
        loop {
            if let Ending::PlainTcp(handshake) = state.ending {
                drop(state);
                let mut plain = fallback::plain(&self.shared, &handshake)?;
                return io::Write::write(&mut plain, data);
            }
            if let Some(n) = try_write(&mut state, data, self.shared.mailbox.now())? {
                drop(state);
                self.shared.touch();
                return Ok(n);
            }
            self.shared.changed.wait(&mut state);
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.abandoned = true;
        state.connection.close(self.shared.mailbox.now());
        drop(state);
        self.shared.touch();
    }
}
