//! What the user of a connection sees beside it: configuration, events, errors, counts.

use rivulet_packet::WireError;

use crate::time::{Micros, SECOND};

/// What a connection may use.
#[derive(Clone, Debug)]
pub struct Config {
    /// MTU of the path, bytes: no packet is larger.
    pub mtu: u16,
    /// Receive buffer of a stream, bytes.
    pub receive_buffer: usize,
    /// Send buffer of a stream, bytes.
    pub send_buffer: usize,
    /// Delay acknowledgements where that is allowed: half the requests, two answers each. Only towards a service that is known to take
    /// them; one behind a ToR does not.
    pub delayed_acks: bool,
    /// Mark requests with input as ECN-capable.
    pub ecn: bool,
    /// The service's horizon: ordinary requests are good so long.
    pub horizon: Micros,
    /// Seed of the client's ISN and timestamps; to be drawn at random for each connection.
    pub seed: u64,
    /// An address token from an earlier connection to the service.
    pub token: Option<Vec<u8>>,
    /// The path is known to drop SYNs with data: begin with a bare one.
    pub bare_syn: bool,
    /// SYNs before the connection is given up: the first three after 1, 2 and 4 seconds or `max_backoff`, which is less.
    pub syn_attempts: u32,
    /// Longest pause between two attempts to reach a server that does not answer, unless the estimated timeout of the path is longer. It
    /// bounds how long a service that came back goes unnoticed, and with it what a client without answers sends: one packet in
    /// this time. Less than `horizon / 4` would have more RESTARTs sent than a server takes.
    pub max_backoff: Micros,
    /// Without any answer for so long, a connection that awaits one is given up.
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

/// What a plain TCP server answered, for `TCP_REPAIR`: the handshake is complete but for its last ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHandshake {
    /// Our next sequence number: what the server acknowledged.
    pub send_next: u32,
    /// The server's ISN plus 1.
    pub receive_next: u32,
    /// The server acknowledged the data of our SYN (TCP Fast Open); else all input is still to be sent.
    pub syn_data_acknowledged: bool,
    /// The stream whose input that was, or would be: the handshake is its own, and other streams have none.
    pub stream: u16,
    /// The server's MSS.
    pub mss: u16,
    /// Window scales (theirs, ours), if both sent one.
    pub window_scale: Option<(u8, u8)>,
    /// Whether they permit SACK.
    pub sack: bool,
    /// Timestamps (theirs, and ours as they echo it), if they sent one.
    pub timestamp: Option<(u32, u32)>,
    /// Their window, unscaled.
    pub window: u16,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// No answer to any SYN.
    #[error("no answer to the opening")]
    Unreachable,
    /// Nothing came for [`Config::give_up_after`].
    #[error("no answer for too long")]
    TimedOut,
    /// The server refused for good.
    #[error("the server refused with code {code}: {message}")]
    Refused {
        /// Its code.
        code: u16,
        /// For people.
        message: String,
    },
    /// Every replica asked says that it does not have the content any more.
    #[error("no replica has the content")]
    NotMine,
    /// Input keeps coming back unconsumed.
    #[error("the server makes no progress with the input")]
    InputRefused,
    /// The port is closed: a plain RST answered the SYN.
    #[error("connection refused")]
    Reset,
}

/// Streams beside stream 0 that one connection has at the same time, requests or others: each until it is forgotten.
pub const MAX_REQUESTS: usize = 1024;

/// Why there is no further stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There are as many as there may be.
    #[error("{MAX_REQUESTS} requests or streams on one connection already: end one first")]
    TooMany,
    /// Every number that a stream may have was given.
    #[error("the connection has had all its {max} streams: open another", max = u16::MAX - 1)]
    UsedUp,
    /// It is longer than the send buffer, of so many octets.
    #[error("a request of more than {0} octets")]
    TooLong(usize),
}

/// A packet that was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// It does not parse.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It is of another connection.
    #[error("a packet of another connection")]
    Elsewhere,
    /// It answers nothing that was asked, or came twice.
    #[error("a response to nothing that was asked")]
    Unexpected,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The server speaks Rivulet; the first response came.
    Connected,
    /// [`super::Connection::read`] on this stream gives bytes or the end.
    Readable(u16),
    /// [`super::Connection::write`] on this stream takes bytes again.
    Writable(u16),
    /// All input written to this stream was consumed.
    InputConsumed(u16),
    /// An address token for a later connection came; after [`super::Connection::close`] one that has the window in it.
    Token(Vec<u8>),
    /// The server speaks TCP: go on with a kernel socket. The connection is over for this crate.
    FallbackToTcp(TcpHandshake),
    /// The close was answered.
    Closed,
    /// This stream cannot go on and is forgotten; the others do.
    StreamFailed(u16, ConnectionError),
    /// The connection failed.
    Failed(ConnectionError),
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Blocked,
    /// The end of the stream.
    End,
}

/// Counts of a connection, for tests and tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests sent, of every class.
    pub requests: u64,
    /// Responses taken.
    pub responses: u64,
    /// Numbers declared lost.
    pub declared: u64,
    /// Declared numbers that came after all.
    pub spurious: u64,
    /// PROBEs sent.
    pub probes: u64,
    /// TIMEOUTs sent.
    pub timeouts: u64,
    /// RESTARTs sent.
    pub restarts: u64,
    /// REKEYs sent.
    pub rekeys: u64,
    /// Windows that were offered to the server at the end.
    pub retired: u64,
    /// Continuations whose difference did not match the prediction.
    pub mispredicted: u64,
    /// Trickles that ended as predicted and were not sent.
    pub terminated: u64,
    /// Packets ignored.
    pub ignored: u64,
}
