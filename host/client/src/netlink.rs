//! The two questions that a stack asks the kernel's routing: which way, and to which Ethernet address.
//!
//! Both are single rtnetlink requests (`ip route get`, `ip neighbour get`), written out here: two
//! message layouts do not need a library.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const NLMSG_ERROR: u16 = 2;
const HEADER: usize = 16;
/// linux/rtnetlink.h
const RTAX_MTU: u16 = 2;

/// What the kernel's routing says about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Interface index.
    pub interface: u32,
    /// The router on the way, none if the destination is a neighbour itself.
    pub gateway: Option<IpAddr>,
    /// Address to send from.
    pub source: IpAddr,
    /// Path MTU that the kernel has cached or configured for the route, 0 if none.
    pub mtu: u32,
    /// The destination is an address of this machine.
    pub local: bool,
}

/// Asks for the route to `destination`, from `source` if given.
pub fn route(destination: IpAddr, source: Option<IpAddr>) -> io::Result<Route> {
    let (family, bits) = family(destination);
    // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
    let mut body = vec![family, bits, source.map_or(0, |_| bits), 0, 0, 0, 0, 0, 0, 0, 0, 0];
    attribute(&mut body, libc::RTA_DST, &octets(destination));
    if let Some(source) = source {
        attribute(&mut body, libc::RTA_SRC, &octets(source));
    }
    let answer = ask(libc::RTM_GETROUTE, &body)?;
    let kind = *answer.get(7).ok_or(io::ErrorKind::UnexpectedEof)?;
    if !matches!(kind, libc::RTN_UNICAST | libc::RTN_LOCAL) {
        return Err(io::ErrorKind::HostUnreachable.into());
    }
    let (mut interface, mut gateway, mut from, mut mtu) = (0, None, source, 0);
    for (kind, value) in attributes(answer.get(12..).unwrap_or_default()) {
        match kind {
            libc::RTA_OIF => interface = word(value),
            libc::RTA_GATEWAY => gateway = address(value),
            libc::RTA_PREFSRC => from = from.or(address(value)),
            libc::RTA_METRICS => {
                let metric = attributes(value).find(|(kind, _)| *kind == RTAX_MTU);
                mtu = metric.map_or(0, |(_, value)| word(value));
            }
            _ => {}
        }
    }
    let source = from.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(Route { interface, gateway, source, mtu, local: kind == libc::RTN_LOCAL })
}

/// The Ethernet address that the kernel knows for a neighbour, `None` if it has to be asked for.
pub fn neighbour(interface: u32, address: IpAddr) -> io::Result<Option<[u8; 6]>> {
    // struct ndmsg: family, pad, pad, ifindex, state, flags, type.
    let mut body = vec![family(address).0, 0, 0, 0];
    body.extend_from_slice(&interface.to_ne_bytes());
    body.extend_from_slice(&[0; 4]);
    attribute(&mut body, libc::NDA_DST, &octets(address));
    let answer = match ask(libc::RTM_GETNEIGH, &body) {
        Ok(answer) => answer,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    let state = answer.get(8..10).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]));
    if state & (libc::NUD_INCOMPLETE | libc::NUD_FAILED) != 0 {
        return Ok(None);
    }
    Ok(attributes(answer.get(12..).unwrap_or_default())
        .find(|(kind, _)| *kind == libc::NDA_LLADDR)
        .and_then(|(_, value)| value.try_into().ok()))
}

/// Sends one request and returns the answer's body without the netlink header.
fn ask(kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    // SAFETY: plain system call; the result is checked.
    let fd =
        unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    message.extend_from_slice(&1u32.to_ne_bytes());
    message.extend_from_slice(&0u32.to_ne_bytes());
    message.extend_from_slice(body);
    // SAFETY: the pointer and length are those of `message`.
    let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut buffer = vec![0u8; 16 << 10];
    // SAFETY: the pointer and length are those of `buffer`.
    let got = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    buffer.truncate(got);
    if got < HEADER + 4 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let length = word(&buffer) as usize;
    let kind = u16::from_ne_bytes([buffer[4], buffer[5]]);
    if kind == NLMSG_ERROR {
        let code = i32::from_ne_bytes([buffer[16], buffer[17], buffer[18], buffer[19]]);
        return Err(io::Error::from_raw_os_error(-code));
    }
    Ok(buffer[HEADER..length.clamp(HEADER, got)].to_vec())
}

fn family(address: IpAddr) -> (u8, u8) {
    match address {
        IpAddr::V4(_) => (libc::AF_INET as u8, 32),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
        _ => None,
    }
}

fn word(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b))
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The attributes of a message, ending at the first that does not fit.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, _) = rest.split_at_checked(4)?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn loopback_is_local() {
        let localhost = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let route = route(localhost, None).unwrap();
        assert!(route.local && route.source == localhost && route.gateway.is_none());
        assert!(route.interface > 0);
    }

    #[test]
    fn broken_attributes_end_the_walk() {
        assert_eq!(attributes(&[]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0, 5]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1, 0, 5]).next(), Some((1, &[5u8][..])));
    }
}
