//! What a descriptor is: one of the stack's, by the names of its ends, a TCP socket that may still be connected, or none.
//! Nothing here touches errno.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::c_int;
use rivulet_handoff::Name;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_acceptconn, socket_protocol};
use rustix::net::{getpeername, ipproto};

/// Descriptors of which it is remembered that they were no sockets.
const KNOWN: usize = 1 << 16;

/// A bit for each. One may stand for a descriptor that was closed meanwhile: then SIGPIPE comes a write too early.
static PLAIN: [AtomicU64; KNOWN / 64] = [const { AtomicU64::new(0) }; KNOWN / 64];

/// A number that the program gave. Whether anything is open there the kernel says.
pub fn borrowed<'a>(fd: c_int) -> Option<BorrowedFd<'a>> {
    // SAFETY: it is the program's for as long as the call lasts, or closed, and then calls give EBADF.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// True for a descriptor that came from the stack.
pub fn ours(fd: c_int) -> bool {
    peer_of(fd).is_some()
}

/// The peer that a descriptor of the stack stands for.
pub fn peer_of(fd: c_int) -> Option<SocketAddr> {
    Some(Name::of_peer(borrowed(fd)?)?.address)
}

/// The local address that a descriptor of the stack stands for.
pub fn local_of(fd: c_int) -> Option<SocketAddr> {
    Some(Name::of(borrowed(fd)?)?.address)
}

/// The number of the connection that a descriptor of the stack stands for.
pub fn id_of_socket(fd: c_int) -> Option<u64> {
    Some(Name::of(borrowed(fd)?)?.id)
}

/// True if the stack is to have this connection.
pub fn wants(fd: c_int, target: &SocketAddr) -> bool {
    borrowed(fd).is_some_and(|fd| rivulet_handoff::wants(fd, target))
}

/// Whether calls on this descriptor do not wait.
pub fn is_nonblocking(fd: c_int) -> bool {
    borrowed(fd).and_then(|fd| fcntl_getfl(fd).ok()).is_some_and(|flags| flags.contains(OFlags::NONBLOCK))
}

/// A TCP socket that connect(2) may be called on.
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

/// Known to be no socket.
pub fn is_plain(fd: c_int) -> bool {
    word(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// A descriptor is no socket.
pub fn note_plain(fd: c_int) {
    if let Some((word, bit)) = word(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A descriptor is a socket from now on.
pub fn note_socket(fd: c_int) {
    if let Some((word, bit)) = word(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}
