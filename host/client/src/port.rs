//! Local ports, and how the kernel's TCP is kept silent about them.
//!
//! The stack in user space speaks for a local port, but the kernel sees the same segments and would answer
//! each with a reset. So the kernel gets a socket of its own for exactly this connection, established by
//! repair mode without a packet being sent (`TCP_REPAIR`, tcp(7) and CRIU), with a filter that drops
//! whatever arrives. It reserves the port, it answers nothing, and it goes with the process, however that
//! ends, without a FIN or a reset.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A connection's local port; free again when dropped.
#[derive(Debug)]
pub struct LocalPort {
    _socket: OwnedFd,
    address: SocketAddr,
}

impl LocalPort {
    /// Reserves `local` (port 0: an ephemeral one) for a connection to `remote`. Needs `CAP_NET_ADMIN`.
    pub fn reserve(local: SocketAddr, remote: SocketAddr) -> io::Result<LocalPort> {
        let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        // SAFETY: plain system call; the result is checked.
        let fd = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let fd = socket.as_raw_fd();
        set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, &1i32)?;
        drop_everything(fd)?;
        let (storage, len) = raw(local);
        // SAFETY: the storage holds an address of that length.
        check(unsafe { libc::bind(fd, (&raw const storage).cast(), len) })?;
        let (storage, len) = raw(remote);
        // SAFETY: as above. In repair mode this sends nothing.
        check(unsafe { libc::connect(fd, (&raw const storage).cast(), len) })?;
        Ok(LocalPort { address: SocketAddr::new(local.ip(), local_port(fd)?), _socket: socket })
    }

    /// Address and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A filter of one instruction: keep 0 octets of each segment, which drops it before TCP sees it.
fn drop_everything(fd: i32) -> io::Result<()> {
    let mut program = [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let filter = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

fn local_port(fd: i32) -> io::Result<u16> {
    // SAFETY: all zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the storage has room for any address, and `len` says how much.
    check(unsafe { libc::getsockname(fd, (&raw mut storage).cast(), &raw mut len) })?;
    // SAFETY: both address structures begin with family and port.
    Ok(u16::from_be(unsafe { (*(&raw const storage).cast::<libc::sockaddr_in>()).sin_port }))
}

pub(crate) fn set<T>(fd: i32, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length are those of `value`, of the type that the option takes.
    check(unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), len) })
}

pub(crate) fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The kernel's form of an address.
pub(crate) fn raw(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all zero is a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let to = &raw mut storage;
    let len = match address {
        SocketAddr::V4(a) => {
            // SAFETY: the storage is large enough and aligned for either structure.
            let to = unsafe { &mut *to.cast::<libc::sockaddr_in>() };
            to.sin_family = libc::AF_INET as libc::sa_family_t;
            to.sin_port = a.port().to_be();
            to.sin_addr.s_addr = u32::from(*a.ip()).to_be();
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(a) => {
            // SAFETY: as above.
            let to = unsafe { &mut *to.cast::<libc::sockaddr_in6>() };
            to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            to.sin6_port = a.port().to_be();
            to.sin6_addr.s6_addr = a.ip().octets();
            to.sin6_scope_id = a.scope_id();
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, len as libc::socklen_t)
}
