//! Deaths of replicas: who had a dead one's clients before asks for them, and where somebody else is known to remember a client it is left
//! with nothing to repeat.

use rivulet_plain::Downloads;

use crate::large::{Grain, choose, client, complete, nodes};
use crate::support::client::{Client, Nature};
use crate::support::get;
use crate::support::path::{Fate, Passed, Path, Server};

const SECOND: u64 = 1_000_000;
const SIZE: usize = 20_000_000;
/// As a ToR notices that a replica is dead.
const NOTICED: u64 = 50_000;
/// Three minutes and more, a block of 1 MB in ten seconds.
const SLOW: Path =
    Path { delay: 5_000, rate: 100_000, queue: 2, still: (0, 0), patience: 4 * 3_600 * SECOND };
/// A client that repeats nothing.
const SILENT: u64 = 3_600_000;

/// Who dies and is back at once with nothing in its memory, but is not chosen before another one has died; what goes to the dead is lost
/// until that is noticed.
#[derive(Default)]
struct Deaths {
    /// The others learn of it.
    told: bool,
    /// When one dies: whoever gets the next packet.
    one: Vec<u64>,
    /// When all do.
    all: Option<u64>,
}

impl Deaths {
    fn told(one: &[u64]) -> Deaths {
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

/// The client is silent when its replica has died; who had it before asks it, and it answers to another one.
#[test]
fn clients_of_dead_replica_are_probed() {
    let path = Path { delay: 5_000, rate: 12_500_000, queue: 100, ..Path::default() };
    // The bound of the exclusion, and at worst the third pause of who had the block before.
    for (told, bound) in [(false, SECOND), (true, SECOND / 8)] {
        let deaths = Deaths { told, one: vec![300_000, 700_000, 1_100_000], all: None };
        let (client, passed) = through(&path, 1 << 20, Nature::default(), &deaths);
        complete(&client, SIZE, "three die");
        assert!(passed.stall < bound, "{told}: {passed:?}");
    }
}

/// On a slow path a block takes most of a minute, and who had an earlier one has been silent for as long. The client's own repetitions are
/// further apart by then: this one has none. Who is told of a death asks at once.
#[test]
fn others_ask_on_a_slow_path() {
    for (told, bound) in [(false, 60 * SECOND), (true, SECOND / 2)] {
        let nature = Nature { rto: SILENT, ..Nature::default() };
        let deaths = Deaths { told, ..Deaths::told(&[80, 120, 160]) };
        let (client, passed) = through(&SLOW, 1 << 22, nature, &deaths);
        complete(&client, SIZE, "three die");
        assert!(passed.stall < bound, "{told}: {passed:?}");
    }
}

/// How long the client of one death gets nothing new, over many moments of it: shortest, middle and longest, milliseconds. On a slow path
/// the client repeats nothing. `cargo test --release -p rivulet-plain --test it stalls -- --ignored --nocapture` shows them.
#[test]
#[ignore = "long: a hundred and sixty downloads"]
fn stalls_of_a_death() {
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

/// Linux' timeout ends what is not acknowledged in time, all of it; a download takes four times as long.
#[test]
fn a_user_timeout_is_no_end() {
    let nature = Nature { user_timeout: Some(50_000), ..Nature::default() };
    for deaths in [&[][..], &[60, 100, 140]] {
        let (client, _) = through(&SLOW, 1 << 20, nature.clone(), &Deaths::told(deaths));
        complete(&client, SIZE, &format!("{deaths:?}"));
    }
    assert!(through(&SLOW, 1 << 20, nature, &Deaths::default()).0.gave_up, "the timeout is one");
}

/// Who is back was not there when all was acknowledged, and acknowledges no less: the timestamp says so.
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

/// Where replicas died a moment ago nobody knows who remembers, so something is left to be repeated: once all have died nobody else speaks.
#[test]
fn where_many_die_something_is_left_to_repeat() {
    let often: Vec<u64> = (1..20).map(|n| 5 * n).collect();
    let deaths = Deaths { all: Some(97 * SECOND), ..Deaths::told(&often) };
    let (client, passed) = through(&SLOW, 1 << 20, Nature::default(), &deaths);
    complete(&client, SIZE, &format!("{passed:?}"));
}

/// Where all die at once after that, nothing is left to repeat; a client that asks now and then whether its server is there (curl, Go and
/// browsers do) is taken up by who gets that.
#[test]
fn a_probe_of_a_client_is_enough() {
    let deaths = Deaths { all: Some(97 * SECOND), ..Deaths::told(&[]) };
    let (client, _) = through(&SLOW, 1 << 20, Nature::default(), &deaths);
    assert!(!client.is_done() && !client.gave_up, "it waits");
    let nature = Nature { keepalive: Some(15_000), ..Nature::default() };
    let (client, passed) = through(&SLOW, 1 << 20, nature, &deaths);
    complete(&client, SIZE, &format!("{passed:?}"));
}

/// What a client repeats comes to who never had it because nobody else has it any more.
#[test]
fn last_replica_does_not_count_dead_ones() {
    // One block for most of a minute: the first dies in it, and later who took it up.
    let deaths = Deaths { all: Some(30 * SECOND), ..Deaths::told(&[5]) };
    let (client, passed) = through(&SLOW, 1 << 22, Nature::default(), &deaths);
    complete(&client, SIZE, &format!("{passed:?}"));
}

/// A replica that had no room to remember a client takes it up as if others had had it.
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

/// Five connections of one client that fill a set of the table end the rule for that client's network alone: a client of another
/// network keeps its download in spite of its TCP_USER_TIMEOUT.
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
