//! Local ports, and how the kernel's TCP is kept from answering on them.
//!
//! The user-space stack owns the local port, but the kernel sees the same segments and would answer
//! each with a RST. So the kernel gets a socket for exactly this connection, established in repair
//! mode without sending a packet (`TCP_REPAIR`, tcp(7) and CRIU), with a filter that drops
//! everything received. The socket reserves the port and never answers. It disappears with the
//! process, however that ends, without a FIN or RST.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// A connection's local port, released on drop.
#[derive(Debug)]
pub struct LocalPort {
    _socket: Socket,
    address: SocketAddr,
}

impl LocalPort {
    /// Reserves `local` (port 0: an ephemeral one) for a connection to `remote`. Needs `CAP_NET_ADMIN`.
    pub fn reserve(local: SocketAddr, remote: SocketAddr) -> io::Result<LocalPort> {
        // Return value 0 truncates each segment to 0 bytes, which drops it before TCP.
        let nothing = SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0);
        let socket = repaired(local)?;
        socket.attach_filter(&[nothing])?;
        // In repair mode this sends nothing.
        socket.bind(&local.into())?;
        socket.connect(&remote.into())?;
        let there = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(LocalPort { address: SocketAddr::new(local.ip(), there.port()), _socket: socket })
    }

    /// Address and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A TCP socket in repair mode, of the family of `local`.
fn repaired(local: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(local), Type::STREAM, Some(Protocol::TCP))?;
    let (on, length) = (1i32, size_of::<i32>() as libc::socklen_t);
    let (fd, at) = (socket.as_raw_fd(), (&raw const on).cast());
    // SAFETY: pointer and length are those of a local, which is read only.
    match unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR, at, length) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}
