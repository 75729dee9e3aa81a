//! The application's end of one stream.

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, MutexGuard};
use rivulet_transport::client::TcpHandshake;

use crate::connection::{Ending, MAIN, Place, Shared, State};

/// A stream as its owner has it; it is left when this is dropped.
pub(crate) struct End {
    pub shared: Arc<Shared>,
    /// Number of the stream.
    pub id: u16,
    /// The kernel's socket once the server turned out to speak plain TCP only.
    pub plain: OnceLock<TcpStream>,
    changed: Arc<Condvar>,
    /// Of a stream that the connection did not begin with.
    _place: Option<Place>,
}

/// What a call that waits came to.
pub(crate) enum Blocking {
    /// So many octets were moved.
    Octets(usize),
    /// The server speaks plain TCP: the kernel's socket is to be asked.
    PlainTcp(TcpHandshake),
}

impl End {
    /// The stream that a connection begins with.
    pub fn first(shared: Arc<Shared>) -> End {
        let changed = Arc::<Condvar>::default();
        shared.state.lock().enter(MAIN, changed.clone());
        End { shared, id: MAIN, plain: OnceLock::new(), changed, _place: None }
    }

    /// A further one, if the connection is good for it.
    pub fn join(shared: Arc<Shared>, place: Place) -> Option<End> {
        let changed = Arc::<Condvar>::default();
        let id = shared.state.lock().join(shared.mailbox.now(), changed.clone())?;
        Some(End { shared, id, plain: OnceLock::new(), changed, _place: Some(place) })
    }

    /// One that the connection has just opened, of whose `state` this is.
    pub fn entered(shared: &Arc<Shared>, state: &mut State, id: u16) -> End {
        let changed = Arc::<Condvar>::default();
        state.enter(id, changed.clone());
        End { shared: shared.clone(), id, plain: OnceLock::new(), changed, _place: None }
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

    /// Wakes whoever waits for the stream.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Reads in order, waiting for something to come; 0 is the end.
    pub fn read_until(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<Blocking> {
        if buffer.is_empty() {
            return Ok(Blocking::Octets(0));
        }
        let mut state = self.shared.state.lock();
        loop {
            if let Ending::PlainTcp(handshake) = state.ending {
                return Ok(Blocking::PlainTcp(handshake));
            }
            if let Some(n) = state.try_read(self.id, buffer)? {
                drop(state);
                // Reading makes room, which may allow the connection to ask for more.
                self.shared.touch();
                return Ok(Blocking::Octets(n));
            }
            self.wait(&mut state, deadline)?;
        }
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.shared.state.lock().leave(self.id, self.shared.mailbox.now());
        self.shared.touch();
    }
}
