//! Limits what a sender sends that was made from a single acknowledgement, which a blind forger may
//! have guessed: ten segments until something that it sent is acknowledged, then as much as further
//! acknowledgements prove, and whole windows once enough of them had a right check.

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

    /// Raises the credit by what an acknowledgement near the cell of its timestamp shows. `acked`:
    /// bytes that it acknowledges anew; `news`: whether it shows progress.
    ///
    /// The first one gives ten segments, or two. Before data of this sender is acknowledged, only the
    /// answer to a probe gives as many again: a client whose segments were lost has nothing else to
    /// answer. Afterwards those with news where full segments end each release what they acknowledge,
    /// and everything once the checks of [`PROOF_CELLS`] cells were right and data behind what other
    /// replicas sent is acknowledged in another cell than the first.
    pub(super) fn trust(&mut self, heard: &Acknowledgement<'_>, acked: u32, news: bool) {
        if !heard.near || self.credit == u32::MAX {
            return;
        }
        let full = self.full();
        let first = !core::mem::replace(&mut self.placed, true);
        let is_answer = self.question.take_if(|at| heard.at == *at).is_some();
        if heard.cell > self.proven {
            (self.proof, self.proven) = ((self.proof + 1).min(PROOF_CELLS), heard.cell);
        }
        self.confirmed |= heard.at >= self.first_end || self.board.top() > self.own;
        if !self.confirmed {
            if first || is_answer {
                self.credit = self.credit.max(heard.first_credit() * full);
            }
        } else if self.proof == PROOF_CELLS && heard.at > self.own && heard.cell > self.began {
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
