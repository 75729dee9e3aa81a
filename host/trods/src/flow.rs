//! One connection as the replica's interface sees it.

use crate::record::{Record, Tuple};

/// What holds for all connections of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What is not stored stays held (`failure: closed`); else it is let pass unprotected (`open`).
    pub closed: bool,
}

/// Why a connection is not, or no longer, protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The client speaks TLS.
    Tls,
    /// HTTP/2 without TLS.
    Http2,
    /// Neither GET nor HEAD.
    Method,
    /// A request with a body.
    Body,
    /// What no rule of HTTP/1 makes a request or a response.
    Malformed,
    /// A head or a queue of requests that is too long for a record.
    TooLong,
    /// An interim response (1xx), an upgrade among them.
    Interim,
    /// A response whose length is not told, or has no strong entity tag, and which is too long to be stored whole.
    Dynamic,
    /// A response that nobody asked for.
    Unasked,
    /// The store failed, and `failure: open`.
    Store,
    /// The connection was begun before it was watched.
    Unseen,
    /// The server ended the connection at a place where it should not, and lives.
    Closed,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 12] = [
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
        }
    }
}

/// What the BPF program lets pass; sequence numbers, to be compared as such (they wrap).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Acknowledgements to the client up to this one.
    pub ack: u32,
    /// Octets to the client below this one.
    pub data: u32,
    /// The one place where FIN may stand.
    pub fin_at: Option<u32>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// These hold from now on.
    Limits(Limits),
    /// To be stored; [`Flow::stored`] is to be told. There is one ticket at a time.
    Store {
        /// What `stored` is to be called with.
        ticket: u64,
        /// What to store, in place of what was stored before.
        record: Box<Record>,
    },
    /// The record is to be deleted.
    Forget,
    /// No limits any more; counted by reason. Nothing follows but `Forget`.
    Unprotected(Reason),
}

/// One client connection as the replica's interface sees it; sequence numbers are absolute (u32, wrapping).
#[derive(Debug)]
pub struct Flow {
    tuple: Tuple,
    settings: Settings,
}

impl Flow {
    /// A connection whose SYN is coming.
    #[must_use]
    pub fn new(tuple: Tuple, settings: &Settings) -> Flow {
        Flow { tuple, settings: *settings }
    }

    /// A connection that this replica takes over: its record under this replica's name is the first thing in `out`, and
    /// nothing may pass before that is stored ([`Flow::limits`] says so).
    #[must_use]
    pub fn resume(record: Record, settings: &Settings, out: &mut Vec<Action>) -> Flow {
        let _ = out;
        Flow::new(record.tuple, settings)
    }

    /// The client's SYN (the TCP header with its options).
    pub fn syn(&mut self, tcp: &[u8]) {
        let _ = tcp;
    }

    /// The kernel's SYN-ACK.
    pub fn syn_ack(&mut self, tcp: &[u8]) {
        let _ = tcp;
    }

    /// What holds now: at first the end of the handshake, the same that the BPF program sets by itself.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { ack: 0, data: 0, fin_at: None }
    }

    /// The client has everything below `ack`. To be called for each segment of the client's that is copied up, before
    /// [`Flow::request`], and with the last one the BPF program saw before [`Flow::response`].
    pub fn acknowledged(&mut self, ack: u32) {
        let _ = ack;
    }

    /// Octets from the client at `seq` (may repeat, come in any order, overlap); `fin` behind them.
    pub fn request(&mut self, seq: u32, octets: &[u8], fin: bool, out: &mut Vec<Action>) {
        let _ = (seq, octets, fin, out);
    }

    /// Octets from the server at `seq`, held until released; `fin` behind them.
    pub fn response(&mut self, seq: u32, octets: &[u8], fin: bool, out: &mut Vec<Action>) {
        let _ = (seq, octets, fin, out);
    }

    /// The store kept, or failed to keep, what was handed out under this ticket.
    pub fn stored(&mut self, ticket: u64, kept: bool, out: &mut Vec<Action>) {
        let _ = (ticket, kept, out);
    }

    /// The time, milliseconds of Unix time; to be told once behind [`Flow::new`] and every few milliseconds from then on. A
    /// request whose response has not come for 50 ms is stored alone and acknowledged.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        let _ = (now_ms, out);
    }

    /// What is stored is to be stored again: its server died, or its time runs out.
    pub fn renew(&mut self, out: &mut Vec<Action>) {
        let _ = out;
    }

    /// The server's FIN waits at a place where it may not pass. If the server's process is gone, it is a crash; else
    /// [`Flow::let_go`] is to be called.
    #[must_use]
    pub fn ends_early(&self) -> bool {
        false
    }

    /// Gives the connection up: what was stored is stored as unprotected, then the limits are lifted.
    pub fn let_go(&mut self, reason: Reason, out: &mut Vec<Action>) {
        let _ = (reason, out);
    }

    /// The client closed (FIN acknowledged or RST).
    pub fn closed(&mut self, out: &mut Vec<Action>) {
        let _ = (&self.tuple, self.settings.closed, out);
    }
}
