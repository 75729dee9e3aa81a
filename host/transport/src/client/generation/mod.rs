//! The numbers of one generation: expected, received or declared lost, and the proofs that follow.
//!
//! Numbers are stored as indices from the generation's first number. All below `decided` are final,
//! either received or declared lost (the prefix property, section 2.4).

use alloc::vec::Vec;
mod proof;

use alloc::collections::{BTreeSet, VecDeque};
use core::ops::Range;

use rivulet_packet::{SealedContinuation, TransportContinuation};

use super::rtt::Rtt;
use crate::time::Time;

/// State of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No request that yields it was sent.
    Unissued,
    /// A request that yields it was sent.
    Expected,
    /// It was received as an original.
    Received,
    /// Declared lost, finally. It may have been received under K' since.
    Lost,
}

/// One number.
#[derive(Clone, Debug)]
pub struct Slot {
    /// What became of it.
    pub state: State,
    /// Index of the number for which that request was sent.
    pub parent: u32,
    /// When that request was sent.
    pub sent_at: Time,
    /// When the response was received.
    pub received_at: Time,
    /// Its nonce under K.
    nonce: u32,
    /// Its nonce under K'.
    prime: Option<u32>,
    /// XOR of all original nonces up to this number; set when the number is decided.
    sum: u32,
    /// The response, or the request that it answers, carried an ECN mark.
    pub marked: bool,
    /// The output range requested in it.
    pub want: Option<Range<u64>>,
    /// Input sent with the request that yields it: stream and range.
    pub input: Option<(u16, Range<u64>, bool)>,
    /// The continuation in the response.
    pub sealed: Option<SealedContinuation>,
    /// The predicted continuation.
    pub predicted: Option<TransportContinuation>,
    /// The continuation was used, or the client gave it up.
    pub used: bool,
}

impl Slot {
    fn new() -> Self {
        Self {
            state: State::Unissued,
            parent: 0,
            sent_at: Time(0),
            received_at: Time(0),
            nonce: 0,
            prime: None,
            sum: 0,
            marked: false,
            want: None,
            input: None,
            sealed: None,
            predicted: None,
            used: false,
        }
    }
}

/// Classes of received response numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Awaited: the response counts.
    New,
    /// Declared lost before: only its data counts.
    Late,
    /// Received before, or never requested.
    Unknown,
}

/// The most recently sent request that was answered (RFC 8985 section 6.1).
#[derive(Clone, Copy, Debug, Default)]
struct NewestAnswered {
    sent_at: Time,
    index: u32,
    arrived_at: Time,
}

/// One generation.
#[derive(Debug)]
pub struct Generation {
    /// Tag of the generation.
    pub tag: u32,
    /// Its generation count.
    pub generation: u16,
    origin: u32,
    /// Index of `slots[0]`.
    start: u32,
    slots: VecDeque<Slot>,
    decided: u32,
    runs: VecDeque<(u32, u32)>,
    marks: VecDeque<u32>,
    ready: BTreeSet<u32>,
    newest: NewestAnswered,
    /// Index after the highest expected number.
    top: u32,
    /// Numbers declared lost since the last call that took them.
    pub declared: Vec<u32>,
}

impl Generation {
    /// Makes a generation with first number `first`.
    pub fn new(tag: u32, generation: u16, first: u32) -> Self {
        Self {
            tag,
            generation,
            origin: first,
            start: 0,
            slots: VecDeque::new(),
            decided: 0,
            runs: VecDeque::new(),
            marks: VecDeque::new(),
            ready: BTreeSet::new(),
            newest: NewestAnswered::default(),
            top: 0,
            declared: Vec::new(),
        }
    }

    /// Restores a generation of which only one continuation was kept.
    pub fn resumed(sealed: SealedContinuation) -> Self {
        let fields = &sealed.fields;
        let mut generation = Self::new(fields.tag, fields.generation, fields.number);
        let slot = Slot { state: State::Received, sealed: Some(sealed), used: true, ..Slot::new() };
        generation.slots.push_back(slot);
        (generation.decided, generation.top) = (1, 1);
        generation
    }

    /// The index of a number.
    pub fn index(&self, number: u32) -> u32 {
        number.wrapping_sub(self.origin)
    }

    /// The slot at an index, if it is still stored.
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index.checked_sub(self.start)? as usize)
    }

    /// As [`Generation::slot`], mutable.
    pub fn slot_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index.checked_sub(self.start)? as usize)
    }

    /// A request sent at `now` from `parent` yields the number at `index`.
    pub fn expect(&mut self, index: u32, parent: u32, now: Time) -> Option<&mut Slot> {
        // A window is smaller than 65,536 numbers, so a larger index cannot belong to any request.
        if index.wrapping_sub(self.start) > 1 << 17 {
            return None;
        }
        while self.start as usize + self.slots.len() <= index as usize {
            self.slots.push_back(Slot::new());
        }
        self.top = self.top.max(index + 1);
        let decided = self.decided;
        let slot = self.slot_mut(index)?;
        if slot.state != State::Unissued || index < decided {
            return None;
        }
        (slot.state, slot.parent, slot.sent_at) = (State::Expected, parent, now);
        Some(slot)
    }

    /// Whether a response with this index would still count: its number is neither received nor
    /// declared lost.
    pub fn is_open(&self, index: u32) -> bool {
        index >= self.decided && self.slot(index).is_none_or(|s| s.state == State::Unissued)
    }

    /// Classifies a response with this index.
    pub fn classify(&self, number: u32) -> Arrival {
        match self.slot(self.index(number)).map(|s| s.state) {
            Some(State::Expected) => Arrival::New,
            Some(State::Lost) => Arrival::Late,
            _ => Arrival::Unknown,
        }
    }

    /// The awaited original at `index` was received. `sealed` is its continuation, if it could be
    /// read.
    pub fn receive(
        &mut self,
        index: u32,
        nonce: u32,
        sealed: Option<SealedContinuation>,
        marked: bool,
        now: Time,
    ) {
        let Some(slot) = self.slot_mut(index) else { return };
        slot.state = State::Received;
        (slot.nonce, slot.sealed, slot.received_at) = (nonce, sealed, now);
        slot.marked = marked || sealed.is_some_and(|s| s.fields.marked);
        let sent_at = slot.sent_at;
        if (sent_at, index) >= (self.newest.sent_at, self.newest.index) || self.newest.arrived_at == Time(0) {
            self.newest = NewestAnswered { sent_at, index, arrived_at: now };
        }
    }

    /// The time that the number at `index` took, if a number requested later was received first.
    pub fn overtaken(&self, index: u32, now: Time) -> Option<u64> {
        let slot = self.slot(index)?;
        let after = (slot.sent_at, index) < (self.newest.sent_at, self.newest.index);
        after.then(|| now.since(slot.sent_at))
    }

    /// A number was received under K', through a GROUP or as the answer to a PROBE. If it
    /// `settles`, all missing numbers up to it are lost (a tail probe decides the tail), and so is
    /// its own original unless that was received. Returns whether the number's continuation can be
    /// used.
    pub fn receive_prime(
        &mut self,
        index: u32,
        nonce: u32,
        sealed: SealedContinuation,
        settles: bool,
        now: Time,
    ) -> bool {
        if settles {
            while self.decided <= index {
                let at = self.decided;
                match self.slot(at).map(|s| s.state) {
                    Some(State::Received) => {}
                    Some(_) => self.declare(at),
                    None => return false,
                }
                self.decide_one();
            }
        }
        let decided = self.decided;
        let base = self.index(sealed.fields.base);
        if base > index || (self.start > 0 && base <= self.start) {
            return false; // its proof is forgotten
        }
        let Some(slot) = self.slot_mut(index) else { return false };
        if slot.state != State::Lost || slot.prime.is_some() || index >= decided {
            return false;
        }
        (slot.prime, slot.sealed, slot.received_at, slot.used) = (Some(nonce), Some(sealed), now, false);
        self.ready.insert(index);
        true
    }

    /// Stores the first number of a generation opened under K'.
    pub fn open_prime(&mut self, nonce: u32, sealed: SealedContinuation, now: Time) {
        let Some(slot) = self.expect(0, 0, now) else { return };
        (slot.state, slot.prime, slot.sealed, slot.received_at) =
            (State::Lost, Some(nonce), Some(sealed), now);
        self.decided = 1;
        self.ready.insert(0);
    }

    fn declare(&mut self, index: u32) {
        if let Some(slot) = self.slot_mut(index) {
            slot.state = State::Lost;
            slot.sealed = None;
            self.declared.push(index);
        }
    }

    /// Advances `decided` over all final numbers.
    pub fn advance(&mut self) {
        while matches!(self.slot(self.decided).map(|s| s.state), Some(State::Received | State::Lost)) {
            self.decide_one();
        }
    }

    /// Makes the number at `decided` final.
    fn decide_one(&mut self) {
        let index = self.decided;
        let before = index.checked_sub(1).and_then(|i| self.slot(i)).map_or(0, |s| s.sum);
        let Some(slot) = self.slot(index) else { return };
        let received = slot.state == State::Received && self.may_hold(index);
        if slot.state == State::Received && !received {
            // One range too many for the proof: declare it lost, which harms only this connection.
            // The data is kept.
            self.declare(index);
        }
        let Some(slot) = self.slot_mut(index) else { return };
        slot.sum = if received { before ^ slot.nonce } else { before };
        let (usable, marked) = (received && slot.sealed.is_some() && !slot.used, received && slot.marked);
        if received {
            match self.runs.back_mut() {
                Some((_, last)) if *last + 1 == index => *last = index,
                _ => self.runs.push_back((index, index)),
            }
        }
        if usable {
            self.ready.insert(index);
        }
        if marked {
            self.marks.push_back(index);
        }
        self.decided += 1;
    }

    /// Declares losses by RFC 8985 and returns the time at which the next one is due.
    pub fn detect(&mut self, now: Time, rtt: &Rtt) -> Option<Time> {
        let (Some(srtt), true) = (rtt.smoothed(), self.newest.arrived_at != Time(0)) else { return None };
        let window = rtt.reordering_window();
        let mut due: Option<Time> = None;
        let highest = (self.decided..self.top)
            .rev()
            .find(|i| self.slot(*i).is_some_and(|s| s.state == State::Received));
        // Numbers above the highest received one wait for the tail probe.
        let highest = highest?;
        let mut above = self.newest.sent_at; // when the next issued number above was asked for
        for index in (self.decided..highest).rev() {
            let newest = (self.newest.sent_at, self.newest.index);
            let Some(slot) = self.slot(index) else { continue };
            let deadline = match slot.state {
                State::Expected if (slot.sent_at, index) < newest => {
                    slot.sent_at + rtt.latest().max(srtt) + window
                }
                // Higher numbers were received, but none of a request sent after this one.
                State::Expected => slot.sent_at + 2 * srtt + window,
                State::Unissued => above + rtt.latest().max(srtt) + window,
                State::Received | State::Lost => {
                    above = slot.sent_at;
                    continue;
                }
            };
            if slot.state == State::Expected {
                above = slot.sent_at;
            }
            if deadline <= now {
                self.declare(index);
            } else {
                due = Some(due.map_or(deadline, |d: Time| d.min(deadline)));
            }
        }
        self.advance();
        due
    }

    /// The lowest usable continuation.
    pub fn first_ready(&self) -> Option<u32> {
        self.ready.first().copied()
    }

    /// Whether the continuation at `index` is usable.
    pub fn is_ready(&self, index: u32) -> bool {
        self.ready.contains(&index)
    }

    /// The number of usable continuations.
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// Marks the continuation at `index` as used.
    pub fn spend(&mut self, index: u32) {
        self.ready.remove(&index);
        if let Some(slot) = self.slot_mut(index) {
            slot.used = true;
        }
    }

    /// The highest expected number, with its slot.
    pub fn highest_expected(&self) -> Option<(u32, &Slot)> {
        (self.decided..self.top)
            .rev()
            .filter_map(|i| self.slot(i).map(|s| (i, s)))
            .find(|(_, s)| s.state == State::Expected)
    }

    /// Whether any number is awaited.
    pub fn is_awaiting(&self) -> bool {
        self.highest_expected().is_some()
    }

    /// Whether every number so far is final.
    pub fn is_settled(&self) -> bool {
        self.decided >= self.top
    }

    /// The highest decided number with a continuation, used or not.
    pub fn latest_continuation(&self) -> Option<u32> {
        (self.start..self.decided).rev().find(|i| self.slot(*i).is_some_and(|s| s.sealed.is_some()))
    }

    /// Drops numbers that no proof and no response needs any more.
    pub fn prune(&mut self) {
        let base = |i: u32| self.slot(i).and_then(|s| s.sealed.as_ref()).map(|s| self.index(s.fields.base));
        let oldest_expected = (self.decided..self.top)
            .find_map(|i| self.slot(i).filter(|s| s.state == State::Expected))
            .map(|s| s.parent);
        let newest = self.latest_continuation();
        let needed = [self.first_ready(), oldest_expected, newest].into_iter().flatten();
        let keep = needed.map(|i| base(i).unwrap_or(i).min(i)).min().unwrap_or(self.decided);
        // A regenerated continuation has the base of the request that had it regenerated, up to one
        // window earlier.
        let keep = keep.min(self.decided).saturating_sub(1);
        let keep = keep.saturating_sub(self.decided - keep);
        while self.start < keep && self.slots.len() > 1 {
            self.slots.pop_front();
            self.start += 1;
        }
        while self.runs.front().is_some_and(|(_, last)| *last < self.start) {
            self.runs.pop_front();
        }
        while self.marks.front().is_some_and(|mark| *mark < self.start) {
            self.marks.pop_front();
        }
    }

    /// TCP payload of a response slot, from any continuation.
    pub fn slot_size(&self) -> Option<usize> {
        self.latest_continuation()
            .and_then(|i| self.slot(i)?.sealed.as_ref())
            .map(|s| usize::from(s.fields.mss))
    }

    /// Live trickles: awaited numbers and usable continuations.
    pub fn population(&self) -> usize {
        let awaited =
            (self.decided..self.top).filter(|i| self.slot(*i).is_some_and(|s| s.state == State::Expected));
        awaited.count() + self.ready.len()
    }

    /// Returns everything that was requested with numbers not received.
    #[allow(clippy::type_complexity)]
    pub fn abandon(&mut self) -> (Vec<Range<u64>>, Vec<(u16, Range<u64>, bool)>) {
        let waiting = self.slots.iter_mut().filter(|s| matches!(s.state, State::Expected | State::Lost));
        let (mut wants, mut inputs) = (Vec::new(), Vec::new());
        for slot in waiting {
            wants.extend(slot.want.take());
            inputs.extend(slot.input.take());
        }
        (wants, inputs)
    }

    /// The input sent with the request from `parent`; it is stored at the first number that the
    /// request yields.
    pub fn take_sibling_input(
        &mut self,
        index: u32,
        parent: u32,
        stream: u16,
    ) -> Option<(u16, Range<u64>, bool)> {
        for at in index.saturating_sub(16)..=index {
            let slot = self.slot_mut(at);
            if let Some(slot) =
                slot.filter(|s| s.parent == parent && s.input.as_ref().is_some_and(|i| i.0 == stream))
            {
                return slot.input.take();
            }
        }
        None
    }
}
