//! Time limits of a connection.

use std::time::Duration;

/// Time limits of a connection.
#[derive(Clone, Debug)]
pub struct TimeLimits {
    /// Time from the first byte to the end of the handshake.
    pub handshake: Duration,
    /// Time from the first byte of a request's head to its last.
    pub head: Duration,
    /// Time between two requests, and between two bytes of a body or a response.
    pub idle: Duration,
    /// Time between two bytes in a tunnel.
    pub tunnel: Duration,
    /// Time after the last response until the client closes.
    pub linger: Duration,
    /// Lowest rate at which a client must send a body and accept a response, bytes a second.
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
    /// The shorter limits that apply when nearly all permitted connections are open.
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
