//! How application threads reach the stack thread: what they touched, and a bell that ends its poll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rivulet_transport::Time;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{ClockId, clock_gettime};

/// What application threads and the stack thread share.
pub(crate) struct Mailbox {
    pub bell: Bell,
    /// Connections whose application did something.
    pub touched: Mutex<Vec<u32>>,
    pub stop: AtomicBool,
    /// What is said last is not waited for.
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

    /// Microseconds of this stack's clock, which goes on while the machine is suspended: servers' clocks do.
    pub fn now(&self) -> Time {
        Time(micros(ClockId::Boottime) - self.started)
    }

    /// Notes that connection `id` has something to do.
    pub fn touch(&self, id: u32) {
        self.touched.lock().push(id);
        self.bell.ring();
    }
}

/// Microseconds of a clock of the kernel's.
pub(crate) fn micros(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// An eventfd that is written only when the sleeper has not been woken already.
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
            // It cannot be full: it counts to 2^64.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// To be called by the sleeper before it looks at what there is to do.
    pub fn clear(&self) {
        // Empty if nobody rang.
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
        self.rung.store(false, Ordering::Release);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
