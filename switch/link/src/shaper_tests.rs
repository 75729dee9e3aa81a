use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn settings(text: &str) -> Settings {
    let mut s = Settings::default();
    s.apply_all(text).unwrap();
    s
}

/// Offers `count` packets of `len` bytes, one every `gap` ns, and returns the deliveries in order.
fn run(text: &str, count: u32, len: usize, gap: u64) -> (Vec<Delivery<u32>>, Counters) {
    let mut shaper = Shaper::new(settings(text), 7);
    let mut out = Vec::new();
    for i in 0..count {
        let now = u64::from(i) * gap;
        while let Some(d) = shaper.pop(now) {
            out.push(d);
        }
        let _ = shaper.offer(now, len, i);
    }
    while let Some(at) = shaper.next_time() {
        let before = (shaper.len(), out.len());
        while let Some(d) = shaper.pop(at) {
            assert!(d.at <= at);
            out.push(d);
        }
        let after = (shaper.len(), out.len());
        assert!(before != after || shaper.next_time() > Some(at), "next_time does not lead on");
    }
    (out, shaper.counters())
}

#[test]
fn delay_is_exact_for_every_packet() {
    let (out, _) = run("delay=5ms", 100, 1000, MS);
    assert!(out.iter().enumerate().all(|(i, d)| d.item == i as u32 && d.at == i as u64 * MS + 5 * MS));
}

#[test]
fn rate_is_exact_over_many_packets() {
    // 1001 bytes at 7 Mb/s: 1,144,000 ns and a fraction each.
    let (out, counters) = run("rate=7mbit queue=10000", 7000, 1001, 1000);
    assert_eq!(counters.delivered, 7000);
    assert_eq!(out.last().unwrap().at, 1001 * 8 * 1000 * MS / 1000);
}

#[test]
fn overhead_counts_towards_the_rate() {
    let (out, _) = run("rate=8mbit overhead=24 queue=100", 10, 976, 0);
    assert_eq!(out.last().unwrap().at, 10 * MS);
}

#[test]
fn idle_link_accumulates_no_credit() {
    let mut shaper = Shaper::new(settings("rate=8mbit"), 0);
    for at in [0, 100 * MS] {
        shaper.offer(at, 1000, ()).unwrap();
        shaper.offer(at, 1000, ()).unwrap();
        assert!(shaper.pop(at + MS - 1).is_none());
        assert_eq!(shaper.pop(at + MS).unwrap().at, at + MS);
        assert!(shaper.pop(at + 2 * MS - 1).is_none());
        assert_eq!(shaper.pop(at + 2 * MS).unwrap().at, at + 2 * MS);
    }
}

#[test]
fn queue_is_bounded_and_marks_from_the_threshold() {
    let (out, counters) = run("rate=8mbit queue=10 ecn=4", 15, 1000, 0);
    assert_eq!((counters.queue_drops, counters.delivered, counters.marked), (5, 10, 6));
    assert_eq!(out.iter().filter(|d| d.mark).map(|d| d.item).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9]);
}

#[test]
fn packets_in_flight_are_bounded_without_a_rate() {
    let (_, counters) = run("delay=1s flight=100", 1000, 100, 1);
    assert_eq!((counters.delivered, counters.flight_drops), (100, 900));
}

#[test]
fn random_events_occur_at_their_probability() {
    let (out, c) = run("loss=1% duplicate=2% reorder=5% delay=1ms", 100_000, 100, 10_000);
    for (name, got, wanted) in
        [("lost", c.lost, 1000), ("twice", c.duplicated, 1980), ("late", c.reordered, 4950)]
    {
        assert!(got.abs_diff(wanted) < wanted / 8, "{name}: {got}, expected about {wanted}");
    }
    assert_eq!(c.delivered, 100_000 - c.lost + c.duplicated);
    let late = out.windows(2).filter(|w| w[0].item > w[1].item).count() as u64;
    assert!(late >= c.reordered / 2 && late <= c.reordered, "{late} out of order of {}", c.reordered);
    assert_eq!(run("loss=1 delay=1ms", 50, 100, 1).1.lost, 50);
}

#[test]
fn jitter_spreads_over_its_range_and_keeps_order() {
    let (out, _) = run("delay=5ms jitter=1ms", 10_000, 100, 10 * MS);
    let delays: Vec<u64> = out.iter().map(|d| d.at - u64::from(d.item) * 10 * MS).collect();
    let (min, max) = (*delays.iter().min().unwrap(), *delays.iter().max().unwrap());
    assert!((4 * MS..4 * MS + MS / 100).contains(&min) && (6 * MS - MS / 100..=6 * MS).contains(&max));
    let mean = delays.iter().sum::<u64>() / delays.len() as u64;
    assert!(mean.abs_diff(5 * MS) < MS / 50, "mean {mean}");
    let (out, _) = run("delay=5ms jitter=5ms", 10_000, 100, 1000);
    assert!(out.windows(2).all(|w| w[0].item < w[1].item && w[0].at <= w[1].at));
}

#[test]
fn new_rate_applies_to_queued_packets() {
    let mut shaper = Shaper::new(settings("rate=8kbit"), 0);
    for i in 0..5 {
        shaper.offer(0, 1000, i).unwrap();
    }
    // Half of the first packet is sent after half a second; the other half takes 0.5 ms now.
    shaper.set(500 * MS, settings("rate=8mbit"));
    assert_eq!(shaper.next_time(), Some(500 * MS + MS / 2));
    let at: Vec<u64> = std::iter::from_fn(|| shaper.pop(600 * MS).map(|d| d.at - 500 * MS)).collect();
    assert_eq!(at, [MS / 2, 3 * MS / 2, 5 * MS / 2, 7 * MS / 2, 9 * MS / 2]);
    shaper.set(600 * MS, settings("rate=8kbit"));
    shaper.offer(600 * MS, 1000, 9).unwrap();
    shaper.offer(600 * MS, 1000, 10).unwrap();
    shaper.set(700 * MS, settings("rate=unlimited"));
    assert_eq!(std::iter::from_fn(|| shaper.pop(700 * MS)).count(), 2);
}

#[test]
fn same_seed_gives_same_result() {
    let text = "rate=10mbit delay=5ms jitter=1ms loss=3% duplicate=3% reorder=3% queue=50";
    assert!(run(text, 5000, 700, 400_000) == run(text, 5000, 700, 400_000));
}

proptest! {
    /// For any settings: each accepted packet comes out once (delivered or lost), never early and
    /// in order of time, and the counters add up.
    #[test]
    fn packets_are_neither_lost_nor_added_unnoticed(
        rate in prop::option::of(1_000u64..10_000_000_000),
        delay in 0u64..20 * MS,
        jitter in 0u64..20 * MS,
        chances in (0.0f64..1.0, 0.0f64..1.0, 0.0f64..1.0),
        queue in 1usize..50,
        packets in prop::collection::vec((0u64..5 * MS, 14usize..9000), 1..200),
        seed: u64,
    ) {
        let (loss, duplicate, reorder) = chances;
        let s = Settings { rate, delay, jitter, loss, duplicate, reorder, queue, flight: 100, ..Settings::default() };
        let mut shaper = Shaper::new(s.clone(), seed);
        let (mut now, mut taken, mut out, mut dropped) = (0, vec![None; packets.len()], Vec::new(), 0);
        for (i, (gap, len)) in packets.iter().enumerate() {
            now += gap;
            while let Some(d) = shaper.pop(now) {
                prop_assert!(d.at <= now);
                out.push(d);
            }
            match shaper.offer(now, *len, i) {
                Ok(()) => taken[i] = Some(now),
                Err((item, _)) => { prop_assert_eq!(item, i); dropped += 1; }
            }
            prop_assert!(shaper.queued() <= queue && shaper.len() <= queue + 100 + queue);
        }
        while let Some(at) = shaper.next_time() {
            while let Some(d) = shaper.pop(at) { out.push(d); }
        }
        prop_assert!(out.windows(2).all(|w| w[0].at <= w[1].at));
        for d in &out {
            let offered = taken[d.item].take();
            prop_assert!(offered.is_some(), "{} came out twice or was refused", d.item);
            prop_assert!(d.at >= offered.unwrap() + delay - jitter.min(delay), "too early");
        }
        prop_assert!(taken.iter().all(Option::is_none), "something stayed inside");
        let c = shaper.counters();
        prop_assert_eq!(c.offered, packets.len() as u64);
        prop_assert_eq!(c.queue_drops + c.flight_drops, dropped);
        prop_assert_eq!(c.delivered, c.offered - dropped - c.lost + c.duplicated);
    }
}
