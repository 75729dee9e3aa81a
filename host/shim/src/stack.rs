//! Connects through the stack.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use libc::{c_int, sockaddr, socklen_t};
use rivulet_handoff::{ConnectRequest, LEAVE_TO_KERNEL, bound, decode};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_getfd};
use rustix::net::AddressFamily;
use rustix::net::sockopt::{Timeout, socket_domain, socket_timeout};

use crate::fd::{borrowed, id_of_socket, note_socket, peer_of};
use crate::real::errno;
use crate::request::request_connection;
use crate::{epoll, options, pending};

/// Result of [`connect`].
pub enum Outcome {
    /// The descriptor is connected.
    Done,
    /// It failed with this errno.
    Failed(c_int),
    /// There is no stack; the kernel must connect.
    NoStack,
}

/// Requests a connection from the stack and puts it in the place of `fd`, keeping the flags of
/// `fd`.
pub fn connect(fd: c_int, target: SocketAddr) -> Outcome {
    let Some(socket) = borrowed(fd) else { return Outcome::Failed(libc::EBADF) };
    let (Ok(flags), Ok(on_exec)) = (fcntl_getfl(socket), fcntl_getfd(socket)) else {
        return Outcome::Failed(libc::EBADF);
    };
    let six = peer_of(fd)
        .map_or_else(|| socket_domain(socket) == Ok(AddressFamily::INET6), |before| before.is_ipv6());
    let nonblocking = flags.contains(OFlags::NONBLOCK);
    let ask =
        ConnectRequest { peer: target, bound: bound(socket), nonblocking, mapped: six && target.is_ipv4() };
    // `SO_SNDTIMEO` bounds connect(2) too.
    let patience = if nonblocking { None } else { socket_timeout(socket, Timeout::Send).ok().flatten() };
    let mut stopped = 0;
    let mut reply = request_connection(&ask, patience);
    if let Err(why @ (Errno::INTR | Errno::AGAIN)) = reply
        && !nonblocking
    {
        // A signal or SO_SNDTIMEO ends the wait, not the attempt: repeat the request as a
        // non-blocking one.
        stopped = if why == Errno::AGAIN { libc::EINPROGRESS } else { libc::EINTR };
        reply = request_connection(&ConnectRequest { nonblocking: true, ..ask }, None);
    }
    let Ok((errno, end)) = reply else { return Outcome::NoStack };
    if errno == LEAVE_TO_KERNEL {
        return Outcome::NoStack;
    }
    let Some(end) = end.filter(|_| matches!(errno, 0 | libc::EINPROGRESS)) else {
        return Outcome::Failed(if errno == 0 { libc::EIO } else { errno });
    };
    if let Err(errno) = replace(fd, &end, flags, on_exec.contains(FdFlags::CLOEXEC)) {
        return Outcome::Failed(errno);
    }
    if errno == 0 {
        return Outcome::Done;
    }
    // The descriptor becomes writable when the server has answered.
    if let Some(id) = id_of_socket(fd) {
        pending::begin(id);
    }
    Outcome::Failed(if stopped != 0 { stopped } else { errno })
}

/// Replaces `fd` by `end`, with the options that the program had set.
fn replace(fd: c_int, end: &OwnedFd, flags: OFlags, on_exec: bool) -> Result<(), c_int> {
    let async_io = OFlags::from_bits_retain(libc::O_ASYNC as _);
    fcntl_setfl(end, flags & (OFlags::NONBLOCK | async_io)).map_err(Errno::raw_os_error)?;
    let new = end.as_raw_fd();
    if let (Some(id), Some(peer)) = (id_of_socket(new), peer_of(new)) {
        options::carry(fd, new, id, &peer);
    }
    let sets = epoll::leave(fd);
    // SAFETY: plain calls on descriptors that are open; dup3 closes the program's socket.
    let put = unsafe { libc::dup3(new, fd, if on_exec { libc::O_CLOEXEC } else { 0 }) };
    let why = errno();
    sets.rejoin();
    note_socket(fd);
    if put < 0 { Err(why) } else { Ok(()) }
}

/// Reads an Internet address.
///
/// # Safety
/// `address` points to `len` readable bytes, or is null.
pub unsafe fn read_address(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    // Longer than any address: the kernel's EINVAL. The caller may not have this many bytes.
    if address.is_null() || len as usize > size_of::<libc::sockaddr_storage>() {
        return None;
    }
    // SAFETY: the caller's promise.
    decode(unsafe { std::slice::from_raw_parts(address.cast(), len as usize) })
}
