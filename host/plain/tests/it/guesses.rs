//! What a blind attacker gets: packets with the address of somebody else, whose answers he never sees.

use rivulet_packet::TcpFlags;
use rivulet_plain::{Answering, Header, MAX_START, Options, Reason, Scale, Segment, Stamps, Verdict};

use crate::losses::Dice;
use crate::support::{get, site};

fn request(dice: &mut Dice, stamps: bool, flags: u8) -> Vec<u8> {
    let payload = get(13_000, "");
    let seq = dice.next() as u32;
    // As a client speaks that has some answer behind it and asks for another.
    let stamp = || Answering {
        start: dice.below(u64::from(MAX_START) / 64) as u32 * 64,
        next: (seq & 0xfff) as u16,
        version: (dice.below(4)) as u8,
        scale: Scale::of(7),
    };
    let stamps = stamps.then(stamp).map(|stamp| Stamps { value: 1, echo: stamp.value() });
    let header = Header {
        src: "10.0.0.77:4000".parse().unwrap(),
        dst: "10.9.0.1:80".parse().unwrap(),
        seq,
        ack: dice.next() as u32,
        flags: TcpFlags(flags),
        window: 0xffff,
        options: Options { stamps, ..Options::default() },
    };
    let mut packet = vec![0; header.length()];
    packet.extend_from_slice(&payload);
    header.finish(&mut packet, payload.len()).unwrap();
    packet
}

#[test]
fn every_guess_is_counted() {
    let site = site();
    for stamps in [true, false] {
        let mut dice = Dice(7);
        let (mut paid, mut drawn, mut reached) = (0, 0, 0);
        for _ in 0..300_000 {
            let packet = request(&mut dice, stamps, TcpFlags::ACK | TcpFlags::PSH);
            paid += packet.len();
            match site.judge(&Segment::parse(&packet).unwrap(), 1000, None) {
                Verdict::Drop(Reason::Cookie) => {}
                Verdict::Drop(_) | Verdict::Kernel(_) => reached += 1,
                Verdict::Say(header) => drawn += header.length(),
                Verdict::Answer(flight) => {
                    drawn += flight.pieces().iter().map(|piece| flight.length(piece)).sum::<usize>();
                }
            }
        }
        // 300,000 guesses at 2 * 537,536 or 2 * 17,408 of 2^32.
        let expected = if stamps { 40..115 } else { 0..12 };
        assert!(expected.contains(&reached), "{reached}");
        assert!(drawn * 10 < paid, "{drawn} octets for {paid}");
    }
}

#[test]
fn a_reset_is_nothing() {
    let site = site();
    for flags in [TcpFlags::RST, TcpFlags::RST | TcpFlags::ACK, TcpFlags::RST | TcpFlags::SYN] {
        let packet = request(&mut Dice(1), true, flags);
        let verdict = site.judge(&Segment::parse(&packet).unwrap(), 1000, None);
        assert!(matches!(verdict, Verdict::Drop(Reason::Reset)));
    }
    for flags in [0, TcpFlags::SYN | TcpFlags::FIN, TcpFlags::SYN | TcpFlags::ACK, TcpFlags::FIN] {
        let packet = request(&mut Dice(1), true, flags);
        let verdict = site.judge(&Segment::parse(&packet).unwrap(), 1000, None);
        assert!(matches!(verdict, Verdict::Drop(Reason::Flags)), "{flags}");
    }
}
