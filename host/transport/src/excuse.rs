//! The excuse: losses that coincide with the exclusion of a replica do not halve the window. Off by default; what it does to the neighbours is
//! measured by the simulator (`docs/simulator.md`).
//!
//! The client names an exclusion in its proof, final like a loss. It is good if the ToR has counted it by now, once for each exclusion and once in
//! ten seconds for a connection, and for so many losses as one replica of N explains. An exclusion that came with an answer and brought no loss
//! is over for the connection: it cannot be kept for a congested day.

use rivulet_packet::{EntryKind, ProofEntry, TransportContinuation};

use crate::cwnd::Piece;
use crate::history::{History, loss_beyond};
use crate::time::Micros;

/// Least time between two excuses of a connection, in the unit of `excused_at` (2^20 us).
pub const INTERVAL: u16 = 10;

/// What a service excuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExcusePolicy {
    /// Replicas that share the service's packets.
    pub replicas: u16,
    /// How long the ToR takes to exclude a silent replica. A client waits so long beyond a round trip before it declares a loss: what it declares
    /// before it hears of the exclusion is not excused.
    pub detection: Micros,
}

impl ExcusePolicy {
    /// The excuse at a moment at which the ToR has counted so many exclusions. What a continuation says is older by a round trip,
    /// and the trickles of one window would not agree on it.
    pub fn at(self, exclusions: u16) -> Excuse {
        Excuse { replicas: self.replicas, exclusions }
    }
}

/// What may be excused now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excuse {
    replicas: u16,
    exclusions: u16,
}

/// Losses that were excused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excused {
    /// By this exclusion.
    pub exclusion: u16,
    /// The number answered lies in the window of the first of them.
    pub is_recent: bool,
}

/// Whether `a` is a later exclusion than `b` (serial numbers, RFC 1982).
pub fn is_later(a: u16, b: u16) -> bool {
    (a.wrapping_sub(b) as i16) > 0
}

impl Excuse {
    /// Takes excused losses out of the history.
    pub(crate) fn apply(
        self,
        c: &TransportContinuation,
        piece: &Piece,
        h: &mut History,
        entries: impl Iterator<Item = ProofEntry> + Clone,
    ) -> Option<Excused> {
        let loss = h.first_loss?;
        let exclusion = entries.clone().find(|e| e.kind == EntryKind::Excuse)?.first;
        let counted = !is_later(exclusion, self.exclusions);
        if !counted || !is_later(exclusion, c.excused) || !has_rested(c, INTERVAL) {
            return None;
        }
        let window = piece.cwnd(c.base.wrapping_add(loss).wrapping_sub(1));
        let allowed = 2 * window.div_ceil(u32::from(self.replicas.max(1))) + 1;
        h.first_loss = loss_beyond(h.own, allowed, entries);
        Some(Excused { exclusion, is_recent: h.own - loss < window })
    }
}

/// Whether the last excuse of the connection is so long ago.
pub fn has_rested(c: &TransportContinuation, units: u16) -> bool {
    c.excused_at == 0 || ((c.time >> 20) as u16).wrapping_sub(c.excused_at) >= units
}

/// The exclusion that is over when a request with this continuation reports no loss: the one that the ToR had counted when the continuation
/// was issued.
pub(crate) fn settled(c: &TransportContinuation) -> Option<u16> {
    is_later(c.exclusions, c.excused).then_some(c.exclusions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{Decision, Go, Numbers, decide};
    use rivulet_packet::RequestClass;

    /// A window of 10 in congestion avoidance that began behind 99.
    fn continuation(number: u32) -> TransportContinuation {
        TransportContinuation {
            number,
            base: 100,
            tcp_base: 99,
            start_cwnd: 10,
            ssthresh: 10,
            time: 1 << 40,
            ..TransportContinuation::default()
        }
    }

    fn originals(ranges: &[(u16, u16)]) -> Vec<ProofEntry> {
        ranges.iter().map(|(first, last)| ProofEntry::range(EntryKind::Original, *first, *last, 0)).collect()
    }

    fn go(c: &TransportContinuation, ranges: &[(u16, u16)], named: u16, counted: u16) -> Go {
        let mut proof = originals(ranges);
        proof.push(ProofEntry::excuse(named));
        let excuse = Some(ExcusePolicy { replicas: 2, detection: 0 }.at(counted));
        match decide(RequestClass::Normal, c, 1, proof.into_iter(), excuse) {
            Ok(Decision::Go(go)) => go,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn excused_losses_leave_the_window_and_are_all_regenerated() {
        let got = go(&continuation(103), &[(0, 0), (3, 3)], 3, 3);
        assert_eq!(got.new, Numbers { first: 113, count: 1 });
        assert_eq!(
            (got.retransmit, got.group),
            (Numbers { first: 101, count: 2 }, Numbers { first: 101, count: 2 })
        );
        // What follows is judged by the same proof, and no exclusion is used up yet.
        assert_eq!((got.base, got.excused), (100, None));
    }

    #[test]
    fn the_window_after_uses_the_exclusion_up() {
        let got = go(&continuation(112), &[(0, 0), (3, 12)], 3, 3);
        assert_eq!((got.base, got.excused, got.excuses), (113, Some(3), true));
    }

    #[test]
    fn an_exclusion_excuses_once_and_not_before_the_tor_counted_it() {
        let refused = |c, counted| assert_eq!(go(&c, &[(0, 0), (3, 3)], 3, counted).new.count, 0);
        refused(continuation(103), 2);
        refused(TransportContinuation { excused: 3, ..continuation(103) }, 3);
        refused(TransportContinuation { excused: 9, ..continuation(103) }, 9);
        let units = (1u64 << 40 >> 20) as u16;
        refused(
            TransportContinuation { excused: 2, excused_at: units.wrapping_sub(9), ..continuation(103) },
            3,
        );
        let rested =
            TransportContinuation { excused: 2, excused_at: units.wrapping_sub(10), ..continuation(103) };
        assert_eq!(go(&rested, &[(0, 0), (3, 3)], 3, 3).new.count, 1);
    }

    #[test]
    fn what_one_replica_does_not_explain_is_an_event() {
        // Of two replicas with a window of 10, eleven losses are excused: the twelfth is the event.
        let c = TransportContinuation { number: 114, ..continuation(114) };
        let got = go(&c, &[(0, 0), (14, 14)], 3, 3);
        let piece = got.piece.unwrap();
        assert_eq!(piece.start_cwnd, 5, "halved");
        assert_eq!((got.excused, got.excuses), (Some(3), true));
    }

    #[test]
    fn an_exclusion_that_brought_no_loss_is_over() {
        let c = TransportContinuation { exclusions: 7, excused: 3, ..continuation(103) };
        let Ok(Decision::Go(got)) =
            decide(RequestClass::Normal, &c, 1, originals(&[(0, 3)]).into_iter(), None)
        else {
            panic!()
        };
        assert_eq!((got.excused, got.excuses), (Some(7), false));
    }
}
