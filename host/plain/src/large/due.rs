//! A segment of a large answer that a sender wants sent.

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) fin: bool,
    /// Sent to repair a loss, or while one is repaired.
    pub(crate) repair: bool,
    /// Sent before.
    pub(crate) again: bool,
}

impl Due {
    /// Splits off what fits into a packet of `most` bytes, at least one full segment, from the
    /// rest.
    pub(super) fn split(self, full: u32, most: u32) -> (Due, Option<Due>) {
        let room = (most / full).max(1) * full;
        if self.to - self.from <= room {
            return (self, None);
        }
        let at = self.from + room;
        (Due { to: at, fin: false, ..self }, Some(Due { from: at, ..self }))
    }
}
