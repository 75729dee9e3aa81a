//! Packets of attackers with ordinary TCP, which need no key.

use std::net::{IpAddr, SocketAddr};

use rivulet_packet::segment::TcpFlags;
use rivulet_plain::{Header, Options, Stamps};

use super::{Class, mix};

/// The client's request.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// A random IP packet of this class.
///
/// # Errors
/// Addresses of different families.
pub(super) fn packet(
    class: Class,
    (source, server): (IpAddr, SocketAddr),
    seed: u64,
) -> anyhow::Result<Vec<u8>> {
    let (numbers, stamps) = (mix(seed), mix(seed ^ 1));
    let syn = class == Class::PlainSyn;
    // A timestamp within an answer: kind 0, and a valid start.
    let echo = if syn { 0 } else { (stamps >> 32) as u32 & !(3 << 22) | 1 << 24 };
    let header = Header {
        src: SocketAddr::new(source, 1024 + (seed % 64_000) as u16),
        dst: server,
        seq: numbers as u32,
        ack: if syn { 0 } else { (numbers >> 32) as u32 },
        flags: TcpFlags(match class {
            Class::PlainSyn => TcpFlags::SYN,
            Class::PlainAck => TcpFlags::ACK,
            _ => TcpFlags::PSH | TcpFlags::ACK,
        }),
        window: 64_240,
        options: Options {
            mss: syn.then_some(1460),
            scale: syn.then_some(7),
            sack_permitted: syn,
            stamps: Some(Stamps { value: stamps as u32, echo }),
            ..Options::default()
        },
    };
    let data = if class == Class::PlainData { REQUEST } else { &[][..] };
    let start = header.length();
    let mut packet = vec![0; start + data.len()];
    packet[start..].copy_from_slice(data);
    header.finish(&mut packet, data.len())?;
    Ok(packet)
}

#[cfg(test)]
mod tests {
    use rivulet_plain::{Segment, Stamp};

    use super::*;

    #[test]
    fn segments_of_connections_that_do_not_exist() {
        let ends = ("10.9.0.2".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        for seed in 0..100 {
            let syn = packet(Class::PlainSyn, ends, mix(seed)).unwrap();
            let syn = Segment::parse(&syn).unwrap();
            assert!(syn.is_intact() && syn.has(TcpFlags::SYN) && !syn.has(TcpFlags::ACK));
            // Linux's layout, which the ToR answers itself.
            assert_eq!((syn.header.length(), syn.header.options.scale), (60, Some(7)));
            let data = packet(Class::PlainData, ends, mix(seed)).unwrap();
            let data = Segment::parse(&data).unwrap();
            assert!(data.is_intact() && data.payload == REQUEST);
            let echo = data.header.options.stamps.unwrap().echo;
            assert!(matches!(Stamp::parse(echo), Stamp::Answer(_)), "{echo:#x}");
            let ack = packet(Class::PlainAck, ends, mix(seed)).unwrap();
            let ack = Segment::parse(&ack).unwrap();
            assert!(ack.is_intact() && ack.header.flags == TcpFlags(TcpFlags::ACK) && ack.payload.is_empty());
        }
    }
}
