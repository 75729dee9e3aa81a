//! Deaths of replicas: those that served a dead replica's clients before probe them, and a client
//! is left without unacknowledged data only if another replica is known to have its state.

use rivulet_plain::Downloads;

use crate::large::{Grain, choose, client, complete, nodes};
use crate::support::client::{Client, Nature};
use crate::support::get;
use crate::support::path::{Fate, Passed, Path, Server};

const SECOND: u64 = 1_000_000;
const SIZE: usize = 20_000_000;
/// Time until the ToR detects that a replica is dead, microseconds.
const NOTICED: u64 = 50_000;
/// A download takes more than three minutes, and a block of 1 MB ten seconds.
const SLOW: Path =
    Path { delay: 5_000, rate: 100_000, queue: 2, still: (0, 0), patience: 4 * 3_600 * SECOND };
/// Retransmission timeout of a client that retransmits nothing during a test, milliseconds.
const SILENT: u64 = 3_600_000;

/// Replicas that die and return at once without state, but are not chosen before another one has
/// died. Packets to a dead replica are lost until its death is detected.
#[derive(Default)]
struct Deaths {
    /// The ToR reports deaths to the other replicas.
    told: bool,
    /// Times at which the replica that gets the next packet dies.
    one: Vec<u64>,
    /// When all replicas die.
    all: Option<u64>,
}

impl Deaths {
    fn reported(one: &[u64]) -> Deaths {
        Deaths { told: true, one: one.iter().map(|at| at * SECOND).collect(), all: None }
    }
}

/// A download from three replicas.
fn through(path: &Path, block: u32, nature: Nature, deaths: &Deaths) -> (Client, Passed) {
    let Deaths { told, one, all } = deaths;
    let mut nodes = nodes(3, SIZE);
    if *told {
        nodes.iter_mut().for_each(|node| node.downloads.know_others(Some(0), 0, 0));
    }
    let mut client = client(Nature { buffer: 3_000_000, ..nature }, 77, SIZE);
    let mut choose = choose(Grain::Block(block), 5);
    let (mut one, mut all, mut dead) = (one.iter().copied().peekable(), *all, None);
    let passed = path.run(&mut client, &mut nodes, &mut |_, _| Fate::Arrives, &mut |packet, nodes, now| {
        let chosen = choose(packet, nodes, now)?;
        if all.is_some_and(|at| now >= at) {
            nodes.iter_mut().for_each(|node| node.downloads.clear());
            all = all.filter(|at| now < at + NOTICED);
            return None;
        }
        if one.next_if(|at| *at <= now).is_some() {
            nodes[chosen].downloads.clear();
            if *told {
                nodes.iter_mut().for_each(|node| node.learns = Some(now + NOTICED));
            }
            dead = Some((chosen, now + NOTICED));
        }
        match dead {
            Some((victim, until)) if chosen == victim => (now >= until).then_some((chosen + 1) % 3),
            _ => Some(chosen),
        }
    });
    (client, passed)
}

/// The client is idle when its replica dies; the replica that served it before probes it, and its
/// answer reaches another one.
#[test]
fn clients_of_dead_replica_are_probed() {
    let path = Path { delay: 5_000, rate: 12_500_000, queue: 100, ..Path::default() };
    // The time until the exclusion and, at worst, the third pause of the replica with the block
    // before.
    for (told, bound) in [(false, SECOND), (true, SECOND / 8)] {
        let deaths = Deaths { told, one: vec![300_000, 700_000, 1_100_000], all: None };
        let (client, passed) = through(&path, 1 << 20, Nature::default(), &deaths);
        complete(&client, SIZE, "three die");
        assert!(passed.stall < bound, "{told}: {passed:?}");
    }
}

/// On a slow path a block takes most of a minute, and the replica with an earlier block has
/// received nothing for as long. This client retransmits nothing. A replica that learns of the
/// death probes at once.
#[test]
fn replicas_probe_after_a_death_on_slow_paths() {
    for (told, bound) in [(false, 60 * SECOND), (true, SECOND / 2)] {
        let nature = Nature { rto: SILENT, ..Nature::default() };
        let deaths = Deaths { told, ..Deaths::reported(&[80, 120, 160]) };
        let (client, passed) = through(&SLOW, 1 << 22, nature, &deaths);
        complete(&client, SIZE, "three die");
        assert!(passed.stall < bound, "{told}: {passed:?}");
    }
}

/// The time for which the client receives nothing new after a death, over many times of it:
/// shortest, median and longest, milliseconds. On a slow path the client retransmits nothing.
/// `cargo test --release -p rivulet-plain --test it stalls -- --ignored --nocapture` prints them.
#[test]
#[ignore = "long: a hundred and sixty downloads"]
fn stalls_after_a_death() {
    let path = Path { delay: 5_000, rate: 12_500_000, queue: 100, ..Path::default() };
    let silent = Nature { rto: SILENT, ..Nature::default() };
    let fast: Vec<u64> = (0..60).map(|n| 400_000 + n * 17_000).collect();
    let slow: Vec<u64> = (0..20).map(|n| 80 * SECOND + n * 2_300_000).collect();
    for (name, path, block, nature, deaths, bounds) in [
        ("100 Mb/s", &path, 1 << 20, Nature::default(), fast, [600, 80]),
        ("0.8 Mb/s", &SLOW, 1 << 22, silent, slow, [60_000, 300]),
    ] {
        for (told, bound) in [false, true].into_iter().zip(bounds) {
            let stall = |at: &u64| {
                let deaths = Deaths { told, one: vec![*at], all: None };
                let (client, passed) = through(path, block, nature.clone(), &deaths);
                complete(&client, SIZE, name);
                passed.stall / 1000
            };
            let mut stalls: Vec<u64> = deaths.iter().map(stall).collect();
            stalls.sort_unstable();
            let (least, middle, most) = (stalls[0], stalls[stalls.len() / 2], stalls[stalls.len() - 1]);
            println!("{name}, told: {told}, {} deaths: {least}, {middle}, {most} ms", stalls.len());
            assert!(most < bound, "{name}, told: {told}: {stalls:?}");
        }
    }
}

/// Linux's user timeout ends a connection with data that stays unacknowledged for too long; this
/// download takes four times as long.
#[test]
fn user_timeout_does_not_end_a_download() {
    let nature = Nature { user_timeout: Some(50_000), ..Nature::default() };
    for deaths in [&[][..], &[60, 100, 140]] {
        let (client, _) = through(&SLOW, 1 << 20, nature.clone(), &Deaths::reported(deaths));
        complete(&client, SIZE, &format!("{deaths:?}"));
    }
    assert!(through(&SLOW, 1 << 20, nature, &Deaths::default()).0.gave_up, "the timeout is one");
}

/// A replica that returned has no record that all data was acknowledged, but the timestamp has a
/// bit for it, so it acknowledges no less.
#[test]
fn returned_replica_acknowledges_no_less() {
    let path = Path { delay: 5_000, rate: 900_000, queue: 10, ..Path::default() };
    let mut nodes = nodes(2, SIZE);
    nodes.iter_mut().for_each(|node| node.downloads.know_others(Some(0), 0, 0));
    let nature = Nature { strict: true, rto: SILENT, buffer: 3_000_000, ..Nature::default() };
    let (mut client, mut choose, mut back) =
        (client(nature, 77, SIZE), choose(Grain::Block(1 << 20), 5), false);
    let passed = path.run(&mut client, &mut nodes, &mut |_, _| Fate::Arrives, &mut |packet, nodes, now| {
        if now < 11 * SECOND {
            return choose(packet, nodes, now);
        }
        if !std::mem::replace(&mut back, true) {
            nodes[1].downloads.clear();
        }
        Some(1)
    });
    complete(&client, SIZE, &format!("{passed:?}"));
}

/// After recent deaths it is unknown which replicas have the client's state, so some data stays
/// unacknowledged: after the death of all, only the client can send.
#[test]
fn recent_deaths_leave_data_unacknowledged() {
    let often: Vec<u64> = (1..20).map(|n| 5 * n).collect();
    let deaths = Deaths { all: Some(97 * SECOND), ..Deaths::reported(&often) };
    let (client, passed) = through(&SLOW, 1 << 20, Nature::default(), &deaths);
    complete(&client, SIZE, &format!("{passed:?}"));
}

/// If all replicas die at once after that, the client retransmits nothing; but a client with
/// keep-alive probes (curl, Go and browsers) is resumed by the replica that gets one.
#[test]
fn keepalive_probe_resumes_the_download() {
    let deaths = Deaths { all: Some(97 * SECOND), ..Deaths::reported(&[]) };
    let (client, _) = through(&SLOW, 1 << 20, Nature::default(), &deaths);
    assert!(!client.is_done() && !client.gave_up, "it waits");
    let nature = Nature { keepalive: Some(15_000), ..Nature::default() };
    let (client, passed) = through(&SLOW, 1 << 20, nature, &deaths);
    complete(&client, SIZE, &format!("{passed:?}"));
}

/// A client's retransmission reaches a replica without its state when all others are dead.
#[test]
fn last_replica_does_not_count_dead_ones() {
    // One block lasts for most of a minute: the first replica dies in it, and later the one that
    // resumed the connection.
    let deaths = Deaths { all: Some(30 * SECOND), ..Deaths::reported(&[5]) };
    let (client, passed) = through(&SLOW, 1 << 22, Nature::default(), &deaths);
    complete(&client, SIZE, &format!("{passed:?}"));
}

/// A replica that had no room for a client's state resumes it as if another replica had served it.
#[test]
fn replica_without_state_does_not_count_itself() {
    let (crowded, dies) = (15 * SECOND, 40 * SECOND);
    let mut nodes = nodes(2, SIZE);
    for node in &mut nodes {
        node.downloads = Downloads::new(4);
        node.downloads.know_others(Some(0), 0, 0);
    }
    let mut client = client(Nature { buffer: 3_000_000, ..Nature::default() }, 77, SIZE);
    let mut crowd = (0..8).map(|n| Client::new(Nature::default(), 5000 + n, 7, &[get(SIZE, "")]));
    let passed = SLOW.run(&mut client, &mut nodes, &mut |_, _| Fate::Arrives, &mut |_, nodes, now| {
        if now > crowded {
            for mut other in crowd.by_ref() {
                let syn_ack = nodes[0].take(&other.open(0).remove(0), now).remove(0);
                for said in other.receive(now / 1000, &syn_ack) {
                    nodes[0].take(&said, now);
                }
            }
        }
        nodes[0].alive = now < dies;
        if nodes[0].alive { Some(0) } else { Some(1).filter(|_| now > dies + NOTICED) }
    });
    complete(&client, SIZE, &format!("{passed:?}"));
}

/// Five connections of one client that fill a set of the table end the rule for that client's
/// network alone: a client of another network keeps its download despite its TCP_USER_TIMEOUT.
#[test]
fn chosen_ports_end_the_rule_for_their_network_only() {
    let mut nodes = nodes(3, SIZE);
    for (node, ports) in nodes.iter_mut().zip([5000, 6000, 7000]) {
        node.downloads = Downloads::new(4);
        node.downloads.know_others(Some(0), 0, 0);
        for port in ports..ports + 5 {
            let mut attacker =
                Client::new(Nature { v6: true, ..Nature::default() }, port, 7, &[get(SIZE, "")]);
            let syn_ack = node.take(&attacker.open(0).remove(0), 0).remove(0);
            for segment in attacker.receive(0, &syn_ack) {
                node.take(&segment, 0);
            }
        }
        assert_eq!(node.downloads.len(), 4, "the fifth took the place of another one");
    }
    let nature = Nature { user_timeout: Some(50_000), buffer: 3_000_000, ..Nature::default() };
    let mut client = client(nature, 77, SIZE);
    let mut choose = choose(Grain::Block(1 << 20), 5);
    let passed = SLOW.run(&mut client, &mut nodes, &mut |_, _| Fate::Arrives, &mut choose);
    complete(&client, SIZE, &format!("{passed:?}"));
}
