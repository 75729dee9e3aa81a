//! How much is handed to the interface at once: less where its queueing discipline has room for less.
//!
//! The send buffer counts what lies in the queueing discipline, so it is the bound. A discipline that is full refuses a
//! frame; then the bound becomes what lies there, less an eighth, and what was refused is kept until half of the bound has left.
//! From time to time a little more is tried, since disciplines and what else they hold change.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::socket;

/// With fewer octets outstanding, some two full frames, it is others who fill the discipline.
const LEAST: usize = 6 << 10;
/// Frames after which an eighth more is tried.
const TRIAL: usize = 4096;

/// The bound of one socket, in octets of the kernel's accounting.
pub(super) struct Bound {
    most: usize,
    now: usize,
    /// Frames sent since it changed.
    sent: usize,
}

impl Bound {
    /// That of a socket which was opened with it.
    pub fn new(most: usize) -> Bound {
        Bound { most, now: most, sent: 0 }
    }

    /// The discipline refused a frame. True if it may be sent later: some of ours lie before it.
    pub fn refused(&mut self, fd: BorrowedFd<'_>) -> bool {
        let Ok(outstanding) = outstanding(fd) else { return false };
        outstanding >= LEAST && self.set(fd, outstanding.min(self.now) / 8 * 7)
    }

    /// So many frames were taken.
    pub fn sent(&mut self, fd: BorrowedFd<'_>, frames: usize) {
        self.sent += frames;
        if self.now < self.most && self.sent >= TRIAL {
            self.set(fd, (self.now + self.now / 8).min(self.most));
        }
    }

    fn set(&mut self, fd: BorrowedFd<'_>, octets: usize) -> bool {
        self.sent = 0;
        let done = socket::set_send_buffer(fd, octets).is_ok();
        if done {
            self.now = octets;
        }
        done
    }
}

/// What was handed over and has not left (`SIOCOUTQ`).
fn outstanding(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut octets: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(octets).unwrap_or(0))
}
