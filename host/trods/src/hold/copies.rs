//! Copies of clients' segments on connections that have no known live holder: those that are
//! searched for, and those with a holder that may be dead. An adopter replays them first, because
//! the client's TCP would retransmit them only after a timeout.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;
use rivulet_plain::Segment;

/// How long a copy is kept: longer than the adoption of a connection takes.
const KEPT: Duration = Duration::from_secs(1);
/// Limit on the kept packets; the oldest ones are dropped.
const MOST: usize = 4096;

/// Packets with data, unmodified.
#[derive(Debug, Default)]
pub(super) struct Copies {
    of: HashMap<FlowKey, VecDeque<Vec<u8>>>,
    order: VecDeque<(Instant, FlowKey)>,
}

impl Copies {
    /// Keeps a packet if it has data; `segment` is the parsed packet.
    pub fn keep(&mut self, key: &FlowKey, packet: &[u8], segment: &Segment<'_>, now: Instant) {
        while self.order.front().is_some_and(|(at, _)| now >= *at + KEPT) || self.order.len() >= MOST {
            let Some((_, oldest)) = self.order.pop_front() else { break };
            if let Some(packets) = self.of.get_mut(&oldest) {
                packets.pop_front();
                if packets.is_empty() {
                    self.of.remove(&oldest);
                }
            }
        }
        if !segment.payload.is_empty() {
            self.of.entry(*key).or_default().push_back(packet.to_vec());
            self.order.push_back((now, *key));
        }
    }

    /// Takes out the copies of a connection.
    pub fn take(&mut self, key: &FlowKey) -> VecDeque<Vec<u8>> {
        let packets = self.of.remove(key).unwrap_or_default();
        if !packets.is_empty() {
            self.order.retain(|(_, other)| other != key);
        }
        packets
    }
}

#[cfg(test)]
mod tests {
    use rivulet_packet::segment::TcpFlags;
    use rivulet_plain::{Header, Options};

    use super::*;

    #[test]
    fn copies_are_kept_for_one_second() {
        let (mut copies, now) = (Copies::default(), Instant::now());
        let (client, service) = ("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        let packet = |data: &[u8]| {
            let (flags, options) = (TcpFlags(TcpFlags::ACK), Options::default());
            let header = Header { src: client, dst: service, seq: 30, ack: 9, flags, window: 10, options };
            let mut packet = vec![0; header.length()];
            packet.extend_from_slice(data);
            header.finish(&mut packet, data.len()).unwrap();
            packet
        };
        let key = |port| FlowKey::new((client.ip(), port).into(), service);
        let keep = |copies: &mut Copies, port, data: &[u8], at| {
            let packet = packet(data);
            copies.keep(&key(port), &packet, &Segment::parse(&packet).unwrap(), at);
        };
        keep(&mut copies, 1, b"", now);
        assert!(copies.take(&key(1)).is_empty(), "there is nothing to hear");
        for data in [&b"a"[..], b"b"] {
            keep(&mut copies, 1, data, now);
        }
        keep(&mut copies, 2, b"c", now + KEPT / 2);
        assert_eq!(copies.take(&key(1)), [packet(b"a"), packet(b"b")]);
        assert!(copies.take(&key(1)).is_empty(), "once");
        keep(&mut copies, 3, b"d", now + KEPT);
        assert_eq!(copies.take(&key(2)), [packet(b"c")]);
        keep(&mut copies, 4, b"e", now + 2 * KEPT);
        assert!(copies.take(&key(3)).is_empty(), "it was sent again by now");
        for port in 5..=MOST as u16 + 4 {
            keep(&mut copies, port, b"f", now + 2 * KEPT);
        }
        assert_eq!(
            (copies.take(&key(4)).len(), copies.take(&key(5)).len(), copies.order.len()),
            (0, 1, MOST - 1)
        );
    }
}
