//! Limits what a sender sends that was made from a single acknowledgement, which a blind forger may
//! have guessed: ten segments, then as much as further acknowledgements prove, and whole windows
//! once enough of them had a right check.

use super::Sender;
use crate::large::acknowledgement::Acknowledgement;
use crate::large::stamp::CELL;

/// Segments that a sender made of one acknowledgement sends before another acknowledgement shows a client behind it. Each one that shows
/// news and is where its own timestamp says brings as many more: a client acknowledges two segments at a time, and a blind forger
/// guesses each one (`forged_acknowledgement_draws_less_than_it_costs`).
const UNPROVEN_SEGMENTS: u32 = 10;
/// The limit for an acknowledgement at an offset where no full segment ends: a forger hits such an
/// offset once in sixteen.
const UNPROVEN_NARROW_SEGMENTS: u32 = 2;
/// Limit on the bytes that one acknowledgement covers: receivers combine up to this much. The same
/// amount may be sent for it, plus two segments for a window that grows.
const MAX_STRETCH_BYTES: u32 = CELL;
/// Cells of which acknowledgements must have a right check, one after the other, before a sender made
/// of an acknowledgement sends whole windows and earns an allowance. Each check has two bits, so a
/// forger who starts from a right guess has ten more to guess, and one wrong check begins again
/// (`forger_with_a_right_guess_draws_at_most_an_allowance`). A block of the ToR is 16 cells.
pub(super) const PROOF_CELLS: u8 = 5;

/// Segments that the first acknowledgement releases.
pub(super) fn first_credit(heard: &Acknowledgement<'_>) -> u32 {
    match (heard.near, heard.full) {
        (true, true) => UNPROVEN_SEGMENTS,
        (true, false) => UNPROVEN_NARROW_SEGMENTS,
        (false, _) => 0,
    }
}

impl Sender {
    /// Whether an acknowledgement near its timestamp's cell has arrived.
    pub(crate) fn is_placed(&self) -> bool {
        self.placed
    }

    /// Raises the credit by what an acknowledgement shows that is next to the cell of its timestamp and brings news: a part of a window where
    /// full segments end, all behind what this sender sent, in another cell than the first, once the checks of [`PROOF_CELLS`] cells were
    /// right. `acked`: bytes that it acknowledges anew.
    pub(super) fn trust(&mut self, heard: &Acknowledgement<'_>, acked: u32, news: bool) {
        if !heard.near || self.credit == u32::MAX {
            return;
        }
        let full = self.full();
        let first = !core::mem::replace(&mut self.placed, true);
        if heard.cell > self.proven {
            (self.proof, self.proven) = ((self.proof + 1).min(PROOF_CELLS), heard.cell);
        }
        if self.proof == PROOF_CELLS && heard.at > self.own && heard.cell > self.began {
            (self.credit, self.doubted) = (u32::MAX, false);
        } else if heard.full && (news || first) {
            let stretch = if self.doubted { 0 } else { acked.min(MAX_STRETCH_BYTES) + 2 * full };
            let more = (UNPROVEN_SEGMENTS * full).max(stretch);
            self.credit = self.credit.saturating_add(more).min(self.cwnd().max(2 * MAX_STRETCH_BYTES));
        } else {
            self.credit = self.credit.max(UNPROVEN_NARROW_SEGMENTS * full);
        }
    }

    /// Handles a timestamp with a wrong check that acknowledges `at`, which only a forger sends. If
    /// `at` is near the client's position, the count of right checks starts again, and each
    /// acknowledgement releases ten segments.
    pub(crate) fn doubt(&mut self, at: u32) {
        if at > self.nxt || at.saturating_add(CELL) < self.una {
            return;
        }
        (self.proof, self.unpaid, self.doubted) = (0, 0, true);
        self.credit = self.credit.min(UNPROVEN_SEGMENTS * self.full());
    }

    /// Whether the credit is used up, so that only probes are sent.
    pub(super) fn is_spent(&self) -> bool {
        self.credit < self.full()
    }
}
