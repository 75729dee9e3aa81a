//! `struct virtio_net_hdr`, which a packet socket with `PACKET_VNET_HDR` puts before each frame:
//! the offloads that the sender left to the hardware (checksum, segmentation). Fields are in host
//! byte order.

use crate::{Checksum, Segmentation, SegmentationKind, TxFrame};

/// Bytes of the header.
pub(crate) const VNET_LEN: usize = 10;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Flag in the type: the TCP flags need ECN treatment (CWR on the first piece only).
const GSO_ECN: u8 = 0x80;

/// Content of the header of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vnet {
    pub(crate) checksum: Checksum,
    pub(crate) segmentation: Option<Segmentation>,
    /// The frame must be cut in an unknown way.
    pub(crate) unknown_gso: bool,
}

impl Vnet {
    /// Reads the header of a received frame.
    pub(crate) fn parse(hdr: &[u8; VNET_LEN]) -> Vnet {
        let u16_at = |i: usize| u16::from_ne_bytes([hdr[i], hdr[i + 1]]);
        let checksum = if hdr[0] & F_NEEDS_CSUM != 0 {
            Checksum::Partial { start: u16_at(6), offset: u16_at(8) }
        } else if hdr[0] & F_DATA_VALID != 0 {
            Checksum::Verified
        } else {
            Checksum::Unknown
        };
        let kind = match hdr[1] & !GSO_ECN {
            GSO_TCPV4 => Some(SegmentationKind::Tcp4),
            GSO_TCPV6 => Some(SegmentationKind::Tcp6),
            GSO_UDP_L4 => Some(SegmentationKind::Udp),
            _ => None,
        };
        let unknown_gso = kind.is_none() && hdr[1] & !GSO_ECN != GSO_NONE;
        let segmentation = kind.map(|kind| Segmentation { kind, size: u16_at(4), header_len: u16_at(2) });
        Vnet { checksum, segmentation, unknown_gso }
    }
}

/// Writes the header for a frame to be sent.
pub(crate) fn encode(frame: &TxFrame<'_>) -> [u8; VNET_LEN] {
    let mut hdr = [0; VNET_LEN];
    if let Checksum::Partial { start, offset } = frame.checksum {
        hdr[0] = F_NEEDS_CSUM;
        hdr[6..8].copy_from_slice(&start.to_ne_bytes());
        hdr[8..10].copy_from_slice(&offset.to_ne_bytes());
    }
    if let Some(seg) = frame.segmentation {
        hdr[1] = match seg.kind {
            SegmentationKind::Tcp4 => GSO_TCPV4,
            SegmentationKind::Tcp6 => GSO_TCPV6,
            SegmentationKind::Udp => GSO_UDP_L4,
        };
        hdr[2..4].copy_from_slice(&seg.header_len.to_ne_bytes());
        hdr[4..6].copy_from_slice(&seg.size.to_ne_bytes());
    }
    hdr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips() {
        let seg = Segmentation { kind: SegmentationKind::Tcp6, size: 1440, header_len: 74 };
        let checksum = Checksum::Partial { start: 54, offset: 16 };
        let frame = TxFrame { head: &[], body: &[], checksum, segmentation: Some(seg) };
        assert_eq!(
            Vnet::parse(&encode(&frame)),
            Vnet { checksum, segmentation: Some(seg), unknown_gso: false }
        );
    }

    #[test]
    fn ecn_flag_is_masked_and_unknown_types_are_reported() {
        let mut hdr = [0; VNET_LEN];
        hdr[1] = GSO_TCPV4 | GSO_ECN;
        assert_eq!(Vnet::parse(&hdr).segmentation.map(|s| s.kind), Some(SegmentationKind::Tcp4));
        hdr[1] = 3;
        assert!(Vnet::parse(&hdr).unknown_gso);
        hdr = [0; VNET_LEN];
        hdr[0] = F_DATA_VALID;
        assert_eq!(Vnet::parse(&hdr).checksum, Checksum::Verified);
    }
}
