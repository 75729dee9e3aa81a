//! The model of one direction: a queue served at a rate, then a line with a delay.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::{Rng, Settings};

/// Why an item was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    Queue,
    /// Too many items were in flight.
    Flight,
}

/// An item at the end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<T> {
    /// The offered item.
    pub item: T,
    /// Number of copies that arrive: 1; 2 if duplicated; 0 if lost, when the caller only has to
    /// free its memory.
    pub copies: u8,
    /// Whether the queue exceeded the ECN threshold when the item was offered.
    pub mark: bool,
    /// Arrival time in nanoseconds; never after the `now` of the call.
    pub at: u64,
}

/// Counters, in packets unless named otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Offered.
    pub offered: u64,
    /// Bytes offered.
    pub offered_bytes: u64,
    /// Arrived; a duplicated packet counts twice.
    pub delivered: u64,
    /// Dropped at the full queue.
    pub queue_drops: u64,
    /// Dropped because too many packets were in flight.
    pub flight_drops: u64,
    /// Lost at random.
    pub lost: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Reordered.
    pub reordered: u64,
    /// Marked for ECN.
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
    /// Sequence number, to keep order among equal times.
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

/// One direction of a link, in the caller's time (nanoseconds from any epoch, never decreasing).
///
/// [`offer`](Self::offer) adds an item. [`next_time`](Self::next_time) returns when to call
/// [`pop`](Self::pop), repeatedly until it returns `None`.
pub struct Shaper<T> {
    settings: Settings,
    rng: Rng,
    /// The first one is in transmission until `done`.
    queue: VecDeque<Queued<T>>,
    done: u64,
    /// Remainder of the division for the transmission time, in units of 1/rate ns, so that the rate
    /// is exact over many packets.
    remainder: u64,
    /// Packets in flight in order of arrival.
    line: VecDeque<Flying<T>>,
    last_arrival: u64,
    /// Reordered packets.
    late: BinaryHeap<Reverse<Flying<T>>>,
    number: u64,
    counters: Counters,
}

impl<T> Shaper<T> {
    /// Creates an idle link.
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

    /// The current settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings. The new rate applies from `now` on, also to queued packets; the other
    /// settings apply to packets offered later. Packets in flight keep their arrival times.
    pub fn set(&mut self, now: u64, settings: Settings) {
        self.advance(now);
        if settings.rate != self.settings.rate && !self.queue.is_empty() {
            self.remainder = 0;
            // Keep the unsent fraction of the packet in transmission.
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

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Number of queued packets, including the one in transmission.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Number of packets in the queue or in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len() + self.flying()
    }

    /// Whether the link is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn flying(&self) -> usize {
        self.line.len() + self.late.len()
    }

    /// Offers an item of `len` bytes at time `now`. A dropped item is returned with the reason.
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

    /// Earliest time at which [`pop`](Self::pop) can return an item; `None` if the link is empty.
    #[must_use]
    pub fn next_time(&self) -> Option<u64> {
        let line = self.line.front().map(|f| f.at);
        let late = self.late.peek().map(|f| f.0.at);
        // At least the shortest delay from now; the exact delay is drawn later.
        let least = self.settings.delay.saturating_sub(self.settings.jitter);
        let queue = self.queue.front().map(|_| self.done.saturating_add(least));
        [line, late, queue].into_iter().flatten().min()
    }

    /// The next item that has arrived, in order.
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

    /// Puts packets in flight whose transmission has ended by `now`.
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

    /// Transmission time of a frame of `len` bytes, in nanoseconds.
    fn transmission(&mut self, rate: u64, len: u32) -> u64 {
        let bits = (u64::from(len) + u64::from(self.settings.overhead)) * 8;
        let work = u128::from(bits) * 1_000_000_000 + u128::from(self.remainder);
        self.remainder = (work % u128::from(rate)) as u64;
        u64::try_from(work / u128::from(rate)).unwrap_or(u64::MAX / 4)
    }

    /// Puts a packet from the queue in flight at time `at`.
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
