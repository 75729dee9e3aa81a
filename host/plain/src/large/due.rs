//! A segment of a large answer that a sender has decided to send.

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) fin: bool,
    /// It repairs a loss, or is sent during a repair.
    pub(crate) repair: bool,
    /// It is a retransmission.
    pub(crate) again: bool,
}

impl Due {
    /// Splits off the part that fits into a packet of `most` bytes, at least one full segment;
    /// returns it and the rest.
    pub(super) fn split(self, full: u32, most: u32) -> (Due, Option<Due>) {
        let room = (most / full).max(1) * full;
        if self.to - self.from <= room {
            return (self, None);
        }
        let at = self.from + room;
        (Due { to: at, fin: false, ..self }, Some(Due { from: at, ..self }))
    }
}
