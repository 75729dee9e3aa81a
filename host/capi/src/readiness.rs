//! The descriptor that a program polls: readable when `msk_events` has work.
//!
//! The server waits for different events over time (a packet, or room to send), and its socket may
//! be replaced. The descriptor is an epoll instance, so it stays the same.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// One pollable descriptor over the server's socket and event queue.
pub struct Readiness {
    epoll: OwnedFd,
    /// Readable while untaken events wait.
    more: OwnedFd,
    raised: bool,
    watched: RawFd,
}

impl Readiness {
    pub fn new() -> io::Result<Readiness> {
        // SAFETY: plain system calls; the results are checked, and this is their only owner.
        let (epoll, more) = unsafe {
            (
                owned(libc::epoll_create1(libc::EPOLL_CLOEXEC))?,
                owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))?,
            )
        };
        let this = Readiness { epoll, more, raised: false, watched: -1 };
        this.control(libc::EPOLL_CTL_ADD, this.more.as_raw_fd(), libc::POLLIN)?;
        Ok(this)
    }

    /// A duplicate for the program.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.epoll.try_clone()
    }

    /// Makes the descriptor readable while `fd` has these events (poll(2)) or untaken events wait.
    pub fn update(&mut self, fd: BorrowedFd<'_>, events: i16, more: bool) -> io::Result<()> {
        let fd = fd.as_raw_fd();
        if fd != self.watched && self.watched >= 0 {
            // A closed descriptor has left the set already.
            let _ = self.control(libc::EPOLL_CTL_DEL, self.watched, 0);
        }
        self.watched = fd;
        match self.control(libc::EPOLL_CTL_MOD, fd, events) {
            // A new socket, which may have an old one's number.
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {
                self.control(libc::EPOLL_CTL_ADD, fd, events)?
            }
            other => other?,
        }
        if more != self.raised {
            let mut count = 1_u64;
            let at = (&raw mut count).cast();
            // SAFETY: reads or writes eight bytes.
            let done = unsafe {
                match more {
                    true => libc::write(self.more.as_raw_fd(), at, 8),
                    false => libc::read(self.more.as_raw_fd(), at, 8),
                }
            };
            if done != 8 {
                return Err(io::Error::last_os_error());
            }
            self.raised = more;
        }
        Ok(())
    }

    fn control(&self, operation: i32, fd: RawFd, events: i16) -> io::Result<()> {
        // The events of poll(2) and epoll(7) have the same values.
        let mut event = libc::epoll_event { events: events as u32, u64: 0 };
        // SAFETY: the event lives through the call.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// # Safety
/// `fd` is a descriptor without another owner, or -1 after an error.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    match fd {
        // SAFETY: the caller's promise.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn readable(fd: &OwnedFd) -> bool {
        let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry that lives through the call.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    }

    #[test]
    fn readiness_follows_socket_room_and_events() {
        let mut readiness = Readiness::new().unwrap();
        let polled = readiness.descriptor().unwrap();
        let (a, mut b) = UnixStream::pair().unwrap();
        readiness.update(a.as_fd(), libc::POLLIN, false).unwrap();
        assert!(!readable(&polled));
        b.write_all(b"x").unwrap();
        assert!(readable(&polled), "a packet arrived");
        readiness.update(a.as_fd(), libc::POLLOUT, false).unwrap();
        assert!(readable(&polled), "there is room");

        // Another socket with the same number, as after an interface was recreated.
        let number = a.as_raw_fd();
        drop(a);
        let (a, mut b) = UnixStream::pair().unwrap();
        assert!([a.as_raw_fd(), b.as_raw_fd()].contains(&number));
        readiness.update(a.as_fd(), libc::POLLIN, false).unwrap();
        assert!(!readable(&polled));
        for more in [true, true, false, false, true, false] {
            readiness.update(a.as_fd(), libc::POLLIN, more).unwrap();
            assert_eq!(readable(&polled), more, "events are left");
        }
        b.write_all(b"x").unwrap();
        assert!(readable(&polled));
        let (c, _d) = UnixStream::pair().unwrap();
        readiness.update(c.as_fd(), libc::POLLIN, false).unwrap();
        assert!(!readable(&polled), "another number");
    }
}
