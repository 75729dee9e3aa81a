//! Links that stay for a moment when the process has died, so that what its kernel says at its end is held to limits too: the
//! FINs of sockets that the process had. The programs are told.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libbpf_rs::libbpf_sys::bpf_map_update_elem;

/// Longer than it takes until nobody listens to a host whose agent is gone, seconds.
const LINGER: u32 = 3;
/// It ends at once, if the machine lets it.
const END: Duration = Duration::from_secs(1);

/// A process without anything but the links, which ends when this is dropped, and a while after this process was killed.
#[derive(Debug)]
pub(crate) struct Linger(UnixStream);

impl Linger {
    /// With whatever else is to stay as long; `dead` is a map of one number, which becomes 1 when this process has died.
    pub(crate) fn new(links: &[BorrowedFd<'_>], dead: BorrowedFd<'_>) -> io::Result<Linger> {
        let (read, write) = UnixStream::pair()?;
        let (read_fd, dead) = (read.as_raw_fd(), dead.as_raw_fd());
        let mut kept: Vec<RawFd> = links.iter().map(AsRawFd::as_raw_fd).chain([read_fd, dead]).collect();
        kept.sort_unstable();
        // SAFETY: the child calls nothing but system calls, on memory that was there before.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => stay(&kept, read_fd, dead),
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

#[cfg(test)]
impl Linger {
    /// What it sees when this process is killed.
    fn killed(self) {
        self.0.shutdown(std::net::Shutdown::Both).unwrap();
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        // One that is gone has nothing to end.
        let _ = self.0.write_all(&[0]);
        // What it has is nobody's when this returns: whoever is next in this process follows nobody who died.
        let _ = self.0.set_read_timeout(Some(END));
        let _ = self.0.read(&mut [0]);
    }
}

/// The child: its own child waits, and it ends.
fn stay(kept: &[RawFd], read: RawFd, dead: RawFd) -> ! {
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
        let (first, set) = (0u32, 1u32);
        bpf_map_update_elem(dead, (&raw const first).cast(), (&raw const set).cast(), 0);
        let mut left = LINGER;
        while left > 0 {
            left = libc::sleep(left);
        }
        libc::_exit(0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use libbpf_rs::libbpf_sys::{BPF_TCX_EGRESS, bpf_prog_query_opts};
    use libbpf_rs::{MapCore, MapFlags};

    use super::*;
    use crate::kernel::{Feature, skipped};
    use crate::object::{attach, load, map, object, open};

    /// Index of `lo` in every namespace.
    const LOOPBACK: u32 = 1;

    /// How many programs are on it.
    fn attached() -> u32 {
        let mut options =
            bpf_prog_query_opts { sz: size_of::<bpf_prog_query_opts>() as u64, ..Default::default() };
        // SAFETY: the structure is whole, names its size, and lives through the call.
        let rc = unsafe {
            libbpf_rs::libbpf_sys::bpf_prog_query_opts(LOOPBACK as i32, BPF_TCX_EGRESS, &raw mut options)
        };
        assert_eq!(rc, 0, "BPF_PROG_QUERY");
        // SAFETY: one of two names of the same number.
        unsafe { options.__bindgen_anon_1.prog_cnt }
    }

    fn on_loopback() {
        let object = load("trods", open("trods", object!("trods")).unwrap()).unwrap();
        let program = object.progs().find(|p| p.name() == "trods_egress").unwrap();
        for killed in [true, false] {
            let links = vec![attach(&program, LOOPBACK, BPF_TCX_EGRESS, 0).unwrap()];
            let dead = map(&object, ".data.dead").unwrap();
            let value = || dead.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            assert_eq!(value(), 0u32.to_ne_bytes());
            let fds: Vec<_> = links.iter().map(AsFd::as_fd).collect();
            let linger = Linger::new(&fds, dead.as_fd()).unwrap();
            if killed {
                linger.killed();
                drop(links);
                // As long as a process may take to notice, and much shorter than it stays.
                std::thread::sleep(std::time::Duration::from_millis(500));
                assert_eq!(attached(), 1, "they go with the process");
                assert_eq!(value(), 1u32.to_ne_bytes(), "they are not told");
                dead.update(&0u32.to_ne_bytes(), &0u32.to_ne_bytes(), MapFlags::ANY).unwrap();
            } else {
                drop(linger);
                drop(links);
            }
            while attached() > 0 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn what_it_has_is_free_when_it_is_taken_off() {
        if skipped(Feature::Tcx) {
            return;
        }
        let object = load("trods", open("trods", object!("trods")).unwrap()).unwrap();
        let dead = map(&object, ".data.dead").unwrap();
        for _ in 0..20 {
            let (kept, mut other) = UnixStream::pair().unwrap();
            let linger = Linger::new(&[kept.as_fd()], dead.as_fd()).unwrap();
            drop((linger, kept));
            other.set_nonblocking(true).unwrap();
            assert_eq!(other.read(&mut [0]).expect("an end"), 0);
        }
    }

    #[test]
    fn programs_outlive_a_process_that_dies_and_go_with_one_that_takes_them_off() {
        if skipped(Feature::Tcx) {
            return;
        }
        let in_namespace = std::thread::spawn(|| {
            // SAFETY: of this thread alone.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", io::Error::last_os_error());
            on_loopback();
        });
        in_namespace.join().unwrap();
    }
}
