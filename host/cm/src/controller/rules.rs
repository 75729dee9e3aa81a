//! What a window starts with and is bounded by.

use crate::{MILLISECOND, Nanos, SECOND};

/// Least window after transient congestion, in MTUs (RFC 5681 §3.1, equation 4).
pub const LEAST: u64 = 2;
/// Largest window, bytes: what TCP's sequence numbers allow (RFC 7323 §2.3).
pub const MAX_WINDOW: u64 = 1 << 30;
/// Timeout without a round trip time (RFC 6298 §2.1).
pub const INITIAL_RTO: Nanos = SECOND;
/// Least timeout, Linux' own: by it a sibling that is still acknowledged is told from one that is not.
pub const MIN_RTO: Nanos = 200 * MILLISECOND;
/// Largest timeout, and largest round trip time that is believed (RFC 6298 §2.5).
pub const MAX_RTO: Nanos = 60 * SECOND;
/// A window ages in steps of its timeout, and at least of this (RFC 6298 §2.4): a second between two fetches of a page is no
/// reason to forget what the first one found.
pub const MIN_STEP: Nanos = SECOND;
/// What was idle for so long is as unknown as a path that was never used.
pub const FORGET: Nanos = 600 * SECOND;
/// Ageing by more steps than these changes nothing more.
pub const MAX_STEPS: u64 = 32;

/// Of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// First window, MTUs; 10 by RFC 6928, 1 in the paper. At least 1.
    pub initial: u32,
    /// What one report may add in slow start, MTUs: L of RFC 3465, 2 there. TCP on a host that merges segments acknowledges
    /// dozens at once; one whose acknowledgements the kernel has checked takes them whole.
    pub limit: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self { initial: 10, limit: 2 }
    }
}
