//! Whole transfers between a client and a stateless server, in virtual time.

use crate::support::{self, Random, World, expected};
use rivulet_transport::Time;
use rivulet_transport::client::{Config, Connection};

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
fn wants_leave_room_for_whole_continuations() {
    let responses = |delta| {
        let mut w = World::new(Config::default());
        w.policy.delta = delta;
        let size = 2_000_000;
        w.write(0, format!("{size}\n").as_bytes());
        assert!(w.run(60_000_000, |_, _| vec![RTT / 2], complete(size)), "{:?}", w.refusals);
        assert!(w.got(0) == expected(size), "the bytes differ");
        w.client.statistics().responses as f64
    };
    let (with, without) = (responses(true), responses(false));
    // Whole continuations take 53 of some 1,400 bytes; data displaced from one response must not
    // need another one.
    assert!(without < 1.08 * with, "{without} responses against {with}");
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

#[test]
fn a_newer_nonce_epoch_is_taken_up_by_a_rekey_within_a_horizon() {
    let mut w = World::new(Config::default());
    let size = 8_000_000;
    w.write(0, format!("{size}\n").as_bytes());
    let mut random = Random(5);
    let mut fate = |_, _: &[u8]| if random.chance(0.002) { vec![] } else { vec![RTT / 2] };
    assert!(w.run(60_000_000, &mut fate, |w| w.got(0).len() > 200_000));
    w.keys.add_nonce(2, support::nonce_keys(2));
    w.keys.use_nonce(2);
    let superseded = w.now;
    assert!(
        w.run(superseded + 4_000_000, &mut fate, |w| w.client.statistics().rekeys > 0),
        "no REKEY within the horizon"
    );
    w.run(w.now + 200_000, &mut fate, |_| false);
    w.keys.withdraw_nonce(1);
    assert!(w.run(600_000_000, &mut fate, complete(size)));
    assert!(w.got(0) == expected(size));
    let s = w.client.statistics();
    assert_eq!(s.restarts, 0, "{s:?}");
    assert!(w.refusals.is_empty(), "{:?}", w.refusals);
}

#[test]
fn withdrawn_epoch_is_left_by_a_restart() {
    let mut w = World::new(Config::default());
    let size = 3_000_000;
    w.write(0, format!("{size}\n").as_bytes());
    let mut fate = |_, _: &[u8]| vec![RTT / 2];
    assert!(w.run(60_000_000, &mut fate, |w| w.got(0).len() > 200_000));
    w.keys.withdraw_nonce(1);
    w.keys.add_nonce(2, support::nonce_keys(2));
    w.keys.use_nonce(2);
    assert!(w.run(600_000_000, &mut fate, complete(size)), "{:?}", w.client.statistics());
    assert!(w.got(0) == expected(size));
    assert!(w.client.statistics().restarts > 0);
}

#[test]
fn a_reader_that_pauses_for_an_hour_reads_on() {
    let mut w = World::new(Config { receive_buffer: 100_000, ..Config::default() });
    let size = 1_000_000;
    w.write(0, format!("{size}\n").as_bytes());
    w.reading = false;
    let mut fate = |_, _: &[u8]| vec![RTT / 2];
    assert!(!w.run(60_000_000, &mut fate, complete(size)));
    assert!(w.client.buffered() <= 110_000);
    w.now += 3_600_000_000;
    w.reading = true;
    w.read(0);
    assert!(w.run(w.now + 60_000_000, &mut fate, complete(size)), "{:?}", w.client.statistics());
    assert!(w.got(0) == expected(size));
}

#[test]
fn restart_recovers_from_a_corrupted_nonce() {
    let mut w = World::new(Config::default());
    let size = 1_000_000;
    w.write(0, format!("{size}\n").as_bytes());
    let mut damaged = 0;
    let mut n = 0;
    let done = w.run_damaging(
        600_000_000,
        |way, packet| {
            n += 1;
            if way == support::Way::Down && n >= 300 && damaged == 0 && packet.len() > 1000 {
                // Two bits of one column, one set and one cleared: the checksum does not see it.
                let bits = (packet[20 + 28 + 4] ^ packet[20 + 28 + 6]) & 0x10;
                packet[20 + 28 + 4] ^= bits;
                packet[20 + 28 + 6] ^= bits;
                damaged += u32::from(bits != 0);
            }
            vec![RTT / 2]
        },
        complete(size),
    );
    assert_eq!(damaged, 1);
    assert!(done, "{:?}", w.client.statistics());
    assert!(w.got(0) == expected(size));
    assert!(w.client.statistics().restarts > 0, "{:?}", w.client.statistics());
}

#[test]
fn suspended_connection_resumes_from_another_address() {
    let mut w = World::new(Config::default());
    let size = 2_000_000;
    w.write(0, format!("{size}\n").as_bytes());
    let mut random = Random(9);
    let mut fate = |_, _: &[u8]| if random.chance(0.01) { vec![] } else { vec![RTT / 2] };
    assert!(w.run(60_000_000, &mut fate, |w| w.got(0).len() > 500_000));
    w.resume("203.0.113.9:5555", 7_200_000_000);
    assert!(w.run(w.now + 600_000_000, &mut fate, complete(size)), "{:?}", w.refusals);
    assert!(w.got(0) == expected(size));
    assert!(w.client.statistics().restarts >= 2, "challenged first");
}

/// Positions that no connection reaches: a stream whose output space would end at 2^64, and input
/// behind the 2^48 bytes of a stream. The first one made `rivulet get --resume` panic.
#[test]
fn impossible_positions_of_a_suspended_connection_are_refused() {
    let mut w = World::new(Config::default());
    w.write(0, b"2000000\n");
    assert!(w.run(60_000_000, &mut |_, _: &[u8]| vec![RTT / 2], |w| w.got(0).len() > 500_000));
    let bytes = w.suspend();
    // Behind the magic, two addresses, the continuation, two 32-bit numbers, the next stream and the
    // number of streams.
    let id = 4 + 2 * 18 + rivulet_packet::SealedContinuation::LENGTH + 4 + 4 + 2 + 2;
    let resume = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        Connection::resume(&bytes, Config::default(), support::CLIENT.parse().unwrap(), Time(w.now)).is_ok()
    };
    assert_eq!(bytes[id..id + 2], [0, 0]);
    assert!(resume(id, &65_534u16.to_be_bytes()));
    assert!(!resume(id, &65_535u16.to_be_bytes()));
    for (base, is_possible) in [(0, true), (1 << 48, true), ((1 << 48) + 1, false), (u64::MAX, false)] {
        assert_eq!(resume(id + 2, &u64::to_be_bytes(base)), is_possible, "{base}");
    }
}

#[test]
fn persistent_connection_survives_idling() {
    let mut w = World::new(Config::default());
    let mut fate = |_, _: &[u8]| vec![RTT / 2];
    let mut all = Vec::new();
    for (pause, size) in [(0u64, 50_000u64), (10_000, 60_000), (1_000_000, 70_000), (30_000_000, 80_000)] {
        w.run(w.now + pause, &mut fate, |_| false);
        w.write(0, format!("{size}\n").as_bytes());
        all.extend(expected(size));
        let start = w.now;
        let total = all.len();
        assert!(w.run(w.now + 60_000_000, &mut fate, |w| w.got(0).len() >= total), "after {pause} us");
        println!("{size} bytes after {pause} us: {} us, {:?}", w.now - start, w.client.statistics());
    }
    assert!(w.got(0) == all);
    assert_eq!(w.client.statistics().rekeys, 1, "a second of idling keeps the window's proof");
    assert_eq!(w.client.statistics().restarts, 1, "beyond the horizon only RESTART helps");
}

#[test]
fn parallel_requests_share_one_connection() {
    let mut w = World::new(Config::default());
    let mut random = Random(11);
    let mut fate =
        |_, _: &[u8]| if random.chance(0.02) { vec![] } else { vec![RTT / 2 + random.below(3000)] };
    let mut want = Vec::new();
    for size in [10_000u64, 1, 250_000, 33_333] {
        let now = rivulet_transport::Time(w.now);
        let stream = w.client.request(format!("{size}\n").as_bytes(), now).unwrap();
        want.push((stream, size));
    }
    let done = |w: &World| want.iter().all(|(s, size)| w.got(*s).len() as u64 == *size);
    assert!(w.run(60_000_000, &mut fate, done), "{:?}", w.client.statistics());
    for (stream, size) in &want {
        assert!(w.got(*stream) == expected(*size));
    }
}

/// Parallel requests up to the limit are answered, with nothing left to do afterwards; above it
/// there is an error.
#[test]
fn any_number_of_parallel_requests_up_to_the_limit() {
    use rivulet_transport::client::{MAX_REQUESTS, RequestError};
    for count in [63, 64, 65, 200, MAX_REQUESTS] {
        let mut w = World::new(Config::default());
        let mut random = Random(count as u64);
        let mut fate = |_, _: &[u8]| if random.chance(0.01) { vec![] } else { vec![RTT / 2] };
        let size = |stream: u16| u64::from(stream) * 7 % 3000 + 1;
        let ask = |w: &mut World| {
            let now = rivulet_transport::Time(w.now);
            let stream = w.client.request(b"1\n", now)?;
            w.client.forget(stream);
            let stream = stream + 1;
            w.client.request(format!("{}\n", size(stream)).as_bytes(), now)
        };
        let streams: Vec<u16> = (0..count).map(|_| ask(&mut w).unwrap()).collect();
        if count == MAX_REQUESTS {
            assert_eq!(ask(&mut w), Err(RequestError::TooMany));
        }
        let done = |w: &World| streams.iter().all(|s| w.got(*s).len() as u64 == size(*s));
        assert!(w.run(120_000_000, &mut fate, done), "{count}: {:?}", w.client.statistics());
        for stream in &streams {
            assert!(w.got(*stream) == expected(size(*stream)), "{count}: stream {stream}");
        }
        let sent = w.client.statistics().requests;
        w.run(w.now + 20_000_000, &mut fate, |_| false);
        assert!(w.client.statistics().requests <= sent + 16, "{count}: goes on: {:?}", w.client.statistics());
        w.client.forget(streams[0]);
        assert!(ask(&mut w).is_ok(), "{count}");
    }
}

#[test]
fn input_of_many_packets_goes_through_input_continuations() {
    let mut w = World::new(Config::default());
    let mut random = Random(12);
    let mut fate = |_, _: &[u8]| if random.chance(0.05) { vec![] } else { vec![RTT / 2] };
    // Forty requests of up to 300 digits, most of them leading zeros, pipelined.
    let sizes: Vec<u64> = (1..=40).map(|i| i * 37).collect();
    let input: String = sizes.iter().map(|s| format!("{s:0>300}\n")).collect();
    w.write(0, input.as_bytes());
    let all: Vec<u8> = sizes.iter().flat_map(|s| expected(*s)).collect();
    let total = all.len();
    let done = w.run(120_000_000, &mut fate, |w| w.got(0).len() >= total);
    assert!(done, "{:#?}", w.client);
    assert!(w.got(0) == all);
}

#[test]
fn a_path_that_drops_syn_data_is_opened_by_a_cookie() {
    let mut w = World::new(Config::default());
    w.write(0, b"100000\n");
    let fate = |_: support::Way, packet: &[u8]| {
        let syn_with_data = packet[33] & 0x12 == 0x02 && packet.len() > 20 + 48;
        if syn_with_data { vec![] } else { vec![RTT / 2] }
    };
    assert!(w.run(60_000_000, fate, complete(100_000)));
    assert!(w.got(0) == expected(100_000));
}

#[test]
fn an_address_token_brings_the_initial_window_at_once() {
    let token = {
        let keys = support::keys();
        rivulet_transport::address_token(&keys, 1, 900_000, "192.0.2.1".parse().unwrap()).unwrap()
    };
    let mut w = World::new(Config { token: Some(token.to_vec()), ..Config::default() });
    w.write(0, b"300\n");
    let mut down = 0;
    w.run(
        1_030_000,
        |way, _| {
            down += u32::from(way == support::Way::Down);
            vec![RTT / 2]
        },
        |_| false,
    );
    assert_eq!(down, 10);
    assert_eq!(w.got(0), expected(300));
}

/// A proof has room for a dozen gaps. A client with more declares received numbers lost and keeps
/// their data. It gives up single numbers between the gaps, not the long rest of the window after
/// them.
#[test]
fn window_with_thirty_gaps_loses_only_numbers_between_them() {
    let mut w = World::new(Config::default());
    let size = 2_000_000;
    w.write(0, format!("{size}\n").as_bytes());
    let (mut down, mut longest) = (0, 0);
    let fate = |way, packet: &[u8]| {
        if way == support::Way::Up {
            let segment = rivulet_packet::Segment::parse_packet(packet).unwrap();
            longest = longest.max(segment.request().unwrap().proof.len());
            return vec![RTT / 2];
        }
        down += 1;
        // Every second one of sixty, in a window of more than a hundred.
        if (300..360).contains(&down) && down % 2 == 0 { vec![] } else { vec![RTT / 2] }
    };
    assert!(w.run(60_000_000, fate, complete(size)), "{:?}", w.client.statistics());
    assert!(w.got(0) == expected(size));
    let s = w.client.statistics();
    assert!(w.refusals.is_empty(), "{:?}", w.refusals);
    assert!((8..=16).contains(&longest), "{longest} entries");
    // 30 were lost, and 20 more between them have no room in the proof.
    assert!((30..=55).contains(&s.declared) && s.timeouts == 0, "{s:?}");
}
