//! The result of sending.

use serde::Serialize;

/// Result of a run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    pub arrived: u64,
    pub lost: u64,
    /// Packets that were sent, and packets that arrived; for TCP, the kernel's count of segments.
    pub packets: u64,
    pub answers: u64,
    pub calls: Calls,
    /// Rate (bytes a second) and round-trip time (ns) of the flow at the end.
    pub rate: Option<u64>,
    pub rtt: Option<u64>,
    pub proxied: bool,
}

/// Number of calls that were made, successful or not.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Calls {
    pub request: u64,
    pub notify: u64,
    pub update: u64,
    /// How often the process waited.
    pub wait: u64,
}
