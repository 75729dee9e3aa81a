//! Internet addresses in the kernel's format (ip(7), ipv6(7)).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Bytes of the longest address.
pub const RAW: usize = size_of::<libc::sockaddr_in6>();

/// Encodes an address; returns its bytes and their length.
#[must_use]
pub fn encode(address: &SocketAddr) -> ([u8; RAW], usize) {
    let mut raw = [0; RAW];
    raw[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, length) = match address.ip() {
        IpAddr::V4(ip) => {
            raw[4..8].copy_from_slice(&ip.octets());
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        IpAddr::V6(ip) => {
            raw[8..24].copy_from_slice(&ip.octets());
            (libc::AF_INET6, RAW)
        }
    };
    raw[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
    (raw, length)
}

/// Decodes an address; `None` if its family is unknown or it is cut short. A mapped IPv4 address
/// becomes an IPv4 address.
#[must_use]
pub fn decode(raw: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(libc::sa_family_t::from_ne_bytes(*raw.first_chunk()?));
    let port = u16::from_be_bytes(*raw.get(2..)?.first_chunk()?);
    let ip = match family {
        libc::AF_INET if raw.len() >= size_of::<libc::sockaddr_in>() => {
            IpAddr::from(*raw.get(4..)?.first_chunk::<4>()?)
        }
        // The length without a scope, as before RFC 2553, is accepted.
        libc::AF_INET6 => Ipv6Addr::from(*raw.get(8..)?.first_chunk::<16>()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_other_families_are_none() {
        for (text, least) in [("10.1.2.3:80", 16), ("[fd00::1:2]:65535", 24)] {
            let address: SocketAddr = text.parse().unwrap();
            let (raw, length) = encode(&address);
            assert_eq!(decode(&raw[..length]), Some(address));
            for length in 0..least {
                assert_eq!(decode(&raw[..length]), None, "{text} {length}");
            }
        }
        let mapped = encode(&"[::ffff:10.1.2.3]:80".parse().unwrap()).0;
        assert_eq!(decode(&mapped), Some("10.1.2.3:80".parse().unwrap()));
        assert_eq!(decode(&[1, 0, 0, 80, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]), None, "a Unix address");
        assert_eq!(decode(&[0; RAW]), None);
    }
}
