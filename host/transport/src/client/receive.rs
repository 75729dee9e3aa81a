//! How a connection handles received packets.

use alloc::string::String;
use core::ops::Range;

use rivulet_packet::{
    Body, Class, Ecn, NewContinuation, Response, SealedContinuation, Segment, TransportContinuation,
    WireError,
};

use super::connection::{Connection, ConnectionError, Event, InputError, Phase, Revival, Window};
use super::generation::{Arrival, Generation};
use super::output::MAX_REFUSALS;
use super::plain;
use crate::opening::read_token_field;
use crate::time::{MILLISECOND, Time};
use crate::ucont;

/// Requests that leave at once when a gap is decided.
const BURST: usize = 10;
/// Numbers of one generation before a REKEY; well below 2^31, the limit of serial arithmetic.
const MAX_NUMBERS: u32 = 1 << 30;

impl Connection {
    /// Handles an IP packet that this host received at `now`. That may be earlier than the latest
    /// call: packets wait in a socket while the process is stopped, and a continuation is as old as
    /// its packet.
    ///
    /// # Errors
    /// [`InputError`]: the packet was ignored; only a counter changed.
    pub fn handle_input(&mut self, now: Time, packet: &[u8]) -> Result<(), InputError> {
        self.clock = self.clock.max(now);
        let held = self.generation.as_ref().map_or(0, Generation::ready_count);
        let result = self.take_packet(now, packet);
        self.pace_released(held);
        if result.is_err() {
            self.statistics.ignored += 1;
        }
        result
    }

    /// The decision of a gap released requests. They leave over a quarter of the RTT to avoid a
    /// burst.
    pub(super) fn pace_released(&mut self, held: usize) {
        let ready = self.generation.as_ref().map_or(0, Generation::ready_count);
        if let Some(srtt) = self.rtt.smoothed().filter(|_| ready > held + BURST) {
            self.pace.interval = srtt / 4 / ready as u64;
            self.pace.left = ready;
            self.pace.at_once = 0;
        }
    }

    fn take_packet(&mut self, now: Time, packet: &[u8]) -> Result<(), InputError> {
        let segment = match Segment::parse_packet(packet) {
            Ok(segment) => segment,
            Err(WireError::OptionMissing(at)) => return self.take_plain(packet, at),
            Err(error) => return Err(error.into()),
        };
        if (segment.src, segment.dst) != (self.remote, self.local) || self.is_over() {
            return Err(InputError::Elsewhere);
        }
        segment.verify()?;
        if segment.is_bare_syn_ack() {
            return self.take_cookie(now, &segment);
        }
        let Class::Response(_) = segment.option.class else { return Err(InputError::Unexpected) };
        let response = segment.response()?;
        self.take_response(now, &segment, &response)?;
        self.last_received = now;
        self.statistics.responses += 1;
        self.acknowledge(segment.seq.wrapping_add(segment.sequence_length()));
        self.settle_declared(now);
        self.announce();
        Ok(())
    }

    /// The acknowledgement number never decreases.
    fn acknowledge(&mut self, end: u32) {
        if self.ack == 0 || (end.wrapping_sub(self.ack) as i32) > 0 {
            self.ack = end;
        }
    }

    /// Handles a segment without our option. Only the answer of a plain TCP server to our SYN has a
    /// meaning.
    fn take_plain(&mut self, packet: &[u8], at: usize) -> Result<(), InputError> {
        if !matches!(self.phase, Phase::Opening { .. }) {
            return Err(WireError::OptionMissing(at).into());
        }
        let sent = self.seq;
        match plain::read(packet, self.local, self.remote, self.isn, sent).ok_or(InputError::Elsewhere)? {
            plain::Answer::Handshake(mut handshake) => {
                handshake.stream = self.syn_input.as_ref().map_or(0, |(stream, ..)| *stream);
                self.end(Event::FallbackToTcp(handshake));
            }
            plain::Answer::Reset => self.fail(ConnectionError::Reset),
        }
        Ok(())
    }

    fn take_cookie(&mut self, now: Time, segment: &Segment<'_>) -> Result<(), InputError> {
        let Phase::Opening { .. } = self.phase else { return Err(InputError::Unexpected) };
        if segment.ack != self.isn.wrapping_add(1) {
            return Err(InputError::Unexpected);
        }
        self.last_received = now;
        self.phase = Phase::Completing { cookie: segment.seq, due: now, send: true, attempts: 0 };
        Ok(())
    }

    fn take_response(
        &mut self,
        now: Time,
        segment: &Segment<'_>,
        r: &Response<'_>,
    ) -> Result<(), InputError> {
        if let Body::Challenge { token } = r.body {
            let Revival::Restart { attempts, .. } = self.revival else { return Err(InputError::Unexpected) };
            self.challenge = Some(token.to_vec());
            self.revival = Revival::Restart { attempts, due: now };
            return Ok(());
        }
        if let NewContinuation::Full(sealed) = r.continuation
            && self.opens_generation(&sealed)
        {
            self.begin(now, segment, r, &sealed);
        }
        if self.generation.is_none() {
            return Err(InputError::Unexpected);
        }
        if let (Phase::Closing { window, .. }, NewContinuation::None, Some(token)) =
            (&mut self.phase, &r.continuation, r.token)
        {
            // The token with the returned window, for another connection.
            *window = Window::Gone;
            self.events.push_back(Event::Token(token.to_vec()));
            return Ok(());
        }
        if let Phase::Closing { .. } = self.phase
            && segment.flags.has(rivulet_packet::TcpFlags::FIN)
        {
            self.end(Event::Closed);
            return Ok(());
        }
        match r.body {
            Body::Group(group) => {
                let has = |number| group.iter().any(|m| m.continuation.fields.number == number);
                self.regenerating.retain(|(numbers, _)| !has(numbers.first));
                for member in group.iter() {
                    self.take_regenerated(now, member.nonce, member.continuation, false);
                }
                Ok(())
            }
            Body::Retransmission => {
                let want = match self.retransmissions.iter().position(|x| x.number == r.number) {
                    Some(found) => Some(self.retransmissions.swap_remove(found).want),
                    None => {
                        let late = self.given_up.iter().position(|(number, _)| *number == r.number);
                        let (_, sent_at) =
                            late.and_then(|at| self.given_up.remove(at)).ok_or(InputError::Unexpected)?;
                        self.rtt.reordered(now.since(sent_at));
                        None
                    }
                };
                self.take_content(now, r, want, None, None);
                Ok(())
            }
            _ if r.prime => self.take_prime(now, r),
            _ => self.take_original(now, segment, r),
        }
    }

    /// Whether a whole continuation starts the awaited generation.
    fn opens_generation(&self, sealed: &SealedContinuation) -> bool {
        let fields = &sealed.fields;
        match &self.generation {
            None => {
                fields.generation == 0
                    && matches!(self.phase, Phase::Opening { .. } | Phase::Completing { .. })
            }
            Some(current) => {
                self.revival != Revival::None
                    && fields.generation == current.generation.wrapping_add(1)
                    && current
                        .latest_continuation()
                        .and_then(|i| current.slot(i)?.sealed)
                        .is_some_and(|old| old.fields.connection == fields.connection)
            }
        }
    }

    /// Starts a generation from any of its first responses.
    fn begin(&mut self, now: Time, segment: &Segment<'_>, r: &Response<'_>, sealed: &SealedContinuation) {
        let fields = &sealed.fields;
        let sent_at = self.last_sent;
        let mut fresh = Generation::new(fields.tag, fields.generation, fields.base);
        if r.prime && fields.first {
            fresh.open_prime(r.nonce, *sealed, now);
        } else {
            // A SYN gets one response; otherwise the whole first window is in flight.
            let count = if fields.base == fields.tcp_base { 1 } else { fields.start_cwnd.min(16) };
            for index in 0..u32::from(count) {
                fresh.expect(index, index, sent_at);
            }
        }
        for (index, want) in core::mem::take(&mut self.wanted_in_revival).into_iter().enumerate() {
            match fresh.slot_mut(index as u32) {
                Some(slot) => slot.want = Some(want),
                None => self.settle_want(want),
            }
        }
        if let (Some(input), Some(slot)) = (self.syn_input.take(), fresh.slot_mut(0)) {
            slot.input = Some(input);
        }
        if self.generation.is_none() {
            if segment.flags.has(rivulet_packet::TcpFlags::SYN) {
                self.seq = segment.ack;
            }
            self.phase = Phase::Open;
            self.events.push_back(Event::Connected);
        }
        let opened = self.generation.is_none();
        self.former = self.generation.replace(fresh);
        // Unless the server reports another address, because of an address translator.
        if opened || matches!(self.revival, Revival::Restart { .. }) {
            self.sealed_for = self.local;
        }
        self.must_restart = false;
        self.challenge = None;
        self.revival = Revival::None;
        self.rtt.answered();
        self.regenerating.clear();
        self.detection = None;
        self.probes = 0;
        self.recovering_until = 0;
        self.drain_from = None;
        self.delay_until = None;
        self.pace = super::connection::Pace::default();
        self.last_progress = now;
    }

    /// Handles a continuation received under K': regenerated, the answer to a PROBE, or the first
    /// of a generation.
    fn take_prime(&mut self, now: Time, r: &Response<'_>) -> Result<(), InputError> {
        let NewContinuation::Full(sealed) = r.continuation else { return Err(InputError::Unexpected) };
        let first = self.generation.as_ref().is_some_and(|g| g.index(r.number) == 0 && sealed.fields.first);
        if !first && !self.take_regenerated(now, r.nonce, sealed, true) {
            return Err(InputError::Unexpected);
        }
        let taken = match self.generation.as_mut().and_then(|g| g.slot_mut(0)).filter(|_| first) {
            Some(slot) => (slot.want.take(), slot.input.take()),
            None => (None, None),
        };
        self.take_content(now, r, taken.0, taken.1, None);
        Ok(())
    }

    fn take_regenerated(&mut self, now: Time, nonce: u32, sealed: SealedContinuation, settles: bool) -> bool {
        let Some(generation) = self.generation.as_mut() else { return false };
        if sealed.fields.tag != generation.tag || sealed.fields.generation != generation.generation {
            return false;
        }
        let index = generation.index(sealed.fields.number);
        // A PROBE decides the tail only if this number is the tail and was probed.
        let awaited = generation.classify(sealed.fields.number) != Arrival::Unknown;
        let taken = awaited && generation.receive_prime(index, nonce, sealed, settles, now);
        if taken && settles {
            self.probes = 0;
            self.last_progress = now;
        }
        taken
    }

    fn take_original(
        &mut self,
        now: Time,
        segment: &Segment<'_>,
        r: &Response<'_>,
    ) -> Result<(), InputError> {
        let Some(generation) = self.generation.as_mut() else { return Err(InputError::Unexpected) };
        let index = generation.index(r.number);
        match generation.classify(r.number) {
            Arrival::New => {
                let predicted = generation.slot(index).and_then(|s| s.predicted);
                let sealed = match r.continuation {
                    NewContinuation::Full(sealed) => Some(sealed).filter(|s| self.fits(s, r.number)),
                    NewContinuation::Delta(delta) => self.patch(predicted, &delta),
                    NewContinuation::None => None,
                };
                match r.continuation {
                    NewContinuation::Full(_) => self.whole = predicted.is_some(),
                    NewContinuation::Delta(_) => self.whole = false,
                    NewContinuation::None => {}
                }
                self.receive_new(now, segment, r, index, sealed);
                Ok(())
            }
            Arrival::Late => {
                if let Some(slot) = generation.slot(index).filter(|s| s.sent_at > Time(0)) {
                    self.rtt.reordered(now.since(slot.sent_at));
                }
                self.statistics.spurious += 1;
                self.rtt.spurious();
                self.take_content(now, r, None, None, Some(index));
                Ok(())
            }
            Arrival::Unknown => {
                // Late data of the previous generation is still valid.
                let former = self.former.as_ref().map(|g| g.classify(r.number));
                if !matches!(former, Some(Arrival::New | Arrival::Late)) {
                    return Err(InputError::Unexpected);
                }
                self.take_content(now, r, None, None, None);
                Ok(())
            }
        }
    }

    fn patch(
        &mut self,
        predicted: Option<TransportContinuation>,
        delta: &rivulet_packet::Delta,
    ) -> Option<SealedContinuation> {
        let patched = predicted.and_then(|p| delta.apply(&p));
        self.statistics.mispredicted += u64::from(patched.is_none());
        Some(SealedContinuation { fields: patched?, mac: delta.mac })
    }

    /// Whether a whole continuation belongs to this number of this generation.
    fn fits(&self, sealed: &SealedContinuation, number: u32) -> bool {
        let fields = &sealed.fields;
        fields.number == number
            && self
                .generation
                .as_ref()
                .is_some_and(|g| g.tag == fields.tag && g.generation == fields.generation)
    }

    fn receive_new(
        &mut self,
        now: Time,
        segment: &Segment<'_>,
        r: &Response<'_>,
        index: u32,
        sealed: Option<SealedContinuation>,
    ) {
        let Some(generation) = self.generation.as_mut() else { return };
        if let Some(took) = generation.overtaken(index, now) {
            self.rtt.reordered(took);
        }
        let Some(slot) = generation.slot_mut(index) else { return };
        self.rtt.sample(now.since(slot.sent_at));
        let (want, input) = (slot.want.take(), slot.input.take());
        let parent = slot.parent;
        generation.receive(index, r.nonce, sealed, segment.ecn == Ecn::Ce, now);
        generation.advance();
        self.last_progress = now;
        self.probes = 0;
        self.calm = self.calm.saturating_add(1);
        if index > MAX_NUMBERS || sealed.is_some_and(|s| s.fields.rekey_wanted) {
            self.drain_from.get_or_insert(now);
        }
        let input = input.or_else(|| {
            // Any response to a request may acknowledge its input.
            r.consumed.and_then(|consumed| {
                self.generation.as_mut().and_then(|g| g.take_sibling_input(index, parent, consumed.stream))
            })
        });
        self.take_content(now, r, want, input, None);
    }

    /// Handles data, user continuations and all other parts of a response except its continuation.
    fn take_content(
        &mut self,
        now: Time,
        r: &Response<'_>,
        want: Option<Range<u64>>,
        input: Option<(u16, Range<u64>, bool)>,
        late: Option<u32>,
    ) {
        let late_input = late.and_then(|i| self.generation.as_mut()?.slot_mut(i)?.input.take());
        for sealed in r.uconts.iter() {
            self.hold(sealed);
        }
        if let Some(offset) = r.offset
            && let Some(s) = self.streams.get_mut(&((offset >> 48) as u16))
        {
            s.output.receive(offset, r.data, r.end);
        }
        let at = want.as_ref().map(|w| w.start);
        match (&r.body, at) {
            (Body::Skip { offset, length }, _) => {
                if let Some(s) = self.streams.get_mut(&((offset >> 48) as u16)) {
                    s.output.skip(*offset, *length);
                }
            }
            (Body::Wait { milliseconds }, Some(at)) => {
                let until = now + u64::from(*milliseconds) * MILLISECOND;
                if let Some(s) = self.streams.get_mut(&((at >> 48) as u16)) {
                    s.output.rest(at, until);
                }
            }
            (Body::NotMine { .. }, Some(at)) => {
                let stream = (at >> 48) as u16;
                if self.streams.get_mut(&stream).is_some_and(|s| s.output.refuse(at, now) >= MAX_REFUSALS) {
                    self.fail_stream(stream, ConnectionError::NotMine);
                }
            }
            (Body::Error { code }, at) => {
                let message = String::from_utf8_lossy(r.data).into_owned();
                let error = ConnectionError::Refused { code: *code, message };
                // The wants or the input of the request identify the stream that the error belongs
                // to.
                let told = input.as_ref().or(late_input.as_ref()).map(|(stream, ..)| *stream);
                match at.map(|at| (at >> 48) as u16).or(told) {
                    Some(stream) => self.fail_stream(stream, error),
                    // The abandoned parts are requested again, and the server answers again.
                    None if late.is_some() && self.streams.len() > 1 => {}
                    None => self.fail(error),
                }
            }
            _ => {}
        }
        if let Some(want) = want {
            self.settle_want(want);
        }
        if let Some((stream, range, fin)) = input.or(late_input) {
            let told = match r.body {
                Body::Wait { milliseconds } => Some(u64::from(milliseconds) * MILLISECOND),
                _ => None,
            };
            let wait = told.unwrap_or_else(|| self.rtt.smoothed().unwrap_or(10 * MILLISECOND));
            let consumed = r.consumed.filter(|c| c.stream == stream).map(|c| c.offset);
            let good = match self.streams.get_mut(&stream) {
                Some(s) => {
                    let good = s.input.answered(range, fin, consumed, now, now + wait);
                    if told.is_some() {
                        s.input.wait_until(now + wait);
                    }
                    good || told.is_some()
                }
                None => true,
            };
            if !good {
                self.fail_stream(stream, ConnectionError::InputRefused);
            }
        }
        if let Some(field) = r.token {
            let (seen, token) = read_token_field(field);
            // Only from the response that started this generation: a late one may report an earlier
            // address.
            let begins = self.generation.as_ref().is_some_and(|g| g.index(r.number) == 0);
            if let Some(seen) = seen.filter(|_| begins && matches!(r.continuation, NewContinuation::Full(_)))
            {
                self.sealed_for = seen;
            }
            if let Some(token) = token {
                self.events.push_back(Event::Token(token.to_vec()));
            }
        }
    }

    fn hold(&mut self, sealed: &[u8]) {
        let Some(validity) = ucont::validity(sealed) else { return };
        if validity.input {
            if let Some(s) = self.streams.get_mut(&validity.stream) {
                s.input.hold(validity, sealed);
            }
        } else if let Some(s) = self.streams.get_mut(&((validity.valid_start >> 48) as u16)) {
            // The server seals under a newer epoch, so later input also needs a continuation that
            // lasts.
            if s.output.hold(validity, sealed) {
                s.input.renew();
            }
        }
    }

    /// Emits events for what the application can do now.
    pub(super) fn announce(&mut self) {
        for (&id, s) in &mut self.streams {
            if !s.reported_readable && (s.output.readable() > 0 || s.output.is_finished()) {
                s.reported_readable = true;
                self.events.push_back(Event::Readable(id));
            }
            if s.blocked_writer && s.input.room() > 0 {
                s.blocked_writer = false;
                self.events.push_back(Event::Writable(id));
            }
            if !s.reported_consumed && s.input.is_consumed() {
                s.reported_consumed = true;
                self.events.push_back(Event::InputConsumed(id));
            }
        }
    }
}
