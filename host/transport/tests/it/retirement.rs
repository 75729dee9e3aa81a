//! A window returned by a connection opens the next connection from its address; it is moved, never
//! copied. Each test of an attack names the defence without which it fails; the table is in
//! `docs/congestion-manager.md`.

use std::collections::BTreeSet;

use rivulet_packet::{
    EntryKind, ProofEntry, RequestBuilder, RequestClass, SealedContinuation, Segment, TransportContinuation,
};
use rivulet_transport::client::{Config, Event};
use rivulet_transport::server::{LeftBy, Policy, Refusal, ReplayMemory, Reply, Server, Verdict};
use rivulet_transport::{KeyRing, Retired, Time, WINDOW_TOKEN_LENGTH, seal_continuation};

use crate::support::{self, CLIENT, World, expected, steady};

const HORIZON: u64 = 4_000_000;
const WINDOW: u16 = 100;
/// A REKEY that returns a window.
fn retirement<'a>(continuation: &'a SealedContinuation, proof: &'a [ProofEntry]) -> RequestBuilder<'a> {
    let class = RequestClass::Rekey;
    RequestBuilder {
        class,
        continuation: Some(continuation),
        proof,
        retire: true,
        ..RequestBuilder::default()
    }
}

/// A replica that has been running for a horizon.
fn replica() -> Server {
    let mut server = Server::new(Policy::default());
    server.replay = Some(ReplayMemory::new(1000, HORIZON, 99).since(Time(steady::NOW - 2 * HORIZON)));
    server
}

/// The last continuation of a window of 100 that was received and is unused.
fn drained() -> TransportContinuation {
    TransportContinuation {
        number: 960 + u32::from(WINDOW),
        tcp_base: 960,
        start_cwnd: WINDOW,
        ssthresh: WINDOW,
        ..steady::fields()
    }
}

fn sealed(keys: &KeyRing, c: &TransportContinuation) -> SealedContinuation {
    seal_continuation(keys.seal(c.seal_epoch).unwrap(), c, CLIENT.parse().unwrap())
}

/// One response: its number, its continuation and its token.
#[derive(Debug, PartialEq)]
struct Answer {
    number: u32,
    sealed: Option<SealedContinuation>,
    token: Option<Vec<u8>>,
}

fn ask_at(
    server: &mut Server,
    keys: &KeyRing,
    builder: &RequestBuilder<'_>,
    from: &str,
    now: u64,
) -> Result<Vec<Answer>, Refusal> {
    let packet = steady::packet_with(builder, from);
    let segment = Segment::parse_packet(&packet).unwrap();
    let Verdict::Respond(plan) = server.accept(&segment, keys, Time(now))? else { return Ok(vec![]) };
    let answer = |i: usize| {
        let mut out = [0; 4096];
        let sent = plan.respond(i, &Reply::default(), keys, &mut out).unwrap();
        let answer = Segment::parse_packet(&out[..sent.length]).unwrap();
        let answer = answer.response().unwrap();
        assert!(!builder.retire || answer.nonce == 0, "a number that came before shows no nonce");
        Answer { number: answer.number, sealed: sent.sealed, token: answer.token.map(<[u8]>::to_vec) }
    };
    Ok((0..plan.heads().len()).map(answer).collect())
}

fn ask(server: &mut Server, keys: &KeyRing, builder: &RequestBuilder<'_>) -> Result<Vec<Answer>, Refusal> {
    ask_at(server, keys, builder, CLIENT, steady::NOW)
}

/// Offers the window of `c` and returns the token received for it.
fn retire(
    server: &mut Server,
    keys: &KeyRing,
    c: &TransportContinuation,
) -> Result<Option<Vec<u8>>, Refusal> {
    let (continuation, last) = (sealed(keys, c), c.number.wrapping_sub(c.base) as u16);
    let proof = [steady::original(keys, c, 0, last)];
    let answers = ask(server, keys, &retirement(&continuation, &proof))?;
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].sealed, None, "the connection does not go on");
    Ok(answers.into_iter().next().unwrap().token)
}

fn token(server: &mut Server, keys: &KeyRing) -> Vec<u8> {
    retire(server, keys, &drained()).unwrap().expect("a token for the window")
}

fn syn(token: &[u8]) -> RequestBuilder<'_> {
    RequestBuilder { class: RequestClass::Syn, pad_to: 300, token: Some(token), ..RequestBuilder::default() }
}

/// Number of responses to a SYN with this token, and the gain of their piece.
fn open_at(server: &mut Server, keys: &KeyRing, token: &[u8], from: &str, now: u64) -> (usize, u8) {
    let answers = ask_at(server, keys, &syn(token), from, now).unwrap();
    (answers.len(), answers[0].sealed.unwrap().fields.gain)
}

fn open(server: &mut Server, keys: &KeyRing, token: &[u8]) -> (usize, u8) {
    open_at(server, keys, token, CLIENT, steady::NOW)
}

const WITH_WINDOW: (usize, u8) = (10, 8);
/// The responses that any valid address token gets.
const ADDRESS_ALONE: (usize, u8) = (10, 0);
/// The responses without a token.
const PLAIN: (usize, u8) = (1, 0);

/// Bytes of a fetch in Figure 7.
const SIZE: u64 = 128_000;
const RTT: u64 = 75_000;

/// Fetches over a new connection, with `loss` of one packet. Returns the time it took, and the
/// token received at the end.
fn fetch(
    server: &mut Option<Server>,
    now: &mut u64,
    seed: u64,
    token: Option<Vec<u8>>,
    lost: Option<u64>,
) -> (u64, Option<Vec<u8>>) {
    let mut world = World::new(Config { token, seed, ..Config::default() });
    world.server = server.take();
    world.now = *now;
    world.write(0, format!("{SIZE}\n").as_bytes());
    let mut down = 0;
    let mut fate = |way, _: &[u8]| {
        down += u64::from(way == support::Way::Down);
        if way == support::Way::Down && Some(down) == lost { vec![] } else { vec![RTT / 2] }
    };
    assert!(
        world.run(*now + 60_000_000, &mut fate, |w| w.got(0).len() as u64 >= SIZE),
        "{:?}",
        world.refusals
    );
    assert!(world.got(0) == expected(SIZE), "the bytes differ");
    let took = world.now - *now;
    world.client.close(Time(world.now));
    assert!(world.run(world.now + 10_000_000, &mut fate, |w| w.client.is_over()));
    assert!(world.refusals.is_empty(), "{:?}", world.refusals);
    (*now, *server) = (world.now, world.server.take());
    let mut tokens =
        world.events.into_iter().filter_map(|e| if let Event::Token(t) = e { Some(t) } else { None });
    (took, tokens.next_back())
}

/// Figure 7: nine fetches of 128 kB, 500 ms apart, each on a new connection.
#[test]
fn fetch_starts_with_the_previous_window() {
    let (mut server, mut now) = (Some(replica()), steady::NOW);
    let (mut token, mut took) = (None, vec![]);
    for seed in 0..9 {
        let (time, earned) = fetch(&mut server, &mut now, seed, token, None);
        token = earned;
        assert_eq!(token.as_ref().map(Vec::len), Some(WINDOW_TOKEN_LENGTH), "fetch {seed}");
        took.push(time / RTT);
        now += 500_000;
    }
    assert_eq!(took, [5, 3, 3, 3, 3, 3, 3, 3, 3], "round trips");
}

/// A client that closes while responses are in flight returns the window after their receipt, and
/// does not wait forever.
#[test]
fn close_awaits_the_last_responses() {
    for lost in [false, true] {
        let mut world = World::new(Config::default());
        world.server = Some(replica());
        world.now = steady::NOW;
        world.write(0, format!("{SIZE}\n").as_bytes());
        assert!(world.run(world.now + 60_000_000, |_, _| vec![RTT / 2], |w| w.got(0).len() > 100_000));
        world.client.forget(0);
        world.client.close(Time(world.now));
        let closed = world.now;
        assert!(world.client.awaits_token());
        let mut down = 0;
        let fate = |way, _: &[u8]| {
            down += u32::from(way == support::Way::Down);
            if lost && down == 1 { vec![] } else { vec![RTT / 2] }
        };
        // From here on only the token and the answer to the CLOSE are in flight. The connection
        // ends even without the token.
        assert!(world.run(world.now + 10_000_000, fate, |w| w.client.is_over()));
        let tokens = world.events.iter().filter(|e| matches!(e, Event::Token(_))).count();
        assert_eq!((tokens, world.client.statistics().retired), (usize::from(!lost), 1));
        assert!(world.now - closed < 10 * RTT);
    }
}

#[test]
fn loss_in_a_restored_window_is_recovered() {
    for lost in 1..=95 {
        let (mut server, mut now) = (Some(replica()), steady::NOW);
        let (_, token) = fetch(&mut server, &mut now, 1, None, None);
        fetch(&mut server, &mut now, 2, token, Some(lost));
    }
}

/// Defence: a memory of the windows that connections started with.
#[test]
fn window_is_restored_once() {
    let (keys, mut server) = (support::keys(), replica());
    let token = token(&mut server, &keys);
    assert_eq!(open(&mut server, &keys, &token), WITH_WINDOW);
    for from in [CLIENT, "192.0.2.1:50000"] {
        assert_eq!(open_at(&mut server, &keys, &token, from, steady::NOW + 9), PLAIN, "from {from}");
    }
}

/// Defence: tag and numbers of the new connection are a PRF of the tag that returned the window.
/// Many replicas and ports open the same ten numbers, and the ToR accepts each of them once.
#[test]
fn window_opened_at_many_replicas_exists_once() {
    let keys = support::keys();
    let mut servers: Vec<Server> = (0..4).map(|_| replica()).collect();
    let token = token(&mut servers[0], &keys);
    let (mut tor, mut drawn) = (BTreeSet::new(), 0);
    for (port, server) in servers.iter_mut().enumerate() {
        let from = format!("192.0.2.1:{}", 50_000 + port);
        let answers = ask_at(server, &keys, &syn(&token), &from, steady::NOW).unwrap();
        assert_eq!((answers.len(), answers[0].sealed.unwrap().fields.gain), WITH_WINDOW);
        for continuation in answers.iter().filter_map(|a| a.sealed) {
            let c = continuation.fields;
            if !tor.insert((c.tag, c.number)) {
                continue;
            }
            let proof = [steady::original(&keys, &c, 0, c.number.wrapping_sub(c.base) as u16)];
            let request = RequestBuilder {
                continuation: Some(&continuation),
                proof: &proof,
                ..RequestBuilder::default()
            };
            drawn += ask_at(server, &keys, &request, &from, steady::NOW + 9).unwrap().len();
        }
    }
    assert_eq!(drawn, usize::from(WINDOW), "packets for one window");
}

/// Defence: a generation that returned its window is over for every class of request.
#[test]
fn generation_ends_when_its_window_is_returned() {
    let keys = support::keys();
    let c = drained();
    for class in [
        RequestClass::Normal,
        RequestClass::Probe,
        RequestClass::Timeout,
        RequestClass::Restart,
        RequestClass::Rekey,
    ] {
        let mut server = replica();
        token(&mut server, &keys);
        for number in [961, 1000, c.number] {
            let c = TransportContinuation { number, ..c };
            let proof = match class {
                RequestClass::Restart => vec![],
                _ => vec![steady::original(&keys, &c, 0, (number - 961) as u16)],
            };
            for attempt in if class == RequestClass::Normal { 0..1 } else { 0..4 } {
                let continuation = sealed(&keys, &c);
                let request = RequestBuilder {
                    class,
                    attempt,
                    continuation: Some(&continuation),
                    proof: &proof,
                    pad_to: 300,
                    ..RequestBuilder::default()
                };
                assert!(ask(&mut server, &keys, &request).is_err(), "{class} {attempt} of {number}");
            }
        }
    }
}

/// Defence: only an unused window can be returned, by a generation that was not left in another
/// way.
#[test]
fn used_window_is_not_returned() {
    let keys = support::keys();
    let c = drained();
    for class in [RequestClass::Normal, RequestClass::Timeout, RequestClass::Restart, RequestClass::Rekey] {
        let mut server = replica();
        let number = if class == RequestClass::Rekey { c.number } else { 961 };
        let c = TransportContinuation { number, ..c };
        let proof = match class {
            RequestClass::Restart => vec![],
            _ => vec![steady::original(&keys, &c, 0, (number - 961) as u16)],
        };
        let continuation = sealed(&keys, &c);
        let request = RequestBuilder {
            class,
            continuation: Some(&continuation),
            proof: &proof,
            pad_to: 300,
            ..RequestBuilder::default()
        };
        assert!(!ask(&mut server, &keys, &request).unwrap().is_empty());
        for attempt in 0..4 {
            let (continuation, proof) =
                (sealed(&keys, &drained()), [steady::original(&keys, &drained(), 0, 99)]);
            let request = RequestBuilder { attempt, ..retirement(&continuation, &proof) };
            assert_eq!(
                ask(&mut server, &keys, &request),
                Err(Refusal::Replayed),
                "after {class}, attempt {attempt}"
            );
        }
    }
}

/// Defence: the token names the tag of the generation, so of all tokens for its window one is
/// accepted.
#[test]
fn a_window_cannot_be_split_into_tokens() {
    let keys = support::keys();
    let mut server = replica();
    let proof = [steady::original(&keys, &drained(), 0, 99)];
    let continuation = sealed(&keys, &drained());
    let mut tokens = vec![];
    for attempt in 0..4 {
        let request = RequestBuilder { attempt, ..retirement(&continuation, &proof) };
        let answers = ask(&mut server, &keys, &request).unwrap();
        tokens.extend(answers.into_iter().filter_map(|a| a.token));
        tokens.extend(retire(&mut replica(), &keys, &drained()).unwrap());
        // A token that another replica issues for the rest of the generation.
        let more = TransportContinuation { base: 1061, number: 1161, ..drained() };
        tokens.extend(retire(&mut replica(), &keys, &more).unwrap());
    }
    assert_eq!(tokens.len(), 12);
    let with_window = tokens.iter().filter(|token| open(&mut server, &keys, token) == WITH_WINDOW).count();
    assert_eq!(with_window, 1);
}

/// Defence: the proof of a REKEY must show that every number of the window was received, and the
/// last one is presented.
#[test]
fn client_with_a_false_proof_gets_no_window() {
    let (keys, c) = (support::keys(), drained());
    let continuation = sealed(&keys, &c);
    let whole = steady::original(&keys, &c, 0, 99);
    let hidden = ProofEntry { sum: steady::original(&keys, &c, 0, 97).sum ^ 7, ..whole };
    let gap = [steady::original(&keys, &c, 0, 49), steady::original(&keys, &c, 51, 99)];
    let primes = keys.nonce(1).unwrap().retransmitted.tag(c.tag);
    let prime = ProofEntry::range(EntryKind::Retransmitted, 99, 99, primes.nonce(c.number));
    let regenerated = [steady::original(&keys, &c, 0, 98), prime];
    let mut server = replica();
    let mut offer =
        |c: &SealedContinuation, proof: &[ProofEntry]| ask(&mut server, &keys, &retirement(c, proof));
    assert_eq!(offer(&continuation, &[hidden]), Err(Refusal::Sum));
    for proof in [&gap[..], &regenerated, &[whole, ProofEntry::mark(3)]] {
        assert!(matches!(offer(&continuation, proof), Err(Refusal::Verdict(_))), "{proof:?}");
    }
    for number in [961, 1059] {
        let c = TransportContinuation { number, ..c };
        let proof = [steady::original(&keys, &c, 0, (number - 961) as u16)];
        assert!(
            matches!(offer(&sealed(&keys, &c), &proof), Err(Refusal::Verdict(_))),
            "not the last: {number}"
        );
    }
    let larger = SealedContinuation {
        fields: TransportContinuation { start_cwnd: 1000, number: 1960, ..c },
        ..continuation
    };
    let proof = [steady::original(&keys, &larger.fields, 0, 999)];
    assert_eq!(offer(&larger, &proof), Err(Refusal::Forged));
    assert!(offer(&continuation, &[whole]).unwrap()[0].token.is_some(), "the truth");
}

/// Defence: a new connection proves nothing of the window before its first ten numbers are
/// answered.
#[test]
fn a_window_is_not_earned_by_opening_with_it() {
    let (keys, mut server) = (support::keys(), replica());
    let token = token(&mut server, &keys);
    let answers = ask(&mut server, &keys, &syn(&token)).unwrap();
    let c = answers.last().unwrap().sealed.unwrap().fields;
    assert_eq!((c.gain, retire(&mut server, &keys, &c)), (8, Ok(None)));
}

/// Defence: the MAC over the client's address, under a key of the service.
#[test]
fn window_token_is_bound_to_address_and_service() {
    let (keys, mut server) = (support::keys(), replica());
    let token = token(&mut server, &keys);
    assert_eq!(open_at(&mut server, &keys, &token, "192.0.2.2:40000", steady::NOW), PLAIN);
    let mut other = KeyRing::new(8);
    other.add_seal(1, &[0x11; 16]);
    other.add_nonce(1, support::nonce_keys(1));
    other.use_seal(1);
    other.use_nonce(1);
    assert_eq!(open(&mut server, &other, &token), PLAIN, "another service, the same master");
    assert_eq!(open(&mut server, &keys, &token), WITH_WINDOW, "whose it is");
}

/// Defence: a window ages from its last use, whenever it is returned, and lasts no longer than the
/// memory of its use.
#[test]
fn window_kept_idle_is_smaller() {
    let keys = support::keys();
    let gains = [0, 1, 2, 4, 5].map(|seconds| {
        let mut server = replica();
        let token = token(&mut server, &keys);
        open_at(&mut server, &keys, &token, CLIENT, steady::NOW + seconds * 1_000_000).1
    });
    assert_eq!(gains, [8, 3, 0, 0, 0]);
    // Kept for two seconds before it was returned.
    let old = TransportContinuation { time: steady::NOW - 2_000_000, ..drained() };
    let mut server = replica();
    let token = retire(&mut server, &keys, &old).unwrap().unwrap();
    assert_eq!(open(&mut server, &keys, &token), ADDRESS_ALONE);
}

/// Defence: a memory younger than a horizon moves no window, because it has no record of the
/// previous process's requests.
#[test]
fn a_replica_that_has_just_started_moves_no_window() {
    let keys = support::keys();
    let mut server = replica();
    let token = token(&mut server, &keys);
    assert_eq!(open(&mut server, &keys, &token), WITH_WINDOW);
    server.replay = Some(ReplayMemory::new(1000, HORIZON, 98));
    assert_eq!(open(&mut server, &keys, &token), ADDRESS_ALONE, "the token again, after a restart");
    let other = TransportContinuation { tag: 77, ..drained() };
    assert_eq!(retire(&mut server, &keys, &other), Ok(None));
    server.replay = None;
    assert_eq!(open(&mut server, &keys, &token), ADDRESS_ALONE, "nor does one without memory");
}

/// Defence: a window is not moved if its use cannot be stored.
#[test]
fn full_replay_memory_moves_no_window() {
    let keys = support::keys();
    let token = token(&mut replica(), &keys);
    let mut server = replica();
    let mut memory = ReplayMemory::new(1, HORIZON, 99).since(Time(steady::NOW - 2 * HORIZON));
    for number in 0..10_000 {
        let key =
            rivulet_transport::server::ReplayKey { class: RequestClass::Normal, attempt: 0, tag: 1, number };
        memory.take(key, Time(steady::NOW));
    }
    server.replay = Some(memory);
    assert_eq!(open(&mut server, &keys, &token), ADDRESS_ALONE);
    assert_eq!(retire(&mut server, &keys, &drained()), Ok(None));
    // Nor if there is room for the use but none for the generation that is over.
    let mut server = replica();
    let memory = server.replay.as_mut().unwrap();
    let forgotten = (0..10_000).filter(|tag| !memory.leave(*tag, LeftBy::Rekey, Time(steady::NOW)));
    assert!(forgotten.count() > 9_000);
    assert_eq!(retire(&mut server, &keys, &drained()), Ok(None));
}

/// Defence: a token names its seal epoch; it is valid while that key is kept.
#[test]
fn a_window_outlives_a_rotation_and_ends_with_its_key() {
    let mut keys = support::keys();
    let mut servers = [replica(), replica()];
    let token = token(&mut servers[0], &keys);
    keys.add_seal(2, &[0x22; 16]);
    keys.use_seal(2);
    keys.add_nonce(2, support::nonce_keys(2));
    keys.use_nonce(2);
    assert_eq!(open(&mut servers[0], &keys, &token), WITH_WINDOW);
    assert_eq!(open(&mut servers[0], &keys, &token), PLAIN, "once, whichever epochs it opens in");
    keys.withdraw_seal(1);
    assert_eq!(open(&mut servers[1], &keys, &token), PLAIN);
}

#[test]
fn small_window_is_not_returned() {
    let (keys, mut server) = (support::keys(), replica());
    let of = |window: u16| TransportContinuation {
        tag: u32::from(window),
        number: 960 + u32::from(window),
        start_cwnd: window,
        ssthresh: window,
        ..drained()
    };
    assert_eq!(retire(&mut server, &keys, &of(29)), Ok(None));
    let token = retire(&mut server, &keys, &of(30)).unwrap().unwrap();
    let (_, retired) = Retired::read(&token).unwrap();
    assert_eq!((retired.window, retired.ssthresh, retired.tag, retired.mss), (30, 30, 30, 1452));
    assert_eq!(open(&mut server, &keys, &token), (10, 1));
}
