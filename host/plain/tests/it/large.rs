//! Large answers arrive with every byte correct, whichever replicas serve them and whichever
//! packets are lost.

use rivulet_packet::TcpFlags;
use rivulet_plain::Segment;

use crate::losses::Dice;
use crate::support::client::{Client, Nature};
use crate::support::path::{Fate, Node, Passed, Path, Server, Way};
use crate::support::{bodies, content, get, site_of};

pub(crate) fn nodes(count: usize, size: usize) -> Vec<Node> {
    (0..count).map(|_| Node::new(site_of(&[size]))).collect()
}

pub(crate) fn client(nature: Nature, isn: u32, size: usize) -> Client {
    Client::new(nature, 4000, isn, &[get(size, "")])
}

pub(crate) fn complete(client: &Client, size: usize, what: &str) {
    assert!(client.is_done(), "{what}: stuck with {} of {size} octets", client.stream.len());
    assert!(bodies(&client.stream) == [content(size)], "{what}: other octets");
}

#[test]
fn download_arrives_complete_and_without_duplicates() {
    for (size, mss) in [(15_500, 536), (100_000, 1220), (3_000_000, 1460)] {
        let mut nodes = nodes(1, size);
        let mut client = client(Nature { mss, buffer: 400_000, ..Nature::default() }, 77, size);
        let passed =
            Path::default().run(&mut client, &mut nodes, &mut |_, _| Fate::Arrives, &mut |_, _, _| Some(0));
        complete(&client, size, &format!("{size} {mss}"));
        let segments = (size + 600).div_ceil(usize::from(mss) - 20);
        assert!(passed.to_client < segments + 8, "{segments}: {passed:?}");
        assert_eq!((client.paws, nodes[0].downloads.len()), (0, 0));
    }
}

/// Every pattern of losses among the first packets in each direction, for answers just above the
/// limit of small ones, in segments of 520 bytes.
#[test]
fn large_answer_survives_any_loss_of_first_packets() {
    let size = 15_200;
    let (back, forth) = (9, 4);
    for lost in 0..1u32 << (back + forth) {
        let mut nodes = nodes(2, size);
        let mut client = client(Nature { mss: 536, ..Nature::default() }, lost, size);
        let mut fate = |way, n| {
            let bit = match way {
                Way::ToClient if n < back => n,
                Way::ToServer if n < forth => back + n,
                _ => return Fate::Arrives,
            };
            if lost >> bit & 1 == 1 { Fate::Lost } else { Fate::Arrives }
        };
        let mut turn = 0;
        Path::default().run(&mut client, &mut nodes, &mut fate, &mut |_, _, _| {
            turn += 1;
            Some(turn % 2)
        });
        complete(&client, size, &format!("{lost:b}"));
    }
}

/// How replicas are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// One replica for all packets.
    Flow,
    /// A replica for each block of this many bytes, a power of two.
    Block(u32),
    Packet,
}

/// The bytes that a client's packet acknowledges, counted from the first packet that acknowledges
/// any.
fn acknowledged(packet: &[u8], base: &mut Option<u32>) -> u32 {
    let segment = Segment::parse(packet).unwrap();
    let ack = segment.header.ack;
    if segment.has(TcpFlags::ACK) { ack.wrapping_sub(*base.get_or_insert(ack)) } else { 0 }
}

/// Chooses among three replicas; a dead one is not chosen.
pub(crate) fn choose(grain: Grain, seed: u64) -> impl FnMut(&[u8], &mut [Node], u64) -> Option<usize> {
    let (mut base, mut dice) = (None, Dice(seed));
    move |packet, nodes, _| {
        let at = acknowledged(packet, &mut base);
        let turn = match grain {
            Grain::Flow => 0,
            Grain::Block(octets) => Dice(seed ^ u64::from(at / octets)).next(),
            Grain::Packet => dice.next(),
        };
        let alive: Vec<usize> = (0..nodes.len()).filter(|n| nodes[*n].alive).collect();
        alive.get(turn as usize % alive.len().max(1)).copied()
    }
}

/// Windows of one to six segments: every pattern of losses among as many segments in the middle of
/// an answer, and among their acknowledgements, for any choice of replicas.
#[test]
fn large_answer_survives_any_loss_in_small_windows() {
    let size = 15_500;
    for window in 1..=6usize {
        for lost in 0..1u32 << (2 * window) {
            let mut nodes = nodes(2, size);
            let buffer = window as u32 * 524;
            let mut client =
                client(Nature { mss: 536, buffer, shift: Some(0), ..Nature::default() }, lost, size);
            let first = 8;
            let mut fate = |way, n: usize| {
                let Some(n) = n.checked_sub(first).filter(|n| *n < window) else { return Fate::Arrives };
                let bit = if way == Way::ToClient { n } else { window + n };
                if lost >> bit & 1 == 1 { Fate::Lost } else { Fate::Arrives }
            };
            let mut turn = 0;
            Path::default().run(&mut client, &mut nodes, &mut fate, &mut |_, _, _| {
                turn += 1;
                Some(turn / 3 % 2)
            });
            complete(&client, size, &format!("{window} {lost:b}"));
        }
    }
}

#[test]
fn random_transfers() {
    let number = |name, or| std::env::var(name).map_or(or, |text| text.parse().unwrap());
    let (from, count) = (number("RIVULET_TRANSFERS_FROM", 0), number("RIVULET_TRANSFERS", 600));
    for seed in from..count {
        let mut dice = Dice(seed);
        let size = [15_500, 40_000, 150_000, 1_000_000][dice.below(4) as usize];
        let mut nodes = nodes(3, size);
        let nature = Nature {
            mss: [536, 1220, 1440, 1460][dice.below(4) as usize],
            buffer: [3_000, 20_000, 100_000, 400_000][dice.below(4) as usize],
            sack: dice.below(5) > 0,
            dsack: dice.below(2) > 0,
            delayed: [1, 2, 2, 16][dice.below(4) as usize],
            compressed: [0, 44][dice.below(2) as usize],
            ..Nature::default()
        };
        let what = format!("{seed}: {size} {nature:?}");
        let mut client = client(nature, dice.next() as u32, size);
        let (loss, late) = (dice.below(60), dice.below(60));
        let grain = [Grain::Flow, Grain::Block(1 << 16), Grain::Block(1 << 18), Grain::Packet]
            [dice.below(4) as usize];
        let mut fates = Dice(seed ^ 1 << 40);
        let mut fate = |_, _| match fates.below(1000) {
            n if n < loss => Fate::Lost,
            n if n < loss + late => Fate::Late(fates.below(20_000)),
            _ => Fate::Arrives,
        };
        let mut choose = choose(grain, seed);
        let (mut forget, forgets) = (Dice(seed ^ 2 << 40), dice.below(3) == 0);
        let passed = Path::default().run(&mut client, &mut nodes, &mut fate, &mut |packet, nodes, now| {
            if forgets && forget.below(50) == 0 {
                nodes[forget.below(3) as usize].downloads.clear();
            }
            choose(packet, nodes, now)
        });
        complete(&client, size, &format!("{what} {grain:?} {forgets} {passed:?}"));
    }
}

/// A transfer over a path of 100 Mb/s and 10 ms, with a queue of 100 packets.
fn transfer(size: usize, grain: Grain, lost: u64, seed: u64) -> (Passed, usize) {
    let path = Path { delay: 5_000, rate: 12_500_000, queue: 100, ..Path::default() };
    let mut nodes = nodes(3, size);
    let mut client = client(Nature { buffer: 3_000_000, ..Nature::default() }, 77, size);
    let mut fates = Dice(seed);
    let mut fate = |_, _| if fates.below(1000) < lost { Fate::Lost } else { Fate::Arrives };
    let passed = path.run(&mut client, &mut nodes, &mut fate, &mut choose(grain, 5));
    complete(&client, size, &format!("{grain:?} {lost}"));
    (passed, client.paws)
}

/// The cost of a change of replica. With cells as small as the data in flight, or with old state of
/// returning replicas, blocks of 1 MB had a third of a single replica's rate.
#[test]
fn changes_of_replica_cost_no_rate() {
    let size = 20_000_000;
    // With random losses, several downloads give a better estimate than one.
    for (lost, seeds) in [(0, 0..1), (1, 0..4), (10, 0..4)] {
        let time = |grain| -> u64 {
            let passed = seeds.clone().map(|seed| {
                let (passed, paws) = transfer(size, grain, lost, seed);
                // A repair by one replica may arrive after new data by another, in the same cell.
                assert!(passed.octets < size * 108 / 100 && paws < 16, "{grain:?} {lost}: {passed:?} {paws}");
                passed.time
            });
            passed.sum()
        };
        let flow = time(Grain::Flow);
        for block in [1 << 20, 1 << 22] {
            let blocks = time(Grain::Block(block));
            assert!(blocks * 85 < flow * 100, "{block} {lost}: {blocks} us, {flow} by one replica");
        }
    }
    // The queue overflows once, at the end of slow start.
    assert!(transfer(size, Grain::Flow, 0, 9).0.time < 2_000_000);
}

/// At the end of slow start on a long path every other packet of a thousand is lost, so the
/// client's data has as many ranges. With 128 ranges such a download took ten times as long.
#[test]
fn overflow_of_a_long_queue_is_repaired() {
    let size = 12_000_000;
    let mut nodes = nodes(1, size);
    let mut client = client(Nature { buffer: 8_000_000, shift: Some(9), ..Nature::default() }, 77, size);
    let path = Path { delay: 25_000, rate: 12_500_000, queue: 412, ..Path::default() };
    let passed = path.run(&mut client, &mut nodes, &mut |_, _| Fate::Arrives, &mut |_, _, _| Some(0));
    complete(&client, size, "a long queue");
    assert!(passed.overflowed > 500 && passed.time < 2_000_000, "{passed:?}");
}

/// If nothing arrives for more than two round trips, and then everything, nothing is lost; not even
/// if all segments in flight are marked as repairs, as after a change of replica.
#[test]
fn pause_of_the_machine_is_no_loss() {
    let size = 4_000_000;
    let packets = |from: u64| {
        let mut nodes = nodes(3, size);
        let mut client = client(Nature { buffer: 150_000, ..Nature::default() }, 77, size);
        let path = Path { rate: 12_500_000, still: (from, from + 60_000), ..Path::default() };
        let mut choose = choose(Grain::Block(1 << 20), 5);
        let passed = path.run(&mut client, &mut nodes, &mut |_, _| Fate::Arrives, &mut choose);
        complete(&client, size, &format!("{from}"));
        passed.to_client
    };
    let undisturbed = packets(3_600_000_000);
    for from in (150_000..350_000).step_by(4_000) {
        let packets = packets(from);
        assert!(packets < undisturbed + 10, "{from}: {packets}, {undisturbed}");
    }
}

/// Arbitrary acknowledgements: of data that the client never received, of holes, with timestamps
/// that it received or invented.
#[test]
fn arbitrary_acknowledgements_do_not_panic() {
    let size = 2_000_000;
    for seed in 0..300 {
        let mut dice = Dice(seed);
        let mut node = Node::new(site_of(&[size]));
        let mut client = client(Nature::default(), seed as u32, size);
        let syn = client.open(0).remove(0);
        let request = client.receive(0, &node.take(&syn, 0).remove(0)).remove(1);
        let ask = Segment::parse(&request).unwrap().header;
        let mut out = node.take(&request, 1000);
        let (mut now, mut sent, mut values) = (1000, 0, Vec::new());
        for step in 0..400 {
            for packet in out.drain(..) {
                let header = Segment::parse(&packet).unwrap().header;
                assert!(packet.len() <= 1500);
                values.push((header.options.stamps.unwrap().value, header.seq.wrapping_sub(ask.ack)));
                sent += packet.len();
            }
            assert!(sent < 60_000_000, "{seed} {step}");
            now += dice.below(40_000);
            let any = [dice.next() as u32, dice.next() as u32];
            let mut one_of = |all: &[u32]| all[dice.below(all.len() as u64) as usize];
            let (value, at) = values[any[1] as usize % values.len()];
            let mut header = ask;
            header.ack = ask.ack.wrapping_add(one_of(&[at, at, at + 1448, at + 14_480, 2_000_000, any[0]]));
            header.seq = ask.seq.wrapping_add(one_of(&[58, 58, 0, any[1]]));
            header.window = one_of(&[65_535, 1000, 1, 0]) as u16;
            let flip = one_of(&[0, 0, 0, 1, 8, 1 << 16, 1 << 23, 1 << 30]);
            header.options.stamps.as_mut().unwrap().echo = value ^ flip;
            for n in 0..one_of(&[0, 1, 2, 3]) {
                let from =
                    header.ack.wrapping_add(one_of(&[1448 * n, 1448 * 90, any[0], 0u32.wrapping_sub(1448)]));
                header.options.sack.push((from, from.wrapping_add(one_of(&[1448, 14_480, any[1]]))));
            }
            let mut packet = vec![0; header.length()];
            let payload =
                if one_of(&[0, 0, 0, 1]) == 1 { &b"GET /2000000 HTTP/1.1\r\n\r\n"[..] } else { b"" };
            packet.extend_from_slice(payload);
            header.finish(&mut packet, payload.len()).unwrap();
            out = node.take(&packet, now);
        }
    }
}
