//! Whole transfers between a client and a stateless server, in virtual time.

mod support;

use rivulet_transport::client::Config;
use support::{Random, World, expected};

const RTT: u64 = 20_000;

fn complete(size: u64) -> impl FnMut(&World) -> bool {
    move |w| w.got(0).len() as u64 >= size
}

#[test]
fn a_small_answer_takes_one_round_trip() {
    let mut w = World::new(Config::default());
    w.write(0, b"300\n");
    let start = w.now;
    assert!(w.run(10_000_000, |_, _| vec![RTT / 2], complete(300)), "{:?} {:?}", w.refusals, w.client);
    assert_eq!(w.now - start, RTT);
    assert_eq!(w.got(0), expected(300));
    assert!(w.refusals.is_empty());
}

#[test]
fn megabytes_without_loss_need_no_timer() {
    let mut w = World::new(Config::default());
    let size = 5_000_000;
    w.write(0, format!("{size}\n").as_bytes());
    assert!(w.run(60_000_000, |_, _| vec![RTT / 2], complete(size)), "{:?}", w.refusals);
    assert!(w.got(0) == expected(size), "the bytes differ");
    let s = w.client.statistics();
    println!("{s:?} in {} us", w.now);
    assert_eq!((s.declared, s.probes, s.timeouts, s.mispredicted), (0, 0, 0, 0));
    assert!(w.refusals.is_empty(), "{:?}", w.refusals);
}

#[test]
fn megabytes_with_loss_come_whole() {
    for (seed, loss) in [(1, 0.01), (2, 0.03), (3, 0.1), (4, 0.2)] {
        let mut w = World::new(Config::default());
        let size = 1_000_000;
        let mut random = Random(seed * 77);
        w.write(0, format!("{size}\n").as_bytes());
        let fate =
            |_, _: &[u8]| if random.chance(loss) { vec![] } else { vec![RTT / 2 + random.below(2000)] };
        let done = w.run(600_000_000, fate, complete(size));
        println!("loss {loss}: {:?} in {} us, refusals {}", w.client.statistics(), w.now, w.refusals.len());
        assert!(done, "loss {loss}: {} bytes, {:?}", w.got(0).len(), w.events);
        assert!(w.got(0) == expected(size), "the bytes differ");
    }
}
