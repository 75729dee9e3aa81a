//! The output of one stream: the ranges to request, the bytes received, and their order (sections
//! 4.3 and 5.2).

use alloc::collections::{BTreeMap, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use crate::time::{MILLISECOND, Time};
use crate::ucont::Validity;

/// Output continuations kept for each stream.
const MAX_CONTINUATIONS: usize = 64;
/// Consecutive refusals ("not mine") of one continuation before the application gets an error.
pub const MAX_REFUSALS: u8 = 16;
/// Pause before a continuation is used again after a replica refused it.
const REFUSAL_PAUSE: u64 = 10 * MILLISECOND;
/// Room beyond the receive buffer for data that arrives unrequested with an output continuation.
const SLACK: usize = 64 << 10;
/// Bits of an offset within a stream's region.
pub const REGION_BITS: u32 = 48;

/// A stored output continuation.
#[derive(Debug)]
struct Held {
    valid: Range<u64>,
    sealed: Arc<[u8]>,
    not_before: Time,
    refusals: u8,
}

/// Bytes received out of order.
#[derive(Debug)]
enum Ahead {
    Data(Vec<u8>),
    Skip(u64),
}

impl Ahead {
    fn length(&self) -> u64 {
        match self {
            Self::Data(data) => data.len() as u64,
            Self::Skip(length) => *length,
        }
    }
}

/// The output of one stream. Offsets are those of the connection's output space.
#[derive(Debug)]
pub struct Output {
    region: Range<u64>,
    limit: usize,
    ready: VecDeque<u8>,
    /// First byte not received in order.
    next: u64,
    ahead: BTreeMap<u64, Ahead>,
    ahead_bytes: usize,
    /// First byte never requested.
    asked: u64,
    /// Ranges to request again: start to end, disjoint.
    again: BTreeMap<u64, u64>,
    in_flight: usize,
    held: Vec<Held>,
    end: Option<u64>,
}

impl Output {
    /// The output of `stream`, with room for `limit` bytes.
    pub fn new(stream: u16, limit: usize) -> Self {
        let start = u64::from(stream) << REGION_BITS;
        Self {
            region: start..start + (1 << REGION_BITS),
            limit,
            ready: VecDeque::new(),
            next: start,
            ahead: BTreeMap::new(),
            ahead_bytes: 0,
            asked: start,
            again: BTreeMap::new(),
            in_flight: 0,
            held: Vec::new(),
            end: None,
        }
    }

    /// Restores the output of a suspended connection: unread bytes, and the first byte not
    /// received.
    pub fn resumed(stream: u16, limit: usize, next: u64, unread: &[u8], end: Option<u64>) -> Self {
        let mut output = Self::new(stream, limit);
        output.next = next.clamp(output.region.start, output.region.end);
        output.asked = output.next;
        output.ready.extend(unread);
        output.end = end;
        output
    }

    /// Stores a continuation. Returns true if it replaced one for the same range, which the server
    /// sealed again.
    pub fn hold(&mut self, validity: Validity, sealed: &[u8]) -> bool {
        let valid = validity.valid_start.max(self.region.start)..validity.valid_end.min(self.region.end);
        if valid.end <= self.next || valid.is_empty() || self.held.iter().any(|h| *h.sealed == *sealed) {
            return false;
        }
        let replaced = self.held.iter().any(|h| h.valid == valid);
        self.held.retain(|h| h.valid.end > self.next && h.valid != valid);
        if self.held.len() < MAX_CONTINUATIONS {
            self.held.push(Held { valid, sealed: sealed.into(), not_before: Time(0), refusals: 0 });
        }
        replaced
    }

    /// All continuations that cover bytes not received yet.
    pub fn continuations(&self) -> impl Iterator<Item = &[u8]> {
        self.held.iter().map(|h| &*h.sealed)
    }

    fn covering(&self, offset: u64) -> Option<&Held> {
        self.held.iter().filter(|h| h.valid.contains(&offset)).max_by_key(|h| h.valid.start)
    }

    /// Takes the next range to request, at most `most` bytes, with the continuation that covers it.
    pub fn take_want(&mut self, most: usize, now: Time) -> Option<(Range<u64>, Arc<[u8]>)> {
        let (start, end, fresh) = match self.again.first_key_value() {
            Some((&start, &end)) => (start, end, false),
            None => (self.asked, self.end.unwrap_or(self.region.end), true),
        };
        // The range that fills the next gap is always allowed, so a full buffer cannot block
        // itself.
        let buffered = self.ready.len() + self.ahead_bytes + self.in_flight;
        let room = self.limit.saturating_sub(buffered);
        let urgent = start == self.next && self.ready.len() < self.limit;
        if start >= end || (room < most && !urgent) {
            return None;
        }
        let held = self.covering(start).filter(|h| h.not_before <= now)?;
        let end = end.min(held.valid.end).min(start.saturating_add(most as u64));
        let sealed = held.sealed.clone();
        if fresh {
            self.asked = end;
        } else if let Some(rest) = self.again.remove(&start).filter(|rest| *rest > end) {
            self.again.insert(end, rest);
        }
        self.in_flight += (end - start) as usize;
        Some((start..end, sealed))
    }

    /// Whether [`Output::take_want`] would return a range now.
    pub fn wants(&self, most: usize, now: Time) -> bool {
        let (start, end) = match self.again.first_key_value() {
            Some((&start, &end)) => (start, end),
            None => (self.asked, self.end.unwrap_or(self.region.end)),
        };
        let room = self.limit.saturating_sub(self.ready.len() + self.ahead_bytes + self.in_flight);
        let urgent = start == self.next && self.ready.len() < self.limit;
        start < end && (room >= most || urgent) && self.covering(start).is_some_and(|h| h.not_before <= now)
    }

    /// When the first refused continuation may be used again.
    pub fn rests_until(&self, now: Time) -> Option<Time> {
        self.held.iter().map(|h| h.not_before).filter(|t| *t > now).min()
    }

    /// A requested range is no longer awaited; the missing parts will be requested again.
    pub fn settle(&mut self, want: Range<u64>) {
        self.in_flight = self.in_flight.saturating_sub((want.end - want.start) as usize);
        let mut at = want.start.max(self.next);
        let stop = want.end.min(self.end.unwrap_or(u64::MAX));
        while at < stop {
            // Find the received bytes that cover `at`.
            if let Some((&start, piece)) = self.ahead.range(..=at).next_back()
                && start + piece.length() > at
            {
                at = start + piece.length();
                continue;
            }
            if let Some((_, &end)) = self.again.range(..=at).next_back()
                && end > at
            {
                at = end;
                continue;
            }
            let ahead = self.ahead.range(at..).next().map_or(stop, |(start, _)| *start);
            let again = self.again.range(at..).next().map_or(stop, |(start, _)| *start);
            let hole = stop.min(ahead).min(again);
            self.again.insert(at, hole);
            at = hole;
        }
    }

    /// The replica asked the client to wait.
    pub fn rest(&mut self, offset: u64, until: Time) {
        if let Some(held) =
            self.held.iter_mut().filter(|h| h.valid.contains(&offset)).max_by_key(|h| h.valid.start)
        {
            held.not_before = held.not_before.max(until);
        }
    }

    /// A replica does not have the content. Returns the number of such refusals of this
    /// continuation since it last brought data.
    pub fn refuse(&mut self, offset: u64, now: Time) -> u8 {
        let found = self.held.iter_mut().filter(|h| h.valid.contains(&offset)).max_by_key(|h| h.valid.start);
        let Some(held) = found else { return MAX_REFUSALS };
        held.refusals = held.refusals.saturating_add(1);
        held.not_before = now + REFUSAL_PAUSE;
        held.refusals
    }

    /// Stores received data. Returns false if there is no room, or the data is outside the stream.
    pub fn receive(&mut self, offset: u64, data: &[u8], ends: bool) -> bool {
        let Some(end) = offset.checked_add(data.len() as u64) else { return false };
        if offset < self.region.start || end > self.region.end || self.end.is_some_and(|e| end > e) {
            return false;
        }
        if ends && self.end.is_none() && end >= self.next {
            self.end = Some(end);
            self.cut_at(end);
        }
        // Some replica has the content.
        self.held.iter_mut().filter(|h| h.valid.contains(&offset)).for_each(|h| h.refusals = 0);
        if end <= self.next {
            return true;
        }
        if self.ready.len() + self.ahead_bytes + data.len() > self.limit + SLACK {
            return false;
        }
        let skip = self.next.saturating_sub(offset) as usize;
        let (offset, data) = (offset + skip as u64, &data[skip..]);
        self.asked = self.asked.max(if offset <= self.asked { end } else { self.asked });
        if offset == self.next && self.ahead.is_empty() {
            self.ready.extend(data);
            self.next = end;
        } else {
            self.insert(offset, Ahead::Data(data.to_vec()));
        }
        self.settle_again(offset..end);
        true
    }

    /// The stream has no bytes in this region.
    pub fn skip(&mut self, offset: u64, length: u64) {
        let offset_in = offset.max(self.region.start).max(self.next);
        let end = offset.saturating_add(length).min(self.region.end);
        if offset_in >= end {
            return;
        }
        self.insert(offset_in, Ahead::Skip(end - offset_in));
        if (offset_in..end).contains(&self.asked) {
            self.asked = end;
        }
        self.settle_again(offset_in..end);
    }

    /// Removes all requests behind the end of the stream.
    fn cut_at(&mut self, end: u64) {
        let last = self.again.range(..end).next_back().map(|(s, e)| (*s, *e));
        self.again.split_off(&end);
        if let Some((start, e)) = last.filter(|(_, e)| *e > end) {
            let _ = e;
            self.again.insert(start, end);
        }
    }

    /// Inserts the missing parts of received data, and moves data in order to the reader's buffer.
    fn insert(&mut self, offset: u64, piece: Ahead) {
        let end = offset + piece.length();
        let mut at = offset;
        while at < end {
            if let Some((&start, have)) = self.ahead.range(..=at).next_back()
                && start + have.length() > at
            {
                at = start + have.length();
                continue;
            }
            let stop = self.ahead.range(at..end).next().map_or(end, |(start, _)| *start);
            let part = match &piece {
                Ahead::Data(data) => {
                    self.ahead_bytes += (stop - at) as usize;
                    Ahead::Data(data[(at - offset) as usize..(stop - offset) as usize].to_vec())
                }
                Ahead::Skip(_) => Ahead::Skip(stop - at),
            };
            self.ahead.insert(at, part);
            at = stop;
        }
        while let Some(entry) = self.ahead.first_entry().filter(|e| *e.key() == self.next) {
            let piece = entry.remove();
            self.next += piece.length();
            if let Ahead::Data(data) = piece {
                self.ahead_bytes -= data.len();
                self.ready.extend(&data);
            }
        }
    }

    /// Received data need not be requested again.
    fn settle_again(&mut self, came: Range<u64>) {
        let overlapping: Vec<(u64, u64)> = self
            .again
            .range(..came.end)
            .rev()
            .take_while(|(_, end)| **end > came.start)
            .map(|(start, end)| (*start, *end))
            .collect();
        for (start, end) in overlapping {
            self.again.remove(&start);
            if start < came.start {
                self.again.insert(start, came.start);
            }
            if end > came.end {
                self.again.insert(came.end, end);
            }
        }
    }

    /// Moves up to `buf.len()` bytes to the reader.
    pub fn read(&mut self, buf: &mut [u8]) -> usize {
        let n = buf.len().min(self.ready.len());
        let (a, b) = self.ready.as_slices();
        let first = n.min(a.len());
        buf[..first].copy_from_slice(&a[..first]);
        buf[first..n].copy_from_slice(&b[..n - first]);
        self.ready.drain(..n);
        n
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> usize {
        self.ready.len()
    }

    /// Whether the reader has read everything up to the end of the stream.
    pub fn is_finished(&self) -> bool {
        self.ready.is_empty() && self.is_complete()
    }

    /// Whether everything up to the end of the stream has been received.
    pub fn is_complete(&self) -> bool {
        self.end.is_some_and(|end| self.next >= end)
    }

    /// State kept by a suspended connection: first byte not received in order, unread bytes, and
    /// the end if known.
    pub fn position(&self) -> (u64, Vec<u8>, Option<u64>) {
        (self.next, self.ready.iter().copied().collect(), self.end)
    }

    /// Bytes held in memory, for tests of the bound.
    pub fn buffered(&self) -> usize {
        self.ready.len() + self.ahead_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn covering(stream: u16, start: u64, end: u64) -> Validity {
        Validity { input: false, stream, valid_start: start, valid_end: end }
    }

    fn read_all(output: &mut Output) -> Vec<u8> {
        let mut out = vec![0; output.readable()];
        let n = output.read(&mut out);
        assert_eq!(n, out.len());
        out
    }

    #[test]
    fn wants_follow_the_continuation_and_lost_ones_come_first() {
        let mut o = Output::new(0, 10_000);
        assert!(o.take_want(100, Time(0)).is_none());
        o.hold(covering(0, 0, 250), b"c");
        let a = o.take_want(100, Time(0)).unwrap().0;
        let b = o.take_want(100, Time(0)).unwrap().0;
        let c = o.take_want(100, Time(0)).unwrap().0;
        assert_eq!((a.clone(), b.clone(), c.clone()), (0..100, 100..200, 200..250));
        assert!(o.take_want(100, Time(0)).is_none(), "nothing beyond the continuation");
        assert!(o.receive(100, &[1; 100], false));
        o.settle(b);
        o.settle(a);
        assert_eq!(o.take_want(100, Time(0)).unwrap().0, 0..100);
        assert!(o.receive(0, &[0; 100], false));
        assert_eq!(o.readable(), 200);
        o.settle(c);
        assert_eq!(o.take_want(30, Time(0)).unwrap().0, 200..230);
        assert_eq!(o.take_want(30, Time(0)).unwrap().0, 230..250);
    }

    #[test]
    fn a_full_buffer_stops_asking_and_reading_starts_it_again() {
        let mut o = Output::new(0, 250);
        o.hold(covering(0, 0, 1 << 40), b"c");
        let a = o.take_want(100, Time(0)).unwrap().0;
        let b = o.take_want(100, Time(0)).unwrap().0;
        assert!(o.take_want(100, Time(0)).is_none());
        assert!(o.receive(0, &[0; 100], false) && o.receive(100, &[1; 100], false));
        o.settle(a);
        o.settle(b);
        o.take_want(100, Time(0)).unwrap();
        assert!(o.take_want(100, Time(0)).is_none());
        assert_eq!(read_all(&mut o).len(), 200);
        assert!(o.wants(100, Time(0)));
    }

    #[test]
    fn skips_elide_and_ends_end() {
        let mut o = Output::new(2, 1000);
        let start = 2u64 << 48;
        o.hold(covering(2, start, start + (1 << 40)), b"c");
        o.take_want(100, Time(0)).unwrap();
        o.skip(start + 50, (1 << 40) - 50);
        assert!(o.receive(start, &[7; 50], false));
        o.settle(start..start + 100);
        assert!(!o.wants(100, Time(0)), "the rest of the region is elided");
        o.hold(covering(2, start + (1 << 40), start + (1 << 41)), b"d");
        assert_eq!(o.take_want(100, Time(0)).unwrap().0.start, start + (1 << 40));
        assert!(o.receive(start + (1 << 40), &[8; 10], true));
        assert_eq!(read_all(&mut o), [vec![7; 50], vec![8; 10]].concat());
        assert!(o.is_finished());
        o.settle(start + (1 << 40)..start + (1 << 40) + 100);
        assert!(!o.wants(100, Time(0)));
    }

    #[test]
    fn refuses_data_out_of_range_or_over_capacity() {
        let mut o = Output::new(1, 1000);
        assert!(!o.receive(5, b"x", false), "of another stream");
        let start = 1u64 << 48;
        let mut held = 0;
        for i in 0..1000 {
            held += usize::from(o.receive(start + 1 + i * 2000, &[0; 1000], false));
        }
        assert!(held * 1000 <= 1000 + SLACK && o.buffered() <= 1000 + SLACK);
    }

    proptest! {
        /// In whatever pieces, order and repetition data arrives, the reader gets each byte once
        /// and in order.
        #[test]
        fn any_pieces_make_the_whole(pieces in proptest::collection::vec((0u64..2000, 1usize..300), 1..60)) {
            let byte = |offset: u64| (offset * 31 % 251) as u8;
            let mut o = Output::new(0, 100_000);
            o.hold(covering(0, 0, 2500), b"c");
            for (offset, length) in pieces {
                let data: Vec<u8> = (offset..offset + length as u64).map(byte).collect();
                prop_assert!(o.receive(offset, &data, false));
            }
            // The rest is requested and arrives.
            o.settle(0..2500);
            while let Some((want, _)) = o.take_want(97, Time(0)) {
                let data: Vec<u8> = want.clone().map(byte).collect();
                prop_assert!(o.receive(want.start, &data, false));
                o.settle(want);
            }
            prop_assert_eq!(read_all(&mut o), (0..2500).map(byte).collect::<Vec<_>>());
            prop_assert_eq!(o.buffered(), 0);
        }
    }
}
