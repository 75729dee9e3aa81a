//! Finds the connection that a received frame belongs to.

use std::net::{IpAddr, SocketAddr};

/// Returns the IP packet in an Ethernet frame (one VLAN tag at most) and its (source, destination).
/// `None` if it is not TCP over IP, or too short.
pub(crate) fn flow(frame: &[u8]) -> Option<(&[u8], (SocketAddr, SocketAddr))> {
    let mut start = 12;
    let mut kind = pair(frame, start)?;
    if kind == 0x8100 {
        start += 4;
        kind = pair(frame, start)?;
    }
    let packet = frame.get(start + 2..)?;
    let (source, destination, ports): (IpAddr, IpAddr, usize) = match kind {
        0x0800 if packet.get(9) == Some(&6) => {
            let from: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            let to: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            (from.into(), to.into(), usize::from(packet[0] & 0xf) * 4)
        }
        0x86dd if packet.get(6) == Some(&6) => {
            let from: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            let to: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            (from.into(), to.into(), 40)
        }
        _ => return None,
    };
    let source = SocketAddr::new(source, pair(packet, ports)?);
    let destination = SocketAddr::new(destination, pair(packet, ports + 2)?);
    Some((packet, (source, destination)))
}

fn pair(bytes: &[u8], at: usize) -> Option<u16> {
    let two = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([two[0], two[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tag: bool) -> Vec<u8> {
        let mut f = vec![0; 12];
        if tag {
            f.extend([0x81, 0, 0, 5]);
        }
        f.extend([
            8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 80, 0x1f, 0x90,
        ]);
        f
    }

    #[test]
    fn addresses_and_ports() {
        for tag in [false, true] {
            let frame = frame(tag);
            let (packet, (from, to)) = flow(&frame).unwrap();
            assert_eq!(packet[0], 0x45);
            assert_eq!((from.to_string(), to.to_string()), ("10.0.0.1:80".into(), "10.0.0.2:8080".into()));
            for len in 0..frame.len() {
                assert_eq!(flow(&frame[..len]), None, "{len} bytes");
            }
        }
    }
}
