//! Limits how much is queued at the interface to what its queueing discipline has room for.
//!
//! The socket's send buffer counts the bytes in the queueing discipline, so it serves as the limit.
//! When the discipline is full and refuses a frame, the limit becomes 7/8 of the bytes queued now,
//! and the refused frame waits until half of the limit has left. The limit slowly grows again,
//! because disciplines and other senders change.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::socket;

/// Below this many outstanding bytes, about two full frames, other senders have filled the
/// discipline.
const MIN_OUTSTANDING_BYTES: usize = 6 << 10;
/// Frames after which the limit grows by an eighth.
const FRAMES_PER_TRIAL: usize = 4096;

/// The send limit of one socket, in bytes of the kernel's accounting.
pub(super) struct Bound {
    most: usize,
    now: usize,
    /// Frames sent since the limit changed.
    sent: usize,
}

impl Bound {
    /// The limit of a socket opened with a send buffer of `most` bytes.
    pub fn new(most: usize) -> Bound {
        Bound { most, now: most, sent: 0 }
    }

    /// Handles a refusal by the discipline. Returns true if the frame may be sent later, because
    /// earlier frames of this socket are queued.
    pub fn refused(&mut self, fd: BorrowedFd<'_>) -> bool {
        let Ok(outstanding) = outstanding(fd) else { return false };
        outstanding >= MIN_OUTSTANDING_BYTES && self.set(fd, outstanding.min(self.now) / 8 * 7)
    }

    /// Records accepted frames.
    pub fn sent(&mut self, fd: BorrowedFd<'_>, frames: usize) {
        self.sent += frames;
        if self.now < self.most && self.sent >= FRAMES_PER_TRIAL {
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

/// Bytes handed over that have not left yet (`SIOCOUTQ`).
fn outstanding(fd: BorrowedFd<'_>) -> io::Result<usize> {
    let mut octets: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    if unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut octets) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(octets).unwrap_or(0))
}
