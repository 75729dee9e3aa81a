//! The contents of an acknowledgement of a large answer, and how much a sender made of it may send.

/// Segments that a sender made of one acknowledgement sends before something that it sent is
/// acknowledged; afterwards, the least that an acknowledgement with news releases: a client
/// acknowledges two segments at a time, and a blind forger guesses each acknowledgement
/// (`forged_acknowledgement_draws_less_than_it_costs`).
pub(crate) const UNPROVEN_SEGMENTS: u32 = 10;
/// The limit for an acknowledgement at an offset where no full segment ends: a forger hits such an
/// offset once in sixteen.
pub(crate) const UNPROVEN_NARROW_SEGMENTS: u32 = 2;
/// Cells of which acknowledgements must have a right check, one after the other, before a sender made
/// of an acknowledgement sends whole windows and earns an allowance. Each check has three bits, so
/// a forger who starts from a right guess has 15 more to guess, and one wrong check begins again
/// (`forger_with_a_right_guess_draws_at_most_an_allowance`). A block of the ToR is 16 cells.
pub(crate) const PROOF_CELLS: u8 = 5;

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

    /// Segments that a sender made of it may send before another acknowledgement.
    pub(crate) fn first_credit(&self) -> u32 {
        match (self.near, self.full) {
            (true, true) => UNPROVEN_SEGMENTS,
            (true, false) => UNPROVEN_NARROW_SEGMENTS,
            (false, _) => 0,
        }
    }
}
