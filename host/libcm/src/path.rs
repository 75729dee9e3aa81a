//! Derives a flow's addresses, ports, code point and MTU from a socket.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use rivulet_cm::Key;

/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// From linux/in6.h; rustix and libc have no getter for it.
const IPV6_MTU: libc::c_int = 24;
/// Bytes of an IPv4 header without options, or of an IPv6 header, plus the UDP header.
const HEADERS_V4: u32 = 28;
const HEADERS_V6: u32 = 48;

/// Returns the key of the flow from a socket, connected or not, to this address, and the payload
/// bytes of its largest packets (the kernel's path MTU without headers).
///
/// # Errors
/// There is no route, or the socket is not bound to a port.
pub fn describe(socket: &UdpSocket, destination: SocketAddr) -> io::Result<(Key, u32)> {
    let local = socket.local_addr()?;
    let four = local.is_ipv4() || destination.ip().to_canonical().is_ipv4();
    let (level, class) =
        if four { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
    let class = option(socket, level, class).unwrap_or(0);
    find(local, destination, (class as u32 >> 2 & 63) as u8)
}

/// The same for a socket bound to `local`. An unspecified address becomes the one that packets to
/// the destination are sent from.
///
/// # Errors
/// There is no route, or no port.
pub fn find(local: SocketAddr, destination: SocketAddr, dscp: u8) -> io::Result<(Key, u32)> {
    if local.port() == 0 || destination.port() == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a flow needs a source and a destination port",
        ));
    }
    let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
    let (mut local, destination) = (canonical(local), canonical(destination));
    if local.ip().is_unspecified() && destination.is_ipv4() {
        local.set_ip(std::net::Ipv4Addr::UNSPECIFIED.into());
    }
    // A connected probe socket reveals the source address that an unconnected one would use.
    let probe = UdpSocket::bind((local.ip(), 0))?;
    probe.connect(destination)?;
    let source = SocketAddr::new(probe.local_addr()?.ip(), local.port());
    let (level, name, headers) = match source {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU, HEADERS_V4),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, IPV6_MTU, HEADERS_V6),
    };
    let mtu = option(&probe, level, name)?;
    let key = Key { source, destination, protocol: UDP, dscp };
    Ok((key, (mtu as u32).saturating_sub(headers).clamp(1, 65_535)))
}

fn option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `length` is the value's size.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_address_is_the_one_that_packets_leave_by() {
        for (bind, to) in
            [("0.0.0.0:0", "127.0.0.1:9"), ("[::]:0", "[::1]:9"), ("[::]:0", "[::ffff:127.0.0.1]:9")]
        {
            let socket = UdpSocket::bind(bind).unwrap();
            let (key, mtu) = describe(&socket, to.parse().unwrap()).unwrap();
            assert_eq!(key.source.ip(), key.destination.ip(), "{bind}");
            assert_eq!(key.source.port(), socket.local_addr().unwrap().port());
            assert_eq!((key.protocol, key.dscp), (UDP, 0));
            // Loopback's MTU is 65,536.
            assert!(mtu > 65_000, "{mtu}");
        }
        assert!(describe(&UdpSocket::bind("127.0.0.1:0").unwrap(), "[::1]:9".parse().unwrap()).is_err());
    }
}
