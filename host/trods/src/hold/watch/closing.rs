//! Connections that the kernel was closing when the process started.

use std::time::Instant;

/// One of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Closing {
    /// Since when this replica may send on it.
    pub since: Option<Instant>,
    /// What the client acknowledged last; 0 if it has sent nothing since.
    pub acked: u32,
}
