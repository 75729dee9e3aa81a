//! What a blind attacker gains that sends with another host's address and never sees the answers.

use rivulet_packet::TcpFlags;
use rivulet_plain::{
    Answering, Handoff, Header, MAX_START, Options, Reason, Scale, Segment, Stamps, Verdict,
};

use crate::losses::Dice;
use crate::support::{get, site};

fn request(dice: &mut Dice, stamps: bool, flags: u8) -> Vec<u8> {
    let payload = get(13_000, "");
    let seq = dice.next() as u32;
    // The timestamp of a client that has one answer and requests another.
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
                Verdict::Drop(_) | Verdict::Kernel(_) | Verdict::Begin(_) | Verdict::Adopt(..) => {
                    reached += 1
                }
                Verdict::Say(header) => drawn += header.length(),
                Verdict::Answer(flight) | Verdict::Continue(Handoff { flight, .. }) => {
                    drawn += flight.pieces().iter().map(|piece| flight.length(piece)).sum::<usize>();
                }
            }
        }
        // 300,000 guesses, each right with 2 * 537,536 or 2 * 17,408 in 2^32.
        let expected = if stamps { 40..115 } else { 0..12 };
        assert!(expected.contains(&reached), "{reached}");
        assert!(drawn * 10 < paid, "{drawn} octets for {paid}");
    }
}

/// Whatever options a SYN has, the answer has no more.
#[test]
fn a_syn_ack_is_never_longer_than_the_syn() {
    let site = site();
    let mut answered = 0;
    for offered in 0..32u32 {
        let is = |bit: u32| offered >> bit & 1 == 1;
        let options = Options {
            mss: is(0).then_some(if is(4) { 9000 } else { 1300 }),
            scale: is(1).then_some(7),
            sack_permitted: is(2),
            stamps: is(3).then_some(Stamps { value: 5, echo: 0 }),
            ..Options::default()
        };
        let header = Header {
            src: "[fd00::1]:4000".parse().unwrap(),
            dst: "[fd00:9::1]:80".parse().unwrap(),
            seq: 7,
            ack: 0,
            flags: TcpFlags(TcpFlags::SYN),
            window: 0xffff,
            options,
        };
        let mut packet = vec![0; header.length()];
        header.finish(&mut packet, 0).unwrap();
        if let Verdict::Say(reply) = site.judge(&Segment::parse(&packet).unwrap(), 1000, None) {
            assert!(reply.length() <= packet.len(), "{options:?}");
            assert_eq!(reply.options.scale.is_some(), options.scale.is_some() && options.stamps.is_some());
            answered += 1;
        }
    }
    // Without timestamps and MSS option the client accepts only 536 bytes, which is left to the
    // kernel.
    assert_eq!(answered, 24);
}

#[test]
fn rst_has_no_effect() {
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
