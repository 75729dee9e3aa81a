//! `LD_PRELOAD` shim: TCP connections of an unmodified program go through the Rivulet stack of
//! `rivulet run`.
//!
//! `connect` on a TCP socket asks the stack for a connection and puts the descriptor that it gets in the
//! place of the program's own. From then on the descriptor is a real one, so read, write, poll, select,
//! epoll, sendfile, dup, fork and exec are the kernel's business; only what would betray a Unix socket is
//! answered here. As with TCP Fast Open (`TCP_FASTOPEN_CONNECT`), the connection is open at once and the
//! first data travels with the SYN; a connection that fails says so to the first read, or to `SO_ERROR`. With
//! `rivulet run --wait` connect fails itself, as TCP's does.
//!
//! Not covered: programs that make system calls without libc (Go, static binaries) and io_uring;
//! a descriptor put into an epoll set before `connect` (it leaves the set, as on close).

mod protocol;
mod reads;
mod real;
mod stack;

use std::net::SocketAddr;

use libc::{c_int, c_void, size_t, sockaddr, socklen_t, ssize_t};

use real::{real, set_errno};
use stack::{ours, peer_of};

/// Replaces connect(2).
///
/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise about `address` and `len`.
    let target = unsafe { stack::read_address(address, len) };
    if ours(fd) {
        return set_errno(libc::EISCONN);
    }
    if let Some(target) = target
        && stack::wants(fd, &target)
    {
        match stack::connect(fd, target) {
            stack::Outcome::Done => return 0,
            stack::Outcome::Failed(errno) => return set_errno(errno),
            stack::Outcome::NoStack => {}
        }
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().connect)(fd, address, len) }
}

/// Replaces getpeername(2).
///
/// # Safety
/// As getpeername(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match stack::peer_of(fd) {
        // SAFETY: the caller's promise about `address` and `len`.
        Some(peer) => unsafe { answer_address(peer, address, len) },
        // SAFETY: the caller's arguments, passed on.
        None => unsafe { (real().getpeername)(fd, address, len) },
    }
}

/// Replaces getsockname(2).
///
/// # Safety
/// As getsockname(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match stack::local_of(fd) {
        // SAFETY: the caller's promise about `address` and `len`.
        Some(local) => unsafe { answer_address(local, address, len) },
        // SAFETY: the caller's arguments, passed on.
        None => unsafe { (real().getsockname)(fd, address, len) },
    }
}

/// # Safety
/// `address` has room for `*len` octets, or both are null.
unsafe fn answer_address(from: SocketAddr, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if len.is_null() || address.is_null() {
        return set_errno(libc::EFAULT);
    }
    let (storage, length) = stack::raw_address(&from);
    // SAFETY: the caller's promise; at most `*len` octets are written, and `storage` has `length`.
    unsafe {
        let room = (*len).min(length) as usize;
        std::ptr::copy_nonoverlapping(storage.as_ptr(), address.cast(), room);
        *len = length;
    }
    0
}

/// Replaces getsockopt(2).
///
/// # Safety
/// As getsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) && !value.is_null() {
        // SAFETY: the caller's arguments, passed on.
        let got = unsafe { (real().getsockopt)(fd, level, name, value, len) };
        let errno = if got == 0 { stack::failure(fd) } else { 0 };
        if errno != 0 {
            // SAFETY: the kernel has just written an int there.
            unsafe { value.cast::<c_int>().write_unaligned(errno) };
        }
        return got;
    }
    if let Some(peer) = stack::suspect(level, name).then(|| peer_of(fd)).flatten() {
        let answer = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => {
                if peer.is_ipv4() {
                    libc::AF_INET
                } else {
                    libc::AF_INET6
                }
            }
            (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => 1,
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => 1400,
            _ => 0,
        };
        if value.is_null() || len.is_null() {
            return set_errno(libc::EFAULT);
        }
        // SAFETY: the caller's promise: `value` has room for `*len` octets. Structures (TCP_INFO) are
        // answered with zeros.
        unsafe {
            std::ptr::write_bytes(value.cast::<u8>(), 0, *len as usize);
            let bytes = answer.to_ne_bytes();
            let room = bytes.len().min(*len as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), room);
            if (*len as usize) > bytes.len() && (level, name) != (libc::IPPROTO_TCP, libc::TCP_INFO) {
                *len = bytes.len() as socklen_t;
            }
        }
        return 0;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().getsockopt)(fd, level, name, value, len) }
}

/// Replaces setsockopt(2): options of TCP and IP mean nothing on the pair and are accepted.
///
/// # Safety
/// As setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if level != libc::SOL_SOCKET && ours(fd) {
        return 0;
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().setsockopt)(fd, level, name, value, len) }
}

/// Replaces sendto(2): an address on a connected socket is ignored as TCP does, and `MSG_FASTOPEN`
/// connects first.
///
/// # Safety
/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    data: *const c_void,
    size: size_t,
    flags: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> ssize_t {
    if address.is_null() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { (real().sendto)(fd, data, size, flags, address, len) };
    }
    if flags & libc::MSG_FASTOPEN != 0 && !ours(fd) {
        // SAFETY: the caller's promise about `address` and `len`.
        let target = unsafe { stack::read_address(address, len) };
        if let Some(target) = target
            && stack::wants(fd, &target)
            && let stack::Outcome::Failed(errno) = stack::connect(fd, target)
        {
            return set_errno(errno) as ssize_t;
        }
    }
    if ours(fd) {
        let flags = flags & !libc::MSG_FASTOPEN;
        // SAFETY: the caller's arguments without the address.
        return unsafe { (real().sendto)(fd, data, size, flags, std::ptr::null(), 0) };
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().sendto)(fd, data, size, flags, address, len) }
}
