//! The model of one direction: a queue served at a rate, then a line with a delay.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::{Rng, Settings};

/// Why an item was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    Queue,
    /// Too many were under way.
    Flight,
}

/// An item that leaves the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<T> {
    /// What was offered.
    pub item: T,
    /// How often it arrives: 1; 2 if duplicated; 0 if it was lost on the way and the caller is only to
    /// take its memory back.
    pub copies: u8,
    /// The queue was beyond the ECN threshold when it came.
    pub mark: bool,
    /// When it arrives, nanoseconds; not after the time asked for.
    pub at: u64,
}

/// What happened so far, in packets where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Offered.
    pub offered: u64,
    /// Octets offered.
    pub offered_bytes: u64,
    /// Arrived; a duplicated one counts twice.
    pub delivered: u64,
    /// Dropped at the full queue.
    pub queue_drops: u64,
    /// Dropped because too many were under way.
    pub flight_drops: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Arrived twice.
    pub duplicated: u64,
    /// Held back.
    pub reordered: u64,
    /// Over the ECN threshold.
    pub marked: u64,
}

struct Queued<T> {
    item: T,
    len: u32,
    copies: u8,
    mark: bool,
    late: bool,
}

struct Flying<T> {
    at: u64,
    /// Keeps order among equal times.
    number: u64,
    copies: u8,
    mark: bool,
    item: T,
}

impl<T> PartialEq for Flying<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<T> Eq for Flying<T> {}
impl<T> PartialOrd for Flying<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Flying<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// One direction of a link, in the caller's time (nanoseconds from any epoch, never backwards).
///
/// [`offer`](Self::offer) puts an item in; [`next_time`](Self::next_time) says when to call
/// [`pop`](Self::pop), which is to be repeated until it gives nothing.
pub struct Shaper<T> {
    settings: Settings,
    rng: Rng,
    /// The first is in transmission until `done`.
    queue: VecDeque<Queued<T>>,
    done: u64,
    /// What division left over of the transmission time, in units of 1/rate ns: the rate is met exactly
    /// over many packets.
    remainder: u64,
    /// In order of arrival.
    line: VecDeque<Flying<T>>,
    last_arrival: u64,
    /// Held back ones.
    late: BinaryHeap<Reverse<Flying<T>>>,
    number: u64,
    counters: Counters,
}

impl<T> Shaper<T> {
    /// An idle link.
    #[must_use]
    pub fn new(settings: Settings, seed: u64) -> Self {
        Shaper {
            settings,
            rng: Rng::new(seed),
            queue: VecDeque::new(),
            done: 0,
            remainder: 0,
            line: VecDeque::new(),
            last_arrival: 0,
            late: BinaryHeap::new(),
            number: 0,
            counters: Counters::default(),
        }
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings: from `now` on for the rate, also of what waits; for the rest, of what is
    /// offered from now on. What is under way arrives as it would have.
    pub fn set(&mut self, now: u64, settings: Settings) {
        self.advance(now);
        if settings.rate != self.settings.rate && !self.queue.is_empty() {
            self.remainder = 0;
            // Of the packet in transmission that part is left which was left before.
            let left = self.done.saturating_sub(now);
            self.done = now.saturating_add(match (self.settings.rate, settings.rate) {
                (Some(old), Some(new)) => {
                    u64::try_from(u128::from(left) * u128::from(old) / u128::from(new)).unwrap_or(u64::MAX)
                }
                _ => 0,
            });
        }
        self.settings = settings;
        self.advance(now);
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Items that wait for transmission, the one in transmission among them.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Items inside, waiting or under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len() + self.flying()
    }

    /// True if nothing is inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn flying(&self) -> usize {
        self.line.len() + self.late.len()
    }

    /// Puts in an item of `len` octets at time `now`. If there is no room it comes back with the reason.
    pub fn offer(&mut self, now: u64, len: usize, item: T) -> Result<(), (T, DropReason)> {
        self.advance(now);
        self.counters.offered += 1;
        self.counters.offered_bytes += len as u64;
        if self.queue.len() >= self.settings.queue {
            self.counters.queue_drops += 1;
            return Err((item, DropReason::Queue));
        }
        if self.flying() >= self.settings.flight {
            self.counters.flight_drops += 1;
            return Err((item, DropReason::Flight));
        }
        let s = &self.settings;
        let mark = s.ecn.is_some_and(|threshold| self.queue.len() >= threshold);
        let lost = self.rng.chance(s.loss);
        let copies = if lost { 0 } else { 1 + u8::from(self.rng.chance(s.duplicate)) };
        let late = !lost && self.rng.chance(s.reorder);
        self.counters.marked += u64::from(mark);
        self.counters.lost += u64::from(lost);
        self.counters.duplicated += u64::from(copies == 2);
        self.counters.reordered += u64::from(late);
        let queued = Queued { item, len: u32::try_from(len).unwrap_or(u32::MAX), copies, mark, late };
        match self.settings.rate {
            None => self.take_off(now, queued),
            Some(rate) => {
                if self.queue.is_empty() {
                    let takes = self.transmission(rate, queued.len);
                    self.done = self.done.max(now).saturating_add(takes);
                }
                self.queue.push_back(queued);
            }
        }
        Ok(())
    }

    /// When [`pop`](Self::pop) may next give something; `None` if nothing is inside.
    #[must_use]
    pub fn next_time(&self) -> Option<u64> {
        let line = self.line.front().map(|f| f.at);
        let late = self.late.peek().map(|f| f.0.at);
        // Not before its time on the line at the least; what it is exactly is drawn when it gets there.
        let least = self.settings.delay.saturating_sub(self.settings.jitter);
        let queue = self.queue.front().map(|_| self.done.saturating_add(least));
        [line, late, queue].into_iter().flatten().min()
    }

    /// The next item whose time has come, in order of arrival.
    pub fn pop(&mut self, now: u64) -> Option<Delivery<T>> {
        self.advance(now);
        let late_first = match (self.line.front(), self.late.peek()) {
            (Some(line), Some(Reverse(late))) => late < line,
            (line, _) => line.is_none(),
        };
        let due = |f: &Flying<T>| f.at <= now;
        let flying = if late_first {
            if !self.late.peek().is_some_and(|f| due(&f.0)) {
                return None;
            }
            self.late.pop()?.0
        } else {
            if !self.line.front().is_some_and(due) {
                return None;
            }
            self.line.pop_front()?
        };
        self.counters.delivered += u64::from(flying.copies);
        Some(Delivery { item: flying.item, copies: flying.copies, mark: flying.mark, at: flying.at })
    }

    /// Moves what has been transmitted by `now` onto the line.
    fn advance(&mut self, now: u64) {
        while self.done <= now {
            let Some(head) = self.queue.pop_front() else { return };
            let at = self.done;
            if let Some(next) = self.queue.front() {
                let len = next.len;
                let takes = self.settings.rate.map_or(0, |rate| self.transmission(rate, len));
                self.done = self.done.saturating_add(takes);
            }
            self.take_off(at, head);
        }
    }

    /// Nanoseconds that a frame of `len` octets takes.
    fn transmission(&mut self, rate: u64, len: u32) -> u64 {
        let bits = (u64::from(len) + u64::from(self.settings.overhead)) * 8;
        let work = u128::from(bits) * 1_000_000_000 + u128::from(self.remainder);
        self.remainder = (work % u128::from(rate)) as u64;
        u64::try_from(work / u128::from(rate)).unwrap_or(u64::MAX / 4)
    }

    /// A packet leaves the queue at `at` and goes onto the line.
    fn take_off(&mut self, at: u64, packet: Queued<T>) {
        let s = &self.settings;
        let jitter = s.jitter.min(s.delay);
        let spread = if jitter == 0 { 0 } else { self.rng.up_to(2 * jitter) };
        let arrival = at.saturating_add(s.delay - jitter + spread);
        self.number += 1;
        let Queued { item, copies, mark, late, .. } = packet;
        let flying = |at, number| Flying { at, number, copies, mark, item };
        if late {
            let at = arrival.saturating_add(s.reorder_by);
            self.late.push(Reverse(flying(at, self.number)));
        } else {
            self.last_arrival = self.last_arrival.max(arrival);
            self.line.push_back(flying(self.last_arrival, self.number));
        }
    }
}

#[cfg(test)]
#[path = "shaper_tests.rs"]
mod tests;
