//! The state that another replica needs to resume a connection.

use std::net::SocketAddr;

use crate::digest::Digest;
use crate::head::{self, Method, Object};

mod codec;
mod seen;

pub use crate::chunked::Chunked;
pub use codec::{MAX_RECORD, RecordError};
pub use seen::{Rest, Seen};

/// Responses of a record.
pub const MAX_RESPONSES: usize = 8;
/// Most bytes of requests without a response.
pub const MAX_REQUESTS: usize = 4096;
/// Most bytes of a response that is stored whole.
pub const MAX_WHOLE: usize = 4096;
/// Most bytes of an object's body that the checksum of a record covers: a first flight of ten
/// segments (RFC 6928).
pub const MAX_CHECK: usize = 14_600;
/// [`Response::length`] while the end of a chunked body has not been seen.
pub const UNKNOWN: u64 = u64::MAX;
/// Bytes that a sender sends before the first acknowledgement: ten segments (RFC 6928).
const INITIAL_WINDOW: u64 = 14_600;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The service's.
    pub service: SocketAddr,
}

/// Options that both ends agreed on in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The client's initial sequence number.
    pub client_isn: u32,
    /// The service's.
    pub service_isn: u32,
    /// The client's maximum segment size; 536 where its SYN had none (RFC 9293 section 3.7.1).
    pub mss: u16,
    /// Shifts of the windows, the client's and ours, if both SYNs had one (RFC 7323).
    pub scales: Option<(u8, u8)>,
    /// Whether both take SACK blocks.
    pub sack: bool,
    /// TSval at `at_ms`, if both ends use timestamps: of the SYN-ACK, or of the socket of the
    /// adopter.
    pub timestamp: Option<u32>,
    /// TSval of the SYN-ACK where that is another one: a client echoes no newer one before something new comes from the socket
    /// that goes on.
    pub first_timestamp: Option<u32>,
    /// The bits that all timestamps of the programs share (`docs/trods-stamps.md`), if they write
    /// them: then the fields above are the kernel's, which no client sees.
    pub stamps: Option<u32>,
    /// Time of the SYN-ACK or of the adoption, milliseconds of Unix time: TSval grows by one each
    /// millisecond from then on.
    pub at_ms: u64,
}

/// Source of a response's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// From an object, by `Range`, of a server that has the same object: by strong entity tag, length and digest.
    Object {
        /// The head of the request.
        request: Vec<u8>,
        /// The head of the response, which the client may have in part.
        head: Vec<u8>,
        /// Bytes of the body that were seen, and their CRC-32C, which differs for another object.
        check: (u32, u32),
        /// Digest of the whole object on that server; `None` while it is unknown.
        digest: Option<Digest>,
    },
    /// From a server that generates the same bytes again. Only bytes that were seen were let pass,
    /// so a replica that gets the same bytes up to there has everything that the client has.
    Generated {
        /// The head of the request.
        request: Vec<u8>,
        /// The head of the response, which the client may have in part, with the inputs (`X-TRODS`).
        head: Vec<u8>,
        /// The body up to where it was let pass.
        seen: Seen,
    },
    /// The record holds the whole response, head and body.
    Whole(Vec<u8>),
}

/// A response that the client is not known to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Bytes of head and body, or [`UNKNOWN`].
    pub length: u64,
    /// The largest number of bytes that were let pass. The client's acknowledgement lies at most 2^32 - 1 bytes
    /// before it.
    pub passed: u64,
    /// The server closes behind it.
    pub close: bool,
    /// Source of its bytes.
    pub body: Body,
}

impl Response {
    /// The part of an object that it carries, if it is one's. Those that were read from a store have it.
    #[must_use]
    pub fn object(&self) -> Option<Object<'_>> {
        match &self.body {
            Body::Object { head, .. } => head::response(head, Method::Get).ok()??.object,
            Body::Generated { .. } | Body::Whole(_) => None,
        }
    }
}

/// A connection as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The two ends.
    pub tuple: Tuple,
    /// Options agreed on in the handshake.
    pub handshake: Handshake,
    /// Grows with each record of a connection: the highest is the one that counts.
    pub version: u32,
    /// The limits were removed after this record: no replica can resume the connection.
    pub unprotected: bool,
    /// Sequence number of the first byte of `responses`, or, without any, of the next response: the
    /// client has everything before.
    pub response_at: u32,
    /// Responses that the client is not known to have, one behind the other.
    pub responses: Vec<Response>,
    /// Sequence number of the first byte of `requests`: everything before is answered.
    pub request_at: u32,
    /// Data of the client that was or may have been acknowledged and is not answered yet.
    pub requests: Vec<u8>,
    /// Whether the client sent FIN after `requests`.
    pub client_fin: bool,
}

/// Which of two records between the same ends counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    isns: (u32, u32),
    version: u32,
    at_ms: u64,
}

impl Age {
    /// Whether this record takes precedence over another one. Of the same connection the higher
    /// version does, because each replica counts on from the version that it found. Otherwise, and
    /// between two adoptions of one version, the later handshake or adoption does.
    #[must_use]
    pub fn is_after(&self, other: &Age) -> bool {
        if self.isns == other.isns && self.version != other.version {
            return self.version > other.version;
        }
        self.at_ms > other.at_ms
    }
}

impl Age {
    /// Encodes the age for a list of leaving connections (`moves`).
    #[must_use]
    pub fn encode(&self) -> [u8; 20] {
        let mut octets = [0; 20];
        for (to, word) in octets.chunks_exact_mut(4).zip([self.isns.0, self.isns.1, self.version]) {
            to.copy_from_slice(&word.to_be_bytes());
        }
        octets[12..].copy_from_slice(&self.at_ms.to_be_bytes());
        octets
    }

    /// Decodes the result of [`Age::encode`].
    #[must_use]
    pub fn decode(octets: &[u8; 20]) -> Age {
        let word =
            |at: usize| u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]]);
        let at_ms = u64::from(word(12)) << 32 | u64::from(word(16));
        Age { isns: (word(0), word(4)), version: word(8), at_ms }
    }
}

impl Record {
    /// The age by which records of connections between the same ends are compared.
    #[must_use]
    pub fn age(&self) -> Age {
        let Handshake { client_isn, service_isn, at_ms, .. } = self.handshake;
        Age { isns: (client_isn, service_isn), version: self.version, at_ms }
    }

    /// Sequence number behind all that was let pass.
    #[must_use]
    pub fn passed(&self) -> u32 {
        // All but the last are whole, whatever is cut away stands for multiples of 2^32.
        self.responses.iter().fold(self.response_at, |at, response| at.wrapping_add(response.passed as u32))
    }

    /// The next sequence number that the client may send something new at, its FIN counted.
    #[must_use]
    pub fn acknowledged(&self) -> u32 {
        self.request_at.wrapping_add(self.requests.len() as u32).wrapping_add(u32::from(self.client_fin))
    }

    /// Whether its client is likely to wait for something: for an answer, or for the rest of one that was longer than the initial
    /// window. Any other left at once, and has arrived but for bad luck.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.requests.is_empty() || self.responses.iter().any(|response| response.length > INITIAL_WINDOW)
    }

    /// Removes responses that end at or before `ack`, if that lies between the beginning and the
    /// end of the data that was let pass.
    pub fn drop_acknowledged(&mut self, ack: u32) {
        while let Some(first) = self.responses.first() {
            // Counted back from the end of the data that was let pass, because a response may be
            // longer than the sequence space.
            let later: u32 =
                self.responses[1..].iter().fold(0, |n, response| n.wrapping_add(response.passed as u32));
            let first_end = self.passed().wrapping_sub(later);
            let is_had = ack.wrapping_sub(first_end) <= later;
            if first.passed < first.length || !is_had {
                break;
            }
            self.response_at = first_end;
            self.responses.remove(0);
        }
    }
}
