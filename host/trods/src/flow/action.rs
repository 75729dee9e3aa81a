//! Inputs and outputs of a [`Flow`](super::Flow).

use crate::record::Record;

/// Settings of all connections of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bytes that cannot be stored stay held (`failure: closed`) or pass unprotected (`open`).
    pub closed: bool,
    /// The server generates the same bytes for the same request anywhere and at any time
    /// (`deterministic: true`), so responses without an entity tag are protected, too. Otherwise
    /// only responses that list their [inputs](crate::head::INPUTS) are.
    pub deterministic: bool,
    /// Which end sends first after a death.
    pub wake: Wake,
    /// The client address that the local server gets behind an adopted connection.
    pub adopt_as: AdoptAs,
    /// How to treat a connection with an object of unknown digest.
    pub unknown: Unknown,
}

/// The client address that the local server gets behind an adopted connection (`adopt_as`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdoptAs {
    /// The client's address, so that the server's access rules, limits and logs by address stay right. If the local server
    /// cannot be reached from it, the client is reset.
    #[default]
    Client,
    /// The address of the service.
    Server,
}

/// How to treat a connection in the middle of an object of unknown digest (`unknown`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// Reset the client.
    #[default]
    Reset,
    /// Trust the entity tag, the length and the checksum of the first flight.
    Trust,
}

/// Which end sends first after the death of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    /// A survivor asks the client where it is.
    #[default]
    Server,
    /// The client, as in the paper: a request is not acknowledged before its whole response is, so
    /// the client retransmits it at growing intervals, and gives up a long download.
    Client,
}

/// Why a connection is not, or no longer, protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The client uses TLS.
    Tls,
    /// HTTP/2 without TLS.
    Http2,
    /// Neither GET nor HEAD.
    Method,
    /// A request with a body.
    Body,
    /// Data that is neither a request nor a response of HTTP/1.
    Malformed,
    /// A head or a queue of requests that is too long for a record.
    TooLong,
    /// An interim response (1xx), an upgrade among them.
    Interim,
    /// A response without strong entity tag that is too long to be stored whole, or came too slowly for that, and cannot be
    /// generated again, or ends with the connection.
    Dynamic,
    /// A response without a request.
    Unasked,
    /// The store failed, and `failure: open`.
    Store,
    /// The connection was begun before it was watched.
    Unseen,
    /// The server ended the connection in the middle of a response, although its process lives.
    Closed,
    /// The client sent inputs ([`crate::head::INPUTS`]) in segments in which the programs do not change the name, such as
    /// segments out of order. The server has them, so the connection ends, and no response leaves.
    Inputs,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 13] = [
        Reason::Tls,
        Reason::Http2,
        Reason::Method,
        Reason::Body,
        Reason::Malformed,
        Reason::TooLong,
        Reason::Interim,
        Reason::Dynamic,
        Reason::Unasked,
        Reason::Store,
        Reason::Unseen,
        Reason::Closed,
        Reason::Inputs,
    ];

    /// The name in metrics and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reason::Tls => "tls",
            Reason::Http2 => "http2",
            Reason::Method => "method",
            Reason::Body => "body",
            Reason::Malformed => "malformed",
            Reason::TooLong => "too_long",
            Reason::Interim => "interim",
            Reason::Dynamic => "dynamic",
            Reason::Unasked => "unasked",
            Reason::Store => "store",
            Reason::Unseen => "unseen",
            Reason::Closed => "closed",
            Reason::Inputs => "inputs",
        }
    }
}

/// What the BPF program lets pass; sequence numbers, to be compared as such (they wrap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Acknowledgements to the client up to this one.
    pub ack: u32,
    /// End of the bytes to the client that may pass.
    pub data: u32,
    /// The only sequence number at which a FIN may pass.
    pub fin_at: Option<u32>,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Apply these limits from now on.
    Limits(Limits),
    /// The client does not receive these fields with [inputs](crate::head::INPUTS), in place of those before: sequence numbers of
    /// their beginning and of the end of their line. To be done before what follows, and also to hold without limits.
    Blank(Vec<(u32, u32)>),
    /// Store a record and then call [`Flow::stored`]. At most one ticket is outstanding.
    Store {
        /// Identifies the record in the later call of `stored`.
        ticket: u64,
        /// The record, in place of the former one.
        record: Box<Record>,
    },
    /// Delete the record.
    Forget,
    /// Remove the limits and count the reason. Only `Forget` can follow.
    Unprotected(Reason),
}
