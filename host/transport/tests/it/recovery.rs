//! Exhaustive tests of recovery: every loss pattern of a small window against stepwise SACK-Reno.

use crate::support::laboratory::{Experiment, Fate, Outcome, RTT, Start, run};

/// TCP Reno in packets, one acknowledgement at a time: the window after `acks` acknowledgements.
fn reno(start: Start, acks: u32) -> u32 {
    let (mut cwnd, ssthresh, mut counted) = (u32::from(start.cwnd), u32::from(start.ssthresh), 0);
    for _ in 0..acks {
        if cwnd < ssthresh {
            cwnd += 1;
            continue;
        }
        counted += 1;
        if counted >= cwnd {
            (cwnd, counted) = (cwnd + 1, 0);
        }
    }
    cwnd
}

/// Starts in slow start and in congestion avoidance, with first-window requests that yield at least
/// `window` numbers.
fn starts(window: u16) -> Vec<Start> {
    let mut out = vec![Start { cwnd: window, ssthresh: window }];
    let half = window.div_ceil(2);
    out.push(Start { cwnd: half, ssthresh: u16::MAX });
    if window > 2 {
        out.push(Start { cwnd: half, ssthresh: window });
    }
    out
}

fn patterns(window: u16) -> impl Iterator<Item = Vec<Fate>> {
    (0..3u32.pow(u32::from(window))).map(move |mut code| {
        (0..window)
            .map(|_| {
                let fate = [Fate::Arrives, Fate::RequestLost, Fate::ResponseLost][(code % 3) as usize];
                code /= 3;
                fate
            })
            .collect()
    })
}

/// The numbers of the window that do not arrive, as indices. A lost request loses all of its
/// responses.
fn lost(e: &Experiment) -> Vec<bool> {
    let mut out: Vec<bool> = e.fates.iter().map(|f| *f != Fate::Arrives).collect();
    // Request j (1 is the first) yields the numbers from j - 1 + W(j-1) + 1 to j + W(j), counted from the first window's start.
    let first = u32::from(e.start.cwnd);
    out.resize(out.len().max(reno(e.start, first) as usize), false);
    for j in 1..=first {
        let (from, to) = (j + reno(e.start, j - 1), j + reno(e.start, j));
        let indices: Vec<usize> = (from..=to).map(|n| (n - first - 1) as usize).collect();
        if indices.iter().any(|i| e.fates.get(*i) == Some(&Fate::RequestLost)) {
            for i in indices {
                if let Some(x) = out.get_mut(i) {
                    *x = true;
                }
            }
        }
    }
    out
}

fn check(e: &Experiment) -> Outcome {
    let o = run(e);
    let context = || format!("{e:?}\n{o:?}");
    assert!(o.done, "not done: {}", context());
    assert!(o.whole, "the bytes differ: {}", context());
    assert_eq!(o.refused, 0, "refused: {}", context());
    for (number, times) in &o.issued {
        assert_eq!(*times, 1, "{number} issued {times} times: {}", context());
    }
    let lost = lost(e);
    let Some(event) = lost.iter().position(|l| *l) else { return o };
    let all_lost_behind = lost.iter().skip(event).take(e.fates.len()).all(|l| *l);
    // Reno's window when everything before the first loss is acknowledged: requests 1..=start, then
    // window numbers up to event.
    let window = reno(e.start, u32::from(e.start.cwnd) + event as u32);
    let new = (window / 2).max(2);
    let first_new = o.window + event as u32 + window;
    if o.timeouts == 0 && e.primes_lost == 0 {
        // The issued numbers have no gap.
        let (low, high) = (o.issued.first_key_value().unwrap().0, o.issued.last_key_value().unwrap().0);
        assert_eq!(high - low + 1, o.issued.len() as u32, "numbers skipped: {}", context());
        // The survivors are the new window.
        for number in first_new..first_new + new {
            assert!(o.issued.contains_key(&number), "survivor {number} missing: {}", context());
        }
        // Every trickle computes the same cwnd, ssthresh and recovery point, and they equal
        // SACK-Reno's at the end of recovery.
        for (_, pieces) in o.pieces.range(first_new..first_new + new) {
            let want = (first_new - 1, new as u16, new as u16);
            assert!(
                pieces.iter().all(|p| *p == want),
                "pieces {pieces:?}, SACK-Reno {want:?}: {}",
                context()
            );
        }
    }
    if e.primes_lost == 0 && !all_lost_behind {
        assert_eq!(o.timeouts, 0, "a timeout without need: {}", context());
    }
    o
}

fn same_fate(fates: &[Fate], to: Fate) -> Vec<Fate> {
    fates.iter().map(|f| if *f == Fate::Arrives { Fate::Arrives } else { to }).collect()
}

fn exhaust(window: u16, delays: bool) -> usize {
    let mut runs = 0;
    for start in starts(window) {
        for fates in patterns(window) {
            let e = Experiment { start, fates, delayed: None, primes_lost: 0 };
            let o = check(&e);
            runs += 1;
            // A lost request has the same effect as the loss of all of its responses.
            if e.fates.contains(&Fate::RequestLost) {
                let mask = lost(&e);
                let fates =
                    mask.iter().map(|l| if *l { Fate::ResponseLost } else { Fate::Arrives }).collect();
                let twin = run(&Experiment { fates, ..e.clone() });
                runs += 1;
                assert_eq!(o.time, twin.time, "request and response loss differ: {e:?}\n{o:?}\n{twin:?}");
                assert_eq!(o.pieces, twin.pieces, "request and response loss differ: {e:?}");
            }
            let plain = !e.fates.contains(&Fate::RequestLost);
            if delays && plain && e.fates.contains(&Fate::ResponseLost) {
                for i in (0..usize::from(window)).filter(|i| e.fates[*i] == Fate::Arrives) {
                    let late = check(&Experiment { delayed: Some(i), ..e.clone() });
                    assert_eq!(late.statistics.spurious, 0, "declared within the reordering window: {e:?}");
                    runs += 1;
                }
            }
        }
    }
    runs
}

#[test]
fn every_pattern_of_small_windows() {
    for window in 1..=5 {
        println!("window {window}: {} transfers", exhaust(window, true));
    }
}

#[test]
#[ignore = "long: minutes"]
fn every_pattern_of_windows_up_to_eight() {
    for window in 6..=8 {
        println!("window {window}: {} transfers", exhaust(window, true));
    }
}

fn exhaust_primes(window: u16) -> usize {
    let mut runs = 0;
    for start in starts(window) {
        for fates in patterns(window).filter(|p| !p.contains(&Fate::RequestLost)) {
            let fates = same_fate(&fates, Fate::ResponseLost);
            let e = Experiment { start, fates, delayed: None, primes_lost: 0 };
            let primes = run(&e).primes.min(8);
            for primes_lost in 1..1u32 << primes {
                check(&Experiment { primes_lost, ..e.clone() });
                runs += 1;
            }
        }
    }
    runs
}

#[test]
fn every_loss_of_retransmissions_too_in_small_windows() {
    for window in 1..=4 {
        println!("window {window}: {} transfers", exhaust_primes(window));
    }
}

#[test]
#[ignore = "long: minutes"]
fn every_loss_of_retransmissions_too_up_to_six() {
    for window in 5..=6 {
        println!("window {window}: {} transfers", exhaust_primes(window));
    }
}

#[test]
fn a_single_loss_costs_one_round_trip_and_a_reordering_window_at_most() {
    let start = Start { cwnd: 8, ssthresh: 8 };
    let clean = run(&Experiment { start, fates: vec![], delayed: None, primes_lost: 0 });
    for i in 0..7 {
        let mut fates = vec![Fate::Arrives; 8];
        fates[i] = Fate::ResponseLost;
        let o = check(&Experiment { start, fates, delayed: None, primes_lost: 0 });
        // SACK-Reno with this window needs two more round trips for the rest at half the window.
        println!("loss of {i}: {} us more", o.time - clean.time);
        assert!(o.time - clean.time <= 4 * RTT + RTT / 4, "loss of {i}: {} us", o.time - clean.time);
    }
}

/// To trace one experiment: `TRACE=1 cargo test -p rivulet-transport --test it one_pattern --
/// --ignored --nocapture`.
#[test]
#[ignore = "a tool"]
fn one_pattern() {
    use Fate::*;
    let start = Start { cwnd: 8, ssthresh: 8 };
    let fates = vec![Arrives, Arrives, ResponseLost, Arrives, Arrives, Arrives, RequestLost, Arrives];
    let o = run(&Experiment { start, fates, delayed: None, primes_lost: 0 });
    println!("{o:?}");
}
