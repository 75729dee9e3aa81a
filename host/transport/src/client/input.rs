//! The input of one stream: bytes that the application wrote, until the server reports them
//! consumed (section 4.2).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use crate::time::Time;
use crate::ucont::Validity;

/// Input continuations kept for each stream: the newest ones.
const MAX_CONTINUATIONS: usize = 8;
/// How long the server may consume none of the input sent to it before the stream fails,
/// microseconds. The time does not run while the server only waits for further input.
const MAX_FUTILE_US: u64 = 10_000_000;
/// After an unsuccessful attempt, the next one waits this fraction of the time since the first,
/// which bounds their number.
const FUTILE_PAUSE: u64 = 8;
/// Input that was too short for the server is sent again after this time even if the application
/// wrote no more: the server may have had another reason, and no room to report it. The pause
/// doubles with each attempt, up to [`MAX_SHORT_PAUSE_US`].
const SHORT_PAUSE_US: u64 = 1_000_000;
const MAX_SHORT_PAUSE_US: u64 = 64 * SHORT_PAUSE_US;

/// Maximum number of empty packets sent to obtain one new continuation. A server that rejects the
/// old continuation rejects the whole request, so the attempts must end.
const MAX_RENEWALS: u8 = 8;

/// One packet of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its range of the input.
    pub range: Range<u64>,
    /// The stream's input ends with it.
    pub fin: bool,
    /// The input continuation to send with it.
    pub continuation: Option<Arc<[u8]>>,
}

/// The input of one stream.
#[derive(Debug)]
pub struct Input {
    /// Bytes from `base` on.
    buffer: VecDeque<u8>,
    limit: usize,
    /// First byte not consumed.
    base: u64,
    /// First byte never sent.
    sent: u64,
    /// Ranges to send again.
    again: BTreeMap<u64, u64>,
    /// Consumed ranges beyond `base`.
    consumed: BTreeMap<u64, u64>,
    held: Vec<(Validity, Arc<[u8]>)>,
    finished: bool,
    fin_in_flight: bool,
    fin_consumed: bool,
    not_before: Time,
    /// When the first of the unsuccessful attempts was answered; `None` after progress.
    futile_since: Option<Time>,
    /// The server has seen all input up to here and needs more, for example the rest of a request
    /// line. The input is sent again when the application has written more, or at `short_until`.
    short_at: Option<u64>,
    short_until: Time,
    /// The pause that ends at `short_until`, microseconds.
    short_pause: u64,
    /// Empty packets that may still be sent to renew the continuation.
    renew: u8,
    /// An empty packet is in flight.
    renewing: bool,
}

impl Input {
    /// Makes an input that buffers up to `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: VecDeque::new(),
            limit,
            base: 0,
            sent: 0,
            again: BTreeMap::new(),
            consumed: BTreeMap::new(),
            held: Vec::new(),
            finished: false,
            fin_in_flight: false,
            fin_consumed: false,
            not_before: Time(0),
            futile_since: None,
            short_at: None,
            short_until: Time(0),
            short_pause: 0,
            renew: 0,
            renewing: false,
        }
    }

    /// Restores the input of a suspended connection.
    pub fn resumed(limit: usize, base: u64, unconsumed: &[u8], finished: bool) -> Self {
        let mut input = Self::new(limit);
        (input.base, input.sent, input.finished) = (base, base, finished);
        input.buffer.extend(unconsumed);
        input
    }

    /// Buffers as much of `data` as fits and returns its length; 0 after [`Input::finish`].
    pub fn write(&mut self, data: &[u8]) -> usize {
        let n = if self.finished { 0 } else { data.len().min(self.limit.saturating_sub(self.buffer.len())) };
        self.buffer.extend(&data[..n]);
        n
    }

    /// Bytes that [`Input::write`] would accept.
    pub fn room(&self) -> usize {
        if self.finished { 0 } else { self.limit.saturating_sub(self.buffer.len()) }
    }

    /// Ends the input here.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Requests a new input continuation, because the current one would expire before the response
    /// is complete.
    pub fn renew(&mut self) {
        self.renew = MAX_RENEWALS;
    }

    fn end(&self) -> u64 {
        self.base + self.buffer.len() as u64
    }

    /// Stores an input continuation.
    pub fn hold(&mut self, validity: Validity, sealed: &[u8]) {
        if self.held.iter().any(|(v, _)| *v == validity) {
            self.held.retain(|(v, _)| *v != validity);
        }
        if self.held.len() == MAX_CONTINUATIONS {
            self.held.remove(0);
        }
        self.held.push((validity, sealed.into()));
    }

    /// The input continuations, oldest first.
    pub fn continuations(&self) -> impl Iterator<Item = &[u8]> {
        self.held.iter().map(|(_, sealed)| &**sealed)
    }

    /// The continuation for a packet that starts at `offset`. `Some(None)`: the packet needs none.
    /// `None`: it cannot be sent.
    fn continuation_at(&self, offset: u64) -> Option<Option<Arc<[u8]>>> {
        let good = |v: &Validity| v.valid_start <= offset && offset <= v.valid_end;
        match self.held.iter().rev().find(|(v, _)| good(v)) {
            Some((_, sealed)) => Some(Some(sealed.clone())),
            None if offset == 0 => Some(None),
            None => None,
        }
    }

    fn candidate(&self, now: Time) -> Option<(Range<u64>, bool)> {
        if now < self.not_before {
            return None;
        }
        let start = self.again.first_key_value().map_or(self.sent, |(&start, _)| start);
        let end = self.sendable_until(start);
        let ends = self.finished && !self.fin_in_flight && !self.fin_consumed;
        let is_short =
            now < self.short_until && self.short_at.is_some_and(|short| start <= short && end <= short);
        if is_short && !(ends && end == self.end()) {
            return None;
        }
        // A renewal is needed only if no input is in flight, since input brings a new continuation
        // anyway.
        let renews =
            self.renew > 0 && !self.renewing && self.sent == self.base && self.base > 0 && !self.finished;
        (start < end || renews || (ends && start == self.end())).then_some((start..end, ends))
    }

    /// The end of the bytes from `start` on that are not in flight: those to send again, and those
    /// not sent yet.
    fn sendable_until(&self, start: u64) -> u64 {
        let mut end = start;
        for (&from, &to) in &self.again {
            if from > end {
                break;
            }
            end = end.max(to);
        }
        if end >= self.sent { self.end() } else { end }
    }

    /// Whether there is a packet to send now.
    pub fn has_packet(&self, now: Time) -> bool {
        self.candidate(now).is_some_and(|(range, _)| self.continuation_at(range.start).is_some())
    }

    /// Takes the next packet, at most `most` bytes.
    pub fn take_packet(&mut self, most: usize, now: Time) -> Option<Packet> {
        let (candidate, ends) = self.candidate(now)?;
        let continuation = self.continuation_at(candidate.start)?;
        let most = most.saturating_sub(continuation.as_ref().map_or(0, |c| c.len() + 2));
        if most == 0 && !candidate.is_empty() {
            return None;
        }
        let range = candidate.start..candidate.end.min(candidate.start + most as u64);
        while let Some(first) = self.again.first_entry() {
            if *first.key() > range.start && *first.key() >= range.end {
                break;
            }
            let end = first.remove();
            if end > range.end {
                self.again.insert(range.end, end);
                break;
            }
        }
        self.sent = self.sent.max(range.end);
        let fin = ends && range.end == self.end();
        // Input itself brings a new continuation.
        self.renewing = range.is_empty() && !fin;
        self.renew = if self.renewing { self.renew.saturating_sub(1) } else { 0 };
        self.fin_in_flight |= fin;
        Some(Packet { range, fin, continuation })
    }

    /// The bytes of a packet.
    pub fn bytes(&self, range: &Range<u64>, out: &mut Vec<u8>) {
        out.clear();
        let from = range.start.saturating_sub(self.base) as usize;
        let to = (range.end.saturating_sub(self.base) as usize).min(self.buffer.len());
        out.extend(self.buffer.range(from.min(to)..to));
    }

    /// A packet was lost; send it again.
    pub fn lost(&mut self, range: Range<u64>, fin: bool) {
        self.fin_in_flight &= !fin;
        self.renewing &= !range.is_empty() || fin;
        self.resend(range);
    }

    fn resend(&mut self, range: Range<u64>) {
        let mut at = range.start.max(self.base);
        while at < range.end {
            if let Some((_, &end)) = self.consumed.range(..=at).next_back()
                && end > at
            {
                at = end;
                continue;
            }
            let stop = self.consumed.range(at..range.end).next().map_or(range.end, |(start, _)| *start);
            let entry = self.again.entry(at).or_insert(stop);
            *entry = (*entry).max(stop);
            at = stop;
        }
    }

    /// A packet was answered: the server consumed it up to `consumed`, or reported nothing. It may
    /// be sent again at `until`. Returns false if the server has made no progress for too long.
    pub fn answered(
        &mut self,
        range: Range<u64>,
        fin: bool,
        consumed: Option<u64>,
        now: Time,
        until: Time,
    ) -> bool {
        if range.is_empty() && !fin {
            // An empty packet. Without `consumed` it is repeated, because the server may have had
            // no room to answer it.
            self.renewing = false;
            self.renew = if consumed.is_some() { 0 } else { self.renew };
            self.not_before = if consumed.is_some() { self.not_before } else { self.not_before.max(until) };
            return true;
        }
        let taken = consumed.map_or(range.start, |c| c.clamp(range.start, range.end));
        if taken > range.start || (range.is_empty() && consumed.is_some()) {
            (self.futile_since, self.short_at) = (None, None);
        } else if consumed.is_some() && !fin && self.short_at.is_none_or(|short| range.end > short) {
            // It was longer than all attempts before, so the next longer one may suffice.
            (self.futile_since, self.short_at) = (None, Some(range.end));
            (self.short_until, self.short_pause) = (Time(now.0 + SHORT_PAUSE_US), SHORT_PAUSE_US);
        } else if consumed.is_some() && !fin && range.end == self.end() {
            // All written bytes were sent once more, and are still too short.
            self.short_pause = (2 * self.short_pause).min(MAX_SHORT_PAUSE_US);
            self.short_until = Time(now.0 + self.short_pause);
        } else {
            let since = *self.futile_since.get_or_insert(now);
            let pause = Time(now.0 + now.0.saturating_sub(since.0) / FUTILE_PAUSE);
            self.not_before = self.not_before.max(until).max(pause);
        }
        if fin {
            self.fin_in_flight = false;
            self.fin_consumed |= consumed.is_some() && taken == range.end;
        }
        if taken > range.start {
            let at = self.consumed.entry(range.start).or_insert(taken);
            *at = (*at).max(taken);
        }
        while let Some((&start, &end)) = self.consumed.first_key_value() {
            if start > self.base {
                break;
            }
            self.consumed.remove(&start);
            if end > self.base {
                let n = ((end - self.base) as usize).min(self.buffer.len());
                self.buffer.drain(..n);
                self.base += n as u64;
            }
        }
        self.sent = self.sent.max(self.base);
        let base = self.base;
        let again = core::mem::take(&mut self.again).into_iter().filter(|(_, end)| *end > base);
        self.again = again.map(|(start, end)| (start.max(base), end)).collect();
        self.resend(taken..range.end);
        self.held.retain(|(v, _)| v.valid_end >= self.base);
        self.futile_since.is_none_or(|since| now.0.saturating_sub(since.0) < MAX_FUTILE_US)
    }

    /// The server reported that a resource it needs is not ready before `until`. Such reports do
    /// not count as a lack of progress.
    pub fn wait_until(&mut self, until: Time) {
        (self.futile_since, self.short_at) = (None, None);
        self.not_before = self.not_before.max(until);
    }

    /// When unconsumed input may be sent again.
    pub fn rests_until(&self, now: Time) -> Option<Time> {
        if self.candidate(now).is_some() {
            return None;
        }
        let ends = [self.not_before, self.not_before.max(self.short_until)];
        ends.into_iter().find(|end| *end > now && self.candidate(*end).is_some())
    }

    /// Whether everything written was consumed.
    pub fn is_consumed(&self) -> bool {
        self.unconsumed() == 0
    }

    /// Bytes not consumed yet; the end of the input counts as one.
    pub fn unconsumed(&self) -> usize {
        self.buffer.len() + usize::from(self.finished && !self.fin_consumed)
    }

    /// State kept by a suspended connection: the unconsumed bytes, their offset, and whether the
    /// input ends after them.
    pub fn position(&self) -> (u64, Vec<u8>, bool) {
        (self.base, self.buffer.iter().copied().collect(), self.finished)
    }
}

#[cfg(test)]
mod tests;
