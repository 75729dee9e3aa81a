//! What a proof shows about the numbers up to the answered one.
//!
//! A proof may extend beyond that number, but only its prefix counts, so that every trickle sees
//! the same history as the trickles before it (the prefix property, section 2.4). Nonce sums are
//! checked in [`crate::nonces`]; this module assumes that they are right.

use rivulet_packet::{EntryKind, ProofEntry};

/// Why a proof cannot belong to its continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The number is before the base, or 65,536 or more after it.
    #[error("the number answered is outside of the proof's reach")]
    OutOfReach,
    /// No range includes the answered number, so the proof does not show its receipt.
    #[error("the proof lacks the nonce of the number answered")]
    OwnNonceMissing,
}

/// Losses and marks among `base..=number`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// The answered number minus base.
    pub own: u32,
    /// The answered number was lost once and received under K'.
    pub own_retransmitted: bool,
    /// Offset of the first number not received as an original. Numbers received only under K' count
    /// as lost.
    pub first_loss: Option<u32>,
    /// Offset of the first number with an ECN mark.
    pub first_mark: Option<u32>,
    /// Number of consecutive losses directly before the range of received numbers that holds the
    /// answered number.
    pub run: u32,
    /// Position of the answered number in its range; 0 directly follows the run of losses.
    pub place: u32,
}

impl History {
    /// Reads the prefix up to `number`. The first `settled` offsets precede the loss-free piece:
    /// the recovery that began the piece already reduced the window for their losses, so they count
    /// only for the run. `opens_generation`: the answered number is the first of a generation
    /// opened under K', which is not a loss.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn read(
        base: u32,
        number: u32,
        settled: u32,
        opens_generation: bool,
        entries: impl Iterator<Item = ProofEntry> + Clone,
    ) -> Result<Self, ProofError> {
        let own = number.wrapping_sub(base);
        if own > u32::from(u16::MAX) {
            return Err(ProofError::OutOfReach);
        }
        let mut history =
            Self { own, own_retransmitted: false, first_loss: None, first_mark: None, run: 0, place: 0 };
        let mut reached = false;
        let mut next = 0; // offset of the first number about which nothing was read yet
        for entry in entries {
            let (first, last) = (u32::from(entry.first), u32::from(entry.last));
            match entry.kind {
                EntryKind::Original | EntryKind::Retransmitted if !reached => {
                    let retransmitted = entry.kind == EntryKind::Retransmitted;
                    if first > next.max(settled) {
                        history.first_loss.get_or_insert(next.max(settled));
                    }
                    if first > own {
                        return Err(ProofError::OwnNonceMissing);
                    }
                    let excepted = opens_generation && first == 0 && own == 0;
                    if retransmitted && last.min(own) >= settled && !excepted {
                        history.first_loss.get_or_insert(first.max(settled));
                    }
                    if last >= own {
                        reached = true;
                        history.own_retransmitted = retransmitted;
                        (history.run, history.place) = (first.saturating_sub(next), own - first);
                    }
                    next = last + 1;
                }
                EntryKind::Mark if first <= own && first >= settled => {
                    history.first_mark = Some(history.first_mark.map_or(first, |m| m.min(first)));
                }
                _ => {}
            }
        }
        if reached { Ok(history) } else { Err(ProofError::OwnNonceMissing) }
    }

    /// Offset of the loss or mark that ends the loss-free piece, if any.
    pub fn first_event(&self) -> Option<u32> {
        match (self.first_loss, self.first_mark) {
            (Some(loss), Some(mark)) => Some(loss.min(mark)),
            (loss, mark) => loss.or(mark),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn o(first: u16, last: u16) -> ProofEntry {
        ProofEntry::range(EntryKind::Original, first, last, 0)
    }
    fn r(first: u16, last: u16) -> ProofEntry {
        ProofEntry::range(EntryKind::Retransmitted, first, last, 0)
    }
    fn read(number: u32, entries: &[ProofEntry]) -> Result<History, ProofError> {
        History::read(100, number, 0, false, entries.iter().copied())
    }

    #[test]
    fn whole_proof_has_no_event() {
        let h = read(105, &[o(0, 5)]).unwrap();
        assert_eq!((h.own, h.first_event(), h.run), (5, None, 0));
    }

    #[test]
    fn gap_before_the_number_is_its_run() {
        let h = read(105, &[o(0, 1), o(5, 5)]).unwrap();
        assert_eq!((h.first_loss, h.run), (Some(2), 3));
        let h = read(107, &[o(0, 1), o(5, 7)]).unwrap();
        assert_eq!((h.first_loss, h.run, h.place), (Some(2), 3, 2));
    }

    #[test]
    fn retransmitted_numbers_stay_lost_but_end_a_run() {
        let h = read(105, &[o(0, 1), r(3, 4), o(5, 5)]).unwrap();
        assert_eq!((h.first_loss, h.run, h.own_retransmitted), (Some(2), 0, false));
        let h = read(104, &[o(0, 1), r(3, 4), o(5, 5)]).unwrap();
        assert_eq!((h.first_loss, h.run, h.place, h.own_retransmitted), (Some(2), 1, 1, true));
        let h = read(103, &[o(0, 1), r(3, 4)]).unwrap();
        assert_eq!((h.first_loss, h.run), (Some(2), 1));
    }

    #[test]
    fn numbers_after_the_answered_one_do_not_count() {
        let h = read(102, &[o(0, 2), o(5, 5), ProofEntry::mark(4)]).unwrap();
        assert_eq!(h.first_event(), None);
    }

    #[test]
    fn settled_losses_count_for_the_run_alone() {
        let read = |number: u32, settled, entries: &[ProofEntry]| {
            History::read(100, number, settled, false, entries.iter().copied()).unwrap()
        };
        let h = read(105, 5, &[o(1, 2), o(5, 5)]);
        assert_eq!((h.first_loss, h.run), (None, 2));
        let h = read(107, 5, &[o(1, 2), o(7, 7)]);
        assert_eq!((h.first_loss, h.run), (Some(5), 4));
        let h = read(104, 5, &[o(1, 2), r(3, 4), o(5, 5)]);
        assert_eq!((h.first_loss, h.own_retransmitted), (None, true));
        let h = read(105, 5, &[o(1, 2), r(3, 5)]);
        assert_eq!(h.first_loss, Some(5));
        assert_eq!(read(105, 5, &[o(0, 5), ProofEntry::mark(4)]).first_mark, None);
    }

    #[test]
    fn proof_must_include_the_answered_number() {
        assert_eq!(read(102, &[o(0, 1)]), Err(ProofError::OwnNonceMissing));
        assert_eq!(read(102, &[o(0, 1), o(3, 4)]), Err(ProofError::OwnNonceMissing));
        assert_eq!(read(102, &[]), Err(ProofError::OwnNonceMissing));
        assert_eq!(read(99, &[o(0, 1)]), Err(ProofError::OutOfReach));
        assert_eq!(read(100 + 65_536, &[o(0, 1)]), Err(ProofError::OutOfReach));
    }

    #[test]
    fn a_generation_may_open_under_the_other_key() {
        let h = History::read(100, 100, 0, true, [r(0, 0)].into_iter()).unwrap();
        assert_eq!(h.first_event(), None);
        let h = History::read(100, 101, 0, true, [r(0, 0), o(1, 1)].into_iter()).unwrap();
        assert_eq!(h.first_loss, Some(0), "only the number itself is excepted");
    }
}
