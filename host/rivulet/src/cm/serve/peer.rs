//! The process and user at the other end of a connection.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::account::account;

/// asm-generic/socket.h
const SO_NETNS_COOKIE: libc::c_int = 71;
const SO_PEERPIDFD: libc::c_int = 77;

/// A client's process.
#[derive(Debug)]
pub(super) struct Peer {
    pub uid: u32,
    /// The account, whose quotas count the process.
    pub account: u32,
    pub pid: u32,
    /// A pidfd: readable when the process has ended.
    pub process: OwnedFd,
    /// Start time of the process, clock ticks since boot.
    pub started: u64,
}

impl Peer {
    /// The peer of a socket, as the kernel reports it.
    pub fn connected(socket: BorrowedFd<'_>) -> io::Result<Peer> {
        let credentials = socket_peercred(socket)?;
        let pid = credentials.pid.as_raw_nonzero().get() as u32;
        let gone = || io::Error::other("the process has ended already");
        // Before Linux 6.5: by number. If another process has the number by now, the flows end only
        // with that process.
        let process = match option::<libc::c_int>(socket, SO_PEERPIDFD) {
            // SAFETY: a descriptor that was just created and has no other owner.
            Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
            Err(_) => pidfd_open(credentials.pid, PidfdFlags::empty())?,
        };
        let started = started(pid).ok_or_else(gone)?;
        let uid = credentials.uid.as_raw();
        let account = account(uid, pid)?;
        // If the process has ended, its number may belong to another one by now.
        if self::started(pid) != Some(started) {
            return Err(gone());
        }
        Ok(Peer { uid, account, pid, process, started })
    }

    /// A process by its number; `None` if it does not exist.
    pub fn of(pid: u32, uid: u32, account: u32) -> Option<Peer> {
        let process = pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()?;
        Some(Peer { uid, account, pid, process, started: started(pid)? })
    }
}

/// Cookie of the network namespace in which the other end of a connected socket was created.
pub(super) fn netns(socket: BorrowedFd<'_>) -> io::Result<u64> {
    option(socket, SO_NETNS_COOKIE)
}

fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the value has the given size.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if rc < 0 || length as usize != size_of::<T>() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel wrote all of it, and any bytes are valid integers.
    Ok(unsafe { value.assume_init() })
}

/// The 22nd field of proc_pid_stat(5). The second field is a name in brackets, which may contain
/// any characters.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(&stat)
}

fn parse(stat: &str) -> Option<u64> {
    stat.get(stat.rfind(')')? + 1..)?.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_parsed_after_any_process_name() {
        let rest = "S 1 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 4711 1 1";
        for name in ["cat", "a b", "x) S 9 9", ")"] {
            assert_eq!(parse(&format!("7 ({name}) {rest}")), Some(4711), "{name}");
        }
        assert_eq!(parse("7 (cat) S"), None);
        assert_eq!(parse(""), None);
        let own = Peer::of(std::process::id(), 0, 0).unwrap();
        assert_eq!(Some(own.started), started(own.pid));
        assert!(Peer::of(0, 0, 0).is_none());
    }
}
