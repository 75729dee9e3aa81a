//! Cuts a large segment that its sender left to the hardware (TSO, USO, or GRO on receipt) into
//! frames of the sender's segment size.

use crate::checksum::internet_sum;
use crate::{Checksum, Segmentation, SegmentationKind};

/// Smaller pieces are refused, so that 64 KiB never become thousands of frames.
const MIN_SEGMENT: usize = 64;

const TCP_FIN_PSH: u8 = 0x09;
const TCP_CWR: u8 = 0x80;

/// Positions of the headers of a frame to cut.
struct Layout {
    ipv6: bool,
    l3: usize,
    l4: usize,
    payload: usize,
}

/// Finds the headers; `None` if the frame is not of the given kind (tunnels, extension headers,
/// damage).
fn layout(frame: &[u8], kind: SegmentationKind) -> Option<Layout> {
    let u16_at = |i: usize| Some(u16::from_be_bytes([*frame.get(i)?, *frame.get(i + 1)?]));
    let mut ethertype = 12;
    while matches!(u16_at(ethertype)?, 0x8100 | 0x88a8) && ethertype < 20 {
        ethertype += 4;
    }
    let l3 = ethertype + 2;
    let (ipv6, l4, protocol) = match u16_at(ethertype)? {
        0x0800 => {
            let ihl = usize::from(*frame.get(l3)? & 0x0f) * 4;
            let fragment = u16_at(l3 + 6)? & 0x3fff != 0;
            if ihl < 20 || fragment {
                return None;
            }
            (false, l3 + ihl, *frame.get(l3 + 9)?)
        }
        0x86dd => (true, l3 + 40, *frame.get(l3 + 6)?),
        _ => return None,
    };
    let payload = match (kind, ipv6, protocol) {
        (SegmentationKind::Tcp4, false, 6) | (SegmentationKind::Tcp6, true, 6) => {
            let offset = usize::from(*frame.get(l4 + 12)? >> 4) * 4;
            if offset < 20 {
                return None;
            }
            l4 + offset
        }
        (SegmentationKind::Udp, _, 17) => l4 + 8,
        _ => return None,
    };
    (payload < frame.len() && frame.len() <= usize::from(u16::MAX) + payload).then_some(Layout {
        ipv6,
        l3,
        l4,
        payload,
    })
}

/// Appends the pieces of `frame` to `out` and calls `piece` with the range of each in `out` and its
/// checksum, which stays partial. Returns false, changing nothing, if the frame cannot be cut.
pub(crate) fn segment(
    frame: &[u8],
    seg: Segmentation,
    out: &mut Vec<u8>,
    mut piece: impl FnMut(std::ops::Range<usize>, Checksum),
) -> bool {
    let size = usize::from(seg.size);
    let Some(at) = layout(frame, seg.kind) else { return false };
    if size < MIN_SEGMENT {
        return false;
    }
    let (headers, payload) = frame.split_at(at.payload);
    let count = payload.len().div_ceil(size);
    for (i, chunk) in payload.chunks(size).enumerate() {
        let start = out.len();
        out.extend_from_slice(headers);
        out.extend_from_slice(chunk);
        let h = &mut out[start..start + headers.len()];
        let l4_len = (at.payload - at.l4 + chunk.len()) as u16;
        network_header(h, &at, i as u16, l4_len);
        let offset = if seg.kind == SegmentationKind::Udp {
            h[at.l4 + 4..at.l4 + 6].copy_from_slice(&l4_len.to_be_bytes());
            6
        } else {
            tcp_header(&mut h[at.l4..], (i * size) as u32, i == 0, i + 1 == count);
            16
        };
        let field = at.l4 + offset;
        let pseudo = pseudo_sum(h, &at, l4_len, seg.kind);
        h[field..field + 2].copy_from_slice(&pseudo.to_be_bytes());
        piece(start..out.len(), Checksum::Partial { start: at.l4 as u16, offset: offset as u16 });
    }
    true
}

/// Sets the length of one piece, and for IPv4 its identification and header checksum.
fn network_header(h: &mut [u8], at: &Layout, index: u16, l4_len: u16) {
    if at.ipv6 {
        h[at.l3 + 4..at.l3 + 6].copy_from_slice(&l4_len.to_be_bytes());
        return;
    }
    let total = (at.l4 - at.l3) as u16 + l4_len;
    h[at.l3 + 2..at.l3 + 4].copy_from_slice(&total.to_be_bytes());
    let id = u16::from_be_bytes([h[at.l3 + 4], h[at.l3 + 5]]).wrapping_add(index);
    h[at.l3 + 4..at.l3 + 6].copy_from_slice(&id.to_be_bytes());
    h[at.l3 + 10..at.l3 + 12].fill(0);
    let sum = !internet_sum(&h[at.l3..at.l4], 0);
    h[at.l3 + 10..at.l3 + 12].copy_from_slice(&sum.to_be_bytes());
}

/// Sets the sequence number and flags of one piece: FIN and PSH on the last, CWR on the first (RFC
/// 3168 section 6.1.2: once).
fn tcp_header(tcp: &mut [u8], advance: u32, first: bool, last: bool) {
    let seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(advance);
    tcp[4..8].copy_from_slice(&seq.to_be_bytes());
    if !last {
        tcp[13] &= !TCP_FIN_PSH;
    }
    if !first {
        tcp[13] &= !TCP_CWR;
    }
}

/// The pseudo-header's sum (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn pseudo_sum(h: &[u8], at: &Layout, l4_len: u16, kind: SegmentationKind) -> u16 {
    let protocol = if kind == SegmentationKind::Udp { 17 } else { 6 };
    let addresses = if at.ipv6 { &h[at.l3 + 8..at.l3 + 40] } else { &h[at.l3 + 12..at.l3 + 20] };
    let [high, low] = l4_len.to_be_bytes();
    internet_sum(addresses, internet_sum(&[0, protocol, high, low], 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::complete;

    fn super_frame(payload: usize, vlan: bool) -> Vec<u8> {
        let mut f = vec![2; 12];
        if vlan {
            f.extend([0x81, 0, 0, 7]);
        }
        f.extend([8, 0, 0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend([0, 80, 1, 1, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 1, 0x60, 0x99, 1, 0, 0, 0, 0, 0, 1, 1, 1, 0]);
        f.extend((0..payload).map(|i| (i * 7) as u8));
        f
    }

    fn cut(frame: &[u8], size: u16) -> Option<Vec<Vec<u8>>> {
        let seg = Segmentation { kind: SegmentationKind::Tcp4, size, header_len: 0 };
        let (mut out, mut ranges) = (Vec::new(), Vec::new());
        segment(frame, seg, &mut out, |r, c| ranges.push((r, c))).then(|| {
            let finish = |(r, c): (std::ops::Range<usize>, Checksum)| {
                let mut piece = out[r].to_vec();
                let Checksum::Partial { start, offset } = c else { panic!("not partial") };
                assert!(complete(&mut piece, start, offset));
                piece
            };
            ranges.into_iter().map(finish).collect()
        })
    }

    #[test]
    fn pieces_are_whole_segments_with_the_original_payload() {
        for vlan in [false, true] {
            let frame = super_frame(3000, vlan);
            let l3 = if vlan { 18 } else { 14 };
            let pieces = cut(&frame, 1400).unwrap();
            assert_eq!(pieces.len(), 3);
            let mut data = Vec::new();
            for (i, p) in pieces.iter().enumerate() {
                assert_eq!(internet_sum(&p[l3..l3 + 20], 0), 0xffff, "header checksum of piece {i}");
                let total = u16::from_be_bytes([p[l3 + 2], p[l3 + 3]]);
                assert_eq!(usize::from(total), p.len() - l3);
                let mut pseudo = p[l3 + 12..l3 + 20].to_vec();
                pseudo.extend([0, 6]);
                pseudo.extend((total - 20).to_be_bytes());
                let sum = internet_sum(&p[l3 + 20..], internet_sum(&pseudo, 0));
                assert_eq!(sum, 0xffff, "TCP checksum of piece {i}");
                let seq = u32::from_be_bytes(p[l3 + 24..l3 + 28].try_into().unwrap());
                assert_eq!(seq, 0xffff_fff0u32.wrapping_add(1400 * i as u32));
                assert_eq!(p[l3 + 33], [0x90, 0x10, 0x19][i], "flags of piece {i}");
                assert_eq!(u16::from_be_bytes([p[l3 + 4], p[l3 + 5]]), 0xffffu16.wrapping_add(i as u16));
                data.extend_from_slice(&p[l3 + 44..]);
            }
            assert_eq!(data, frame[l3 + 44..]);
        }
    }

    #[test]
    fn uncuttable_frames_are_refused() {
        let frame = super_frame(3000, false);
        assert!(cut(&frame, 10).is_none(), "pieces too small");
        assert!(cut(&frame[..58], 1400).is_none(), "no payload");
        for len in 0..58 {
            assert!(cut(&frame[..len], 1400).is_none(), "cut at {len}");
        }
        let mut fragment = frame.clone();
        fragment[20] = 0x20;
        assert!(cut(&fragment, 1400).is_none(), "fragment");
        let mut short = frame;
        short[14] = 0x41;
        assert!(cut(&short, 1400).is_none(), "IHL of 1");
    }
}
