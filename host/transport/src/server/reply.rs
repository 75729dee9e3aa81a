//! The application's part of a response.

use rivulet_packet::{BuildError, Consumed};

/// The application's answer to a want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answer<'a> {
    /// No output; the trickle continues.
    #[default]
    None,
    /// Output.
    Data {
        /// Offset in the output space.
        offset: u64,
        /// At most [`super::Head::room`] bytes, less the other parts of the reply.
        data: &'a [u8],
        /// The stream's output ends with this data.
        end: bool,
    },
    /// The output space has no content in this region.
    Skip {
        /// First byte of the region.
        offset: u64,
        /// Length of the region, at least 1.
        length: u64,
    },
    /// Not ready; the client repeats the want.
    Wait {
        /// Milliseconds until the client repeats it.
        milliseconds: u16,
    },
    /// This replica does not have the content; the client repeats the want to reach another one.
    NotMine {
        /// Why.
        code: u16,
    },
    /// Refused permanently.
    Error {
        /// Why.
        code: u16,
        /// A text for people.
        message: &'a str,
    },
}

/// The application's reply to one head. The default keeps the trickle alive without content.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reply<'a> {
    /// Output, or why there is none.
    pub answer: Answer<'a>,
    /// Sealed user continuations ([`crate::seal_user`]).
    pub uconts: &'a [&'a [u8]],
    /// Offset up to which the request's input was consumed.
    pub consumed: Option<Consumed>,
    /// An address token for a later connection ([`super::Plan::address_token`]).
    pub token: Option<&'a [u8]>,
}

impl Reply<'_> {
    /// Bytes of [`super::Head::room`] that the reply takes, apart from data.
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

/// Why a response cannot be built. The plan's other responses are unaffected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RespondError {
    /// The plan has no such head.
    #[error("the plan has no head with this index")]
    Index,
    /// The reply is larger than [`super::Head::room`].
    #[error("the reply takes {need} bytes, {room} are available")]
    Room {
        /// Bytes needed.
        need: usize,
        /// Bytes available.
        room: usize,
    },
    /// A key was withdrawn after the step.
    #[error("a key was withdrawn")]
    Key,
    /// A value is outside the range of its field in the wire format.
    #[error(transparent)]
    Build(#[from] BuildError),
}
