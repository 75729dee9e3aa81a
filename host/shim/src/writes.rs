//! Writing: a failed connection returns its errno once, without SIGPIPE, and then EPIPE, as TCP
//! does. A plain Unix socket would return EPIPE with SIGPIPE at once.
//!
//! The kernel call suppresses the signal, and the shim raises it where TCP would. Successful writes
//! do no extra work.

use std::mem::zeroed;
use std::ptr::null_mut;

use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::fd::{is_plain, note_plain, ours, wants};
use crate::real::{errno, real, set_errno};
use crate::request::failure;
use crate::stack;

/// Result of a write to a closed connection.
fn broken(fd: c_int, signal: bool) -> ssize_t {
    let why = failure(fd);
    if why != 0 {
        return set_errno(why) as ssize_t;
    }
    if signal {
        // SAFETY: a signal to this thread, as the kernel would have sent it.
        unsafe { libc::raise(libc::SIGPIPE) };
    }
    set_errno(libc::EPIPE) as ssize_t
}

/// Converts the result `sent` to TCP's, without the kernel's signal.
fn as_tcp(fd: c_int, sent: ssize_t, flags: c_int) -> ssize_t {
    if sent >= 0 || errno() != libc::EPIPE { sent } else { broken(fd, flags & libc::MSG_NOSIGNAL == 0) }
}

/// Urgent data, which the stack's connections lack: refused, because a Unix socket would lose it.
fn is_urgent(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_OOB != 0 && ours(fd)
}

/// Replaces write(2).
///
/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, size: size_t) -> ssize_t {
    if size > 0 && !is_plain(fd) {
        let before = errno();
        // SAFETY: the caller's arguments, passed on.
        let sent = unsafe { (real().send)(fd, from, size, libc::MSG_NOSIGNAL) };
        if sent >= 0 || errno() != libc::ENOTSOCK {
            return as_tcp(fd, sent, 0);
        }
        note_plain(fd);
        set_errno(before);
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().write)(fd, from, size) }
}

/// Replaces writev(2).
///
/// # Safety
/// As writev(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    if count > 0 && !is_plain(fd) {
        let before = errno();
        // SAFETY: all zero is a valid msghdr; the kernel only reads the caller's parts.
        let sent = unsafe {
            let mut message: msghdr = zeroed();
            message.msg_iov = parts.cast_mut();
            message.msg_iovlen = count as _;
            (real().sendmsg)(fd, &raw const message, libc::MSG_NOSIGNAL)
        };
        // With more parts than a message allows, writev returns EINVAL.
        if sent >= 0 || !matches!(errno(), libc::ENOTSOCK | libc::EMSGSIZE) {
            return as_tcp(fd, sent, 0);
        }
        if errno() == libc::ENOTSOCK {
            note_plain(fd);
        }
        set_errno(before);
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().writev)(fd, parts, count) }
}

/// Replaces send(2).
///
/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, from: *const c_void, size: size_t, flags: c_int) -> ssize_t {
    if is_urgent(fd, flags) {
        return set_errno(libc::EOPNOTSUPP) as ssize_t;
    }
    // SAFETY: the caller's arguments, passed on.
    let sent = unsafe { (real().send)(fd, from, size, flags | libc::MSG_NOSIGNAL) };
    as_tcp(fd, sent, flags)
}

/// Replaces sendto(2): on a connected socket the address is ignored, as by TCP, and `MSG_FASTOPEN`
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
        return unsafe { send(fd, data, size, flags) };
    }
    // SAFETY: the caller's promise about `address` and `len`.
    if let Err(errno) = unsafe { fast_open(fd, flags, address, len) } {
        return set_errno(errno) as ssize_t;
    }
    if ours(fd) {
        // SAFETY: the caller's arguments without the address.
        return unsafe { send(fd, data, size, flags & !libc::MSG_FASTOPEN) };
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { (real().sendto)(fd, data, size, flags, address, len) }
}

/// Connects for `MSG_FASTOPEN` if the stack handles the connection.
///
/// # Safety
/// `address` points to `len` readable bytes.
unsafe fn fast_open(fd: c_int, flags: c_int, address: *const sockaddr, len: socklen_t) -> Result<(), c_int> {
    if flags & libc::MSG_FASTOPEN == 0 || ours(fd) {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let target = unsafe { stack::read_address(address, len) };
    let Some(target) = target.filter(|target| wants(fd, target)) else { return Ok(()) };
    match stack::connect(fd, target) {
        stack::Outcome::Failed(errno) => Err(errno),
        stack::Outcome::Done | stack::Outcome::NoStack => Ok(()),
    }
}

/// Replaces sendmsg(2), as [`sendto`].
///
/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if is_urgent(fd, flags) {
        return set_errno(libc::EOPNOTSUPP) as ssize_t;
    }
    // SAFETY: the caller's message; a null one is left to the kernel.
    let named = unsafe { message.as_ref() }.filter(|message| !message.msg_name.is_null());
    if let Some(named) = named {
        // SAFETY: the caller's promise about the name and its length.
        if let Err(errno) = unsafe { fast_open(fd, flags, named.msg_name.cast(), named.msg_namelen) } {
            return set_errno(errno) as ssize_t;
        }
        if ours(fd) {
            let bare = msghdr { msg_name: null_mut(), msg_namelen: 0, ..*named };
            let without = flags & !libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL;
            // SAFETY: the caller's message without the name.
            let sent = unsafe { (real().sendmsg)(fd, &raw const bare, without) };
            return as_tcp(fd, sent, flags);
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let sent = unsafe { (real().sendmsg)(fd, message, flags | libc::MSG_NOSIGNAL) };
    as_tcp(fd, sent, flags)
}

/// Replaces sendfile(2) and its 64-bit variant.
///
/// # Safety
/// As sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    if !ours(to) {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { (real().sendfile)(to, from, at, count) };
    }
    // sendfile has no flag against the signal, so block the signal during the call and consume it
    // if it was raised.
    // SAFETY: the sets are initialised by sigemptyset, and all pointers are to locals.
    unsafe {
        let (mut pipe, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
            (zeroed(), zeroed(), zeroed());
        libc::sigemptyset(&raw mut pipe);
        libc::sigaddset(&raw mut pipe, libc::SIGPIPE);
        libc::sigpending(&raw mut pending);
        let waited = libc::sigismember(&raw const pending, libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const pipe, &raw mut before);
        let sent = (real().sendfile)(to, from, at, count);
        let why = errno();
        if sent < 0 && why == libc::EPIPE && !waited {
            let now: libc::timespec = zeroed();
            libc::sigtimedwait(&raw const pipe, null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        set_errno(why);
        as_tcp(to, sent, 0)
    }
}

/// As [`sendfile`]; offsets have 64 bits on every supported platform.
///
/// # Safety
/// As sendfile(2).
#[unsafe(no_mangle)]
#[cfg(target_pointer_width = "64")]
pub unsafe extern "C" fn sendfile64(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's arguments, passed on.
    unsafe { sendfile(to, from, at, count) }
}
