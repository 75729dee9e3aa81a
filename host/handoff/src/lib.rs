//! What the shim in a program and the stack of `rivulet run` say to each other.
//!
//! The shim connects to the stack's Unix socket (`SOCK_SEQPACKET`, path in [`STACK_ENV`]), sends one
//! [`Ask`] and gets one reply: an errno, and with 0 a descriptor, one end of a pair of Unix stream sockets.
//! Each end of the pair is bound to an abstract name that says whose address it stands for, so
//! `getpeername` and `getsockname` can be answered wherever the descriptor goes: through `dup`, `fork`,
//! `exec`, or into another process.

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

/// What the stack answers for a destination that is known to speak plain TCP: the kernel is to connect. No connect(2)
/// of TCP's gives this.
pub const LEAVE_TO_KERNEL: i32 = libc::EPROTONOSUPPORT;

/// A fourth argument, which getsockname and getpeername do not have: the question is the shim's own, and the answer is to
/// be the kernel's.
pub const OURS: u32 = 0x7269_7675;

/// Octets of an encoded [`Ask`].
pub const ASK: usize = 2 + 2 * RAW;
/// Octets of an encoded [`Why`].
pub const WHY: usize = 9;

const VERSION: u8 = 5;
const VERSION_WHY: u8 = 3;
const NAME: &[u8] = b"rivulet:";

/// A connection is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Where to.
    pub peer: SocketAddr,
    /// What the program had bound, if anything.
    pub bound: Option<SocketAddr>,
    /// The program does not want to wait for the answer.
    pub nonblocking: bool,
    /// Its socket is of IPv6, and knows IPv4 addresses as mapped ones (RFC 4291, section 2.5.5.2).
    pub mapped: bool,
}

impl Ask {
    /// An address as the program's socket knows it.
    #[must_use]
    pub fn shown(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.mapped => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; ASK] {
        let mut out = [0; ASK];
        (out[0], out[1]) = (VERSION, u8::from(self.nonblocking) | u8::from(self.mapped) << 1);
        out[2..][..RAW].copy_from_slice(&encode(&self.peer).0);
        if let Some(bound) = &self.bound {
            out[2 + RAW..].copy_from_slice(&encode(bound).0);
        }
        out
    }

    /// Reads a message.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<Ask> {
        let message: &[u8; ASK] = message.try_into().ok().filter(|m: &&[u8; ASK]| m[0] == VERSION)?;
        let (peer, bound) = message[2..].split_at(RAW);
        let (nonblocking, mapped) = (message[1] & 1 != 0, message[1] & 2 != 0);
        Some(Ask { peer: decode(peer)?, bound: decode(bound), nonblocking, mapped })
    }
}

/// Asked about a connection that ended: with which errno? It is told once, as `SO_ERROR` is; 0 otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Why {
    /// The connection's number, as in its names.
    pub id: u64,
}

impl Why {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; WHY] {
        let mut out = [VERSION_WHY; WHY];
        out[1..].copy_from_slice(&self.id.to_be_bytes());
        out
    }

    /// Reads a message.
    #[must_use]
    pub fn decode(message: &[u8]) -> Option<Why> {
        let id = message.strip_prefix(&[VERSION_WHY])?;
        Some(Why { id: u64::from_be_bytes(id.try_into().ok()?) })
    }
}

/// Whose address an end of a pair stands for, and which connection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The connection's number: it keeps names apart.
    pub id: u64,
    /// The address.
    pub address: SocketAddr,
}

impl Name {
    /// The abstract name for it.
    pub fn socket_address(&self) -> rustix::io::Result<impl SocketAddrArg> {
        let mut name = NAME.to_vec();
        name.extend_from_slice(format!("{:016x}:{}", self.id, self.address).as_bytes());
        SocketAddrUnix::new_abstract_name(&name)
    }

    /// The name that a descriptor of the stack's has. Keeps errno.
    pub fn of(socket: impl AsFd) -> Option<Name> {
        Name::read(libc::SYS_getsockname, socket.as_fd())
    }

    /// The name that the other end has. Keeps errno.
    pub fn of_peer(socket: impl AsFd) -> Option<Name> {
        Name::read(libc::SYS_getpeername, socket.as_fd())
    }

    /// Most Unix sockets have no name, or one that is not ours.
    fn read(call: libc::c_long, socket: BorrowedFd<'_>) -> Option<Name> {
        let mut raw = [0u8; size_of::<libc::sockaddr_un>()];
        let mut length = raw.len() as libc::socklen_t;
        // SAFETY: buffer and length are locals that fit together; errno is this thread's.
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

/// True for a connection that the stack is to have: a TCP socket, and a destination beyond this machine.
pub fn wants(socket: impl AsFd, target: &SocketAddr) -> bool {
    let ip = target.ip();
    !ip.is_loopback()
        && !ip.is_unspecified()
        && !ip.is_multicast()
        && target.port() != 0
        && socket_type(&socket) == Ok(SocketType::STREAM)
        && socket_protocol(&socket) == Ok(Some(ipproto::TCP))
}

/// What a program bound a socket to with an address or port of its own choice.
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
    fn asks_and_names_come_back() {
        let four: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let six: SocketAddr = "[fd00:1:2:3:4:5:6:7]:65535".parse().unwrap();
        for ask in [
            Ask { peer: four, bound: None, nonblocking: true, mapped: false },
            Ask { peer: four, bound: None, nonblocking: false, mapped: true },
            Ask { peer: six, bound: Some(six), nonblocking: false, mapped: false },
        ] {
            assert_eq!(Ask::decode(&ask.encode()), Some(ask));
        }
        assert_eq!(Ask::decode(&[0; ASK]), None);
        assert_eq!(Ask::decode(&[1; ASK - 1]), None);
        let ask = Ask { peer: four, bound: None, nonblocking: false, mapped: true };
        assert_eq!(ask.shown(four), "[::ffff:10.0.0.1]:80".parse().unwrap());
        assert_eq!(ask.shown(six), six);
        assert_eq!(Ask { mapped: false, ..ask }.shown(four), four);
        assert_eq!(Why::decode(&Why { id: 7 }.encode()), Some(Why { id: 7 }));
        assert_eq!(Why::decode(&Why { id: 7 }.encode()[..8]), None);
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
