//! Keeps the links for a moment after the process has died, so that the limits also apply to the
//! FINs that the kernel sends then for the process's sockets. A map informs the programs of the
//! death, and the next process inherits their connection state.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use libbpf_rs::libbpf_sys::bpf_map_update_elem;

/// Seconds for which the links stay: longer than the ToR takes to exclude a host without an agent.
const LINGER: u32 = 3;
/// How long to wait for the process that holds the links to end; it ends at once unless the machine
/// is overloaded.
const END: Duration = Duration::from_secs(1);

/// A child process that holds only the links. It ends when this is dropped, and a few seconds after
/// this process was killed.
#[derive(Debug)]
pub(crate) struct Linger(UnixStream);

impl Linger {
    /// Starts the child, with further descriptors to keep. `dead` is a map of one number, which
    /// becomes 1 when this process has died. From then on, a process of the same user that connects
    /// to the listening socket of `legacy` gets the descriptor beside it.
    pub(crate) fn new(
        links: &[BorrowedFd<'_>],
        dead: BorrowedFd<'_>,
        legacy: Option<[BorrowedFd<'_>; 2]>,
    ) -> io::Result<Linger> {
        let (read, write) = UnixStream::pair()?;
        let (read_fd, dead) = (read.as_raw_fd(), dead.as_raw_fd());
        let legacy = legacy.map(|both| both.map(|fd| fd.as_raw_fd()));
        let all =
            links.iter().map(AsRawFd::as_raw_fd).chain([read_fd, dead]).chain(legacy.into_iter().flatten());
        let mut kept: Vec<RawFd> = all.collect();
        kept.sort_unstable();
        // SAFETY: the child makes only system calls, on memory from before the fork.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => stay(&kept, read_fd, dead, legacy),
            child => {
                let mut status = 0;
                // SAFETY: `status` is a local. The child exits at once; its own child is reaped by
                // init.
                while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0
                    && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
                {}
                Ok(Linger(write))
            }
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Linger {
    /// Ends the pipe as the kernel does when this process is killed.
    pub(crate) fn killed(&self) {
        self.0.shutdown(std::net::Shutdown::Both).unwrap();
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        // If the child is gone already, the write fails and there is nothing to end.
        let _ = self.0.write_all(&[0]);
        // The child's socket is closed when this returns, so the name's next user in this process
        // finds no predecessor.
        let _ = self.0.set_read_timeout(Some(END));
        // A socket with a timeout reports Interrupted also when the process was frozen or stopped: `read_exact` reads again.
        let _ = self.0.read_exact(&mut [0]);
    }
}

/// Runs in the child: starts the process that waits, and exits.
fn stay(kept: &[RawFd], read: RawFd, dead: RawFd, legacy: Option<[RawFd; 2]>) -> ! {
    // SAFETY: as above; all of these are system calls, the buffer is a local, and closed
    // descriptors are not used again.
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
        let until = milliseconds() + 1000 * i64::from(LINGER);
        while milliseconds() < until {
            match legacy {
                Some(legacy) => bequeath(legacy, until - milliseconds()),
                None => _ = libc::usleep(10_000),
            }
        }
        libc::_exit(0);
    }
}

/// Milliseconds of `CLOCK_MONOTONIC`.
unsafe fn milliseconds() -> i64 {
    // SAFETY: the structure is a local.
    unsafe {
        let mut now: libc::timespec = core::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now);
        now.tv_sec * 1000 + now.tv_nsec / 1_000_000
    }
}

/// Waits for a connection, for at most `longest`, and sends it the descriptor if it is of the same
/// user.
unsafe fn bequeath([name, map]: [RawFd; 2], longest: i64) {
    // SAFETY: only system calls on valid memory; the macros give the sizes of the message's parts.
    unsafe {
        let mut on = libc::pollfd { fd: name, events: libc::POLLIN, revents: 0 };
        if libc::poll(&raw mut on, 1, longest.clamp(0, 1000) as libc::c_int) <= 0 {
            return;
        }
        let to = libc::accept4(name, core::ptr::null_mut(), core::ptr::null_mut(), libc::SOCK_CLOEXEC);
        if to < 0 {
            // After an error of any kind, waits before the next attempt.
            libc::usleep(10_000);
            return;
        }
        let mut who: libc::ucred = core::mem::zeroed();
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let known =
            libc::getsockopt(to, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut who).cast(), &raw mut length);
        if known == 0 && who.uid == libc::geteuid() {
            let (mut octet, mut space) = (0u8, [0u64; 8]);
            let mut data = libc::iovec { iov_base: (&raw mut octet).cast(), iov_len: 1 };
            let mut message: libc::msghdr = core::mem::zeroed();
            (message.msg_iov, message.msg_iovlen) = (&raw mut data, 1);
            message.msg_control = space.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(map);
            libc::sendmsg(to, &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
        }
        libc::close(to);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use libbpf_rs::libbpf_sys::{BPF_TCX_EGRESS, bpf_prog_query_opts};
    use libbpf_rs::{MapCore, MapFlags};
    use rivulet_pktio::testing::under_signals;

    use super::*;
    use crate::kernel::{Feature, skipped};
    use crate::object::{attach, load, map, object, open};

    /// Index of `lo` in every namespace.
    const LOOPBACK: u32 = 1;

    /// Number of programs that are attached to it.
    fn attached() -> u32 {
        let mut options =
            bpf_prog_query_opts { sz: size_of::<bpf_prog_query_opts>() as u64, ..Default::default() };
        // SAFETY: the structure is whole, names its size, and lives through the call.
        let rc = unsafe {
            libbpf_rs::libbpf_sys::bpf_prog_query_opts(LOOPBACK as i32, BPF_TCX_EGRESS, &raw mut options)
        };
        assert_eq!(rc, 0, "BPF_PROG_QUERY");
        // SAFETY: both names of the union have the same type.
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
            let linger = Linger::new(&fds, dead.as_fd(), None).unwrap();
            if killed {
                linger.killed();
                drop(links);
                // Longer than a child takes to see the end of its parent, and much shorter than the
                // links stay.
                std::thread::sleep(std::time::Duration::from_millis(500));
                assert_eq!(attached(), 1, "dropping the process detaches its programs");
                assert_eq!(value(), 1u32.to_ne_bytes(), "the programs were not informed of a death");
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
    fn resources_are_free_after_programs_are_removed() {
        if skipped(Feature::Tcx) {
            return;
        }
        let object = load("trods", open("trods", object!("trods")).unwrap()).unwrap();
        let dead = map(&object, ".data.dead").unwrap();
        for _ in 0..20 {
            let (kept, mut other) = UnixStream::pair().unwrap();
            let linger = Linger::new(&[kept.as_fd()], dead.as_fd(), None).unwrap();
            under_signals(|| drop(linger));
            drop(kept);
            other.set_nonblocking(true).unwrap();
            assert_eq!(other.read(&mut [0]).expect("an end"), 0);
        }
    }

    #[test]
    fn programs_outlive_killed_process_but_not_detaching_one() {
        if skipped(Feature::Tcx) {
            return;
        }
        let in_namespace = std::thread::spawn(|| {
            // SAFETY: unshares the namespace of this thread only.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "{}", io::Error::last_os_error());
            on_loopback();
        });
        in_namespace.join().unwrap();
    }
}
