//! The reference: TCP with Reno's congestion control (RFC 5681, RFC 3465), SACK recovery (RFC 6675), RACK-TLP loss
//! detection (RFC 8985) and the timeout of RFC 6298, initial window 10 (RFC 6928), no delayed acknowledgements unless
//! asked for.
//!
//! Sequence numbers count segments, not bytes: every segment is full but the last.

mod client;
mod rack;
mod receiver;
mod rto;
mod sender;
mod server;

pub use client::Client;
pub use receiver::Receiver;
pub use rto::Rto;
pub use sender::Sender;
pub use server::Server;

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
