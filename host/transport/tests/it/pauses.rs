//! A client that is stopped for a while (SIGSTOP, a closed laptop lid, a paused virtual machine)
//! and resumes.

use rivulet_transport::client::Config;

use crate::support::{Way, World, expected};

const ROUND: u64 = 40_000;
const SECOND: u64 = 1_000_000;

/// A transfer with a client that is stopped in the middle. Returns the requests of the first round
/// trip afterwards, the bytes received within two, and the world.
fn freeze(length: u64) -> (usize, usize, World) {
    let mut w = World::new(Config { seed: length, ..Config::default() });
    w.write(0, b"3000000\n");
    assert!(w.run(60 * SECOND, |_, _| vec![ROUND / 2], |w| w.got(0).len() > 500_000));
    assert!(w.client.window() > 50, "a window that hurts: {}", w.client.window());
    w.freeze(length, true, |_, _| vec![ROUND / 2]);
    let (thaw, clock) = (w.now, w.clock.clone());
    let mut requests = 0;
    let mut before = w.got(0).len();
    let mut fate = |way, _: &[u8]| {
        requests += usize::from(way == Way::Up && clock.get() < thaw + ROUND);
        vec![ROUND / 2]
    };
    // Packets received before the stop are read first.
    assert!(!w.run(thaw, &mut fate, |_| false));
    before = before.max(w.got(0).len());
    assert!(!w.run(thaw + 2 * ROUND, &mut fate, |_| false));
    let came = w.got(0).len() - before;
    assert!(
        w.run(w.now + 60 * SECOND, |_, _| vec![ROUND / 2], |w| w.got(0).len() == 3_000_000),
        "{:?}",
        w.client
    );
    assert!(w.got(0) == expected(3_000_000), "other bytes");
    (requests, came, w)
}

#[test]
fn frozen_client_resumes_within_two_round_trips() {
    for seconds in [1, 2, 5, 60] {
        let (requests, came, w) = freeze(seconds * SECOND + 100_000);
        assert_eq!(requests, 1, "requests of the first round trip after {seconds} s");
        assert!(came > 0, "nothing within two round trips after {seconds} s: {:?}", w.client.statistics());
        let rtt = w.client.smoothed_rtt().unwrap();
        assert!(rtt < 2 * ROUND, "the pause is no round trip: {rtt} us after {seconds} s");
        assert!(w.refusals.is_empty(), "{:?}", w.refusals);
    }
}

/// Fails if the time in which this host was stopped counts against the server.
#[test]
fn pause_longer_than_give_up_after_ends_no_connection() {
    let give_up_after = 10 * SECOND;
    let mut w = World::new(Config { give_up_after, ..Config::default() });
    w.write(0, b"3000000\n");
    assert!(w.run(60 * SECOND, |_, _| vec![ROUND / 2], |w| w.got(0).len() > 500_000));
    // Nothing arrives during the stop either, as with a closed lid.
    w.freeze(2 * give_up_after, true, |_, _| vec![]);
    assert!(
        w.run(w.now + 60 * SECOND, |_, _| vec![ROUND / 2], |w| w.got(0).len() == 3_000_000),
        "{:?}",
        w.events
    );
}

/// Another port in a packet's TCP header, and its checksum (RFC 1624).
fn set_port(packet: &mut [u8], at: usize, port: u16) {
    let word = |at: usize| u32::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let mut sum = u32::from(!word(36) as u16) + u32::from(!word(at) as u16) + u32::from(port);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    packet[36..38].copy_from_slice(&(!sum as u16).to_be_bytes());
    packet[at..at + 2].copy_from_slice(&port.to_be_bytes());
}

/// Fails if a client behind an address translator does not learn the address that the server sees.
#[test]
fn translator_that_changes_the_port_ends_no_connection() {
    const INSIDE: u16 = 40_000;
    let mut w = World::new(Config::default());
    w.write(0, b"3000000\n");
    for (outside, until) in [(20_000u16, 500_000), (30_000, 1_000_000), (35_000, 3_000_000)] {
        let translate = |way, packet: &mut Vec<u8>| {
            match way {
                Way::Up => set_port(packet, 20, outside),
                Way::Down if packet[22..24] != outside.to_be_bytes() => return vec![],
                Way::Down => set_port(packet, 22, INSIDE),
            }
            vec![ROUND / 2]
        };
        let now = w.now;
        assert!(w.run_damaging(now + 60 * SECOND, translate, |w| w.got(0).len() >= until), "{:?}", w.client);
    }
    assert!(w.got(0) == expected(3_000_000), "other bytes");
    assert_eq!(w.client.statistics().restarts, 4, "one that is challenged and one that answers, twice");
}
