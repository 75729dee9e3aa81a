//! The numbers of one generation: what was expected, received and declared, and the proofs that follow from it.
//!
//! Numbers are kept as indices from the generation's first number. Everything below `decided` is final: received or declared
//! lost, never both (the prefix property, section 2.4).

mod proof;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use rivulet_packet::{SealedContinuation, TransportContinuation};

use super::rtt::Rtt;
use crate::time::Time;

/// What became of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No request was sent that yields it.
    Unissued,
    /// Its request was sent.
    Expected,
    /// It came as an original.
    Received,
    /// Declared lost, finally; it may have come under K' since.
    Lost,
}

/// One number.
#[derive(Clone, Debug)]
pub struct Slot {
    /// What became of it.
    pub state: State,
    /// Index of the number whose request yields it.
    pub parent: u32,
    /// When that request was sent.
    pub sent_at: Time,
    /// When the response came.
    pub received_at: Time,
    /// Its nonce under K.
    nonce: u32,
    /// Its nonce under K'.
    prime: Option<u32>,
    /// XOR of all original nonces up to here; set when decided.
    sum: u32,
    /// The response or the request it answers carried an ECN mark.
    pub marked: bool,
    /// The output range asked for in it.
    pub want: Option<Range<u64>>,
    /// Input sent with the request that yields it: stream and range.
    pub input: Option<(u16, Range<u64>, bool)>,
    /// The continuation it brought.
    pub sealed: Option<SealedContinuation>,
    /// What the continuation is predicted to be.
    pub predicted: Option<TransportContinuation>,
    /// The continuation was used, or given up.
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

/// What a response number turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Awaited: it counts.
    New,
    /// Declared lost before: its data counts, nothing else.
    Late,
    /// Seen before, or never asked for.
    Unknown,
}

/// The most recently sent request that was answered (RFC 8985 section 6.1).
#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    sent_at: Time,
    index: u32,
    arrived_at: Time,
}

/// One generation.
#[derive(Debug)]
pub struct Generation {
    /// Tag of the generation.
    pub tag: u32,
    /// Its count.
    pub generation: u16,
    origin: u32,
    /// Index of `slots[0]`.
    start: u32,
    slots: VecDeque<Slot>,
    decided: u32,
    runs: VecDeque<(u32, u32)>,
    marks: VecDeque<u32>,
    ready: BTreeSet<u32>,
    newest: Newest,
    /// Index of the first number not expected yet.
    top: u32,
    /// Events found since the last look: numbers declared lost.
    pub declared: Vec<u32>,
}

impl Generation {
    /// A generation whose first number is `first`.
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
            newest: Newest::default(),
            top: 0,
            declared: Vec::new(),
        }
    }

    /// A generation of which one continuation is left.
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

    /// The slot at an index, if it is kept.
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index.checked_sub(self.start)? as usize)
    }

    /// As [`Generation::slot`], to be changed.
    pub fn slot_mut(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index.checked_sub(self.start)? as usize)
    }

    /// A request was sent at `now` from `parent` that yields the number at `index`.
    pub fn expect(&mut self, index: u32, parent: u32, now: Time) -> Option<&mut Slot> {
        // A window never has 65,536 numbers: anything farther away is no answer to anything.
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

    /// Whether a response with this index would still count: it was not declared lost before it was asked for.
    pub fn is_open(&self, index: u32) -> bool {
        index >= self.decided && self.slot(index).is_none_or(|s| s.state == State::Unissued)
    }

    /// What a response with this number is.
    pub fn classify(&self, number: u32) -> Arrival {
        match self.slot(self.index(number)).map(|s| s.state) {
            Some(State::Expected) => Arrival::New,
            Some(State::Lost) => Arrival::Late,
            _ => Arrival::Unknown,
        }
    }

    /// The awaited original at `index` came. `sealed`: its continuation, if it could be read.
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
            self.newest = Newest { sent_at, index, arrived_at: now };
        }
    }

    /// How long the number at `index` took, if it came after one that was asked for later.
    pub fn overtaken(&self, index: u32, now: Time) -> Option<u64> {
        let slot = self.slot(index)?;
        let after = (slot.sent_at, index) < (self.newest.sent_at, self.newest.index);
        after.then(|| now.since(slot.sent_at))
    }

    /// A number came under K', by a GROUP or as the answer to a PROBE. All that is missing below it is lost (a tail probe
    /// settles the tail), and it is lost as an original itself, unless it came as one.
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

    /// The first number of a generation opened under K'.
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

    /// Moves `decided` on over everything that is final.
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
            // One range too many: declared lost, which harms nobody else. The data stays.
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

    /// Declares what RFC 8985 declares, and gives the time at which the next declaration is due.
    pub fn detect(&mut self, now: Time, rtt: &Rtt) -> Option<Time> {
        let (Some(srtt), true) = (rtt.smoothed(), self.newest.arrived_at != Time(0)) else { return None };
        let window = rtt.reordering_window();
        let mut due: Option<Time> = None;
        let highest = (self.decided..self.top)
            .rev()
            .find(|i| self.slot(*i).is_some_and(|s| s.state == State::Received));
        // What lies beyond the highest received waits for the tail's probe.
        let highest = highest?;
        let mut above = self.newest.sent_at; // when the next issued number above was asked for
        for index in (self.decided..highest).rev() {
            let newest = (self.newest.sent_at, self.newest.index);
            let Some(slot) = self.slot(index) else { continue };
            let deadline = match slot.state {
                State::Expected if (slot.sent_at, index) < newest => {
                    slot.sent_at + rtt.latest().max(srtt) + window
                }
                // Numbers above it came, but nothing that was sent after it.
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

    /// How many usable continuations there are.
    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    /// The continuation at `index` is used up.
    pub fn spend(&mut self, index: u32) {
        self.ready.remove(&index);
        if let Some(slot) = self.slot_mut(index) {
            slot.used = true;
        }
    }

    /// The highest expected number, and its slot.
    pub fn highest_expected(&self) -> Option<(u32, &Slot)> {
        (self.decided..self.top)
            .rev()
            .filter_map(|i| self.slot(i).map(|s| (i, s)))
            .find(|(_, s)| s.state == State::Expected)
    }

    /// Whether anything is awaited.
    pub fn is_awaiting(&self) -> bool {
        self.highest_expected().is_some()
    }

    /// Whether every number so far is final.
    pub fn is_settled(&self) -> bool {
        self.decided >= self.top
    }

    /// The highest decided number whose continuation is kept, used or not.
    pub fn latest_continuation(&self) -> Option<u32> {
        (self.start..self.decided).rev().find(|i| self.slot(*i).is_some_and(|s| s.sealed.is_some()))
    }

    /// Forgets numbers that no proof and no response will need again.
    pub fn prune(&mut self) {
        let base = |i: u32| self.slot(i).and_then(|s| s.sealed.as_ref()).map(|s| self.index(s.fields.base));
        let oldest_expected = (self.decided..self.top)
            .find_map(|i| self.slot(i).filter(|s| s.state == State::Expected))
            .map(|s| s.parent);
        let newest = self.latest_continuation();
        let needed = [self.first_ready(), oldest_expected, newest].into_iter().flatten();
        let keep = needed.map(|i| base(i).unwrap_or(i).min(i)).min().unwrap_or(self.decided);
        // A regenerated continuation goes back to the base of the request that had it regenerated: one window more.
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

    /// Trickles alive: awaited ones and usable continuations.
    pub fn population(&self) -> usize {
        let awaited =
            (self.decided..self.top).filter(|i| self.slot(*i).is_some_and(|s| s.state == State::Expected));
        awaited.count() + self.ready.len()
    }

    /// Gives back everything that was asked for with numbers that have not come.
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

    /// The input sent with the request from `parent`, which stands at the first number that it yields.
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
