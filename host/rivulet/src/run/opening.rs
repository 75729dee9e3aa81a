//! Opening a connection for a program: the pair of sockets that stands for it, what `connect` returns, and how
//! a connection ended.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_client::{Stack, Stream};

use super::protocol::{Ask, name};
use super::pump;

/// Connections at the same time; each has two threads.
const MAX_CONNECTIONS: usize = 2048;
/// Ends that are remembered for programs that have not asked yet.
const MAX_ENDED: usize = 1024;
/// With `--wait`: how long connect may take, as the kernel's TCP with its defaults.
const CONNECT: Duration = Duration::from_secs(127);

/// What [`Opener::open`] gives for a destination that is known to speak plain TCP: the kernel is to connect. No
/// connect(2) of TCP's gives this; the shim knows it by the same name.
pub(super) const LEAVE_TO_KERNEL: i32 = libc::EPROTONOSUPPORT;

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

/// How connections failed, until somebody asks. The oldest go first.
#[derive(Debug, Default)]
pub(super) struct Ended(Mutex<VecDeque<(u64, i32)>>);

impl Ended {
    /// Connection `id` failed with this errno.
    pub(super) fn put(&self, id: u64, errno: i32) {
        let mut list = self.0.lock();
        if list.len() >= MAX_ENDED {
            list.pop_front();
        }
        list.push_back((id, errno));
    }

    /// Tells it once; 0 if there is nothing to tell.
    pub(super) fn take(&self, id: u64) -> i32 {
        let mut list = self.0.lock();
        let found = list.iter().position(|(of, _)| *of == id).and_then(|at| list.remove(at));
        found.map_or(0, |(_, errno)| errno)
    }
}

/// What connect(2) or a later call gives for an error of the stack.
pub(super) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::HostUnreachable => libc::EHOSTUNREACH,
        io::ErrorKind::NetworkUnreachable => libc::ENETUNREACH,
        io::ErrorKind::ConnectionAborted => libc::ECONNABORTED,
        _ => libc::ECONNRESET,
    })
}

/// Opens connections for programs.
pub(super) struct Opener {
    stack: Stack,
    activity: Arc<Activity>,
    ended: Arc<Ended>,
    ids: AtomicU64,
    /// connect waits for the server's answer.
    wait: bool,
}

impl Opener {
    pub(super) fn new(stack: Stack, wait: bool) -> Opener {
        let activity =
            Activity { open: AtomicUsize::new(0), last: AtomicU64::new(0), started: Instant::now() };
        let ids = AtomicU64::new(u64::from(std::process::id()) << 32);
        Opener { stack, activity: Arc::new(activity), ended: Arc::default(), ids, wait }
    }

    /// Connections whose program has not closed them.
    pub(super) fn open_connections(&self) -> usize {
        self.activity.open.load(Ordering::Acquire)
    }

    /// True if nothing moved for so long.
    pub(super) fn idle_since(&self, time: Duration) -> bool {
        let last = Duration::from_millis(self.activity.last.load(Ordering::Relaxed));
        self.activity.started.elapsed().saturating_sub(last) > time
    }

    pub(super) fn ended(&self) -> &Ended {
        &self.ended
    }

    /// Opens a connection; the errno that connect(2) is to give if that fails. With `--wait` this waits for
    /// the server, unless the program does not want to, and as long as it is `wanted`.
    pub(super) fn open(&self, ask: &Ask, wanted: impl Fn() -> bool) -> Result<Opened, i32> {
        // Learned not long ago (section 2.6): our option would only be passed over once more.
        if self.stack.destination(ask.peer).is_some_and(|known| known.plain_tcp) {
            return Err(LEAVE_TO_KERNEL);
        }
        if self.activity.open.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
            self.activity.open.fetch_sub(1, Ordering::AcqRel);
            return Err(libc::EMFILE);
        }
        let counted = Counted(self.activity.clone());
        let stream = self.stack.connect_from(ask.peer, ask.bound).map_err(|e| {
            tracing::warn!(peer = %ask.peer, error = %e, "connect");
            e.errno()
        })?;
        let waits = self.wait && !ask.nonblocking;
        if waits {
            stream.connect_while(CONNECT, wanted).map_err(|e| errno_of(&e))?;
        }
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let os_error = |e: io::Error| {
            tracing::warn!(error = %e, "socket pair");
            e.raw_os_error().unwrap_or(libc::EIO)
        };
        let (inner, end) = pair(id, ask.shown(stream.local_addr()), ask.shown(ask.peer)).map_err(os_error)?;
        let progress = self.wait && !waits;
        let filled = if progress { fill(&end).map_err(os_error)? } else { 0 };
        let errno = if progress { libc::EINPROGRESS } else { 0 };
        let failures = Failures { ended: self.ended.clone(), id };
        Ok(Opened { errno, end, inner, filled, stream, counted, failures })
    }
}

/// Where a connection's failure is noted.
pub(super) struct Failures {
    ended: Arc<Ended>,
    id: u64,
}

impl Failures {
    pub(super) fn note(&self, error: &io::Error) {
        self.ended.put(self.id, errno_of(error));
    }
}

/// A connection on its way to its program.
pub(super) struct Opened {
    /// What connect returns: 0 or `EINPROGRESS`.
    pub(super) errno: i32,
    /// The program's end.
    pub(super) end: UnixStream,
    inner: UnixStream,
    /// Octets that stand in the program's way until the server has answered.
    filled: usize,
    stream: Stream,
    counted: Counted,
    failures: Failures,
}

impl Opened {
    /// Moves octets from now on, once the program has its end (our copy of it is dropped).
    pub(super) fn start(self) {
        drop(self.end);
        if self.errno == libc::EINPROGRESS {
            if let Err(e) = self.stream.connect_while(CONNECT, || !pump::is_closed(&self.inner)) {
                // Noted before the program is woken. What is left unread in our end makes the kernel report a
                // reset at the other one: poll says POLLERR, and SO_ERROR is asked.
                self.failures.note(&e);
                return;
            }
            if let Err(e) = drain(&self.inner, self.filled) {
                tracing::debug!(error = %e, "socket pair");
                return;
            }
        }
        pump::start(self.stream, self.inner, self.counted, self.failures);
    }
}

/// Our end and the program's, each bound to the name of the address that it stands for.
fn pair(id: u64, local: SocketAddr, peer: SocketAddr) -> io::Result<(UnixStream, UnixStream)> {
    let (inner, outer) = UnixStream::pair()?;
    bind(inner.as_raw_fd(), &name(id, peer))?;
    bind(outer.as_raw_fd(), &name(id, local))?;
    Ok((inner, outer))
}

/// Makes the program's end unwritable, as a TCP socket is that has no answer yet: full of nothing. Gives how much.
fn fill(end: &UnixStream) -> io::Result<usize> {
    let nothing = [0; 16_384];
    let mut filled = 0;
    loop {
        // SAFETY: pointer and length are those of the array.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::send(end.as_raw_fd(), nothing.as_ptr().cast(), nothing.len(), flags)
        };
        match usize::try_from(sent) {
            Ok(sent) => filled += sent,
            Err(_) => {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::WouldBlock { Ok(filled) } else { Err(error) };
            }
        }
    }
}

/// Takes back what [`fill`] did, and nothing of what the program writes as soon as there is room.
fn drain(mut inner: &UnixStream, filled: usize) -> io::Result<()> {
    let mut block = [0; 16_384];
    let mut left = filled;
    while left > 0 {
        let part = left.min(block.len());
        inner.read_exact(&mut block[..part])?;
        left -= part;
    }
    Ok(())
}

/// Binds a Unix socket to a path, or to an abstract name (which begins with a zero).
pub(super) fn bind(fd: i32, path: &[u8]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::super::protocol::{ASK, Why, address_of, id_of};
    use super::*;

    #[test]
    fn asks_and_names_come_back() {
        let four: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let six: SocketAddr = "[fd00:1:2:3:4:5:6:7]:65535".parse().unwrap();
        for ask in [
            Ask { peer: four, bound: None, nonblocking: true, mapped: false },
            Ask { peer: four, bound: None, nonblocking: false, mapped: true },
            Ask { peer: six, bound: Some(six), nonblocking: false, mapped: false },
        ] {
            assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        }
        assert_eq!(Ask::decode(&[0; ASK]), None);
        assert_eq!(Ask::decode(&[1; ASK - 1]), None);
        let ask = Ask { peer: four, bound: None, nonblocking: false, mapped: true };
        assert_eq!(ask.shown(four), "[::ffff:10.0.0.1]:80".parse().unwrap());
        assert_eq!(ask.shown(six), six);
        assert_eq!(Ask { mapped: false, ..ask }.shown(four), four);
        for address in [four, six, ask.shown(four)] {
            let name = name(u64::MAX, address);
            assert!(name.len() < 108);
            assert_eq!((address_of(&name), id_of(&name)), (Some(address), Some(u64::MAX)));
        }
        assert_eq!((address_of(b"\0rivulet:"), id_of(b"\0rivulet:")), (None, None));
        assert_eq!(Why::decode(&Why { id: 7 }.encode()), Some(Why { id: 7 }));
        assert_eq!(Why::decode(&Why { id: 7 }.encode()[..8]), None);
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

    #[test]
    fn failures_are_told_once_and_not_for_ever() {
        let ended = Ended::default();
        ended.put(1, libc::ECONNREFUSED);
        assert_eq!((ended.take(1), ended.take(1), ended.take(2)), (libc::ECONNREFUSED, 0, 0));
        (0..2 * MAX_ENDED as u64).for_each(|id| ended.put(id, libc::ETIMEDOUT));
        assert_eq!((ended.take(0), ended.take(2 * MAX_ENDED as u64 - 1)), (0, libc::ETIMEDOUT));
        assert!(ended.0.lock().len() < MAX_ENDED);
    }

    /// Not writable before the answer, writable behind it; an error where none came.
    #[test]
    fn a_connection_in_progress_looks_like_one() {
        use std::io::Write;
        let poll = |end: &UnixStream| {
            let events = libc::POLLOUT | libc::POLLIN;
            let mut entry = libc::pollfd { fd: end.as_raw_fd(), events, revents: 0 };
            // SAFETY: one entry, as the count says.
            unsafe { libc::poll(&raw mut entry, 1, 0) };
            entry.revents
        };
        let (local, peer) = ("10.0.0.1:5001".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let (inner, mut outer) = pair(8, local, peer).unwrap();
        let filled = fill(&outer).unwrap();
        assert_eq!(poll(&outer), 0);
        // Whoever writes as soon as there is room loses nothing to what stood in the way.
        let writer = std::thread::spawn(move || {
            outer.write_all(b"first").unwrap();
            outer
        });
        drain(&inner, filled).unwrap();
        let outer = writer.join().unwrap();
        assert_eq!(poll(&outer), libc::POLLOUT);
        let mut first = [0; 5];
        (&inner).read_exact(&mut first).unwrap();
        assert_eq!(&first, b"first");

        let (inner, outer) = pair(9, local, peer).unwrap();
        assert!(fill(&outer).unwrap() > 0);
        drop(inner);
        assert_ne!(poll(&outer) & libc::POLLERR, 0);
        assert_eq!(outer.take_error().unwrap().unwrap().raw_os_error(), Some(libc::ECONNRESET));
    }
}
