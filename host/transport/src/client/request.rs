//! How a request is built: its wants, its size, and its headers.

use alloc::sync::Arc;
use core::ops::{Bound, Range};

use arrayvec::ArrayVec;
use rivulet_packet::{
    Class, Ecn, Input as InputPart, RequestBuilder, RequestClass, RivuletOption, SealedContinuation,
    SegmentHeader, SynOptions, TcpFlags, Want, segment,
};

use super::connection::{Connection, Phase, Stream, mix};
use super::generation::Generation;
use super::input::Packet;
use crate::server::STEADY_OVERHEAD;
use crate::time::Time;

/// Bytes by which a whole continuation exceeds a steady one; user continuations in the answer to an
/// opening may take as many.
const FULL_OVERHEAD: usize = 96;
/// Maximum number of wants in a request.
const MAX_WANTS: usize = rivulet_packet::MAX_WANTS;
/// Bytes of an input header.
const INPUT_HEADER: usize = 14;

/// Everything that a request asks for.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) wants: ArrayVec<Want, MAX_WANTS>,
    pub(super) uconts: ArrayVec<Arc<[u8]>, 16>,
    pub(super) again: ArrayVec<Range<u64>, MAX_WANTS>,
    pub(super) fresh: ArrayVec<Range<u64>, MAX_WANTS>,
    pub(super) input: Option<(u16, Packet)>,
    pub(super) length: usize,
}

impl Asked {
    pub(super) fn is_empty(&self) -> bool {
        self.wants.is_empty() && self.input.is_none()
    }

    /// Index of this user continuation in the request; adds it if it is new.
    fn ucont(&mut self, sealed: Arc<[u8]>) -> Option<u8> {
        if let Some(i) = self.uconts.iter().position(|u| Arc::ptr_eq(u, &sealed)) {
            return Some(i as u8);
        }
        self.length += 2 + sealed.len();
        self.uconts.try_push(sealed).ok()?;
        Some(self.uconts.len() as u8 - 1)
    }
}

/// The parts of a request that differ between classes.
pub(super) struct Shape<'c> {
    pub(super) class: RequestClass,
    pub(super) continuation: Option<&'c SealedContinuation>,
    pub(super) index: Option<u32>,
    pub(super) attempt: u8,
    pub(super) covers: u8,
    pub(super) pad_to: usize,
}

impl Connection {
    /// Bytes of data to want in one response. `full`: its continuation will be whole.
    pub(super) fn want_size(&self, full: bool) -> usize {
        let mss = self
            .generation
            .as_ref()
            .and_then(Generation::slot_size)
            .unwrap_or(usize::from(self.config.mtu) - 68);
        mss.saturating_sub(if full || self.whole { FULL_OVERHEAD } else { STEADY_OVERHEAD }).max(1)
    }

    /// Whether there is anything to request from the server.
    pub(super) fn has_business(&self, now: Time) -> bool {
        let most = self.want_size(false);
        self.streams.values().any(|s| s.output.wants(most, now) || s.input.has_packet(now))
    }

    /// Collects up to `again` wants for retransmissions and `fresh` for new responses, and a packet
    /// of input.
    pub(super) fn collect(
        &mut self,
        again: u32,
        fresh: u32,
        full: bool,
        input: bool,
        fixed: usize,
        now: Time,
    ) -> Asked {
        let (most, limit) = (self.want_size(full), self.largest_payload());
        let mut asked = Asked { length: fixed, ..Asked::default() };
        while asked.wants.len() < (again + fresh).min(MAX_WANTS as u32) as usize {
            if asked.length + 16 + crate::ucont::MAX_UCONT > limit
                && !asked.wants.is_empty()
                && asked.uconts.is_full()
            {
                break;
            }
            let Some(id) = self.turn_after(self.last_output_stream, |s| s.output.wants(most, now)) else {
                break;
            };
            let Some((range, sealed)) = self.streams.get_mut(&id).and_then(|s| s.output.take_want(most, now))
            else {
                break;
            };
            let known = asked.uconts.iter().any(|u| Arc::ptr_eq(u, &sealed));
            let more = 16 + if known { 0 } else { 2 + sealed.len() };
            if asked.length + more > limit || (!known && asked.uconts.is_full()) {
                self.settle_want(range);
                break;
            }
            let retransmit = asked.again.len() < again as usize;
            self.last_output_stream = id;
            asked.length += 16;
            let ucont = asked.ucont(sealed);
            let length = (range.end - range.start) as u32;
            asked.wants.push(Want { offset: range.start, length, ucont, retransmit });
            if retransmit { asked.again.push(range) } else { asked.fresh.push(range) }
        }
        if input && !asked.uconts.is_full() {
            let room = limit.saturating_sub(asked.length + INPUT_HEADER);
            if let Some(id) = self.turn_after(self.last_input_stream, |s| s.input.has_packet(now)) {
                // Set even if this packet does not fit, so that the next stream gets its chance.
                self.last_input_stream = id;
                if let Some(found) = self.streams.get_mut(&id).and_then(|s| s.input.take_packet(room, now)) {
                    asked.length += INPUT_HEADER + (found.range.end - found.range.start) as usize;
                    asked.input = Some((id, found));
                }
            }
        }
        asked
    }

    /// The next stream for which the predicate holds, round robin, so that all active streams get
    /// equal shares. (The Congestion Manager's scheduler queues flows that requested a grant. Here
    /// the streams' state shows which have work.)
    fn turn_after(&self, last: u16, holds: impl Fn(&Stream) -> bool) -> Option<u16> {
        let later = self.streams.range((Bound::Excluded(last), Bound::Unbounded));
        later.chain(self.streams.range(..=last)).find(|(_, s)| holds(s)).map(|(id, _)| *id)
    }

    /// Puts back everything collected for a request that is not sent.
    pub(super) fn put_back(&mut self, asked: Asked) {
        for range in asked.again.into_iter().chain(asked.fresh) {
            self.settle_want(range);
        }
        if let Some((stream, found)) = asked.input {
            self.input_lost(stream, found.range, found.fin);
        }
    }

    pub(super) fn build(
        &mut self,
        shape: &Shape<'_>,
        asked: &Asked,
        now: Time,
        packet: &mut [u8],
    ) -> Option<usize> {
        let generation = self.generation.as_ref();
        let proof = match shape.index {
            Some(index) => generation.map(|g| g.proof(index)).unwrap_or_default(),
            None => ArrayVec::new(),
        };
        let received_at = shape.index.and_then(|i| generation?.slot(i)).map_or(now, |s| s.received_at);
        let mut uconts: ArrayVec<&[u8], 17> = asked.uconts.iter().map(|u| &**u).collect();
        let mut input_ucont = None;
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.clear();
        if let Some((stream, found)) = &asked.input {
            if let Some(sealed) = &found.continuation {
                uconts.push(sealed);
                input_ucont = Some(uconts.len() as u8 - 1);
            }
            if let Some(s) = self.streams.get(stream) {
                s.input.bytes(&found.range, &mut scratch);
            }
        }
        let input = asked.input.as_ref().map(|(stream, found)| InputPart {
            stream: *stream,
            end: found.fin,
            ucont: input_ucont,
            offset: found.range.start,
            data: &scratch,
        });
        let token = match shape.class {
            RequestClass::Syn => self.config.token.as_deref(),
            RequestClass::Restart => self.challenge.as_deref(),
            _ => None,
        };
        // Always behind an address translator: the server sees whether this connection's translated
        // address changed.
        let moved = shape.class == RequestClass::Restart && self.sealed_for != self.local;
        let builder = RequestBuilder {
            class: shape.class,
            attempt: shape.attempt,
            continuation: shape.continuation,
            proof: &proof,
            hold: u16::try_from(now.since(received_at) / 64).unwrap_or(u16::MAX),
            covers: shape.covers,
            wants: &asked.wants,
            token,
            former: moved.then_some(self.sealed_for),
            retire: shape.class == RequestClass::Rekey && matches!(self.phase, Phase::Closing { .. }),
            uconts: &uconts,
            input,
            pad_to: shape.pad_to,
            ..RequestBuilder::default()
        };
        let carries_input = input.is_some() && shape.class == RequestClass::Normal;
        let ecn = if carries_input && self.config.ecn { Ecn::Ect0 } else { Ecn::NotEct };
        let start = self.header(Class::Request(shape.class), 0, ecn).payload_offset();
        let payload = packet.get_mut(start..).and_then(|room| builder.write(room).ok());
        let number_low = builder.number_low();
        self.scratch = scratch;
        self.frame(Class::Request(shape.class), number_low, ecn, payload?, now, packet)
    }

    fn header(&self, class: Class, number_low: u16, ecn: Ecn) -> SegmentHeader {
        let flags = TcpFlags::of(class);
        let syn = flags.has(TcpFlags::SYN);
        SegmentHeader {
            src: self.local,
            dst: self.remote,
            ecn,
            seq: self.seq,
            ack: if syn { 0 } else { self.ack },
            flags,
            option: RivuletOption { class, number_low },
            syn_options: syn.then(|| SynOptions {
                mss: self.mss_option(),
                ts_value: mix(self.config.seed ^ 0x7473) as u32,
                ts_echo: 0,
                window_scale: segment::WINDOW_SCALE,
            }),
        }
    }

    /// Adds headers around a payload that is already in place, and counts the request.
    pub(super) fn frame(
        &mut self,
        class: Class,
        number_low: u16,
        ecn: Ecn,
        payload: usize,
        now: Time,
        packet: &mut [u8],
    ) -> Option<usize> {
        if self.last_received >= self.first_unanswered {
            self.first_unanswered = now + 1;
        }
        let header = self.header(class, number_low, ecn);
        let length = header.finish_packet(packet, payload).ok()?;
        if length > usize::from(self.config.mtu) {
            return None;
        }
        let flags = u32::from(header.flags.has(TcpFlags::SYN)) + u32::from(header.flags.has(TcpFlags::FIN));
        self.seq = self.seq.wrapping_add(payload as u32 + flags);
        self.statistics.requests += 1;
        Some(length)
    }
}
