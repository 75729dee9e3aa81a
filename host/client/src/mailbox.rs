//! How application threads reach the stack thread: a list of connections to serve, and an eventfd
//! that ends its poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rivulet_transport::Time;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};

/// State shared by application threads and the stack thread.
pub(crate) struct Mailbox {
    pub bell: Bell,
    /// Connections that an application thread changed.
    pub touched: Mutex<Vec<u32>>,
    pub stop: AtomicBool,
    /// End without waiting for connections to close, except those that return their window.
    pub hurry: AtomicBool,
    started: u64,
}

impl Mailbox {
    pub fn new() -> io::Result<Mailbox> {
        Ok(Mailbox {
            bell: Bell::new()?,
            touched: Mutex::default(),
            stop: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            started: micros(ClockId::Boottime),
        })
    }

    /// Time of this stack's clock in microseconds. It also advances during suspend, as the servers'
    /// clocks do.
    pub fn now(&self) -> Time {
        Time(micros(ClockId::Boottime) - self.started)
    }

    /// Queues connection `id` for the stack thread.
    pub fn touch(&self, id: u32) {
        self.touched.lock().push(id);
        self.bell.ring();
    }
}

/// Reads a kernel clock in microseconds.
pub(crate) fn micros(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// An eventfd that is written only once until the sleeper clears it, to save system calls.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    fn new() -> io::Result<Bell> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { fd, rung: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The write cannot fail: the counter holds 2^64 - 2.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Resets the descriptor. The sleeper calls this before it looks for work.
    pub fn clear(&self) {
        // Fails if the bell was not rung.
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        self.rung.store(false, Ordering::Release);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
