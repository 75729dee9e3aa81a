//! Whether a server has the object that a client was being sent: strong entity tag, coding, length and place.

use super::Stop;
use crate::head::{self, Method};
use crate::record::Response;

/// Why a connection was not gone on with: its client gets a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The server has no such object, or not by ranges: its status.
    #[error("the server says {0}")]
    Status(u16),
    /// Another entity tag, or none that is strong.
    #[error("another entity tag")]
    Tag,
    /// Another length, or not the part that was asked for.
    #[error("another length")]
    Length,
    /// Another content coding.
    #[error("another coding")]
    Coding,
    /// The same by all its head says, with other octets.
    #[error("other octets")]
    Content,
    /// What the server says is no HTTP.
    #[error("no HTTP")]
    Malformed,
    /// The server is not there.
    #[error("no server")]
    Unreachable,
}

/// Whether the head at the beginning of these octets brings `length` octets from `from` on of the same body; its length.
pub(super) fn same(response: &Response, octets: &[u8], from: u64, length: u64) -> Result<usize, Stop> {
    let head = match head::response(octets, Method::Get) {
        Ok(Some(head)) => head,
        Ok(None) => return Err(Stop::Waits),
        Err(_) => return Err(Stop::Refused(Refusal::Malformed)),
    };
    let want = response.object().ok_or(Stop::Refused(Refusal::Malformed))?;
    if head.status != 206 {
        return Err(Stop::Refused(Refusal::Status(head.status)));
    }
    let refusal = match head.object {
        None => Refusal::Tag,
        Some(got) if got.etag != want.etag => Refusal::Tag,
        Some(got) if got.encoding != want.encoding => Refusal::Coding,
        Some(got) if (got.first, got.length, got.total) != (want.first + from, length, want.total) => {
            Refusal::Length
        }
        Some(_) => return Ok(head.length),
    };
    Err(Stop::Refused(refusal))
}
