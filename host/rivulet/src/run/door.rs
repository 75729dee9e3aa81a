//! The stack's socket: shims ask for connections here.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rivulet_client::Stack;

use super::protocol::{ASK, Ask, name};
use super::pump;

/// Connections at the same time; each has two threads.
const MAX_CONNECTIONS: usize = 2048;
/// A shim that asks says so within this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Counts that the pumps keep.
#[derive(Debug)]
pub(super) struct Activity {
    open: AtomicUsize,
    /// Milliseconds from `started` to the last octets moved.
    last: AtomicU64,
    started: Instant,
}

impl Activity {
    pub(super) fn moved(&self) {
        self.last.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }
}

/// Ends a connection's count wherever it ends.
pub(super) struct Counted(pub(super) Arc<Activity>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The listening socket and its thread.
pub(super) struct Door {
    activity: Arc<Activity>,
}

impl Door {
    /// Listens at `path` from now on.
    pub fn open(path: &Path, stack: Stack) -> io::Result<Door> {
        let listener = listen(path)?;
        let activity = Arc::new(Activity {
            open: AtomicUsize::new(0),
            last: AtomicU64::new(0),
            started: Instant::now(),
        });
        let of_thread = activity.clone();
        std::thread::Builder::new()
            .name("door".into())
            .spawn(move || accept(&listener, &stack, &of_thread))?;
        Ok(Door { activity })
    }

    /// Connections whose program has not closed them.
    pub fn open_connections(&self) -> usize {
        self.activity.open.load(Ordering::Acquire)
    }

    /// True if nothing moved for so long.
    pub fn idle_since(&self, time: Duration) -> bool {
        let last = Duration::from_millis(self.activity.last.load(Ordering::Relaxed));
        self.activity.started.elapsed().saturating_sub(last) > time
    }
}

fn accept(listener: &OwnedFd, stack: &Stack, activity: &Arc<Activity>) {
    let ids = Arc::new(AtomicU64::new(u64::from(std::process::id()) << 32));
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
        if activity.open.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            activity.open.fetch_sub(1, Ordering::AcqRel);
            reply(&shim, libc::EMFILE, None);
            continue;
        }
        let counted = Counted(activity.clone());
        let (stack, ids) = (stack.clone(), ids.clone());
        let answer = move || answer(&shim, &stack, &ids, counted);
        if let Err(e) = std::thread::Builder::new().name("connect".into()).spawn(answer) {
            tracing::warn!(error = %e, "no thread for a connection");
        }
    }
}

/// One ask: connects, replies, and goes on as a pump.
fn answer(shim: &OwnedFd, stack: &Stack, ids: &AtomicU64, counted: Counted) {
    let Some(ask) = receive(shim) else { return };
    let stream = match stack.connect_from(ask.peer, ask.bound) {
        Ok(stream) => stream,
        Err(e) => {
            tracing::warn!(peer = %ask.peer, error = %e, "connect");
            reply(shim, e.errno(), None);
            return;
        }
    };
    let id = ids.fetch_add(1, Ordering::Relaxed);
    match pair(id, stream.local_addr(), ask.peer) {
        Ok((inner, outer)) => {
            if reply(shim, 0, Some(&outer)) {
                drop(outer);
                pump::start(stream, inner, counted);
            }
        }
        Err(e) => {
            tracing::warn!(error = %e, "socket pair");
            reply(shim, e.raw_os_error().unwrap_or(libc::EIO), None);
        }
    }
}

/// Our end and the program's, each bound to the name of the address that it stands for.
fn pair(id: u64, local: SocketAddr, peer: SocketAddr) -> io::Result<(UnixStream, UnixStream)> {
    let (inner, outer) = UnixStream::pair()?;
    bind(inner.as_raw_fd(), &name(id, peer))?;
    bind(outer.as_raw_fd(), &name(id, local))?;
    Ok((inner, outer))
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

/// Binds a Unix socket to a path, or to an abstract name (which begins with a zero).
fn bind(fd: i32, path: &[u8]) -> io::Result<()> {
    // SAFETY: all zero is a valid sockaddr_un; the name is copied within its bounds.
    unsafe {
        let mut address: libc::sockaddr_un = zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if path.len() >= address.sun_path.len() {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        std::ptr::copy_nonoverlapping(path.as_ptr(), address.sun_path.as_mut_ptr().cast(), path.len());
        let len = size_of::<libc::sa_family_t>() + path.len() + usize::from(path.first() != Some(&0));
        if libc::bind(fd, (&raw const address).cast(), len as libc::socklen_t) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

fn receive(shim: &OwnedFd) -> Option<Ask> {
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
        libc::recv(shim.as_raw_fd(), message.as_mut_ptr().cast(), message.len(), 0)
    };
    Ask::decode(message.get(..usize::try_from(got).ok()?)?)
}

/// Sends errno and descriptor; false if the shim is gone.
fn reply(shim: &OwnedFd, errno: i32, end: Option<&UnixStream>) -> bool {
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
        libc::sendmsg(shim.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) == 4
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::address_of;
    use super::*;

    #[test]
    fn asks_and_names_come_back() {
        let four: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let six: SocketAddr = "[fd00:1:2:3:4:5:6:7]:65535".parse().unwrap();
        for ask in [Ask { peer: four, bound: None }, Ask { peer: six, bound: Some(six) }] {
            assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        }
        assert_eq!(Ask::decode(&[0; ASK]), None);
        assert_eq!(Ask::decode(&[1; ASK - 1]), None);
        for address in [four, six] {
            let name = name(u64::MAX, address);
            assert!(name.len() < 108);
            assert_eq!(address_of(&name), Some(address));
        }
        assert_eq!(address_of(b"\0rivulet:"), None);
    }

    #[test]
    fn both_ends_of_a_pair_know_their_addresses() {
        let (local, peer) = ("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let (inner, outer) = pair(7, local, peer).unwrap();
        let get = |name: std::os::unix::net::SocketAddr| {
            use std::os::linux::net::SocketAddrExt;
            let mut full = vec![0];
            full.extend_from_slice(name.as_abstract_name().unwrap());
            address_of(&full).unwrap()
        };
        assert_eq!(get(outer.local_addr().unwrap()), local);
        assert_eq!(get(outer.peer_addr().unwrap()), peer);
        drop(inner);
        assert!(pair(7, local, peer).is_err(), "an id is used once");
    }
}
