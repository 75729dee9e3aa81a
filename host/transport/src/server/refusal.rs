//! Why a request is refused: each reason has a name to be counted by.

use rivulet_packet::WireError;

use super::Answer;
use crate::ucont::UcontError;
use crate::verdict::VerdictError;

/// A request that is dropped without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not parse.
    #[error("malformed: {0}")]
    Wire(#[from] WireError),
    /// The ring has no usable key, or not the one that sealed the continuation.
    #[error("no key of the seal epoch")]
    SealEpoch,
    /// The nonce epoch of the connection is gone; RESTART is the way out.
    #[error("no key of the nonce epoch")]
    NonceEpoch,
    /// The continuation was changed, or is another client's, address's or service's.
    #[error("the continuation is not sealed for this client")]
    Forged,
    /// Older than the horizon, or from the future; RESTART is the way out.
    #[error("the continuation is not fresh")]
    Stale,
    /// A sum of the proof is wrong.
    #[error("a sum of the proof is wrong")]
    Sum,
    /// The proof gives no verdict.
    #[error("{0}")]
    Verdict(#[from] VerdictError),
    /// Delayed acknowledgements are switched off here.
    #[error("delayed acknowledgements are not accepted")]
    Delayed,
    /// A SYN that is too small for any answer of at most its size.
    #[error("a SYN too small to be answered")]
    TooSmall,
    /// The number, or this use of it, was used before within the horizon.
    #[error("used before")]
    Replayed,
    /// The cookie that completes a bare opening is wrong.
    #[error("the cookie is wrong")]
    Cookie,
    /// A user continuation, or input that does not belong to its input continuation.
    #[error("a user continuation of another connection, or input at an offset it is not good for")]
    User,
}

impl Refusal {
    /// Every name, for counters.
    pub const NAMES: [&'static str; 13] = [
        "malformed",
        "seal_epoch",
        "nonce_epoch",
        "forged",
        "stale",
        "sum",
        "proof",
        "covers",
        "too_small",
        "replayed",
        "cookie",
        "user",
        "verdict",
    ];

    /// What an application says to a want whose continuation was refused. A key that is not here may have reached the other
    /// replicas before: the client asks them. Nothing else gets better by asking again.
    #[must_use]
    pub fn answer(&self) -> Answer<'static> {
        match self {
            Self::SealEpoch => Answer::NotMine { code: 503 },
            _ => Answer::Error { code: 400, message: "a continuation that is not of this connection" },
        }
    }

    /// The name to count it under.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Wire(_) => "malformed",
            Self::SealEpoch => "seal_epoch",
            Self::NonceEpoch => "nonce_epoch",
            Self::Forged => "forged",
            Self::Stale => "stale",
            Self::Sum => "sum",
            Self::Verdict(VerdictError::Proof(_)) => "proof",
            Self::Verdict(VerdictError::Covers) | Self::Delayed => "covers",
            Self::Verdict(_) => "verdict",
            Self::TooSmall => "too_small",
            Self::Replayed => "replayed",
            Self::Cookie => "cookie",
            Self::User => "user",
        }
    }
}

impl From<UcontError> for Refusal {
    fn from(e: UcontError) -> Refusal {
        if e == UcontError::Epoch { Refusal::SealEpoch } else { Refusal::User }
    }
}
