//! Why a request is refused. Each reason has a name for the counters.

use rivulet_packet::WireError;

use super::Answer;
use crate::ucont::UcontError;
use crate::verdict::VerdictError;

/// A request that is dropped without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It cannot be parsed.
    #[error("malformed: {0}")]
    Wire(#[from] WireError),
    /// The ring has no usable key, or lacks the one that sealed the continuation.
    #[error("no key of the seal epoch")]
    SealEpoch,
    /// The nonce epoch of the connection is withdrawn; the client must send a RESTART.
    #[error("no key of the nonce epoch")]
    NonceEpoch,
    /// The continuation was changed, or belongs to another client, address or service.
    #[error("the continuation is not sealed for this client")]
    Forged,
    /// It is older than the horizon, or from the future; the client must send a RESTART.
    #[error("the continuation is not fresh")]
    Stale,
    /// A nonce sum of the proof is wrong.
    #[error("a sum of the proof is wrong")]
    Sum,
    /// The proof leads to no decision.
    #[error("{0}")]
    Verdict(#[from] VerdictError),
    /// Delayed acknowledgements are switched off here.
    #[error("delayed acknowledgements are not accepted")]
    Delayed,
    /// The SYN is smaller than the smallest answer; answering would amplify it.
    #[error("a SYN too small to be answered")]
    TooSmall,
    /// The number, or this use of it, was used before within the horizon.
    #[error("the request was used before")]
    Replayed,
    /// The cookie that completes a bare SYN is wrong.
    #[error("the cookie is wrong")]
    Cookie,
    /// The client claimed a longer round trip when its window's clock was set than it has now, and
    /// ignored the request to REKEY.
    #[error("the clock of the window is more than twice as fast as the client's round trips")]
    Clock,
    /// A user continuation is invalid, or input does not match its input continuation.
    #[error("a user continuation of another connection, or input at an offset that it does not cover")]
    User,
}

impl Refusal {
    /// All names, for counters.
    pub const NAMES: [&'static str; 14] = [
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
        "clock",
        "user",
        "verdict",
    ];

    /// The answer to a request for content (a want) whose continuation was refused. If a key is
    /// missing here, another replica may already have it, so the client tries the others. After any
    /// other refusal a retry is useless.
    #[must_use]
    pub fn answer(&self) -> Answer<'static> {
        match self {
            Self::SealEpoch => Answer::NotMine { code: 503 },
            _ => Answer::Error { code: 400, message: "a continuation that is not of this connection" },
        }
    }

    /// The name to count this reason under.
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
            Self::Clock => "clock",
            Self::User => "user",
        }
    }
}

impl From<UcontError> for Refusal {
    fn from(e: UcontError) -> Refusal {
        if e == UcontError::Epoch { Refusal::SealEpoch } else { Refusal::User }
    }
}
