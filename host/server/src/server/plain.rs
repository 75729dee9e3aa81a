//! The other door of the turn: segments of plain clients, answered without state (`docs/plain.md`).

use std::sync::Arc;

use rivulet_packet::{EthHeader, TcpFlags};
use rivulet_plain::{Replica, Ring, Segment, Site, Table, Verdict, refusal};

use super::{Server, common_clock};
use crate::service::{Plain, Service};

/// Answers under way that are remembered, less than 8 MB; one that finds another in its place takes it.
const REMEMBERED: usize = 1 << 16;

/// What answers the plain clients of a service without state, or goes on with those that it answered; `None` where others do, or
/// before there are keys and objects.
pub(super) fn replica(service: &Service, table: Option<&Arc<Table>>, mtu: u32) -> Option<Replica> {
    if !service.answers_plain() {
        return None;
    }
    let site = Site { keys: service.keys.cookies()?, table: table?.clone(), mtu: self::mtu(mtu) };
    Some(Replica { site, ring: Some(Ring::new(REMEMBERED)) })
}

/// The longest packet of a plain connection on this interface.
pub(super) fn mtu(link: u32) -> u16 {
    u16::try_from(link).unwrap_or(u16::MAX)
}

impl Server {
    /// Judges a frame of plain TCP and says what comes of it.
    pub(super) fn plain(&mut self, frame: &[u8], verify: bool) {
        let Ok((ethernet, ether_type)) = EthHeader::parse(frame) else { return };
        let Some(Ok(segment)) = frame.get(ethernet.length()..).map(Segment::parse) else {
            self.counters.damaged += 1;
            return;
        };
        if verify && !segment.is_intact() {
            self.counters.damaged += 1;
            return;
        }
        let now = self.now();
        let path = self.paths.mtu(segment.header.src.ip(), now);
        let Some(running) = self.running.iter_mut().find(|r| r.serves(segment.header.dst)) else {
            self.counters.not_ours += 1;
            return;
        };
        let Some(replica) = &mut running.plain else {
            self.counters.not_ours += 1;
            return;
        };
        let drains = running.service.plain != Plain::Stateless;
        if drains && segment.has(TcpFlags::SYN) {
            // What begins is the kernel's, which has this segment too.
            return;
        }
        self.counters.plain += 1;
        let ethernet = EthHeader {
            dst: running.service.member.map_or(ethernet.src, |member| member.tor_mac),
            src: self.link.mac,
            vlan: ethernet.vlan,
        };
        let minute = rivulet_plain::minute(common_clock().0);
        let (io, counters, lead) = (self.io.as_mut(), &mut self.counters, ethernet.length());
        // Straight into the memory that is sent from.
        let mut send =
            |length: usize, write: &mut dyn FnMut(&mut [u8]) -> bool| match io.reserve(lead + length) {
                Some(room) => {
                    if ethernet.fill(room, ether_type) && write(&mut room[lead..]) {
                        io.commit(lead + length);
                    } else {
                        counters.unbuilt += 1;
                    }
                }
                None => counters.unsent += 1,
            };
        match replica.receive(&segment, minute, path) {
            Verdict::Drop(reason) => tracing::trace!(client = %segment.header.src, ?reason, "plain"),
            Verdict::Say(header) => send(header.length(), &mut |room| header.finish(room, 0).is_ok()),
            Verdict::Answer(flight) => {
                for piece in flight.pieces() {
                    send(flight.length(piece), &mut |room| flight.write(piece, room).is_ok());
                }
                counters.plain_answered += 1;
            }
            Verdict::Kernel(cause) if drains => {
                tracing::trace!(client = %segment.header.src, ?cause, "plain: the kernel's");
            }
            Verdict::Kernel(cause) => {
                tracing::debug!(client = %segment.header.src, ?cause, "nothing for stateless TCP: refused");
                let header = refusal(&segment);
                send(header.length(), &mut |room| header.finish(room, 0).is_ok());
                counters.plain_refused += 1;
            }
        }
    }
}
