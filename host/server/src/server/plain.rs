//! Plain TCP in the event loop: segments are answered without connection state, or forwarded to the
//! kernel's TCP (`docs/plain.md`).

use rivulet_packet::{EthHeader, TcpFlags};
use rivulet_pktio::Backend;
use rivulet_plain::{Cause, CookieKeys, Flow, Judged, Reason, Segment, Stamp, Verdict, is_under_way};

use super::door::Door;
use super::downloads::Disposition;
use super::origin::Origin;
use super::return_path::ReturnPath;
use super::{Server, common_clock};
use crate::adopt::Belongs;
use crate::back_end::Answered;
use crate::counters::Unserved;

/// Whether a segment acknowledges a number within reach of one of these cookies, and also carries
/// data or belongs to a large answer.
fn shows(keys: Option<&CookieKeys>, segment: &Segment<'_>) -> bool {
    let header = &segment.header;
    let flow = Flow::new(header.src, header.dst);
    let (stamped, large) = (header.options.stamps.is_some(), is_under_way(segment));
    let reaches = |keys| match large {
        true => flow.reaches(keys, header.ack),
        false => segment.has_data_or_fin() && flow.place(keys, header.ack, stamped).is_some(),
    };
    segment.has(TcpFlags::ACK) && keys.is_some_and(reaches)
}

impl Server {
    /// Judges a frame of plain TCP and carries out the verdict. `verify`: the checksum was not
    /// verified yet; otherwise it may be incomplete because of checksum offload.
    pub(super) fn plain(&mut self, frame: &[u8], verify: bool, origin: Origin) {
        let Ok((ethernet, ether_type)) = EthHeader::parse(frame) else { return };
        let packet = frame.get(ethernet.length()..).unwrap_or_default();
        let Ok(segment) = Segment::parse(packet) else {
            self.counters.damaged += 1;
            return;
        };
        let packet = packet.get(..segment.packet_length()).unwrap_or(packet);
        if verify && !segment.is_intact() {
            self.counters.damaged += 1;
            return;
        }
        let now = self.now();
        let path = self.paths.mtu(segment.header.src.ip(), now);
        let Some(index) = self.sockets.place(segment.header.dst) else {
            self.counters.not_ours += 1;
            return;
        };
        let running = &mut self.running[index];
        if !running.service.answers_plain() {
            self.counters.not_ours += 1;
            return;
        }
        let mut way = ReturnPath::back(&ethernet, ether_type, &running.service, self.link.mac);
        way.note_origin(origin, packet);
        if way.shared && segment.has(TcpFlags::SYN) {
            // New connections go to the kernel.
            return;
        }
        self.counters.plain += 1;
        // With packet sockets the kernel has the frame anyway.
        let has = way.shared && origin == Origin::Wire && self.io.backend() == Backend::AfPacket;
        let (io, counters, kernel) = (self.io.as_mut(), &mut self.counters, &mut self.kernel);
        let over = match self.adopter.sort(packet, &segment, !verify, has) {
            Belongs::Free { over } => over,
            Belongs::Stray => return way.stray(packet, &segment, kernel, now, io, counters),
            passed => return counters.pass(passed == Belongs::Passed),
        };
        let Some(door) = &mut running.plain else {
            // Before there is content, or while other content is in force, other replicas answer.
            let ends = segment.has(TcpFlags::SYN) || segment.has(TcpFlags::RST);
            if !way.alone && segment.has(TcpFlags::ACK) && !ends {
                way.forward_without_content(packet, &segment, kernel, now, io, counters);
            }
            return;
        };
        let minute = rivulet_plain::minute(common_clock().0);
        let verdict = match door {
            Door::Objects(objects) => {
                if segment.has(TcpFlags::RST)
                    && let Some(downloads) = &mut objects.downloads
                {
                    downloads.reset(&segment);
                }
                let others = (!way.alone).then_some(&*kernel);
                match objects.handle_ack(&segment, path, way.to(), now, others, way.forwarded) {
                    Disposition::Handled => {
                        self.acknowledged = true;
                        return;
                    }
                    Disposition::Kernel => return counters.pass(true),
                    Disposition::Elsewhere => return way.forward(packet, io, counters),
                    Disposition::Unknown => Verdict::Drop(Reason::Cookie),
                    Disposition::Unrelated => {
                        let verdict = objects.replica.receive(&segment, minute, path);
                        if let Verdict::Begin(asked) = &verdict {
                            let asked = *asked;
                            drop(verdict);
                            objects.begin(&segment, &asked, path, way.to(), now);
                            self.acknowledged = true;
                            return;
                        }
                        verdict
                    }
                }
            }
            Door::BackEnd(relay) => match relay.judge(&segment, minute) {
                Judged::Drop(reason) => Verdict::Drop(reason),
                Judged::Say(header) => Verdict::Say(header),
                Judged::Kernel(cause) => {
                    way.unserved = Unserved::Kernel;
                    Verdict::Kernel(cause)
                }
                Judged::Adopt(cause, handshake) => Verdict::Adopt(cause, handshake),
                Judged::Ask(ask) => {
                    if let Some(exchanges) = &mut self.exchanges {
                        exchanges.ask(frame, &segment, ask, now, &mut counters.back_end);
                    }
                    return;
                }
            },
        };
        if over && !matches!(verdict, Verdict::Drop(_)) {
            self.adopter.forget(&segment);
        }
        match verdict {
            // The client has parts of another content, so nothing may be added to them.
            Verdict::Drop(Reason::Cookie) if way.alone && shows(running.former.as_ref(), &segment) => {
                way.refuse(&segment, Unserved::Content, io, counters);
            }
            // Without timestamps the packet does not identify its connection; far from the
            // handshake it belongs to a kernel. While some kernel has connections of this service,
            // so does every segment without a valid cookie, and a cookie may match by chance.
            Verdict::Drop(Reason::Cookie)
                if segment.has(TcpFlags::ACK) && (segment.header.options.stamps.is_none() || !way.alone) =>
            {
                way.stray(packet, &segment, kernel, now, io, counters);
            }
            // A late segment of no known connection is not reset.
            Verdict::Drop(Reason::Stamp)
                if segment.has(TcpFlags::ACK)
                    && !way.alone
                    && !(way.forwarded && kernel.lacks(&segment, now)) =>
            {
                way.stray(packet, &segment, kernel, now, io, counters);
            }
            Verdict::Kernel(Cause::Adopted) => way.stray(packet, &segment, kernel, now, io, counters),
            // Behind a ToR the next segments may reach any replica, and this one's kernel would
            // miss them.
            Verdict::Adopt(_, handshake) if handshake.start > 0 && way.behind_tor => {
                way.refuse(&segment, Unserved::Later, io, counters);
            }
            Verdict::Continue(mut handoff) => {
                // The first request of a connection goes to the replica that its flow hashes to,
                // like every flow of the kernel's.
                let is_first = segment
                    .header
                    .options
                    .stamps
                    .is_some_and(|stamps| matches!(Stamp::parse(stamps.echo), Stamp::Opening { .. }))
                    && !handoff.flight.pieces().is_empty();
                if !way.behind_tor || is_first {
                    let unacknowledged = handoff.unacknowledged();
                    let handshake = handoff.handshake;
                    if let Ok(passed) =
                        self.adopter.adopt(packet, &segment, handshake, &unacknowledged, !verify)
                    {
                        counters.adopt(Cause::Pipelined);
                        counters.pass(passed == Belongs::Passed);
                        handoff.set_kernel_timestamp();
                    }
                }
                way.carry_out(Verdict::Continue(handoff), &segment, io, counters);
            }
            Verdict::Adopt(cause, handshake) => {
                match self.adopter.adopt(packet, &segment, handshake, &[], !verify) {
                    Ok(passed) => {
                        counters.adopt(cause);
                        counters.pass(passed == Belongs::Passed);
                    }
                    Err(why) => way.refuse(&segment, why, io, counters),
                }
            }
            verdict => way.carry_out(verdict, &segment, io, counters),
        }
    }

    /// Reads the back end's answers and sends them to the clients.
    pub(super) fn take_answers(&mut self) {
        let Some(mut exchanges) = self.exchanges.take() else { return };
        exchanges.poll(self.now(), &mut self.counters.back_end);
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
        // The content or protocol may have changed since.
        let Some(index) = self.sockets.place(segment.header.dst) else { return };
        let running = &self.running[index];
        let Some(Door::BackEnd(relay)) = &running.plain else { return };
        let mut way = ReturnPath::back(&ethernet, ether_type, &running.service, self.link.mac);
        way.unserved = Unserved::Kernel;
        let packet = answered.frame.get(ethernet.length()..).unwrap_or_default();
        let packet = packet.get(..segment.packet_length()).unwrap_or(packet);
        // The client repeated its request meanwhile, and the kernel took over the connection.
        match self.adopter.sort(packet, &segment, true, false) {
            Belongs::Free { .. } => {}
            passed => return self.counters.pass(passed == Belongs::Passed),
        }
        let verdict = relay.answer(&segment, &answered.ask, answered.bytes, path);
        if let Verdict::Adopt(cause, handshake) = verdict
            && !way.shared
        {
            // The checksum was left to the device and is still missing.
            match self.adopter.adopt(packet, &segment, handshake, &[], true) {
                Ok(passed) => {
                    self.counters.adopt(cause);
                    self.counters.pass(passed == Belongs::Passed);
                }
                Err(why) => way.refuse(&segment, why, self.io.as_mut(), &mut self.counters),
            }
            return;
        }
        if matches!(verdict, Verdict::Drop(Reason::Changed)) {
            self.counters.back_end.changed += 1;
        }
        way.carry_out(verdict, &segment, self.io.as_mut(), &mut self.counters);
    }
}
