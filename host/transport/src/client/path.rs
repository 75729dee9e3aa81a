//! Reductions of the path MTU (RFC 1191, RFC 8201).

use super::Connection;

/// A packet whose sequence number is at most this far behind the current one may still be in
/// flight.
const RECENT: u32 = 1 << 20;

impl Connection {
    /// A router reported that our packet with sequence number `sequence` was too big. Returns true
    /// if the report is accepted, which requires a sequence number of a packet in flight (RFC 5927,
    /// section 4.1). Then packets are at most `mtu` bytes long, and larger ones are detected as
    /// lost in the ordinary way.
    pub fn too_big(&mut self, sequence: u32, mtu: u16) -> bool {
        if self.seq.wrapping_sub(sequence) > RECENT {
            return false;
        }
        self.limit_mtu(mtu);
        true
    }

    /// Limits packets to `mtu` bytes from now on; a larger value has no effect.
    pub fn limit_mtu(&mut self, mtu: u16) {
        self.config.mtu = self.config.mtu.min(mtu.max(576));
    }
}
