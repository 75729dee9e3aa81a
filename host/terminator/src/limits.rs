//! How long a connection may take.

use std::time::Duration;

/// How long a connection may take.
#[derive(Clone, Debug)]
pub struct TimeLimits {
    /// From the first segment to the end of the handshake.
    pub handshake: Duration,
    /// A request's head, from its first byte to its last.
    pub head: Duration,
    /// Between two requests, and without a byte of a body or a response.
    pub idle: Duration,
    /// Without a byte in a tunnel.
    pub tunnel: Duration,
    /// Behind the last response, for the client's end.
    pub linger: Duration,
    /// Bytes a second that a client sends of a body and takes of a response, at least.
    pub least_rate: u64,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(20),
            idle: Duration::from_secs(60),
            tunnel: Duration::from_secs(600),
            linger: Duration::from_secs(5),
            least_rate: 1024,
        }
    }
}

impl TimeLimits {
    /// The limits while connections are scarce.
    pub(crate) fn under_pressure(&self) -> Self {
        let short = Duration::from_secs(2);
        Self {
            handshake: self.handshake.min(short),
            head: self.head.min(short),
            idle: self.idle.min(short),
            least_rate: self.least_rate.max(16 << 10),
            linger: self.linger.min(Duration::from_secs(1)),
            tunnel: self.tunnel,
        }
    }
}
