//! One system call that the seccomp filter passed to this process; the calling thread waits for the
//! answer (seccomp_unotify(2)).

use std::io::{self, ErrorKind};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::filter::{FOREIGN_CONNECT, NATIVE};

/// linux/seccomp.h
const RECEIVE: libc::Ioctl = order(3, 0, size_of::<libc::seccomp_notif>());
const SEND: libc::Ioctl = order(3, 1, size_of::<libc::seccomp_notif_resp>());
const IS_VALID: libc::Ioctl = order(1, 2, size_of::<u64>());
const ADD_DESCRIPTOR: libc::Ioctl = order(1, 3, size_of::<libc::seccomp_notif_addfd>());

/// The number of a seccomp ioctl.
const fn order(direction: u64, number: u64, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u64) << 16 | (b'!' as u64) << 8 | number) as libc::Ioctl
}

/// Which system call was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A call of this machine's own architecture.
    Native(libc::c_long),
    /// connect by a 32-bit program.
    ForeignConnect,
}

/// A system call that waits for its answer.
pub(super) struct Call {
    listener: Arc<OwnedFd>,
    id: u64,
    /// The thread that made the call.
    thread: i32,
    pub what: What,
    pub arguments: [u64; 6],
}

/// Decision on a caught call.
pub(super) enum Verdict {
    /// The call returns 0 or this errno.
    Returns(i32),
    /// The kernel performs the call.
    Kernel,
}

impl Drop for Call {
    /// A call without an answer is left to the kernel.
    fn drop(&mut self) {
        self.reply(&Verdict::Kernel);
    }
}

/// The next call; `None` when no process is left to make one, or the other end of `until` is
/// closed.
pub(super) fn next(listener: &Arc<OwnedFd>, until: impl AsFd) -> Option<Call> {
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(&until, PollFlags::empty())];
        if poll(&mut ready, None).is_err() {
            continue;
        }
        if !ready[1].revents().is_empty() || !ready[0].revents().contains(PollFlags::IN) {
            return None;
        }
        // SAFETY: the kernel requires all zero.
        let mut call: libc::seccomp_notif = unsafe { zeroed() };
        // SAFETY: this ioctl fills this structure.
        if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut call) } != 0 {
            // The calling process has ended.
            continue;
        }
        let (listener, arguments) = (listener.clone(), call.data.args);
        let what =
            if call.data.arch == NATIVE { What::Native(call.data.nr.into()) } else { What::ForeignConnect };
        let mut this = Call { listener, id: call.id, thread: call.pid as i32, what, arguments };
        if what == What::ForeignConnect && call.data.nr as u32 != FOREIGN_CONNECT {
            // The arguments of socketcall(2) are in memory, 32 bits each.
            let mut words = [0; 12];
            if this.memory(arguments[1], &mut words, false).is_err() {
                continue;
            }
            for (to, word) in this.arguments.iter_mut().zip(words.as_chunks::<4>().0) {
                *to = u32::from_ne_bytes(*word).into();
            }
        }
        return Some(this);
    }
}

/// Leaves all later calls to the kernel, in a separate process that ends with the last caller:
/// without it they would fail. Call it when no other process answers them.
pub(super) fn let_pass(listener: &OwnedFd) {
    let hung_up = || {
        let mut entry = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, as given by the count.
        unsafe { libc::poll(&raw mut entry, 1, 0) };
        entry.revents & libc::POLLHUP != 0
    };
    // SAFETY: the child makes only async-signal-safe calls.
    if hung_up() || unsafe { libc::fork() } != 0 {
        return;
    }
    let kept = 3;
    // SAFETY: plain system calls on descriptors of this process, which has one thread and shares
    // them with no other code.
    unsafe {
        // Detaches from the output and the terminal, so that no reader waits for this process to
        // close them.
        libc::setsid();
        if listener.as_raw_fd() != kept {
            libc::dup2(listener.as_raw_fd(), kept);
        }
        libc::syscall(libc::SYS_close_range, 0, kept - 1, 0);
        libc::syscall(libc::SYS_close_range, kept + 1, u32::MAX, 0);
        loop {
            let mut entry = libc::pollfd { fd: kept, events: libc::POLLIN, revents: 0 };
            libc::poll(&raw mut entry, 1, -1);
            if entry.revents & libc::POLLHUP != 0 {
                libc::_exit(0);
            }
            let mut call: libc::seccomp_notif = zeroed();
            if libc::ioctl(kept, RECEIVE, &raw mut call) == 0 {
                let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
                let answer = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
                libc::ioctl(kept, SEND, &raw const answer);
            }
        }
    }
}

impl Call {
    /// Sends the answer, once. If the calling process is dead, nothing happens.
    pub(super) fn reply(&mut self, verdict: &Verdict) {
        if self.id == 0 {
            return;
        }
        let (error, flags) = match verdict {
            Verdict::Returns(errno) => (-errno, 0),
            Verdict::Kernel => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        };
        let answer = libc::seccomp_notif_resp { id: self.id, val: 0, error, flags };
        // SAFETY: this ioctl takes this structure.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), SEND, &raw const answer) };
        self.id = 0;
    }

    /// Whether the thread still waits in this call.
    pub(super) fn is_valid(&self) -> bool {
        // SAFETY: this ioctl takes this number.
        unsafe { libc::ioctl(self.listener.as_raw_fd(), IS_VALID, &raw const self.id) == 0 }
    }

    /// The program that made the call, and its process id.
    pub(super) fn program(&self) -> (PathBuf, i32) {
        let path = std::fs::read_link(format!("/proc/{}/exe", self.thread));
        (path.unwrap_or_else(|_| "?".into()), self.process().unwrap_or(self.thread))
    }

    /// Whether the calling process has mapped this file.
    pub(super) fn has_mapped(&self, file: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{}/maps", self.thread)).is_ok_and(|maps| maps.contains(file))
    }

    /// The process of the calling thread.
    fn process(&self) -> io::Result<i32> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.thread))?;
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        line.and_then(|pid| pid.trim().parse().ok()).ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// A copy, in this process, of the descriptor in the call's first argument. Descriptors belong
    /// to the process, the call to a thread.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        let process = Pid::from_raw(self.process()?).ok_or(ErrorKind::NotFound)?;
        let process = pidfd_open(process, PidfdFlags::empty())?;
        Ok(pidfd_getfd(process, self.arguments[0] as i32, PidfdGetfdFlags::empty())?)
    }

    /// Whether that descriptor closes on exec. The flag belongs to the descriptor, not the socket,
    /// so it is read in the calling process.
    fn closes_on_exec(&self) -> io::Result<bool> {
        let path = format!("/proc/{}/fdinfo/{}", self.thread, self.arguments[0] as i32);
        let text = std::fs::read_to_string(path)?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|f| i32::from_str_radix(f.trim(), 8).ok());
        Ok(flags.is_some_and(|f| f & libc::O_CLOEXEC != 0))
    }

    /// Replaces that descriptor, in the calling process, with `end`.
    pub(super) fn replace(&self, end: &impl AsRawFd) -> io::Result<()> {
        let add = libc::seccomp_notif_addfd {
            id: self.id,
            flags: libc::SECCOMP_ADDFD_FLAG_SETFD as u32,
            srcfd: end.as_raw_fd() as u32,
            newfd: self.arguments[0] as u32,
            newfd_flags: if self.closes_on_exec()? { libc::O_CLOEXEC as u32 } else { 0 },
        };
        // SAFETY: this ioctl takes this structure; the descriptor is open.
        match unsafe { libc::ioctl(self.listener.as_raw_fd(), ADD_DESCRIPTOR, &raw const add) } {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Reads or writes memory of the calling process, and then checks that it is still the one that
    /// made the call.
    pub(super) fn memory(&self, at: u64, bytes: &mut [u8], write: bool) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let is_ours = || if self.is_valid() { Ok(()) } else { Err(io::Error::from(ErrorKind::NotFound)) };
        if write {
            is_ours()?;
        }
        let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let there = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: the local part is a slice; the kernel checks the other part.
        let moved = unsafe {
            match write {
                true => libc::process_vm_writev(self.thread, &raw const here, 1, &raw const there, 1, 0),
                false => libc::process_vm_readv(self.thread, &raw const here, 1, &raw const there, 1, 0),
            }
        };
        if moved != bytes.len() as isize {
            return Err(io::Error::last_os_error());
        }
        is_ours()
    }
}
