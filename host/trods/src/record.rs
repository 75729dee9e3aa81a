//! The record: the state that another replica needs to resume a connection.

use std::fmt;
use std::net::SocketAddr;

use zeroize::Zeroizing;

use crate::digest::Digest;
use crate::head::{self, Method, Object};

mod codec;
mod seen;

pub use crate::chunked::Chunked;
pub use codec::{MAX_RECORD, MAX_STORED, RecordError};
pub use seen::{Rest, Seen};

/// Limit on the responses of a record.
pub const MAX_RESPONSES: usize = 8;
/// Limit on the bytes of requests without a response.
pub const MAX_REQUESTS: usize = 4096;
/// Limit on the bytes of a response that is stored whole.
pub const MAX_WHOLE: usize = 4096;
/// Limit on the bytes of an object's body that the checksum of a record covers: a first flight of
/// ten segments (RFC 6928).
pub const MAX_CHECK: usize = 14_600;
/// [`Response::length`] until the end of a chunked body is seen.
pub const UNKNOWN: u64 = u64::MAX;
/// Bytes that a sender may send before the first acknowledgement: ten segments (RFC 6928).
const INITIAL_WINDOW: u64 = 14_600;

/// The addresses and ports of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The service's address and port.
    pub service: SocketAddr,
}

/// Values and options of the handshake that an adopter's socket needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The client's initial sequence number.
    pub client_isn: u32,
    /// The service's initial sequence number.
    pub service_isn: u32,
    /// The client's maximum segment size; 536 if its SYN had none (RFC 9293 section 3.7.1).
    pub mss: u16,
    /// Window scales of the client and of the service, if both SYNs had one (RFC 7323).
    pub scales: Option<(u8, u8)>,
    /// Whether both ends support SACK.
    pub sack: bool,
    /// The service's TSval at `at_ms`, if both ends use timestamps: that of the SYN-ACK or of the
    /// adopter's socket.
    pub timestamp: Option<u32>,
    /// TSval of the SYN-ACK, if it differs: a client echoes no newer one until the adopter's socket
    /// sends new data.
    pub first_timestamp: Option<u32>,
    /// The bits that are equal in all of the connection's timestamps (`docs/trods-stamps.md`), if
    /// BPF programs write these. Then the fields above hold the kernel's values, which no client
    /// sees.
    pub stamps: Option<u32>,
    /// Unix time of the SYN-ACK or of the adoption, milliseconds: TSval grows by one each
    /// millisecond from then on.
    pub at_ms: u64,
}

/// How an adopter gets a response's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// By `Range`, from a server that has the same object: equal strong entity tag, length and
    /// digest.
    Object {
        /// The head of the request.
        request: Vec<u8>,
        /// The head of the response, of which the client may have a part.
        head: Vec<u8>,
        /// Number of body bytes that were seen, and their CRC-32C, which differs for another
        /// object.
        check: (u32, u32),
        /// Digest of the whole object; `None` while it is unknown.
        digest: Option<Digest>,
    },
    /// From a server that generates the same bytes again. Only bytes in the checksum were sent, so
    /// a replica that gets the same bytes up to there has everything that the client has.
    Generated {
        /// The head of the request.
        request: Vec<u8>,
        /// The head of the response, of which the client may have a part, with the inputs
        /// (`X-TRODS`).
        head: Vec<u8>,
        /// Checksum of the body's bytes that may have been sent, and the parser's state after them.
        seen: Seen,
    },
    /// From the record, which holds the whole response, head and body.
    Whole(Vec<u8>),
}

/// A response that the client may not have completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Length of head and body together, or [`UNKNOWN`].
    pub length: u64,
    /// Bytes of it that were released to the client so far. The client's acknowledgement is at most
    /// 2^32 - 1 bytes before their end.
    pub passed: u64,
    /// The server closes the connection after it.
    pub close: bool,
    /// How an adopter gets its bytes.
    pub body: Body,
}

impl Response {
    /// The object that the response carries a part of, if any. Records from a store were checked
    /// for it.
    #[must_use]
    pub fn object(&self) -> Option<Object<'_>> {
        match &self.body {
            Body::Object { head, .. } => head::response(head, Method::Get).ok()??.object,
            Body::Generated { .. } | Body::Whole(_) => None,
        }
    }
}

/// What the TLS terminator needs to continue a connection. Only the terminator reads it. It has traffic secrets, so `{:?}` shows
/// its length alone, and it is wiped from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsState(Zeroizing<Vec<u8>>);

impl TlsState {
    /// Takes the terminator's bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> TlsState {
        TlsState(Zeroizing::new(bytes))
    }

    /// The terminator's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for TlsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsState({} bytes)", self.0.len())
    }
}

/// The state of a connection as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The addresses and ports.
    pub tuple: Tuple,
    /// Values and options of the handshake.
    pub handshake: Handshake,
    /// Grows with each record of a connection; the highest version counts.
    pub version: u32,
    /// The protection ended after this record: no replica can resume the connection.
    pub unprotected: bool,
    /// Sequence number of the first byte of `responses`, or of the next response if there are none:
    /// the client has everything before it.
    pub response_at: u32,
    /// Consecutive responses that the client may not have completely.
    pub responses: Vec<Response>,
    /// Sequence number of the first byte of `requests`: every request before it is answered.
    pub request_at: u32,
    /// Unanswered data of the client that was or may have been acknowledged.
    pub requests: Vec<u8>,
    /// Whether the client sent a FIN after `requests`.
    pub client_fin: bool,
    /// The connection is the TLS terminator's. All numbers count ciphertext then, `requests` is empty, and the responses are
    /// empty [whole](Body::Whole) ones: this has the rest.
    pub tls: Option<TlsState>,
}

/// Decides which of two records between the same addresses and ports is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    isns: (u32, u32),
    version: u32,
    at_ms: u64,
}

impl Age {
    /// Whether this record is newer than `other`. For one connection, the higher version is,
    /// because each replica continues the count of the record that it found. For different
    /// connections, and for two adoptions of one version, the later handshake or adoption is.
    #[must_use]
    pub fn is_after(&self, other: &Age) -> bool {
        if self.isns == other.isns && self.version != other.version {
            return self.version > other.version;
        }
        self.at_ms > other.at_ms
    }
}

impl Age {
    /// Encodes the age for a list of connections that left (`moves`).
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
    /// The age that is compared with other records between the same addresses and ports.
    #[must_use]
    pub fn age(&self) -> Age {
        let Handshake { client_isn, service_isn, at_ms, .. } = self.handshake;
        Age { isns: (client_isn, service_isn), version: self.version, at_ms }
    }

    /// Sequence number after all bytes that were released to the client.
    #[must_use]
    pub fn passed(&self) -> u32 {
        // All responses but the last are complete; truncation to 32 bits drops multiples of 2^32.
        self.responses.iter().fold(self.response_at, |at, response| at.wrapping_add(response.passed as u32))
    }

    /// The next sequence number of the client's data; its FIN counts as one.
    #[must_use]
    pub fn acknowledged(&self) -> u32 {
        self.request_at.wrapping_add(self.requests.len() as u32).wrapping_add(u32::from(self.client_fin))
    }

    /// Whether the client probably waits for data: for a response, or for the rest of one that is
    /// longer than the initial window. A shorter one was sent at once and has arrived, unless it
    /// was lost.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.requests.is_empty() || self.responses.iter().any(|response| response.length > INITIAL_WINDOW)
    }

    /// Removes responses that end at or before `ack`, if `ack` is within the released data.
    pub fn drop_acknowledged(&mut self, ack: u32) {
        while let Some(first) = self.responses.first() {
            // Counted backwards from the end of the released data, because a response may be longer
            // than the sequence space.
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
