//! The agent's side of the door.

use std::collections::HashSet;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, recv, sendmsg, socket_with, sockopt,
};

use super::message::{MAX_MESSAGE, Reply, Request};

/// Terminators at a time: one for each service, twice during an upgrade.
const MAX_TERMINATORS: usize = 64;
/// Messages that are taken from a terminator before other work has its turn.
const MAX_TAKEN: usize = 256;
/// Bytes of replies that the kernel keeps for a terminator that is slow to read.
const BUFFER: usize = 1 << 20;

#[derive(Debug)]
struct Terminator {
    socket: OwnedFd,
    /// Empty before its `Hello`.
    ports: Vec<u16>,
}

/// The agent's socket for terminators.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    listener: OwnedFd,
    owner: Option<u32>,
    terminators: Vec<Terminator>,
    buffer: Vec<u8>,
}

impl Door {
    /// Listens at this path. Only processes of root, of this process's user and of `owner` are let in.
    ///
    /// # Errors
    /// The path is taken, or cannot be made.
    pub fn open(path: &Path, owner: Option<u32>) -> io::Result<Door> {
        if let Ok(meta) = std::fs::symlink_metadata(path) {
            if !meta.file_type().is_socket() {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "the path exists and is not a socket",
                ));
            }
            let probe = socket()?;
            match connect(&probe, &SocketAddrUnix::new(path)?) {
                Err(Errno::CONNREFUSED) => std::fs::remove_file(path)?,
                Err(e) => return Err(e.into()),
                Ok(()) => {
                    return Err(io::Error::new(
                        io::ErrorKind::AddrInUse,
                        "another agent listens at this socket",
                    ));
                }
            }
        }
        let listener = socket()?;
        bind(&listener, &SocketAddrUnix::new(path)?)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        if owner.is_some() {
            chown(path, owner, None)?;
        }
        listen(&listener, MAX_TERMINATORS as i32)?;
        let (path, terminators) = (path.to_owned(), Vec::new());
        Ok(Door { path, listener, owner, terminators, buffer: vec![0; MAX_MESSAGE] })
    }

    /// Descriptors that are readable when there is something to [take](Door::take).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let terminators = self.terminators.iter().map(|terminator| terminator.socket.as_fd());
        terminators.chain([self.listener.as_fd()])
    }

    /// Ports of the attached terminators.
    #[must_use]
    pub fn ports(&self) -> HashSet<u16> {
        self.terminators.iter().flat_map(|terminator| &terminator.ports).copied().collect()
    }

    /// Takes in terminators and their messages. Returns whether the ports may have changed.
    pub fn take(&mut self, closed: bool, messages: &mut Vec<Request>) -> bool {
        let mut changed = self.admit();
        let buffer = &mut self.buffer;
        self.terminators.retain_mut(|terminator| {
            let is_open = terminator.take(buffer, closed, messages, &mut changed);
            changed |= !is_open;
            is_open
        });
        changed
    }

    fn admit(&mut self) -> bool {
        let before = self.terminators.len();
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            let Ok(peer) = sockopt::socket_peercred(&socket) else { continue };
            let (uid, ours) = (peer.uid.as_raw(), rustix::process::geteuid().as_raw());
            if uid != 0 && uid != ours && Some(uid) != self.owner {
                tracing::warn!(uid, "refused a TLS terminator of another user");
            } else if self.terminators.len() >= MAX_TERMINATORS {
                tracing::warn!("refused a TLS terminator: there are {MAX_TERMINATORS}");
            } else {
                // A smaller buffer only refuses more replies to a terminator that does not read.
                let _ = sockopt::set_socket_send_buffer_size_force(&socket, BUFFER);
                self.terminators.push(Terminator { socket, ports: Vec::new() });
            }
        }
        self.terminators.len() != before
    }

    /// Sends a reply to the terminator of this port, with a socket perhaps. False if there is none that takes it.
    pub fn send(&self, port: u16, reply: &Reply, socket: Option<BorrowedFd<'_>>) -> bool {
        // The one that came last is the newest.
        let mut terminators = self.terminators.iter().rev();
        let terminator = terminators.find(|terminator| terminator.ports.contains(&port));
        terminator.is_some_and(|terminator| terminator.send(reply, socket))
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Terminator {
    /// Takes in its messages; false if it has left or is not one.
    fn take(
        &mut self,
        buffer: &mut [u8],
        closed: bool,
        messages: &mut Vec<Request>,
        changed: &mut bool,
    ) -> bool {
        for _ in 0..MAX_TAKEN {
            let (length, whole) = match recv(&self.socket, &mut *buffer, RecvFlags::TRUNC) {
                Ok((_, 0)) => return false,
                Ok((read, whole)) => (read, whole),
                Err(Errno::AGAIN | Errno::INTR) => return true,
                Err(_) => return false,
            };
            let message = match Request::decode(&buffer[..length]) {
                Ok(message) if whole == length => message,
                Ok(_) => return false,
                Err(e) => {
                    tracing::warn!("a TLS terminator is sent away: {e}");
                    return false;
                }
            };
            match message {
                Request::Hello(ports) if self.ports.is_empty() && !ports.is_empty() => {
                    tracing::info!(?ports, "a TLS terminator is attached");
                    (self.ports, *changed) = (ports, true);
                    if !self.send(&Reply::Welcome { closed }, None) {
                        return false;
                    }
                }
                Request::Hello(_) => return false,
                _ if self.ports.is_empty() => return false,
                // Its own connections alone.
                message if self.ports.contains(&message.port()) => messages.push(message),
                _ => return false,
            }
        }
        true
    }

    fn send(&self, reply: &Reply, socket: Option<BorrowedFd<'_>>) -> bool {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let sockets: Vec<BorrowedFd<'_>> = socket.into_iter().collect();
        if !sockets.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, flags).is_ok()
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

#[cfg(test)]
mod tests {
    use rustix::net::send;

    use super::*;

    fn door() -> (tempfile::TempDir, PathBuf, Door) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door");
        let door = Door::open(&path, None).unwrap();
        (folder, path, door)
    }

    fn enter(path: &Path) -> OwnedFd {
        let socket = socket().unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    fn say(socket: &OwnedFd, request: &Request) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        send(socket, &bytes, SendFlags::NOSIGNAL).unwrap();
    }

    fn is_let_go(socket: &OwnedFd) -> bool {
        matches!(recv(socket, &mut [0; 64][..], RecvFlags::empty()), Ok((_, 0)) | Err(Errno::CONNRESET))
    }

    #[test]
    fn terminator_is_let_in_and_owns_its_ports_alone() {
        let (_folder, path, mut door) = door();
        let terminator = enter(&path);
        say(&terminator, &Request::Hello(vec![443, 8443]));
        let mut messages = Vec::new();
        assert!(door.take(true, &mut messages) && door.ports() == HashSet::from([443, 8443]));
        let mut bytes = [0; 64];
        let (length, _) = recv(&terminator, &mut bytes[..], RecvFlags::empty()).unwrap();
        assert_eq!(Reply::decode(&bytes[..length]), Ok(Reply::Welcome { closed: true }));
        let of = |service: &str| crate::Tuple {
            client: "192.0.2.7:1025".parse().unwrap(),
            service: service.parse().unwrap(),
        };
        say(&terminator, &Request::Reset(of("10.9.0.1:443")));
        assert!(!door.take(true, &mut messages));
        assert_eq!(messages, [Request::Reset(of("10.9.0.1:443"))]);
        say(&terminator, &Request::Reset(of("10.9.0.1:80")));
        assert!(door.take(true, &mut messages) && door.ports().is_empty() && messages.len() == 1);
        assert!(is_let_go(&terminator));
    }

    #[test]
    fn anything_else_is_sent_away() {
        let (_folder, path, mut door) = door();
        let long = vec![1; MAX_MESSAGE + 1];
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[1, 9, 1, 187], &[1, 1], &[5, 4], &long] {
            let stranger = enter(&path);
            send(&stranger, bytes, SendFlags::NOSIGNAL).unwrap();
            let mut messages = Vec::new();
            door.take(false, &mut messages);
            door.take(false, &mut messages);
            assert!(messages.is_empty() && door.ports().is_empty() && is_let_go(&stranger), "{bytes:?}");
        }
        let crowd: Vec<OwnedFd> = (0..MAX_TERMINATORS).map(|_| enter(&path)).collect();
        door.take(false, &mut Vec::new());
        let one_more = enter(&path);
        door.take(false, &mut Vec::new());
        assert!(is_let_go(&one_more) && !crowd.iter().any(is_let_go));
    }

    #[test]
    fn process_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: not root");
            return;
        }
        let (folder, path, mut door) = door();
        for path in [folder.path(), &path] {
            // Open to all, so that the check by the peer's credentials alone decides.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        for (uid, is_admitted) in [(65_534, false), (0, true)] {
            // Changes the user of this thread alone.
            let connect = || {
                let uid = rustix::process::Uid::from_raw(uid);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                enter(&path)
            };
            let terminator = std::thread::scope(|scope| scope.spawn(connect).join().unwrap());
            say(&terminator, &Request::Hello(vec![443]));
            door.take(false, &mut Vec::new());
            assert_eq!(door.ports().contains(&443), is_admitted, "uid {uid}");
            assert_eq!(is_let_go(&terminator), !is_admitted, "uid {uid}");
        }
    }

    #[test]
    fn path_of_another_agent_is_not_taken() {
        let (folder, path, door) = door();
        assert_eq!(Door::open(&path, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(Door::open(&file, None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        drop(door);
        Door::open(&path, None).unwrap();
    }
}
