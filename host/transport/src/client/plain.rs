//! The answer of a plain TCP server to our SYN (RFC 9293), and the values that a kernel socket
//! needs to continue.

use core::net::SocketAddr;

use super::connection::TcpHandshake;

/// Answers of a plain TCP server.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A SYN-ACK.
    Handshake(TcpHandshake),
    /// An RST for our SYN.
    Reset,
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*b.get(at)?, *b.get(at + 1)?]))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes([*b.get(at)?, *b.get(at + 1)?, *b.get(at + 2)?, *b.get(at + 3)?]))
}

/// Parses an IP packet that answers our SYN with ISN `isn` and data up to `sent`. `None`: it does
/// not answer it.
pub fn read(packet: &[u8], local: SocketAddr, remote: SocketAddr, isn: u32, sent: u32) -> Option<Answer> {
    let tcp = match packet.first()? >> 4 {
        4 => packet.get(20..usize::from(u16_at(packet, 2)?))?,
        _ => packet.get(40..40 + usize::from(u16_at(packet, 4)?))?,
    };
    if !checksum_is_right(packet, tcp) || !is_from(packet, tcp, remote, local)? {
        return None;
    }
    let (seq, ack, flags, window) = (u32_at(tcp, 4)?, u32_at(tcp, 8)?, *tcp.get(13)?, u16_at(tcp, 14)?);
    // It must acknowledge our SYN, and none or all of its data.
    let covers = ack == isn.wrapping_add(1) || ack == sent;
    const SYN: u8 = 0x02;
    const RST: u8 = 0x04;
    const ACK: u8 = 0x10;
    if !covers || flags & ACK == 0 {
        return None;
    }
    if flags & RST != 0 {
        return Some(Answer::Reset);
    }
    if flags & SYN == 0 {
        return None;
    }
    let mut handshake = TcpHandshake {
        send_next: ack,
        receive_next: seq.wrapping_add(1),
        syn_data_acknowledged: ack != isn.wrapping_add(1),
        stream: 0,
        mss: 536,
        window_scale: None,
        sack: false,
        timestamp: None,
        window,
    };
    let header = usize::from(tcp.get(12)? >> 4) * 4;
    let mut options = tcp.get(20..header)?;
    while let Some((&kind, rest)) = options.split_first() {
        if kind == 0 {
            break;
        }
        if kind == 1 {
            options = rest;
            continue;
        }
        let length = usize::from(*rest.first()?);
        let body = options.get(2..length)?;
        match (kind, body.len()) {
            (2, 2) => handshake.mss = u16_at(body, 0)?,
            (3, 1) => handshake.window_scale = Some((body[0].min(14), rivulet_packet::segment::WINDOW_SCALE)),
            (4, 0) => handshake.sack = true,
            (8, 8) => handshake.timestamp = Some((u32_at(body, 0)?, u32_at(body, 4)?)),
            _ => {}
        }
        options = options.get(length.max(2)..)?;
    }
    Some(Answer::Handshake(handshake))
}

fn is_from(packet: &[u8], tcp: &[u8], from: SocketAddr, to: SocketAddr) -> Option<bool> {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    let v6 = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(bytes).into())
    };
    let (src, dst) = match packet.first()? >> 4 {
        4 => (Ipv4Addr::from(u32_at(packet, 12)?).into(), Ipv4Addr::from(u32_at(packet, 16)?).into()),
        _ => (v6(8)?, v6(24)?),
    };
    let ports = (u16_at(tcp, 0)?, u16_at(tcp, 2)?);
    Some((src, ports.0) == (from.ip(), from.port()) && (dst, ports.1) == (to.ip(), to.port()))
}

fn checksum_is_right(packet: &[u8], tcp: &[u8]) -> bool {
    use rivulet_packet::checksum::Sum;
    let addresses = match packet[0] >> 4 {
        4 => &packet[12..20],
        _ => &packet[8..40],
    };
    let length = tcp.len() as u16;
    Sum::new().bytes(addresses).bytes(&[0, 6]).bytes(&length.to_be_bytes()).bytes(tcp).finish() == 0
}
