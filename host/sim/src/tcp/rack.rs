//! RACK: loss by time (RFC 8985 §6).

use super::rto::Rto;
use crate::Nanos;

/// Recoveries without a spurious retransmission after which the reordering window is reset.
const PERSISTS: u32 = 16;
/// Duplicate acknowledgements that indicate a loss at once while no reordering was seen.
const DUPLICATE_THRESHOLD: usize = 3;

/// The state of §5.2 and §5.3.
#[derive(Debug, Clone)]
pub struct Rack {
    /// Sending time and number of the latest delivered segment.
    latest: (Nanos, u64),
    /// Its round trip time.
    rtt: Nanos,
    /// Highest segment delivered.
    forward: Option<u64>,
    reordering_seen: bool,
    quarters: u64,
    persists: u32,
}

impl Rack {
    pub(super) fn new() -> Self {
        Self { latest: (0, 0), rtt: 0, forward: None, reordering_seen: false, quarters: 1, persists: 0 }
    }

    /// Records a delivered segment. If a retransmission is acknowledged sooner than the least round
    /// trip time, the original arrived.
    pub(super) fn delivered(&mut self, now: Nanos, seq: u64, sent: Nanos, retransmitted: bool, least: Nanos) {
        let rtt = now - sent;
        if retransmitted && rtt < least {
            return;
        }
        match self.forward {
            Some(f) if seq < f && !retransmitted => self.reordering_seen = true,
            Some(f) if seq <= f => {}
            _ => self.forward = Some(seq),
        }
        if (sent, seq) > self.latest {
            self.latest = (sent, seq);
            self.rtt = rtt;
        }
    }

    /// Records that a segment arrived twice: its retransmission was spurious (§6.2, step 4).
    pub(super) fn spurious(&mut self) {
        self.quarters = (self.quarters + 1).min(16);
        self.persists = PERSISTS;
    }

    /// Records the start of a recovery.
    pub(super) fn recovery(&mut self) {
        self.persists = self.persists.saturating_sub(1);
        if self.persists == 0 {
            self.quarters = 1;
        }
    }

    /// The reordering window.
    pub(super) fn window(&self, rto: &Rto, recovering: bool, sacked: usize) -> Nanos {
        if !self.reordering_seen && (recovering || sacked >= DUPLICATE_THRESHOLD) {
            return 0;
        }
        (self.quarters * rto.least() / 4).min(rto.smoothed())
    }

    /// When the segment counts as lost, possibly in the past; `None`: no later segment was
    /// delivered.
    pub(super) fn deadline(&self, seq: u64, sent: Nanos, window: Nanos) -> Option<Nanos> {
        ((sent, seq) < self.latest).then_some(sent + self.rtt + window)
    }
}
