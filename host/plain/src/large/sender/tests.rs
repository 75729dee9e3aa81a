use super::*;
use crate::large::due::Due;

fn acknowledged<'a>(at: u32, beyond: &'a [(u32, u32)]) -> Acknowledgement<'a> {
    Acknowledgement { at, near: true, full: true, ..Acknowledgement::first(beyond, 10_000_000) }
}

fn sent(sender: &mut Sender, now: Time) -> Vec<Due> {
    core::iter::from_fn(|| sender.next(u32::MAX, now)).collect()
}

/// After a repair the client acknowledges a whole window at once, most of which it had reported by
/// SACK. When that data counted again, the window grew by one more segment after each loss: half as
/// much again as Reno's share with windows of five segments.
#[test]
fn sacked_data_is_not_counted_twice() {
    let mut sender = Sender::begin(Class::of(1460).unwrap(), 10_000_000, 10_000_000);
    let first = sent(&mut sender, 0);
    assert_eq!(first.len(), 10);
    // The first segment is lost.
    for (n, due) in (1..).zip(&first[1..]) {
        let now = 10_000 + n;
        sender.hear(&acknowledged(0, &[(first[1].from, due.to)]), now);
        sent(&mut sender, now);
    }
    assert_eq!(sender.cwnd(), 5 * sender.full());
    sender.hear(&acknowledged(sender.nxt, &[]), 20_000);
    assert!(sender.recover.is_none());
    assert_eq!(sender.cwnd(), 5 * sender.full());
}

/// Half of a window of five segments is two, as where windows are counted in segments.
#[test]
fn half_of_a_window_is_whole_segments() {
    let mut sender = Sender::begin(Class::of(1460).unwrap(), 10_000_000, 10_000_000);
    let first = sent(&mut sender, 0);
    for (n, due) in (1..).zip(&first[1..]) {
        sender.hear(&acknowledged(0, &[(first[1].from, due.to)]), 10_000 + n);
        sent(&mut sender, 10_000 + n);
    }
    let next = sender.nxt;
    sender.hear(&acknowledged(next, &[]), 20_000);
    let second = sent(&mut sender, 20_000);
    assert_eq!(second.len(), 5);
    for (n, due) in (1..).zip(&second[1..]) {
        sender.hear(&acknowledged(next, &[(second[1].from, due.to)]), 30_000 + n);
        sent(&mut sender, 30_000 + n);
    }
    assert_eq!(sender.cwnd(), 2 * sender.full());
}

/// A sender for a client in the middle of a window of 700 segments, on a replica that did not serve
/// it before.
fn resumed(at: u32) -> Sender {
    let heard = Acknowledgement { told: 1 << 20, ..acknowledged(at, &[]) };
    Sender::resume(Class::of(1460).unwrap(), 100_000_000, &heard, 0)
}

/// One guess that is right in all parts draws ten segments. Acknowledgements of what other replicas
/// sent draw no more, however many there are; the first one of data of this sender does.
#[test]
fn ten_segments_are_sent_before_own_data_is_acknowledged() {
    let full = resumed(0).full();
    let at = 1000 * full;
    let mut sender = resumed(at);
    assert_eq!(sent(&mut sender, 0).len(), 10);
    let (own, mut acked) = (sender.own, at);
    while acked < own - 46 * full {
        // Two segments, or 44 at once, as receivers combine acknowledgements.
        for step in [2, 44] {
            acked += step * full;
            sender.hear(&acknowledged(acked, &[]), 20_000);
            sender.hear(&acknowledged(acked, &[]), 40_000);
            assert!(sent(&mut sender, 40_000).is_empty(), "{acked} of {own}");
        }
    }
    sender.hear(&acknowledged(own + full, &[]), 60_000);
    assert!((10..=48).contains(&sent(&mut sender, 60_000).len()));
    sender.hear(&acknowledged(own + 3 * full, &[]), 80_000);
    assert_eq!(sent(&mut sender, 80_000).len(), 10);
    // Other replicas sent meanwhile. The client has acknowledged data of this one before.
    let at = sender.nxt + 1000 * full;
    sender.hear(&Acknowledgement { told: 1 << 20, ..acknowledged(at, &[]) }, 100_000);
    assert_eq!(sent(&mut sender, 100_000).len(), 10);
    sender.hear(&acknowledged(at + 2 * full, &[]), 120_000);
    assert_eq!(sent(&mut sender, 120_000).len(), 10);
}

/// If all ten segments are lost, the client's answer to a probe releases ten more. Another
/// acknowledgement of the same offset releases none.
#[test]
fn answered_probe_releases_ten_segments() {
    let full = resumed(0).full();
    let at = 1000 * full;
    let mut sender = resumed(at);
    assert_eq!(sent(&mut sender, 0).len(), 10);
    for now in [1_000_000, 3_000_000] {
        sender.late(now);
        let probe = sent(&mut sender, now);
        assert_eq!(probe.iter().map(|due| (due.from, due.to)).collect::<Vec<_>>(), [(at - 8, at)]);
        sender.hear(&Acknowledgement { twice: Some((at - 8, at)), ..acknowledged(at, &[]) }, now + 1000);
        let repairs = sent(&mut sender, now + 1000);
        assert!((1..=10).contains(&repairs.len()) && repairs[0].from == at, "{repairs:?}");
        let mut more = 0;
        for n in 0..5 {
            sender.hear(&acknowledged(at, &[]), now + 2000 + n);
            more += sent(&mut sender, now + 2000 + n).len();
        }
        assert!(repairs.len() + more <= 10, "{more}");
    }
}

/// A report by SACK of data of this sender counts as its acknowledgement, so that a hole below it is
/// repaired at once.
#[test]
fn sack_of_own_data_releases_repairs() {
    let full = resumed(0).full();
    let mut sender = resumed(1000 * full);
    sent(&mut sender, 0);
    let own = sender.own;
    sender.hear(&acknowledged(own - full, &[]), 1000);
    assert!(sent(&mut sender, 1000).is_empty());
    sender.hear(&acknowledged(own - full, &[(own, own + 4 * full)]), 2000);
    let repairs = sent(&mut sender, 2000);
    assert!(repairs.iter().any(|due| (due.from, due.to) == (own - full, own)), "{repairs:?}");
}

/// Acknowledges this many cells, each with a right check. Returns the segments that they release, and
/// the bytes that they add to the allowance.
fn acknowledge_cells(sender: &mut Sender, cells: u32) -> (usize, u32) {
    let (mut segments, mut earned) = (0, 0);
    for _ in 0..cells {
        let at = sender.whole_segments(sender.una, sender.una + CELL).min(sender.nxt);
        let heard = Acknowledgement { cell: at / CELL, ..acknowledged(at, &[]) };
        earned += sender.hear(&heard, 1000);
        segments += sent(sender, 1000).len();
    }
    (segments, earned)
}

/// A check has three bits; five right ones in a row prove 15.
#[test]
fn right_checks_of_five_cells_release_a_window() {
    let mut sender = resumed(1000 * 1448);
    sent(&mut sender, 0);
    // Another replica sent all but an eighth of the window.
    let (segments, earned) = acknowledge_cells(&mut sender, 14);
    assert!(segments <= 14 * 48 && earned == 0, "{segments} {earned}");
    let (_, earned) = acknowledge_cells(&mut sender, 1);
    assert!((1..=CELL).contains(&earned) && sender.credit == u32::MAX, "{earned} {}", sender.una);
}

/// A wrong check near the client's position cancels this; one far from it does not.
#[test]
fn wrong_check_cancels_right_checks() {
    let mut sender = resumed(1000 * 1448);
    sent(&mut sender, 0);
    acknowledge_cells(&mut sender, 20);
    sender.doubt(sender.nxt + 1);
    sender.doubt(sender.una - CELL - 1);
    assert_eq!(sender.credit, u32::MAX);
    sender.doubt(sender.una);
    let (segments, earned) = acknowledge_cells(&mut sender, 4);
    assert!(segments <= 50 && earned == 0, "{segments} {earned}");
    let (segments, earned) = acknowledge_cells(&mut sender, 1);
    assert!(segments > 50 && earned > 3 * CELL, "{segments} {earned}");
}

/// After a repair a client acknowledges many cells at once, perhaps to a replica that does not know
/// it. That replica sends a probe at once, and the answer, which echoes the probe's own timestamp,
/// releases ten segments.
#[test]
fn client_far_from_its_stamp_answers_a_probe() {
    let full = resumed(0).full();
    let at = 1000 * full;
    let far = Acknowledgement { told: 1 << 20, near: false, repair: true, ..acknowledged(at, &[]) };
    let mut sender = Sender::resume(Class::of(1460).unwrap(), 100_000_000, &far, 0);
    let probe = sent(&mut sender, 0);
    assert_eq!(probe.iter().map(|due| (due.from, due.to)).collect::<Vec<_>>(), [(at - 8, at)]);
    // A second acknowledgement far from its cell proves nothing.
    sender.hear(&Acknowledgement { near: false, ..acknowledged(at + full, &[]) }, 1000);
    assert!(sent(&mut sender, 1000).is_empty());
    sender.hear(&acknowledged(at + full, &[]), 2000);
    assert_eq!(sent(&mut sender, 2000).len(), 10);
}

/// Bytes that the client reports by SACK above all that this sender sent came from other replicas: their acknowledgement earns nothing.
#[test]
fn sacked_bytes_of_others_earn_nothing() {
    let mut sender = resumed(1_000_000);
    sent(&mut sender, 0);
    let (at, sacked) = (sender.una, (sender.nxt + 1_000_000, sender.nxt + 1_001_460));
    sender.hear(&acknowledged(at, &[sacked]), 1000);
    let earned =
        sender.hear(&Acknowledgement { cell: sender.began + 1, ..acknowledged(sacked.1, &[]) }, 2000);
    assert_eq!((earned, sender.credit < u32::MAX), (0, true));
}
