//! The input of one stream: what the application wrote, until the server says that it consumed it (section 4.2).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::time::Time;
use crate::ucont::Validity;

/// Input continuations kept per stream: the newest few.
const MAX_CONTINUATIONS: usize = 8;
/// Times that a packet of input may come back without progress before the application is told.
pub const MAX_FUTILE: u8 = 32;

/// Packets of no bytes, at most, that ask for one new continuation. A server that refuses what it was asked with refuses
/// the whole request, so there must be an end.
const MAX_RENEWALS: u8 = 8;

/// One packet of input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its range of the input.
    pub range: Range<u64>,
    /// The stream's input ends with it.
    pub fin: bool,
    /// The input continuation that goes with it.
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
    /// Ranges to be sent again.
    again: BTreeMap<u64, u64>,
    /// Consumed ranges beyond `base`.
    consumed: BTreeMap<u64, u64>,
    held: Vec<(Validity, Arc<[u8]>)>,
    finished: bool,
    fin_in_flight: bool,
    fin_consumed: bool,
    not_before: Time,
    futile: u8,
    /// Times that a packet of no bytes may still be sent to have the continuation anew.
    renew: u8,
    /// One is on the way.
    renewing: bool,
}

impl Input {
    /// An input that buffers up to `limit` bytes.
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
            futile: 0,
            renew: 0,
            renewing: false,
        }
    }

    /// As it was when a connection was suspended.
    pub fn resumed(limit: usize, base: u64, unconsumed: &[u8], finished: bool) -> Self {
        let mut input = Self::new(limit);
        (input.base, input.sent, input.finished) = (base, base, finished);
        input.buffer.extend(unconsumed);
        input
    }

    /// Takes what fits of `data` and gives how much that was. Nothing after [`Input::finish`].
    pub fn write(&mut self, data: &[u8]) -> usize {
        let n = if self.finished { 0 } else { data.len().min(self.limit.saturating_sub(self.buffer.len())) };
        self.buffer.extend(&data[..n]);
        n
    }

    /// Bytes that [`Input::write`] would take.
    pub fn room(&self) -> usize {
        if self.finished { 0 } else { self.limit.saturating_sub(self.buffer.len()) }
    }

    /// The input ends here.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// The input continuation is to be had anew: sealed long ago, it would not outlast what is being answered.
    pub fn renew(&mut self) {
        self.renew = MAX_RENEWALS;
    }

    fn end(&self) -> u64 {
        self.base + self.buffer.len() as u64
    }

    /// Holds an input continuation.
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

    /// The continuation with which a packet may start at `offset`; Some(None): it needs none.
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
        let (start, end) = match self.again.first_key_value() {
            Some((&start, &end)) => (start, end),
            None => (self.sent, self.end()),
        };
        let ends = self.finished && !self.fin_in_flight && !self.fin_consumed;
        // Nothing on the way that would bring a new continuation anyway, and one to be renewed.
        let renews =
            self.renew > 0 && !self.renewing && self.sent == self.base && self.base > 0 && !self.finished;
        (start < end || renews || (ends && start == self.end())).then_some((start..end, ends))
    }

    /// Whether there is a packet to send now.
    pub fn has_packet(&self, now: Time) -> bool {
        self.candidate(now).is_some_and(|(range, _)| self.continuation_at(range.start).is_some())
    }

    /// The next packet, of at most `most` bytes.
    pub fn take_packet(&mut self, most: usize, now: Time) -> Option<Packet> {
        let (candidate, ends) = self.candidate(now)?;
        let continuation = self.continuation_at(candidate.start)?;
        let most = most.saturating_sub(continuation.as_ref().map_or(0, |c| c.len() + 2));
        if most == 0 && !candidate.is_empty() {
            return None;
        }
        let range = candidate.start..candidate.end.min(candidate.start + most as u64);
        if self.again.remove(&range.start).is_some() {
            if range.end < candidate.end {
                self.again.insert(range.end, candidate.end);
            }
        } else {
            self.sent = range.end;
        }
        let fin = ends && range.end == self.end();
        // Bytes bring a new continuation by themselves.
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

    /// A packet was lost: it is sent again.
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

    /// A packet was answered: the server took it up to `consumed`, or said nothing about it. Gives false when packets keep coming
    /// back without progress.
    pub fn answered(&mut self, range: Range<u64>, fin: bool, consumed: Option<u64>, until: Time) -> bool {
        if range.is_empty() && !fin {
            // For a new continuation, which came or is asked for again: the server may have had no place to say it.
            self.renewing = false;
            self.renew = if consumed.is_some() { 0 } else { self.renew };
            self.not_before = if consumed.is_some() { self.not_before } else { self.not_before.max(until) };
            return true;
        }
        let taken = consumed.map_or(range.start, |c| c.clamp(range.start, range.end));
        if taken > range.start || (range.is_empty() && consumed.is_some()) {
            self.futile = 0;
        } else {
            self.futile = self.futile.saturating_add(1);
            self.not_before = self.not_before.max(until);
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
        let again = std::mem::take(&mut self.again).into_iter().filter(|(_, end)| *end > base);
        self.again = again.map(|(start, end)| (start.max(base), end)).collect();
        self.resend(taken..range.end);
        self.held.retain(|(v, _)| v.valid_end >= self.base);
        self.futile < MAX_FUTILE
    }

    /// The server said why the input came back: what it needs is not ready yet. However often it says so, that is no
    /// lack of progress.
    pub fn told_to_wait(&mut self) {
        self.futile = 0;
    }

    /// When input that came back may be sent again.
    pub fn rests_until(&self, now: Time) -> Option<Time> {
        (self.not_before > now && self.candidate(self.not_before).is_some()).then_some(self.not_before)
    }

    /// Everything written was consumed.
    pub fn is_consumed(&self) -> bool {
        self.unconsumed() == 0
    }

    /// Bytes that were not consumed yet; the end of an input counts as one.
    pub fn unconsumed(&self) -> usize {
        self.buffer.len() + usize::from(self.finished && !self.fin_consumed)
    }

    /// Unconsumed bytes, their offset, and whether the input ends behind them: what a suspended connection keeps.
    pub fn position(&self) -> (u64, Vec<u8>, bool) {
        (self.base, self.buffer.iter().copied().collect(), self.finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid(start: u64, end: u64) -> Validity {
        Validity { input: true, stream: 0, valid_start: start, valid_end: end }
    }

    #[test]
    fn only_the_first_packet_goes_without_a_continuation() {
        let mut i = Input::new(1000);
        assert_eq!(i.write(&[1; 1200]), 1000);
        let first = i.take_packet(400, Time(0)).unwrap();
        assert_eq!((first.range.clone(), first.continuation.is_none()), (0..400, true));
        assert!(!i.has_packet(Time(0)));
        assert!(i.answered(0..400, false, Some(300), Time(0)), "partly consumed");
        i.hold(valid(300, 300), b"c");
        let second = i.take_packet(403, Time(0)).unwrap();
        assert_eq!(second.range, 300..400, "what was not consumed goes again");
        assert!(i.answered(second.range, false, Some(400), Time(0)));
        assert!(!i.has_packet(Time(0)), "the continuation starts packets at 300 alone");
        i.hold(valid(400, 1000), b"d");
        assert_eq!(i.take_packet(103, Time(0)).unwrap().range, 400..500);
        assert_eq!(i.take_packet(103, Time(0)).unwrap().range, 500..600, "several with one continuation");
        i.lost(400..500, false);
        assert_eq!(i.take_packet(103, Time(0)).unwrap().range, 400..500);
        assert!(i.answered(500..600, false, Some(600), Time(0)));
        assert_eq!(i.position().0, 400);
        assert!(i.answered(400..500, false, Some(500), Time(0)));
        assert_eq!(i.position().0, 600);
    }

    #[test]
    fn the_end_is_sent_again_until_it_is_consumed() {
        let mut i = Input::new(1000);
        i.write(b"abc");
        i.finish();
        assert_eq!(i.write(b"more"), 0);
        let p = i.take_packet(100, Time(0)).unwrap();
        assert!(p.fin);
        i.lost(p.range, true);
        let p = i.take_packet(100, Time(0)).unwrap();
        assert!(p.fin && i.take_packet(100, Time(0)).is_none());
        i.answered(p.range, true, Some(3), Time(0));
        assert!(i.is_consumed());
    }

    #[test]
    fn input_without_progress_rests_and_is_given_up() {
        let mut i = Input::new(1000);
        i.write(b"abc");
        for n in 0..MAX_FUTILE {
            let p = i.take_packet(100, Time(u64::from(n))).unwrap();
            assert!(!i.has_packet(Time(0)));
            let good = i.answered(p.range, false, None, Time(u64::from(n) + 1));
            assert_eq!(good, n + 1 < MAX_FUTILE);
        }
    }

    #[test]
    fn a_continuation_is_had_anew_by_a_packet_of_no_bytes() {
        let mut i = Input::new(1000);
        i.renew();
        assert!(!i.has_packet(Time(0)), "nothing was ever sent");
        i.write(b"abc");
        let p = i.take_packet(100, Time(0)).unwrap();
        i.renew();
        assert!(!i.has_packet(Time(0)), "what is on the way brings one");
        i.hold(valid(3, 3), b"old");
        assert!(i.answered(p.range, false, Some(3), Time(0)));
        i.renew();
        let p = i.take_packet(100, Time(0)).unwrap();
        assert_eq!((p.range.clone(), p.fin, p.continuation.as_deref()), (3..3, false, Some(&b"old"[..])));
        assert!(!i.has_packet(Time(0)), "once");
        i.lost(p.range, false);
        let p = i.take_packet(100, Time(0)).expect("again, since it was lost");
        assert!(i.answered(p.range, false, None, Time(9)));
        assert!(!i.has_packet(Time(8)));
        let p = i.take_packet(100, Time(9)).expect("again, since the server did not say");
        i.hold(valid(3, 3), b"new");
        assert!(i.answered(p.range.clone(), false, Some(3), Time(0)));
        i.renew();
        i.write(b"d");
        let p = i.take_packet(100, Time(9)).unwrap();
        assert_eq!((p.range.clone(), p.continuation.as_deref()), (3..4, Some(&b"new"[..])));
        i.lost(p.range, false);
        let p = i.take_packet(100, Time(9)).unwrap();
        assert_eq!(p.range, 3..4);
        i.hold(valid(4, 4), b"newer");
        assert!(i.answered(p.range, false, Some(4), Time(9)));
        i.renew();
        let sent =
            (0..100).take_while(|_| i.take_packet(100, Time(9)).map(|p| i.lost(p.range, false)).is_some());
        assert_eq!(sent.count(), usize::from(MAX_RENEWALS), "there is an end");
    }

    #[test]
    fn a_server_that_says_wait_is_waited_for() {
        let mut i = Input::new(1000);
        i.write(b"abc");
        for n in 0..5 * u64::from(MAX_FUTILE) {
            let p = i.take_packet(100, Time(n)).unwrap();
            i.answered(p.range, false, None, Time(n + 1));
            i.told_to_wait();
        }
        let p = i.take_packet(100, Time(1_000_000)).unwrap();
        assert!(i.answered(p.range, false, None, Time(1_000_001)), "the first without a reason");
    }
}
