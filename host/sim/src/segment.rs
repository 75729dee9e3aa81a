//! The segments of the reference TCP, as values.

use crate::Nanos;
use rivulet_packet::Ecn;

/// Bytes of headers of a segment with timestamps: IPv4 20, TCP 32.
pub const HEADERS: u32 = 52;
/// Payload bytes of a full segment of the reference TCP, which makes a full Ethernet frame.
pub const MSS: u32 = 1500 - HEADERS;

/// A segment of the reference TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub kind: Kind,
    /// The ECN field of its packet.
    pub ecn: Ecn,
    /// Timestamp: sending time of this transmission, or in an acknowledgement that of the segment
    /// that caused it.
    pub timestamp: Nanos,
}

/// Kinds of segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Opens the connection.
    Syn,
    /// Answers the SYN.
    SynAck,
    /// The client's request, which also completes the handshake.
    Request,
    /// One segment of data.
    Data {
        /// Its number.
        seq: u64,
        /// Whether it is the last segment.
        last: bool,
    },
    /// An acknowledgement.
    Ack(Ack),
}

/// Content of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ack {
    /// All segments below this one arrived.
    pub next: u64,
    /// Up to three ranges `[from, to)` above `next`, the latest first; an empty one ends the list.
    pub sacks: [(u64, u64); 3],
    /// A segment that arrived twice (RFC 2883).
    pub duplicate: Option<u64>,
    /// A packet carried an ECN mark (RFC 3168).
    pub marked: bool,
}
