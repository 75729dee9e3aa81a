//! ICMP errors that report a packet of ours as too big for the path (RFC 1191, RFC 8201).

use std::net::{IpAddr, SocketAddr};

use crate::checksum::internet_sum;

/// Bytes of the Ethernet header and of the headers after it.
const ETHERNET: usize = 14;
const V4: usize = 20;
const V6: usize = 40;
const ICMP: usize = 8;
/// Smallest MTU accepted from an error: for IPv4 (RFC 1122, section 3.3.2) and IPv6 (RFC 8200).
const LEAST: (u32, u32) = (576, 1280);

/// A report that a TCP segment was too big for its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooBig {
    /// The segment's source.
    pub source: SocketAddr,
    /// The segment's destination.
    pub destination: SocketAddr,
    /// The segment's sequence number, which only a router on the path knows.
    pub sequence: u32,
    /// The path's MTU in bytes of an IP packet; at least the protocol's minimum.
    pub mtu: u16,
}

impl TooBig {
    /// Parses a frame; `None` for other or damaged frames. An error without an MTU (from routers
    /// older than RFC 1191) counts as one with the minimum.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<TooBig> {
        let (mut kind, mut at) = (pair(frame, 12)?, ETHERNET);
        if kind == 0x8100 {
            (kind, at) = (pair(frame, 16)?, ETHERNET + 4);
        }
        let packet = frame.get(at..)?;
        match kind {
            0x0800 => v4(packet),
            0x86dd => v6(packet),
            _ => None,
        }
    }
}

fn v4(packet: &[u8]) -> Option<TooBig> {
    let header = usize::from(packet.first()? & 0xf) * 4;
    let length = usize::from(pair(packet, 2)?);
    if *packet.get(9)? != 1 || pair(packet, 6)? & 0x3fff != 0 || header < V4 {
        return None;
    }
    let message = packet.get(header..length)?;
    // Type "destination unreachable", code "fragmentation needed and DF set".
    if message.get(..2)? != [3, 4] || internet_sum(message, 0) != 0xffff {
        return None;
    }
    let mtu = u32::from(pair(message, 6)?).max(LEAST.0);
    let quoted = message.get(ICMP..)?;
    let tcp = quoted.get(usize::from(quoted.first()? & 0xf) * 4..)?;
    if *quoted.get(9)? != 6 {
        return None;
    }
    let address = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(quoted.get(at..at + 4)?).ok()?));
    quote(address(12)?, address(16)?, tcp, mtu)
}

fn v6(packet: &[u8]) -> Option<TooBig> {
    let length = usize::from(pair(packet, 4)?);
    if *packet.get(6)? != 58 {
        return None;
    }
    let message = packet.get(V6..V6.checked_add(length)?)?;
    if *message.first()? != 2 {
        return None;
    }
    let pseudo = u32::from(pair(packet, 4)?) + 58;
    let addresses = internet_sum(packet.get(8..V6)?, 0);
    let sum = u32::from(addresses) + pseudo;
    let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
    if internet_sum(message, sum) != 0xffff {
        return None;
    }
    let mtu = u32::from_be_bytes(message.get(4..8)?.try_into().ok()?).max(LEAST.1);
    let quoted = message.get(ICMP..)?;
    if *quoted.get(6)? != 6 {
        return None;
    }
    let address = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(quoted.get(at..at + 16)?).ok()?));
    quote(address(8)?, address(24)?, quoted.get(V6..)?, mtu)
}

fn quote(source: IpAddr, destination: IpAddr, tcp: &[u8], mtu: u32) -> Option<TooBig> {
    Some(TooBig {
        source: SocketAddr::new(source, pair(tcp, 0)?),
        destination: SocketAddr::new(destination, pair(tcp, 2)?),
        sequence: u32::from_be_bytes(tcp.get(4..8)?.try_into().ok()?),
        mtu: mtu.try_into().ok()?,
    })
}

fn pair(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A router's error about a segment from port 80 to port 5000 with sequence number 7.
    fn error(six: bool, mtu: u16) -> Vec<u8> {
        let mut tcp = vec![0, 80, 0x13, 0x88, 0, 0, 0, 7];
        let mut frame = vec![2; 12];
        let (header, quoted) = if six { (V6, V6) } else { (V4, V4) };
        let mut message = vec![0; ICMP];
        let mut inner = vec![0; quoted];
        if six {
            (message[0], inner[0], inner[6]) = (2, 0x60, 6);
            message[6..8].copy_from_slice(&mtu.to_be_bytes());
            (inner[23], inner[39]) = (1, 2);
        } else {
            (message[0], message[1], inner[0], inner[9]) = (3, 4, 0x45, 6);
            message[6..8].copy_from_slice(&mtu.to_be_bytes());
            inner[12..20].copy_from_slice(&[10, 9, 0, 1, 10, 0, 0, 1]);
        }
        message.append(&mut inner);
        message.append(&mut tcp);
        let length = message.len() as u16;
        let mut outer = vec![0; header];
        if six {
            (outer[0], outer[6]) = (0x60, 58);
            outer[4..6].copy_from_slice(&length.to_be_bytes());
            (outer[23], outer[39]) = (9, 1);
        } else {
            (outer[0], outer[9]) = (0x45, 1);
            outer[2..4].copy_from_slice(&(length + V4 as u16).to_be_bytes());
        }
        frame.extend_from_slice(if six { &[0x86, 0xdd] } else { &[8, 0] });
        let start = frame.len() + header;
        let mut pseudo = outer[8..].to_vec();
        pseudo.extend([0, 0]);
        pseudo.extend(length.to_be_bytes());
        pseudo.extend([0, 0, 0, 58]);
        frame.append(&mut outer);
        frame.append(&mut message);
        let seed = if six { internet_sum(&pseudo[..], 0) } else { 0 };
        let sum = !internet_sum(&frame[start..], seed);
        frame[start + 2..start + 4].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    #[test]
    fn both_families_and_nothing_else() {
        for (six, mtu, told) in [(false, 1200, 1200), (false, 0, 576), (true, 1400, 1400), (true, 100, 1280)]
        {
            let frame = error(six, mtu);
            let found = TooBig::parse(&frame).unwrap();
            assert_eq!((found.mtu, found.sequence), (told, 7));
            assert_eq!((found.source.port(), found.destination.port()), (80, 5000));
            let ends = if six { ("::1", "::2") } else { ("10.9.0.1", "10.0.0.1") };
            assert_eq!(
                (found.source.ip().to_string().as_str(), found.destination.ip().to_string().as_str()),
                ends
            );
            for length in 0..frame.len() {
                assert_eq!(TooBig::parse(&frame[..length]), None, "{length} octets");
            }
            for at in 14..frame.len() {
                let mut damaged = frame.clone();
                damaged[at] ^= 0x10;
                // IPv4's ICMP checksum does not cover the outer header, and the IPv6 header has no
                // checksum.
                let covered = at >= 14 + if six { 8 } else { 20 };
                assert!(!covered || TooBig::parse(&damaged).is_none(), "octet {at}");
            }
        }
    }
}
