//! A server's frame that is held until its state is stored.

use rivulet_bpf::trods::FlowKey;
use rivulet_packet::checksum::Sum;
use rivulet_packet::ip::{self, TCP};
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::tap::TapFrame;
use rivulet_pktio::{Checksum, Segmentation, TxFrame};
use rivulet_plain::Segment;

/// Length of an Ethernet header. Frames of a local sender have no VLAN tag.
const ETHERNET: usize = 14;
/// Offsets of flags and checksum in a TCP header, and the CWR flag (RFC 3168 section 6.1.2).
const TCP_FLAGS: usize = 13;
const CWR: u8 = 0x80;
const TCP_CHECKSUM: usize = 16;

/// One TCP segment with its Ethernet header, as large as the kernel handed it to the device (up to
/// 64 kB).
#[derive(Debug)]
pub struct Frame {
    octets: Vec<u8>,
    checksum: Checksum,
    segmentation: Option<Segmentation>,
    key: FlowKey,
    seq: u32,
    data: usize,
    fin: bool,
}

impl Frame {
    /// Parses a frame; `buffer` becomes its memory. `None` if it is not a complete TCP segment.
    pub(super) fn new(octets: &[u8], known: &TapFrame, mut buffer: Vec<u8>) -> Option<Frame> {
        let segment = Segment::parse(octets.get(ETHERNET..)?).ok()?;
        let header = &segment.header;
        let key = FlowKey::new(header.dst, header.src);
        let (seq, fin) = (header.seq, segment.has(TcpFlags::FIN));
        let whole = ETHERNET + segment.packet_length();
        let data = whole - segment.payload.len();
        buffer.clear();
        buffer.extend_from_slice(&octets[..whole]);
        let TapFrame { checksum, segmentation, .. } = *known;
        Some(Frame { octets: buffer, checksum, segmentation, key, seq, data, fin })
    }

    /// The connection of the frame.
    #[must_use]
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// Sequence number of its first byte.
    #[must_use]
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// Sequence number after its data.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add((self.octets.len() - self.data) as u32)
    }

    /// Whether a FIN follows the data.
    #[must_use]
    pub fn fin(&self) -> bool {
        self.fin
    }

    /// The segment's payload.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.octets[self.data..]
    }

    /// Whether `other` contains every byte of this frame.
    #[must_use]
    pub(super) fn is_within(&self, other: &Frame) -> bool {
        let not_before = |a: u32, b: u32| a.wrapping_sub(b) as i32 >= 0;
        not_before(self.seq, other.seq) && not_before(other.end(), self.end()) && (other.fin || !self.fin)
    }

    /// Splits the frame at sequence number `at` within its data: returns the first part and keeps
    /// the rest. `buffer` provides memory.
    pub(super) fn cut(&mut self, at: u32, mut buffer: Vec<u8>) -> Frame {
        let cut = self.data + at.wrapping_sub(self.seq) as usize;
        buffer.clear();
        buffer.extend_from_slice(&self.octets[..cut]);
        let Frame { checksum, segmentation, key, seq, data, .. } = *self;
        let mut front = Frame { octets: buffer, checksum, segmentation, key, seq, data, fin: false };
        self.octets.drain(data..cut);
        self.seq = at;
        front.seal(TcpFlags::FIN);
        // CWR must be sent once, so only the first part keeps it.
        self.seal(CWR);
        front
    }

    /// Adapts headers that were copied from another frame to this frame's sequence number and
    /// length, and clears `flag`.
    fn seal(&mut self, flag: u8) {
        let packet = &mut self.octets[ETHERNET..];
        let length = packet.len();
        let start = if packet[0] >> 4 == 4 {
            packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            packet[10..12].fill(0);
            let sum = Sum::new().bytes(&packet[..ip::V4]).finish();
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            ip::V4
        } else {
            packet[4..6].copy_from_slice(&((length - ip::V6) as u16).to_be_bytes());
            ip::V6
        };
        let tcp = &mut packet[start..];
        tcp[4..8].copy_from_slice(&self.seq.to_be_bytes());
        tcp[TCP_FLAGS] &= !flag;
        // The frame was parsed as a segment before, so this cannot fail.
        let _ = sum(&mut self.octets, self.checksum);
    }

    pub(super) fn octets(&self) -> &[u8] {
        &self.octets
    }

    pub(super) fn to_send(&self) -> TxFrame<'_> {
        let (checksum, segmentation) = (self.checksum, self.segmentation);
        TxFrame { head: &self.octets, body: &[], checksum, segmentation }
    }

    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.octets
    }
}

/// Completes the TCP checksum of a frame that may have a partial one. Returns `false` if the frame
/// is not a segment.
#[must_use]
pub(super) fn complete(frame: &mut [u8]) -> bool {
    sum(frame, Checksum::Unknown)
}

/// Writes the TCP checksum of a frame, or the part of the pseudo-header where the rest is left to the hardware.
fn sum(frame: &mut [u8], checksum: Checksum) -> bool {
    let Some(packet) = frame.get(ETHERNET..) else { return false };
    let Ok(segment) = Segment::parse(packet) else { return false };
    let (src, dst) = (segment.header.src.ip(), segment.header.dst.ip());
    let end = ETHERNET + segment.packet_length();
    let tcp = &mut frame[ETHERNET + ip::length(src)..end];
    tcp[TCP_CHECKSUM..TCP_CHECKSUM + 2].fill(0);
    let pseudo = Sum::new().pseudo_header(src, dst, TCP, tcp.len());
    let sum = match checksum {
        // `finish` returns the complement.
        Checksum::Partial { .. } => !pseudo.finish(),
        Checksum::Unknown | Checksum::Verified => pseudo.bytes(tcp).finish(),
    };
    tcp[TCP_CHECKSUM..TCP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

#[cfg(test)]
pub(super) mod tests {
    use rivulet_plain::{Header, Options};

    use super::*;

    /// A frame as the TAP delivers it.
    pub fn octets(service: &str, client: &str, seq: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        let (src, dst) = (service.parse().unwrap(), client.parse().unwrap());
        let header =
            Header { src, dst, seq, ack: 7, flags: TcpFlags(flags), window: 9, options: Options::default() };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(data);
        let length = header.finish(&mut packet, data.len()).unwrap();
        packet.truncate(length);
        let ether_type = if src.is_ipv4() { [8, 0] } else { [0x86, 0xdd] };
        [&[2; 12][..], &ether_type, &packet].concat()
    }

    pub fn frame(seq: u32, flags: u8, data: &[u8]) -> Frame {
        let known = TapFrame { len: 0, checksum: Checksum::Unknown, segmentation: None };
        Frame::new(&octets("10.9.0.1:80", "192.0.2.7:1025", seq, flags, data), &known, vec![9; 3]).unwrap()
    }

    /// Completes a partial checksum as hardware does: the sum covers the whole segment, the
    /// checksum field included.
    fn finished(frame: &Frame, service: &str) -> Vec<u8> {
        let mut octets = frame.octets().to_vec();
        let tcp = ETHERNET + ip::length(service.parse::<std::net::SocketAddr>().unwrap().ip());
        let sum = Sum::new().bytes(&octets[tcp..]).finish();
        octets[tcp + TCP_CHECKSUM..tcp + TCP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        octets
    }

    #[test]
    fn cut_frame_gives_two_valid_segments() {
        for (service, client) in [("10.9.0.1:80", "192.0.2.7:1025"), ("[fd00:9::1]:80", "[2001:db8::7]:1025")]
        {
            // `Header` cannot set CWR.
            let with_cwr = |mut octets: Vec<u8>| {
                octets[ETHERNET
                    + ip::length(service.parse::<std::net::SocketAddr>().unwrap().ip())
                    + TCP_FLAGS] |= CWR;
                assert!(complete(&mut octets));
                octets
            };
            let whole = with_cwr(octets(service, client, u32::MAX - 1, 0x19, b"HTTP/1.1"));
            for (length, checksum) in (1..8).flat_map(|length| {
                [Checksum::Unknown, Checksum::Verified, Checksum::Partial { start: 34, offset: 16 }]
                    .map(|checksum| (length, checksum))
            }) {
                let known = TapFrame { len: 0, checksum, segmentation: None };
                let mut rest = Frame::new(&whole, &known, Vec::new()).unwrap();
                let at = (u32::MAX - 1).wrapping_add(length as u32);
                let front = rest.cut(at, vec![9; 5]);
                let is_left = matches!(checksum, Checksum::Partial { .. });
                for (frame, seq, data, flags) in [
                    (&front, u32::MAX - 1, &b"HTTP/1.1"[..length], 0x18),
                    (&rest, at, &b"HTTP/1.1"[length..], 0x19),
                ] {
                    let wanted = octets(service, client, seq, flags, data);
                    let wanted = if seq == at { wanted } else { with_cwr(wanted) };
                    let got = if is_left { finished(frame, service) } else { frame.octets().to_vec() };
                    assert!(got == wanted, "{service} {length} {checksum:?}: {got:02x?}, not {wanted:02x?}");
                    let says = (frame.seq(), frame.end(), frame.fin(), frame.data(), frame.key());
                    let end = seq.wrapping_add(data.len() as u32);
                    assert_eq!(says, (seq, end, flags & TcpFlags::FIN != 0, data, rest.key()));
                }
            }
        }
    }

    #[test]
    fn frame_reports_its_contents() {
        for (service, client) in [("10.9.0.1:80", "192.0.2.7:1025"), ("[fd00:9::1]:80", "[2001:db8::7]:1025")]
        {
            let mut octets = octets(service, client, u32::MAX, 0x11, b"HTTP");
            let known = TapFrame { len: 0, checksum: Checksum::Verified, segmentation: None };
            let frame = Frame::new(&octets, &known, Vec::new()).unwrap();
            assert_eq!(*frame.key(), FlowKey::new(client.parse().unwrap(), service.parse().unwrap()));
            assert_eq!(
                (frame.seq(), frame.end(), frame.fin(), frame.data()),
                (u32::MAX, 3, true, &b"HTTP"[..])
            );
            assert_eq!((frame.to_send().head, frame.to_send().checksum), (&octets[..], Checksum::Verified));
            let whole = octets.clone();
            let tcp = octets.len() - 24;
            octets[tcp + TCP_CHECKSUM] ^= 0x55;
            assert!(complete(&mut octets) && octets == whole, "the checksum is written anew");
            for short in 0..octets.len() {
                assert!(Frame::new(&octets[..short], &known, Vec::new()).is_none(), "{short} octets");
                assert!(!complete(&mut octets[..short].to_vec()), "{short} octets");
            }
        }
    }

    #[test]
    fn repeated_frame_lies_within_another() {
        let held = frame(u32::MAX, 0x11, b"HTTP");
        for (seq, flags, data, within) in [
            (u32::MAX, 0x11, &b"HTTP"[..], true),
            (0, 0x10, b"TTP", true),
            (u32::MAX, 0x10, b"HTTP/", false),
            (u32::MAX - 1, 0x10, b"xH", false),
            (2, 0x11, b"P", true),
        ] {
            assert_eq!(frame(seq, flags, data).is_within(&held), within, "{seq} {flags}");
        }
        assert!(!held.is_within(&frame(u32::MAX, 0x10, b"HTTP")), "its FIN is new");
    }
}
