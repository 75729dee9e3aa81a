//! The header of the PROXY protocol, version 2 (haproxy's proxy-protocol.txt section 2.2).

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_AND_COMMAND: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// The header for a connection from `peer` to `local`.
pub(crate) fn proxy_header(peer: SocketAddr, local: SocketAddr) -> Vec<u8> {
    let mut addresses = Vec::with_capacity(36);
    let kind = match (peer.ip().to_canonical(), local.ip().to_canonical()) {
        (IpAddr::V4(peer), IpAddr::V4(local)) => {
            addresses.extend_from_slice(&peer.octets());
            addresses.extend_from_slice(&local.octets());
            TCP_OVER_IPV4
        }
        (peer, local) => {
            for address in [peer, local] {
                let address = match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                addresses.extend_from_slice(&address.octets());
            }
            TCP_OVER_IPV6
        }
    };
    addresses.extend_from_slice(&peer.port().to_be_bytes());
    addresses.extend_from_slice(&local.port().to_be_bytes());
    let mut header = SIGNATURE.to_vec();
    header.extend_from_slice(&[VERSION_AND_COMMAND, kind]);
    header.extend_from_slice(&(addresses.len() as u16).to_be_bytes());
    header.extend_from_slice(&addresses);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_has_the_addresses_of_the_clients_connection() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let header = proxy_header(address("[::ffff:192.0.2.7]:258"), address("192.0.2.1:443"));
        assert_eq!(header[..16], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
        assert_eq!(header[16..], [192, 0, 2, 7, 192, 0, 2, 1, 1, 2, 1, 187]);
        let header = proxy_header(address("[2001:db8::7]:258"), address("[2001:db8::1]:443"));
        assert_eq!((header[13], header.len()), (0x21, 16 + 36));
        assert_eq!(header[16..20], [0x20, 1, 0x0d, 0xb8]);
    }
}
