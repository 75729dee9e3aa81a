//! Authentication of ToR blocks that arrive in a tunnel.

use rivulet_packet::{Segment, TorBlock, tor};

use crate::keys::KeySet;

/// Maximum age of a block behind the newest one, microseconds; older ones were delayed or replayed.
const HELD_BACK: u64 = 1_000_000;
/// Without a newer block for this time, microseconds, the common clock may have been set back.
const FORGOTTEN: u64 = 60_000_000;

/// State about the blocks of one service.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// The newest time in an authentic block by the ToR's clock, and its time of arrival by the
    /// local clock, both in microseconds.
    newest: Option<(u64, u64)>,
}

impl Blocks {
    /// Whether the block has a valid tag, which only the ToR and this replica can make, over this
    /// very request, and is recent.
    /// long ago.
    pub fn believes(&mut self, keys: &KeySet, segment: &Segment<'_>, now: u64) -> bool {
        let Ok(block) = TorBlock::parse(segment.payload) else { return false };
        let tag = |key| tor::tag(key, segment.option, segment.seq, segment.payload);
        if keys.block_key(block.key_epoch).and_then(tag) != Some(block.tag) {
            return false;
        }
        if !block.time_valid {
            return true;
        }
        let known = self.newest.filter(|(_, came)| now.saturating_sub(*came) < FORGOTTEN);
        if known.is_some_and(|(newest, _)| block.time + HELD_BACK < newest) {
            return false;
        }
        if known.is_none_or(|(newest, _)| newest <= block.time) {
            self.newest = Some((block.time, now));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Secret, TorKeys};
    use rivulet_packet::{
        Ecn, EntryKind, ProofEntry, RequestBuilder, RequestClass, RivuletOption, SealedContinuation,
        SegmentHeader, SynOptions, TcpFlags, TorKey,
    };

    const KEY: [u8; 8] = [6; 8];

    fn keys() -> KeySet {
        let tor = TorKeys { epoch: 0x105, heartbeat: Secret([5; 8]), block: Secret(KEY) };
        KeySet { tor: vec![tor], usable_tor: 0x105, ..KeySet::generate(1).unwrap() }
    }

    /// A request as an IP packet with its block tagged under `key`, and one byte changed at
    /// `damage`.
    fn packet(class: RequestClass, time: u64, key: [u8; 8], damage: Option<usize>) -> Vec<u8> {
        let mut continuation = SealedContinuation::default();
        (continuation.fields.tag, continuation.fields.number) = (7, 9);
        let entry = |n: u16| ProofEntry::range(EntryKind::Original, 10 * n, 10 * n + 5, u32::from(n));
        let proof = [0, 1, 2, 3, 4, 5].map(entry);
        let syn = class == RequestClass::Syn;
        let builder = RequestBuilder {
            class,
            tor: TorBlock { time, checked: true, time_valid: true, key_epoch: 5, ..TorBlock::default() },
            continuation: (!syn).then_some(&continuation),
            proof: if syn { &[] } else { &proof },
            ..RequestBuilder::default()
        };
        let syn_options = SynOptions { mss: 1460, ts_value: 1, ts_echo: 0, window_scale: 14 };
        let header = SegmentHeader {
            src: "192.0.2.1:40000".parse().unwrap(),
            dst: "198.51.100.80:80".parse().unwrap(),
            ecn: Ecn::Ect0,
            seq: 0x1111_2222,
            ack: u32::from(!syn),
            flags: TcpFlags::of(class.into()),
            option: RivuletOption { class: class.into(), number_low: builder.number_low() },
            syn_options: syn.then_some(syn_options),
        };
        let mut packet = vec![0; 1000];
        let at = header.payload_offset();
        let length = builder.write(&mut packet[at..]).unwrap();
        let payload = &mut packet[at..at + length];
        let tag = tor::tag(TorKey::new(key), header.option, header.seq, payload).unwrap();
        payload[14..18].copy_from_slice(&tag.to_be_bytes());
        if let Some(octet) = damage.and_then(|damage| payload.get_mut(damage)) {
            *octet ^= 1;
        }
        let length = header.finish_packet(&mut packet, length).unwrap();
        packet.truncate(length);
        packet
    }

    fn believed(blocks: &mut Blocks, packet: &[u8], now: u64) -> bool {
        blocks.believes(&keys(), &Segment::parse_packet(packet).unwrap(), now)
    }

    #[test]
    fn block_needs_a_tag_over_its_request() {
        for class in [RequestClass::Syn, RequestClass::Normal] {
            assert!(believed(&mut Blocks::default(), &packet(class, 5, KEY, None), 0), "{class}");
            assert!(
                !believed(&mut Blocks::default(), &packet(class, 5, [7; 8], None), 0),
                "{class}: another key"
            );
            // The block, counts and kinds, then tag, number, base and four entries.
            let covered = if class == RequestClass::Syn { 0..24 } else { 0..76 };
            for at in covered.filter(|at| !(36..44).contains(at)) {
                let other = packet(class, 5, KEY, Some(at));
                assert!(!believed(&mut Blocks::default(), &other, 0), "{class}: octet {at}");
            }
        }
        let none = KeySet::generate(1).unwrap();
        let frame = packet(RequestClass::Normal, 5, KEY, None);
        assert!(
            !Blocks::default().believes(&none, &Segment::parse_packet(&frame).unwrap(), 0),
            "no key, no tag"
        );
    }

    #[test]
    fn old_block_is_not_trusted_again() {
        let mut blocks = Blocks::default();
        let at = |time| packet(RequestClass::Normal, time, KEY, None);
        assert!(believed(&mut blocks, &at(10_000_000), 1));
        assert!(believed(&mut blocks, &at(9_000_000), 2), "the network changed their order");
        assert!(!believed(&mut blocks, &at(8_999_999), 3), "sent again");
        assert!(believed(&mut blocks, &at(11_000_000), 4));
        assert!(!believed(&mut blocks, &at(9_000_000), 5));
        // The clock was set back, and no newer block arrives.
        assert!(!believed(&mut blocks, &at(5_000_000), FORGOTTEN));
        assert!(believed(&mut blocks, &at(5_000_000), 4 + FORGOTTEN));
    }
}
