//! Asking the stack for a connection, and telling its descriptors from others.

use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::protocol::{Ask, STACK_ENV, Why, address_of, id_of};
use crate::real::real;

/// What came of [`connect`].
pub enum Outcome {
    /// The descriptor is connected.
    Done,
    /// It failed with this errno.
    Failed(c_int),
    /// There is no stack to ask; the kernel is to connect.
    NoStack,
}

/// Options whose answer would show that the descriptor is no TCP socket.
pub fn suspect(level: c_int, name: c_int) -> bool {
    level != libc::SOL_SOCKET || matches!(name, libc::SO_DOMAIN | libc::SO_PROTOCOL)
}

/// True for a descriptor that came from the stack.
pub fn ours(fd: c_int) -> bool {
    peer_of(fd).is_some()
}

/// The peer that a descriptor of the stack stands for. Keeps errno.
pub fn peer_of(fd: c_int) -> Option<SocketAddr> {
    address_of(&name_of(fd, real().getpeername)?)
}

/// The local address that a descriptor of the stack stands for. Keeps errno.
pub fn local_of(fd: c_int) -> Option<SocketAddr> {
    address_of(&name_of(fd, real().getsockname)?)
}

/// The errno with which a connection of the stack failed, 0 if it did not or was asked before. Keeps errno.
pub fn failure(fd: c_int) -> c_int {
    let Some(id) = name_of(fd, real().getsockname).and_then(|name| id_of(&name)) else { return 0 };
    // SAFETY: the C library's errno of this thread, put back below.
    let errno = unsafe { *libc::__errno_location() };
    let ask = || {
        let stack = dial()?;
        let message = Why { id }.encode();
        // SAFETY: pointer and length are those of the message.
        let sent = unsafe {
            libc::send(stack.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL)
        };
        if sent == message.len() as isize { receive(&stack) } else { None }
    };
    let answer = ask().map_or(0, |(errno, _)| errno);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    answer
}

fn name_of(
    fd: c_int,
    ask: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int,
) -> Option<Vec<u8>> {
    // SAFETY: all zero is a valid sockaddr_un, and the length is that of the structure. errno is put back
    // because the program may be about to read it.
    unsafe {
        let errno = *libc::__errno_location();
        let mut name: libc::sockaddr_un = zeroed();
        let mut len = size_of::<libc::sockaddr_un>() as socklen_t;
        let got = ask(fd, (&raw mut name).cast(), &raw mut len);
        *libc::__errno_location() = errno;
        if got != 0 || c_int::from(name.sun_family) != libc::AF_UNIX {
            return None;
        }
        let used = (len as usize).clamp(2, size_of::<libc::sockaddr_un>()) - 2;
        let name = std::slice::from_raw_parts(name.sun_path.as_ptr().cast::<u8>(), used);
        // Most Unix sockets have no name, or one that is not ours.
        address_of(name).map(|_| name.to_vec())
    }
}

/// True if the stack is to have this connection: a TCP socket, and a destination beyond this machine.
pub fn wants(fd: c_int, target: &SocketAddr) -> bool {
    let ip = target.ip();
    !ip.is_loopback()
        && !ip.is_unspecified()
        && !ip.is_multicast()
        && target.port() != 0
        && socket_option(fd, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && socket_option(fd, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

fn socket_option(fd: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    // SAFETY: value and length fit together.
    let got =
        unsafe { (real().getsockopt)(fd, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) };
    (got == 0).then_some(value)
}

/// What the stack answers for a destination that is known to speak plain TCP.
const LEAVE_TO_KERNEL: c_int = libc::EPROTONOSUPPORT;

/// Asks the stack for a connection and puts it in the place of `fd`, keeping the flags of `fd`.
pub fn connect(fd: c_int, target: SocketAddr) -> Outcome {
    let Some(stack) = dial() else { return Outcome::NoStack };
    // SAFETY: plain calls on the program's descriptor.
    let (flags, on_exec) = unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFD)) };
    if flags < 0 || on_exec < 0 {
        return Outcome::Failed(libc::EBADF);
    }
    let ask = Ask { peer: target, bound: bound(fd), nonblocking: flags & libc::O_NONBLOCK != 0 };
    let message = ask.encode();
    // SAFETY: pointer and length are those of the message.
    let sent =
        unsafe { libc::send(stack.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL) };
    if sent != message.len() as isize {
        return Outcome::NoStack;
    }
    let (errno, end) = match receive(&stack) {
        Some(reply) => reply,
        None => return Outcome::NoStack,
    };
    if errno == LEAVE_TO_KERNEL {
        return Outcome::NoStack;
    }
    let Some(end) = end.filter(|_| matches!(errno, 0 | libc::EINPROGRESS)) else {
        return Outcome::Failed(if errno == 0 { libc::EIO } else { errno });
    };
    // SAFETY: plain calls on descriptors that are open; dup3 closes the program's socket.
    unsafe {
        let keep = flags & (libc::O_NONBLOCK | libc::O_ASYNC);
        if libc::fcntl(end.as_raw_fd(), libc::F_SETFL, keep) < 0 {
            return Outcome::Failed(*libc::__errno_location());
        }
        copy_timeouts(fd, end.as_raw_fd());
        let close = if on_exec & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
        if libc::dup3(end.as_raw_fd(), fd, close) < 0 {
            return Outcome::Failed(*libc::__errno_location());
        }
    }
    match errno {
        0 => Outcome::Done,
        // The descriptor becomes writable when the server has answered.
        errno => Outcome::Failed(errno),
    }
}

/// `SO_RCVTIMEO` and `SO_SNDTIMEO` set before `connect` hold after it.
fn copy_timeouts(from: c_int, to: c_int) {
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        // SAFETY: all zero is a valid timeval; value and length fit together.
        unsafe {
            let mut value: libc::timeval = zeroed();
            let mut len = size_of::<libc::timeval>() as socklen_t;
            if (real().getsockopt)(from, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len) == 0 {
                (real().setsockopt)(to, libc::SOL_SOCKET, name, (&raw const value).cast(), len);
            }
        }
    }
}

/// What the program bound with a port of its own choice.
fn bound(fd: c_int) -> Option<SocketAddr> {
    // SAFETY: all zero is a valid sockaddr_storage, the length is its size.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
        if (real().getsockname)(fd, (&raw mut storage).cast(), &raw mut len) != 0 {
            return None;
        }
        read_address((&raw const storage).cast(), len).filter(|a| a.port() != 0 || !a.ip().is_unspecified())
    }
}

fn dial() -> Option<OwnedFd> {
    static PATH: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        use std::os::unix::ffi::OsStringExt;
        std::env::var_os(STACK_ENV).map(OsStringExt::into_vec)
    });
    let path = path.as_ref()?;
    // SAFETY: all zero is a valid sockaddr_un; the path is copied within its bounds.
    unsafe {
        let mut name: libc::sockaddr_un = zeroed();
        name.sun_family = libc::AF_UNIX as libc::sa_family_t;
        if path.is_empty() || path.len() >= name.sun_path.len() {
            return None;
        }
        std::ptr::copy_nonoverlapping(path.as_ptr(), name.sun_path.as_mut_ptr().cast(), path.len());
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return None;
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let len = size_of::<libc::sockaddr_un>() as socklen_t;
        ((real().connect)(fd.as_raw_fd(), (&raw const name).cast(), len) == 0).then_some(fd)
    }
}

/// One reply: errno, and the descriptor that came with it.
fn receive(stack: &OwnedFd) -> Option<(c_int, Option<OwnedFd>)> {
    let mut errno = [0u8; 4];
    let mut control = [0u64; 8];
    // SAFETY: every pointer is to a local that outlives the call, with its own length. A descriptor in the
    // control message belongs to us from then on.
    unsafe {
        let mut part = libc::iovec { iov_base: errno.as_mut_ptr().cast(), iov_len: errno.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = size_of::<[u64; 8]>();
        let got = loop {
            let got = libc::recvmsg(stack.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
            if got >= 0 || *libc::__errno_location() != libc::EINTR {
                break got;
            }
        };
        let mut end = None;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if got >= 0
            && !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
        {
            let fd = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
            end = Some(OwnedFd::from_raw_fd(fd));
        }
        (got == 4).then(|| (c_int::from_ne_bytes(errno), end))
    }
}

/// Reads an address of the Internet families.
///
/// # Safety
/// `address` points to `len` readable octets, or is null.
pub unsafe fn read_address(address: *const sockaddr, len: socklen_t) -> Option<SocketAddr> {
    if address.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // SAFETY: the caller's promise, and the lengths are checked before each read.
    unsafe {
        let family = c_int::from((*address).sa_family);
        if family == libc::AF_INET && len as usize >= size_of::<libc::sockaddr_in>() {
            let a = address.cast::<libc::sockaddr_in>().read_unaligned();
            let ip = Ipv4Addr::from(u32::from_be(a.sin_addr.s_addr));
            return Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(a.sin_port)));
        }
        if family == libc::AF_INET6 && len as usize >= size_of::<libc::sockaddr_in6>() {
            let a = address.cast::<libc::sockaddr_in6>().read_unaligned();
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            // A mapped IPv4 address means IPv4 on the wire.
            let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
            return Some(SocketAddr::new(ip, u16::from_be(a.sin6_port)));
        }
    }
    None
}

/// An address as the kernel would give it, and its length.
pub fn raw_address(address: &SocketAddr) -> ([u8; 28], socklen_t) {
    let mut out = [0; 28];
    out[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            out[..2].copy_from_slice(&(libc::AF_INET as libc::sa_family_t).to_ne_bytes());
            out[4..8].copy_from_slice(&ip.octets());
            (out, size_of::<libc::sockaddr_in>() as socklen_t)
        }
        IpAddr::V6(ip) => {
            out[..2].copy_from_slice(&(libc::AF_INET6 as libc::sa_family_t).to_ne_bytes());
            out[8..24].copy_from_slice(&ip.octets());
            (out, size_of::<libc::sockaddr_in6>() as socklen_t)
        }
    }
}
