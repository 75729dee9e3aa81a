//! What the shim in a program and the stack of `rivulet run` say to each other.
//!
//! The shim connects to the stack's Unix socket (`SOCK_SEQPACKET`, path in [`STACK_ENV`]), sends one
//! [`Ask`] and gets one reply: an errno, and with 0 a descriptor, one end of a pair of Unix stream sockets.
//! Each end of the pair is bound to an abstract name that says whose address it stands for, so
//! `getpeername` and `getsockname` can be answered wherever the descriptor goes: through `dup`, `fork`,
//! `exec`, or into another process.

#![allow(dead_code, reason = "the shim and the stack each use their half")]

use std::net::{IpAddr, SocketAddr};

/// Environment variable with the path of the stack's socket.
pub const STACK_ENV: &str = "RIVULET_STACK";

/// Octets of an encoded [`Ask`].
pub const ASK: usize = 40;
/// Octets of an encoded [`Why`].
pub const WHY: usize = 9;

const VERSION: u8 = 4;
const VERSION_WHY: u8 = 3;
const NAME: &[u8] = b"\0rivulet:";

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
    pub fn shown(&self, address: SocketAddr) -> SocketAddr {
        match address.ip() {
            IpAddr::V4(ip) if self.mapped => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            _ => address,
        }
    }

    /// The message.
    pub fn encode(&self) -> [u8; ASK] {
        let mut out = [0; ASK];
        out[0] = VERSION;
        put(&mut out[1..20], Some(self.peer));
        put(&mut out[20..39], self.bound);
        out[39] = u8::from(self.nonblocking) | u8::from(self.mapped) << 1;
        out
    }

    /// Reads a message.
    pub fn decode(message: &[u8]) -> Option<Ask> {
        if message.len() != ASK || message[0] != VERSION {
            return None;
        }
        let (nonblocking, mapped) = (message[39] & 1 != 0, message[39] & 2 != 0);
        Some(Ask { peer: get(&message[1..20])?, bound: get(&message[20..39]), nonblocking, mapped })
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
    pub fn encode(&self) -> [u8; WHY] {
        let mut out = [VERSION_WHY; WHY];
        out[1..].copy_from_slice(&self.id.to_be_bytes());
        out
    }

    /// Reads a message.
    pub fn decode(message: &[u8]) -> Option<Why> {
        let id = message.strip_prefix(&[VERSION_WHY])?;
        Some(Why { id: u64::from_be_bytes(id.try_into().ok()?) })
    }
}

fn put(out: &mut [u8], address: Option<SocketAddr>) {
    let Some(address) = address else { return };
    out[1..3].copy_from_slice(&address.port().to_be_bytes());
    match address.ip() {
        IpAddr::V4(a) => {
            out[0] = 4;
            out[3..7].copy_from_slice(&a.octets());
        }
        IpAddr::V6(a) => {
            out[0] = 6;
            out[3..19].copy_from_slice(&a.octets());
        }
    }
}

fn get(from: &[u8]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([from[1], from[2]]);
    let ip = match from[0] {
        4 => IpAddr::from(<[u8; 4]>::try_from(&from[3..7]).ok()?),
        6 => IpAddr::from(<[u8; 16]>::try_from(&from[3..19]).ok()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The abstract name (with its leading zero) that stands for `address`; `id` keeps names apart.
pub fn name(id: u64, address: SocketAddr) -> Vec<u8> {
    let mut name = NAME.to_vec();
    name.extend_from_slice(format!("{id:016x}:{address}").as_bytes());
    name
}

/// The number in an abstract name made by [`name`].
pub fn id_of(name: &[u8]) -> Option<u64> {
    let digits = name.strip_prefix(NAME)?.get(..16)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The address in an abstract name made by [`name`].
pub fn address_of(name: &[u8]) -> Option<SocketAddr> {
    let rest = name.strip_prefix(NAME)?.get(17..)?;
    std::str::from_utf8(rest).ok()?.parse().ok()
}
