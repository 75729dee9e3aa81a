//! Answers of back ends: one datagram in each direction, and no connection state anywhere.

use proptest::prelude::*;
use rivulet_plain::{Cause, Judged, Protocol, Reason, Relay, Segment, Site, Verdict};

use crate::support::client::{Client, Nature};
use crate::support::name_server::{query, stream, translated};
use crate::support::net::{Fate, Net, Outcome, Way, carry_out};
use crate::support::{keys, site};

fn relay(deterministic: bool) -> Relay {
    Relay { keys: keys(), protocol: Protocol::Dns, deterministic, mtu: 1500 }
}

fn fine(_: Way, _: usize) -> Fate {
    Fate::Arrives
}

/// The back end under test: gets a query and its number; returns the answer, or `None` to lose it.
type BackEnd<'f> = dyn FnMut(&[u8], usize) -> Option<Vec<u8>> + 'f;

/// Further counters of a run.
#[derive(Default)]
struct Seen {
    asked: usize,
    changed: usize,
}

/// Runs a client against replicas that query a back end.
fn run(
    relay: &Relay,
    client: &mut Client,
    fate: &mut dyn FnMut(Way, usize) -> Fate,
    back_end: &mut BackEnd<'_>,
) -> (Outcome, Seen) {
    let site: Site = site();
    let mut seen = Seen::default();
    let outcome = Net::new(&site).run_with(client, fate, &mut |packet, net, now, outcome| {
        let segment = Segment::parse(packet).expect("what clients send is well formed");
        let verdict = match relay.judge(&segment, net.minute + (now / 60_000) as u32) {
            Judged::Drop(reason) => Verdict::Drop(reason),
            Judged::Say(header) => Verdict::Say(header),
            Judged::Kernel(cause) => Verdict::Kernel(cause),
            Judged::Adopt(cause, handshake) => Verdict::Adopt(cause, handshake),
            Judged::Ask(ask) => {
                seen.asked += 1;
                let Some(octets) = back_end(&segment.payload[..ask.length], seen.asked) else {
                    return Vec::new();
                };
                let octets = (octets.len() <= 15 << 10).then_some(&octets[..]);
                let verdict = relay.answer(&segment, &ask, octets, net.told);
                seen.changed += usize::from(matches!(verdict, Verdict::Drop(Reason::Changed)));
                return carry_out(verdict, packet, outcome);
            }
        };
        carry_out(verdict, packet, outcome)
    });
    (outcome, seen)
}

fn steady(request: &[u8], _: usize) -> Option<Vec<u8>> {
    Some(translated(request, 0))
}

#[test]
fn queries_of_one_segment_are_answered_in_one_flight() {
    for stamps in [true, false] {
        for v6 in [false, true] {
            for (sizes, edns) in
                [(&[40][..], false), (&[40, 300, 7], true), (&[900], false), (&[1, 1, 1], false)]
            {
                let queries: Vec<_> =
                    sizes.iter().zip(1..).map(|(size, id)| query(id * 77, *size, edns)).collect();
                let nature = Nature { stamps, v6, ..Nature::default() };
                let mut client = Client::new(nature, 4000, 0xffff_fe00, &[queries.concat()]);
                let (outcome, seen) = run(&relay(false), &mut client, &mut fine, &mut steady);
                assert!(client.stream == stream(&queries, 0) && client.is_done() && client.had_fin());
                assert_eq!(client.paws, 0);
                if stamps {
                    assert_eq!((client.retransmissions, seen.asked), (0, 1), "{sizes:?}");
                    assert_eq!(outcome.milliseconds, 60, "handshake, answer, end");
                } else {
                    // Only a repeated request shows the acknowledged bytes, after another query.
                    assert!(client.retransmissions < 2 && seen.asked < 3, "{sizes:?}: {}", seen.asked);
                }
            }
        }
    }
}

#[test]
fn half_closing_clients_get_their_answer() {
    for stamps in [true, false] {
        for (half_close, fin_apart) in [(true, false), (false, true)] {
            for (deterministic, size) in [(false, 500), (true, 500), (true, 5000)] {
                let asked = query(7, size, false);
                let nature = Nature { stamps, half_close, fin_apart, ..Nature::default() };
                let mut client = Client::new(nature, 4000, 9, std::slice::from_ref(&asked));
                let mut lost =
                    |way, n| if way == Way::ToClient && n == 1 { Fate::Lost } else { Fate::Arrives };
                run(&relay(deterministic), &mut client, &mut lost, &mut steady);
                assert!(client.stream == stream(&[asked], 0), "{stamps} {half_close} {deterministic} {size}");
                assert!(client.had_fin());
            }
        }
    }
}

/// Every pattern of losses among the first packets in each direction: the answer arrives complete,
/// with the same bytes, and no data of the client stays unacknowledged.
#[test]
fn client_gets_the_whole_answer_under_any_loss() {
    for (stamps, deterministic, size) in
        [(true, false, 600), (true, true, 4000), (false, false, 600), (false, true, 2500)]
    {
        for pattern in 0..1u32 << 10 {
            let nature = Nature { stamps, ..Nature::default() };
            // The second answer has 32 bytes: a timestamp with bits of the request's end once made
            // it look like the first one's.
            let asked = [query(7, size, pattern & 1 == 0), query(8, 4, true)];
            let mut client = Client::new(nature, 4000, 0xffff_ff00, &[asked.concat()]);
            let mut fate = |way, n: usize| {
                let bit = if way == Way::ToServer { n } else { n + 5 };
                let lost = n < 5 && pattern & 1 << bit != 0;
                if lost { Fate::Lost } else { Fate::Arrives }
            };
            run(&relay(deterministic), &mut client, &mut fate, &mut steady);
            assert!(client.stream == stream(&asked, 0), "{stamps} {size}: {pattern:010b}");
            assert!(client.had_fin() && client.is_done(), "{stamps} {size}: {pattern:010b}");
        }
    }
}

/// The back end's answers differ each time: the client gets one of them completely.
#[test]
fn an_answer_of_one_segment_is_never_mixed_of_two() {
    for stamps in [true, false] {
        for pattern in 0..1u32 << 8 {
            let nature = Nature { stamps, ..Nature::default() };
            let asked = query(7, 800, false);
            let mut client = Client::new(nature, 4000, 1, std::slice::from_ref(&asked));
            let mut fate = |way, n: usize| match n < 4 && pattern & 1 << (n + 4 * (way as usize)) != 0 {
                true => Fate::Lost,
                false => Fate::Twice(300),
            };
            let mut other = |request: &[u8], n: usize| Some(translated(request, n as u8));
            let (_, seen) = run(&relay(false), &mut client, &mut fate, &mut other);
            let from =
                (1..=seen.asked).find(|n| client.stream == stream(std::slice::from_ref(&asked), *n as u8));
            assert!(from.is_some() && client.had_fin(), "{stamps} {pattern:08b}");
        }
    }
}

/// The back end is wrongly declared deterministic: an answer in progress is not continued with
/// another one.
#[test]
fn nondeterministic_back_end_is_detected() {
    let asked = query(7, 6000, false);
    let mut client = Client::new(Nature::default(), 4000, 1, std::slice::from_ref(&asked));
    // The third segment of the first answer is lost, and the client repeats its request.
    let mut fate = |way, n: usize| match (way, n) {
        (Way::ToClient, 3) => Fate::Lost,
        (Way::ToServer, 60..) => Fate::Lost,
        _ => Fate::Arrives,
    };
    let mut first = |request: &[u8], n: usize| Some(translated(request, if n == 1 { 0 } else { 1 }));
    let (_, seen) = run(&relay(true), &mut client, &mut fate, &mut first);
    assert!(seen.changed > 2, "{}", seen.changed);
    let want = stream(&[asked], 0);
    assert!(!client.stream.is_empty() && want.starts_with(&client.stream) && !client.had_fin());
}

#[test]
fn lost_question_to_back_end_is_repeated() {
    for stamps in [true, false] {
        let queries = [query(1, 100, true), query(2, 200, false)];
        let nature = Nature { stamps, ..Nature::default() };
        let mut client = Client::new(nature, 4000, 1, &[queries.concat()]);
        let mut third = |request: &[u8], n: usize| (n >= 3).then(|| translated(request, 0));
        let (_, seen) = run(&relay(false), &mut client, &mut fine, &mut third);
        assert!(client.stream == stream(&queries, 0));
        assert!((3..5).contains(&seen.asked) && (!stamps || client.retransmissions == 2));
    }
}

/// A pipelining client sends its second query in a separate segment. The first query is answered
/// and the connection ends. After a loss both arrive in one segment, and the answer resumes where
/// it was.
#[test]
fn second_query_in_another_segment_does_no_harm() {
    let queries = [query(1, 3000, false), query(2, 4, true)];
    let whole = stream(&queries[..1], 0);
    for pattern in 0..1u32 << 8 {
        let nature = Nature { pipelines: true, ..Nature::default() };
        let mut client = Client::new(nature, 4000, 1, &queries);
        let mut fate =
            |way, n: usize| match n < 7 && n > 2 && pattern & 1 << (n - 3 + 4 * (way as usize)) != 0 {
                true => Fate::Lost,
                false => Fate::Arrives,
            };
        run(&relay(true), &mut client, &mut fate, &mut steady);
        assert!(client.stream == whole || client.stream == stream(&queries, 0), "{pattern:08b}");
        assert!(client.had_fin() && client.is_done(), "{pattern:08b}");
    }
}

/// Why the kernel has to take over the client's first request, or cannot.
fn cause(outcome: &Outcome) -> Option<Cause> {
    let adopted = outcome.adopted.first().map(|(cause, _)| *cause);
    adopted.or(outcome.kernel.first().copied())
}

#[test]
fn unanswerable_query_goes_to_the_kernel() {
    let first_cause = |relay: &Relay, request: &[u8]| {
        let mut client = Client::new(Nature::default(), 4000, 1, &[request.to_vec()]);
        let mut end = |way, n| if way == Way::ToServer && n > 2 { Fate::Lost } else { Fate::Arrives };
        let (outcome, _) = run(relay, &mut client, &mut end, &mut steady);
        (cause(&outcome), client.stream.len())
    };
    let whole = |size: usize| query(7, size, false);
    // One segment has 1,448 bytes: the length field, the header, the question, and the record's
    // other fields.
    let head = stream(&[whole(1400)], 0).len() - 1400;
    assert_eq!(first_cause(&relay(false), &whole(1448 - head)), (None, 1448));
    assert_eq!(first_cause(&relay(false), &whole(1449 - head)), (Some(Cause::Object), 0));
    assert_eq!(first_cause(&relay(true), &whole(1449 - head)), (None, 1449));
    // A window without room for the segment and its FIN.
    let narrow = |buffer| {
        let nature = Nature { buffer, shift: Some(0), ..Nature::default() };
        let mut client = Client::new(nature, 4000, 1, &[whole(500)]);
        let mut end = |way, n| if way == Way::ToServer && n > 2 { Fate::Lost } else { Fate::Arrives };
        let (outcome, _) = run(&relay(false), &mut client, &mut end, &mut steady);
        (cause(&outcome), client.stream.len())
    };
    let length = 500 + head - 1;
    assert_eq!(narrow(length as u32 + 1), (None, length));
    assert_eq!(narrow(length as u32), (Some(Cause::Object), 0));
    let most = (15 << 10) - stream(&[whole(15_000)], 0).len() + 15_000;
    assert_eq!(first_cause(&relay(true), &whole(most)).0, None);
    assert_eq!(first_cause(&relay(true), &whole(most + 1)), (Some(Cause::Object), 0));
    assert_eq!(first_cause(&relay(true), &whole(20)[..20]), (Some(Cause::Split), 0));
    let mut transfer = whole(20);
    let kind = transfer.len() - 3;
    transfer[kind] = 252;
    assert_eq!(first_cause(&relay(true), &transfer), (Some(Cause::Request), 0));
    let many: Vec<u8> = (0..17).flat_map(|_| whole(20)).collect();
    assert_eq!(first_cause(&relay(true), &many), (Some(Cause::Request), 0));
    let http = Relay { protocol: Protocol::Http, ..relay(true) };
    assert_eq!(first_cause(&http, b"POST / HTTP/1.1\r\nHost: h\r\n\r\n"), (Some(Cause::Request), 0));
    assert_eq!(first_cause(&http, b"GET / HTTP/1.1\r\nHost: h\r\n"), (Some(Cause::Split), 0));
}

#[test]
fn http_request_and_answer_pass_unchanged() {
    let request = b"GET /a?b HTTP/1.1\r\nHost: h\r\nCookie: c\r\n\r\n".to_vec();
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc".to_vec();
    for stamps in [true, false] {
        let nature = Nature { stamps, ..Nature::default() };
        let mut client = Client::new(nature, 4000, 1, std::slice::from_ref(&request));
        let http = Relay { protocol: Protocol::Http, ..relay(false) };
        let mut program = |asked: &[u8], _| {
            assert_eq!(asked, request);
            Some(answer.clone())
        };
        run(&http, &mut client, &mut fine, &mut program);
        assert!(client.stream == answer && client.is_done());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn every_client_gets_its_answer(
        size in 0usize..15_000, more in prop::option::of(0usize..300), seed: u64,
        (stamps, v6, sack, edns, half_close) in any::<(bool, bool, bool, bool, bool)>(),
        mss in 1220u16..1500, buffer in 2000u32..70_000, isn: u32, loss in 0u64..25,
    ) {
        let queries: Vec<_> = [Some(size), more].into_iter().flatten().map(|size| query(3, size, edns)).collect();
        let nature = Nature { stamps, v6, sack, half_close, mss, buffer, ..Nature::default() };
        let mut client = Client::new(nature, 4000, isn, &[queries.concat()]);
        let mut state = seed | 1;
        let mut fate = |_, n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Of repeated packets, some arrive.
            let lost = n < 200 && (state >> 20) % 100 < loss;
            if lost { Fate::Lost } else if state >> 60 == 0 { Fate::Late(40) } else { Fate::Arrives }
        };
        let want = stream(&queries, 0);
        let (outcome, _) = run(&relay(true), &mut client, &mut fate, &mut steady);
        if want.len() > 15 << 10 {
            prop_assert!(client.stream.is_empty() && cause(&outcome).is_some());
        } else {
            prop_assert!(client.stream == want, "{} of {} octets", client.stream.len(), want.len());
            prop_assert!(client.had_fin());
        }
    }
}
