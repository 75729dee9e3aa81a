//! Wakes the stack thread out of its poll.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// An eventfd that is written only when the sleeper has not been woken already.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
    woken: AtomicBool,
}

impl Waker {
    pub fn new() -> io::Result<Waker> {
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        Ok(Waker { fd: unsafe { OwnedFd::from_raw_fd(fd) }, woken: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        if !self.woken.swap(true, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // SAFETY: eight octets, as an eventfd takes them. It cannot be full: it counts to 2^64.
            unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    /// To be called by the sleeper before it looks at what there is to do.
    pub fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: eight octets, as an eventfd gives them.
        unsafe { libc::read(self.fd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        self.woken.store(false, Ordering::Release);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
