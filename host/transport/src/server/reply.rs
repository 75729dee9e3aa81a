//! What the application says in a response.

use rivulet_packet::{BuildError, Consumed};

/// What the application says in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer<'a> {
    /// No output; the trickle goes on.
    #[default]
    None,
    /// Output.
    Data {
        /// Its offset in the output space.
        offset: u64,
        /// At most [`super::Head::room`] bytes less what else the reply holds.
        data: &'a [u8],
        /// The stream's output ends with this data.
        end: bool,
    },
    /// The output space has no bytes from `offset` for `length` bytes.
    Skip {
        /// First byte of the region.
        offset: u64,
        /// Its length, at least 1.
        length: u64,
    },
    /// Not ready; the client asks again.
    Wait {
        /// After so many milliseconds.
        milliseconds: u16,
    },
    /// This replica does not have the content; the client asks elsewhere.
    NotMine {
        /// Why.
        code: u16,
    },
    /// Refused for good.
    Error {
        /// Why.
        code: u16,
        /// For people.
        message: &'a str,
    },
}

/// A whole reply of the application to one head. The default keeps the trickle alive and says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reply<'a> {
    /// Output, or why there is none.
    pub answer: Answer<'a>,
    /// Sealed user continuations ([`crate::seal_user`]).
    pub uconts: &'a [&'a [u8]],
    /// How far the request's input was consumed.
    pub consumed: Option<Consumed>,
    /// An address token for a later connection ([`super::Plan::address_token`]).
    pub token: Option<&'a [u8]>,
}

impl Reply<'_> {
    /// Bytes of [`super::Head::room`] that it takes apart from data.
    pub fn overhead(&self) -> usize {
        let uconts: usize = self.uconts.iter().map(|u| 2 + u.len()).sum();
        let uconts = if self.uconts.is_empty() { 0 } else { 1 + uconts };
        let answer = match self.answer {
            Answer::None | Answer::Data { .. } => 0,
            Answer::Skip { .. } => 16,
            Answer::Wait { .. } | Answer::NotMine { .. } => 2,
            Answer::Error { message, .. } => 2 + message.len(),
        };
        uconts + answer + self.consumed.map_or(0, |_| 10) + self.token.map_or(0, |t| 1 + t.len())
    }
}

/// Why a response could not be built. The other responses of the plan are not touched by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RespondError {
    /// There is no such head.
    #[error("no head of this index")]
    Index,
    /// The reply takes more than [`super::Head::room`].
    #[error("the reply takes {need} bytes of the {room} there are")]
    Room {
        /// Bytes it takes.
        need: usize,
        /// Bytes there are.
        room: usize,
    },
    /// A key went since the step.
    #[error("a key is gone")]
    Key,
    /// The format cannot say it.
    #[error(transparent)]
    Build(#[from] BuildError),
}
