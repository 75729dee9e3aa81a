//! Delayed acknowledgements: what they save, and that no number is used twice with them.

use crate::support::{self, CLIENT, Random, World, expected, steady};
use rivulet_packet::{RequestBuilder, RequestClass, Segment, TransportContinuation, Want};
use rivulet_transport::client::Config;
use rivulet_transport::seal_continuation;
use rivulet_transport::server::{Policy, Refusal, ReplayMemory, Server, Verdict};
use rivulet_transport::{KeyRing, Time};

const RTT: u64 = 20_000;

#[test]
fn delayed_acknowledgements_only_save_requests() {
    let transfer = |delayed_acks, loss| {
        let mut w = World::new(Config { delayed_acks, ..Config::default() });
        let size = 3_000_000;
        w.write(0, format!("{size}\n").as_bytes());
        let mut random = Random(21);
        // An early loss ends slow start.
        let mut n = 0;
        let fate = |_, _: &[u8]| {
            n += 1;
            if n == 200 || random.chance(loss) { vec![] } else { vec![RTT / 2] }
        };
        assert!(w.run(120_000_000, fate, |w| w.got(0).len() as u64 >= size), "{:?}", w.client.statistics());
        assert!(w.got(0) == expected(size));
        assert!(w.refusals.is_empty(), "{:?}", w.refusals);
        (w.client.statistics(), w.now)
    };
    let (plain, time) = transfer(false, 0.0);
    let (delayed, delayed_time) = transfer(true, 0.0);
    println!("{plain:?} {time}\n{delayed:?} {delayed_time}");
    assert!(delayed.requests < plain.requests * 3 / 4);
    assert!(delayed_time < time * 5 / 4);
    transfer(true, 0.01);
}

/// A request for `number`, and for the one before if it covers two.
fn request(keys: &KeyRing, number: u32, covers: u8) -> Vec<u8> {
    let c = TransportContinuation { number, ..steady::fields() };
    let sealed = seal_continuation(keys.seal(1).unwrap(), &c, CLIENT.parse().unwrap());
    let want = Want { offset: 5000, length: 1402, ucont: Some(0), retransmit: false };
    let builder = RequestBuilder {
        class: RequestClass::Normal,
        continuation: Some(&sealed),
        proof: &[steady::original(keys, &c, 0, (number - c.base) as u16)],
        covers,
        wants: &[want, Want { offset: 6402, ..want }],
        uconts: &[&steady::output_continuation(keys)],
        ..RequestBuilder::default()
    };
    steady::packet_with(&builder, CLIENT)
}

fn responses(server: &mut Server, keys: &KeyRing, packet: &[u8]) -> Result<usize, Refusal> {
    let segment = Segment::parse_packet(packet).unwrap();
    match server.accept(&segment, keys, Time(steady::NOW))? {
        Verdict::Terminate => Ok(0),
        Verdict::Respond(plan) => Ok(plan.heads().len()),
    }
}

/// Defence: both numbers are stored.
#[test]
fn a_pair_uses_up_both_numbers_in_either_order() {
    let keys = support::keys();
    let memory = || ReplayMemory::new(100, 4_000_000, 99);
    for first in [(970, 2), (970, 1), (969, 1)] {
        let mut server = Server::new(Policy::default());
        server.replay = Some(memory());
        assert!(responses(&mut server, &keys, &request(&keys, first.0, first.1)).is_ok());
        let others = if first.1 == 2 { vec![(970, 2), (970, 1), (969, 1)] } else { vec![(970, 2)] };
        for (number, covers) in others {
            let again = responses(&mut server, &keys, &request(&keys, number, covers));
            assert_eq!(again, Err(Refusal::Replayed), "{number} covering {covers} after {first:?}");
        }
    }
}

/// Defence: behind a ToR, whose memory counts one number of a request, no request may cover two.
#[test]
fn behind_a_tor_no_request_covers_two() {
    let keys = support::keys();
    let mut server = Server::new(Policy { trust_tor: true, ..Policy::default() });
    assert_eq!(responses(&mut server, &keys, &request(&keys, 970, 2)), Err(Refusal::Delayed));
    assert_eq!(responses(&mut server, &keys, &request(&keys, 970, 1)), Ok(1));
}
