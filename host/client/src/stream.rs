//! A stream of a connection, used like a blocking TCP socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_transport::client::Statistics;

use crate::connection::{Ending, Shared};
use crate::core::Core;
use crate::end::{Blocking, End};
use crate::fallback;

/// Interval at which a blocking connect calls `wanted`.
const STILL_WANTED: Duration = Duration::from_millis(100);

/// A reliable byte stream, like a `TcpStream`. Reads and writes block; tokio tasks use
/// `AsyncStream` (feature `tokio`).
///
/// Streams of one stack to one service share one connection, unless they are
/// [separate](crate::Stack::separate). They share its window evenly, and none waits for another.
/// Each is closed separately; the connection closes when its window would no longer help a new
/// stream.
pub struct Stream {
    pub(crate) end: Arc<End>,
    /// Keeps the stack thread running.
    pub(crate) core: Arc<Core>,
}

impl Stream {
    pub(crate) fn new(end: End, core: Arc<Core>) -> Stream {
        Stream { end: Arc::new(end), core }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.end.shared
    }

    /// The peer's address.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.shared().remote
    }

    /// Our address; the same for all streams of a connection. It changes when this machine loses the address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared().state.lock().connection.local()
    }

    /// Sends the SYN without data, for protocols in which the server sends first, and waits until
    /// the server answers, `timeout` at most. On an existing connection the server has answered
    /// already.
    pub fn connect_now(&self, timeout: Duration) -> io::Result<()> {
        self.connect_while(timeout, || true)
    }

    /// As [`connect_now`](Self::connect_now), but returns `Interrupted` once `wanted` returns
    /// false. `wanted` is called ten times a second.
    pub fn connect_while(&self, timeout: Duration, wanted: impl Fn() -> bool) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared().state.lock();
        state.connection.connect(self.shared().mailbox.now());
        self.shared().touch();
        loop {
            if let Some(e) = state.error(self.end.id) {
                return Err(e);
            }
            if state.connected || state.ending != Ending::Open {
                return Ok(());
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if self.end.wait(&mut state, Some(deadline.min(now + STILL_WANTED))).is_err() && !wanted() {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }

    /// Sends the SYN, without data if none was written, for protocols in which the server sends
    /// first.
    pub fn open_silently(&self) {
        self.shared().state.lock().connection.connect(self.shared().mailbox.now());
        self.shared().touch();
    }

    /// Ends writing, as `shutdown(SHUT_WR)` does.
    pub fn finish(&self) {
        let mut state = self.shared().state.lock();
        let Some(line) = state.lines.get_mut(&self.end.id) else { return };
        line.finished = true;
        if let Some(plain) = self.end.plain.get() {
            // While early bytes are being sent again, the sending thread shuts down after them.
            if !line.resending {
                let _ = plain.shutdown(std::net::Shutdown::Write);
            }
            return;
        }
        state.connection.finish(self.end.id);
        drop(state);
        self.shared().touch();
    }

    /// Ends the stream at once. Threads that wait on it get `ConnectionAborted`.
    pub fn abort(&self) {
        self.shared().state.lock().abort(self.end.id, self.shared().mailbox.now());
        if let Some(plain) = self.end.plain.get() {
            let _ = plain.shutdown(std::net::Shutdown::Both);
        }
        self.shared().touch();
    }

    /// Counters of the whole connection.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shared().state.lock().connection.statistics()
    }

    /// Smoothed round-trip time, if one was measured.
    #[must_use]
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.shared().state.lock().connection.smoothed_rtt().map(Duration::from_micros)
    }

    /// True if the peer supports only plain TCP.
    #[must_use]
    pub fn is_plain_tcp(&self) -> bool {
        matches!(self.shared().state.lock().ending, Ending::PlainTcp(_))
    }

    /// As `Read::read`, but returns `TimedOut` at `deadline`.
    pub fn read_until(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        match self.end.read_until(buffer, deadline)? {
            Blocking::Bytes(n) => Ok(n),
            Blocking::PlainTcp(handshake) => {
                let mut plain = fallback::plain(&self.end, &handshake)?;
                loop {
                    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
                    plain.set_read_timeout(left.map(|left| left.max(Duration::from_millis(1))))?;
                    match io::Read::read(&mut plain, buffer) {
                        // A socket with a timeout also returns EINTR when the process was frozen or
                        // stopped.
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        done => return done,
                    }
                }
            }
        }
    }

    /// Bytes written that the server has not consumed yet, plus one for the end if
    /// [`finish`](Self::finish) was called. 0 for plain TCP, where this is unknown, and for a
    /// connection that is over.
    #[must_use]
    pub fn unconsumed(&self) -> usize {
        let state = self.shared().state.lock();
        if state.ending == Ending::Open { state.connection.unconsumed(self.end.id) } else { 0 }
    }

    /// Waits until the server has consumed all that was written, and the end if
    /// [`finish`](Self::finish) was called, for `timeout` at most. Returns false if it has not.
    /// Dropping a stream discards bytes not yet consumed.
    pub fn settle(&self, timeout: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared().state.lock();
        loop {
            if let Some(e) = state.error(self.end.id) {
                return Err(e);
            }
            if let Ending::PlainTcp(handshake) = state.ending {
                drop(state);
                // The kernel now has the bytes and delivers them.
                return fallback::plain(&self.end, &handshake).map(|_| true);
            }
            if state.ending != Ending::Open || state.connection.unconsumed(self.end.id) == 0 {
                return Ok(true);
            }
            if self.end.wait(&mut state, Some(deadline)).is_err() {
                return Ok(false);
            }
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
        let mut state = self.shared().state.lock();
        loop {
            if let Ending::PlainTcp(handshake) = state.ending {
                drop(state);
                let mut plain = fallback::for_writing(&self.end, &handshake)?;
                return io::Write::write(&mut plain, data);
            }
            if let Some(n) = state.try_write(self.end.id, data, self.shared().mailbox.now())? {
                drop(state);
                self.shared().touch();
                return Ok(n);
            }
            self.end.wait(&mut state, None)?;
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
