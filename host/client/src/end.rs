//! The application's end of one stream.

use std::io;
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::{Condvar, MutexGuard};
use rivulet_transport::client::TcpHandshake;

use crate::connection::{Ending, MAIN, Permit, Shared, State};

/// The application's hold on one stream; dropping it releases the stream.
pub(crate) struct End {
    pub shared: Arc<Shared>,
    /// Number of the stream.
    pub id: u16,
    /// The kernel's socket, once the server answered with plain TCP.
    pub plain: OnceLock<TcpStream>,
    changed: Arc<Condvar>,
    /// The permit of a stream that is not the connection's first one.
    _permit: Option<Permit>,
}

/// Result of a blocking call.
pub(crate) enum Blocking {
    /// This many bytes were read.
    Bytes(usize),
    /// The server supports only plain TCP, so the caller must use the kernel's socket.
    PlainTcp(TcpHandshake),
}

impl End {
    /// Takes the stream that the connection starts with.
    pub fn first(shared: Arc<Shared>) -> End {
        let changed = Arc::<Condvar>::default();
        shared.state.lock().enter(MAIN, changed.clone());
        End { shared, id: MAIN, plain: OnceLock::new(), changed, _permit: None }
    }

    /// Opens a further stream, if the connection allows one.
    pub fn join(shared: Arc<Shared>, permit: Permit) -> Option<End> {
        let changed = Arc::<Condvar>::default();
        let id = shared.state.lock().join(shared.mailbox.now(), changed.clone())?;
        Some(End { shared, id, plain: OnceLock::new(), changed, _permit: Some(permit) })
    }

    /// Takes a stream that the connection has just opened. `state` is the state of `shared`.
    pub fn entered(shared: &Arc<Shared>, state: &mut State, id: u16) -> End {
        let changed = Arc::<Condvar>::default();
        state.enter(id, changed.clone());
        End { shared: shared.clone(), id, plain: OnceLock::new(), changed, _permit: None }
    }

    /// Waits for `state` to change; `TimedOut` at `deadline`.
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

    /// Wakes the threads that wait for the stream.
    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Reads in order and blocks until bytes arrive; 0 at the end of the stream.
    pub fn read_until(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<Blocking> {
        if buffer.is_empty() {
            return Ok(Blocking::Bytes(0));
        }
        let mut state = self.shared.state.lock();
        loop {
            if let Ending::PlainTcp(handshake) = state.ending {
                return Ok(Blocking::PlainTcp(handshake));
            }
            if let Some(n) = state.try_read(self.id, buffer)? {
                drop(state);
                // Reading makes room, so the connection may be able to request more.
                self.shared.touch();
                return Ok(Blocking::Bytes(n));
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
