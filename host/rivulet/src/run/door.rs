//! The socket through which preloaded shims request connections.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rivulet_handoff::{CONNECT_REQUEST_BYTES, ConnectRequest, ErrorQuery, receive, send};
use rivulet_private_file::{SocketType, listen_at};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SocketFlags, accept_with};
use tempfile::TempDir;

use super::opening::Opener;
use super::pump::is_closed;

/// Time limit for a shim's request to arrive.
const PATIENCE: Duration = Duration::from_secs(2);

/// A folder for the socket that no other user can enter, whatever the umask is.
pub(super) fn folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("rivulet-").permissions(Permissions::from_mode(0o700)).tempdir()
}

/// Listens at `path` from now on.
pub(super) fn open(path: &Path, opener: Arc<Opener>) -> io::Result<()> {
    let listener = listen_at(path, SocketType::SEQPACKET)?;
    std::thread::Builder::new().name("door".into()).spawn(move || accept(&listener, &opener))?;
    Ok(())
}

fn accept(listener: &OwnedFd, opener: &Arc<Opener>) {
    loop {
        let shim = match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(shim) => shim,
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => {
                tracing::warn!(error = %e, "accept");
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
        };
        // Usually the request has arrived already, and a query about a past connection needs no
        // thread.
        let message = message(&shim, RecvFlags::DONTWAIT);
        if let Some(why) = message.as_deref().and_then(ErrorQuery::decode) {
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

/// Answers one request: connects and replies; the connection then continues on its own threads.
fn answer(shim: &OwnedFd, at_once: Option<Vec<u8>>, opener: &Opener) {
    let Some(message) = at_once.or_else(|| message(shim, RecvFlags::empty())) else { return };
    if let Some(why) = ErrorQuery::decode(&message) {
        reply(shim, opener.ended().take(why.id), None);
        return;
    }
    let Some(ask) = ConnectRequest::decode(&message) else { return };
    // A shim that no longer waits has closed its socket.
    match opener.open(&ask, || !is_closed(shim)) {
        Ok(opened) => {
            // A shim that has closed meanwhile counts as a program that closed its connection at
            // once.
            reply(shim, opened.errno, Some(&opened.end));
            opened.start();
        }
        Err(errno) => {
            reply(shim, errno, None);
        }
    }
}

/// Reads a message, if it arrives in time.
fn message(shim: &OwnedFd, flags: RecvFlags) -> Option<Vec<u8>> {
    let mut message = [0u8; CONNECT_REQUEST_BYTES + 1];
    set_socket_timeout(shim, Timeout::Recv, Some(PATIENCE)).ok()?;
    let (got, _) = receive(shim, &mut message, flags).ok()?;
    message.get(..got).filter(|m| !m.is_empty()).map(<[u8]>::to_vec)
}

/// Sends errno and descriptor. An error means that the shim has closed.
fn reply(shim: &OwnedFd, errno: i32, end: Option<&UnixStream>) {
    let _ = send(shim, &errno.to_ne_bytes(), end.map(AsFd::as_fd));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_folder_is_for_its_user_alone() {
        let mode = std::fs::metadata(folder().unwrap().path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
    }
}
