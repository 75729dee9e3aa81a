//! Writing: a connection that failed says so with its errno, once and without SIGPIPE, before it is EPIPE, as TCP
//! does; a Unix socket alone would be EPIPE with SIGPIPE at once.
//!
//! The kernel is told not to send the signal, which is sent here where it is due. Nothing else is done while
//! octets go.

use std::mem::zeroed;
use std::ptr::null_mut;

use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::fd::{is_plain, note_plain, ours, wants};
use crate::question::failure;
use crate::real::{errno, real, set_errno};
use crate::stack;

/// What a write gives that found its end gone.
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

/// `sent` without the signal, as TCP would have said it.
fn judged(fd: c_int, sent: ssize_t, flags: c_int) -> ssize_t {
    if sent >= 0 || errno() != libc::EPIPE { sent } else { broken(fd, flags & libc::MSG_NOSIGNAL == 0) }
}

/// TCP has urgent data, a connection of the stack has none: refused, where a Unix socket would lose it.
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
            return judged(fd, sent, 0);
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
        // SAFETY: all zero is a valid msghdr; the parts are the caller's, which the kernel only reads.
        let sent = unsafe {
            let mut message: msghdr = zeroed();
            message.msg_iov = parts.cast_mut();
            message.msg_iovlen = count as _;
            (real().sendmsg)(fd, &raw const message, libc::MSG_NOSIGNAL)
        };
        // More parts than a message may have are writev's EINVAL.
        if sent >= 0 || !matches!(errno(), libc::ENOTSOCK | libc::EMSGSIZE) {
            return judged(fd, sent, 0);
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
    judged(fd, sent, flags)
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

/// `MSG_FASTOPEN` connects, if the stack is to have the connection.
///
/// # Safety
/// `address` points to `len` readable octets.
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
            return judged(fd, sent, flags);
        }
    }
    // SAFETY: the caller's arguments, passed on.
    let sent = unsafe { (real().sendmsg)(fd, message, flags | libc::MSG_NOSIGNAL) };
    judged(fd, sent, flags)
}

/// Replaces sendfile(2) and its twin of 64 bit.
///
/// # Safety
/// As sendfile(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    if !ours(to) {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { (real().sendfile)(to, from, at, count) };
    }
    // It takes no flag that keeps the signal back, so the signal is blocked meanwhile, and taken if it came.
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
        judged(to, sent, 0)
    }
}

/// As [`sendfile`]; the offset has 64 bits everywhere that this library is built for.
///
/// # Safety
/// As sendfile(2).
#[unsafe(no_mangle)]
#[cfg(target_pointer_width = "64")]
pub unsafe extern "C" fn sendfile64(to: c_int, from: c_int, at: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: the caller's arguments, passed on.
    unsafe { sendfile(to, from, at, count) }
}
