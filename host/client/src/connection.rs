//! One connection and its streams, shared between application threads and the stack thread.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Condvar, Mutex};
use rivulet_transport::Time;
use rivulet_transport::client::{Connection, ConnectionError, Read, TcpHandshake};

use crate::mailbox::Mailbox;
use crate::port::LocalPort;

/// Id of the stream that every connection starts with.
pub(crate) const MAIN: u16 = 0;

/// A permit for one connection or stream; the stack has a limited number. Dropping the last clone
/// of a permit returns it.
pub(crate) type Permit = Arc<()>;

/// How a connection, or one stream, ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is open, or being opened.
    Open,
    /// Both sides closed it in order.
    Closed,
    /// It failed.
    Failed(ConnectionError),
    /// The application aborted it.
    Aborted,
    /// The server supports only plain TCP.
    PlainTcp(TcpHandshake),
}

impl Ending {
    /// The error that a read or write returns, if any.
    pub fn error(&self) -> Option<io::Error> {
        let kind = match self {
            Ending::Open | Ending::Closed | Ending::PlainTcp(_) => return None,
            Ending::Aborted => return Some(io::ErrorKind::ConnectionAborted.into()),
            Ending::Failed(ConnectionError::Unreachable | ConnectionError::TimedOut) => {
                io::ErrorKind::TimedOut
            }
            Ending::Failed(ConnectionError::Reset) => io::ErrorKind::ConnectionRefused,
            Ending::Failed(_) => io::ErrorKind::ConnectionReset,
        };
        let Ending::Failed(e) = self else { return None };
        Some(io::Error::new(kind, e.clone()))
    }
}

/// State of one stream that the application holds, with its waiting threads and tasks.
pub(crate) struct Line {
    /// Notified at every event of the stream or of the connection. Threads then check their
    /// condition again.
    pub changed: Arc<Condvar>,
    /// The tasks that wait to read and to write. There is one of each: the last waker replaces
    /// earlier ones.
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
    /// How this stream ended, independent of the connection.
    pub ending: Ending,
    /// Bytes written before the server confirmed Rivulet. They are sent again if it supports only
    /// plain TCP.
    pub early: Vec<u8>,
    /// `early` is being sent again over plain TCP, so later writes wait.
    pub resending: bool,
    /// The application shut down writing.
    pub finished: bool,
}

impl Line {
    fn new(changed: Arc<Condvar>) -> Line {
        Line {
            changed,
            reader: None,
            writer: None,
            ending: Ending::Open,
            early: Vec::new(),
            resending: false,
            finished: false,
        }
    }

    /// Wakes all waiting threads and tasks; each checks whether the event concerns it.
    pub fn wake(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
        self.changed.notify_all();
    }
}

/// The connection and its streams.
pub(crate) struct State {
    pub connection: Connection,
    pub connected: bool,
    pub ending: Ending,
    pub lines: BTreeMap<u16, Line>,
    /// Set while no stream exists: the connection closes at this time unless another stream is
    /// opened.
    pub spare_until: Option<Time>,
    /// Streams may be added later, so the connection may stay open without any (`spare_until`).
    shared: bool,
}

/// Shared between the application's handles and the stack thread.
pub(crate) struct Shared {
    pub id: u32,
    /// The local address at the opening; a connection can [move](crate::roam).
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub state: Mutex<State>,
    pub mailbox: Arc<Mailbox>,
    /// Held as long as anything may still be sent from this port.
    pub port: Mutex<Option<LocalPort>>,
    _permit: Permit,
}

impl Shared {
    /// Makes a connection with one stream, [`MAIN`]. With `shared`, further streams can be opened
    /// on it, and it stays open for a while without any.
    pub fn new(
        id: u32,
        mailbox: Arc<Mailbox>,
        connection: Connection,
        port: LocalPort,
        permit: Permit,
        shared: bool,
    ) -> Shared {
        let remote = connection.remote();
        let lines = BTreeMap::new();
        let state =
            State { connection, connected: false, ending: Ending::Open, lines, spare_until: None, shared };
        let local = port.address();
        let (state, port) = (Mutex::new(state), Mutex::new(Some(port)));
        Shared { id, local, remote, state, mailbox, port, _permit: permit }
    }

    /// Wakes the stack thread because there is something to send.
    pub fn touch(&self) {
        self.mailbox.touch(self.id);
    }
}

impl State {
    /// Registers a stream that the application now holds.
    pub fn enter(&mut self, stream: u16, changed: Arc<Condvar>) {
        self.spare_until = None;
        self.lines.insert(stream, Line::new(changed));
    }

    /// Opens a further stream. `None` if the connection has ended or no longer makes progress, or
    /// has no stream id left.
    pub fn join(&mut self, now: Time, changed: Arc<Condvar>) -> Option<u16> {
        if self.ending != Ending::Open || !self.connection.is_lively(now) {
            return None;
        }
        let stream = self.connection.stream().ok()?;
        self.enter(stream, changed);
        Some(stream)
    }

    /// Aborts a stream. Threads that wait for it get `ConnectionAborted`.
    pub fn abort(&mut self, stream: u16, now: Time) {
        self.end(stream, Ending::Aborted, now);
    }

    /// Fails one stream; the others continue.
    pub fn fail(&mut self, stream: u16, error: ConnectionError, now: Time) {
        self.end(stream, Ending::Failed(error), now);
    }

    /// Ends a stream. After the last one the connection closes, at once or when its window would no
    /// longer help a new stream.
    fn end(&mut self, stream: u16, ending: Ending, now: Time) {
        let Some(line) = self.lines.get_mut(&stream) else { return };
        let open = line.ending == Ending::Open;
        if open {
            line.ending = ending;
        }
        line.wake();
        self.connection.forget(stream);
        if open && !self.is_used() {
            self.spare_until = self.connection.window_lasts().filter(|until| self.shared && *until > now);
            if self.spare_until.is_none() {
                self.connection.close(now);
            }
        }
    }

    /// Forgets a stream because the application dropped it.
    pub fn leave(&mut self, stream: u16, now: Time) {
        self.abort(stream, now);
        self.lines.remove(&stream);
    }

    /// Whether any open stream is held.
    pub fn is_used(&self) -> bool {
        self.lines.values().any(|line| line.ending == Ending::Open)
    }

    /// The error of the stream, or else of the connection.
    pub fn error(&self, stream: u16) -> Option<io::Error> {
        let alone = self.lines.get(&stream).and_then(|line| line.ending.error());
        alone.or_else(|| self.ending.error())
    }

    /// Bytes read; `Ok(Some(0))` at the end of the stream, `Ok(None)` if none have arrived yet.
    pub fn try_read(&mut self, stream: u16, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        if let Some(e) = self.lines.get(&stream).and_then(|line| line.ending.error()) {
            return Err(e);
        }
        match self.connection.read(stream, buffer) {
            Read::Bytes(n) => Ok(Some(n)),
            Read::End => Ok(Some(0)),
            Read::Blocked => match (self.ending.error(), &self.ending) {
                (Some(e), _) => Err(e),
                (None, Ending::Closed) => Ok(Some(0)),
                (None, _) => Ok(None),
            },
        }
    }

    /// Bytes accepted for sending; `Ok(None)` if there is no room yet.
    pub fn try_write(&mut self, stream: u16, data: &[u8], now: Time) -> io::Result<Option<usize>> {
        if let Some(e) = self.error(stream) {
            return Err(e);
        }
        let Some(line) = self.lines.get_mut(&stream) else { return Err(io::ErrorKind::BrokenPipe.into()) };
        if self.ending == Ending::Closed || line.finished {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.connection.write(stream, data, now) {
            0 => Ok(None),
            n => {
                if !self.connected {
                    // The send buffer bounds this: it is not drained before the server has
                    // answered.
                    line.early.extend_from_slice(&data[..n]);
                }
                Ok(Some(n))
            }
        }
    }

    /// Records how the connection ended (the first call counts) and wakes all that wait for its
    /// streams.
    pub fn finish_with(&mut self, ending: Ending) {
        if self.ending == Ending::Open {
            self.ending = ending;
        }
        self.lines.values_mut().for_each(Line::wake);
    }
}
