//! Heads of HTTP/1 (RFC 9112), and what RFC 9110 has a server do with their targets, ranges and conditions.
//!
//! `rivulet serve`, stateless TCP and TRODS read requests with these functions, so that all understand the same. A head is
//! read line by line: [`RequestLine::parse`] first, then [`Field::parse`] for each line, of which [`Framing`] keeps what
//! decides where the request ends and whether the connection stays open. What a server does not serve is its own policy.
//!
//! Nothing here allocates but [`Chunks`], which keeps the beginning of a line.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod chunks;
mod condition;
mod framing;
mod line;
mod range;
mod target;

pub use chunks::Chunks;
pub use condition::{Conditions, EntityTag, Selection, entity_tags, matches_any, matches_if_range};
pub use framing::{Framing, MAX_IGNORED_BODY};
pub use line::{Field, Method, RequestLine, StatusLine, is_token};
pub use range::RangeSpec;
pub use target::{EscapedPath, MAX_PATH, Path, Target};

/// A request is refused with this status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub u16);

/// The request breaks a rule of RFC 9112 or RFC 9110.
pub(crate) const BAD_REQUEST: Refused = Refused(400);
