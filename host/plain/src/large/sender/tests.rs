use super::*;

fn heard<'a>(at: u32, beyond: &'a [(u32, u32)]) -> Heard<'a> {
    Heard { at, near: true, full: true, ..Heard::first(beyond, 10_000_000) }
}

fn sent(sender: &mut Sender, now: Time) -> Vec<Due> {
    core::iter::from_fn(|| sender.next(u32::MAX, now)).collect()
}

/// Behind a repair the client acknowledges a whole window at once, most of which it had told of before: counted again it made the window
/// grow by a segment more after each loss, which was half as much again as Reno's share where windows are of five.
#[test]
fn what_was_told_of_before_is_not_counted_again() {
    let mut sender = Sender::begin(Class::of(1460).unwrap(), 10_000_000, 10_000_000);
    let first = sent(&mut sender, 0);
    assert_eq!(first.len(), 10);
    // The first is lost.
    for (n, due) in (1..).zip(&first[1..]) {
        let now = 10_000 + n;
        sender.hear(&heard(0, &[(first[1].from, due.to)]), now);
        sent(&mut sender, now);
    }
    assert_eq!(sender.cwnd(), 5 * sender.full());
    sender.hear(&heard(sender.nxt, &[]), 20_000);
    assert!(sender.recover.is_none());
    assert_eq!(sender.cwnd(), 5 * sender.full());
}

/// Of a window of five segments two remain, as where windows are counted in segments.
#[test]
fn half_of_a_window_is_whole_segments() {
    let mut sender = Sender::begin(Class::of(1460).unwrap(), 10_000_000, 10_000_000);
    let first = sent(&mut sender, 0);
    for (n, due) in (1..).zip(&first[1..]) {
        sender.hear(&heard(0, &[(first[1].from, due.to)]), 10_000 + n);
        sent(&mut sender, 10_000 + n);
    }
    let next = sender.nxt;
    sender.hear(&heard(next, &[]), 20_000);
    let second = sent(&mut sender, 20_000);
    assert_eq!(second.len(), 5);
    for (n, due) in (1..).zip(&second[1..]) {
        sender.hear(&heard(next, &[(second[1].from, due.to)]), 30_000 + n);
        sent(&mut sender, 30_000 + n);
    }
    assert_eq!(sender.cwnd(), 2 * sender.full());
}
