//! The segments of the reference TCP, as values.

use crate::Nanos;
use rivulet_packet::Ecn;

/// Bytes of headers of a segment with timestamps: IPv4 20, TCP 32.
pub const HEADERS: u32 = 52;

/// A segment of the reference TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub kind: Kind,
    /// The ECN field of its packet.
    pub ecn: Ecn,
    /// Timestamp: when this transmission left, or on acknowledgements that of the segment that caused it.
    pub timestamp: Nanos,
}

/// Kinds of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Opens.
    Syn,
    /// Answers a SYN.
    SynAck,
    /// The client's request; it ends the handshake too.
    Request,
    /// One segment of data.
    Data {
        /// Its number.
        seq: u64,
        /// It is the last one.
        last: bool,
    },
    /// An acknowledgement.
    Ack(Ack),
}

/// What an acknowledgement says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ack {
    /// All segments below arrived.
    pub next: u64,
    /// Up to three ranges `[from, to)` beyond, the latest first; an empty one ends them.
    pub sacks: [(u64, u64); 3],
    /// The segment that came twice (RFC 2883).
    pub duplicate: Option<u64>,
    /// A mark came (RFC 3168).
    pub marked: bool,
}
