//! The seccomp filter that shows a program's connection calls to us, and its way from the child to the parent.
//!
//! seccomp(2), "user notification": the program waits in its system call until the other process has answered
//! for it. So programs that make system calls without the C library are served like the others.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("linux/audit.h has this architecture's number");

/// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
/// Low halves of the second and third argument: level and name of an option.
const LEVEL: u32 = if cfg!(target_endian = "little") { 24 } else { 28 };
const NAME: u32 = LEVEL + 8;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// connect, getpeername, getsockname, setsockopt beyond `SOL_SOCKET`, and getsockopt of `SO_ERROR` are shown;
/// everything else passes.
fn program() -> [libc::sock_filter; 15] {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let number = |n: libc::c_long| n as u32;
    [
        step(LOAD, 0, 0, ARCHITECTURE),
        // Calls of another architecture (32 bit) have other numbers.
        step(EQUAL, 0, 12, NATIVE),
        step(LOAD, 0, 0, NUMBER),
        step(EQUAL, 9, 0, number(libc::SYS_connect)),
        step(EQUAL, 8, 0, number(libc::SYS_getpeername)),
        step(EQUAL, 7, 0, number(libc::SYS_getsockname)),
        step(EQUAL, 3, 0, number(libc::SYS_setsockopt)),
        step(EQUAL, 0, 6, number(libc::SYS_getsockopt)),
        step(LOAD, 0, 0, NAME),
        step(EQUAL, 3, 4, libc::SO_ERROR as u32),
        step(LOAD, 0, 0, LEVEL),
        step(EQUAL, 2, 0, libc::SOL_SOCKET as u32),
        step(EQUAL, 1, 0, libc::SOL_NETLINK as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

/// Puts the filter on this process, for good and for its children, and sends the descriptor that hears of
/// the calls to the other end of `to`. Makes only async-signal-safe calls: for a child between fork and exec.
pub(super) fn install(to: i32) -> io::Result<()> {
    let mut program = program();
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the calls.
    let listener = unsafe {
        let seccomp = || {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program,
            )
        };
        let mut got = seccomp();
        if got < 0 && *libc::__errno_location() == libc::EACCES {
            // Without CAP_SYS_ADMIN the command must not gain privileges that we have not.
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            got = seccomp();
        }
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(got as i32)
    };
    send(to, &listener)
}

/// Sends a descriptor.
fn send(to: i32, what: &OwnedFd) -> io::Result<()> {
    let (mut octet, mut control) = ([0u8], [0u64; 8]);
    // SAFETY: every pointer is to a local that outlives the call; the buffer has room for one descriptor.
    let sent = unsafe {
        let mut part = libc::iovec { iov_base: octet.as_mut_ptr().cast(), iov_len: 1 };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(what.as_raw_fd());
        libc::sendmsg(to, &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes the descriptor that [`install`] sent.
pub(super) fn receive(from: i32) -> io::Result<OwnedFd> {
    let (mut octet, mut control) = ([0u8], [0u64; 8]);
    // SAFETY: as in `send`; a descriptor in the message is ours from then on.
    unsafe {
        let mut part = libc::iovec { iov_base: octet.as_mut_ptr().cast(), iov_len: 1 };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of::<[u64; 8]>();
        if libc::recvmsg(from, &raw mut message, libc::MSG_CMSG_CLOEXEC) != 1 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned()))
    }
}
