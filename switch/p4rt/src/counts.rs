//! Counters of a P4Runtime server.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the start, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets sent to controllers.
    pub packet_ins: u64,
    /// Packet-ins lost: no primary, too short for the metadata, or a full queue.
    pub packet_ins_lost: u64,
    /// Packets accepted from controllers.
    pub packet_outs: u64,
    /// Packet-outs refused, or dropped because a queue was full.
    pub packet_outs_lost: u64,
    /// Digest lists sent.
    pub digest_lists: u64,
    /// Updates of `Write` requests.
    pub updates: u64,
    /// Failed batches of updates.
    pub batches_failed: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub packet_ins: AtomicU64,
    pub packet_ins_lost: AtomicU64,
    pub packet_outs: AtomicU64,
    pub packet_outs_lost: AtomicU64,
    pub digest_lists: AtomicU64,
    pub updates: AtomicU64,
    pub batches_failed: AtomicU64,
}

/// Increments a counter, without ordering guarantees.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
