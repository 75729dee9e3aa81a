//! The contents of a tunnel frame: IP-in-IP (RFC 2003, RFC 2473, RFC 4213) and GUE
//! (draft-ietf-intarea-gue, variant 0).

use std::net::IpAddr;
use std::ops::Range;

use rivulet_packet::{EthHeader, eth};
use rivulet_pktio::filter::UDP_PORT_GUE;

const PROTOCOL_IPV4: u8 = 4;
const PROTOCOL_IPV6: u8 = 41;
const PROTOCOL_UDP: u8 = 17;
const UDP_AND_GUE: usize = 8 + 4;

/// A tunnelled packet within a frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Inner {
    /// Source of the outer packet.
    pub source: IpAddr,
    /// Destination of the outer packet.
    pub destination: IpAddr,
    /// EtherType of the inner packet.
    pub ether_type: u16,
    /// Position of the inner packet in the frame.
    pub packet: Range<usize>,
}

/// Parses a frame; `None` without a complete packet in a tunnel of these kinds. Fragments and GUE
/// headers with flags or extensions are not accepted. A GUE packet's UDP checksum is not verified,
/// because the inner one covers the relevant bytes (RFC 6935).
pub(super) fn inner(frame: &[u8]) -> Option<Inner> {
    let (ethernet, ether_type) = EthHeader::parse(frame).ok()?;
    let start = ethernet.length();
    let ip = frame.get(start..)?;
    let (header, length, protocol, source, destination): (usize, usize, u8, IpAddr, IpAddr) = match ether_type
    {
        eth::IPV4 => {
            let fixed: &[u8; 20] = ip.first_chunk()?;
            let whole = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
            let fragment = u16::from_be_bytes([fixed[6], fixed[7]]) & 0x3fff != 0;
            if fixed[0] >> 4 != 4 || fixed[0] & 0xf < 5 || fragment {
                return None;
            }
            let word = |at: usize| [fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]];
            (usize::from(fixed[0] & 0xf) * 4, whole, fixed[9], word(12).into(), word(16).into())
        }
        eth::IPV6 => {
            let fixed: &[u8; 40] = ip.first_chunk()?;
            if fixed[0] >> 4 != 6 {
                return None;
            }
            let payload = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
            let source = <[u8; 16]>::try_from(&fixed[8..24]).ok()?;
            let destination = <[u8; 16]>::try_from(&fixed[24..40]).ok()?;
            (40, 40 + payload, fixed[6], source.into(), destination.into())
        }
        _ => return None,
    };
    // Padding may follow the outer packet.
    let body = ip.get(..length)?.get(header..)?;
    let (kind, skipped) = match protocol {
        PROTOCOL_UDP => {
            let udp = body.get(..UDP_AND_GUE)?;
            let to_gue = udp[2..4] == UDP_PORT_GUE.to_be_bytes();
            let whole = usize::from(u16::from_be_bytes([udp[4], udp[5]])) == body.len();
            if !to_gue || !whole || udp[8] != 0 || udp[10..12] != [0, 0] {
                return None;
            }
            (udp[9], UDP_AND_GUE)
        }
        other => (other, 0),
    };
    let ether_type = match kind {
        PROTOCOL_IPV4 => eth::IPV4,
        PROTOCOL_IPV6 => eth::IPV6,
        _ => return None,
    };
    let begin = start + header + skipped;
    Some(Inner { source, destination, ether_type, packet: begin..start + length })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INNER: &[u8] = &[0x45, 1, 2, 3, 4, 5, 6];

    fn v4(protocol: u8, body: &[u8]) -> Vec<u8> {
        let mut f = vec![2; 12];
        f.extend([8, 0, 0x45, 0, 0, 20 + body.len() as u8, 0, 0, 0x40, 0, 64, protocol, 0, 0]);
        f.extend([10, 0, 3, 254, 10, 0, 2, 1]);
        f.extend(body);
        f.extend([0; 9]);
        f
    }

    fn v6(protocol: u8, body: &[u8]) -> Vec<u8> {
        let mut f = vec![2; 12];
        f.extend([0x81, 0, 0, 7, 0x86, 0xdd, 0x60, 0, 0, 0, 0, body.len() as u8, protocol, 64]);
        f.extend("fd00:3::fe".parse::<std::net::Ipv6Addr>().unwrap().octets());
        f.extend("fd00:2::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
        f.extend(body);
        f
    }

    fn gue(kind: u8) -> Vec<u8> {
        let mut f = vec![0x30, 0, 0x17, 0xc0, 0, 12 + INNER.len() as u8, 0, 0, 0, kind, 0, 0];
        f.extend(INNER);
        f
    }

    #[test]
    fn tunnel_packets_of_both_kinds_and_families_are_found() {
        for (kind, ether_type) in [(4, eth::IPV4), (41, eth::IPV6)] {
            for (frame, source) in [
                (v4(kind, INNER), "10.0.3.254"),
                (v4(17, &gue(kind)), "10.0.3.254"),
                (v6(kind, INNER), "fd00:3::fe"),
                (v6(17, &gue(kind)), "fd00:3::fe"),
            ] {
                let found = inner(&frame).unwrap();
                assert_eq!((found.source.to_string().as_str(), found.ether_type), (source, ether_type));
                assert_eq!(&frame[found.packet], INNER, "without what pads the frame");
            }
        }
    }

    #[test]
    fn incomplete_tunnel_packets_are_rejected() {
        let good = v4(17, &gue(4));
        let damages: [(&str, usize, u8); 9] = [
            ("version", 14, 0x55),
            ("header length", 14, 0x44),
            ("total length beyond the frame", 17, 255),
            ("fragment", 20, 0x20),
            ("protocol", 23, 6),
            ("another port", 37, 0xc1),
            ("UDP length", 39, 200),
            ("a GUE extension", 42, 1),
            ("GUE flags", 45, 1),
        ];
        assert!(inner(&good).is_some());
        for (what, at, value) in damages {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(inner(&bad), None, "{what}");
        }
        assert_eq!(inner(&v4(17, &gue(6))), None, "no IP packet within");
        for frame in [good, v6(17, &gue(4))] {
            let end = inner(&frame).unwrap().packet.end;
            for length in 0..end {
                assert_eq!(inner(&frame[..length]), None, "{length} bytes");
            }
        }
    }
}
