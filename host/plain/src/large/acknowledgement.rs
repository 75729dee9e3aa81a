//! The contents of an acknowledgement of a large answer.

/// An acknowledgement of a large answer, in offsets of the answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledgement<'a> {
    /// Bytes of the answer that the client has without a hole; a FIN counts as one.
    pub(crate) at: u32,
    /// Ranges that the client has after a hole (SACK).
    pub(crate) beyond: &'a [(u32, u32)],
    /// A range that arrived twice (RFC 2883).
    pub(crate) twice: Option<(u32, u32)>,
    /// Whether the last segment that arrived in order was a retransmission.
    pub(crate) repair: bool,
    /// The client's receive window, bytes.
    pub(crate) window: u32,
    /// The congestion window that the timestamp carries.
    pub(crate) told: u32,
    /// Whether the client retransmits its request, because it received no data for a while.
    pub(crate) nudge: bool,
    /// Of the timestamp: its cell, whether that is next to `at`, and whether `at` is where full segments end ([`Placed`]).
    ///
    /// [`Placed`]: crate::large::stamp::Placed
    pub(crate) cell: u32,
    pub(crate) near: bool,
    pub(crate) full: bool,
}

impl<'a> Acknowledgement<'a> {
    /// The acknowledgement of a client that lacks the answer's beginning.
    pub(crate) fn first(beyond: &'a [(u32, u32)], window: u32) -> Acknowledgement<'a> {
        let (twice, repair, nudge, near, full) = (None, false, false, false, false);
        Acknowledgement { at: 0, beyond, twice, repair, window, told: 0, nudge, cell: 0, near, full }
    }
}
