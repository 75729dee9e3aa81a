//! Reading: a connection that failed says so with its errno, where a Unix socket alone would show an end.
//!
//! Nothing is done while octets come. At an end, and at an error, the stack is asked once how the connection
//! ended; as with `SO_ERROR`, whoever asks first is told.

use std::ptr::null_mut;

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::fd::ours;
use crate::question::failure;
use crate::real::{errno, real, set_errno};

/// `got` as TCP would have said it; `wanted` is false if an empty read was asked for.
fn judged(fd: c_int, got: ssize_t, wanted: bool) -> ssize_t {
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

/// What TCP says at once to flags that a Unix socket has another meaning for: there is no urgent data and no queue of
/// errors here.
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
    judged(fd, got, size > 0)
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
    judged(fd, got, count > 0)
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
    judged(fd, got, size > 0)
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

/// Replaces recvfrom(2): TCP tells no address.
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
        return judged(fd, got, size > 0);
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

/// Replaces recvmsg(2): TCP tells no address.
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
        return judged(fd, got, true);
    }
    // SAFETY: the caller's message, which is there, without its name for as long as the call lasts.
    let got = unsafe {
        (*message).msg_name = null_mut();
        let got = (real().recvmsg)(fd, message, flags);
        (*message).msg_name = name;
        if got >= 0 {
            (*message).msg_namelen = 0;
        }
        got
    };
    judged(fd, got, true)
}
