//! Asking the stack for a connection, and telling its descriptors from others.

use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use libc::{c_int, c_void, sockaddr, socklen_t};

use crate::protocol::{Ask, STACK_ENV, Why, address_of, id_of};
use crate::real::{errno, real, set_errno};
use crate::{epoll, options, pending, writes};

/// What came of [`connect`].
pub enum Outcome {
    /// The descriptor is connected.
    Done,
    /// It failed with this errno.
    Failed(c_int),
    /// There is no stack to ask; the kernel is to connect.
    NoStack,
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

/// The number of the connection that a descriptor of the stack stands for. Keeps errno.
pub fn id_of_socket(fd: c_int) -> Option<u64> {
    id_of(&name_of(fd, real().getsockname)?)
}

/// The errno with which a connection of the stack failed, 0 if it did not or was asked before. Keeps errno.
pub fn failure(fd: c_int) -> c_int {
    let before = errno();
    let ask = || {
        let id = id_of_socket(fd)?;
        let stack = dial(None)?;
        send(&stack, &Why { id }.encode()).then_some(())?;
        loop {
            match receive(&stack) {
                Err(libc::EINTR) => {}
                other => return other.ok().map(|(why, _)| why),
            }
        }
    };
    let why = ask().unwrap_or(0);
    if why != 0 {
        // The kernel may have its own word for it, which must not be told beside this one.
        socket_option(fd, libc::SO_ERROR);
    }
    set_errno(before);
    why
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
    // SAFETY: plain calls on the program's descriptor.
    let (flags, on_exec) = unsafe { (libc::fcntl(fd, libc::F_GETFL), libc::fcntl(fd, libc::F_GETFD)) };
    if flags < 0 || on_exec < 0 {
        return Outcome::Failed(libc::EBADF);
    }
    let six = peer_of(fd).map_or_else(
        || socket_option(fd, libc::SO_DOMAIN) == Some(libc::AF_INET6),
        |before| before.is_ipv6(),
    );
    let nonblocking = flags & libc::O_NONBLOCK != 0;
    let ask = Ask { peer: target, bound: bound(fd), nonblocking, mapped: six && target.is_ipv4() };
    let patience = if nonblocking { None } else { timeout(fd) };
    let mut stopped = 0;
    let mut reply = question(&ask, patience);
    if let Err(why @ (libc::EINTR | libc::EAGAIN)) = reply
        && !nonblocking
    {
        // A signal or SO_SNDTIMEO ends the wait, not the attempt: one that is not waited for takes its place.
        stopped = if why == libc::EAGAIN { libc::EINPROGRESS } else { why };
        reply = question(&Ask { nonblocking: true, ..ask }, None);
    }
    let Ok((errno, end)) = reply else { return Outcome::NoStack };
    if errno == LEAVE_TO_KERNEL {
        return Outcome::NoStack;
    }
    let Some(end) = end.filter(|_| matches!(errno, 0 | libc::EINPROGRESS)) else {
        return Outcome::Failed(if errno == 0 { libc::EIO } else { errno });
    };
    if let Err(errno) = replace(fd, &end, flags, on_exec & libc::FD_CLOEXEC != 0) {
        return Outcome::Failed(errno);
    }
    if errno == 0 {
        return Outcome::Done;
    }
    // The descriptor becomes writable when the server has answered.
    if let Some(id) = id_of_socket(fd) {
        pending::begin(id);
    }
    Outcome::Failed(if stopped != 0 { stopped } else { errno })
}

/// Puts `end` in the place of `fd`, with what the program had set.
fn replace(fd: c_int, end: &OwnedFd, flags: c_int, on_exec: bool) -> Result<(), c_int> {
    let new = end.as_raw_fd();
    // SAFETY: a plain call on a descriptor that is open.
    if unsafe { libc::fcntl(new, libc::F_SETFL, flags & (libc::O_NONBLOCK | libc::O_ASYNC)) } < 0 {
        return Err(errno());
    }
    if let (Some(id), Some(peer)) = (id_of_socket(new), peer_of(new)) {
        options::carry(fd, new, id, &peer);
    }
    let sets = epoll::leave(fd);
    // SAFETY: plain calls on descriptors that are open; dup3 closes the program's socket.
    let put = unsafe { libc::dup3(new, fd, if on_exec { libc::O_CLOEXEC } else { 0 }) };
    let why = errno();
    sets.come_back();
    writes::note_socket(fd);
    if put < 0 { Err(why) } else { Ok(()) }
}

/// Whether calls on this descriptor do not wait.
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: a plain call.
    unsafe { libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK != 0 }
}

/// A TCP socket that [`connect`] may be called on.
pub fn is_unconnected_tcp(fd: c_int) -> bool {
    if socket_option(fd, libc::SO_PROTOCOL) != Some(libc::IPPROTO_TCP)
        || socket_option(fd, libc::SO_ACCEPTCONN) != Some(0)
    {
        return false;
    }
    // SAFETY: the length is that of the address.
    unsafe {
        let mut storage: libc::sockaddr_storage = zeroed();
        let mut len = size_of::<libc::sockaddr_storage>() as socklen_t;
        (real().getpeername)(fd, (&raw mut storage).cast(), &raw mut len) != 0 && errno() == libc::ENOTCONN
    }
}

/// `SO_SNDTIMEO`, which bounds connect(2) too; none if there is none.
fn timeout(fd: c_int) -> Option<libc::timeval> {
    // SAFETY: all zero is a valid timeval; value and length fit together.
    unsafe {
        let mut value: libc::timeval = zeroed();
        let mut len = size_of::<libc::timeval>() as socklen_t;
        let got = (real().getsockopt)(
            fd,
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw mut value).cast(),
            &raw mut len,
        );
        (got == 0 && (value.tv_sec, value.tv_usec) != (0, 0)).then_some(value)
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

/// Asks the stack: its errno, and the descriptor that came with it. An error: `EINTR` or `EAGAIN` if the wait was ended,
/// another one if there is no stack.
fn question(ask: &Ask, patience: Option<libc::timeval>) -> Result<(c_int, Option<OwnedFd>), c_int> {
    let stack = dial(patience).ok_or(libc::ECONNREFUSED)?;
    if !send(&stack, &ask.encode()) {
        return Err(libc::EPIPE);
    }
    loop {
        match receive(&stack) {
            // It does not take long.
            Err(libc::EINTR) if ask.nonblocking => {}
            other => return other,
        }
    }
}

fn send(stack: &OwnedFd, message: &[u8]) -> bool {
    // SAFETY: pointer and length are those of the message.
    let sent = unsafe {
        (real().send)(stack.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL)
    };
    sent == message.len() as isize
}

/// Connects to the stack; replies are waited for for so long.
fn dial(patience: Option<libc::timeval>) -> Option<OwnedFd> {
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
        if let Some(patience) = patience {
            let len = size_of::<libc::timeval>() as socklen_t;
            let value = (&raw const patience).cast();
            (real().setsockopt)(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, len);
        }
        let len = size_of::<libc::sockaddr_un>() as socklen_t;
        ((real().connect)(fd.as_raw_fd(), (&raw const name).cast(), len) == 0).then_some(fd)
    }
}

/// One reply: errno, and the descriptor that came with it.
fn receive(stack: &OwnedFd) -> Result<(c_int, Option<OwnedFd>), c_int> {
    let mut said = [0u8; 4];
    let mut control = [0u64; 8];
    // SAFETY: every pointer is to a local that outlives the call, with its own length. A descriptor in the
    // control message belongs to us from then on.
    unsafe {
        let mut part = libc::iovec { iov_base: said.as_mut_ptr().cast(), iov_len: said.len() };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = size_of::<[u64; 8]>();
        let got = (real().recvmsg)(stack.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        if got < 0 {
            return Err(errno());
        }
        let mut end = None;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_RIGHTS
        {
            let fd = libc::CMSG_DATA(header).cast::<c_int>().read_unaligned();
            end = Some(OwnedFd::from_raw_fd(fd));
        }
        if got == 4 { Ok((c_int::from_ne_bytes(said), end)) } else { Err(libc::EPIPE) }
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
