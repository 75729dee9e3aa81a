//! The seccomp filter that passes the connection calls of a command, and of all processes that it
//! starts, to this process; and the transfer of its descriptor from the child to the parent.
//!
//! It uses user notification (seccomp(2)): the program waits in its system call until this process
//! has answered. So programs that make system calls without the C library are served like the
//! others.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use libc::{c_long, sock_filter};
use rustix::net::RecvFlags;

/// From linux/audit.h; and the numbers of connect in 32-bit programs of this machine: a separate
/// call, and one behind socketcall.
#[cfg(target_arch = "x86_64")]
mod arch {
    pub const NATIVE: u32 = 0xc000_003e;
    pub const FOREIGN: u32 = 0x4000_0003;
    pub const CONNECT: u32 = 362;
    pub const SOCKETCALL: Option<u32> = Some(102);
}
#[cfg(target_arch = "aarch64")]
mod arch {
    pub const NATIVE: u32 = 0xc000_00b7;
    pub const FOREIGN: u32 = 0x4000_0028;
    pub const CONNECT: u32 = 283;
    pub const SOCKETCALL: Option<u32> = None;
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("linux/audit.h has this architecture's number");

pub(super) use arch::{CONNECT as FOREIGN_CONNECT, NATIVE};

/// connect behind socketcall (linux/net.h).
const SYS_CONNECT: u32 = 3;

/// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

/// The low half of an argument.
const fn argument(index: u32) -> u32 {
    16 + 8 * index + if cfg!(target_endian = "little") { 0 } else { 4 }
}

const SHOW: sock_filter = returned(libc::SECCOMP_RET_USER_NOTIF);
const ALLOW: sock_filter = returned(libc::SECCOMP_RET_ALLOW);

const fn returned(what: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: what }
}

const fn load(offset: u32) -> sock_filter {
    sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Continues with `then` if the loaded value is `value`, otherwise after it.
fn when(value: u32, then: &[sock_filter]) -> Vec<sock_filter> {
    test(libc::BPF_JEQ, value, then)
}

/// Continues with `then` if the loaded value has a bit of `mask`, otherwise after it.
fn when_any(mask: u32, then: &[sock_filter]) -> Vec<sock_filter> {
    test(libc::BPF_JSET, mask, then)
}

fn test(how: u32, k: u32, then: &[sock_filter]) -> Vec<sock_filter> {
    let code = (libc::BPF_JMP | how | libc::BPF_K) as u16;
    let jump = sock_filter { code, jt: 0, jf: then.len() as u8, k };
    [&[jump], then].concat()
}

/// Notifies for connect, getpeername, getsockname, setsockopt beyond `SOL_SOCKET`, and getsockopt
/// of `SO_ERROR`; also for the ways around them, which cannot be answered: 32-bit calls and
/// io_uring. Refuses sending with `MSG_FASTOPEN`, like a kernel that has it switched off, so that
/// the program connects. Allows everything else.
pub(super) fn program() -> Vec<sock_filter> {
    let number = |n: c_long| n as u32;
    let called = |n: c_long, then: &[sock_filter]| when(number(n), then);
    let option = [
        vec![load(argument(1))],
        when(libc::SOL_SOCKET as u32, &[ALLOW]),
        when(libc::SOL_NETLINK as u32, &[ALLOW]),
        vec![SHOW],
    ];
    // The shim answers this option to its program itself.
    let name = [vec![load(argument(3))], when(rivulet_handoff::OURS, &[ALLOW]), vec![SHOW]].concat();
    let error = [vec![load(argument(2))], when(libc::SO_ERROR as u32, &[SHOW]), vec![ALLOW]];
    let refused = returned(libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32);
    let flags = |index| {
        [vec![load(argument(index))], when_any(libc::MSG_FASTOPEN as u32, &[refused]), vec![ALLOW]].concat()
    };
    let native = [
        called(libc::SYS_connect, &[SHOW]),
        called(libc::SYS_getpeername, &name),
        called(libc::SYS_getsockname, &name),
        called(libc::SYS_setsockopt, &option.concat()),
        called(libc::SYS_getsockopt, &error.concat()),
        called(libc::SYS_sendto, &flags(3)),
        called(libc::SYS_sendmsg, &flags(2)),
        called(libc::SYS_sendmmsg, &flags(3)),
        called(libc::SYS_io_uring_setup, &[SHOW]),
        vec![ALLOW],
    ];
    let multiplexed = arch::SOCKETCALL.map_or(Vec::new(), |number| {
        when(number, &[vec![load(argument(0))], when(SYS_CONNECT, &[SHOW]), vec![ALLOW]].concat())
    });
    let foreign = [vec![load(NUMBER)], when(arch::CONNECT, &[SHOW]), multiplexed, vec![ALLOW]];
    [
        vec![load(ARCHITECTURE)],
        when(arch::FOREIGN, &foreign.concat()),
        // Other architectures that the processor can run have no socket calls here.
        when(arch::NATIVE, &[vec![load(NUMBER)], native.concat()].concat()),
        vec![ALLOW],
    ]
    .concat()
}

/// Installs the filter on this process and its future children, permanently, and sends the
/// descriptor for notifications, or the error, to the other end of `to`. Makes only
/// async-signal-safe calls, because it runs between fork and exec.
pub(super) fn install(program: &mut [sock_filter], to: impl AsFd) -> io::Result<()> {
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let seccomp = || {
        let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
        // SAFETY: the program outlives the call, which returns a new descriptor.
        match unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) } {
            // SAFETY: the descriptor is new and has no other owner.
            got @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(got as i32) }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let listener = seccomp().or_else(|e| {
        if e.raw_os_error() != Some(libc::EACCES) {
            return Err(e);
        }
        // Without CAP_SYS_ADMIN the command must not gain privileges that this process lacks.
        rustix::thread::set_no_new_privs(true)?;
        seccomp()
    });
    let (errno, listener) = match &listener {
        Ok(listener) => (0, Some(listener.as_fd())),
        Err(e) => (e.raw_os_error().unwrap_or(libc::EIO), None),
    };
    Ok(rivulet_handoff::send(to, &errno.to_ne_bytes(), listener)?)
}

/// Receives the descriptor that [`install`] sent.
pub(super) fn receive(from: impl AsFd) -> io::Result<OwnedFd> {
    let mut errno = [0; 4];
    match rivulet_handoff::receive(from, &mut errno, RecvFlags::empty())? {
        (4, Some(listener)) => Ok(listener),
        (4, None) => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter's result for a call: an interpreter of classic BPF, as in the kernel (RFC 9669
    /// does not cover it).
    fn verdict(architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [number.to_ne_bytes(), architecture.to_ne_bytes()].concat();
        data.extend([0; 8]);
        data.extend(arguments.iter().flat_map(|a| a.to_ne_bytes()));
        let (mut at, mut accumulator) = (0, 0);
        let program = program();
        loop {
            let step = program[at];
            at += 1;
            let jump = match u32::from(step.code) & !libc::BPF_K {
                code if code == libc::BPF_RET => return step.k,
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = u32::from_ne_bytes(*data[step.k as usize..].first_chunk().unwrap());
                    continue;
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ => accumulator == step.k,
                code if code == libc::BPF_JMP | libc::BPF_JSET => accumulator & step.k != 0,
                code => panic!("{code:#x}"),
            };
            at += usize::from(if jump { step.jt } else { step.jf });
        }
    }

    #[test]
    fn filter_notifies_allows_or_refuses_calls() {
        let native = |number: c_long, arguments| verdict(NATIVE, number as u32, arguments);
        let (show, allow) = (libc::SECCOMP_RET_USER_NOTIF, libc::SECCOMP_RET_ALLOW);
        let refused = libc::SECCOMP_RET_ERRNO | libc::EOPNOTSUPP as u32;
        let (socket, tcp, fast) =
            (libc::SOL_SOCKET as u64, libc::IPPROTO_TCP as u64, libc::MSG_FASTOPEN as u64 | 0x4000);
        let cases = [
            (native(libc::SYS_connect, [0; 6]), show),
            (native(libc::SYS_getpeername, [0; 6]), show),
            (native(libc::SYS_getpeername, [3, 0, 0, rivulet_handoff::OURS.into(), 0, 0]), allow),
            (native(libc::SYS_io_uring_setup, [0; 6]), show),
            (native(libc::SYS_read, [0; 6]), allow),
            (native(libc::SYS_setsockopt, [3, tcp, 1, 0, 0, 0]), show),
            (native(libc::SYS_setsockopt, [3, socket, 1, 0, 0, 0]), allow),
            (native(libc::SYS_getsockopt, [3, socket, libc::SO_ERROR as u64, 0, 0, 0]), show),
            (native(libc::SYS_getsockopt, [3, socket, libc::SO_TYPE as u64, 0, 0, 0]), allow),
            (native(libc::SYS_sendto, [3, 0, 0, fast, 0, 0]), refused),
            (native(libc::SYS_sendto, [3, fast, fast, 0x4000, 0, 0]), allow),
            (native(libc::SYS_sendmsg, [3, 0, fast, 0, 0, 0]), refused),
            (native(libc::SYS_sendmmsg, [3, 0, 1, fast, 0, 0]), refused),
            (verdict(arch::FOREIGN, arch::CONNECT, [0; 6]), show),
            (verdict(arch::FOREIGN, libc::SYS_connect as u32, [0; 6]), allow),
            (verdict(1, libc::SYS_connect as u32, [0; 6]), allow),
        ];
        for (row, (got, want)) in cases.into_iter().enumerate() {
            assert_eq!(got, want, "row {row}");
        }
        if let Some(number) = arch::SOCKETCALL {
            let calls = [SYS_CONNECT, SYS_CONNECT + 1];
            let said = calls.map(|call| verdict(arch::FOREIGN, number, [call.into(), 0, 0, 0, 0, 0]));
            assert_eq!(said, [show, allow]);
        }
    }
}
