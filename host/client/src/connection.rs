//! One connection and its streams as the application's threads and the stack thread share them.

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

/// The stream that a connection begins with.
pub(crate) const MAIN: u16 = 0;

/// A place among those that a stack carries, connections and streams; free again when nobody has it any more.
pub(crate) type Place = Arc<()>;

/// What became of a connection as a whole, or of a stream alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It works, or is being opened.
    Open,
    /// It ended as it should.
    Closed,
    /// It failed.
    Failed(ConnectionError),
    /// The application gave it up.
    Aborted,
    /// The server speaks plain TCP only.
    PlainTcp(TcpHandshake),
}

impl Ending {
    /// What a read or write gets, if anything.
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

/// A stream that somebody has, and who waits for it.
pub(crate) struct Line {
    /// Notified at every event of the stream or of the whole connection; threads look again at what they wait for.
    pub changed: Arc<Condvar>,
    /// The tasks that wait to read and to write: one each, and only its last waker counts.
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
    /// What became of it alone.
    pub ending: Ending,
    /// What was written before the server was known to speak Rivulet, in case it does not.
    pub early: Vec<u8>,
    /// That is being sent again, by plain TCP: what is written later waits.
    pub resending: bool,
    /// Nothing more is written.
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

    /// Wakes everybody who waits for it; each looks for himself whether it concerns him.
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
    /// Nobody has a stream, and until then another may be opened.
    pub spare_until: Option<Time>,
    /// It may wait for that at all.
    shared: bool,
}

/// Shared between the application's handles and the stack thread.
pub(crate) struct Shared {
    pub id: u32,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub state: Mutex<State>,
    pub mailbox: Arc<Mailbox>,
    /// Held as long as anybody may still send from it.
    pub port: Mutex<Option<LocalPort>>,
    _place: Place,
}

impl Shared {
    /// A connection of one stream, [`MAIN`]. `shared`: others may be opened on it, also when nobody has one for a while.
    pub fn new(
        id: u32,
        mailbox: Arc<Mailbox>,
        connection: Connection,
        port: LocalPort,
        place: Place,
        shared: bool,
    ) -> Shared {
        let remote = connection.remote();
        let lines = BTreeMap::new();
        let state =
            State { connection, connected: false, ending: Ending::Open, lines, spare_until: None, shared };
        let local = port.address();
        let (state, port) = (Mutex::new(state), Mutex::new(Some(port)));
        Shared { id, local, remote, state, mailbox, port, _place: place }
    }

    /// Tells the stack thread that there is something to send.
    pub fn touch(&self) {
        self.mailbox.touch(self.id);
    }
}

impl State {
    /// Somebody has this stream from now on.
    pub fn enter(&mut self, stream: u16, changed: Arc<Condvar>) {
        self.spare_until = None;
        self.lines.insert(stream, Line::new(changed));
    }

    /// A further stream, if the connection is good for one.
    pub fn join(&mut self, now: Time, changed: Arc<Condvar>) -> Option<u16> {
        if self.ending != Ending::Open || !self.connection.is_lively(now) {
            return None;
        }
        let stream = self.connection.stream().ok()?;
        self.enter(stream, changed);
        Some(stream)
    }

    /// A stream is given up; whoever still waits for it gets `ConnectionAborted`.
    pub fn abort(&mut self, stream: u16, now: Time) {
        self.end(stream, Ending::Aborted, now);
    }

    /// A stream failed, and no other.
    pub fn fail(&mut self, stream: u16, error: ConnectionError, now: Time) {
        self.end(stream, Ending::Failed(error), now);
    }

    /// With the last stream the connection ends, once its window is of no use any more to one that might follow.
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

    /// Nobody has this stream any more.
    pub fn leave(&mut self, stream: u16, now: Time) {
        self.abort(stream, now);
        self.lines.remove(&stream);
    }

    /// Whether somebody has a stream that works.
    pub fn is_used(&self) -> bool {
        self.lines.values().any(|line| line.ending == Ending::Open)
    }

    /// What became of a stream, if there is anything to say: alone, or with the connection.
    pub fn error(&self, stream: u16) -> Option<io::Error> {
        let alone = self.lines.get(&stream).and_then(|line| line.ending.error());
        alone.or_else(|| self.ending.error())
    }

    /// Octets that are at hand, `Ok(Some(0))` at the end of the stream, `Ok(None)` if there is nothing yet.
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

    /// Octets that were taken, `Ok(None)` if there is no room yet.
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
                    // Bounded by the send buffer, which is not emptied before the server has answered.
                    line.early.extend_from_slice(&data[..n]);
                }
                Ok(Some(n))
            }
        }
    }

    /// Notes how the connection ended; the first ending stands. All who wait for any of its streams are woken.
    pub fn finish_with(&mut self, ending: Ending) {
        if self.ending == Ending::Open {
            self.ending = ending;
        }
        self.lines.values_mut().for_each(Line::wake);
    }
}
