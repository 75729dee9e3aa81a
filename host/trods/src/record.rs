//! What another replica needs to go on with a connection.

use std::net::SocketAddr;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The client's address and port.
    pub client: SocketAddr,
    /// The service's.
    pub service: SocketAddr,
}

/// What the handshake agreed.
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
    /// TSval of the SYN-ACK, if both have timestamps.
    pub timestamp: Option<u32>,
    /// When the SYN-ACK was seen, milliseconds of Unix time: TSval grows by one each from then on.
    pub at_ms: u64,
}

/// How the rest of a response is to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// From an object, by `Range`: whatever server has the same object, by strong entity tag and length, has the same octets.
    Object {
        /// The head of the request.
        request: Vec<u8>,
        /// The head of the response, which the client may have in part.
        head: Vec<u8>,
        /// How many octets of the body were seen, and their CRC-32C: another object has another one.
        check: (u32, u32),
    },
    /// From the record: head, body, everything.
    Whole(Vec<u8>),
}

/// A response that the client is not known to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Sequence number of its first octet.
    pub start: u32,
    /// Octets of head and body.
    pub length: u64,
    /// Octets from `start` that were let pass at most; what the client acknowledges is no further, and less than 2^31 behind.
    pub passed: u64,
    /// The server closes behind it.
    pub close: bool,
    /// Where its octets come from.
    pub body: Body,
}

/// A connection as it stands in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The two ends.
    pub tuple: Tuple,
    /// What they agreed.
    pub handshake: Handshake,
    /// Grows with each record of a connection: the highest is the one that counts.
    pub version: u32,
    /// The limits were lifted after this: nobody can go on.
    pub unprotected: bool,
    /// Responses that the client is not known to have whole, in their order. The last one may be had whole.
    pub responses: Vec<Response>,
    /// Sequence number of the first octet of `requests`: what came before is answered.
    pub request_at: u32,
    /// What the client was or may have been told that it arrived, and is not answered yet.
    pub requests: Vec<u8>,
    /// Behind it the client ended its half of the connection.
    pub client_fin: bool,
}
