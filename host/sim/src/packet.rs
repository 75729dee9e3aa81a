//! Packets on links: real IP packets of Rivulet, or segments of the reference TCP as values.

use rivulet_packet::Ecn;

use crate::ids::NodeId;
use crate::segment::Segment;

/// Extra bytes of an Ethernet frame beyond its IP packet: header 14, check 4, preamble 8, gap 12.
pub const FRAMING: u32 = 38;

/// A packet on its way.
#[derive(Debug, Clone)]
pub struct Packet {
    /// Sender.
    pub src: NodeId,
    /// Final destination.
    pub dst: NodeId,
    /// Wire bytes, framing included.
    pub size: u32,
    /// Content.
    pub body: Body,
}

/// The content of a packet.
#[derive(Debug, Clone)]
pub enum Body {
    /// An IP packet, byte for byte.
    Ip(Vec<u8>),
    /// A segment of the reference TCP.
    Tcp(Segment),
}

impl Packet {
    /// An IP packet between nodes.
    pub fn ip(src: NodeId, dst: NodeId, bytes: Vec<u8>) -> Self {
        Self { src, dst, size: bytes.len() as u32 + FRAMING, body: Body::Ip(bytes) }
    }

    /// The ECN field.
    pub fn ecn(&self) -> Ecn {
        let bits = match &self.body {
            Body::Tcp(s) => return s.ecn,
            Body::Ip(b) => match b.first().map(|v| v >> 4) {
                Some(4) => b.get(1).copied().unwrap_or(0),
                Some(6) => b.get(1).copied().unwrap_or(0) >> 4,
                _ => 0,
            },
        };
        match bits & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Marks congestion (RFC 3168 §5); the packet must be ECN-capable.
    pub fn mark(&mut self) {
        match &mut self.body {
            Body::Tcp(s) => s.ecn = Ecn::Ce,
            Body::Ip(b) if b.len() >= 20 && b[0] >> 4 == 4 => {
                let old = [b[0], b[1]];
                b[1] |= 3;
                let sum = u16::from_be_bytes([b[10], b[11]]);
                let new = rivulet_packet::checksum::replace(sum, &old, &b[..2]);
                b[10..12].copy_from_slice(&new.to_be_bytes());
            }
            Body::Ip(b) if b.len() >= 2 => b[1] |= 0x30,
            Body::Ip(_) => {}
        }
    }
}
