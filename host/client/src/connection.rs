//! One connection as the application's threads and the stack thread share it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rivulet_transport::Time;
use rivulet_transport::client::{Connection, ConnectionError, Read, TcpHandshake};

use crate::mailbox::Mailbox;
use crate::port::LocalPort;

/// The stream that an ordinary socket sees.
pub(crate) const MAIN: u16 = 0;

/// A connection's place among those that a stack carries; free again when nobody has it any more.
pub(crate) type Place = Arc<()>;

/// What became of a connection as a whole.
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

/// The connection and who waits for it.
pub(crate) struct State {
    pub connection: Connection,
    pub connected: bool,
    pub ending: Ending,
    /// The tasks that wait to read and to write: one each, and only its last waker counts.
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
    /// The last stream is gone; the stack thread may forget the connection once it is closed.
    pub abandoned: bool,
    /// What was written before the server was known to speak Rivulet, in case it does not.
    pub early: Vec<u8>,
    /// That is being sent again, by plain TCP: what is written later waits.
    pub resending: bool,
    /// Nothing more is written.
    pub finished: bool,
}

/// Shared between the application's handles and the stack thread.
pub(crate) struct Shared {
    pub id: u32,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    pub state: Mutex<State>,
    /// Notified at every event; threads look again at what they wait for.
    pub changed: Condvar,
    pub mailbox: Arc<Mailbox>,
    /// The kernel's socket once the server turned out to speak plain TCP only.
    pub plain: OnceLock<TcpStream>,
    /// Held as long as anybody may still send from it.
    pub port: Mutex<Option<LocalPort>>,
    _place: Place,
}

impl Shared {
    pub fn new(
        id: u32,
        mailbox: Arc<Mailbox>,
        connection: Connection,
        port: LocalPort,
        remote: SocketAddr,
        place: Place,
    ) -> Shared {
        let state = State {
            connection,
            connected: false,
            ending: Ending::Open,
            reader: None,
            writer: None,
            abandoned: false,
            early: Vec::new(),
            resending: false,
            finished: false,
        };
        Shared {
            id,
            local: port.address(),
            remote,
            state: Mutex::new(state),
            changed: Condvar::new(),
            mailbox,
            plain: OnceLock::new(),
            port: Mutex::new(Some(port)),
            _place: place,
        }
    }

    /// Tells the stack thread that there is something to send.
    pub fn touch(&self) {
        self.mailbox.touch(self.id);
    }

    /// Waits for `state` to change; `TimedOut` when that did not happen until `deadline`.
    pub fn wait(&self, state: &mut MutexGuard<'_, State>, deadline: Option<Instant>) -> io::Result<()> {
        match deadline {
            None => self.changed.wait(state),
            Some(at) => {
                if self.changed.wait_until(state, at).timed_out() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
        }
        Ok(())
    }

    /// Reads a stream in order, waiting for something to come; 0 is the end.
    pub fn read_until(
        &self,
        stream: u16,
        buffer: &mut [u8],
        deadline: Option<Instant>,
    ) -> io::Result<Blocking> {
        if buffer.is_empty() {
            return Ok(Blocking::Octets(0));
        }
        let mut state = self.state.lock();
        loop {
            if let Ending::PlainTcp(handshake) = state.ending {
                return Ok(Blocking::PlainTcp(handshake));
            }
            if let Some(n) = state.try_read(stream, buffer)? {
                drop(state);
                // Reading makes room, which may allow the connection to ask for more.
                self.touch();
                return Ok(Blocking::Octets(n));
            }
            self.wait(&mut state, deadline)?;
        }
    }
}

/// What a call that waits came to.
pub(crate) enum Blocking {
    /// So many octets were moved.
    Octets(usize),
    /// The server speaks plain TCP: the kernel's socket is to be asked.
    PlainTcp(TcpHandshake),
}

impl State {
    /// Octets that are at hand, `Ok(Some(0))` at the end of the stream, `Ok(None)` if there is nothing yet.
    pub fn try_read(&mut self, stream: u16, buffer: &mut [u8]) -> io::Result<Option<usize>> {
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

    /// Octets of the main stream that were taken, `Ok(None)` if there is no room yet.
    pub fn try_write(&mut self, data: &[u8], now: Time) -> io::Result<Option<usize>> {
        if let Some(e) = self.ending.error() {
            return Err(e);
        }
        if self.ending == Ending::Closed || self.finished {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        match self.connection.write(MAIN, data, now) {
            0 => Ok(None),
            n => {
                if !self.connected {
                    // Bounded by the send buffer, which is not emptied before the server has answered.
                    self.early.extend_from_slice(&data[..n]);
                }
                Ok(Some(n))
            }
        }
    }

    /// Notes how the connection ended; the first ending stands.
    pub fn finish_with(&mut self, ending: Ending) {
        if self.ending == Ending::Open {
            self.ending = ending;
        }
    }

    /// Wakes everybody who waits; each looks for himself whether it concerns him.
    pub fn wake_all(&mut self) {
        self.reader.take().into_iter().chain(self.writer.take()).for_each(Waker::wake);
    }
}
