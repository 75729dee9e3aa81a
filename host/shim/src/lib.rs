//! `LD_PRELOAD` shim: TCP connections of an unmodified program go through the Rivulet stack of
//! `rivulet run`.
//!
//! `connect` on a TCP socket requests a connection from the stack and replaces the program's socket
//! by the descriptor that it gets, also in epoll sets. That is a real descriptor, so the kernel
//! handles reading, writing, poll, select, epoll, dup, fork and exec; the shim answers only calls
//! that would reveal a Unix socket. As with TCP Fast Open (`TCP_FASTOPEN_CONNECT`), the connection
//! is open at once and the first data travels with the SYN. A failed connection reports its error
//! at the first read or by `SO_ERROR`. With `rivulet run --wait`, connect itself fails, as TCP's
//! does.
//!
//! Not covered: programs that make system calls without libc (Go, static binaries) and io_uring.
//! `docs/hosts.md` lists the remaining differences from TCP.

mod bounded_lock;
mod epoll;
mod fd;
mod options;
mod pending;
mod reads;
mod real;
mod request;
mod stack;
mod writes;

use std::net::SocketAddr;

use libc::{c_int, c_void, sockaddr, socklen_t};

use fd::{local_of, peer_of, wants};
use pending::Again;
use real::{real, set_errno};
use request::failure;

/// Replaces connect(2).
///
/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise about `address` and `len`.
    let target = unsafe { stack::read_address(address, len) };
    let again = pending::again(fd);
    match again {
        Some(Again::Returns(0)) => return 0,
        Some(Again::Returns(errno)) => return set_errno(errno),
        Some(Again::Reconnect) | None => {}
    }
    if let Some(target) = target
        && (again.is_some() || wants(fd, &target))
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
    match peer_of(fd) {
        Some(_) if !pending::is_connected(fd) => set_errno(libc::ENOTCONN),
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
    match local_of(fd) {
        // SAFETY: the caller's promise about `address` and `len`.
        Some(local) => unsafe { answer_address(local, address, len) },
        // SAFETY: the caller's arguments, passed on.
        None => unsafe { (real().getsockname)(fd, address, len) },
    }
}

/// # Safety
/// `address` has room for `*len` bytes, or both are null.
unsafe fn answer_address(from: SocketAddr, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if len.is_null() || address.is_null() {
        return set_errno(libc::EFAULT);
    }
    let (raw, length) = rivulet_handoff::encode(&from);
    // SAFETY: the caller's promise; at most `*len` bytes are written, and `raw` has `length`.
    unsafe {
        let room = (*len as usize).min(length);
        std::ptr::copy_nonoverlapping(raw.as_ptr(), address.cast(), room);
        *len = length as socklen_t;
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
        let errno = if got == 0 { failure(fd) } else { 0 };
        if errno != 0 {
            // SAFETY: the kernel has just written `*len` bytes at `value`.
            unsafe { answer_int(errno, value, len) };
        }
        return got;
    }
    if let Some(peer) = options::suspect(level, name).then(|| peer_of(fd)).flatten() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { options::get(fd, &peer, level, name, value, len) };
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().getsockopt)(fd, level, name, value, len) }
}

/// Writes as much of a number as fits, like the kernel.
///
/// # Safety
/// `value` has room for `*len` bytes.
unsafe fn answer_int(number: c_int, value: *mut c_void, len: *const socklen_t) {
    let raw = number.to_ne_bytes();
    // SAFETY: the caller's promise; never more than `raw` has.
    unsafe { std::ptr::copy_nonoverlapping(raw.as_ptr(), value.cast(), raw.len().min(*len as usize)) };
}

/// Replaces setsockopt(2).
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
    if let Some(peer) = options::suspect(level, name).then(|| peer_of(fd)).flatten() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { options::set(fd, &peer, level, name, value, len) };
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().setsockopt)(fd, level, name, value, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_value_is_cut_to_the_callers_room() {
        for room in 0..=6 {
            let mut value = [0xAA_u8; 8];
            // SAFETY: there is more room than `room`.
            unsafe { answer_int(0x0102_0304, value.as_mut_ptr().cast(), &(room as socklen_t)) };
            let written = room.min(size_of::<c_int>());
            assert_eq!(value[..written], 0x0102_0304_i32.to_ne_bytes()[..written]);
            assert!(value[written..].iter().all(|byte| *byte == 0xAA), "{room}: {value:?}");
        }
    }

    #[test]
    fn overlong_address_is_left_to_the_kernel() {
        let address = [0_u8; size_of::<libc::sockaddr_storage>()];
        let at = address.as_ptr().cast();
        // SAFETY: the lengths that are read exist; of a longer one nothing is read.
        unsafe {
            assert_eq!(stack::read_address(at, 1 << 30), None);
            assert_eq!(stack::read_address(at, address.len() as socklen_t), None, "of no family");
            assert_eq!(stack::read_address(std::ptr::null(), 16), None);
        }
    }
}
