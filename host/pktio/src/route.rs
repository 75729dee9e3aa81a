//! Route and neighbour lookups in the kernel (`ip route get`, `ip neighbour get`).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, recv};

use crate::netlink::{ask, attributes, push_attribute, socket, u16_at, u32_at};

/// linux/rtnetlink.h
const RTAX_MTU: u16 = 2;
/// Bytes of `struct rtmsg` and of `struct ndmsg`.
const HEAD: usize = 12;

/// The kernel's route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Interface index.
    pub interface: u32,
    /// Next router, `None` if the destination is directly reachable.
    pub gateway: Option<IpAddr>,
    /// Address to send from.
    pub source: IpAddr,
    /// Path MTU that the kernel has cached or configured for the route, 0 if none.
    pub mtu: u32,
    /// Whether the destination is an address of this machine.
    pub local: bool,
}

/// Messages read at once; more follow at the next call.
const MAX_MESSAGES: usize = 64;

/// Announcements of changed addresses and routes of a namespace. Poll it; it does not block.
#[derive(Debug)]
pub struct Changes(OwnedFd);

impl Changes {
    /// Subscribes in the namespace of the calling thread.
    ///
    /// # Errors
    /// The system's.
    pub fn open() -> io::Result<Changes> {
        let addresses = libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        let routes = libc::RTMGRP_IPV4_ROUTE | libc::RTMGRP_IPV6_ROUTE;
        socket(SocketFlags::NONBLOCK, (addresses | routes) as u32).map(Changes)
    }

    /// Whether something changed since the last call. What it was is not kept: the caller looks at what it uses.
    #[must_use]
    pub fn take(&self) -> bool {
        let mut room = [0; 8];
        let mut changed = false;
        for _ in 0..MAX_MESSAGES {
            match recv(&self.0, &mut room, RecvFlags::DONTWAIT) {
                // The kernel dropped announcements: something changed.
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        changed
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Looks up the route to `destination`, from `source` if given.
///
/// # Errors
/// There is no route, or the kernel does not answer.
pub fn route(destination: IpAddr, source: Option<IpAddr>) -> io::Result<Route> {
    let (family, bits) = family(destination);
    // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
    let mut body = vec![family, bits, source.map_or(0, |_| bits), 0, 0, 0, 0, 0, 0, 0, 0, 0];
    push_attribute(&mut body, libc::RTA_DST, &octets(destination));
    if let Some(source) = source {
        push_attribute(&mut body, libc::RTA_SRC, &octets(source));
    }
    let answer = ask(&socket(SocketFlags::empty(), 0)?, libc::RTM_GETROUTE, &body)?;
    let kind = *answer.get(7).ok_or(io::ErrorKind::UnexpectedEof)?;
    if !matches!(kind, libc::RTN_UNICAST | libc::RTN_LOCAL) {
        return Err(io::ErrorKind::HostUnreachable.into());
    }
    let (mut interface, mut gateway, mut from, mut mtu) = (0, None, source, 0);
    for (kind, value) in attributes(answer.get(HEAD..).unwrap_or_default()) {
        match kind {
            libc::RTA_OIF => interface = u32_at(value, 0).unwrap_or(0),
            libc::RTA_GATEWAY => gateway = address(value),
            libc::RTA_PREFSRC => from = from.or(address(value)),
            libc::RTA_METRICS => {
                let metric = attributes(value).find(|(kind, _)| *kind == RTAX_MTU);
                mtu = metric.and_then(|(_, value)| u32_at(value, 0)).unwrap_or(0);
            }
            _ => {}
        }
    }
    let source = from.ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok(Route { interface, gateway, source, mtu, local: kind == libc::RTN_LOCAL })
}

/// The Ethernet address of a neighbour, `None` if the kernel does not have it yet.
///
/// # Errors
/// The kernel does not answer.
pub fn neighbour(interface: u32, address: IpAddr) -> io::Result<Option<[u8; 6]>> {
    // struct ndmsg: family, pad, pad, ifindex, state, flags, type.
    let mut body = vec![family(address).0, 0, 0, 0];
    body.extend(interface.to_ne_bytes());
    body.extend([0; 4]);
    push_attribute(&mut body, libc::NDA_DST, &octets(address));
    let answer = match ask(&socket(SocketFlags::empty(), 0)?, libc::RTM_GETNEIGH, &body) {
        Ok(answer) => answer,
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(e) => return Err(e),
    };
    if u16_at(&answer, 8).is_some_and(|state| state & (libc::NUD_INCOMPLETE | libc::NUD_FAILED) != 0) {
        return Ok(None);
    }
    Ok(attributes(answer.get(HEAD..).unwrap_or_default())
        .find(|(kind, _)| *kind == libc::NDA_LLADDR)
        .and_then(|(_, value)| value.try_into().ok()))
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
    fn an_unknown_neighbour_is_none() {
        assert_eq!(neighbour(1, IpAddr::from([192, 0, 2, 1])).unwrap(), None);
        assert!(neighbour(u32::MAX, IpAddr::from([192, 0, 2, 1])).is_err());
    }
}
