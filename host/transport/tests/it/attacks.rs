//! Attacks by a malicious client. Each test names the defence without which it fails.

use std::collections::BTreeSet;

use crate::support::{self, CLIENT, Random, steady};
use rivulet_packet::{
    EntryKind, Input, ProofEntry, RequestBuilder, RequestClass, SealedContinuation, Segment,
    TransportContinuation, Want,
};
use rivulet_transport::VerdictError;
use rivulet_transport::seal_continuation;
use rivulet_transport::server::{
    Answer, HeadKind, Policy, Refusal, ReplayMemory, Reply, Server, Verdict, step,
};
use rivulet_transport::{KeyRing, Time};

fn judge(keys: &KeyRing, packet: &[u8]) -> Result<usize, Refusal> {
    judge_at(keys, packet, steady::NOW)
}

fn judge_at(keys: &KeyRing, packet: &[u8], now: u64) -> Result<usize, Refusal> {
    let segment = Segment::parse_packet(packet).unwrap();
    match step(&segment, keys, Time(now), &Policy::default())? {
        Verdict::Terminate => Ok(0),
        Verdict::Respond(plan) => Ok(plan.heads().len()),
    }
}

fn sealed(keys: &KeyRing, c: &TransportContinuation) -> SealedContinuation {
    seal_continuation(keys.seal(c.seal_epoch).unwrap(), c, CLIENT.parse().unwrap())
}

fn normal(keys: &KeyRing, sealed: &SealedContinuation, proof: &[ProofEntry]) -> Vec<u8> {
    steady::packet(RequestClass::Normal, sealed, proof, &steady::output_continuation(keys))
}

#[test]
fn an_honest_request_is_answered() {
    let keys = support::keys();
    assert_eq!(judge(&keys, &steady::request(&keys)), Ok(1));
}

/// Defence: the MAC over head and tail.
#[test]
fn a_changed_continuation_is_refused_in_every_field() {
    let keys = support::keys();
    let c = steady::fields();
    let genuine = sealed(&keys, &c);
    let bytes = c.to_bytes();
    let mut tried = 0;
    for i in 0..bytes.len() * 8 {
        let mut changed = bytes;
        changed[i / 8] ^= 1 << (i % 8);
        let Ok(fields) = TransportContinuation::from_bytes(&changed) else { continue };
        let forged = SealedContinuation { fields, mac: genuine.mac };
        // The attacker keeps the proof consistent with the claim as far as the switch can check.
        let last = fields.number.wrapping_sub(fields.base);
        let last = if last < 65536 { last as u16 } else { 0 };
        let proof = match keys.nonce(fields.nonce_epoch) {
            Some(_) => steady::original(&keys, &fields, 0, last),
            None => steady::original(&keys, &c, 0, 39),
        };
        let refused = judge(&keys, &normal(&keys, &forged, &[proof])).unwrap_err();
        assert!(matches!(refused, Refusal::Forged | Refusal::SealEpoch), "bit {i}: {refused}");
        tried += 1;
    }
    assert!(tried > 400);
}

/// Defence: the MAC covers client address and port; keys are per service.
#[test]
fn a_continuation_of_another_client_or_service_is_refused() {
    let keys = support::keys();
    let c = steady::fields();
    let genuine = sealed(&keys, &c);
    let proof = [steady::original(&keys, &c, 0, 39)];
    let builder = RequestBuilder { continuation: Some(&genuine), proof: &proof, ..RequestBuilder::default() };
    for from in ["192.0.2.1:40001", "192.0.2.2:40000", "[2001:db8::1]:40000"] {
        if from.starts_with('[') {
            continue; // another family cannot reach this service address
        }
        assert_eq!(judge(&keys, &steady::packet_with(&builder, from)), Err(Refusal::Forged), "{from}");
    }
    let mut other = KeyRing::new(8);
    other.add_seal(1, &[0x11; 16]);
    other.add_nonce(1, support::nonce_keys(1));
    other.use_seal(1);
    other.use_nonce(1);
    assert_eq!(
        judge(&other, &steady::request(&keys)),
        Err(Refusal::Forged),
        "another service, the same master"
    );
}

/// Defence: the switch reads the sealed fields themselves, and nonces depend on the tag.
#[test]
fn ranges_of_one_connection_do_not_serve_another() {
    let keys = support::keys();
    let c = steady::fields();
    let other = TransportContinuation { tag: c.tag ^ 1, ..c };
    let proof = steady::original(&keys, &other, 0, 39);
    assert_eq!(judge(&keys, &normal(&keys, &sealed(&keys, &c), &[proof])), Err(Refusal::Sum));
}

/// Defence: the sum of every range is checked, the kind of a range selects the key, and the
/// answered number's nonce must be included.
#[test]
fn empty_wrapped_false_and_guessed_proofs_are_refused() {
    let keys = support::keys();
    let c = steady::fields();
    let genuine = sealed(&keys, &c);
    let ask = |proof: &[ProofEntry]| judge(&keys, &normal(&keys, &genuine, proof));
    let own = VerdictError::Proof(rivulet_transport::ProofError::OwnNonceMissing);
    assert_eq!(ask(&[]), Err(Refusal::Verdict(own)), "empty");
    assert_eq!(
        ask(&[steady::original(&keys, &c, 0, 38)]),
        Err(Refusal::Verdict(own)),
        "without the own nonce"
    );
    // A hidden loss: the sum lacks one nonce.
    let whole = steady::original(&keys, &c, 0, 39);
    let missing = steady::original(&keys, &c, 17, 17).sum;
    assert_eq!(ask(&[ProofEntry { sum: whole.sum ^ missing, ..whole }]), Err(Refusal::Sum), "a hidden loss");
    // The nonce of the retransmission in place of the original's.
    let prime = keys.nonce(1).unwrap().retransmitted.tag(c.tag).nonce(c.base + 17);
    assert_eq!(
        ask(&[ProofEntry { sum: whole.sum ^ missing ^ prime, ..whole }]),
        Err(Refusal::Sum),
        "a retransmission's nonce"
    );
    assert_eq!(
        ask(&[ProofEntry { kind: EntryKind::Retransmitted, ..whole }]),
        Err(Refusal::Sum),
        "as retransmissions"
    );
    // Acknowledging numbers that were never sent.
    assert_eq!(ask(&[ProofEntry { last: 45, ..whole }]), Err(Refusal::Sum), "the unsent");
    let mut random = Random(7);
    for _ in 0..100_000 {
        let sum = random.next() as u32;
        if sum != whole.sum {
            assert_eq!(ask(&[ProofEntry { sum, ..whole }]), Err(Refusal::Sum), "guessed");
        }
    }
}

/// Defence: a declared loss halves the window, so an invented loss only costs. No proof yields more
/// responses than the complete one.
#[test]
fn no_lie_about_losses_gains_anything() {
    let keys = support::keys();
    let c = steady::fields();
    let genuine = sealed(&keys, &c);
    let honest = judge(&keys, &normal(&keys, &genuine, &[steady::original(&keys, &c, 0, 39)])).unwrap();
    for gap in 0..39u16 {
        let mut proof = Vec::new();
        if gap > 0 {
            proof.push(steady::original(&keys, &c, 0, gap - 1));
        }
        proof.push(steady::original(&keys, &c, gap + 1, 39));
        let segment = normal(&keys, &genuine, &proof);
        let segment = Segment::parse_packet(&segment).unwrap();
        let new = match step(&segment, &keys, Time(steady::NOW), &Policy::default()).unwrap() {
            Verdict::Terminate => 0,
            Verdict::Respond(plan) => plan.heads().iter().filter(|h| h.kind == HeadKind::New).count(),
        };
        assert!(new <= honest, "gap {gap}: {new} new responses");
    }
}

fn guarded() -> Server {
    let mut server = Server::new(Policy::default());
    server.replay = Some(ReplayMemory::new(100_000, 4_000_000, 99));
    server
}

/// Bytes that a connection of a greedy client gets for 40 continuations, each used `times` times
/// with each of `proofs`.
fn greed(server: &mut Server, keys: &KeyRing, times: u32, proofs: u32) -> usize {
    let mut bytes = 0;
    let mut out = [0u8; 2048];
    for number in 961..=1000 {
        let c = TransportContinuation { number, ..steady::fields() };
        let genuine = sealed(keys, &c);
        for _ in 0..times {
            for proof in 0..proofs {
                let last = (number - c.base) as u16;
                let mut entries = vec![steady::original(keys, &c, 0, last)];
                if proof == 1 && last > 25 {
                    entries = vec![steady::original(keys, &c, 1, last)]; // a loss, survivors alone
                }
                let packet = normal(keys, &genuine, &entries);
                let segment = Segment::parse_packet(&packet).unwrap();
                if let Ok(Verdict::Respond(plan)) = server.accept(&segment, keys, Time(steady::NOW)) {
                    for i in 0..plan.heads().len() {
                        bytes += plan.respond(i, &Reply::default(), keys, &mut out).unwrap().length;
                    }
                }
            }
        }
    }
    bytes
}

/// Defence: the replay memory is keyed by response number, not by MAC or proof.
#[test]
fn repeated_use_of_continuations_gains_nothing() {
    let keys = support::keys();
    let honest = greed(&mut guarded(), &keys, 1, 1);
    for (times, proofs) in [(4, 1), (1, 2), (3, 2)] {
        assert!(greed(&mut guarded(), &keys, times, proofs) <= honest, "{times} times, {proofs} proofs");
        let undefended = greed(&mut Server::new(Policy::default()), &keys, times, proofs);
        assert!(undefended > honest, "the test would notice a missing memory");
    }
}

/// Defence: the replay memory within the horizon, freshness after it, without a gap between them.
#[test]
fn a_replay_is_refused_at_any_later_time() {
    let keys = support::keys();
    let packet = steady::request(&keys);
    let segment = Segment::parse_packet(&packet).unwrap();
    for later in [0, 1, 1_000_000, 3_900_000, 3_999_000, 4_000_001, 8_000_000, 3_600_000_000] {
        let mut server = guarded();
        assert!(server.accept(&segment, &keys, Time(steady::NOW)).is_ok());
        let again = server.accept(&segment, &keys, Time(steady::NOW + later));
        assert!(matches!(again, Err(Refusal::Replayed | Refusal::Stale)), "{later} us later");
    }
    assert_eq!(judge_at(&keys, &packet, steady::NOW + 5_000_000), Err(Refusal::Stale));
    assert_eq!(judge_at(&keys, &packet, steady::NOW - 5_000_000), Err(Refusal::Stale), "from the future");
}

/// Defence: only authentic requests are stored, and the memory has a fixed size.
#[test]
fn the_replay_memory_cannot_be_polluted() {
    let keys = support::keys();
    let mut server = guarded();
    let c = steady::fields();
    for n in 0..10_000u32 {
        let forged = SealedContinuation { fields: TransportContinuation { number: n, ..c }, mac: [1; 12] };
        let packet = normal(&keys, &forged, &[steady::original(&keys, &c, 0, 39)]);
        let segment = Segment::parse_packet(&packet).unwrap();
        assert!(server.accept(&segment, &keys, Time(steady::NOW)).is_err());
    }
    let memory = server.replay.as_ref().unwrap().statistics();
    assert_eq!((memory.allowed, memory.overflowed), (0, 0));
}

fn syn(token: Option<&[u8]>, pad_to: usize, from: &str) -> Vec<u8> {
    let builder = RequestBuilder { class: RequestClass::Syn, token, pad_to, ..RequestBuilder::default() };
    steady::packet_with(&builder, from)
}

fn answer_bytes(server: &mut Server, keys: &KeyRing, packet: &[u8]) -> usize {
    let segment = Segment::parse_packet(packet).unwrap();
    let Ok(Verdict::Respond(plan)) = server.accept(&segment, keys, Time(steady::NOW)) else { return 0 };
    let mut out = [0u8; 4096];
    let data = [7u8; 1400];
    let mut bytes = 0;
    for (i, head) in plan.heads().iter().enumerate() {
        let data = &data[..data.len().min(head.room)];
        let answer = rivulet_transport::server::Answer::Data { offset: 0, data, end: false };
        bytes += plan.respond(i, &Reply { answer, ..Reply::default() }, keys, &mut out).unwrap().length;
    }
    bytes
}

/// Defence: the answer to a SYN is one packet, no larger than the SYN.
#[test]
fn syn_of_any_size_is_not_amplified() {
    let keys = support::keys();
    for pad_to in 0..1432 {
        let packet = syn(None, pad_to, "203.0.113.66:1");
        let answered = answer_bytes(&mut guarded(), &keys, &packet);
        assert!(answered <= packet.len(), "a SYN of {} bytes got {answered}", packet.len());
    }
}

/// Defence: a token proves one address, and is accepted once.
#[test]
fn a_token_works_for_its_address_and_once() {
    let keys = support::keys();
    let token =
        rivulet_transport::address_token(&keys, 1, steady::NOW, "192.0.2.1".parse().unwrap()).unwrap();
    let mut server = guarded();
    let spoofed = syn(Some(&token), 200, "203.0.113.66:1");
    assert!(answer_bytes(&mut server, &keys, &spoofed) <= spoofed.len(), "from another address");
    let own = syn(Some(&token), 200, "192.0.2.1:1");
    assert!(answer_bytes(&mut server, &keys, &own) > 5 * own.len(), "the initial window");
    assert!(answer_bytes(&mut server, &keys, &own) <= own.len(), "the second time");
}

/// Defence: a RESTART from an address that the MAC does not cover gets a challenge that is no
/// larger than the RESTART.
#[test]
fn a_stolen_or_moved_continuation_cannot_be_used_for_reflection() {
    let keys = support::keys();
    let genuine = sealed(&keys, &steady::fields());
    let restart = |token: Option<&[u8]>, from: &str| {
        steady::packet_with(
            &RequestBuilder {
                class: RequestClass::Restart,
                continuation: Some(&genuine),
                former: (from != CLIENT).then(|| CLIENT.parse().unwrap()),
                token,
                ..RequestBuilder::default()
            },
            from,
        )
    };
    let spoofed = restart(None, "203.0.113.66:1");
    let segment = Segment::parse_packet(&spoofed).unwrap();
    let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default()) else {
        panic!()
    };
    assert_eq!(plan.heads().len(), 1);
    assert_eq!(plan.heads()[0].kind, HeadKind::Challenge);
    let mut out = [0u8; 2048];
    let sent = plan.respond(0, &Reply::default(), &keys, &mut out).unwrap();
    assert!(sent.length <= spoofed.len() && sent.sealed.is_none());
    let answer = Segment::parse_packet(&out[..sent.length]).unwrap();
    let rivulet_packet::Body::Challenge { token } = answer.response().unwrap().body else { panic!() };
    // The challenge is valid for its address only.
    let elsewhere = restart(Some(token), "203.0.113.67:1");
    let segment = Segment::parse_packet(&elsewhere).unwrap();
    let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default()) else {
        panic!()
    };
    assert_eq!(plan.heads()[0].kind, HeadKind::Challenge);
    let there = restart(Some(token), "203.0.113.66:1");
    let segment = Segment::parse_packet(&there).unwrap();
    let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default()) else {
        panic!()
    };
    assert_eq!(plan.heads()[0].kind, HeadKind::New);
    assert!(!plan.is_for_application(), "no user data");
}

/// Defence: TIMEOUT, RESTART and REKEY open one next generation each, whichever continuation is
/// presented. A TIMEOUT or RESTART starts with the loss window and half the threshold; a REKEY
/// needs the whole window and no loss.
#[test]
fn a_hidden_restart_gains_no_window() {
    let keys = support::keys();
    let mut generations = BTreeSet::new();
    for number in 961..=1000u32 {
        for class in [RequestClass::Timeout, RequestClass::Restart] {
            let c = TransportContinuation { number, ..steady::fields() };
            let proof = [steady::original(&keys, &c, 0, (number - 961) as u16)];
            let genuine = sealed(&keys, &c);
            let packet = steady::packet(class, &genuine, &proof, &steady::output_continuation(&keys));
            let segment = Segment::parse_packet(&packet).unwrap();
            let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default())
            else {
                panic!()
            };
            assert_eq!(plan.heads().len(), 1, "the loss window");
            let mut out = [0u8; 2048];
            let fields = plan.respond(0, &Reply::default(), &keys, &mut out).unwrap().sealed.unwrap().fields;
            assert_eq!(fields.start_cwnd, 1);
            assert!(fields.ssthresh <= 21, "{}", fields.ssthresh);
            assert!(plan.heads()[0].prime, "under K', so that the repeat of a lost answer hides nothing");
            generations.insert((fields.tag, fields.number));
        }
        let c = TransportContinuation { number, ..steady::fields() };
        let proof = [steady::original(&keys, &c, 0, (number - 961) as u16)];
        let packet = steady::packet(
            RequestClass::Rekey,
            &sealed(&keys, &c),
            &proof,
            &steady::output_continuation(&keys),
        );
        let result = judge(&keys, &packet);
        if number != 1000 {
            assert_eq!(result, Err(Refusal::Verdict(VerdictError::NotDrained)), "number {number}");
        }
    }
    assert_eq!(generations.len(), 1, "every continuation opens the same generation");
}

/// Defence: the memory accepts each attempt once: per number for a PROBE, per generation for a
/// TIMEOUT or RESTART.
#[test]
fn restarts_and_timeouts_are_counted() {
    let keys = support::keys();
    let c = steady::fields();
    for class in [RequestClass::Timeout, RequestClass::Restart, RequestClass::Probe] {
        let mut server = guarded();
        let mut ask = |attempt| {
            let builder = RequestBuilder {
                class,
                attempt,
                continuation: Some(&sealed(&keys, &c)),
                proof: &[steady::original(&keys, &c, 0, 39)],
                ..RequestBuilder::default()
            };
            let packet = steady::packet_with(&builder, CLIENT);
            server.accept(&Segment::parse_packet(&packet).unwrap(), &keys, Time(steady::NOW)).is_ok()
        };
        let allowed = (0..20).filter(|i| ask(i % 4)).count();
        assert_eq!(allowed, 4, "{class:?}");
    }
}

/// Defence: the answer to a PROBE has no data, in any of its four attempts.
#[test]
fn probes_bring_no_data() {
    let keys = support::keys();
    let packet = steady::packet(
        RequestClass::Probe,
        &sealed(&keys, &steady::fields()),
        &[steady::original(&keys, &steady::fields(), 0, 39)],
        &steady::output_continuation(&keys),
    );
    let segment = Segment::parse_packet(&packet).unwrap();
    let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default()) else {
        panic!()
    };
    assert!(!plan.is_for_application() && plan.heads().iter().all(|h| h.room == 0 && h.prime));
    let mut out = [0u8; 2048];
    assert!(plan.respond(0, &Reply::default(), &keys, &mut out).unwrap().length <= packet.len());
}

/// Not an attack, but refused like one if epochs are not told apart from forgeries. A replica that
/// was cut off from its controller gets a user continuation sealed by another replica under a newer
/// key. The client must retry elsewhere instead of failing.
#[test]
fn continuation_of_a_newer_epoch_is_retried_elsewhere() {
    let behind = support::keys();
    let mut ahead = support::keys();
    ahead.add_seal(2, &[0x22; 16]);
    let opened = |epoch| {
        let ucont = steady::output_continuation_of(&ahead, epoch);
        let proof = [steady::original(&behind, &steady::fields(), 0, 39)];
        let packet = steady::packet(RequestClass::Normal, &steady::sealed(&behind), &proof, &ucont);
        let segment = Segment::parse_packet(&packet).unwrap();
        let Ok(Verdict::Respond(plan)) = step(&segment, &behind, Time(steady::NOW), &Policy::default())
        else {
            panic!()
        };
        let want = plan.heads().iter().find_map(|head| head.want).unwrap();
        plan.output_continuation(&want, &behind).map(|_| ())
    };
    assert_eq!(opened(1), Ok(()));
    let refusal = opened(2).unwrap_err();
    assert_eq!(refusal, Refusal::SealEpoch);
    assert!(matches!(refusal.answer(), Answer::NotMine { .. }), "{:?}", refusal.answer());
    assert!(matches!(Refusal::User.answer(), Answer::Error { code: 400, .. }));
}

/// Defence: the cookie is a PRF of addresses and ISN.
#[test]
fn a_guessed_cookie_opens_nothing() {
    let keys = support::keys();
    let blank = SealedContinuation {
        fields: TransportContinuation { mss: 1452, ..TransportContinuation::default() },
        mac: [0; 12],
    };
    let builder = RequestBuilder {
        class: RequestClass::Restart,
        continuation: Some(&blank),
        ..RequestBuilder::default()
    };
    assert_eq!(judge(&keys, &steady::packet_with(&builder, CLIENT)), Err(Refusal::Cookie));
}

/// Defence: user continuations are bound to the connection; the library verifies them before the
/// application sees them.
#[test]
fn a_user_continuation_of_another_connection_is_refused() {
    let keys = support::keys();
    let c = TransportContinuation { connection: 99, ..steady::fields() };
    let packet = normal(&keys, &sealed(&keys, &c), &[steady::original(&keys, &c, 0, 39)]);
    let segment = Segment::parse_packet(&packet).unwrap();
    let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default()) else {
        panic!()
    };
    let want = plan.heads()[0].want.unwrap();
    assert_eq!(plan.output_continuation(&want, &keys), Err(Refusal::User));
}

/// Input with an invalid continuation can be refused alone. The acknowledgement and the wants of
/// the request are handled as if it had no input.
#[test]
fn refused_input_leaves_the_rest_of_the_request() {
    let keys = support::keys();
    let c = steady::fields();
    let genuine = sealed(&keys, &c);
    let proof = [steady::original(&keys, &c, 0, 39)];
    let output = steady::output_continuation(&keys);
    // An output continuation is not accepted for input.
    let input = Input { stream: 0, end: false, ucont: Some(0), offset: 3, data: b"more" };
    let [without, with] = [None, Some(input)].map(|input| {
        let builder = RequestBuilder {
            continuation: Some(&genuine),
            proof: &proof,
            wants: &[Want { offset: 5000, length: 1000, ucont: Some(0), retransmit: false }],
            uconts: &[&output],
            input,
            ..RequestBuilder::default()
        };
        let packet = steady::packet_with(&builder, CLIENT);
        let segment = Segment::parse_packet(&packet).unwrap();
        let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default()) else {
            panic!()
        };
        let mut out = [0; 2048];
        assert_eq!(plan.input(&keys), if input.is_some() { Err(Refusal::User) } else { Ok(None) });
        assert!(plan.output_continuation(&plan.heads()[0].want.unwrap(), &keys).is_ok());
        let answer = Answer::Data { offset: 5000, data: &[7; 1000], end: false };
        let reply = Reply { answer, ..Reply::default() };
        plan.respond(0, &reply, &keys, &mut out).unwrap().sealed.unwrap()
    });
    assert_eq!(with, without, "the same continuation goes on");
}

/// Defence: bounded fields. No authentic continuation causes a panic, or more responses than the
/// capacity.
#[test]
fn extreme_but_authentic_continuations_are_survived() {
    let keys = support::keys();
    let mut random = Random(5);
    let mut out = [0u8; 16_384];
    for _ in 0..20_000 {
        let mut c = steady::fields();
        let pick =
            |random: &mut Random| [0, 1, 2, 39, 65_535, random.next() as u16][random.below(6) as usize];
        c.base = c.number.wrapping_sub(u32::from(pick(&mut random)));
        c.tcp_base = c.number.wrapping_sub(random.next() as u32 >> random.below(32));
        (c.start_cwnd, c.ssthresh, c.mss) =
            (pick(&mut random), pick(&mut random), pick(&mut random).min(9000));
        c.gain = random.below(9) as u8;
        let last = c.number.wrapping_sub(c.base) as u16;
        let mut proof = vec![steady::original(&keys, &c, random.below(u64::from(last) + 1) as u16, last)];
        if random.chance(0.3) {
            proof.push(ProofEntry::mark(random.below(u64::from(last) + 1) as u16));
        }
        let class = [
            RequestClass::Normal,
            RequestClass::Probe,
            RequestClass::Timeout,
            RequestClass::Rekey,
            RequestClass::Close,
        ][random.below(5) as usize];
        let packet = steady::packet(class, &sealed(&keys, &c), &proof, &steady::output_continuation(&keys));
        let segment = Segment::parse_packet(&packet).unwrap();
        if let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default()) {
            assert!(plan.heads().len() <= 16);
            for i in 0..plan.heads().len() {
                let _ = plan.respond(i, &Reply::default(), &keys, &mut out);
            }
        }
    }
}

/// Defence: the answer to a CLOSE reveals no nonce. A number received under K' was lost under K,
/// and its nonce under K would hide that.
#[test]
fn answer_to_close_reveals_no_nonce() {
    let keys = support::keys();
    let c = steady::fields();
    // The client has the last number only under K', from a PROBE.
    let primes = keys.nonce(1).unwrap().retransmitted.tag(c.tag);
    let last = ProofEntry::range(EntryKind::Retransmitted, 39, 39, primes.nonce(c.number));
    let proof = [steady::original(&keys, &c, 0, 38), last];
    let packet = steady::packet(RequestClass::Close, &sealed(&keys, &c), &proof, &[1]);
    let segment = Segment::parse_packet(&packet).unwrap();
    let Ok(Verdict::Respond(plan)) = step(&segment, &keys, Time(steady::NOW), &Policy::default()) else {
        panic!()
    };
    let mut out = [0u8; 2048];
    let sent = plan.respond(0, &Reply::default(), &keys, &mut out).unwrap();
    let answer = Segment::parse_packet(&out[..sent.length]).unwrap();
    assert_eq!(answer.response().unwrap().nonce, 0);
}

fn opened(
    server: &mut Server,
    keys: &KeyRing,
    builder: &RequestBuilder<'_>,
    ack: u32,
) -> Vec<(u32, u32, bool)> {
    let packet = steady::packet_acknowledging(builder, CLIENT, ack);
    let segment = Segment::parse_packet(&packet).unwrap();
    let Ok(Verdict::Respond(plan)) = server.accept(&segment, keys, Time(steady::NOW)) else { return vec![] };
    let mut out = [0u8; 4096];
    let heads = plan.heads().iter().enumerate();
    heads
        .map(|(i, head)| {
            let sent = plan.respond(i, &Reply::default(), keys, &mut out).unwrap();
            (sent.sealed.unwrap().fields.tag, head.number, head.prime)
        })
        .collect()
}

/// Defence: each kind of opening (a SYN, an address token, a completed cookie) derives distinct
/// numbers from one PRF. Only the first completion reveals nonces under K.
#[test]
fn each_kind_of_opening_derives_distinct_numbers() {
    let keys = support::keys();
    let token = |time| rivulet_transport::address_token(&keys, 1, time, "192.0.2.1".parse().unwrap());
    let tokens = [token(steady::NOW).unwrap(), token(steady::NOW - 1).unwrap()];
    let syn = RequestBuilder { class: RequestClass::Syn, pad_to: 300, ..RequestBuilder::default() };
    let with = |token| RequestBuilder { token: Some(token), ..syn };
    // All openings of one client, port and ISN. A bare SYN has sequence number 0 here, and its
    // completion 1.
    let mut server = guarded();
    let mut numbers: Vec<_> = opened(&mut server, &keys, &syn, 0);
    numbers.extend(opened(&mut server, &keys, &with(&tokens[0]), 0));
    numbers.extend(opened(&mut server, &keys, &with(&tokens[1]), 0));
    let (service, client) = (support::SERVICE.parse().unwrap(), CLIENT.parse().unwrap());
    let by = rivulet_transport::OpenedBy::Cookie;
    let cookie = rivulet_transport::open_connection(keys.nonce(1).unwrap(), client, service, 0, by).isn;
    let blank = SealedContinuation {
        fields: TransportContinuation { mss: 1452, ..TransportContinuation::default() },
        mac: [0; 12],
    };
    for attempt in [0, 0, 1, 2, 3, 3] {
        let class = RequestClass::Restart;
        let completion =
            RequestBuilder { class, attempt, continuation: Some(&blank), ..RequestBuilder::default() };
        numbers.extend(opened(&mut server, &keys, &completion, cookie.wrapping_add(1)));
    }
    assert_eq!(numbers.len(), 1 + 10 + 10 + 10 + 3, "{numbers:?}");
    let under_k: Vec<_> = numbers.iter().filter(|(.., prime)| !prime).collect();
    assert_eq!(under_k.iter().collect::<BTreeSet<_>>().len(), 31, "a number is issued twice under K");
}

/// Defence: a server that trusts its ToR checks what the ToR did not: the CHECKED mark is clear,
/// for example with more ranges than a switch parses.
#[test]
fn host_checks_requests_that_the_tor_did_not() {
    let keys = support::keys();
    let packet = steady::request(&keys);
    let segment = Segment::parse_packet(&packet).unwrap();
    assert!(!segment.request().unwrap().tor.checked);
    let mut server = guarded();
    server.policy.trust_tor = true;
    assert!(server.accept(&segment, &keys, Time(steady::NOW)).is_ok());
    assert_eq!(server.accept(&segment, &keys, Time(steady::NOW)).unwrap_err(), Refusal::Replayed);
}
