//! What another replica must know to go on with a connection.

use std::fmt;
use std::net::TcpStream;

use rivulet_tls::TrafficSecret;

/// One direction of a connection that is sent in records of our own.
#[derive(Clone, Debug)]
pub struct Direction {
    /// The traffic secret of the current generation.
    pub secret: TrafficSecret,
    /// KeyUpdates so far.
    pub generation: u32,
    /// The number of the next record under the secret.
    pub next_record: u64,
    /// Bytes of the TCP stream before the next record. The TCP sequence number of its first byte is the initial sequence
    /// number plus 1 plus this.
    pub offset: u64,
}

/// A response of known length whose records follow the rule of [`Response`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponsePlace {
    /// Bytes of the TCP stream before its first record.
    pub offset: u64,
    /// The number of its first record.
    pub record: u64,
    /// Its head, as it is sent.
    pub head: Vec<u8>,
    /// Bytes of its body.
    pub body: u64,
}

/// What another replica must know to go on with a connection.
#[derive(Debug)]
pub struct ConnectionState<'a> {
    /// From the client, up to the last record that was opened.
    pub received: Direction,
    /// To the client, behind the last record that was sealed.
    pub sent: Direction,
    /// The response that is being sent, or the last one.
    pub response: &'a ResponsePlace,
}

/// Gets the state of connections of TLS 1.3, for whoever stores it.
pub trait Observer: fmt::Debug + Send + Sync {
    /// Called on the connection's thread after its handshake, and for each response of known length when it has begun and
    /// none of its bytes was written to `client`. The initial sequence numbers are known to the socket alone.
    fn observe(&self, client: &TcpStream, state: &ConnectionState<'_>);
}
