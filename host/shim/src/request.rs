//! Requests to the stack.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use libc::c_int;
use rivulet_handoff::{ConnectRequest, ErrorQuery, STACK_ENV, receive, send};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_error};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::fd::{borrowed, id_of_socket};

/// The stack's reply: an errno, and a descriptor.
type Reply = (c_int, Option<OwnedFd>);

/// Requests a connection and waits up to `patience`. Fails with `INTR` or `AGAIN` if the wait
/// ended, otherwise if there is no stack.
pub fn request_connection(ask: &ConnectRequest, patience: Option<Duration>) -> Result<Reply, Errno> {
    let stack = dial(patience)?;
    send(&stack, &ask.encode(), None)?;
    loop {
        match reply(&stack) {
            // The stack replies quickly to a non-blocking request.
            Err(Errno::INTR) if ask.nonblocking => {}
            other => return other,
        }
    }
}

/// The errno with which a connection of the stack failed; 0 if it did not fail or the error was
/// already returned.
pub fn failure(fd: c_int) -> c_int {
    let ask = || {
        let id = id_of_socket(fd)?;
        let stack = dial(None).ok()?;
        send(&stack, &ErrorQuery { id }.encode(), None).ok()?;
        loop {
            match reply(&stack) {
                Err(Errno::INTR) => {}
                other => return other.ok().map(|(why, _)| why),
            }
        }
    };
    let why = ask().unwrap_or(0);
    if why != 0
        && let Some(fd) = borrowed(fd)
    {
        // Clear the kernel's own error, so that it is not returned as a second one.
        let _ = socket_error(fd);
    }
    why
}

/// Connects to the stack; replies are awaited up to `patience`.
fn dial(patience: Option<Duration>) -> Result<OwnedFd, Errno> {
    static PATH: OnceLock<Option<SocketAddrUnix>> = OnceLock::new();
    let path = PATH.get_or_init(|| SocketAddrUnix::new(std::env::var_os(STACK_ENV)?).ok());
    let path = path.as_ref().filter(|path| !path.is_unnamed()).ok_or(Errno::CONNREFUSED)?;
    let stack = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stack, Timeout::Recv, patience)?;
    connect(&stack, path)?;
    Ok(stack)
}

fn reply(stack: &OwnedFd) -> Result<Reply, Errno> {
    let mut errno = [0; 4];
    match receive(stack, &mut errno, RecvFlags::empty())? {
        (4, descriptor) => Ok((c_int::from_ne_bytes(errno), descriptor)),
        _ => Err(Errno::PIPE),
    }
}
