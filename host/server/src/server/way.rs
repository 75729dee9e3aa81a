//! Where what a plain client is said goes, and what is not for this replica.

use rivulet_packet::checksum::replace;
use rivulet_packet::{EthHeader, TcpFlags};
use rivulet_pktio::PacketIo;
use rivulet_plain::{Cause, Handoff, Header, Segment, Verdict, is_under_way, refusal};

use super::Origin;
use super::downloads::Back;
use super::kernel::Kernel;
use crate::counters::{Counters, Unserved};
use crate::service::{Plain, Service};

/// Where an answer goes.
pub(super) struct Way {
    ethernet: EthHeader,
    ether_type: u16,
    /// The kernel has each segment too: what is its affair needs no refusal.
    pub(super) shared: bool,
    /// No kernel has connections that began with it: what is nobody's is nobody's.
    pub(super) alone: bool,
    /// A ToR spreads packets over several replicas.
    pub(super) behind_tor: bool,
    /// Another replica handed it on, or nobody does.
    pub(super) handed: bool,
    /// Why what is the kernel's is not handed to it.
    pub(super) unserved: Unserved,
}

/// How many hops a packet may still make.
fn hops(packet: &[u8]) -> Option<u8> {
    let at = if packet.first()? >> 4 == 4 { 8 } else { 7 };
    packet.get(at).copied()
}

/// Hops that are left to what is handed on: enough for the way to another replica, and it shows there that it was.
const HANDED: u8 = 4;

/// Writes a packet that has come one hop further, with few of them left, so that none goes round; false if it is not whole.
fn hand_on(packet: &[u8], room: &mut [u8]) -> bool {
    let (Some(left), Some(room)) = (hops(packet), room.get_mut(..packet.len())) else { return false };
    room.copy_from_slice(packet);
    let left = left.saturating_sub(1).min(HANDED);
    match room {
        [version, .., _] if *version >> 4 != 4 => room[7] = left,
        [_, _, _, _, _, _, _, _, hops, protocol, high, low, ..] => {
            let (old, new) = ([*hops, *protocol], [left, *protocol]);
            [*high, *low] = replace(u16::from_be_bytes([*high, *low]), &old, &new).to_be_bytes();
            *hops = left;
        }
        _ => return false,
    }
    true
}

impl Way {
    /// The way back of a frame.
    pub(super) fn back(from: &EthHeader, ether_type: u16, service: &Service, mac: [u8; 6]) -> Way {
        let tor = service.member.map(|member| member.tor_mac);
        Way {
            ethernet: EthHeader { dst: tor.unwrap_or(from.src), src: mac, vlan: from.vlan },
            ether_type,
            shared: service.plain != Plain::Stateless,
            alone: !service.changes_hands(),
            behind_tor: tor.is_some(),
            handed: tor != Some(from.src),
            unserved: Unserved::Later,
        }
    }

    /// What a ToR that spreads gives on from a replica has its own address, but few hops left.
    pub(super) fn comes(&mut self, origin: Origin, packet: &[u8]) {
        self.handed |= origin != Origin::Wire || hops(packet).is_none_or(|left| left <= HANDED);
    }

    pub(super) fn to(&self) -> Back {
        Back { ethernet: self.ethernet, ether_type: self.ether_type }
    }

    /// Has a packet written straight into the memory that is sent from.
    fn send(
        &self,
        length: usize,
        io: &mut dyn PacketIo,
        counters: &mut Counters,
        write: impl FnOnce(&mut [u8]) -> bool,
    ) {
        let lead = self.ethernet.length();
        match io.reserve(lead + length) {
            Some(room) => {
                if self.ethernet.fill(room, self.ether_type) && write(&mut room[lead..]) {
                    io.commit(lead + length);
                } else {
                    counters.unbuilt += 1;
                }
            }
            None => counters.unsent += 1,
        }
    }

    fn say(&self, header: &Header, io: &mut dyn PacketIo, counters: &mut Counters) {
        self.send(header.length(), io, counters, |room| header.finish(room, 0).is_ok());
    }

    pub(super) fn refuse(
        &self,
        segment: &Segment<'_>,
        why: Unserved,
        io: &mut dyn PacketIo,
        counters: &mut Counters,
    ) {
        tracing::debug!(client = %segment.header.src, ?why, "nothing for stateless TCP: refused");
        let mut header = refusal(segment);
        if self.shared {
            // Those without ACK are the kernel's, and are held back: its sockets are not all there is (`Share::Silent`).
            header.flags = TcpFlags(TcpFlags::RST | TcpFlags::ACK);
        }
        self.say(&header, io, counters);
        counters.refuse_plain(why);
    }

    /// A segment to a connection that is not here: from the ToR it goes back there, from this host's Ethernet address, and the ToR
    /// knows who else may have it. What went that way already is refused. While plain TCP changes hands it is the kernel's unless that lacks it.
    pub(super) fn stray(
        &self,
        packet: &[u8],
        segment: &Segment<'_>,
        kernel: &mut Kernel,
        now: u64,
        io: &mut dyn PacketIo,
        counters: &mut Counters,
    ) {
        if !self.alone && !kernel.lacks(segment, now) {
            return counters.pass(true);
        }
        match self.handed {
            true => self.refuse(segment, Unserved::Stray, io, counters),
            false => self.hand_on(packet, io, counters),
        }
    }

    /// A segment to a replica that has nothing to answer from while plain TCP changes hands, and that its kernel lacks: others may have it. What
    /// may be a large answer's was handed on to be asked for here first, and is theirs.
    pub(super) fn leave(
        &self,
        packet: &[u8],
        segment: &Segment<'_>,
        kernel: &mut Kernel,
        now: u64,
        io: &mut dyn PacketIo,
        counters: &mut Counters,
    ) {
        let is_theirs = match self.handed {
            true => {
                is_under_way(segment) && hops(packet).is_some_and(|left| left > 1) && !kernel.has(segment)
            }
            false => kernel.lacks(segment, now),
        };
        if is_theirs {
            self.hand_on(packet, io, counters);
        }
    }

    pub(super) fn hand_on(&self, packet: &[u8], io: &mut dyn PacketIo, counters: &mut Counters) {
        self.send(packet.len(), io, counters, |room| hand_on(packet, room));
        counters.plain_handed_on += 1;
    }

    pub(super) fn carry_out(
        &self,
        verdict: Verdict<'_>,
        segment: &Segment<'_>,
        io: &mut dyn PacketIo,
        counters: &mut Counters,
    ) {
        match verdict {
            Verdict::Drop(reason) => tracing::trace!(client = %segment.header.src, ?reason, "plain"),
            // Dealt with where it is remembered.
            Verdict::Begin(_) => {}
            Verdict::Say(header) => self.say(&header, io, counters),
            Verdict::Answer(flight) | Verdict::Continue(Handoff { flight, .. }) => {
                for piece in flight.pieces() {
                    self.send(flight.length(piece), io, counters, |room| flight.write(piece, room).is_ok());
                }
                counters.plain_answered += 1;
            }
            Verdict::Kernel(cause) | Verdict::Adopt(cause, _) if self.shared => {
                tracing::trace!(client = %segment.header.src, ?cause, "plain: the kernel's");
            }
            Verdict::Kernel(Cause::Syn) => self.refuse(segment, Unserved::Syn, io, counters),
            Verdict::Kernel(_) | Verdict::Adopt(..) => self.refuse(segment, self.unserved, io, counters),
        }
    }
}

#[cfg(test)]
mod tests {
    use rivulet_plain::Options;

    use super::*;

    #[test]
    fn what_is_handed_on_has_come_a_hop_further() {
        for (src, dst) in [("10.0.0.1:5", "10.9.0.1:80"), ("[fd00::1]:5", "[fd00:9::1]:80")] {
            let header = Header {
                src: src.parse().unwrap(),
                dst: dst.parse().unwrap(),
                seq: 1,
                ack: 2,
                flags: TcpFlags(TcpFlags::ACK),
                window: 3,
                options: Options::default(),
            };
            let mut packet = vec![0; header.length()];
            header.finish(&mut packet, 0).unwrap();
            let mut on = vec![0; packet.len()];
            assert!(hand_on(&packet, &mut on));
            // The header's checksum is right, or this would not be a segment.
            assert_eq!(Segment::parse(&on).unwrap().header, header);
            assert_eq!((hops(&packet), hops(&on)), (Some(64), Some(HANDED)));
            let mut further = on.clone();
            assert!(hand_on(&on, &mut further));
            assert_eq!(hops(&further), Some(HANDED - 1));
            for short in 0..8 {
                assert!(!hand_on(&packet[..short], &mut on), "{short}");
            }
        }
    }
}
