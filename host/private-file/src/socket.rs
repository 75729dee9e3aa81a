//! Unix sockets that only the user who runs the program, and root, can connect to.

use std::fs::Permissions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub use rustix::net::SocketType;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, bind, listen, socket_with};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket at `path` with mode 0600, whatever the umask is.
///
/// # Errors
/// The path exists, is too long, or cannot be used.
pub fn listen_at(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    // No client can connect before it listens.
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_socket_is_for_its_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
            let path = folder.path().join(format!("{}", kind.as_raw()));
            let _listener = listen_at(&path, kind).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
            assert!(listen_at(&path, kind).is_err());
        }
    }
}
