//! The verdict on a request: terminate, continue or split, and the numbers of the responses
//! (section 2.5).
//!
//! The server uses this function to decide, the client to predict. It is pure arithmetic over the
//! sealed continuation and the proof; nonces and MACs are checked elsewhere. `docs/recovery.md`
//! derives the formulas.

use rivulet_packet::{ProofEntry, RequestClass, TransportContinuation};

use crate::cwnd::Piece;
pub use crate::decision::{Decision, Fresh, Go, Numbers, VerdictError};
use crate::history::History;

/// Initial window in packets (RFC 6928).
pub const INITIAL_WINDOW: u16 = 10;
/// Window after a timeout or restart: the loss window of RFC 5681.
pub const LOSS_WINDOW: u16 = 1;
/// Slow-start threshold of a new connection: arbitrarily high (RFC 5681 section 3.1).
pub const INITIAL_SSTHRESH: u16 = u16::MAX;
/// burstLimit: the numbers of one run of losses that a single request can have retransmitted.
pub const BURST_LIMIT: u32 = 10;
/// Maximum number of responses to a request: a full burst, its group, and a window of two.
pub const MAX_RESPONSES: usize = 16;

/// The piece in a continuation.
pub fn piece_of(c: &TransportContinuation) -> Piece {
    Piece { tcp_base: c.tcp_base, start_cwnd: c.start_cwnd.max(1), ssthresh: c.ssthresh, gain: c.gain }
}

/// Decides the verdict. `entries` is the proof; `covers` is 1 or 2.
///
/// # Errors
/// [`VerdictError`]: the request is refused.
pub fn decide(
    class: RequestClass,
    c: &TransportContinuation,
    covers: u8,
    entries: impl Iterator<Item = ProofEntry> + Clone,
) -> Result<Decision, VerdictError> {
    let piece = piece_of(c);
    if class == RequestClass::Restart {
        // A proof without ranges: the window in which the continuation was issued, halved.
        let ssthresh = piece.after_loss(answered_before(c)) as u16;
        return Ok(fresh(LOSS_WINDOW, ssthresh, true, false, false));
    }
    let settled = settled(c);
    let mut history = History::read(c.base, c.number, settled, c.first, entries)?;
    if opens(c) {
        // A window of which nothing was sent yet is not reduced. (Opening responses are not sent as
        // ECN-capable.)
        history.first_mark = None;
    }
    match class {
        RequestClass::Normal | RequestClass::Probe => {
            let go = match history.first_event() {
                None => advance(c, &piece, &history, covers)?,
                Some(_) if covers != 1 => return Err(VerdictError::Covers),
                Some(event) => recover(c, &piece, &history, c.base.wrapping_add(event))?,
            };
            if class == RequestClass::Probe { probe(go) } else { Ok(Decision::Go(go)) }
        }
        RequestClass::Timeout => {
            let before = match history.first_loss {
                Some(loss) => c.base.wrapping_add(loss).wrapping_sub(1),
                None => c.number,
            };
            Ok(fresh(LOSS_WINDOW, piece.after_loss(before) as u16, true, true, false))
        }
        RequestClass::Rekey => {
            let window = piece.cwnd(answered_before(c));
            let top = if opens(c) { c.number } else { answered_before(c).wrapping_add(window) };
            if history.first_event().is_some() || c.number != top {
                return Err(VerdictError::NotDrained);
            }
            // RFC 5681 section 4.1: the restart window. There was no loss, so the threshold stays.
            let start = (window as u16).min(INITIAL_WINDOW);
            Ok(fresh(start, piece.kept_threshold(window as u16), false, true, true))
        }
        RequestClass::Close => Ok(Decision::Close),
        _ => Err(VerdictError::Class),
    }
}

fn fresh(start_cwnd: u16, ssthresh: u16, prime: bool, data: bool, rekey: bool) -> Decision {
    Decision::Fresh(Fresh { start_cwnd, ssthresh, count: u32::from(start_cwnd), prime, data, rekey })
}

/// Whether this is the answer to a SYN; its request proves the address and splits into the initial
/// window.
pub(crate) fn opens(c: &TransportContinuation) -> bool {
    c.number == c.tcp_base && c.base == c.number
}

/// How many offsets of the proof precede the piece: the surviving part of the window in which the
/// last recovery began.
pub(crate) fn settled(c: &TransportContinuation) -> u32 {
    let before = c.tcp_base.wrapping_add(1).wrapping_sub(c.base);
    if opens(c) || before >= 1 << 31 { 0 } else { before }
}

/// The last number known to be answered when this continuation was issued. Its window depends on
/// these numbers only.
pub fn answered_before(c: &TransportContinuation) -> u32 {
    c.base.wrapping_add(settled(c)).wrapping_sub(1)
}

/// Without a loss: continue, and split where TCP's window grows.
fn advance(c: &TransportContinuation, piece: &Piece, h: &History, covers: u8) -> Result<Go, VerdictError> {
    let k = c.number;
    let base = k.wrapping_add(1);
    if opens(c) {
        if covers != 1 {
            return Err(VerdictError::Covers);
        }
        let new = Numbers { first: base, count: u32::from(piece.start_cwnd) };
        return Ok(Go { new, data: true, piece: Some(*piece), base, ..Go::default() });
    }
    let settled = settled(c);
    if h.own < settled {
        return survive_late(c, piece, h, covers);
    }
    let delayed = u32::from(covers) - 1;
    let j = k.wrapping_sub(delayed);
    // Two numbers that restore a returned window have more responses than one request allows.
    if delayed > h.own - settled || (delayed > 0 && piece.is_jumping(j)) {
        return Err(VerdictError::Covers);
    }
    let before = piece.cwnd(j.wrapping_sub(1));
    let new = Numbers { first: j.wrapping_add(before), count: 1 + delayed + piece.cwnd(k) - before };
    // A run of losses here is the tail of the previous window, and every one of these trickles
    // survives.
    let retransmit = share_of_run(k, h, before);
    Ok(Go { retransmit, group: retransmit, new, data: true, piece: Some(*piece), base, ..Go::default() })
}

/// A survivor of the last recovery that was lost at the tail of its window and regenerated in the
/// next one continues like the other survivors.
fn survive_late(
    c: &TransportContinuation,
    piece: &Piece,
    h: &History,
    covers: u8,
) -> Result<Go, VerdictError> {
    if covers != 1 {
        return Err(VerdictError::Covers);
    }
    let retransmit = share_of_run(c.number, h, u32::from(piece.start_cwnd));
    let new = Numbers { first: c.number.wrapping_add(u32::from(piece.start_cwnd)), count: 1 };
    Ok(Go {
        retransmit,
        group: retransmit,
        new,
        data: true,
        piece: Some(*piece),
        base: c.base,
        ..Go::default()
    })
}

/// Fast retransmit and recovery after the loss or mark at `event`.
fn recover(c: &TransportContinuation, piece: &Piece, h: &History, event: u32) -> Result<Go, VerdictError> {
    let k = c.number;
    let cwnd_at_loss = piece.cwnd(event.wrapping_sub(1));
    let new_cwnd = piece.after_loss(event.wrapping_sub(1));
    if k.wrapping_sub(event) >= cwnd_at_loss {
        return Err(VerdictError::BeyondWindow);
    }
    // Condition (a): the last newCwnd trickles of the window survive.
    let survives = |number: u32| cwnd_at_loss - number.wrapping_sub(event) <= new_cwnd;
    let top = event.wrapping_add(cwnd_at_loss); // the first number of the new window
    let new = match survives(k) {
        false => Numbers::default(),
        // In a window of one, the only trickle has to split into two.
        true if new_cwnd > cwnd_at_loss => Numbers { first: top, count: new_cwnd },
        true => Numbers { first: k.wrapping_add(new_cwnd), count: 1 },
    };
    let retransmit = share_of_run(k, h, new_cwnd);
    // Condition (b): lost trickles that would have survived. They are the last ones of the share.
    let group =
        retransmit.iter().filter(|n| n.wrapping_sub(event) < cwnd_at_loss && survives(*n)).count() as u32;
    let behind = retransmit.first.wrapping_add(retransmit.count);
    Ok(Go {
        retransmit,
        group: Numbers { first: behind.wrapping_sub(group), count: group },
        new,
        data: true,
        piece: Some(piece.next(event.wrapping_sub(1), top.wrapping_sub(1))),
        // The proof continues to cover the survivors. Survivors lost at the tail of this window are
        // regenerated by the first number of the new window, which follows their run of losses.
        base: top.wrapping_sub(new_cwnd.min(cwnd_at_loss)),
        ..Go::default()
    })
}

/// The part of the run of losses before its range that the request for `k` has retransmitted. The
/// number directly after the run takes the last burstLimit of it, the next number those before, and
/// so on. A single number would repair a long run, as after an overshooting slow start, at only
/// burstLimit per round trip. All shares together are half a window at most, because their
/// responses arrive in one burst.
fn share_of_run(k: u32, h: &History, window: u32) -> Numbers {
    let (taken, shares) = (h.place.saturating_mul(BURST_LIMIT), (window / (2 * BURST_LIMIT)).max(1));
    if h.place >= shares || taken >= h.run {
        return Numbers { first: k, count: 0 };
    }
    let count = (h.run - taken).min(BURST_LIMIT);
    Numbers { first: k.wrapping_sub(h.place + taken + count), count }
}

/// A PROBE gets the last response of the verdict, under K' and without data.
fn probe(go: Go) -> Result<Decision, VerdictError> {
    if go.new.count == 0 {
        return Err(VerdictError::NothingToProbe);
    }
    let last = Numbers { first: go.new.first.wrapping_add(go.new.count - 1), count: 1 };
    let none = Numbers::default();
    Ok(Decision::Go(Go { new: last, prime: true, data: false, retransmit: none, group: none, ..go }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rivulet_packet::EntryKind::{Original, Retransmitted};

    fn continuation(number: u32, base: u32, piece: Piece) -> TransportContinuation {
        TransportContinuation {
            number,
            base,
            tcp_base: piece.tcp_base,
            start_cwnd: piece.start_cwnd,
            ssthresh: piece.ssthresh,
            gain: piece.gain,
            ..TransportContinuation::default()
        }
    }

    fn o(first: u16, last: u16) -> ProofEntry {
        ProofEntry::range(Original, first, last, 0)
    }

    fn go(c: &TransportContinuation, entries: &[ProofEntry]) -> Go {
        match decide(RequestClass::Normal, c, 1, entries.iter().copied()) {
            Ok(Decision::Go(go)) => go,
            other => panic!("expected to go on, got {other:?}"),
        }
    }

    const CA: Piece = Piece { tcp_base: 99, start_cwnd: 10, ssthresh: 10, gain: 0 };

    #[test]
    fn the_answer_to_a_syn_splits_into_the_initial_window() {
        let piece = Piece { tcp_base: 7, start_cwnd: INITIAL_WINDOW, ssthresh: INITIAL_SSTHRESH, gain: 0 };
        // A mark on it, which a broken router may set, does not reduce a window.
        for proof in [&[o(0, 0)][..], &[o(0, 0), ProofEntry::mark(0)]] {
            let go = go(&continuation(7, 7, piece), proof);
            assert_eq!((go.new, go.base), (Numbers { first: 8, count: 10 }, 8));
        }
    }

    #[test]
    fn loss_free_numbers_are_dense() {
        for (start, ssthresh) in [(1, 64), (1, 4), (2, 2), (10, 10), (10, 1000)] {
            let piece = Piece { tcp_base: 1000, start_cwnd: start, ssthresh, gain: 0 };
            let mut next = 1001 + u32::from(start);
            for k in 1001..1400 {
                let go = go(&continuation(k, k, piece), &[o(0, 0)]);
                assert_eq!(go.new.first, next, "start {start}, ssthresh {ssthresh}, k {k}");
                next += go.new.count;
            }
        }
    }

    /// A returned window: ten numbers get ten responses each, numbered without gaps, and the window
    /// is restored.
    #[test]
    fn ten_numbers_bring_a_window_back() {
        let piece = Piece { tcp_base: 999, start_cwnd: 10, ssthresh: u16::MAX, gain: 8 };
        let mut next = 1010;
        for k in 1000..1110 {
            let go = go(&continuation(k, k, piece), &[o(0, 0)]);
            assert_eq!((go.new.first, go.new.count), (next, if k < 1010 { 10 } else { 2 }), "k {k}");
            next += go.new.count;
        }
        let c = continuation(1001, 1000, piece);
        let both = decide(RequestClass::Normal, &c, 2, [o(0, 1)].into_iter());
        assert_eq!(both, Err(VerdictError::Covers), "more answers than a request has");
    }

    /// Number 1030 of a window of 100 is lost, which 1000 to 1009 restored. 30 numbers were
    /// acknowledged, so 15 trickles are left.
    #[test]
    fn loss_in_returned_window_leaves_half_of_its_acknowledged_part() {
        let piece = Piece { tcp_base: 999, start_cwnd: 10, ssthresh: u16::MAX, gain: 8 };
        let at_loss = piece.cwnd(1029);
        assert_eq!(at_loss, 120);
        let survivors = (1031..1030 + at_loss).filter(|k| {
            let got = go(&continuation(*k, 1000, piece), &[o(0, 29), o(31, (k - 1000) as u16)]);
            let whole = Piece { tcp_base: 1149, start_cwnd: 15, ssthresh: 15, gain: 0 };
            assert_eq!(got.piece, Some(whole));
            got.new.count == 1
        });
        assert_eq!(survivors.count(), 15);
    }

    #[test]
    fn delayed_acknowledgements_give_the_numbers_of_one_by_one() {
        let piece = Piece { tcp_base: 1000, start_cwnd: 6, ssthresh: 6, gain: 0 };
        for k in 1002..1100 {
            let one = |k: u32| go(&continuation(k, 1001, piece), &[o(0, (k - 1001) as u16)]).new;
            let c = continuation(k, 1001, piece);
            let proof = [o(0, (k - 1001) as u16)];
            let both = decide(RequestClass::Normal, &c, 2, proof.into_iter()).unwrap();
            let Decision::Go(both) = both else { panic!("{both:?}") };
            assert_eq!(both.new.first, one(k - 1).first);
            assert_eq!(both.new.count, one(k - 1).count + one(k).count);
        }
        let c = continuation(1001, 1001, piece);
        assert_eq!(decide(RequestClass::Normal, &c, 2, [o(0, 0)].into_iter()), Err(VerdictError::Covers));
    }

    /// Window of 10 from 100, number 100 lost: 101 retransmits it, 101 to 104 terminate, 105 to 109
    /// become 110 to 114.
    #[test]
    fn one_loss_ends_the_first_half_and_keeps_the_second() {
        for k in 101..110u32 {
            let got = go(&continuation(k, 100, CA), &[o(1, (k - 100) as u16)]);
            let retransmitted =
                if k == 101 { Numbers { first: 100, count: 1 } } else { Numbers { first: k, count: 0 } };
            assert_eq!(got.retransmit, retransmitted);
            let new = if k >= 105 { Numbers { first: k + 5, count: 1 } } else { Numbers::default() };
            assert_eq!(got.new, new, "k {k}");
            assert_eq!(got.base, 105);
            assert_eq!(got.piece, Some(Piece { tcp_base: 109, start_cwnd: 5, ssthresh: 5, gain: 0 }));
        }
    }

    #[test]
    fn lost_survivors_are_regenerated_by_the_first_after_the_run() {
        // 103 to 106 lost. Window at 102 is 10 (no growth yet), survivors are 108 to 112.
        let got = go(&continuation(107, 100, CA), &[o(0, 2), o(7, 7)]);
        assert_eq!(got.retransmit, Numbers { first: 103, count: 4 });
        assert_eq!(got.group.count, 0);
        // 107 to 109 lost: cwnd at 106 is 10, survivors 112 to 116.
        let got = go(&continuation(110, 105, Piece { tcp_base: 100, ..CA }), &[o(0, 1), o(5, 5)]);
        assert_eq!(got.retransmit, Numbers { first: 107, count: 3 });
        // The tail: event at 101, window 10, survivors 106 to 110; 105 to 108 lost too.
        let c = continuation(109, 101, Piece { tcp_base: 100, ..CA });
        let got = go(&c, &[o(1, 3), o(8, 8)]);
        assert_eq!(got.retransmit, Numbers { first: 105, count: 4 });
        assert_eq!(got.group, Numbers { first: 106, count: 3 });
        assert_eq!(got.new, Numbers { first: 114, count: 1 });
    }

    #[test]
    fn a_long_run_is_shared_by_those_behind_it() {
        // Window of 200 from 1000; 1100 to 1164 lost, so the survivors are 1200 to 1299.
        let piece = Piece { tcp_base: 999, start_cwnd: 200, ssthresh: 200, gain: 0 };
        let share =
            |k: u32| go(&continuation(k, 1000, piece), &[o(0, 99), o(165, (k - 1000) as u16)]).retransmit;
        for place in 0..5 {
            let (last, count) = (1164 - place * 10, 10);
            assert_eq!(share(1165 + place), Numbers { first: last + 1 - count, count }, "place {place}");
        }
        // Half of the new window is enough for one round trip.
        assert!((5..30).all(|place| share(1165 + place).count == 0));
        // The next event's window is a fifth of it: one share.
        let small = Piece { start_cwnd: 20, ssthresh: 20, ..piece };
        let share =
            |k: u32| go(&continuation(k, 1000, small), &[o(0, 0), o(15, (k - 1000) as u16)]).retransmit;
        assert_eq!(share(1015), Numbers { first: 1005, count: 10 });
        assert_eq!(share(1016).count, 0);
        // The last share is the rest of the run. Only its surviving numbers are regenerated.
        let got = go(&continuation(1211, 1000, piece), &[o(0, 99), o(210, 211)]);
        assert_eq!(got.retransmit, Numbers { first: 1190, count: 10 });
        assert_eq!(got.group, Numbers { first: 1200, count: 0 });
        let got = go(&continuation(1216, 1000, piece), &[o(0, 99), o(215, 216)]);
        assert_eq!((got.retransmit.first, got.group), (1195, Numbers { first: 1200, count: 5 }));
        let got = go(&continuation(1206, 1000, piece), &[o(0, 189), o(205, 206)]);
        assert_eq!(got.retransmit, Numbers { first: 1190, count: 5 });
    }

    #[test]
    fn a_mark_ends_trickles_from_the_marked_one_and_retransmits_nothing() {
        let mark = ProofEntry::mark(0);
        for k in 100..110u32 {
            let got = go(&continuation(k, 100, CA), &[o(0, (k - 100) as u16), mark]);
            assert_eq!(got.retransmit.count, 0);
            assert_eq!(got.new.count, u32::from(k >= 105), "k {k}");
        }
    }

    #[test]
    fn a_window_of_one_becomes_two() {
        let piece = Piece { tcp_base: 99, start_cwnd: 1, ssthresh: 5, gain: 0 };
        let c = continuation(100, 100, piece);
        let entry = ProofEntry::range(Retransmitted, 0, 0, 0);
        assert_eq!(go(&c, &[entry]).new, Numbers { first: 101, count: 2 });
        let opening = TransportContinuation { first: true, ..c };
        let got = go(&opening, &[entry]);
        assert_eq!(
            (got.new, got.piece),
            (Numbers { first: 101, count: 2 }, Some(piece)),
            "slow start goes on"
        );
    }

    #[test]
    fn a_probe_gets_one_answer_and_no_data() {
        let piece = Piece { tcp_base: 99, start_cwnd: 4, ssthresh: 100, gain: 0 };
        let c = continuation(101, 100, piece);
        let got = decide(RequestClass::Probe, &c, 1, [o(0, 1)].into_iter()).unwrap();
        let Decision::Go(got) = got else { panic!("{got:?}") };
        assert_eq!((got.new, got.prime, got.data), (Numbers { first: 107, count: 1 }, true, false));
        let c = continuation(101, 100, CA);
        let ended = decide(RequestClass::Probe, &c, 1, [o(1, 1)].into_iter());
        assert_eq!(ended, Err(VerdictError::NothingToProbe));
    }

    #[test]
    fn rekey_needs_a_drained_window() {
        let ask = |number: u32, entries: &[ProofEntry]| {
            decide(RequestClass::Rekey, &continuation(number, 100, CA), 1, entries.iter().copied())
        };
        assert_eq!(ask(108, &[o(0, 8)]), Err(VerdictError::NotDrained));
        assert_eq!(ask(109, &[o(0, 3), o(5, 9)]), Err(VerdictError::NotDrained));
        let Ok(Decision::Fresh(fresh)) = ask(109, &[o(0, 9)]) else { panic!() };
        assert_eq!((fresh.start_cwnd, fresh.ssthresh, fresh.prime), (10, 10, false));
    }

    #[test]
    fn timeout_halves_the_window_at_the_first_loss() {
        let c = continuation(109, 100, CA);
        let Ok(Decision::Fresh(f)) = decide(RequestClass::Timeout, &c, 1, [o(1, 9)].into_iter()) else {
            panic!()
        };
        assert_eq!((f.start_cwnd, f.ssthresh, f.count), (1, 5, 1));
    }
}
