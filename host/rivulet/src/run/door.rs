//! The stack's socket: shims ask for connections here.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::opening::{Opener, bind};
use super::protocol::{ASK, Ask, Why};
use super::pump::is_closed;

/// A shim that asks says so within this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Listens at `path` from now on.
pub(super) fn open(path: &Path, opener: Arc<Opener>) -> io::Result<()> {
    let listener = listen(path)?;
    std::thread::Builder::new().name("door".into()).spawn(move || accept(&listener, &opener))?;
    Ok(())
}

fn accept(listener: &OwnedFd, opener: &Arc<Opener>) {
    loop {
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe {
            libc::accept4(
                listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC,
            )
        };
        if fd < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                tracing::warn!(error = %error, "accept");
                std::thread::sleep(Duration::from_millis(20));
            }
            continue;
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        let shim = unsafe { OwnedFd::from_raw_fd(fd) };
        // Most often the question is there already, and one about the past needs no thread.
        let message = receive(&shim, libc::MSG_DONTWAIT);
        if let Some(why) = message.as_deref().and_then(Why::decode) {
            reply(&shim, opener.ended().take(why.id), None);
            continue;
        }
        let opener = opener.clone();
        let answer = move || answer(&shim, message, &opener);
        if let Err(e) = std::thread::Builder::new().name("connect".into()).spawn(answer) {
            tracing::warn!(error = %e, "no thread for a connection");
        }
    }
}

/// One question: connects and replies, and the connection goes on by itself.
fn answer(shim: &OwnedFd, message: Option<Vec<u8>>, opener: &Opener) {
    let Some(message) = message.or_else(|| receive(shim, 0)) else { return };
    if let Some(why) = Why::decode(&message) {
        reply(shim, opener.ended().take(why.id), None);
        return;
    }
    let Some(ask) = Ask::decode(&message) else { return };
    // A shim that waits no longer has hung up.
    match opener.open(&ask, || !is_closed(shim)) {
        Ok(opened) => {
            // A shim that is gone meanwhile shows as a program that closed at once.
            reply(shim, opened.errno, Some(&opened.end));
            opened.start();
        }
        Err(errno) => {
            reply(shim, errno, None);
        }
    }
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    // SAFETY: plain system call; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    let listener = unsafe { OwnedFd::from_raw_fd(fd) };
    bind(fd, path.as_os_str().as_bytes())?;
    // SAFETY: plain system call on an open descriptor.
    if unsafe { libc::listen(fd, 128) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(listener)
}

/// A message, if it comes in time.
fn receive(shim: &OwnedFd, flags: i32) -> Option<Vec<u8>> {
    let time = libc::timeval { tv_sec: PATIENCE.as_secs() as libc::time_t, tv_usec: 0 };
    let mut message = [0u8; ASK + 1];
    // SAFETY: pointers and lengths are those of locals.
    let got = unsafe {
        let len = size_of::<libc::timeval>() as libc::socklen_t;
        libc::setsockopt(
            shim.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const time).cast(),
            len,
        );
        libc::recv(shim.as_raw_fd(), message.as_mut_ptr().cast(), message.len(), flags)
    };
    message.get(..usize::try_from(got).ok()?).filter(|m| !m.is_empty()).map(<[u8]>::to_vec)
}

/// Sends errno and descriptor. A shim that is gone needs no reply.
fn reply(shim: &OwnedFd, errno: i32, end: Option<&UnixStream>) {
    let mut octets = errno.to_ne_bytes();
    let mut control = [0u64; 8];
    // SAFETY: every pointer is to a local that outlives the call, and the control buffer has room for one
    // descriptor (CMSG_SPACE of four octets is 24).
    unsafe {
        let mut part = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Some(end) = end {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(end.as_raw_fd());
        }
        libc::sendmsg(shim.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL);
    }
}
