//! The server's interface: how it is opened, opened again when it was deleted, and waited for.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use rivulet_pktio::{ChecksumPolicy, Config, Filter, Interface, IoChoice, OpenError, PacketIo};

/// Octets of receive queue, in the kernel's accounting: some thousand requests. A longer one would only be
/// delay, since a request that waits is a round trip that grows.
const RX_BYTES: usize = 2 << 20;
/// Octets handed to the interface and not sent, by all workers, in the same accounting: some 220 full frames. What finds
/// no room waits here as a request, where nothing is lost and the client's window is told to shrink, and not in a
/// queueing discipline that drops what is too much. (The kernel's TCP leaves data in its sockets for the same reason.)
const TX_BYTES: usize = 512 << 10;
/// Responses that may wait for a flush: those of a whole batch of requests and more, so that there is one for each batch.
pub(crate) const QUEUE: usize = 128;
/// An interface that is gone is looked for after this time, microseconds.
pub(crate) const SEEK: u64 = 20_000;

/// Opens the interface.
pub(crate) struct Opener {
    choice: IoChoice,
    /// Sockets that share the interface.
    workers: usize,
    /// When an interface that is gone may be looked for again, microseconds.
    next: u64,
    /// Why it could not be opened the last time.
    why: String,
}

impl Opener {
    pub(crate) fn new(choice: IoChoice, workers: usize) -> Opener {
        Opener { choice, workers, next: 0, why: String::new() }
    }

    /// Opens it, the socket taking what the filter accepts.
    pub(crate) fn open(
        &self,
        interface: &Interface,
        filter: &Filter,
        share: Option<u16>,
    ) -> Result<Box<dyn PacketIo>, OpenError> {
        Ok(self.choice.open(interface, |_| Ok(self.config(filter, share)))?.io)
    }

    /// Opens it again, if there is one of that name; it may not be fit for what the former one was. To be called until
    /// the socket works again. True if it does.
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

    /// How it is opened.
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

/// What is waited for: packets, and room to send those that found none; or `room` alone where packets wait already.
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
    // An interruption is as if nothing came.
    let _ = poll(&mut entries[..count], Some(&time));
    if entries[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL) {
        // An interface that is down or gone would be reported without a pause.
        std::thread::sleep(Duration::from_millis(2));
    }
}
