//! Inputs and outputs of a [`Flow`](super::Flow).

use crate::record::Record;

/// Settings of all connections of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether bytes that cannot be stored stay held (`failure: closed`) or pass unprotected
    /// (`open`).
    pub closed: bool,
    /// The server generates the same bytes for the same request anywhere and at any time
    /// (`deterministic: true`), so responses without an entity tag are protected, too. Otherwise
    /// only responses that list their [inputs](crate::head::INPUTS) are.
    pub deterministic: bool,
    /// Which end sends first after a replica's death.
    pub wake: Wake,
    /// The client address that the local server of an adopted connection sees.
    pub adopt_as: AdoptAs,
    /// Whether to resume a connection with an object of unknown digest.
    pub unknown: Unknown,
}

/// The client address that the local server of an adopted connection sees (`adopt_as`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdoptAs {
    /// The client's address, so that the server's access rules, limits and logs by address stay
    /// right. If the local server cannot be reached from that address, the client is reset.
    #[default]
    Client,
    /// The address of the service.
    Server,
}

/// Whether to resume a connection in the middle of an object of unknown digest (`unknown`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unknown {
    /// Reset the client.
    #[default]
    Reset,
    /// Resume it if the entity tag, the length and the checksum of the first flight are equal.
    Trust,
}

/// Which end sends first after the death of a replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    /// The survivor: it probes the client; the client's ACK shows what the client has.
    #[default]
    Server,
    /// The client, as in the paper: a request is not acknowledged before its whole response is, so
    /// the client retransmits the request at growing intervals, and gives up during a long
    /// download.
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
    /// A response that cannot be resumed: it has no strong entity tag, cannot be generated again or
    /// ends only with the connection, and is too long or too slow to be stored whole.
    Dynamic,
    /// Data of the server that answers no request.
    Unasked,
    /// The store failed, and `failure: open`.
    Store,
    /// The connection's handshake was not seen.
    Unseen,
    /// The server closed the connection in the middle of a response, although its process is alive.
    Closed,
    /// The client sent inputs ([`crate::head::INPUTS`]) in segments in which the BPF programs could
    /// not overwrite the field's name, such as segments out of order. The server received them, so
    /// the connection ends and no response is released.
    Inputs,
}

impl Reason {
    /// Every reason.
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

/// The limits that the BPF program enforces on a connection. All are sequence numbers and wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Highest acknowledgement number that may be sent to the client.
    pub ack: u32,
    /// End of the bytes that may be sent to the client.
    pub data: u32,
    /// The only sequence number at which a FIN may be sent.
    pub fin_at: Option<u32>,
}

/// A TLS terminator's request to store a record, as the terminator numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The terminator's name for the connection.
    pub connection: u64,
    /// Its number for the record.
    pub ticket: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The store has the record.
    Kept,
    /// The store failed.
    Failed,
    /// The connection has no limits here: it began unwatched, or is over.
    Unwatched,
}

/// An action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Apply these limits from now on.
    Limits(Limits),
    /// Hide these header fields with [inputs](crate::head::INPUTS) from the client; replaces the
    /// former list. Each pair is the sequence number of the field's beginning and that of the end
    /// of its line. Comes before the actions that release the bytes, and stays in force without
    /// limits.
    Blank(Vec<(u32, u32)>),
    /// Store a record and then call [`Flow::stored`]. At most one ticket is outstanding.
    Store {
        /// Identifies the record in the later call of `stored`.
        ticket: u64,
        /// The record, which replaces the former one.
        record: Box<Record>,
    },
    /// Delete the record.
    Forget,
    /// Answer the TLS terminator, which asked for a record to be stored ([`Flow::submit`]).
    Answer(Asked, StoreOutcome),
    /// Remove the limits and count the reason. Only `Forget` can follow.
    Unprotected(Reason),
}
