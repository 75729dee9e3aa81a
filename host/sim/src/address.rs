//! Addresses of simulated hosts: they contain the node's number, by which packets are routed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::ids::NodeId;

/// Port of the service.
pub const SERVICE_PORT: u16 = 80;

/// The service's address in a family.
pub fn service(v6: bool) -> SocketAddr {
    let ip: IpAddr = if v6 {
        Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x80).into()
    } else {
        Ipv4Addr::new(198, 51, 100, 80).into()
    };
    SocketAddr::new(ip, SERVICE_PORT)
}

/// An address of a node. `place`, 0 to 245, distinguishes several addresses of a client that moves.
pub fn client(node: NodeId, place: u8, v6: bool, port: u16) -> SocketAddr {
    let [a, b, c, d] = node.0.to_be_bytes();
    debug_assert_eq!(a, 0, "a number of three bytes");
    let ip: IpAddr = if v6 {
        let words = [u16::from(place), 0, u16::from(b), u16::from_be_bytes([c, d])];
        Ipv6Addr::new(0x2001, 0xdb8, words[0], words[1], 0, 0, words[2], words[3]).into()
    } else {
        Ipv4Addr::new(10 + place, b, c, d).into()
    };
    SocketAddr::new(ip, port)
}

/// The node of an address that [`client`] made.
pub fn node(ip: IpAddr) -> NodeId {
    match ip {
        IpAddr::V4(a) => {
            let [_, b, c, d] = a.octets();
            NodeId(u32::from_be_bytes([0, b, c, d]))
        }
        IpAddr::V6(a) => {
            let s = a.segments();
            NodeId(u32::from(s[6]) << 16 | u32::from(s[7]))
        }
    }
}

/// Destination address of an IP packet; `None` if the header is incomplete.
pub fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => <[u8; 4]>::try_from(packet.get(16..20)?).ok().map(IpAddr::from),
        6 => <[u8; 16]>::try_from(packet.get(24..40)?).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_back_to_their_nodes() {
        for id in [0, 1, 255, 70_000] {
            for v6 in [false, true] {
                for place in [0, 7] {
                    assert_eq!(node(client(NodeId(id), place, v6, 9).ip()), NodeId(id));
                }
            }
        }
    }
}
