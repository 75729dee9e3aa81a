//! Classifies descriptors: one of the stack's, by its name; a TCP socket that may still connect; or
//! neither. Preserves errno.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use rivulet_handoff::Name;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_protocol};
use rustix::net::{getpeername, ipproto};

/// Descriptors below this number can be cached as non-sockets.
const KNOWN: usize = 1 << 16;

/// One bit for each. A bit may be stale after a close: then SIGPIPE comes one write too early.
static PLAIN: [AtomicU64; KNOWN / 64] = [const { AtomicU64::new(0) }; KNOWN / 64];

/// Borrows a descriptor number of the program; the kernel reports whether it is open.
pub fn borrowed<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: the program keeps it open during the call, or calls on it return EBADF.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Whether a descriptor came from the stack.
pub fn ours(fd: c_int) -> bool {
    peer_of(fd).is_some()
}

/// The peer address that a descriptor of the stack represents.
pub fn peer_of(fd: c_int) -> Option<SocketAddr> {
    Some(Name::of_peer(borrowed(fd)?)?.address)
}

/// The local address that a descriptor of the stack represents.
pub fn local_of(fd: c_int) -> Option<SocketAddr> {
    Some(Name::of(borrowed(fd)?)?.address)
}

/// The connection number of a descriptor of the stack.
pub fn id_of_socket(fd: c_int) -> Option<u64> {
    Some(Name::of(borrowed(fd)?)?.id)
}

/// Whether the stack handles a connection from this socket to `target`.
pub fn wants(fd: c_int, target: &SocketAddr) -> bool {
    borrowed(fd).is_some_and(|fd| rivulet_handoff::wants(fd, target))
}

/// Whether the descriptor is non-blocking.
pub fn is_nonblocking(fd: c_int) -> bool {
    borrowed(fd).and_then(|fd| fcntl_getfl(fd).ok()).is_some_and(|flags| flags.contains(OFlags::NONBLOCK))
}

/// Whether the descriptor is a TCP socket that is not connected.
pub fn is_unconnected_tcp(fd: c_int) -> bool {
    borrowed(fd).is_some_and(|fd| {
        socket_protocol(fd) == Ok(Some(ipproto::TCP))
            && socket_acceptconn(fd) == Ok(false)
            && getpeername(fd).is_err_and(|e| e == Errno::NOTCONN)
    })
}

fn word(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((PLAIN.get(fd / 64)?, 1 << (fd % 64)))
}

/// Whether the descriptor is cached as a non-socket.
pub fn is_plain(fd: c_int) -> bool {
    word(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Caches a descriptor as a non-socket.
pub fn note_plain(fd: c_int) {
    if let Some((word, bit)) = word(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Removes a descriptor from the cache of non-sockets.
pub fn note_socket(fd: c_int) {
    if let Some((word, bit)) = word(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}
