//! The congestion window: Reno's (RFC 5681), counted in bytes, and restored after a spurious loss.

use crate::large::stamp::{CELL, CELLS, MAX_LARGE};

/// Segments of an initial window (RFC 6928), also used after a silence.
const INITIAL: u32 = 10;

#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// Length of a full segment, bytes.
    full: u32,
    octets: u32,
    threshold: u32,
    /// Acknowledged bytes that are not yet counted for growth.
    counted: u32,
    /// Window and threshold before the last reduction, until it is known to have been right.
    before: Option<(u32, u32)>,
    /// Bytes retransmitted since then, less those that arrived twice.
    needless: u32,
}

impl Window {
    /// The window at the beginning of an answer.
    pub(crate) fn initial(full: u32) -> Window {
        Window { full, octets: INITIAL * full, threshold: MAX_LARGE, counted: 0, before: None, needless: 0 }
    }

    /// The window that another replica put into the echoed timestamp.
    pub(crate) fn from_stamp(full: u32, octets: u32) -> Window {
        let octets = octets.max(2 * full);
        Window { octets, threshold: octets, ..Window::initial(full) }
    }

    pub(crate) fn octets(&self) -> u32 {
        self.octets
    }

    pub(crate) fn threshold(&self) -> u32 {
        self.threshold
    }

    fn lower(&mut self, flight: u32) {
        self.before = Some((self.octets, self.threshold));
        self.needless = 0;
        // In whole segments, as other connections on the path count: half of a window of five is
        // two.
        let segments = flight.min(self.octets) / self.full / 2;
        self.threshold = (segments * self.full).max(2 * self.full);
        self.counted = 0;
    }

    /// Halves the window after a loss with `flight` bytes in flight.
    pub(crate) fn halve(&mut self, flight: u32) {
        self.lower(flight);
        self.octets = self.threshold;
    }

    /// Handles a timeout; only the `first` of several consecutive ones reduces the threshold (RFC
    /// 5681 section 3.1).
    pub(crate) fn time_out(&mut self, flight: u32, first: bool) {
        if first {
            self.lower(flight);
        }
        self.before = None;
        self.octets = self.full;
    }

    /// Restarts with a small window because no data is in flight any more; slow start then goes up
    /// to the former window.
    pub(crate) fn restart(&mut self) {
        self.threshold = self.threshold.min(self.octets).max(2 * self.full);
        self.octets = self.octets.min(INITIAL * self.full);
    }

    /// Ends the recovery from a loss with `pipe` bytes in flight.
    pub(crate) fn mended(&mut self, pipe: u32) {
        self.octets = self.octets.min(self.threshold.max(pipe + self.full));
    }

    /// Counts retransmitted bytes.
    pub(crate) fn again(&mut self, octets: u32) {
        self.needless = self.needless.saturating_add(octets);
    }

    /// Counts retransmitted bytes that arrived twice. If all did, nothing was lost (RFC 3708):
    /// restores the window and returns true.
    pub(crate) fn came_twice(&mut self, octets: u32) -> bool {
        let Some((before, threshold)) = self.before else { return false };
        if self.needless > octets || self.needless == 0 {
            self.needless = self.needless.saturating_sub(octets);
            return false;
        }
        (self.octets, self.threshold) = (self.octets.max(before), self.threshold.max(threshold));
        self.before = None;
        true
    }

    /// Grows the window by the acknowledged bytes; called only if the window limited sending.
    pub(crate) fn grow(&mut self, acked: u32) {
        if self.octets < self.threshold {
            self.octets = (self.octets + acked).min(self.threshold);
        } else {
            self.counted += acked;
            if self.counted >= self.octets {
                self.counted -= self.octets;
                self.octets += self.full;
            }
        }
        self.octets = self.octets.min(CELL * CELLS);
    }
}
