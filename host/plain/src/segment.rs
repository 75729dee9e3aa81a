//! Ordinary TCP segments (RFC 9293) with the options that ordinary clients send: parsed in place,
//! and written into the caller's buffer. No input causes a panic, and nothing is allocated.

use core::net::SocketAddr;

use rivulet_packet::checksum::Sum;
use rivulet_packet::ip::{self, Ecn, IpHeader, TCP};
use rivulet_packet::segment::{TTL, TcpFlags};
use rivulet_packet::{BuildError, WireError};

/// Bytes of a TCP header without options.
const HEADER: usize = 20;
/// Limit on the SACK blocks of a segment (RFC 2018): four without timestamps, fewer with them.
pub const MAX_SACK: usize = 4;
/// Bytes of the options of an established segment with timestamps, padding included.
pub const STAMPS: usize = 12;

/// Why bytes are not a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// An error of the IP header.
    #[error(transparent)]
    Ip(WireError),
    /// The TCP header ends early.
    #[error("the TCP header ends early")]
    Truncated,
    /// The data offset is below 5 or beyond the segment.
    #[error("the TCP data offset is not within the segment")]
    Offset,
    /// An option's length is below 2, beyond the header, or not the one of its kind.
    #[error("byte {0} of the options: a length that cannot be")]
    Option(usize),
}

/// A timestamps option (RFC 7323).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

/// A range of sequence numbers `[from, to)` that the client has after a hole (RFC 2018).
pub type SackBlock = (u32, u32);

/// The options that are used here. Others are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Maximum segment size; in a SYN.
    pub mss: Option<u16>,
    /// Window scale (RFC 7323), at most 14; in a SYN.
    pub scale: Option<u8>,
    /// SACK permitted; in a SYN.
    pub sack_permitted: bool,
    /// Timestamps.
    pub stamps: Option<Stamps>,
    /// SACK blocks.
    pub sack: Sack,
}

/// The SACK blocks of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sack {
    blocks: [SackBlock; MAX_SACK],
    count: u8,
}

impl Sack {
    /// The blocks, in the order of the option.
    #[must_use]
    pub fn blocks(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.count).min(MAX_SACK)]
    }

    /// Adds a block if there is room for it.
    pub fn push(&mut self, block: SackBlock) {
        if let Some(to) = self.blocks.get_mut(usize::from(self.count)) {
            *to = block;
            self.count += 1;
        }
    }
}

impl Options {
    /// Parses the options after the fixed header. If an option occurs twice, the last one counts.
    ///
    /// # Errors
    /// [`SegmentError::Option`].
    pub fn parse(bytes: &[u8]) -> Result<Options, SegmentError> {
        let mut options = Options::default();
        let mut at = 0;
        while let Some(&kind) = bytes.get(at) {
            let bad = SegmentError::Option(at);
            match kind {
                0 => break,
                1 => {
                    at += 1;
                    continue;
                }
                _ => {}
            }
            let length = usize::from(*bytes.get(at + 1).ok_or(bad)?);
            let value = bytes.get(at + 2..at + length).ok_or(bad)?;
            match (kind, value) {
                (2, &[a, b]) => options.mss = Some(u16::from_be_bytes([a, b])),
                // A larger scale counts as 14 (RFC 7323 section 2.3).
                (3, &[shift]) => options.scale = Some(shift.min(14)),
                (4, &[]) => options.sack_permitted = true,
                (5, blocks) if blocks.len().is_multiple_of(8) && !blocks.is_empty() => {
                    for block in blocks.chunks_exact(8) {
                        options.sack.push((word(block, 0), word(block, 4)));
                    }
                }
                (8, stamps) if stamps.len() == 8 => {
                    options.stamps = Some(Stamps { value: word(stamps, 0), echo: word(stamps, 4) });
                }
                (2 | 3 | 4 | 5 | 8, _) => return Err(bad),
                _ => {}
            }
            at += length;
        }
        Ok(options)
    }

    /// Writes the options, padded to whole words; returns their length in `out`.
    fn write(&self, out: &mut [u8; 40]) -> usize {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            if let Some(to) = out.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
                at += bytes.len();
            }
        };
        if let Some(mss) = self.mss {
            put(&[2, 4]);
            put(&mss.to_be_bytes());
        }
        // Before the timestamps, as in common stacks: SACK-permitted takes the place of the
        // padding.
        let lead = if self.sack_permitted { [4, 2] } else { [1, 1] };
        match self.stamps {
            Some(stamps) => {
                put(&lead);
                put(&[8, 10]);
                put(&stamps.value.to_be_bytes());
                put(&stamps.echo.to_be_bytes());
            }
            None if self.sack_permitted => put(&[1, 1, 4, 2]),
            None => {}
        }
        if let Some(shift) = self.scale {
            put(&[1, 3, 3, shift]);
        }
        let blocks = self.sack.blocks();
        if !blocks.is_empty() {
            put(&[1, 1, 5, 2 + 8 * blocks.len() as u8]);
            for (from, to) in blocks {
                put(&from.to_be_bytes());
                put(&to.to_be_bytes());
            }
        }
        at
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |b| u32::from_be_bytes(*b))
}

/// The contents of a segment's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address and port.
    pub src: SocketAddr,
    /// Destination address and port.
    pub dst: SocketAddr,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Flags; ECE and CWR, which are above them, are neither read nor set.
    pub flags: TcpFlags,
    /// The window field, not scaled.
    pub window: u16,
    /// The options.
    pub options: Options,
}

/// A parsed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    /// Its headers.
    pub header: Header,
    /// Its data.
    pub payload: &'a [u8],
    /// The whole segment, for its checksum.
    tcp: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Parses an IP packet. The TCP checksum is not verified yet ([`Self::is_intact`]).
    ///
    /// # Errors
    /// The first rule broken. Fragments, IPv4 options and IPv6 extension headers are refused too.
    pub fn parse(packet: &'a [u8]) -> Result<Segment<'a>, SegmentError> {
        let (ip, start, end) = ip::read(packet, 0).map_err(SegmentError::Ip)?;
        let tcp = packet.get(start..end).ok_or(SegmentError::Truncated)?;
        let fixed: &[u8; HEADER] = tcp.first_chunk().ok_or(SegmentError::Truncated)?;
        let offset = usize::from(fixed[12] >> 4) * 4;
        let (Some(options), Some(payload)) = (tcp.get(HEADER..offset), tcp.get(offset..)) else {
            return Err(SegmentError::Offset);
        };
        let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let header = Header {
            src: SocketAddr::new(ip.src, port(0)),
            dst: SocketAddr::new(ip.dst, port(2)),
            seq: word(fixed, 4),
            ack: word(fixed, 8),
            flags: TcpFlags(fixed[13] & 0x3f),
            window: port(14),
            options: Options::parse(options)?,
        };
        Ok(Segment { header, payload, tcp })
    }

    /// Whether the TCP checksum is valid.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let (src, dst) = (self.header.src.ip(), self.header.dst.ip());
        Sum::new().pseudo_header(src, dst, TCP, self.tcp.len()).bytes(self.tcp).finish() == 0
    }

    /// Whether the segment is more than a pure acknowledgement.
    #[must_use]
    pub fn has_data_or_fin(&self) -> bool {
        !self.payload.is_empty() || self.has(TcpFlags::FIN)
    }

    /// Length of its IP packet, without the frame's padding.
    #[must_use]
    pub fn packet_length(&self) -> usize {
        ip::length(self.header.src.ip()) + self.tcp.len()
    }

    /// Whether all these flags are set.
    #[must_use]
    pub fn has(&self, flags: u8) -> bool {
        self.header.flags.has(flags)
    }

    /// The sequence number after its data; SYN and FIN count as one each.
    #[must_use]
    pub fn end(&self) -> u32 {
        let marks = u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN));
        self.header.seq.wrapping_add(self.payload.len() as u32).wrapping_add(marks)
    }
}

impl Header {
    /// Bytes of the IP and TCP headers of such a segment: the offset of its data in the packet.
    #[must_use]
    pub fn length(&self) -> usize {
        ip::length(self.src.ip()) + HEADER + self.options.write(&mut [0; 40])
    }

    /// Writes the headers for `payload` bytes of data that are already at [`length`](Self::length)
    /// of `packet`; returns the packet's length. Checksums are complete.
    ///
    /// # Errors
    /// [`BuildError`]: addresses of two families, or a packet longer than the buffer or than IP allows.
    pub fn finish(&self, packet: &mut [u8], payload: usize) -> Result<usize, BuildError> {
        let total = self.length() + payload;
        let have = packet.len();
        let packet = packet.get_mut(..total).ok_or(BuildError::BufferTooSmall { need: total, have })?;
        self.finish_head(packet, payload)?;
        let tcp = &mut packet[ip::length(self.src.ip())..];
        // The checksum field holds the sum of the pseudo-header.
        let sum = Sum::new().bytes(tcp).finish();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        Ok(total)
    }

    /// Writes the headers for `payload` bytes of data that are elsewhere; returns their length. The
    /// checksum field has the pseudo header's sum, to be completed when the data is added.
    ///
    /// # Errors
    /// [`BuildError`]: addresses of two families, or headers longer than the buffer or a packet longer than IP allows.
    pub(crate) fn finish_head(&self, packet: &mut [u8], payload: usize) -> Result<usize, BuildError> {
        let (src, dst) = (self.src.ip(), self.dst.ip());
        if src.is_ipv4() != dst.is_ipv4() {
            return Err(BuildError::Inconsistent { what: "addresses of two families" });
        }
        let mut options = [0; 40];
        let n = self.options.write(&mut options);
        let start = ip::length(src);
        let (length, have) = (start + HEADER + n, packet.len());
        let total = length + payload;
        let packet = packet
            .get_mut(..length)
            .filter(|_| total <= usize::from(u16::MAX))
            .ok_or(BuildError::BufferTooSmall { need: total, have })?;
        let header = IpHeader { src, dst, ecn: Ecn::NotEct, ttl: TTL };
        if !ip::write_header(packet, &header, total - start) {
            return Err(BuildError::BufferTooSmall { need: total, have });
        }
        let tcp = &mut packet[start..];
        tcp[..2].copy_from_slice(&self.src.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.dst.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[8..12].copy_from_slice(&self.ack.to_be_bytes());
        tcp[12] = ((HEADER + n) as u8 / 4) << 4;
        tcp[13] = self.flags.0;
        tcp[14..16].copy_from_slice(&self.window.to_be_bytes());
        // `finish` returns the complement.
        let sum = !Sum::new().pseudo_header(src, dst, TCP, total - start).finish();
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
        tcp[18..20].fill(0);
        tcp[HEADER..].copy_from_slice(&options[..n]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn impossible_options_are_refused_with_their_offset() {
        for (bytes, at) in [
            (&[2u8][..], 0),
            (&[1, 2, 0], 1),
            (&[1, 1, 2, 1], 2),
            (&[2, 3, 5], 0),
            (&[2, 4, 5], 0),
            (&[3, 4, 1, 1], 0),
            (&[4, 3, 1], 0),
            (&[5, 2], 0),
            (&[5, 9, 0, 0, 0, 0, 0, 0, 0], 0),
            (&[8, 9, 0, 0, 0, 0, 0, 0, 0], 0),
            (&[254, 200, 0], 0),
        ] {
            assert_eq!(Options::parse(bytes), Err(SegmentError::Option(at)), "{bytes:?}");
        }
        let odd = [1, 254, 4, 9, 9, 3, 3, 77, 0, 2, 1];
        assert_eq!(Options::parse(&odd), Ok(Options { scale: Some(14), ..Options::default() }));
    }

    proptest! {
        #[test]
        fn encoding_round_trips(
            (v6, seq, ack, flags, window) in any::<(bool, u32, u32, u8, u16)>(),
            (mss, scale, sack_permitted) in (any::<Option<u16>>(), prop::option::of(0u8..15), any::<bool>()),
            stamps in any::<Option<(u32, u32)>>(),
            blocks in prop::collection::vec(any::<(u32, u32)>(), 0..4),
            payload in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut options = Options {
                mss,
                scale,
                sack_permitted,
                stamps: stamps.map(|(value, echo)| Stamps { value, echo }),
                ..Options::default()
            };
            // A SYN has no blocks; beside timestamps there is room for three.
            if mss.is_none() && scale.is_none() && !sack_permitted {
                blocks.iter().for_each(|b| options.sack.push(*b));
            }
            let (src, dst) = if v6 { ("[fd00::1]:5", "[fd00::2]:80") } else { ("10.0.0.1:5", "10.0.0.2:80") };
            let header = Header {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                seq,
                ack,
                flags: TcpFlags(flags & 0x3f),
                window,
                options,
            };
            let mut packet = vec![0xee; header.length()];
            packet.extend_from_slice(&payload);
            let n = header.finish(&mut packet, payload.len()).unwrap();
            prop_assert_eq!(n, packet.len());
            let read = Segment::parse(&packet).unwrap();
            prop_assert_eq!(read.header, header);
            prop_assert_eq!(read.payload, &payload[..]);
            let padded = [&packet[..], &[0; 9]].concat();
            prop_assert_eq!(Segment::parse(&padded).map(|s| s.packet_length()), Ok(n));
            prop_assert!(read.is_intact());
            // The window: the headers stay what they are.
            let window = ip::length(header.src.ip()) + 15;
            packet[window] ^= 1;
            prop_assert!(!Segment::parse(&packet).unwrap().is_intact());
            for short in 0..header.length() {
                prop_assert!(Segment::parse(&packet[..short]).is_err());
                prop_assert!(header.finish(&mut vec![0; short], 0).is_err());
            }
        }

        #[test]
        fn any_octets_are_survived(mut packet in prop::collection::vec(any::<u8>(), 0..120), v6: bool) {
            let _ = Options::parse(&packet);
            if let Some(first) = packet.first_mut() {
                *first = if v6 { 0x60 } else { 0x45 };
            }
            let _ = Segment::parse(&packet);
        }
    }
}
