//! The protocol between the shim in a program and the stack of `rivulet run`.
//!
//! The shim connects to the stack's Unix socket (`SOCK_SEQPACKET`, path in [`STACK_ENV`]), sends
//! one [`ConnectRequest`] and receives one reply: an errno, and with 0 a descriptor, one end of a pair of Unix
//! stream sockets. Each end of the pair is bound to an abstract name that contains the address it
//! represents. So `getpeername` and `getsockname` can be answered wherever the descriptor goes:
//! through `dup`, `fork`, `exec`, or into another process.

mod passing;
mod sockaddr;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::addr::SocketAddrArg;
use rustix::net::sockopt::{socket_protocol, socket_type};
use rustix::net::{SocketAddrUnix, SocketType, getsockname, ipproto};

pub use passing::{receive, send};
pub use sockaddr::{RAW, decode, encode};

/// Environment variable with the path of the stack's socket.
pub const STACK_ENV: &str = "RIVULET_STACK";

/// Reply for a destination known to serve only plain TCP: the kernel must connect. TCP's connect(2)
/// never returns this errno.
pub const LEAVE_TO_KERNEL: i32 = libc::EPROTONOSUPPORT;

/// Extra fourth argument of getsockname and getpeername, which marks a call of the shim itself that
/// the kernel must answer.
pub const OURS: u32 = 0x7269_7675;

/// Bytes of an encoded [`ConnectRequest`].
pub const CONNECT_REQUEST_BYTES: usize = 2 + 2 * RAW;
/// Bytes of an encoded [`ErrorQuery`].
pub const ERROR_QUERY_BYTES: usize = 9;

const VERSION: u8 = 5;
const VERSION_WHY: u8 = 3;
const NAME: &[u8] = b"rivulet:";

/// Requests a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Destination.
    pub peer: SocketAddr,
    /// Local address that the program had bound, if any.
    pub bound: Option<SocketAddr>,
    /// The program does not wait for the connection (non-blocking).
    pub nonblocking: bool,
    /// The program's socket is IPv6 and shows IPv4 addresses as mapped ones (RFC 4291, section
    /// 2.5.5.2).
    pub mapped: bool,
}

impl ConnectRequest {
    /// An address in the form that the program's socket shows.
    #[must_use]
    pub fn shown(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.mapped => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }

    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> [u8; CONNECT_REQUEST_BYTES] {
        let mut out = [0; CONNECT_REQUEST_BYTES];
        (out[0], out[1]) = (VERSION, u8::from(self.nonblocking) | u8::from(self.mapped) << 1);
        out[2..][..RAW].copy_from_slice(&encode(&self.peer).0);
        if let Some(bound) = &self.bound {
            out[2 + RAW..].copy_from_slice(&encode(bound).0);
        }
        out
    }

    /// Decodes a message.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<ConnectRequest> {
        let message: &[u8; CONNECT_REQUEST_BYTES] =
            message.try_into().ok().filter(|m: &&[u8; CONNECT_REQUEST_BYTES]| m[0] == VERSION)?;
        let (peer, bound) = message[2..].split_at(RAW);
        let (nonblocking, mapped) = (message[1] & 1 != 0, message[1] & 2 != 0);
        Some(ConnectRequest { peer: decode(peer)?, bound: decode(bound), nonblocking, mapped })
    }
}

/// Queries the errno with which a connection ended. The reply is the errno once, as with
/// `SO_ERROR`, and 0 otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorQuery {
    /// The connection's number, as in its names.
    pub id: u64,
}

impl ErrorQuery {
    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> [u8; ERROR_QUERY_BYTES] {
        let mut out = [VERSION_WHY; ERROR_QUERY_BYTES];
        out[1..].copy_from_slice(&self.id.to_be_bytes());
        out
    }

    /// Decodes a message.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<ErrorQuery> {
        let id = message.strip_prefix(&[VERSION_WHY])?;
        Some(ErrorQuery { id: u64::from_be_bytes(id.try_into().ok()?) })
    }
}

/// Name of one end of a pair: the address that it represents, and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The connection's number, which makes names unique.
    pub id: u64,
    /// The address.
    pub address: SocketAddr,
}

impl Name {
    /// The abstract socket name.
    pub fn socket_address(&self) -> rustix::io::Result<impl SocketAddrArg> {
        let mut name = NAME.to_vec();
        name.extend_from_slice(format!("{:016x}:{}", self.id, self.address).as_bytes());
        SocketAddrUnix::new_abstract_name(&name)
    }

    /// The name of a descriptor of the stack. Preserves errno.
    pub fn of(socket: impl AsFd) -> Option<Name> {
        Name::read(libc::SYS_getsockname, socket.as_fd())
    }

    /// The name of the other end. Preserves errno.
    pub fn of_peer(socket: impl AsFd) -> Option<Name> {
        Name::read(libc::SYS_getpeername, socket.as_fd())
    }

    /// Most Unix sockets have no name, or not one of ours.
    fn read(call: libc::c_long, socket: BorrowedFd<'_>) -> Option<Name> {
        let mut raw = [0u8; size_of::<libc::sockaddr_un>()];
        let mut length = raw.len() as libc::socklen_t;
        // SAFETY: buffer and length are locals that fit together; errno belongs to this thread.
        let done = unsafe {
            let before = *libc::__errno_location();
            let at = raw.as_mut_ptr();
            let done = libc::syscall(call, socket.as_raw_fd(), at, &raw mut length, OURS as libc::c_long);
            *libc::__errno_location() = before;
            done
        };
        let name = raw.get(..length as usize).filter(|_| done == 0)?;
        let (family, name) = name.split_first_chunk()?;
        let of_unix = libc::c_int::from(libc::sa_family_t::from_ne_bytes(*family)) == libc::AF_UNIX;
        let text = std::str::from_utf8(name.strip_prefix(b"\0")?.strip_prefix(NAME)?).ok()?;
        let (id, address) = text.split_once(':').filter(|_| of_unix)?;
        Some(Name { id: u64::from_str_radix(id, 16).ok()?, address: address.parse().ok()? })
    }
}

/// Whether the stack handles a connection: a TCP socket to a destination beyond this machine.
pub fn wants(socket: impl AsFd, target: &SocketAddr) -> bool {
    let ip = target.ip();
    !ip.is_loopback()
        && !ip.is_unspecified()
        && !ip.is_multicast()
        && target.port() != 0
        && socket_type(&socket) == Ok(SocketType::STREAM)
        && socket_protocol(&socket) == Ok(Some(ipproto::TCP))
}

/// The local address that a program bound, if it chose an address or port.
pub fn bound(socket: impl AsFd) -> Option<SocketAddr> {
    let address = SocketAddr::try_from(getsockname(socket).ok()?).ok()?;
    let ip = address.ip().to_canonical();
    Some(SocketAddr::new(ip, address.port())).filter(|a| a.port() != 0 || !a.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn messages_and_names_round_trip() {
        let four: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let six: SocketAddr = "[fd00:1:2:3:4:5:6:7]:65535".parse().unwrap();
        for ask in [
            ConnectRequest { peer: four, bound: None, nonblocking: true, mapped: false },
            ConnectRequest { peer: four, bound: None, nonblocking: false, mapped: true },
            ConnectRequest { peer: six, bound: Some(six), nonblocking: false, mapped: false },
        ] {
            assert_eq!(ConnectRequest::decode(&ask.encode()), Some(ask));
        }
        assert_eq!(ConnectRequest::decode(&[0; CONNECT_REQUEST_BYTES]), None);
        assert_eq!(ConnectRequest::decode(&[1; CONNECT_REQUEST_BYTES - 1]), None);
        let ask = ConnectRequest { peer: four, bound: None, nonblocking: false, mapped: true };
        assert_eq!(ask.shown(four), "[::ffff:10.0.0.1]:80".parse().unwrap());
        assert_eq!(ask.shown(six), six);
        assert_eq!(ConnectRequest { mapped: false, ..ask }.shown(four), four);
        assert_eq!(ErrorQuery::decode(&ErrorQuery { id: 7 }.encode()), Some(ErrorQuery { id: 7 }));
        assert_eq!(ErrorQuery::decode(&ErrorQuery { id: 7 }.encode()[..8]), None);
        for (id, address) in (u64::MAX - 9..).zip([four, six, ask.shown(four)]) {
            let (one, other) = UnixStream::pair().unwrap();
            assert_eq!((Name::of(&one), Name::of_peer(&other)), (None, None));
            let name = Name { id, address };
            rustix::net::bind(&one, &name.socket_address().unwrap()).unwrap();
            assert_eq!((Name::of(&one), Name::of_peer(&other)), (Some(name), Some(name)));
        }
        let (strange, _) = UnixStream::pair().unwrap();
        rustix::net::bind(&strange, &SocketAddrUnix::new_abstract_name(b"rivulet:").unwrap()).unwrap();
        assert_eq!(Name::of(&strange), None);
    }
}
