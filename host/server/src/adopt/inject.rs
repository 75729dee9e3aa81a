//! Passes packets of adopted connections to this host's TCP, although the service's segments are
//! otherwise kept from it.
//!
//! A raw socket sends them to the service address, which this host has. They arrive through the
//! loopback device with the client's address as source. So the decision is made in one place for
//! all kinds of packet I/O (packet sockets, AF_XDP, tunnels), and the kernel gets exactly the
//! packets selected.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rivulet_packet::checksum::Sum;
use rivulet_pktio::in_netns;
use rivulet_plain::Segment;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with, sockopt};

/// Socket buffer in bytes. Packets are consumed at once, unless the CPU is overloaded.
const QUEUE: usize = 4 << 20;
/// Maximum length of a packet passed to the kernel, in bytes: a jumbo frame's.
pub(super) const MAX_PACKET: usize = 9216;
const TCP: u8 = 6;

/// The path to the kernel.
#[derive(Debug)]
pub(super) struct Injector {
    v4: OwnedFd,
    /// `None` where IPv6 is not available.
    v6: Option<OwnedFd>,
    packet: Box<[u8]>,
}

impl Injector {
    /// Needs `CAP_NET_RAW`.
    pub fn open(netns: Option<&str>) -> io::Result<Injector> {
        in_netns(netns, || {
            let v4 = raw(AddressFamily::INET)?;
            Ok(Injector { v4, v6: raw(AddressFamily::INET6).ok(), packet: vec![0; MAX_PACKET].into() })
        })
        .map_err(io::Error::other)?
    }

    /// Passes on the packet of this segment. `sum`: its checksum may be incomplete.
    pub fn deliver(&mut self, packet: &[u8], segment: &Segment<'_>, sum: bool) -> io::Result<()> {
        let short = || io::Error::from(io::ErrorKind::InvalidInput);
        let length = segment.packet_length();
        let packet = packet.get(..length).ok_or_else(short)?;
        let copy = self.packet.get_mut(..length).ok_or_else(short)?;
        copy.copy_from_slice(packet);
        let (src, dst) = (segment.header.src.ip(), segment.header.dst.ip());
        let (start, hops) = if dst.is_ipv4() { (usize::from(copy[0] & 15) * 4, 8) } else { (40, 7) };
        // If this host no longer has the address, the packet leaves, and returns as one for the
        // service. The small hop limit ends it.
        if copy[hops] <= 1 {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        copy[hops] = 1;
        if sum && let Some(tcp) = copy.get_mut(start..).filter(|tcp| tcp.len() >= 20) {
            tcp[16..18].fill(0);
            let sum = Sum::new().pseudo_header(src, dst, TCP, tcp.len()).bytes(tcp).finish();
            tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        }
        let socket = match dst.is_ipv4() {
            true => &self.v4,
            false => self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?,
        };
        // The IP header has the addresses; a raw socket has no port.
        sendto(socket, copy, SendFlags::DONTWAIT | SendFlags::DONTROUTE, &SocketAddr::new(dst, 0))?;
        Ok(())
    }
}

fn raw(family: AddressFamily) -> io::Result<OwnedFd> {
    // This protocol number means that the caller writes the headers (raw(7), ipv6(7)); nothing is
    // received.
    let socket = socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW))?;
    let forced = sockopt::set_socket_send_buffer_size_force(&socket, QUEUE);
    forced.or_else(|_| sockopt::set_socket_send_buffer_size(&socket, QUEUE))?;
    Ok(socket)
}
