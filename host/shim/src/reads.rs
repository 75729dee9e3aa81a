//! Reading: a failed connection returns its errno, where a plain Unix socket would only return the
//! end of the stream.
//!
//! Reads that return data do no extra work. At the end of the stream or an error, the shim queries
//! the stack once for the reason; as with `SO_ERROR`, only the first query gets it.

use std::ptr::null_mut;

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::fd::ours;
use crate::real::{errno, real, set_errno};
use crate::request::failure;

/// Converts the result `got` to TCP's. `wanted`: the caller asked for at least one byte.
fn as_tcp(fd: c_int, got: ssize_t, wanted: bool) -> ssize_t {
    if got > 0 || !wanted {
        return got;
    }
    if got < 0 && errno() != libc::ECONNRESET {
        return got;
    }
    match failure(fd) {
        0 => got,
        errno => set_errno(errno) as ssize_t,
    }
}

/// TCP's result for flags that mean something else on a Unix socket: there is no urgent data and no
/// error queue.
fn refused(fd: c_int, flags: c_int) -> Option<ssize_t> {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) == 0 || !ours(fd) {
        return None;
    }
    let errno = if flags & libc::MSG_OOB != 0 { libc::EINVAL } else { libc::EAGAIN };
    Some(set_errno(errno) as ssize_t)
}

/// Replaces read(2).
///
/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, into: *mut c_void, size: size_t) -> ssize_t {
    // SAFETY: the caller's arguments, passed on.
    let got = unsafe { (real().read)(fd, into, size) };
    as_tcp(fd, got, size > 0)
}

/// Replaces what fortified programs call for read(2).
///
/// # Safety
/// As read(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, into: *mut c_void, size: size_t, room: size_t) -> ssize_t {
    if room < size {
        // SAFETY: ends the process, as the C library's own does.
        unsafe { libc::abort() };
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { read(fd, into, size) }
}

/// Replaces readv(2).
///
/// # Safety
/// As readv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's arguments, passed on.
    let got = unsafe { (real().readv)(fd, parts, count) };
    as_tcp(fd, got, count > 0)
}

/// Replaces recv(2).
///
/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, into: *mut c_void, size: size_t, flags: c_int) -> ssize_t {
    if let Some(refused) = refused(fd, flags) {
        return refused;
    }
    // SAFETY: the caller's arguments, passed on.
    let got = unsafe { (real().recv)(fd, into, size, flags) };
    as_tcp(fd, got, size > 0)
}

/// Replaces what fortified programs call for recv(2).
///
/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    fd: c_int,
    into: *mut c_void,
    size: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if room < size {
        // SAFETY: ends the process, as the C library's own does.
        unsafe { libc::abort() };
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { recv(fd, into, size, flags) }
}

/// Replaces recvfrom(2): TCP returns no address.
///
/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    into: *mut c_void,
    size: size_t,
    flags: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    if address.is_null() || !ours(fd) {
        if let Some(refused) = refused(fd, flags) {
            return refused;
        }
        // SAFETY: the caller's arguments, passed on.
        let got = unsafe { (real().recvfrom)(fd, into, size, flags, address, len) };
        return as_tcp(fd, got, size > 0);
    }
    // SAFETY: the caller's arguments without the address.
    let got = unsafe { recv(fd, into, size, flags) };
    if got >= 0 && !len.is_null() {
        // SAFETY: the caller's promise about `len`.
        unsafe { *len = 0 };
    }
    got
}

/// Replaces what fortified programs call for recvfrom(2).
///
/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    into: *mut c_void,
    size: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    if room < size {
        // SAFETY: ends the process, as the C library's own does.
        unsafe { libc::abort() };
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { recvfrom(fd, into, size, flags, address, len) }
}

/// Replaces recvmsg(2): TCP returns no address.
///
/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if let Some(refused) = refused(fd, flags) {
        return refused;
    }
    // SAFETY: the caller's message; a null one is left to the kernel.
    let name = unsafe { message.as_ref() }.map_or(null_mut(), |message| message.msg_name);
    if name.is_null() || !ours(fd) {
        // SAFETY: the caller's arguments, passed on.
        let got = unsafe { (real().recvmsg)(fd, message, flags) };
        return as_tcp(fd, got, true);
    }
    // SAFETY: the caller's message, without its name during the call.
    let got = unsafe {
        (*message).msg_name = null_mut();
        let got = (real().recvmsg)(fd, message, flags);
        (*message).msg_name = name;
        if got >= 0 {
            (*message).msg_namelen = 0;
        }
        got
    };
    as_tcp(fd, got, true)
}
