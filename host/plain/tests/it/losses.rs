//! Every pattern of lost packets in small windows, and random losses in large ones: every transfer
//! completes, with the right bytes.

use crate::support::client::{Client, Nature};
use crate::support::net::{Fate, Net, Way};
use crate::support::{SIZES, bodies, content, get, site};

/// Every pattern of losses among the first packets in each direction, in segments of 520 bytes, so
/// that windows have many.
fn windows(stamps: bool, segments: usize) -> usize {
    let site = site();
    let other = site.clone();
    let net = Net { replicas: vec![&site, &other], ..Net::new(&site) };
    let (mss, size) = if stamps { (536, 520) } else { (1460, 1024) };
    // The response's head has about 230 bytes.
    let size = *SIZES.iter().find(|n| (**n + 300).div_ceil(size) >= segments).unwrap();
    let nature = Nature { stamps, mss, ..Nature::default() };
    let (back, forth) = (segments + 2, 5);
    let mut runs = 0;
    for lost in 0..1u32 << (back + forth) {
        let mut client = Client::new(nature.clone(), 4000, lost, &[get(size, "Connection: close\r\n")]);
        let mut fate = |way, n| {
            let bit = match way {
                Way::ToClient if n < back => n,
                Way::ToServer if n < forth => back + n,
                _ => return Fate::Arrives,
            };
            if lost >> bit & 1 == 1 { Fate::Lost } else { Fate::Arrives }
        };
        net.run(&mut client, &mut fate, &mut |n| n);
        assert!(client.is_done(), "{stamps} {segments} {lost:b}: stuck");
        assert_eq!(bodies(&client.stream), [content(size)], "{stamps} {segments} {lost:b}");
        assert_eq!(client.paws, 0);
        runs += 1;
    }
    runs
}

#[test]
fn small_answers_survive_any_loss_in_small_windows() {
    let runs: usize = [1, 2, 4, 6].iter().map(|n| windows(true, *n)).sum();
    assert_eq!(runs, 256 + 512 + 2048 + 8192);
    assert_eq!(windows(false, 2) + windows(false, 6), 512 + 8192);
}

#[test]
#[ignore = "long: windows of up to ten segments"]
fn small_answers_survive_any_loss_in_first_flight() {
    assert_eq!((7..11).map(|n| windows(true, n) + windows(false, n)).sum::<usize>(), 2 * (15 << 14));
}

/// Pseudo-random numbers from a seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Whether the replicas remember answers in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Nothing,
    All,
    /// The ring is cleared now and then.
    Some,
}

/// Clients of all kinds behind a network that loses, delays and duplicates packets, spread over
/// three replicas. Returns the durations, milliseconds.
fn transfers(seeds: std::ops::Range<u64>, memory: Memory) -> Vec<u64> {
    let sites = [site(), site(), site()];
    let mut net = Net { replicas: sites.iter().collect(), ..Net::new(&sites[0]) };
    if memory != Memory::Nothing {
        net = net.remembering(3);
    }
    let (mut retransmissions, mut times, count) = (0, Vec::new(), seeds.clone().count());
    for seed in seeds {
        let mut dice = Dice(seed);
        let stamps = dice.below(4) > 0;
        let shift = [None, Some(0), Some(3), Some(7), Some(14)][dice.below(5) as usize];
        let buffers = if shift == Some(14) { [1 << 20; 4] } else { [1200, 2000, 7000, 60_000] };
        let nature = Nature {
            stamps,
            sack: dice.below(3) > 0,
            mss: [536, 1220, 1400, 1440, 1460][dice.below(5) as usize].max(if stamps { 0 } else { 1024 }),
            shift,
            buffer: buffers[dice.below(4) as usize],
            v6: dice.below(2) == 0,
            half_close: dice.below(4) == 0,
            fin_apart: dice.below(4) == 0,
            pipelines: stamps && dice.below(3) == 0,
            rto: 220,
            segment: 1400,
            delayed: [1, 2, 16][dice.below(3) as usize],
            compressed: [0, 44][dice.below(2) as usize],
            dsack: dice.below(2) == 0,
            user_timeout: None,
            keepalive: None,
            strict: false,
        };
        let requests = if stamps { 1 + dice.below(4) as usize } else { 1 };
        let sizes: Vec<usize> = (0..requests).map(|_| SIZES[dice.below(10) as usize]).collect();
        let texts: Vec<_> = sizes.iter().map(|n| get(*n, "")).collect();
        let mut client = Client::new(nature.clone(), 1000 + seed as u16 % 50_000, dice.next() as u32, &texts);
        let (loss, late) = (dice.below(20), dice.below(20));
        let (mut fates, mut choice) = (Dice(seed ^ 1 << 40), Dice(seed ^ 2 << 40));
        let mut fate = |_, _| match fates.below(100) {
            n if n < loss => Fate::Lost,
            n if n < loss + late => Fate::Late(fates.below(60)),
            n if n < loss + late + 3 => Fate::Twice(fates.below(400)),
            _ => Fate::Arrives,
        };
        let outcome = net.run(&mut client, &mut fate, &mut |_| {
            if memory == Memory::Some && choice.below(3) == 0 {
                net.memories[choice.below(3) as usize].borrow_mut().ring.as_mut().unwrap().clear();
            }
            choice.next() as usize
        });
        let want: Vec<_> = sizes.iter().map(|n| content(*n)).collect();
        assert!(
            client.is_done(),
            "seed {seed}: stuck after {} ms, {nature:?} {sizes:?}",
            outcome.milliseconds
        );
        assert!(bodies(&client.stream) == want, "seed {seed}: {nature:?} {sizes:?}");
        retransmissions += client.retransmissions;
        times.push(outcome.milliseconds);
    }
    assert!(retransmissions > count / 2, "{retransmissions}: there was loss");
    times
}

fn seeds() -> std::ops::Range<u64> {
    0..std::env::var("RIVULET_TRANSFERS").map_or(3000, |v| v.parse().unwrap())
}

#[test]
fn random_transfers() {
    transfers(seeds(), Memory::Nothing);
}

#[test]
fn ring_changes_no_byte_of_an_answer() {
    let (all, some) = (transfers(seeds(), Memory::All), transfers(seeds(), Memory::Some));
    let mean = |times: &[u64]| times.iter().sum::<u64>() / times.len() as u64;
    eprintln!("mean {} ms with memory, {} ms when it is lost now and then", mean(&all), mean(&some));
}

/// Each segment of an answer is lost once, with no other loss.
#[test]
fn ring_repairs_a_loss_within_a_round_trip() {
    let site = site();
    for stamps in [true, false] {
        let pieces = if stamps { 8 } else { 10 };
        let size = if stamps { 10_000 } else { 9_200 };
        let site = if stamps { site.clone() } else { crate::support::site_of(&[size]) };
        for lost in 1..=pieces {
            let time = |net: Net<'_>| {
                let nature = Nature { stamps, ..Nature::default() };
                let mut client = Client::new(nature, 4000, 9, &[get(size, "Connection: close\r\n")]);
                let mut fate =
                    |way, n| if (way, n) == (Way::ToClient, lost) { Fate::Lost } else { Fate::Arrives };
                let outcome = net.run(&mut client, &mut fate, &mut |_| 0);
                assert_eq!(bodies(&client.stream), [content(size)]);
                (outcome.milliseconds, client.retransmissions)
            };
            assert_eq!(time(Net::new(&site)), (20 + 220 + 40, 1), "{lost}: the client's timer");
            // No later segment shows the loss of the last one.
            let want = if lost < pieces { (80, 0) } else { (280, 1) };
            assert_eq!(time(Net::new(&site).remembering(1)), want, "{lost}");
        }
    }
}

/// The window has room for a tenth of the answer: each acknowledgement releases the next part,
/// without waiting for the client's timer.
#[test]
fn ring_fills_a_small_window_at_once() {
    let site = site();
    for stamps in [true, false] {
        let nature = Nature { stamps, buffer: 1500, ..Nature::default() };
        let mut client = Client::new(nature, 4000, 9, &[get(10_000, "Connection: close\r\n")]);
        let outcome = Net::new(&site).remembering(1).run(&mut client, &mut |_, _| Fate::Arrives, &mut |_| 0);
        assert_eq!(bodies(&client.stream), [content(10_000)]);
        // Eight or eleven windows, and fewer pauses of the client.
        assert!(
            outcome.milliseconds <= 20 * 15 && client.retransmissions <= 1,
            "{} ms",
            outcome.milliseconds
        );
    }
}

/// The ring's size does not depend on the number of connections.
#[test]
fn ring_is_bounded_and_ignores_stale_entries() {
    let site = site();
    let net = Net::new(&site).remembering(1);
    let octets = net.memories[0].borrow().ring.as_ref().unwrap().octets();
    for n in 0..3000u32 {
        // The same ports are used again and again: their cookies are equal, but sequence numbers
        // and answers are not.
        let size = SIZES[n as usize % SIZES.len()];
        let mut client = Client::new(
            Nature::default(),
            4000 + n as u16 % 7,
            n << 20,
            &[get(size, "Connection: close\r\n")],
        );
        let mut dice = Dice(n.into());
        net.run(
            &mut client,
            &mut |_, _| if dice.below(10) == 0 { Fate::Lost } else { Fate::Arrives },
            &mut |_| 0,
        );
        assert_eq!(bodies(&client.stream), [content(size)]);
    }
    assert_eq!(net.memories[0].borrow().ring.as_ref().unwrap().octets(), octets);
    assert!(octets <= 64 * 128, "{octets}");
}
