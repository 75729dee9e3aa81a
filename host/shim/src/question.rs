//! Asking the stack.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use libc::c_int;
use rivulet_handoff::{Ask, STACK_ENV, Why, receive, send};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_error};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::fd::{borrowed, id_of_socket};

/// What the stack said: its errno, and the descriptor that came with it.
type Reply = (c_int, Option<OwnedFd>);

/// Asks for a connection, and waits for so long. An error: `INTR` or `AGAIN` if the wait was ended, another one if there
/// is no stack.
pub fn question(ask: &Ask, patience: Option<Duration>) -> Result<Reply, Errno> {
    let stack = dial(patience)?;
    send(&stack, &ask.encode(), None)?;
    loop {
        match reply(&stack) {
            // It does not take long.
            Err(Errno::INTR) if ask.nonblocking => {}
            other => return other,
        }
    }
}

/// The errno with which a connection of the stack failed, 0 if it did not or was asked before.
pub fn failure(fd: c_int) -> c_int {
    let ask = || {
        let id = id_of_socket(fd)?;
        let stack = dial(None).ok()?;
        send(&stack, &Why { id }.encode(), None).ok()?;
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
        // The kernel may have its own word for it, which must not be told beside this one.
        let _ = socket_error(fd);
    }
    why
}

/// Connects to the stack; replies are waited for for so long.
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
