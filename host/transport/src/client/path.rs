//! The path's MTU, when it turns out to be smaller than that of the interface (RFC 1191, RFC 8201).

use super::Connection;

/// A quoted sequence number this far behind our own is of a packet that may still be under way.
const RECENT: u32 = 1 << 20;

impl Connection {
    /// A router quoted a packet of ours that was too big. True if it is believed, which takes a sequence
    /// number of our own (RFC 5927, section 4.1): from now on no packet is larger than `mtu`, and what was is
    /// found lost like everything that is lost.
    pub fn too_big(&mut self, sequence: u32, mtu: u16) -> bool {
        if self.seq.wrapping_sub(sequence) > RECENT {
            return false;
        }
        self.limit_mtu(mtu);
        true
    }

    /// No packet is larger than `mtu` from now on; one that is larger than before changes nothing.
    pub fn limit_mtu(&mut self, mtu: u16) {
        self.config.mtu = self.config.mtu.min(mtu.max(576));
    }
}
