//! Connections being opened in the background (`EINPROGRESS`), and the result of a further
//! connect(2) on them.

use libc::c_int;

use crate::bounded_lock::BoundedLock;
use crate::fd::{id_of_socket, is_nonblocking};
use crate::real::errno;
use crate::request::failure;

/// Largest number of remembered connections; the oldest are dropped. The stack opens fewer at once.
const MAX: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Opening,
    Failed,
}

static ALL: BoundedLock<Vec<(u64, State)>> = BoundedLock::new(Vec::new());

/// Result of connect(2) on a descriptor of the stack.
pub enum Again {
    /// Return this errno, or 0 for the first call after the connection opened.
    Returns(c_int),
    /// The connection failed and its error was returned: another connection may be tried.
    Reconnect,
}

/// Records that a connection is being opened.
pub fn begin(id: u64) {
    put(id, State::Opening);
}

fn put(id: u64, state: State) {
    ALL.with(|all| {
        all.retain(|(of, _)| *of != id);
        if all.len() == MAX {
            all.remove(0);
        }
        all.push((id, state));
    });
}

fn get(id: u64) -> Option<State> {
    ALL.with(|all| all.iter().find(|(of, _)| *of == id).map(|(_, state)| *state)).flatten()
}

/// Handles connect(2) on a descriptor of the stack; `None` for other descriptors.
pub fn again(fd: c_int) -> Option<Again> {
    let id = id_of_socket(fd)?;
    match get(id) {
        None => return Some(Again::Returns(libc::EISCONN)),
        Some(State::Failed) => return Some(Again::Reconnect),
        Some(State::Opening) => {}
    }
    let events = match poll(fd, libc::POLLOUT, if is_nonblocking(fd) { 0 } else { -1 }) {
        Err(errno) => return Some(Again::Returns(errno)),
        Ok(0) => return Some(Again::Returns(libc::EALREADY)),
        Ok(events) => events,
    };
    if events & (libc::POLLERR | libc::POLLHUP) == 0 {
        ALL.with(|all| all.retain(|(of, _)| *of != id));
        return Some(Again::Returns(0));
    }
    put(id, State::Failed);
    Some(match failure(fd) {
        0 => Again::Reconnect,
        errno => Again::Returns(errno),
    })
}

/// Whether a connection counts as open for getpeername(2): opened, and not closed in both
/// directions.
pub fn is_connected(fd: c_int) -> bool {
    match poll(fd, libc::POLLOUT, 0) {
        Err(libc::EBADF) => false,
        Ok(events) if events & libc::POLLHUP != 0 => false,
        // Its buffer is full, or it is still being opened.
        Ok(0) => id_of_socket(fd).and_then(get) != Some(State::Opening),
        _ => true,
    }
}

/// Polls a descriptor for the `wanted` events. Fails with `EBADF` if it is closed.
fn poll(fd: c_int, wanted: libc::c_short, milliseconds: c_int) -> Result<libc::c_short, c_int> {
    let mut entry = libc::pollfd { fd, events: wanted, revents: 0 };
    // SAFETY: poll(2) writes into this one entry, which lives through the call, and checks the descriptor itself.
    let got = unsafe { libc::poll(&raw mut entry, 1, milliseconds) };
    if got < 0 {
        return Err(errno());
    }
    // Another thread may have closed the descriptor: that is not an open connection.
    if entry.revents & libc::POLLNVAL == 0 { Ok(entry.revents) } else { Err(libc::EBADF) }
}

/// The connection's state as in `TCP_INFO`.
pub fn tcp_state(fd: c_int) -> u8 {
    const ESTABLISHED: u8 = 1;
    const SYN_SENT: u8 = 2;
    const CLOSE: u8 = 7;
    const CLOSE_WAIT: u8 = 8;
    let events = poll(fd, libc::POLLOUT | libc::POLLRDHUP, 0);
    if events == Err(libc::EBADF) || events.is_ok_and(|events| events & libc::POLLHUP != 0) {
        CLOSE
    } else if events.is_ok_and(|events| events & libc::POLLRDHUP != 0) {
        CLOSE_WAIT
    } else if is_connected(fd) {
        ESTABLISHED
    } else {
        SYN_SENT
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn closed_descriptor_is_no_open_connection() {
        let (open, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(poll(open.as_raw_fd(), libc::POLLOUT, 0), Ok(libc::POLLOUT));
        // No process has this many descriptors.
        assert_eq!(poll(c_int::MAX, libc::POLLOUT, -1), Err(libc::EBADF));
        assert!(!is_connected(c_int::MAX));
        assert_eq!(tcp_state(c_int::MAX), 7);
    }
}
