//! What a verdict says: which responses a request gets, under which numbers, and why one gets none (section 2.5).

use crate::cwnd::Piece;
use crate::history::ProofError;

/// Consecutive numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Numbers {
    /// The numbers in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |i| self.first.wrapping_add(i))
    }

    /// Whether a number is among both.
    pub fn overlaps(self, other: Self) -> bool {
        let within = |a: Self, b: Self| b.first.wrapping_sub(a.first) < a.count && b.count > 0;
        within(self, other) || within(other, self)
    }
}

/// What the server does with a request whose continuation and sums are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Go on in this generation. All counts zero: the trickle is terminated.
    Go(Go),
    /// Open a new generation.
    Fresh(Fresh),
    /// The connection ends.
    Close,
}

/// Going on in the same generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Go {
    /// Lost numbers to be retransmitted under K', without continuation.
    pub retransmit: Numbers,
    /// Those of them whose continuations are regenerated (condition (b)).
    pub group: Numbers,
    /// New responses.
    pub new: Numbers,
    /// The new response is issued under K' (answer to a PROBE).
    pub prime: bool,
    /// The answer carries data of the application.
    pub data: bool,
    /// Piece parameters of the new continuations.
    pub piece: Option<Piece>,
    /// Base of the new continuations' proofs.
    pub base: u32,
}

impl Go {
    /// Whether nothing at all is answered.
    pub fn is_termination(&self) -> bool {
        self.new.count == 0 && self.retransmit.count == 0
    }
}

/// Opening a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// startCwnd of its first piece.
    pub start_cwnd: u16,
    /// Its threshold.
    pub ssthresh: u16,
    /// Responses to send at once.
    pub count: u32,
    /// The first response is issued under K' and flagged as the one that opens the generation.
    pub prime: bool,
    /// The answer carries data of the application.
    pub data: bool,
    /// By REKEY: another tag than by TIMEOUT and RESTART.
    pub rekey: bool,
}

/// Why an authentic continuation and a proof with right sums give no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerdictError {
    /// The proof does not fit the continuation.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// A delayed acknowledgement where none is allowed: after a loss, at the opening, or of a number before the base.
    #[error("a delayed acknowledgement of what cannot be delayed")]
    Covers,
    /// The number lies beyond what was issued before the first loss; no honest history leads here.
    #[error("the number lies beyond the window of its loss")]
    BeyondWindow,
    /// A REKEY that has not drained its window or reports losses.
    #[error("a REKEY needs the whole window and no loss")]
    NotDrained,
    /// A probe of a request whose trickle ends.
    #[error("a probe of a trickle that ends")]
    NothingToProbe,
    /// A class that has no continuation to judge.
    #[error("a class without continuation")]
    Class,
}
