//! Sets Congestion Experienced (RFC 3168 section 5) in a frame.

use rivulet_pktio::internet_sum;

const CE: u8 = 0b11;

/// Sets CE if the frame contains an ECN-capable IPv4 or IPv6 packet, and updates the IPv4 header
/// checksum (RFC 1624). Returns whether CE is set afterwards.
pub fn mark_congestion(frame: &mut [u8]) -> bool {
    let Some((ethertype, l3)) = network_header(frame) else { return false };
    match (ethertype, frame.get_mut(l3..)) {
        (0x0800, Some(ip)) if ip.len() >= 20 => {
            if ip[1] & CE == 0 {
                return false;
            }
            let before = [ip[0], ip[1]];
            ip[1] |= CE;
            let sum = u16::from_be_bytes([ip[10], ip[11]]);
            let complement = [!before[0], !before[1], ip[0], ip[1]];
            let sum = !internet_sum(&complement, !sum);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        (0x86dd, Some(ip)) if ip.len() >= 40 => {
            // The traffic class spans bytes 0 and 1; its low two bits are ECN.
            let capable = (ip[1] >> 4) & CE != 0;
            if capable {
                ip[1] |= CE << 4;
            }
            capable
        }
        _ => false,
    }
}

/// EtherType after at most two VLAN tags, and the start of the network header.
fn network_header(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = 12;
    loop {
        let kind = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
        if !matches!(kind, 0x8100 | 0x88a8) || at >= 20 {
            return Some((kind, at + 2));
        }
        at += 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(tos: u8, tagged: bool) -> (Vec<u8>, usize) {
        let mut f = vec![0; 12];
        if tagged {
            f.extend([0x81, 0, 0, 5]);
        }
        f.extend([8, 0, 0x45, tos, 0, 20, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let l3 = f.len() - 20;
        let sum = !internet_sum(&f[l3..], 0);
        f[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        (f, l3)
    }

    #[test]
    fn mark_updates_ipv4_checksum() {
        for tagged in [false, true] {
            for tos in 0..=255u8 {
                let (mut f, l3) = ipv4(tos, tagged);
                let marked = mark_congestion(&mut f);
                assert_eq!(marked, tos & 3 != 0, "tos {tos}");
                assert_eq!(f[l3 + 1], if marked { tos | 3 } else { tos });
                assert_eq!(internet_sum(&f[l3..], 0), 0xffff, "tos {tos}");
            }
        }
    }

    #[test]
    fn mark_sets_ipv6_and_skips_other_frames() {
        let mut f = vec![0; 12];
        f.extend([0x86, 0xdd, 0x60, 0x20]);
        f.resize(54, 0);
        assert!(mark_congestion(&mut f));
        assert_eq!(f[15], 0x30);
        f[15] = 0x40;
        assert!(!mark_congestion(&mut f));
        let mut arp = vec![0xff; 60];
        arp[12..14].copy_from_slice(&[8, 6]);
        assert!(!mark_congestion(&mut arp));
        let (whole, _) = ipv4(1, true);
        for len in 0..whole.len() {
            assert!(!mark_congestion(&mut whole[..len].to_vec()), "{len} bytes");
        }
    }
}
