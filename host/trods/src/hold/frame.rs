//! A frame of a server's that is held.

use rivulet_bpf::trods::FlowKey;
use rivulet_packet::checksum::Sum;
use rivulet_packet::ip::TCP;
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::tap::TapFrame;
use rivulet_pktio::{Checksum, Segmentation, TxFrame};
use rivulet_plain::Segment;

/// Octets of an Ethernet header. There is no tag in a frame that a local sender made.
const ETHERNET: usize = 14;
/// Where the checksum stands in a TCP header.
const TCP_CHECKSUM: usize = 16;

/// One TCP segment, as large as its sender made it, with its Ethernet header.
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
    /// Reads one; `buffer` becomes its memory. None if it is no whole segment.
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

    /// Whose.
    #[must_use]
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// Sequence number of its first octet.
    #[must_use]
    pub fn seq(&self) -> u32 {
        self.seq
    }

    /// Sequence number behind its data.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add((self.octets.len() - self.data) as u32)
    }

    /// A FIN stands behind the data.
    #[must_use]
    pub fn fin(&self) -> bool {
        self.fin
    }

    /// The data.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.octets[self.data..]
    }

    /// Whether it has nothing that another one does not have.
    #[must_use]
    pub(super) fn is_within(&self, other: &Frame) -> bool {
        let not_before = |a: u32, b: u32| a.wrapping_sub(b) as i32 >= 0;
        not_before(self.seq, other.seq) && not_before(other.end(), self.end()) && (other.fin || !self.fin)
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

/// Writes the TCP checksum of a frame whose sender may have left it to the hardware. False: it is no segment.
#[must_use]
pub(super) fn complete(frame: &mut [u8]) -> bool {
    let Some(packet) = frame.get(ETHERNET..) else { return false };
    let Ok(segment) = Segment::parse(packet) else { return false };
    let (src, dst) = (segment.header.src.ip(), segment.header.dst.ip());
    let tcp = ETHERNET + rivulet_packet::ip::length(src);
    let end = ETHERNET + segment.packet_length();
    frame[tcp + TCP_CHECKSUM..tcp + TCP_CHECKSUM + 2].fill(0);
    let tcp_octets = &frame[tcp..end];
    let sum = Sum::new().pseudo_header(src, dst, TCP, tcp_octets.len()).bytes(tcp_octets).finish();
    frame[tcp + TCP_CHECKSUM..tcp + TCP_CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use rivulet_plain::{Header, Options};

    use super::*;

    fn octets(service: &str, client: &str, seq: u32, flags: u8, data: &[u8]) -> Vec<u8> {
        let (src, dst) = (service.parse().unwrap(), client.parse().unwrap());
        let header =
            Header { src, dst, seq, ack: 7, flags: TcpFlags(flags), window: 9, options: Options::default() };
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(data);
        let length = header.finish(&mut packet, data.len()).unwrap();
        packet.truncate(length);
        [&[2; 14][..], &packet].concat()
    }

    fn frame(seq: u32, flags: u8, data: &[u8]) -> Frame {
        let known = TapFrame { len: 0, checksum: Checksum::Unknown, segmentation: None };
        Frame::new(&octets("10.9.0.1:80", "192.0.2.7:1025", seq, flags, data), &known, vec![9; 3]).unwrap()
    }

    #[test]
    fn a_frame_says_what_it_holds() {
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
    fn a_frame_that_says_nothing_new_is_within_another() {
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
