//! Stateless TCP: clients that know nothing of Rivulet are answered from each of their packets alone, by any replica
//! (`docs/plain.md`).
//!
//! Nothing here allocates for a packet, reads a clock or opens a socket. A [`Segment`] is read from
//! an IP packet, [`Site::judge`] gives the verdict, and a [`Flight`] writes the answer's segments
//! into the given buffers. For a back end, [`Relay::judge`] gives a question, and [`Relay::answer`]
//! the flight. A [`Replica`] also has a [`Ring`] of soft state that may be dropped at any time.

#![forbid(unsafe_code)]

mod answer;
mod answer_bytes;
mod codec;
mod decision;
pub mod dns;
mod flight;
mod head;
mod large;
mod object_stamp;
mod objects;
mod relay;
mod say;
mod segment;
mod small;
mod soft;
mod stamp;
mod syn;
mod verdict;
mod whole;

pub use answer::{Answer, Ends, Outcome};
pub use answer_bytes::AnswerBytes;
pub use codec::{BARE_SEGMENT, Class, CookieKey, CookieKeys, Flow, MAX_ANSWER, MAX_START, Place};
pub use flight::{Cut, EVERYWHERE, Flight, MAX_PIECES, Piece, TINY, is_boundary};
pub use head::{MAX_NAME, Method, Name, Parsed, Request, begins_a_request, name, parse};
pub use large::{
    Download, Downloads, LargeStamp, MAX_LARGE, MAX_LARGE_OBJECTS, Packet, Seal, is_placed, is_under_way,
    window_number, window_of,
};
pub use object_stamp::{INDICES, MAX_AHEAD, MAX_OBJECT, NOBODYS, ObjectStamp, object_isn};
pub use objects::{Entry, Found, Object, Table, TableError};
pub use relay::{Ask, Judged, Protocol, Relay};
pub use say::refusal;
pub use segment::{Header, MAX_SACK, Options, STAMPS, Sack, SackBlock, Segment, SegmentError, Stamps};
pub use small::Site;
pub use soft::{Replica, Ring};
pub use stamp::{
    Answering, KERNEL_SPAN, MINUTES, Opened, Scale, Stamp, kernel_value, minute, next_kernel_value,
};
pub use verdict::{Asked, Cause, Handoff, Handshake, Reason, Verdict};
pub use whole::Whole;
