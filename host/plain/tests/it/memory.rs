//! The ring sends one client's answer to no other client, and each segment once at most.

use rivulet_packet::TcpFlags;
use rivulet_plain::{
    Class, Flow, Header, Options, Replica, Ring, Sack, Scale, Segment, Stamp, Stamps, Verdict,
};

use crate::support::{get, keys, site};

const MINUTE: u32 = 1000;

/// A segment of a client that has the first `at` bytes of its first answer, and everything from
/// `beyond` on.
fn client_packet(port: u16, seq: u32, at: u32, beyond: Option<u32>, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = (format!("10.0.0.1:{port}").parse().unwrap(), "10.9.0.1:80".parse().unwrap());
    let flow = Flow::new(src, dst);
    let ack = flow.stamped(keys().current, Class::of(1460).unwrap()).wrapping_add(1 + at);
    let mut sack = Sack::default();
    beyond.into_iter().for_each(|from| sack.push((ack.wrapping_add(from - at), ack.wrapping_add(8000))));
    let first = if payload.is_empty() { seq.wrapping_sub(1) } else { seq };
    let echo = Stamp::opening(&flow, &keys(), MINUTE, first, Scale::of(7));
    let options = Options { stamps: Some(Stamps { value: 1, echo }), sack, ..Options::default() };
    let header = Header { src, dst, seq, ack, flags: TcpFlags(TcpFlags::ACK), window: 0x4000, options };
    let mut packet = vec![0; header.length()];
    packet.extend_from_slice(payload);
    header.finish(&mut packet, payload.len()).unwrap();
    packet
}

fn answered(replica: &mut Replica, packet: &[u8]) -> usize {
    match replica.receive(&Segment::parse(packet).unwrap(), MINUTE, None) {
        Verdict::Answer(flight) => flight.pieces().len(),
        _ => 0,
    }
}

/// A replica whose ring has a single slot.
fn replica() -> Replica {
    Replica { site: site(), ring: Some(Ring::new(1)) }
}

#[test]
fn ring_fills_a_hole_once() {
    let mut replica = replica();
    let request = get(10_000, "");
    assert_eq!(answered(&mut replica, &client_packet(4000, 500, 0, None, &request)), 8);
    let hole = client_packet(4000, 500 + request.len() as u32, 0, Some(2648), &[]);
    assert_eq!(answered(&mut replica, &hole), 2, "what is lost beneath the block");
    assert_eq!(answered(&mut replica, &hole), 0, "once: each acknowledgement behind it says the same");
    replica.ring.as_mut().unwrap().clear();
    assert_eq!(answered(&mut replica, &hole), 0);
}

#[test]
fn client_in_the_same_ring_slot_gets_nothing() {
    let mut replica = replica();
    let request = get(10_000, "");
    assert_eq!(answered(&mut replica, &client_packet(4000, 500, 0, None, &request)), 8);
    assert_eq!(answered(&mut replica, &client_packet(4001, 600, 0, Some(2648), &[])), 0);
}

#[test]
fn connection_with_other_numbers_gets_nothing() {
    let mut replica = replica();
    let request = get(10_000, "");
    for seq in [500u32, 499, 500 + 70_000, 500u32.wrapping_sub(70_000)] {
        assert_eq!(answered(&mut replica, &client_packet(4000, 500, 0, None, &request)), 8);
        assert_eq!(answered(&mut replica, &client_packet(4000, seq, 0, Some(2648), &[])), 0, "{seq}");
    }
}
