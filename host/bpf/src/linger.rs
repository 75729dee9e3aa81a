//! Links that stay for a moment when the process has died, so that what its kernel says at its end is held to limits too: the
//! FINs of sockets that the process had.

use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// Longer than it takes until nobody listens to a host whose agent is gone, seconds.
const LINGER: u32 = 3;

/// A process without anything but the links, which ends when this is dropped, and a while after this process was killed.
#[derive(Debug)]
pub(crate) struct Linger(UnixStream);

impl Linger {
    pub(crate) fn new(links: &[OwnedFd]) -> io::Result<Linger> {
        let (read, write) = UnixStream::pair()?;
        let mut kept: Vec<RawFd> = links.iter().map(AsRawFd::as_raw_fd).chain([read.as_raw_fd()]).collect();
        kept.sort_unstable();
        // SAFETY: the child calls nothing but system calls, on memory that was there before.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => stay(&kept, read.as_raw_fd()),
            child => {
                let mut status = 0;
                // SAFETY: `status` is there. The child ends at once; its own child is nobody's to wait for.
                while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0
                    && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
                {}
                Ok(Linger(write))
            }
        }
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        // One that is gone has nothing to end.
        let _ = self.0.write_all(&[0]);
    }
}

/// The child: its own child waits, and it ends.
fn stay(kept: &[RawFd], read: RawFd) -> ! {
    // SAFETY: as above; all of these are system calls, the buffer is there, and descriptors that are closed are used by nobody.
    unsafe {
        if libc::fork() != 0 {
            libc::_exit(0);
        }
        let mut next = 0;
        for &fd in kept {
            if fd > next {
                libc::syscall(libc::SYS_close_range, next as libc::c_uint, (fd - 1) as libc::c_uint, 0);
            }
            next = fd + 1;
        }
        libc::syscall(libc::SYS_close_range, next as libc::c_uint, libc::c_uint::MAX, 0);
        let mut octet = [0u8];
        loop {
            match libc::read(read, octet.as_mut_ptr().cast(), 1) {
                -1 => {}
                0 => break,
                _ => libc::_exit(0),
            }
        }
        let mut left = LINGER;
        while left > 0 {
            left = libc::sleep(left);
        }
        libc::_exit(0);
    }
}
