//! Limits what a sender sends that was made from a single acknowledgement, which a blind forger may
//! have guessed: ten segments, then as much as further acknowledgements prove, and whole windows
//! once enough of them had a right check.

use super::Sender;
use crate::large::acknowledgement::{
    Acknowledgement, PROOF_CELLS, UNPROVEN_NARROW_SEGMENTS, UNPROVEN_SEGMENTS,
};
use crate::large::stamp::CELL;

/// Limit on the bytes that one acknowledgement covers: receivers combine up to this much. The same
/// amount may be sent for it, plus two segments for a window that grows.
const MAX_STRETCH_BYTES: u32 = CELL;
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
