//! The public types around a connection: configuration, events, errors, counters.

use alloc::string::String;
use alloc::vec::Vec;
use rivulet_packet::WireError;

use crate::time::{Micros, SECOND};

/// Configuration of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path MTU in bytes; no packet is larger.
    pub mtu: u16,
    /// Receive buffer of a stream in bytes.
    pub receive_buffer: usize,
    /// Send buffer of a stream in bytes.
    pub send_buffer: usize,
    /// Delay acknowledgements where that is allowed, which halves the requests. Use it only with a
    /// service that accepts them; a service behind a ToR does not.
    pub delayed_acks: bool,
    /// Mark requests with input as ECN-capable.
    pub ecn: bool,
    /// The service's horizon: how long an ordinary request stays valid.
    pub horizon: Micros,
    /// Seed of the client's ISN and timestamps; must be random for each connection.
    pub seed: u64,
    /// An address token from an earlier connection to the service.
    pub token: Option<Vec<u8>>,
    /// The path is known to drop SYNs with data, so start with a bare SYN.
    pub bare_syn: bool,
    /// SYNs before the connection attempt fails. The first three retransmissions follow after 1, 2
    /// and 4 s, or `max_backoff` if that is less.
    pub syn_attempts: u32,
    /// Maximum pause between two attempts to reach an unresponsive server, unless the estimated
    /// timeout of the path is longer. It bounds how long a recovered service goes unnoticed, and
    /// the rate of a client without answers: one packet in this time. A value below `horizon / 4`
    /// would send more RESTARTs than a server accepts.
    pub max_backoff: Micros,
    /// A connection that awaits a response fails after this time without any.
    pub give_up_after: Micros,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mtu: 1500,
            receive_buffer: 1 << 20,
            send_buffer: 256 << 10,
            delayed_acks: false,
            ecn: true,
            horizon: 4 * SECOND,
            seed: 0,
            token: None,
            bare_syn: false,
            syn_attempts: 32,
            max_backoff: 2 * SECOND,
            give_up_after: 120 * SECOND,
        }
    }
}

/// The handshake of a plain TCP server for `TCP_REPAIR`, complete except for its last ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHandshake {
    /// Our next sequence number, as acknowledged by the server.
    pub send_next: u32,
    /// The server's ISN plus 1.
    pub receive_next: u32,
    /// The server acknowledged the data of our SYN (TCP Fast Open); otherwise all input must still
    /// be sent.
    pub syn_data_acknowledged: bool,
    /// The stream whose input the SYN carried, or would have carried. It owns the handshake; other
    /// streams have none.
    pub stream: u16,
    /// The server's MSS.
    pub mss: u16,
    /// Window scales (the server's, ours), if both sent one.
    pub window_scale: Option<(u8, u8)>,
    /// Whether the server permits SACK.
    pub sack: bool,
    /// Timestamps (the server's, and ours as echoed), if it sent one.
    pub timestamp: Option<(u32, u32)>,
    /// The server's window, unscaled.
    pub window: u16,
}

/// Why a connection failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// No SYN was answered.
    #[error("no answer to the opening")]
    Unreachable,
    /// No response for [`Config::give_up_after`].
    #[error("no answer for too long")]
    TimedOut,
    /// The server refused permanently.
    #[error("the server refused with code {code}: {message}")]
    Refused {
        /// Error code.
        code: u16,
        /// A text for people.
        message: String,
    },
    /// All replicas that were asked report that they do not have the content any more.
    #[error("no replica has the content")]
    NotMine,
    /// The server keeps returning input unconsumed.
    #[error("the server makes no progress with the input")]
    InputRefused,
    /// The port is closed: an RST answered the SYN.
    #[error("connection refused")]
    Reset,
}

/// Streams beside stream 0 that a connection has at the same time, each until it is forgotten.
pub const MAX_REQUESTS: usize = 1024;

/// Why no further stream can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The connection has the maximum number of streams.
    #[error("{MAX_REQUESTS} requests or streams on one connection already: end one first")]
    TooMany,
    /// All stream numbers were used.
    #[error("the connection has used all its {max} streams: open another connection", max = u16::MAX - 1)]
    UsedUp,
    /// The request is longer than the send buffer of this many bytes.
    #[error("a request of more than {0} bytes")]
    TooLong(usize),
}

/// Why a packet was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// It cannot be parsed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It belongs to another connection.
    #[error("a packet of another connection")]
    Elsewhere,
    /// It answers no outstanding request, or was received before.
    #[error("a response to no outstanding request")]
    Unexpected,
}

/// Events of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server supports Rivulet; the first response was received.
    Connected,
    /// [`super::Connection::read`] on this stream returns bytes or the end.
    Readable(u16),
    /// [`super::Connection::write`] on this stream accepts bytes again.
    Writable(u16),
    /// All input written to this stream was consumed.
    InputConsumed(u16),
    /// An address token for a later connection was received; after [`super::Connection::close`],
    /// one with the window.
    Token(Vec<u8>),
    /// The server supports only plain TCP: continue with a kernel socket. The connection is over
    /// for this crate.
    FallbackToTcp(TcpHandshake),
    /// The CLOSE was answered.
    Closed,
    /// This stream cannot continue and is forgotten; the others continue.
    StreamFailed(u16, ConnectionError),
    /// The connection failed.
    Failed(ConnectionError),
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// This many bytes.
    Bytes(usize),
    /// Nothing at present.
    Blocked,
    /// The end of the stream.
    End,
}

/// Counters of a connection, for tests and tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests sent, of all classes.
    pub requests: u64,
    /// Responses accepted.
    pub responses: u64,
    /// Numbers declared lost.
    pub declared: u64,
    /// Numbers declared lost but received later.
    pub spurious: u64,
    /// PROBEs sent.
    pub probes: u64,
    /// TIMEOUTs sent.
    pub timeouts: u64,
    /// RESTARTs sent.
    pub restarts: u64,
    /// REKEYs sent.
    pub rekeys: u64,
    /// Windows that were offered to the server on close.
    pub retired: u64,
    /// Continuations that differ from the prediction.
    pub mispredicted: u64,
    /// Trickles that terminated as predicted, without a request.
    pub terminated: u64,
    /// Packets ignored.
    pub ignored: u64,
}
