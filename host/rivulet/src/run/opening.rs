//! Opens connections for the programs of the command.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rivulet_client::{Stack, Stream};
use rivulet_handoff::{ConnectRequest, LEAVE_TO_KERNEL, Name};
use rustix::io::Errno;
use rustix::net::{SendFlags, bind, send};

use super::account::{Activity, Counted, Ended, Failures, errno_of};
use super::pump;

/// Time limit of connect with `--wait`: that of the kernel's TCP with its defaults.
const CONNECT: Duration = Duration::from_secs(127);

/// Opens connections for programs.
pub(super) struct Opener {
    stack: Stack,
    activity: Arc<Activity>,
    ended: Arc<Ended>,
    ids: AtomicU64,
    /// Whether connect waits for the server's answer.
    wait: bool,
}

impl Opener {
    pub(super) fn new(stack: Stack, wait: bool) -> Opener {
        let ids = AtomicU64::new(random_id());
        Opener { stack, activity: Arc::new(Activity::new()), ended: Arc::default(), ids, wait }
    }

    /// Stops: no connection sends anything more.
    pub(super) fn end(&self) {
        self.stack.end();
    }

    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }

    pub(super) fn ended(&self) -> &Ended {
        &self.ended
    }

    /// Opens a connection; on failure returns the errno for connect(2). With `--wait` this waits
    /// for the server, unless the program's socket is non-blocking, and only as long as `wanted`
    /// returns `true`.
    pub(super) fn open(&self, ask: &ConnectRequest, wanted: impl Fn() -> bool) -> Result<Opened, i32> {
        // This destination recently ignored the option (section 2.6), and would ignore it again.
        if self.stack.destination(ask.peer).is_some_and(|known| known.plain_tcp) {
            return Err(LEAVE_TO_KERNEL);
        }
        let counted = Counted::new(&self.activity).ok_or(libc::EMFILE)?;
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

/// A connection that is being passed to its program.
pub(super) struct Opened {
    /// The result of connect: 0 or `EINPROGRESS`.
    pub(super) errno: i32,
    /// The program's end of the socket pair.
    pub(super) end: UnixStream,
    inner: UnixStream,
    /// Number of filler bytes that block the program's writes until the server has answered.
    filled: usize,
    stream: Stream,
    counted: Counted,
    failures: Failures,
}

impl Opened {
    /// Starts the transfers, once the program has its end; this process's copy of it is dropped.
    pub(super) fn start(self) {
        drop(self.end);
        if self.errno == libc::EINPROGRESS {
            if let Err(e) = self.stream.connect_while(CONNECT, || !pump::is_closed(&self.inner)) {
                // Recorded before the program wakes up. Unread data in this end makes the kernel
                // report a reset at the program's end: poll returns POLLERR, and the program reads
                // SO_ERROR.
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

/// The first connection's number. All of a network namespace share the names with these numbers:
/// other PID namespaces have equal process ids, and other users must not be able to guess and
/// occupy names.
fn random_id() -> u64 {
    RandomState::new().hash_one(())
}

/// Both ends of a socket pair, each bound to a name that encodes the address it represents.
fn pair(id: u64, local: SocketAddr, peer: SocketAddr) -> io::Result<(UnixStream, UnixStream)> {
    let (inner, outer) = UnixStream::pair()?;
    bind(&inner, &Name { id, address: peer }.socket_address()?)?;
    bind(&outer, &Name { id, address: local }.socket_address()?)?;
    Ok((inner, outer))
}

/// Makes the program's end unwritable, like a TCP socket without an answer yet, by filling the
/// buffer. Returns the number of filler bytes.
fn fill(end: &UnixStream) -> io::Result<usize> {
    let mut filled = 0;
    loop {
        match send(end, &[0; 16_384], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) => filled += sent,
            Err(Errno::WOULDBLOCK) => return Ok(filled),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Reads exactly the bytes of [`fill`], and none that the program writes as soon as there is room.
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn both_ends_of_a_pair_know_their_addresses() {
        let (local, peer) = ("10.0.0.1:5000".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let (inner, outer) = pair(7, local, peer).unwrap();
        assert_eq!(Name::of(&outer), Some(Name { id: 7, address: local }));
        assert_eq!(Name::of_peer(&outer), Some(Name { id: 7, address: peer }));
        drop(inner);
        assert!(pair(7, local, peer).is_err(), "an id is used once");
    }

    #[test]
    fn names_of_two_stacks_differ_in_one_process() {
        let peer = "10.0.0.2:80".parse().unwrap();
        let taken = Name { id: random_id(), address: peer };
        let (squatter, _) = UnixStream::pair().unwrap();
        bind(&squatter, &taken.socket_address().unwrap()).unwrap();
        assert!(pair(random_id(), "10.0.0.1:5000".parse().unwrap(), peer).is_ok());
    }

    /// The program's end is not writable before the answer, writable after it, and has an error if
    /// no answer arrived.
    #[test]
    fn unanswered_connection_is_not_writable() {
        use std::io::Write;
        let poll = |end: &UnixStream| {
            let events = libc::POLLOUT | libc::POLLIN;
            let mut entry = libc::pollfd { fd: end.as_raw_fd(), events, revents: 0 };
            // SAFETY: poll gets one entry, and 1 as the number of entries.
            unsafe { libc::poll(&raw mut entry, 1, 0) };
            entry.revents
        };
        let (local, peer) = ("10.0.0.1:5001".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let (inner, mut outer) = pair(8, local, peer).unwrap();
        let filled = fill(&outer).unwrap();
        assert_eq!(poll(&outer), 0);
        // A writer that starts as soon as there is room loses no bytes to the draining of the
        // filler.
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
