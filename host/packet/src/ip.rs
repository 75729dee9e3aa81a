//! IPv4 (RFC 791) without options and IPv6 (RFC 8200) without extension headers, carrying TCP.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Reader, Writer};
use crate::checksum::Sum;
use crate::error::WireError;
use crate::eth;

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Bytes of an IPv4 header without options.
pub const V4: usize = 20;
/// Bytes of an IPv6 header.
pub const V6: usize = 40;

/// The ECN field (RFC 3168 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct = 0,
    /// ECN-capable, ECT(1).
    Ect1 = 1,
    /// ECN-capable, ECT(0).
    Ect0 = 2,
    /// Congestion experienced.
    Ce = 3,
}

impl Ecn {
    fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The name used in documents and vectors.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotEct => "NOT_ECT",
            Self::Ect1 => "ECT1",
            Self::Ect0 => "ECT0",
            Self::Ce => "CE",
        }
    }
}

impl fmt::Display for Ecn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The fields of an IP header that Rivulet uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpHeader {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same family.
    pub dst: IpAddr,
    /// The ECN field.
    pub ecn: Ecn,
    /// Time to live or hop limit.
    pub ttl: u8,
}

/// EtherType of packets between addresses of this family.
pub(crate) fn ether_type(address: IpAddr) -> u16 {
    if address.is_ipv4() { eth::IPV4 } else { eth::IPV6 }
}

/// Parses the IP header at `start` in `frame`; returns it with the start and end of the TCP
/// segment. Bytes after the end are the padding of a short frame.
///
/// # Errors
/// The first rule broken: truncated, options, a fragment, not TCP, a wrong header checksum.
pub fn read(frame: &[u8], start: usize) -> Result<(IpHeader, usize, usize), WireError> {
    match frame.get(start).map(|b| b >> 4) {
        Some(6) => read_v6(frame, start),
        _ => read_v4(frame, start),
    }
}

pub(crate) fn read_v4(frame: &[u8], start: usize) -> Result<(IpHeader, usize, usize), WireError> {
    let mut r = Reader::new(frame, WireError::Ipv4Truncated);
    r.bytes(start)?;
    let b: [u8; V4] = match r.clone().array() {
        Ok(b) => b,
        Err(_) => return Err(WireError::Ipv4Truncated(frame.len())),
    };
    if b[0] >> 4 != 4 {
        return Err(WireError::Ipv4Version(start));
    }
    if b[0] & 0xf != 5 {
        return Err(WireError::Ipv4Options(start));
    }
    let length = usize::from(u16::from_be_bytes([b[2], b[3]]));
    if length < V4 || length > r.remaining() {
        return Err(WireError::Ipv4Length(start + 2));
    }
    // The more-fragments flag, or an offset.
    if u16::from_be_bytes([b[6], b[7]]) & 0x3fff != 0 {
        return Err(WireError::Ipv4Fragment(start + 6));
    }
    if b[9] != TCP {
        return Err(WireError::Ipv4Protocol(start + 9));
    }
    if Sum::new().bytes(&b).finish() != 0 {
        return Err(WireError::Ipv4Checksum(start + 10));
    }
    let src = IpAddr::V4(Ipv4Addr::new(b[12], b[13], b[14], b[15]));
    let dst = IpAddr::V4(Ipv4Addr::new(b[16], b[17], b[18], b[19]));
    Ok((IpHeader { src, dst, ecn: Ecn::from_bits(b[1]), ttl: b[8] }, start + V4, start + length))
}

pub(crate) fn read_v6(frame: &[u8], start: usize) -> Result<(IpHeader, usize, usize), WireError> {
    let mut r = Reader::new(frame, WireError::Ipv6Truncated);
    r.bytes(start)?;
    let b: [u8; V6] = match r.clone().array() {
        Ok(b) => b,
        Err(_) => return Err(WireError::Ipv6Truncated(frame.len())),
    };
    if b[0] >> 4 != 6 {
        return Err(WireError::Ipv6Version(start));
    }
    let length = usize::from(u16::from_be_bytes([b[4], b[5]]));
    if V6 + length > r.remaining() {
        return Err(WireError::Ipv6Length(start + 4));
    }
    if b[6] != TCP {
        return Err(WireError::Ipv6NextHeader(start + 6));
    }
    r.bytes(8)?;
    let (src, dst): ([u8; 16], [u8; 16]) = (r.array()?, r.array()?);
    let traffic_class = b[0] << 4 | b[1] >> 4;
    let header = IpHeader {
        src: IpAddr::V6(Ipv6Addr::from(src)),
        dst: IpAddr::V6(Ipv6Addr::from(dst)),
        ecn: Ecn::from_bits(traffic_class),
        ttl: b[7],
    };
    Ok((header, start + V6, start + V6 + length))
}

/// Bytes of the IP header between these addresses.
pub fn length(address: IpAddr) -> usize {
    if address.is_ipv4() { V4 } else { V6 }
}

/// Writes an IP header for `payload` bytes of TCP, with Don't Fragment set, into the first
/// [`length`] bytes of `packet`. Returns false if `packet` is too short; its content is then
/// unusable.
#[must_use]
pub fn write_header(packet: &mut [u8], h: &IpHeader, payload: usize) -> bool {
    let mut w = Writer::new(packet);
    write(&mut w, h, payload);
    w.finish().is_ok()
}

/// Writes the header of a packet with `payload` bytes of TCP, Don't Fragment set.
pub(crate) fn write(w: &mut Writer<'_>, h: &IpHeader, payload: usize) {
    match (h.src, h.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut b = [0; V4];
            b[0] = 0x45;
            b[1] = h.ecn as u8;
            b[2..4].copy_from_slice(&((V4 + payload) as u16).to_be_bytes());
            b[6] = 0x40;
            b[8] = h.ttl;
            b[9] = TCP;
            b[12..16].copy_from_slice(&src.octets());
            b[16..].copy_from_slice(&dst.octets());
            let sum = Sum::new().bytes(&b).finish();
            b[10..12].copy_from_slice(&sum.to_be_bytes());
            w.bytes(&b);
        }
        (src, dst) => {
            let octets = |a: IpAddr| match a {
                IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
                IpAddr::V6(a) => a.octets(),
            };
            w.bytes(&[0x60, (h.ecn as u8) << 4, 0, 0]);
            w.u16(payload as u16);
            w.u8(TCP);
            w.u8(h.ttl);
            w.bytes(&octets(src));
            w.bytes(&octets(dst));
        }
    }
}
