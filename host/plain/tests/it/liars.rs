//! Clients of large answers that acknowledge data that they did not receive, or acknowledge data
//! again: the bytes that they draw are bounded.

use rivulet_packet::TcpFlags;
use rivulet_plain::{Downloads, Header, Segment, Stamps};

use crate::support::client::{Client, Nature};
use crate::support::path::{Fate, Node, Path, Server};
use crate::support::{get, site_of};

/// Bytes that an address gets without acknowledgements, and the refill of a millisecond.
const BURST: usize = 8 << 20;
const RATE: usize = 2 << 10;
/// Length of a timestamp's cell, bytes.
const CELL: u32 = 1 << 16;
/// Mask of the check in a timestamp, and the number of its values.
const CHECK: u32 = 7 << 3;
const CHECKS: u32 = 8;

/// A connection whose client has received the first flight.
struct Lie {
    /// The client's first acknowledgement, of that flight.
    header: Header,
}

impl Lie {
    fn new(node: &mut Node, size: usize, port: u16) -> Lie {
        let nature = Nature { buffer: 4_000_000, shift: Some(9), ..Nature::default() };
        let mut client = Client::new(nature, port, u32::from(port) << 8, &[get(size, "")]);
        let syn = client.open(0).remove(0);
        let welcome = node.take(&syn, 0).remove(0);
        let request = client.receive(0, &welcome).remove(1);
        let flight = node.take(&request, 1000);
        assert_eq!(flight.len(), 10);
        let mut said = Vec::new();
        flight.iter().for_each(|packet| said.extend(client.receive(1, packet)));
        Lie { header: Segment::parse(said.last().unwrap()).unwrap().header }
    }

    /// A packet with this payload; `change` edits the header.
    fn packet(&self, change: impl FnOnce(&mut Header), payload: &[u8]) -> Vec<u8> {
        let mut header = self.header;
        change(&mut header);
        let mut packet = vec![0; header.length()];
        packet.extend_from_slice(payload);
        header.finish(&mut packet, payload.len()).unwrap();
        packet
    }
}

fn octets(packets: &[Vec<u8>]) -> usize {
    packets.iter().map(|packet| packet.len() - 52).sum()
}

/// The same acknowledgement with the end of a request, from more connections than a replica
/// remembers: each time the replica knows nothing, and begins again with ten segments.
#[test]
fn replayed_acknowledgements_draw_at_most_an_allowance() {
    let size = 4_000_000;
    let mut node = Node { downloads: Downloads::new(4), ..Node::new(site_of(&[size])) };
    let lies: Vec<Lie> = (0..8).map(|n| Lie::new(&mut node, size, 5000 + n)).collect();
    let mut drawn = 0;
    let milliseconds = 1000;
    for time in 0..milliseconds {
        for lie in &lies {
            let packet = lie.packet(|header| header.seq = header.seq.wrapping_sub(16), &[b'x'; 16]);
            drawn += octets(&node.take(&packet, 2000 + 1000 * time as u64));
        }
    }
    assert!(drawn < BURST + RATE * (milliseconds + 8), "{drawn}");
    assert!(drawn > BURST && node.downloads.refused() > 0, "{drawn}: nothing was bounded");
}

/// Each acknowledgement reports one more byte after a hole, so that all missing data is sent again.
#[test]
fn invented_holes_draw_at_most_an_allowance() {
    let size = 4_000_000;
    let mut node = Node::new(site_of(&[size]));
    let lie = Lie::new(&mut node, size, 5000);
    let mut drawn = 0;
    for n in 0..4000u32 {
        let packet = lie.packet(
            |header| {
                let top = header.ack.wrapping_add(100_000 + n);
                header.options.sack.push((top, top.wrapping_add(1448)));
            },
            &[],
        );
        drawn += octets(&node.take(&packet, 2000));
    }
    assert!(drawn <= BURST, "{drawn}");
    assert!(drawn > BURST / 2 && node.downloads.refused() > 0, "{drawn}: nothing was bounded");
    // Another address is still served.
    let nature = Nature { v6: true, ..Nature::default() };
    let mut client = Client::new(nature, 5000, 9, &[get(size, "")]);
    let welcome = node.take(&client.open(0).remove(0), 2000).remove(0);
    let request = client.receive(2, &welcome).remove(1);
    assert_eq!(node.take(&request, 2000).len(), 10);
}

/// The host at a forged address answers unexpected segments with a RST, which ends the connection;
/// only a RST with the expected number does.
#[test]
fn a_reset_with_the_expected_number_ends_a_download() {
    let size = 4_000_000;
    let mut node = Node::new(site_of(&[size]));
    let lie = Lie::new(&mut node, size, 5000);
    let data = node.take(&lie.packet(|_| {}, &[]), 2000);
    let expected = Segment::parse(&data[0]).unwrap().header.ack;
    let mut reset = |more: u32| {
        let seq = expected.wrapping_add(more);
        let packet = lie.packet(|header| (header.seq, header.flags) = (seq, TcpFlags(TcpFlags::RST)), &[]);
        node.downloads.reset(&Segment::parse(&packet).unwrap());
        node.downloads.len()
    };
    for other in [u32::MAX, 200, 1 << 20, 1 << 31] {
        assert_eq!(reset(other), 1, "{other}");
    }
    assert_eq!(reset(0), 0);
    assert!(node.say(60_000_000).is_empty(), "it is asked for");
}

/// A replica that gets an acknowledgement far from the cell of its timestamp sends only probes of
/// eight bytes; one that fits its timestamp releases data.
#[test]
fn acknowledgements_far_from_their_stamp_draw_only_probes() {
    let size = 40_000_000;
    let (mut first, mut node) = (Node::new(site_of(&[size])), Node::new(site_of(&[size])));
    let lie = Lie::new(&mut first, size, 5000);
    // Ten cells further, with the timestamp of the first acknowledgement.
    let far = |segments: u32| lie.packet(|header| header.ack = header.ack.wrapping_add(segments * 1448), &[]);
    let mut drawn = octets(&node.take(&far(500), 2000));
    for (n, time) in (1..15).zip((0..).map(|n| 2000 + n * 100_000)) {
        drawn += octets(&node.take(&far(500 + n), time));
        drawn += octets(&node.say(time));
    }
    assert!((8..=30 * 8).contains(&drawn), "{drawn}");
    let gone_on = octets(&node.take(&far(1), 4_000_000));
    assert!(gone_on > 0, "nothing to a client that goes on");
}

/// A replica that gets a connection in the middle of a window of a megabyte sends ten segments. More
/// acknowledgements of what another replica sent, each right in all parts, draw nothing: only
/// acknowledged data of its own does.
#[test]
fn ten_segments_leave_before_own_ones_are_acknowledged() {
    const FULL: u32 = 1448;
    let size = 100_000_000;
    let mut first = Node::new(site_of(&[size]));
    let lie = Lie::new(&mut first, size, 5000);
    let stamps = lie.header.options.stamps.unwrap();
    let value = |check: u32| stamps.echo & !CHECK | 63 << 16 | check << 3;
    let packet = |segments: u32, check: u32| {
        let stamps = Some(Stamps { value: stamps.value, echo: value(check) });
        lie.packet(
            |header| {
                header.ack = header.ack.wrapping_add(segments * FULL);
                header.options.stamps = stamps;
            },
            &[],
        )
    };
    let right = (0..CHECKS).find(|check| {
        let mut node = Node::new(site_of(&[size]));
        octets(&node.take(&packet(0, *check), 2000)) > 0
    });
    let right = right.expect("one value of the check");
    let mut node = Node::new(site_of(&[size]));
    let mut drawn = 0;
    for n in 0..40 {
        drawn += octets(&node.take(&packet(n, right), 2000 + u64::from(n)));
        drawn += octets(&node.take(&packet(n, right), 2000 + u64::from(n)));
    }
    assert_eq!(drawn, 10 * FULL as usize);
}

/// A blind forger whose first guess was right, and that acts on it: it acknowledges what that guess
/// drew, then `step` segments more at a time, with each of the eight values that the check may have
/// in the cell. Returns the bytes that it drew and those that it sent, and the milliseconds it took.
fn follow_up(port: u16, step: u32) -> (usize, usize, usize) {
    const FULL: u32 = 1448;
    let size = 100_000_000;
    let (mut first, mut node) = (Node::new(site_of(&[size])), Node::new(site_of(&[size])));
    let lie = Lie::new(&mut first, size, port);
    let stamps = lie.header.options.stamps.unwrap();
    let (mut drawn, mut sent, mut time) = (0, 0, 2000);
    // To the next cell by ten segments each time, then as far as it tries at once.
    for segments in (0..6).map(|n| 10 * n).chain((50..65_000).step_by(step as usize)) {
        for check in 0..CHECKS {
            // The cell, and the largest window.
            let value = stamps.echo.wrapping_add((segments * FULL / CELL) << 24);
            let value = value & !CHECK | 63 << 16 | check << 3;
            let packet = lie.packet(
                |header| {
                    header.ack = header.ack.wrapping_add(segments * FULL);
                    header.options.stamps = Some(Stamps { value: stamps.value, echo: value });
                },
                &[],
            );
            time += 10;
            sent += packet.len();
            drawn += octets(&node.take(&packet, time));
        }
    }
    (drawn, sent, time as usize / 1000)
}

/// Wrong checks show the forger: its right guesses earn nothing, and it draws no more than what is
/// allowed without acknowledgements. It drew the whole object, 94 MB for 69 kB, as long as one right
/// check for bytes that the replica sent released a window.
#[test]
fn forger_with_a_right_guess_draws_at_most_an_allowance() {
    for (port, step) in (5000..).zip([10, 44, 200, 600]) {
        let (drawn, sent, milliseconds) = follow_up(port, step);
        println!("{step} segments at a time: drew {drawn} bytes for {sent}");
        assert!(drawn <= BURST + RATE * (milliseconds + 1), "{step}: {drawn}");
    }
}

/// A client that acknowledges its data is never limited: at 10 Gb/s, and with changing replicas and
/// one in ten packets lost.
#[test]
fn honest_clients_are_never_refused() {
    for (size, lost) in [(30_000_000, 0), (10_000_000, 100)] {
        let mut nodes: Vec<Node> = (0..3).map(|_| Node::new(site_of(&[size]))).collect();
        let nature =
            Nature { buffer: 8_000_000, shift: Some(9), dsack: true, delayed: 2, ..Nature::default() };
        let mut client = Client::new(nature, 4000, 77, &[get(size, "")]);
        let path = Path { delay: 500, rate: 1_250_000_000, queue: 1000, ..Path::default() };
        let (mut dice, mut base) = (crate::losses::Dice(5), None);
        let mut fate = |_, _| if dice.below(1000) < lost { Fate::Lost } else { Fate::Arrives };
        path.run(&mut client, &mut nodes, &mut fate, &mut |packet, _, _| {
            let segment = Segment::parse(packet).unwrap();
            let ack = segment.header.ack;
            let at = if segment.has(TcpFlags::ACK) { ack.wrapping_sub(*base.get_or_insert(ack)) } else { 0 };
            Some((at >> 20) as usize % 3)
        });
        assert!(client.is_done(), "{size} {lost}");
        assert_eq!(nodes.iter().map(|node| node.downloads.refused()).sum::<u64>(), 0, "{size} {lost}");
    }
}
