//! The result of a verdict: the responses to a request with their numbers, or the reason for none
//! (section 2.5).

use crate::cwnd::Piece;
use crate::history::ProofError;

/// A run of consecutive response numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The first number.
    pub first: u32,
    /// How many numbers.
    pub count: u32,
}

impl Numbers {
    /// The numbers in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |i| self.first.wrapping_add(i))
    }

    /// Whether the two runs share a number.
    pub fn overlaps(self, other: Self) -> bool {
        let within = |a: Self, b: Self| b.first.wrapping_sub(a.first) < a.count && b.count > 0;
        within(self, other) || within(other, self)
    }
}

/// The server's decision about a request with a valid seal and valid nonce sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Continue in this generation. All counts zero: the trickle terminates.
    Go(Go),
    /// Open a new generation.
    Fresh(Fresh),
    /// Close the connection.
    Close,
}

/// How a connection continues in its generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Go {
    /// Lost numbers to be retransmitted under K', without a continuation.
    pub retransmit: Numbers,
    /// Those of the lost numbers for which continuations are regenerated (condition (b)).
    pub group: Numbers,
    /// Numbers of the new responses.
    pub new: Numbers,
    /// The new response is issued under K', because it answers a PROBE.
    pub prime: bool,
    /// The responses carry data of the application.
    pub data: bool,
    /// The piece that goes into the new continuations.
    pub piece: Option<Piece>,
    /// The base for the proofs of the new continuations.
    pub base: u32,
}

impl Go {
    /// Whether there is no response at all.
    pub fn is_termination(&self) -> bool {
        self.new.count == 0 && self.retransmit.count == 0
    }
}

/// How a new generation opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fresh {
    /// Window (startCwnd) of its first piece.
    pub start_cwnd: u16,
    /// Slow-start threshold of its first piece.
    pub ssthresh: u16,
    /// Number of responses to send now.
    pub count: u32,
    /// The first response is issued under K' and marked as the opening one.
    pub prime: bool,
    /// The responses carry data of the application.
    pub data: bool,
    /// Opened by a REKEY, which derives another tag than a TIMEOUT or RESTART.
    pub rekey: bool,
}

/// Why an authentic continuation with correct sums gets no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerdictError {
    /// The proof does not match the continuation.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// A delayed acknowledgement where none is allowed: after a loss, at the opening, or for a
    /// number before the base.
    #[error("a delayed acknowledgement where none is allowed")]
    Covers,
    /// The number is larger than any issued before the first loss; no correct history leads here.
    #[error("the number lies beyond the window of its loss")]
    BeyondWindow,
    /// A REKEY while numbers of its window are outstanding, or with losses.
    #[error("a REKEY needs the whole window and no loss")]
    NotDrained,
    /// A PROBE for a trickle that terminates.
    #[error("a PROBE for a trickle that terminates")]
    NothingToProbe,
    /// A request class without a continuation.
    #[error("the request class has no continuation")]
    Class,
}
