//! The server's interface: how it is opened, reopened after a deletion, and waited for.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use rivulet_pktio::{ChecksumPolicy, Config, Filter, Interface, IoChoice, OpenError, PacketIo};

/// Size of the receive queue in bytes, as the kernel accounts them: about a thousand requests. A
/// longer queue would only add delay, since a waiting request lengthens its round trip.
const RX_BYTES: usize = 2 << 20;
/// Limit on unsent bytes at the interface over all workers, in the same accounting: about 220 full
/// frames. Beyond it requests wait here, where none is lost and the client's window is reduced,
/// instead of in a queueing discipline that drops. (The kernel's TCP leaves data in its sockets for
/// the same reason.)
const TX_BYTES: usize = 512 << 10;
/// Responses that may wait for a flush: more than a whole batch of requests causes, so that there
/// is one flush for each batch.
pub(crate) const QUEUE: usize = 128;
/// Interval between attempts to find a deleted interface, microseconds.
pub(crate) const SEEK: u64 = 20_000;

/// Opens the interface.
pub(crate) struct Opener {
    choice: IoChoice,
    /// Sockets that share the interface.
    workers: usize,
    /// When to look again for a deleted interface, microseconds.
    next: u64,
    /// Why the last attempt to open it failed.
    why: String,
}

impl Opener {
    pub(crate) fn new(choice: IoChoice, workers: usize) -> Opener {
        Opener { choice, workers, next: 0, why: String::new() }
    }

    /// Opens it with a socket that takes what the filter accepts.
    pub(crate) fn open(
        &self,
        interface: &Interface,
        filter: &Filter,
        share: Option<u16>,
    ) -> Result<Box<dyn PacketIo>, OpenError> {
        Ok(self.choice.open(interface, |_| Ok(self.config(filter, share)))?.io)
    }

    /// Reopens it if an interface of that name exists again, perhaps with other packet I/O. Call it
    /// until it returns true: the socket works again.
    pub(crate) fn again(&mut self, io: &mut Box<dyn PacketIo>, filter: &Filter, now: u64) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + SEEK;
        match self.choice.reopen(io, || Ok(self.config(filter, None))) {
            Ok(()) => {
                self.why.clear();
                true
            }
            Err(e) => {
                let why = e.to_string();
                if why != self.why {
                    tracing::warn!(error = why, "the interface is gone");
                    self.why = why;
                }
                false
            }
        }
    }

    /// The configuration to open it with.
    fn config(&self, filter: &Filter, share: Option<u16>) -> Config {
        Config {
            queue: QUEUE,
            rx_bytes: RX_BYTES,
            tx_bytes: TX_BYTES / self.workers,
            keep_refused: true,
            checksum: ChecksumPolicy::Report,
            promiscuous: false,
            filter: Some(filter.clone()),
            share,
            ..Config::default()
        }
    }
}

/// What to wait for: packets, and room if some found none; or only `room` if packets are queued
/// already.
pub(crate) fn awaited(io: &dyn PacketIo, room: bool) -> (BorrowedFd<'_>, PollFlags) {
    match (room, io.pending() > 0) {
        (true, _) => (io.sender(), PollFlags::OUT),
        (false, true) => (io.as_fd(), PollFlags::IN | PollFlags::OUT),
        (false, false) => (io.as_fd(), PollFlags::IN),
    }
}

/// Waits for that, or for `other` to be readable.
pub(crate) fn wait(io: &dyn PacketIo, room: bool, other: Option<BorrowedFd<'_>>, longest: Duration) {
    if room && io.pending() == 0 {
        return;
    }
    let (fd, events) = awaited(io, room);
    let entry = PollFd::from_borrowed_fd(fd, events);
    let mut entries = [entry, PollFd::from_borrowed_fd(other.unwrap_or(fd), PollFlags::IN)];
    let count = 1 + usize::from(other.is_some());
    let time = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: longest.subsec_nanos().into() };
    // EINTR counts as no event.
    let _ = poll(&mut entries[..count], Some(&time));
    if entries[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL) {
        // An interface that is down or deleted would make poll return at once, without a pause.
        std::thread::sleep(Duration::from_millis(2));
    }
}
