//! The table of downloads: a fixed number of places, four candidates for each connection; and the
//! lists of those that may have something to send, now or at a deadline.

use core::ops::Range;
use std::collections::VecDeque;

use super::entry::Entry;
use crate::codec::Flow;

/// Places that a connection can hash to.
const WAYS: usize = 4;
pub(super) const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub(super) struct Places<W> {
    entries: Box<[Option<Entry<W>>]>,
    /// Deadlines of the places, in an array of their own because all are scanned.
    deadlines: Box<[u64]>,
    next_deadline: u64,
    /// Places that may have data to send, in the order of their last segments.
    active: VecDeque<usize>,
}

impl<W: Copy> Places<W> {
    /// Makes room for `size` connections, rounded up to a power of two.
    pub(super) fn new(size: usize) -> Places<W> {
        let size = size.max(WAYS).next_power_of_two();
        Places {
            entries: (0..size).map(|_| None).collect(),
            deadlines: vec![NEVER; size].into(),
            next_deadline: NEVER,
            active: VecDeque::with_capacity(size),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.entries.len()
    }

    /// Number of groups of places; a connection hashes to one group.
    pub(super) fn groups(&self) -> usize {
        self.size() / WAYS
    }

    /// Bytes of memory.
    pub(super) fn octets(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.deadlines)
    }

    pub(super) fn get(&self, n: usize) -> Option<&Entry<W>> {
        self.entries[n].as_ref()
    }

    pub(super) fn get_mut(&mut self, n: usize) -> Option<&mut Entry<W>> {
        self.entries[n].as_mut()
    }

    /// Number of places in use.
    pub(super) fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }

    fn bucket(&self, flow: &Flow) -> Range<usize> {
        let first = (flow.spread() as usize * WAYS) & (self.entries.len() - 1);
        first..first + WAYS
    }

    /// The number of a connection's group.
    pub(super) fn group(&self, flow: &Flow) -> usize {
        self.bucket(flow).start / WAYS
    }

    pub(super) fn find(&self, flow: &Flow) -> Option<usize> {
        self.bucket(flow).find(|n| self.get(*n).is_some_and(|entry| entry.flow == *flow))
    }

    /// The place for a connection: its present one, a free one, or the one with the oldest last
    /// segment.
    pub(super) fn choose(&self, flow: &Flow) -> usize {
        let oldest = || self.bucket(flow).min_by_key(|n| self.get(*n).map_or(0, |entry| entry.used + 1));
        self.find(flow).or_else(oldest).unwrap_or(0)
    }

    pub(super) fn put(&mut self, n: usize, entry: Entry<W>) {
        self.entries[n] = Some(entry);
    }

    pub(super) fn forget(&mut self, n: usize) {
        if self.entries[n].take().is_some_and(|entry| entry.active) {
            self.active.retain(|active| *active != n);
        }
        self.deadlines[n] = NEVER;
    }

    /// Notes that a place may have something to send.
    pub(super) fn activate(&mut self, n: usize) {
        if let Some(entry) = &mut self.entries[n]
            && !core::mem::replace(&mut entry.active, true)
        {
            self.active.push_back(n);
        }
    }

    /// Of the places that may have something to send, the one whose last segment is the oldest.
    pub(super) fn first_active(&self) -> Option<usize> {
        self.active.front().copied()
    }

    /// Notes that the first active place has nothing to send.
    pub(super) fn deactivate_first(&mut self) {
        if let Some(n) = self.active.pop_front()
            && let Some(entry) = &mut self.entries[n]
        {
            entry.active = false;
        }
    }

    /// Sets the deadline of a place. If it replaces the earliest one, the next call of
    /// [`due`](Self::due) may find none.
    pub(super) fn set_deadline(&mut self, n: usize, deadline: Option<u64>) {
        let deadline = deadline.unwrap_or(NEVER);
        self.deadlines[n] = deadline;
        self.next_deadline = self.next_deadline.min(deadline);
    }

    /// A time before which no deadline is due.
    pub(super) fn next_deadline(&self) -> u64 {
        self.next_deadline
    }

    /// A place whose deadline has passed.
    pub(super) fn due(&mut self, now: u64) -> Option<usize> {
        if self.next_deadline > now {
            return None;
        }
        let due = self.deadlines.iter().position(|deadline| *deadline <= now);
        if due.is_none() {
            self.next_deadline = self.deadlines.iter().copied().min().unwrap_or(NEVER);
        }
        due
    }

    /// The numbers of all places.
    pub(super) fn numbers(&self) -> Range<usize> {
        0..self.size()
    }
}
