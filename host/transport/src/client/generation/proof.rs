//! The proofs of a generation: how its history fits into sixteen entries (section 2.4).

use arrayvec::ArrayVec;
use rivulet_packet::{EntryKind, MAX_ENTRIES, ProofEntry};

use super::{Generation, State};
use crate::verdict::{piece_of, settled};

/// Ranges of originals in a proof. One entry is reserved for a mark, one for regenerated numbers.
const MAX_RUNS: usize = MAX_ENTRIES - 2;
/// Ranges reserved for numbers not received yet.
const SPARE: usize = 3;
/// Ranges spent on trickles that terminate, where there are more gaps than ranges.
const FEW: usize = 3;

impl Generation {
    /// Makes the proof for the request that answers the number at `index`.
    pub fn proof(&self, index: u32) -> ArrayVec<ProofEntry, MAX_ENTRIES> {
        let mut out = ArrayVec::new();
        let Some(slot) = self.slot(index) else { return out };
        let Some(sealed) = &slot.sealed else { return out };
        let base = self.index(sealed.fields.base);
        let offset = |i: u32| i.wrapping_sub(base) as u16;
        let from = self.runs.partition_point(|(_, last)| *last < base);
        for &(first, last) in self.runs.iter().skip(from).take_while(|(first, _)| *first <= index) {
            let (first, last) = (first.max(base), last.min(index));
            if last == index {
                self.push_prime_run(&mut out, base, index.checked_sub(1).filter(|_| first == index));
            }
            let before = first.checked_sub(1).and_then(|i| self.slot(i)).map_or(0, |s| s.sum);
            let sum = self.slot(last).map_or(0, |s| s.sum) ^ before;
            let _ = out.try_push(ProofEntry::range(EntryKind::Original, offset(first), offset(last), sum));
        }
        if slot.state == State::Lost {
            self.push_prime_run(&mut out, base, Some(index));
        }
        // The first mark in the piece. The window was reduced for marks before the piece already;
        // such a mark would hide a later one.
        let piece = base.wrapping_add(settled(&sealed.fields));
        if let Some(mark) = self.marks.iter().find(|m| **m >= piece && **m <= index) {
            let _ = out.try_push(ProofEntry::mark(offset(*mark)));
        }
        out
    }

    /// Adds the run of regenerated numbers that ends at `last`. The request that had them
    /// regenerated accounts for the losses before them.
    fn push_prime_run(&self, out: &mut ArrayVec<ProofEntry, MAX_ENTRIES>, base: u32, last: Option<u32>) {
        let Some(last) = last else { return };
        let prime = |i: u32| self.slot(i).and_then(|s| s.prime.filter(|_| s.state == State::Lost));
        let (mut first, mut sum) = (last + 1, 0);
        while first > base {
            let Some(nonce) = prime(first - 1) else { break };
            (first, sum) = (first - 1, sum ^ nonce);
        }
        if first <= last {
            let (from, to) = (first.wrapping_sub(base) as u16, last.wrapping_sub(base) as u16);
            let _ = out.try_push(ProofEntry::range(EntryKind::Retransmitted, from, to, sum));
        }
    }

    /// Whether a proof that starts at this number's base has room for the range that the number
    /// would begin. If there are more gaps than ranges, the remaining ranges are spread over the
    /// rest of the window. Each received number after a run of losses has a share of the run
    /// regenerated, so a window that lost every second packet recovers in many places at once, and
    /// its end always has a range.
    pub(super) fn may_hold(&self, index: u32) -> bool {
        let Some(&(_, last)) = self.runs.back() else { return true };
        if last + 1 == index {
            return true;
        }
        let Some(fields) = self.slot(index).and_then(|s| s.sealed.as_ref()).map(|s| &s.fields) else {
            return false;
        };
        let base = self.index(fields.base);
        let have = self.runs.iter().rev().take_while(|(_, last)| *last >= base).count();
        let free = MAX_RUNS.saturating_sub(have);
        if free == 0 {
            return false;
        }
        // Received numbers. The gap before them was declared lost, so they are not just reordered.
        let came = |i: u32| self.slot(i).is_some_and(|s| s.state == State::Received);
        let begins = (index..self.top).filter(|i| came(*i) && (*i == index || !came(i - 1)));
        if begins.take(free).count() + SPARE <= free {
            return true;
        }
        let piece = base.wrapping_add(settled(fields));
        let whole = self.runs.iter().rev().find(|(first, last)| *first <= piece && piece <= *last);
        let loss = whole.map_or(piece, |(_, last)| last + 1);
        let (piece, before) = (piece_of(fields), self.origin.wrapping_add(loss).wrapping_sub(1));
        let end = loss.saturating_add(piece.cwnd(before));
        if index < end.saturating_sub(piece.after_loss(before)) {
            // These trickles terminate. The first few have the first losses retransmitted; the
            // others do not deserve a range.
            return self.runs.iter().rev().take_while(|(first, _)| *first > loss).count() < FEW;
        }
        let distance = end.saturating_sub(index) / free as u32;
        index - last > distance || (index..index.saturating_add(distance)).all(came)
    }
}
