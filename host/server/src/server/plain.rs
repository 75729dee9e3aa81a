//! The other door of the turn: segments of plain clients, answered without state (`docs/plain.md`).

use rivulet_packet::{EthHeader, TcpFlags};
use rivulet_pktio::PacketIo;
use rivulet_plain::{Judged, Reason, Relay, Replica, Ring, Segment, Site, Verdict, refusal};

use super::{Content, Server, common_clock};
use crate::back_end::Answered;
use crate::counters::Counters;
use crate::service::{Plain, Service};

/// Answers under way that are remembered, less than 8 MB; one that finds another in its place takes it.
const REMEMBERED: usize = 1 << 16;

/// What answers the plain clients of a service without state.
#[derive(Debug)]
pub(crate) enum Door {
    /// A table of objects.
    Objects(Box<Replica>),
    /// A back end.
    BackEnd(Relay),
}

impl Door {
    pub(super) fn set_mtu(&mut self, mtu: u16) {
        match self {
            Door::Objects(replica) => replica.site.mtu = mtu,
            Door::BackEnd(relay) => relay.mtu = mtu,
        }
    }
}

/// What answers the plain clients of a service without state, or goes on with those that it answered; `None` where others do, or
/// before there are keys and content.
pub(super) fn door(service: &Service, content: Option<&Content>, mtu: u32) -> Option<Door> {
    if !service.answers_plain() {
        return None;
    }
    let keys = service.keys.cookies()?;
    let mtu = self::mtu(mtu);
    Some(match content? {
        Content::Objects(table) => {
            let site = Site { keys, table: table.clone(), mtu };
            Door::Objects(Box::new(Replica { site, ring: Some(Ring::new(REMEMBERED)) }))
        }
        Content::BackEnd(back_end) => {
            let (protocol, deterministic) = (back_end.protocol, back_end.deterministic);
            Door::BackEnd(Relay { keys, protocol, deterministic, mtu })
        }
    })
}

/// The longest packet of a plain connection on this interface.
pub(super) fn mtu(link: u32) -> u16 {
    u16::try_from(link).unwrap_or(u16::MAX)
}

/// Where an answer goes.
struct Way {
    ethernet: EthHeader,
    ether_type: u16,
    /// The kernel has each segment too: what is its affair needs no refusal.
    shared: bool,
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
        let Some(door) = &mut running.plain else {
            self.counters.not_ours += 1;
            return;
        };
        let way = Way::back(&ethernet, ether_type, &running.service, self.link.mac);
        if way.shared && segment.has(TcpFlags::SYN) {
            // What begins is the kernel's.
            return;
        }
        self.counters.plain += 1;
        let minute = rivulet_plain::minute(common_clock().0);
        let verdict = match door {
            Door::Objects(replica) => replica.receive(&segment, minute, path),
            Door::BackEnd(relay) => match relay.judge(&segment, minute) {
                Judged::Drop(reason) => Verdict::Drop(reason),
                Judged::Say(header) => Verdict::Say(header),
                Judged::Kernel(cause) => Verdict::Kernel(cause),
                Judged::Ask(ask) => {
                    if let Some(exchanges) = &mut self.exchanges {
                        exchanges.ask(frame, &segment, ask, now, &mut self.counters.back_end);
                    }
                    return;
                }
            },
        };
        way.carry_out(verdict, &segment, self.io.as_mut(), &mut self.counters);
    }

    /// Takes what the back end answered, and hands it on.
    pub(super) fn take_answers(&mut self) {
        let Some(mut exchanges) = self.exchanges.take() else { return };
        exchanges.look(self.now(), &mut self.counters.back_end);
        while self.has_room() {
            let Some(answered) = exchanges.next(&mut self.counters.back_end) else { break };
            let lane = answered.lane;
            self.answered(&answered);
            exchanges.put_to_rest(lane, false);
        }
        self.exchanges = Some(exchanges);
    }

    fn answered(&mut self, answered: &Answered<'_>) {
        let Ok((ethernet, ether_type)) = EthHeader::parse(answered.frame) else { return };
        let Some(Ok(segment)) = answered.frame.get(ethernet.length()..).map(Segment::parse) else { return };
        let path = self.paths.mtu(segment.header.src.ip(), self.now());
        // What is served may be something else by now.
        let Some(running) = self.running.iter().find(|r| r.serves(segment.header.dst)) else { return };
        let Some(Door::BackEnd(relay)) = &running.plain else { return };
        let way = Way::back(&ethernet, ether_type, &running.service, self.link.mac);
        let verdict = relay.answer(&segment, &answered.ask, answered.octets, path);
        if matches!(verdict, Verdict::Drop(Reason::Changed)) {
            self.counters.back_end.changed += 1;
        }
        way.carry_out(verdict, &segment, self.io.as_mut(), &mut self.counters);
    }
}

impl Way {
    /// The way back of a frame.
    fn back(from: &EthHeader, ether_type: u16, service: &Service, mac: [u8; 6]) -> Way {
        let dst = service.member.map_or(from.src, |member| member.tor_mac);
        let shared = service.plain != Plain::Stateless;
        Way { ethernet: EthHeader { dst, src: mac, vlan: from.vlan }, ether_type, shared }
    }

    fn carry_out(
        &self,
        verdict: Verdict<'_>,
        segment: &Segment<'_>,
        io: &mut dyn PacketIo,
        counters: &mut Counters,
    ) {
        let lead = self.ethernet.length();
        // Straight into the memory that is sent from.
        let mut send =
            |length: usize, write: &mut dyn FnMut(&mut [u8]) -> bool| match io.reserve(lead + length) {
                Some(room) => {
                    if self.ethernet.fill(room, self.ether_type) && write(&mut room[lead..]) {
                        io.commit(lead + length);
                    } else {
                        counters.unbuilt += 1;
                    }
                }
                None => counters.unsent += 1,
            };
        match verdict {
            Verdict::Drop(reason) => tracing::trace!(client = %segment.header.src, ?reason, "plain"),
            Verdict::Say(header) => send(header.length(), &mut |room| header.finish(room, 0).is_ok()),
            Verdict::Answer(flight) => {
                for piece in flight.pieces() {
                    send(flight.length(piece), &mut |room| flight.write(piece, room).is_ok());
                }
                counters.plain_answered += 1;
            }
            Verdict::Kernel(cause) if self.shared => {
                tracing::trace!(client = %segment.header.src, ?cause, "plain: the kernel's");
            }
            Verdict::Kernel(cause) => {
                tracing::debug!(client = %segment.header.src, ?cause, "nothing for stateless TCP: refused");
                let header = refusal(segment);
                send(header.length(), &mut |room| header.finish(room, 0).is_ok());
                counters.plain_refused += 1;
            }
        }
    }
}
