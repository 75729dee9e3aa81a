//! The responses of one request, from heads to packets.

use std::net::SocketAddr;

use arrayvec::ArrayVec;
use rivulet_packet::response::{GROUP_MEMBER, Group};
use rivulet_packet::{
    Body, BuildError, Class, Delta, Ecn, GroupMember, NewContinuation, Request, RequestClass, Response,
    ResponseClass, RivuletOption, SealedContinuation, SegmentHeader, SynOptions, TcpFlags,
    TransportContinuation, Uconts, Want, segment,
};

use super::refusal::Refusal;
use super::reply::{Answer, Reply, RespondError};
use super::step::HEADS;
use crate::keys::KeyRing;
use crate::nonces::nonce;
use crate::opening::{self, TOKEN_LENGTH};
use crate::seal::seal;
use crate::ucont::{self, MAX_LENGTH, UserContinuation};
use crate::verdict::BURST_LIMIT;

/// Fixed fields of a response: number, nonce, content, answers, and the offset of its data.
const FIXED: usize = 18;
/// A whole sealed continuation.
const FULL: usize = SealedContinuation::LENGTH;
/// A delta-encoded continuation at its longest without a whole SRTT or time: bitmap, time, ToR, epoch, SRTT, flags, check, MAC.
const DELTA: usize = 1 + 6 + 4 + 2 + 4 + 1 + 2 + 12;
/// What a steady response takes of its slot before data: a client that wants `mss - STEADY_OVERHEAD` bytes gets them all.
pub const STEADY_OVERHEAD: usize = FIXED + DELTA;
/// Most bytes of user continuations in one response.
const UCONTS: usize = 2 * MAX_LENGTH;

/// What a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// A new number with a continuation; the application answers it.
    New,
    /// A lost number under K', data alone; the application answers it.
    Retransmission,
    /// Regenerated continuations of lost numbers; the library answers it.
    Group {
        /// How many.
        count: u32,
    },
    /// A challenge to a changed address; the library answers it.
    Challenge,
    /// The cookie that answers a bare SYN; the library answers it.
    Cookie,
    /// The answer to a CLOSE; the library answers it.
    Farewell,
}

/// One response to be built.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// What it is.
    pub kind: HeadKind,
    /// Its number.
    pub number: u32,
    /// Its nonce is of K'.
    pub prime: bool,
    /// The output range that the client wants in it.
    pub want: Option<Want>,
    /// Bytes there are for data, user continuations (2 more for each, and 1), `consumed` (10) and a token (1 more). 0: the
    /// application has nothing to say here.
    pub room: usize,
    pub(super) overhead: usize,
}

impl Head {
    /// Whether the application is asked for this response.
    pub fn is_for_application(&self) -> bool {
        self.room > 0 && matches!(self.kind, HeadKind::New | HeadKind::Retransmission)
    }
}

/// Input of a request, for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputEvent<'a> {
    /// Which stream.
    pub stream: u16,
    /// Offset of the first byte in the stream's input.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// The client ends the stream's input with them.
    pub fin: bool,
    /// The input continuation; None at the start of a stream.
    pub continuation: Option<UserContinuation<'a>>,
}

/// The responses of one request.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub(super) request: Option<Request<'a>>,
    pub(super) client: SocketAddr,
    pub(super) service: SocketAddr,
    pub(super) ack: u32,
    pub(super) crc: bool,
    pub(super) ecn: bool,
    pub(super) now: u64,
    /// New continuations, but for their numbers.
    pub(super) next: TransportContinuation,
    /// What the client predicts them to be.
    pub(super) predicted: Option<TransportContinuation>,
    /// Regenerated continuations, but for their numbers.
    pub(super) regenerated: TransportContinuation,
    pub(super) heads: ArrayVec<Head, HEADS>,
    /// Server ISN: the answer to a SYN.
    pub(super) syn: Option<u32>,
    pub(super) fin: bool,
    /// The address token that this SYN uses up.
    pub(super) spent: Option<&'a [u8]>,
    /// Largest TCP payload.
    pub(super) largest: usize,
}

/// A response that was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Length of the IP packet.
    pub length: usize,
    /// The continuation in it.
    pub sealed: Option<SealedContinuation>,
}

impl<'a> Plan<'a> {
    pub(super) fn push(&mut self, kind: HeadKind, number: u32, prime: bool, want: Option<Want>) {
        let continuation = match kind {
            HeadKind::New if self.predicted.is_some() => DELTA,
            HeadKind::New => FULL,
            _ => 0,
        };
        let crc = if self.crc { segment::CRC } else { 0 };
        let overhead = FIXED + continuation + crc;
        let room = match kind {
            HeadKind::New | HeadKind::Retransmission => self.largest.saturating_sub(overhead),
            _ => 0,
        };
        // A decision never yields more than the capacity; one that did would lose responses, which is a loss like another.
        let _ = self.heads.try_push(Head { kind, number, prime, want, room, overhead });
    }

    /// The responses to be built, each once, in order.
    pub fn heads(&self) -> &[Head] {
        &self.heads
    }

    /// The request, as it came.
    pub fn request(&self) -> Option<&Request<'a>> {
        self.request.as_ref()
    }

    /// Whether the application has a say in any response.
    pub fn is_for_application(&self) -> bool {
        self.heads.iter().any(Head::is_for_application)
    }

    /// The client ends the connection with this request.
    pub fn is_close(&self) -> bool {
        self.fin
    }

    /// The connection: what user continuations are bound to.
    pub fn connection(&self) -> u64 {
        self.next.connection
    }

    /// The client's address and port.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// The service's address and port.
    pub fn service(&self) -> SocketAddr {
        self.service
    }

    /// The tag, nonce epoch, generation and number under which this use is remembered against replay.
    pub(super) fn presented(&self) -> Option<&TransportContinuation> {
        self.request.as_ref()?.continuation.as_ref().map(|c| &c.fields)
    }

    /// The address token that this opening uses up.
    pub(super) fn spent(&self) -> Option<&'a [u8]> {
        self.spent
    }

    /// Whether this is the completion of a bare opening.
    pub(super) fn completes(&self) -> bool {
        let blank = |sealed: SealedContinuation| sealed.mac == [0; 12] && sealed.fields.tag == 0;
        self.class() == Some(RequestClass::Restart)
            && self.request.as_ref().and_then(|r| r.continuation).is_some_and(blank)
    }

    /// Whether this is a challenge, which uses nothing up.
    pub(super) fn challenges(&self) -> bool {
        self.heads.iter().any(|head| head.kind == HeadKind::Challenge)
    }

    /// Seals a user continuation for this connection into `out`.
    ///
    /// # Errors
    /// Those of [`ucont::seal`].
    pub fn seal_ucont(
        &self,
        keys: &KeyRing,
        what: &UserContinuation<'_>,
        encrypt: bool,
        out: &mut [u8],
    ) -> Result<usize, ucont::UcontError> {
        ucont::seal(
            keys,
            self.next.seal_epoch,
            self.next.connection,
            self.next.generation,
            what,
            encrypt,
            out,
        )
    }

    /// The output continuation that a want names, opened. `scratch` ([`ucont::MAX_OPAQUE`] bytes) takes what was encrypted.
    ///
    /// # Errors
    /// [`Refusal::User`]: it names none, one of another connection, an input continuation, or one that does not cover the range.
    pub fn output_continuation<'b>(
        &self,
        want: &Want,
        keys: &KeyRing,
        scratch: &'b mut [u8],
    ) -> Result<UserContinuation<'b>, Refusal>
    where
        'a: 'b,
    {
        let sealed = want.ucont.and_then(|i| self.request.as_ref()?.ucont(i)).ok_or(Refusal::User)?;
        let opened = ucont::open(keys, self.next.connection, sealed, scratch).map_err(|_| Refusal::User)?;
        let covers = opened.valid_start <= want.offset && want.offset < opened.valid_end;
        if opened.input || !covers { Err(Refusal::User) } else { Ok(opened) }
    }

    /// Whether the output continuation of a want is sealed under an older epoch than what is sealed now. It ends with its
    /// epoch: an application that answers for longer seals it anew, and the client takes the new one in its place.
    pub fn output_ages(&self, want: &Want) -> bool {
        let sealed = want.ucont.and_then(|i| self.request.as_ref()?.ucont(i));
        sealed.is_some_and(|sealed| ucont::ages(sealed, self.next.seal_epoch))
    }

    /// The same of the continuation that the request's input came with.
    pub fn input_ages(&self) -> bool {
        let request = self.request.as_ref();
        let sealed = request.and_then(|r| r.ucont(r.input?.ucont?));
        sealed.is_some_and(|sealed| ucont::ages(sealed, self.next.seal_epoch))
    }

    /// The request's input, its continuation opened into `scratch` ([`ucont::MAX_OPAQUE`] bytes). None: it has none, or this request
    /// is not for the application.
    ///
    /// # Errors
    /// [`Refusal::User`]: input in the middle of a stream without an input continuation, or one that is of another connection or
    /// stream, or not good for this offset.
    pub fn input<'b>(&self, keys: &KeyRing, scratch: &'b mut [u8]) -> Result<Option<InputEvent<'b>>, Refusal>
    where
        'a: 'b,
    {
        let Some(request) = self.request.as_ref().filter(|_| self.is_for_application()) else {
            return Ok(None);
        };
        let Some(input) = request.input else { return Ok(None) };
        let continuation = match input.ucont {
            None if input.offset == 0 => None,
            None => return Err(Refusal::User),
            Some(i) => {
                let sealed = request.ucont(i).ok_or(Refusal::User)?;
                let c =
                    ucont::open(keys, self.next.connection, sealed, scratch).map_err(|_| Refusal::User)?;
                let good = c.input && c.stream == input.stream && c.valid_start <= input.offset;
                if !good || input.offset > c.valid_end {
                    return Err(Refusal::User);
                }
                Some(c)
            }
        };
        Ok(Some(InputEvent {
            stream: input.stream,
            offset: input.offset,
            data: input.data,
            fin: input.end,
            continuation,
        }))
    }

    /// No response has more than `payload` bytes of TCP payload, whatever the connection agreed on: the
    /// interface, or the path to this client, takes no more. What is wanted and does not fit is asked for again.
    pub fn limit(&mut self, payload: usize) {
        if payload >= self.largest {
            return;
        }
        self.largest = payload;
        for head in &mut self.heads {
            head.room = head.room.min(payload.saturating_sub(head.overhead));
        }
    }

    /// An address token for the client's later connections.
    pub fn address_token(&self, keys: &KeyRing) -> Option<[u8; TOKEN_LENGTH]> {
        opening::address_token(keys, self.next.seal_epoch, self.now, self.client.ip())
    }

    /// Builds response `index` as an IP packet into `packet` (2,048 bytes suffice for payloads of 1,452). The reply to a head that is not
    /// for the application is not looked at.
    ///
    /// # Errors
    /// [`RespondError`]. The application may try again with less.
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

    /// Apart from the steady path, which needs no buffers and need not clear them.
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
        let response = Response {
            number: head.number,
            nonce: self.nonce(head, keys)?,
            prime: head.prime,
            end,
            answers: self.presented().map_or(0, |c| c.number as u8),
            continuation,
            offset,
            uconts: Uconts::encode(reply.uconts, uconts)?,
            consumed: reply.consumed,
            token: reply.token,
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
        let sealed = seal(keys.seal(fields.seal_epoch).ok_or(RespondError::Key)?, &fields, self.client);
        let delta = self.predicted.and_then(|predicted| {
            Delta::between(&TransportContinuation { number, ..predicted }, &fields, sealed.mac)
        });
        Ok((delta.map_or(NewContinuation::Full(sealed), NewContinuation::Delta), Some(sealed)))
    }

    fn nonce(&self, head: &Head, keys: &KeyRing) -> Result<u32, RespondError> {
        if matches!(head.kind, HeadKind::Challenge) {
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
                continuation: seal(seal_keys, &fields, self.client),
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
            // The SYN takes the number before its data's.
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
            option: RivuletOption {
                class: Class::Response(class),
                crc: self.crc && head.kind != HeadKind::Cookie,
                number_low: head.number as u16,
            },
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
        let crc = if self.crc { segment::CRC } else { 0 };
        if payload + crc > self.largest
            && head.kind != HeadKind::Cookie
            && !matches!(head.kind, HeadKind::Group { .. })
        {
            return Err(RespondError::Room { need: payload, room: self.largest });
        }
        let length = header.finish_packet(packet, payload)?;
        Ok(Sent { length, sealed })
    }

    /// The class of the request; None for a bare SYN.
    pub fn class(&self) -> Option<RequestClass> {
        self.request.as_ref().map(|r| r.class)
    }
}
