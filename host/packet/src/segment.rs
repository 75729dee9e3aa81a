//! The TCP segment (RFC 9293) around requests and responses: view and builder.

use core::fmt;
use core::net::SocketAddr;

use crate::bytes::{Reader, Writer};
use crate::checksum::Sum;
use crate::error::{BuildError, WireError};
use crate::eth::{self, EthHeader};
use crate::ip::{self, Ecn, IpHeader, TCP};
use crate::option::{self, Class, RequestClass, RivuletOption};
use crate::request::Request;
use crate::response::Response;

/// Bytes of a TCP header with only our option: data offset 7.
pub const HEADER: usize = 28;
/// Bytes of a SYN's TCP header: data offset 12.
pub const SYN_HEADER: usize = 48;
/// Window of every segment, scaled by 2^14: constant, because wants control the flow.
pub const WINDOW: u16 = 0xffff;
/// The window scale of every SYN (RFC 7323 §2.3 allows at most 14).
pub const WINDOW_SCALE: u8 = 14;
/// Hop limit or time to live of sent packets.
pub const TTL: u8 = 64;

/// The TCP flag bits, FIN lowest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// FIN.
    pub const FIN: u8 = 0x01;
    /// SYN.
    pub const SYN: u8 = 0x02;
    /// RST.
    pub const RST: u8 = 0x04;
    /// PSH.
    pub const PSH: u8 = 0x08;
    /// ACK.
    pub const ACK: u8 = 0x10;
    /// URG.
    pub const URG: u8 = 0x20;

    /// Whether all these bits are set.
    pub fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }

    /// The usual flags of a segment of this class. The answer to a SYN adds SYN, the answer to a
    /// CLOSE adds FIN.
    pub fn of(class: Class) -> Self {
        match class {
            Class::Request(RequestClass::Syn) => Self(Self::SYN),
            Class::Request(RequestClass::Close) => Self(Self::ACK | Self::FIN),
            _ => Self(Self::ACK | Self::PSH),
        }
    }

    /// Whether a segment of this class may carry these flags.
    fn fit(self, class: Class) -> bool {
        let connection = self.0 & (Self::SYN | Self::ACK | Self::FIN | Self::RST | Self::URG);
        match class {
            Class::Request(RequestClass::Syn) => connection == Self::SYN,
            Class::Request(RequestClass::Close) => connection == Self::ACK | Self::FIN,
            Class::Request(_) => connection == Self::ACK,
            Class::Response(_) => {
                connection == Self::ACK
                    || connection == Self::ACK | Self::SYN
                    || connection == Self::ACK | Self::FIN
            }
        }
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, c) in [(0x01, 'F'), (0x02, 'S'), (0x04, 'R'), (0x08, 'P'), (0x10, 'A'), (0x20, 'U')] {
            if self.0 & bit != 0 {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// The standard options of a SYN or SYN-ACK: the 20 bytes after ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SynOptions {
    /// Maximum segment size, bytes.
    pub mss: u16,
    /// Timestamp value (RFC 7323).
    pub ts_value: u32,
    /// Timestamp echo reply, 0 in a SYN.
    pub ts_echo: u32,
    /// Window scale.
    pub window_scale: u8,
}

impl SynOptions {
    const LENGTH: usize = 20;

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let at = r.pos();
        let b: [u8; Self::LENGTH] = r.array()?;
        // MSS, SACK-permitted, timestamps, window scale and padding, in this order.
        for (i, want) in [(0, 2), (1, 4), (4, 4), (5, 2), (6, 8), (7, 10), (16, 3), (17, 3), (19, 0)] {
            if b[i] != want {
                return Err(WireError::SynOptions(at + i));
            }
        }
        let word = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let (ts_value, ts_echo) = (word(8), word(12));
        Ok(Self { mss: u16::from_be_bytes([b[2], b[3]]), ts_value, ts_echo, window_scale: b[18] })
    }

    fn write(&self, w: &mut Writer<'_>) {
        w.bytes(&[2, 4]);
        w.u16(self.mss);
        w.bytes(&[4, 2, 8, 10]);
        w.u32(self.ts_value);
        w.u32(self.ts_echo);
        w.bytes(&[3, 3, self.window_scale, 0]);
    }
}

/// A parsed Rivulet segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Source address and port.
    pub src: SocketAddr,
    /// Destination address and port.
    pub dst: SocketAddr,
    /// The ECN field of the IP header.
    pub ecn: Ecn,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags.
    pub flags: TcpFlags,
    /// Window, unscaled.
    pub window: u16,
    /// The option.
    pub option: RivuletOption,
    /// The standard options; `Some` only in a SYN or SYN-ACK.
    pub syn_options: Option<SynOptions>,
    /// The TCP payload.
    pub payload: &'a [u8],
    /// The whole TCP segment.
    tcp: &'a [u8],
    /// Start of `tcp` in the parsed bytes.
    tcp_at: usize,
}

impl<'a> Segment<'a> {
    /// Parses an Ethernet frame. Does not verify the TCP checksum ([`Self::verify`]).
    ///
    /// # Errors
    /// The first rule broken; [`WireError::OptionMissing`] means plain TCP.
    pub fn parse_frame(frame: &'a [u8]) -> Result<(EthHeader, Self), WireError> {
        let (header, ether_type) = EthHeader::parse(frame)?;
        let start = header.length();
        let (ip, tcp, end) = match ether_type {
            eth::IPV4 => ip::read_v4(frame, start)?,
            eth::IPV6 => ip::read_v6(frame, start)?,
            _ => return Err(WireError::EthType(start - 2)),
        };
        Ok((header, Self::parse_tcp(ip, &frame[..end], tcp)?))
    }

    /// Parses an IP packet, for example from a TUN device or a raw socket.
    ///
    /// # Errors
    /// As [`Self::parse_frame`].
    pub fn parse_packet(packet: &'a [u8]) -> Result<Self, WireError> {
        let (ip, tcp, end) = ip::read(packet, 0)?;
        Self::parse_tcp(ip, &packet[..end], tcp)
    }

    /// Reads the TCP header at `start` of an IP packet.
    #[inline]
    fn parse_tcp(ip: IpHeader, bytes: &'a [u8], start: usize) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes, WireError::TcpTruncated);
        r.bytes(start)?;
        let (src_port, dst_port, seq, ack) = (r.u16()?, r.u16()?, r.u32()?, r.u32()?);
        let (data_offset, flags, window) = (r.u8()?, TcpFlags(r.u8()?), r.u16()?);
        r.bytes(4)?;
        let header = usize::from(data_offset >> 4) * 4;
        if header < 20 || data_offset & 0xf != 0 {
            return Err(WireError::TcpDataOffset(start + 12));
        }
        if bytes.len() - start < header {
            return Err(WireError::TcpTruncated(bytes.len()));
        }
        let options = &bytes[start + 20..start + header];
        let syn = flags.has(TcpFlags::SYN);
        if !is_ours(options) {
            return Err(match find_ours(options) {
                // A SYN that differs from ours counts as plain TCP, so that ordinary stacks are
                // never refused.
                Some(i) if !syn => WireError::OptionNotFirst(start + 20 + i),
                _ => WireError::OptionMissing(start + 20),
            });
        }
        if header != if syn { SYN_HEADER } else { HEADER } {
            return Err(if syn {
                WireError::OptionMissing(start + 20)
            } else {
                WireError::TcpDataOffset(start + 12)
            });
        }
        let option = RivuletOption::read(&mut r)?;
        if !flags.fit(option.class) {
            return Err(WireError::TcpFlags(start + 13));
        }
        let syn_options = if syn { Some(SynOptions::read(&mut r)?) } else { None };
        let payload = r.rest();
        Ok(Self {
            src: SocketAddr::new(ip.src, src_port),
            dst: SocketAddr::new(ip.dst, dst_port),
            ecn: ip.ecn,
            ttl: ip.ttl,
            seq,
            ack,
            flags,
            window,
            option,
            syn_options,
            payload,
            tcp: &bytes[start..],
            tcp_at: start,
        })
    }

    /// Verifies the TCP checksum.
    ///
    /// # Errors
    /// [`WireError::TcpChecksum`].
    pub fn verify(&self) -> Result<(), WireError> {
        let sum = Sum::new().pseudo_header(self.src.ip(), self.dst.ip(), TCP, self.tcp.len());
        if sum.bytes(self.tcp).finish() != 0 {
            return Err(WireError::TcpChecksum(self.tcp_at + 16));
        }
        Ok(())
    }

    /// Length of the segment in TCP's sequence space.
    pub fn sequence_length(&self) -> u32 {
        let flag = |bit| u32::from(self.flags.has(bit));
        self.payload.len() as u32 + flag(TcpFlags::SYN) + flag(TcpFlags::FIN)
    }

    /// Whether this is a SYN without payload, which a client sends after a SYN with data was not
    /// answered. It is answered by a cookie and has no request.
    pub fn is_bare_syn(&self) -> bool {
        self.option.class == Class::Request(RequestClass::Syn) && self.payload.is_empty()
    }

    /// Whether this is the cookie that answers a bare SYN.
    pub fn is_bare_syn_ack(&self) -> bool {
        self.flags.has(TcpFlags::SYN | TcpFlags::ACK) && self.payload.is_empty()
    }

    /// The request in the payload.
    ///
    /// # Errors
    /// [`WireError::ClassDirection`] for a response, else what [`Request::parse`] finds.
    pub fn request(&self) -> Result<Request<'a>, WireError> {
        match self.option.class {
            Class::Request(class) => Request::parse(class, self.option.number_low, self.payload),
            Class::Response(_) => Err(WireError::ClassDirection(self.tcp_at + 24)),
        }
    }

    /// The response in the payload.
    ///
    /// # Errors
    /// [`WireError::ClassDirection`] for a request, else what [`Response::parse`] finds.
    pub fn response(&self) -> Result<Response<'a>, WireError> {
        match self.option.class {
            Class::Response(class) => Response::parse(class, self.option.number_low, self.payload),
            Class::Request(_) => Err(WireError::ClassDirection(self.tcp_at + 24)),
        }
    }
}

impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {} [{}] seq {} ack {} {}, {} bytes",
            self.src,
            self.dst,
            self.flags,
            self.seq,
            self.ack,
            self.option,
            self.payload.len()
        )
    }
}

fn is_ours(option: &[u8]) -> bool {
    let [hi, lo] = option::EX_ID.to_be_bytes();
    matches!(option, [option::KIND, _, a, b, ..] if *a == hi && *b == lo)
}

/// Position of our option among others, if present.
fn find_ours(options: &[u8]) -> Option<usize> {
    let mut i = 0;
    while i < options.len() {
        if is_ours(&options[i..]) {
            return Some(i);
        }
        i += match options[i] {
            0 => return None,
            1 => 1,
            // A length below 2 would loop forever: treat it as 2.
            _ => usize::from(*options.get(i + 1)?).max(2),
        };
    }
    None
}

/// The headers of a packet to build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Source address and port.
    pub src: SocketAddr,
    /// Destination address and port, of the same family as `src`.
    pub dst: SocketAddr,
    /// The ECN field of the IP header.
    pub ecn: Ecn,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags; [`TcpFlags::of`] returns the usual ones.
    pub flags: TcpFlags,
    /// The option.
    pub option: RivuletOption,
    /// The standard options: required with SYN, refused without.
    pub syn_options: Option<SynOptions>,
}

impl SegmentHeader {
    /// Bytes of the TCP header.
    pub fn tcp_length(&self) -> usize {
        if self.syn_options.is_some() { SYN_HEADER } else { HEADER }
    }

    /// Where the payload starts in an IP packet.
    pub fn payload_offset(&self) -> usize {
        ip::length(self.src.ip()) + self.tcp_length()
    }

    fn check(&self) -> Result<(), BuildError> {
        let rule = |broken: bool, what| if broken { Err(BuildError::Inconsistent { what }) } else { Ok(()) };
        let syn = self.flags.has(TcpFlags::SYN);
        rule(!self.flags.fit(self.option.class), "TCP flags that do not go with the class")?;
        rule(syn != self.syn_options.is_some(), "the options of a SYN go with SYN and only with it")?;
        let families = self.src.is_ipv4() == self.dst.is_ipv4();
        rule(!families, "addresses of two families")
    }

    /// Writes IP and TCP headers before `payload` bytes that are already in `packet` at
    /// [`Self::payload_offset`]. Returns the packet's length; checksums are complete.
    ///
    /// # Errors
    /// [`BuildError`]: a parser would refuse the headers, the packet exceeds 65,535 bytes, or the
    /// buffer is too small.
    pub fn finish_packet(&self, packet: &mut [u8], payload: usize) -> Result<usize, BuildError> {
        self.check()?;
        let start = self.payload_offset();
        let length = start + payload;
        if length > usize::from(u16::MAX) {
            return Err(BuildError::TooMany { what: "bytes of packet", have: length, most: 65535 });
        }
        let have = packet.len();
        let packet = packet.get_mut(..length).ok_or(BuildError::BufferTooSmall { need: length, have })?;
        let tcp = ip::length(self.src.ip());
        let mut w = Writer::new(packet);
        let ip = IpHeader { src: self.src.ip(), dst: self.dst.ip(), ecn: self.ecn, ttl: TTL };
        ip::write(&mut w, &ip, length - tcp);
        w.u16(self.src.port());
        w.u16(self.dst.port());
        w.u32(self.seq);
        w.u32(self.ack);
        w.u8((self.tcp_length() as u8 / 4) << 4);
        w.u8(self.flags.0);
        w.u16(WINDOW);
        w.u32(0);
        self.option.write(&mut w);
        if let Some(o) = &self.syn_options {
            o.write(&mut w);
        }
        let (src, dst) = (self.src.ip(), self.dst.ip());
        let sum = Sum::new().pseudo_header(src, dst, TCP, length - tcp).bytes(&packet[tcp..]).finish();
        packet[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
        Ok(length)
    }

    /// Like [`Self::finish_packet`], with an Ethernet header first: the payload starts at the
    /// header's length plus [`Self::payload_offset`].
    ///
    /// # Errors
    /// As [`Self::finish_packet`].
    pub fn finish_frame(
        &self,
        header: &EthHeader,
        frame: &mut [u8],
        payload: usize,
    ) -> Result<usize, BuildError> {
        let n = header.length();
        let have = frame.len();
        let Some(packet) = frame.get_mut(n..) else {
            return Err(BuildError::BufferTooSmall { need: n + self.payload_offset() + payload, have });
        };
        let length = self.finish_packet(packet, payload)?;
        header.write(&mut Writer::new(frame), ip::ether_type(self.src.ip()));
        Ok(n + length)
    }
}
