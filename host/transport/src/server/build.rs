//! Builds the packet of a response from its head and the application's reply.

use arrayvec::ArrayVec;
use rivulet_packet::response::{GROUP_MEMBER, Group};
use rivulet_packet::{
    Body, BuildError, Class, Delta, Ecn, GroupMember, NewContinuation, Response, ResponseClass,
    RivuletOption, SealedContinuation, SegmentHeader, SynOptions, TcpFlags, TransportContinuation, Uconts,
    segment,
};

use super::plan::{Head, HeadKind, Plan, Sent};
use super::reply::{Answer, Reply, RespondError};
use crate::keys::KeyRing;
use crate::nonces::nonce;
use crate::opening::{self, TokenField};
use crate::seal::seal_continuation;
use crate::ucont::MAX_UCONT;
use crate::verdict::BURST_LIMIT;

/// Maximum bytes of user continuations in one response.
const UCONTS: usize = 2 * MAX_UCONT;

impl Plan<'_> {
    /// Builds response `index` as an IP packet in `packet` (2,048 bytes suffice for payloads of
    /// 1,452). `reply` is ignored for a head that is not for the application.
    ///
    /// # Errors
    /// [`RespondError`]. The application may retry with a shorter reply.
    pub fn respond(
        &self,
        index: usize,
        reply: &Reply<'_>,
        keys: &KeyRing,
        packet: &mut [u8],
    ) -> Result<Sent, RespondError> {
        let head = self.heads.get(index).ok_or(RespondError::Index)?;
        if head.kind == HeadKind::Cookie {
            return self.finish(head, &self.header(head, ResponseClass::Data), 0, packet, None);
        }
        let none = Reply::default();
        let reply = if head.is_for_application() { reply } else { &none };
        self.check_room(head, reply)?;
        if reply.uconts.is_empty() && !matches!(head.kind, HeadKind::Group { .. }) {
            return self.build(head, reply, keys, packet, &mut [], &mut []);
        }
        self.build_with_buffers(head, reply, keys, packet)
    }

    /// Separate from the steady path, which needs no buffers and so need not clear them.
    #[inline(never)]
    fn build_with_buffers(
        &self,
        head: &Head,
        reply: &Reply<'_>,
        keys: &KeyRing,
        packet: &mut [u8],
    ) -> Result<Sent, RespondError> {
        let (mut uconts, mut group) = ([0; UCONTS], [0; GROUP_MEMBER * BURST_LIMIT as usize]);
        self.build(head, reply, keys, packet, &mut uconts, &mut group)
    }

    fn build(
        &self,
        head: &Head,
        reply: &Reply<'_>,
        keys: &KeyRing,
        packet: &mut [u8],
        uconts: &mut [u8],
        group: &mut [u8],
    ) -> Result<Sent, RespondError> {
        let challenge;
        let (offset, data, end) = match reply.answer {
            Answer::Data { offset, data, end } => (Some(offset), data, end),
            Answer::Error { message, .. } => (None, message.as_bytes(), false),
            _ => (None, &[][..], false),
        };
        let body = match head.kind {
            HeadKind::Group { count } => Body::Group(self.group(head.number, count, keys, group)?),
            HeadKind::Challenge => {
                let epoch = self.next.seal_epoch;
                challenge = opening::challenge(keys, epoch, self.now, self.client, self.next.connection)
                    .ok_or(RespondError::Key)?;
                Body::Challenge { token: &challenge }
            }
            HeadKind::Retransmission => Body::Retransmission,
            _ => match reply.answer {
                Answer::None if reply.consumed.is_some() => Body::Input,
                Answer::None | Answer::Data { .. } => Body::Data,
                Answer::Skip { offset, length } => Body::Skip { offset, length },
                Answer::Wait { milliseconds } => Body::Wait { milliseconds },
                Answer::NotMine { code } => Body::NotMine { code },
                Answer::Error { code, .. } => Body::Error { code },
            },
        };
        let (continuation, sealed) = match head.kind {
            HeadKind::New => self.continuation(head.number, keys)?,
            _ => (NewContinuation::None, None),
        };
        // Dropping a retransmission because of parts that it cannot carry would be another loss.
        // The parts are omitted instead: the client repeats input that was not acknowledged with
        // `consumed`.
        let carries = head.kind != HeadKind::Retransmission;
        let mut field = TokenField::new();
        let mut token = self.given.as_ref().map_or(reply.token, |token| Some(token)).filter(|_| carries);
        let first = self.heads.first().is_some_and(|first| first.number == head.number);
        if self.tells_address && first && head.kind == HeadKind::New {
            opening::tell_address(self.client, token, &mut field);
            token = Some(&field);
        }
        let response = Response {
            number: head.number,
            nonce: self.nonce(head, keys)?,
            prime: head.prime,
            end,
            answers: self.presented().map_or(0, |c| c.number as u8),
            continuation,
            offset,
            uconts: Uconts::encode(reply.uconts, uconts)?,
            consumed: reply.consumed.filter(|_| carries),
            token,
            body,
            data,
        };
        let header = self.header(head, body.class());
        let (start, have) = (header.payload_offset(), packet.len());
        let room = packet.get_mut(start..).ok_or(BuildError::BufferTooSmall { need: start, have })?;
        let payload = response.write(room)?;
        self.finish(head, &header, payload, packet, sealed)
    }

    fn check_room(&self, head: &Head, reply: &Reply<'_>) -> Result<(), RespondError> {
        let data = match reply.answer {
            Answer::Data { data, .. } => data.len(),
            _ => 0,
        };
        let need = reply.overhead() + data;
        if need > head.room && need > 0 { Err(RespondError::Room { need, room: head.room }) } else { Ok(()) }
    }

    fn continuation(
        &self,
        number: u32,
        keys: &KeyRing,
    ) -> Result<(NewContinuation, Option<SealedContinuation>), RespondError> {
        let fields =
            TransportContinuation { number, first: self.next.first && number == self.next.base, ..self.next };
        let sealed =
            seal_continuation(keys.seal(fields.seal_epoch).ok_or(RespondError::Key)?, &fields, self.client);
        let delta = self.predicted.and_then(|predicted| {
            Delta::between(&TransportContinuation { number, ..predicted }, &fields, sealed.mac)
        });
        Ok((delta.map_or(NewContinuation::Full(sealed), NewContinuation::Delta), Some(sealed)))
    }

    fn nonce(&self, head: &Head, keys: &KeyRing) -> Result<u32, RespondError> {
        // The answer to a CLOSE reveals no nonce. Its number may have been received under K', and
        // the nonce under K would then hide its loss. The answer that confirms a returned window
        // has no new number either.
        if matches!(head.kind, HeadKind::Challenge | HeadKind::Farewell) {
            return Ok(0);
        }
        let keys = keys.nonce(self.next.nonce_epoch).ok_or(RespondError::Key)?;
        Ok(nonce(keys, self.next.tag, head.number, head.prime))
    }

    fn group<'b>(
        &self,
        first: u32,
        count: u32,
        keys: &KeyRing,
        buffer: &'b mut [u8],
    ) -> Result<Group<'b>, RespondError> {
        let seal_keys = keys.seal(self.regenerated.seal_epoch).ok_or(RespondError::Key)?;
        let nonces = keys.nonce(self.regenerated.nonce_epoch).ok_or(RespondError::Key)?;
        let mut members = ArrayVec::<GroupMember, { BURST_LIMIT as usize }>::new();
        for i in 0..count.min(BURST_LIMIT) {
            let fields = TransportContinuation { number: first.wrapping_add(i), ..self.regenerated };
            members.push(GroupMember {
                nonce: nonce(nonces, fields.tag, fields.number, true),
                continuation: seal_continuation(seal_keys, &fields, self.client),
            });
        }
        Ok(Group::encode(&members, buffer)?)
    }

    fn header(&self, head: &Head, class: ResponseClass) -> SegmentHeader {
        let sequence = self.next.wire_sequence(head.number);
        let mut flags = TcpFlags::of(Class::Response(class));
        let mut syn_options = None;
        let mut seq = sequence;
        if let Some(isn) = self.syn.filter(|_| head.kind == HeadKind::Cookie || head.number == self.next.base)
        {
            flags = TcpFlags(TcpFlags::SYN | TcpFlags::ACK);
            // The SYN occupies the sequence number before its data.
            seq = isn;
            let mss = self.next.mss.saturating_add(8);
            syn_options =
                Some(SynOptions { mss, ts_value: 0, ts_echo: 0, window_scale: segment::WINDOW_SCALE });
        }
        if self.fin {
            flags = TcpFlags(TcpFlags::FIN | TcpFlags::ACK);
        }
        let steady = head.kind == HeadKind::New && !head.prime && self.syn.is_none();
        SegmentHeader {
            src: self.service,
            dst: self.client,
            ecn: if self.ecn && steady { Ecn::Ect0 } else { Ecn::NotEct },
            seq,
            ack: self.ack,
            flags,
            option: RivuletOption { class: Class::Response(class), number_low: head.number as u16 },
            syn_options,
        }
    }

    fn finish(
        &self,
        head: &Head,
        header: &SegmentHeader,
        payload: usize,
        packet: &mut [u8],
        sealed: Option<SealedContinuation>,
    ) -> Result<Sent, RespondError> {
        if payload > self.largest
            && head.kind != HeadKind::Cookie
            && !matches!(head.kind, HeadKind::Group { .. })
        {
            return Err(RespondError::Room { need: payload, room: self.largest });
        }
        let length = header.finish_packet(packet, payload)?;
        Ok(Sent { length, sealed })
    }
}
