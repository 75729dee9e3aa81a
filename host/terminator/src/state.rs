//! The state with which another replica can continue a connection.

use std::fmt;
use std::net::TcpStream;

use rivulet_tls::TrafficSecret;

/// One direction of a connection with records made by this crate.
#[derive(Clone, Debug)]
pub struct Direction {
    /// The traffic secret of the current generation.
    pub secret: TrafficSecret,
    /// Number of KeyUpdates so far.
    pub generation: u32,
    /// The number of the next record under the secret.
    pub next_record: u64,
    /// Bytes of the TCP stream before the next record. The sequence number of its first byte is the
    /// initial sequence number + 1 + `offset`.
    pub offset: u64,
}

/// A response of known length whose records follow the rule of [`Response`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponsePlace {
    /// Bytes of the TCP stream before its first record.
    pub offset: u64,
    /// Number of its first record.
    pub record: u64,
    /// The head as it was sent.
    pub head: Vec<u8>,
    /// Bytes of its body.
    pub body: u64,
}

/// The state with which another replica can continue a connection.
#[derive(Debug)]
pub struct ConnectionState<'a> {
    /// Direction from the client, up to the last record that was opened.
    pub received: Direction,
    /// Direction to the client, up to the last record that was sealed.
    pub sent: Direction,
    /// The response that is being sent, or the last one.
    pub response: &'a ResponsePlace,
}

/// Receives the state of each TLS 1.3 connection, for example to store it.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Called on the connection's thread: after its handshake, and when a response of known length
    /// has begun and none of its bytes was written to `client`. Only the socket knows the initial
    /// sequence numbers.
    fn observe(&self, client: &TcpStream, state: &ConnectionState<'_>);
}
