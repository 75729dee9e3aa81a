//! Where replies to plain clients go, and how segments for other replicas are forwarded.

use rivulet_packet::checksum::replace;
use rivulet_packet::{EthHeader, TcpFlags};
use rivulet_pktio::PacketIo;
use rivulet_plain::{Cause, Handoff, Header, Segment, Verdict, is_under_way, refusal};

use super::door::Back;
use super::kernel::Kernel;
use super::origin::Origin;
use crate::counters::{Counters, Unserved};
use crate::service::{Plain, Service};

/// The return path for a segment.
pub(super) struct ReturnPath {
    ethernet: EthHeader,
    ether_type: u16,
    /// The kernel receives each segment too, so its connections need no RST from here.
    pub(super) shared: bool,
    /// Plain TCP does not move between the kernel and stateless TCP, so a segment that matches
    /// nothing here belongs to no connection.
    pub(super) alone: bool,
    /// A ToR spreads flows over several replicas.
    pub(super) behind_tor: bool,
    /// Another replica forwarded it, or there is no ToR to forward it to.
    pub(super) forwarded: bool,
    /// Why a connection that needs the kernel is not given to it.
    pub(super) unserved: Unserved,
}

/// Remaining hops (TTL or hop limit) of a packet.
fn hops(packet: &[u8]) -> Option<u8> {
    let at = if packet.first()? >> 4 == 4 { 8 } else { 7 };
    packet.get(at).copied()
}

/// Remaining hops of a forwarded packet: enough to reach another replica, and few enough to be
/// recognised there.
const FORWARDED_HOPS: u8 = 4;

/// Copies a packet with one hop less, and few left, so that it cannot loop. Returns false if the
/// packet is truncated.
fn forward(packet: &[u8], room: &mut [u8]) -> bool {
    let (Some(left), Some(room)) = (hops(packet), room.get_mut(..packet.len())) else { return false };
    room.copy_from_slice(packet);
    let left = left.saturating_sub(1).min(FORWARDED_HOPS);
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

impl ReturnPath {
    /// The return path for a frame.
    pub(super) fn back(from: &EthHeader, ether_type: u16, service: &Service, mac: [u8; 6]) -> ReturnPath {
        let tor = service.member.map(|member| member.tor_mac);
        ReturnPath {
            ethernet: EthHeader { dst: tor.unwrap_or(from.src), src: mac, vlan: from.vlan },
            ether_type,
            shared: service.plain != Plain::Stateless,
            alone: !service.changes_hands(),
            behind_tor: tor.is_some(),
            forwarded: tor != Some(from.src),
            unserved: Unserved::Later,
        }
    }

    /// A packet that the ToR forwards for another replica has the ToR's Ethernet address, but few
    /// hops left.
    pub(super) fn note_origin(&mut self, origin: Origin, packet: &[u8]) {
        self.forwarded |= origin != Origin::Wire || hops(packet).is_none_or(|left| left <= FORWARDED_HOPS);
    }

    pub(super) fn to(&self) -> Back {
        Back { ethernet: self.ethernet, ether_type: self.ether_type }
    }

    /// Writes a packet directly into the transmit ring.
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

    fn send_header(&self, header: &Header, io: &mut dyn PacketIo, counters: &mut Counters) {
        self.send(header.length(), io, counters, |room| header.finish(room, 0).is_ok());
    }

    pub(super) fn refuse(
        &self,
        segment: &Segment<'_>,
        why: Unserved,
        io: &mut dyn PacketIo,
        counters: &mut Counters,
    ) {
        tracing::debug!(client = %segment.header.src, ?why, "refused: not possible with stateless TCP");
        let mut header = refusal(segment);
        if self.shared {
            // Segments without ACK are left to the kernel, and its RSTs are blocked: it does not
            // have all connections (`Share::Silent`).
            header.flags = TcpFlags(TcpFlags::RST | TcpFlags::ACK);
        }
        self.send_header(&header, io, counters);
        counters.refuse_plain(why);
    }

    /// Handles a segment of a connection that is not here. It goes back to the ToR, from this
    /// host's Ethernet address, and the ToR forwards it to the other candidate. A segment that was
    /// forwarded before is refused. While plain TCP moves between the kernel and stateless TCP, the
    /// segment is left to the kernel unless the kernel has no such connection.
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
        match self.forwarded {
            true => self.refuse(segment, Unserved::Stray, io, counters),
            false => self.forward(packet, io, counters),
        }
    }

    /// Handles a segment while plain TCP moves, this replica has no content, and its kernel has no
    /// such connection: another replica may have it. A segment of a large answer was forwarded here
    /// as a query, and belongs to the other replica.
    pub(super) fn forward_without_content(
        &self,
        packet: &[u8],
        segment: &Segment<'_>,
        kernel: &mut Kernel,
        now: u64,
        io: &mut dyn PacketIo,
        counters: &mut Counters,
    ) {
        let is_theirs = match self.forwarded {
            true => {
                is_under_way(segment) && hops(packet).is_some_and(|left| left > 1) && !kernel.has(segment)
            }
            false => kernel.lacks(segment, now),
        };
        if is_theirs {
            self.forward(packet, io, counters);
        }
    }

    pub(super) fn forward(&self, packet: &[u8], io: &mut dyn PacketIo, counters: &mut Counters) {
        self.send(packet.len(), io, counters, |room| forward(packet, room));
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
            // The caller, which stores large answers, handles this verdict.
            Verdict::Begin(_) => {}
            Verdict::Say(header) => self.send_header(&header, io, counters),
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
    fn forwarded_packet_has_one_hop_less() {
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
            assert!(forward(&packet, &mut on));
            // The header checksum is correct, or the packet would not have been parsed.
            assert_eq!(Segment::parse(&on).unwrap().header, header);
            assert_eq!((hops(&packet), hops(&on)), (Some(64), Some(FORWARDED_HOPS)));
            let mut further = on.clone();
            assert!(forward(&on, &mut further));
            assert_eq!(hops(&further), Some(FORWARDED_HOPS - 1));
            for short in 0..8 {
                assert!(!forward(&packet[..short], &mut on), "{short}");
            }
        }
    }
}
