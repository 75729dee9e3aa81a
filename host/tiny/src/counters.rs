//! What the server counts.

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received.
    pub frames: u32,
    /// Requests of the transport that were answered.
    pub requests: u32,
    /// Frames sent, without ARP.
    pub responses: u32,
    /// Rivulet requests that were refused.
    pub refused: u32,
}
