//! Initial value and bounds of a window.

use crate::{MILLISECOND, Nanos, SECOND};

/// Smallest window after transient congestion, in MTUs (RFC 5681 §3.1, equation 4).
pub const LEAST: u64 = 2;
/// Largest window in bytes: the limit of TCP's sequence numbers (RFC 7323 §2.3).
pub const MAX_WINDOW: u64 = 1 << 30;
/// Timeout before the first round trip time sample (RFC 6298 §2.1).
pub const INITIAL_RTO: Nanos = SECOND;
/// Smallest timeout, the same as Linux's. A sibling flow without an acknowledgement for this long
/// counts as stalled too.
pub const MIN_RTO: Nanos = 200 * MILLISECOND;
/// Largest timeout, and largest round trip time sample accepted (RFC 6298 §2.5).
pub const MAX_RTO: Nanos = 60 * SECOND;
/// Smallest idle time that ages a window (RFC 6298 §2.4). One second between two fetches of a page
/// must not discard what the first one learned about the path.
pub const MIN_STEP: Nanos = SECOND;
/// After this idle time the path counts as one that was never used.
pub const FORGET: Nanos = 600 * SECOND;
/// More ageing steps than this have no further effect.
pub const MAX_STEPS: u64 = 32;

/// Settings of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Initial window in MTUs: 10 by RFC 6928, 1 in the paper. At least 1.
    pub initial: u32,
    /// Largest growth per report in slow start, in MTUs: L of RFC 3465, which recommends 2. A host
    /// that merges received segments acknowledges dozens at once, so a sender whose kernel has
    /// validated the acknowledgements can use a larger limit.
    pub limit: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { initial: 10, limit: 2 }
    }
}
