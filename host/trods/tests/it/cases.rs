//! The flow of a connection, tested step by step with chosen inputs.

use rivulet_trods::flow::{FLIGHT_PATIENCE, GATE, HANDSHAKE_PATIENCE, REQUEST_PATIENCE, RESPONSE_PATIENCE};
use rivulet_trods::record::Body;
use rivulet_trods::{Action, Flow, Limits, Reason, Record, Settings};

use crate::support::{CLOSED, OPEN, established, stores};

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const N: u32 = GET.len() as u32;
/// Arbitrary sequence numbers of each direction's first byte.
const CLIENT: u32 = 1000;
const SERVICE: u32 = u32::MAX - 100;

fn flow(settings: &Settings) -> Flow {
    established(CLIENT - 1, SERVICE - 1, settings)
}

fn head(length: u64) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: {length}\r\n\r\n").into_bytes()
}

/// The server's sequence number at this offset in its stream.
fn at(octets: u64) -> u32 {
    SERVICE.wrapping_add(octets as u32)
}

fn limits(ack: u32, data: u32, fin_at: Option<u32>) -> Vec<Action> {
    vec![Action::Limits(Limits { ack, data, fin_at })]
}

/// The actions that a step returns.
fn after(step: impl FnOnce(&mut Vec<Action>)) -> Vec<Action> {
    let mut out = Vec::new();
    step(&mut out);
    out
}

/// Confirms the one record that a step stores; returns it, and the actions that follow.
fn kept(flow: &mut Flow, step: impl FnOnce(&mut Flow, &mut Vec<Action>)) -> (Record, Vec<Action>) {
    let mut out = Vec::new();
    step(flow, &mut out);
    let [(ticket, record)] = stores(&out).try_into().unwrap_or_else(|_| panic!("{out:?}"));
    (record, after(|out| flow.stored(ticket, true, out)))
}

/// Passes a response's bytes to the flow, and advances the time until the flow no longer waits for
/// the rest of a first flight.
fn come(flow: &mut Flow, seq: u32, octets: &[u8], out: &mut Vec<Action>) {
    flow.response(seq, octets, false, out);
    flow.tick(FLIGHT_PATIENCE, out);
}

/// Passes a first request and the head of its response to the flow, both stored; returns the
/// response's end.
fn answered(flow: &mut Flow, length: u64) -> u32 {
    assert_eq!(after(|out| flow.request(CLIENT, GET, false, out)), limits(CLIENT, SERVICE, None));
    let head = head(length);
    let whole = head.len() as u64 + length;
    let (_, then) = kept(flow, |flow, out| come(flow, SERVICE, &head, out));
    assert_eq!(then, limits(CLIENT + N, at(whole), Some(at(whole))));
    at(whole)
}

#[test]
fn response_is_stored_once_its_head_is_complete() {
    let mut flow = flow(&OPEN);
    assert_eq!(after(|out| flow.request(CLIENT, &GET[..5], false, out)), limits(CLIENT, SERVICE, None));
    assert_eq!(after(|out| flow.request(CLIENT, GET, false, out)), []);
    let head = head(20);
    assert_eq!(after(|out| flow.response(SERVICE, &head[..30], false, out)), []);
    let octets = [&head[30..], b"0123456789"].concat();
    let (record, then) = kept(&mut flow, |flow, out| come(flow, at(30), &octets, out));
    let whole = head.len() as u64 + 20;
    let end = at(whole);
    assert_eq!(then, limits(CLIENT + N, end, Some(end)));
    let handshake = record.handshake;
    assert_eq!((handshake.mss, handshake.scales, handshake.sack), (1460, Some((7, 7)), true));
    assert_eq!((handshake.timestamp, handshake.at_ms), (Some(1000), 0));
    assert_eq!(
        (record.response_at, record.request_at, &record.requests[..]),
        (SERVICE, CLIENT + N, &b""[..])
    );
    let [response] = &record.responses[..] else { panic!("{record:?}") };
    assert_eq!((response.length, response.passed, response.close), (whole, whole, false));
    let check = (10, crc32c::crc32c(b"0123456789"));
    assert_eq!(response.body, Body::Object { request: GET.to_vec(), head, check, digest: None });
    // The next request on the connection acknowledges the whole first response.
    flow.acknowledged(end);
    assert_eq!(after(|out| flow.request(CLIENT + N, GET, false, out)), limits(CLIENT + N, end, None));
    let answer = b"HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nConnection: close\r\n\r\n";
    let (record, then) = kept(&mut flow, |flow, out| flow.response(end, answer, true, out));
    assert_eq!((record.response_at, record.responses.len(), record.responses[0].close), (end, 1, true));
    assert_eq!(record.responses[0].body, Body::Whole(answer.to_vec()));
    let last = end.wrapping_add(answer.len() as u32);
    assert_eq!(then, limits(CLIENT + 2 * N, last, Some(last)));
    assert!(!flow.ends_early());
    assert_eq!(after(|out| flow.closed(out)), [Action::Forget]);
    assert_eq!(after(|out| flow.response(last, b"x", false, out)), []);
}

#[test]
fn request_is_stored_alone_when_answer_is_slow() {
    let mut flow = flow(&OPEN);
    assert_eq!(after(|out| flow.tick(HANDSHAKE_PATIENCE - 1, out)), []);
    assert!(flow.is_new());
    let (record, then) = kept(&mut flow, |flow, out| flow.tick(HANDSHAKE_PATIENCE, out));
    assert_eq!(
        (record.requests.len(), record.request_at, record.responses.len(), then),
        (0, CLIENT, 0, vec![])
    );
    assert!(!flow.is_new());
    after(|out| flow.request(CLIENT, GET, false, out));
    assert_eq!(after(|out| flow.tick(HANDSHAKE_PATIENCE + REQUEST_PATIENCE - 1, out)), []);
    let late = HANDSHAKE_PATIENCE + REQUEST_PATIENCE;
    let (record, then) = kept(&mut flow, |flow, out| flow.tick(late, out));
    assert_eq!((&record.requests[..], record.request_at, record.responses.len()), (GET, CLIENT, 0));
    assert_eq!(then, limits(CLIENT + N, SERVICE, None));
    assert_eq!(after(|out| flow.tick(10 * REQUEST_PATIENCE, out)), []);
    // Half a request arrives, then a FIN.
    let (record, then) = kept(&mut flow, |flow, out| {
        flow.request(CLIENT + N, b"GET", false, out);
        flow.tick(11 * REQUEST_PATIENCE, out);
    });
    assert_eq!((&record.requests[..], record.client_fin), (&[GET, b"GET"].concat()[..], false));
    assert_eq!(then, limits(CLIENT + N + 3, SERVICE, None));
    let (record, then) = kept(&mut flow, |flow, out| {
        flow.request(CLIENT + N + 3, b"", true, out);
        flow.tick(12 * REQUEST_PATIENCE, out);
    });
    assert!(record.client_fin);
    assert_eq!(then, limits(CLIENT + N + 4, SERVICE, None));
}

#[test]
fn fin_of_idle_client_is_stored_at_once() {
    let mut flow = flow(&OPEN);
    let end = answered(&mut flow, 10);
    let (record, then) = kept(&mut flow, |flow, out| flow.request(CLIENT + N, b"", true, out));
    assert!(record.client_fin);
    assert_eq!(then, limits(CLIENT + N + 1, end, Some(end)));
    assert_eq!(after(|out| flow.request(CLIENT + N, b"", true, out)), []);
}

#[test]
fn one_frame_may_hold_several_answers() {
    let mut flow = flow(&OPEN);
    after(|out| flow.request(CLIENT, &[GET, GET, GET].concat(), false, out));
    let one = [head(10_000), vec![7; 10_000]].concat();
    let frame = [&one[..], &one, &one[..one.len() - 1000]].concat();
    let mut out = after(|out| flow.response(SERVICE, &frame, false, out));
    // The first flight of the third response is incomplete.
    let [(ticket, record)] = stores(&out).try_into().unwrap();
    assert_eq!(record.responses.len(), 2);
    out = after(|out| flow.stored(ticket, true, out));
    assert!(stores(&out).is_empty() && flow.awaits_flight());
    let (record, then) = kept(&mut flow, |flow, out| flow.tick(FLIGHT_PATIENCE, out));
    assert_eq!(record.responses.len(), 3);
    let end = at(3 * one.len() as u64);
    assert_eq!(then, limits(CLIENT + 3 * N, end, Some(end)));
}

#[test]
fn full_record_waits_for_acknowledgement() {
    let mut flow = flow(&OPEN);
    after(|out| flow.request(CLIENT, &GET.repeat(12), false, out));
    let one = [head(10), vec![7; 10]].concat();
    let frame = one.repeat(12);
    let (record, then) = kept(&mut flow, |flow, out| flow.response(SERVICE, &frame, false, out));
    assert_eq!((record.responses.len(), &record.requests[..]), (8, &GET.repeat(4)[..]));
    assert_eq!(then, limits(CLIENT + 12 * N, at(8 * one.len() as u64), None));
    assert!(flow.wants_acknowledgement());
    assert_eq!(after(|out| flow.tick(10 * RESPONSE_PATIENCE, out)), []);
    flow.acknowledged(at(3 * one.len() as u64 + 5));
    let (record, then) = kept(&mut flow, |flow, out| flow.tick(20 * RESPONSE_PATIENCE, out));
    assert_eq!((record.responses.len(), record.response_at), (8, at(3 * one.len() as u64)));
    assert_eq!(then, limits(CLIENT + 12 * N, at(11 * one.len() as u64), None));
    assert!(flow.wants_acknowledgement());
}

#[test]
fn full_record_waits_even_after_late_server() {
    let mut flow = flow(&OPEN);
    after(|out| flow.request(CLIENT, &GET.repeat(2), false, out));
    // Both responses are stored whole, one after the other.
    let one = [&b"HTTP/1.1 200 OK\r\nContent-Length: 4040\r\n\r\n"[..], &[7; 4040]].concat();
    let (length, two) = (one.len(), one.repeat(2));
    let (record, then) = kept(&mut flow, |flow, out| flow.response(SERVICE, &two[..length + 9], false, out));
    assert_eq!(record.responses.len(), 1);
    assert_eq!(then, limits(CLIENT + 2 * N, at(length as u64), None));
    assert!(!flow.wants_acknowledgement());
    assert_eq!(after(|out| flow.tick(RESPONSE_PATIENCE - 1, out)), []);
    // The rest of the second response has arrived, and the record has no room for it.
    assert_eq!(after(|out| flow.response(at(length as u64), &two[length..], false, out)), []);
    assert!(flow.wants_acknowledgement());
    assert_eq!(after(|out| flow.tick(10 * RESPONSE_PATIENCE, out)), []);
    flow.acknowledged(at(length as u64));
    let (record, then) = kept(&mut flow, |flow, out| flow.tick(10 * RESPONSE_PATIENCE + 1, out));
    assert_eq!((record.responses.len(), record.response_at), (1, at(length as u64)));
    let end = at(two.len() as u64);
    assert_eq!(then, limits(CLIENT + 2 * N, end, Some(end)));
}

/// The server can send at most its window before the client acknowledges.
#[test]
fn full_record_holds_the_next_response() {
    let mut flow = flow(&OPEN);
    after(|out| flow.request(CLIENT, &GET.repeat(9), false, out));
    let one = [head(10), vec![7; 10]].concat();
    let eight = 8 * one.len();
    let frame = one.repeat(9);
    let (record, _) = kept(&mut flow, |flow, out| flow.response(SERVICE, &frame[..eight + 9], false, out));
    assert_eq!(record.responses.len(), 8);
    assert!(flow.wants_acknowledgement());
    assert_eq!(after(|out| flow.tick(10 * RESPONSE_PATIENCE, out)), []);
    flow.acknowledged(at(eight as u64));
    assert_eq!(after(|out| flow.tick(10 * RESPONSE_PATIENCE, out)), []);
    let (record, _) =
        kept(&mut flow, |flow, out| flow.response(at(eight as u64), &frame[eight..], false, out));
    assert_eq!((record.responses.len(), record.response_at), (1, at(eight as u64)));
}

#[test]
fn long_response_is_released_in_stretches() {
    let mut flow = flow(&OPEN);
    after(|out| flow.request(CLIENT, GET, false, out));
    let length = 5 * GATE + 12_345;
    let head = head(length);
    let whole = head.len() as u64 + length;
    let (_, then) = kept(&mut flow, |flow, out| come(flow, SERVICE, &head, out));
    assert_eq!(then, limits(CLIENT + N, at(GATE), None));
    let mut passed = GATE;
    while passed < whole {
        // A frame that ends at the limit, and one that extends beyond it.
        let from = at(passed - u64::from(passed == 2 * GATE) * 700);
        let (record, then) = kept(&mut flow, |flow, out| flow.response(from, &[1; 1400], false, out));
        passed = (passed + GATE).min(whole);
        assert_eq!((record.responses[0].passed, record.passed()), (passed, at(passed)));
        assert_eq!(Record::decode(&record.encode()), Ok(record));
        assert_eq!(then, limits(CLIENT + N, at(passed), Some(at(passed)).filter(|_| passed == whole)));
        // Data before the limit needs no parsing again.
        assert_eq!(after(|out| flow.response(at(passed - 5000), &[1; 1400], false, out)), []);
    }
    flow.acknowledged(at(whole));
    after(|out| flow.request(CLIENT + N, GET, false, out));
    let (record, _) = kept(&mut flow, |flow, out| {
        flow.response(at(whole), &[&self::head(5)[..], &[1; 5]].concat(), false, out);
    });
    assert_eq!((record.response_at, record.responses.len()), (at(whole), 1));
}

#[test]
fn fin_passes_only_after_a_response() {
    let mut flow = flow(&OPEN);
    // Without an unanswered request the server may close.
    assert_eq!(flow.limits().fin_at, Some(SERVICE));
    let end = answered(&mut flow, 100_000);
    assert!(!flow.ends_early());
    // The kernel sends the FIN of a process that was killed.
    assert_eq!(after(|out| flow.response(at(5000), &[1; 1000], true, out)), []);
    assert!(flow.ends_early());
    assert_eq!(flow.limits().fin_at, Some(end));
}

#[test]
fn fin_does_not_pass_while_a_request_waits() {
    let mut flow = flow(&OPEN);
    let end = answered(&mut flow, 10);
    assert_eq!(after(|out| flow.request(CLIENT + N, b"GE", false, out)), limits(CLIENT + N, end, None));
    assert_eq!(after(|out| flow.response(end, b"", true, out)), []);
    assert!(flow.ends_early());
    // The server is alive, so it closed on purpose.
    let mut out = Vec::new();
    flow.let_go(Reason::Closed, &mut out);
    let [(ticket, record)] = stores(&out).try_into().unwrap();
    assert!(record.unprotected && record.responses.is_empty() && record.requests.is_empty());
    let over = after(|out| flow.stored(ticket, true, out));
    assert_eq!(over, [Action::Unprotected(Reason::Closed), Action::Forget]);
}

#[test]
fn a_body_without_length_ends_with_the_connection() {
    let mut flow = flow(&OPEN);
    after(|out| flow.request(CLIENT, GET, false, out));
    let text = b"HTTP/1.1 200 OK\r\n\r\nsome text";
    assert_eq!(after(|out| flow.response(SERVICE, text, false, out)), []);
    let end = at(text.len() as u64);
    let (record, then) = kept(&mut flow, |flow, out| flow.response(end, b"", true, out));
    assert_eq!(record.responses[0].body, Body::Whole(text.to_vec()));
    assert_eq!(then, limits(CLIENT + N, end, Some(end)));
    assert!(!flow.ends_early());
}

/// With nothing stored yet, the limits are lifted at once.
#[test]
fn unprotectable_connection_passes_with_reason() {
    let huge = GET.repeat(200);
    let long = [b"GET / HTTP/1.1\r\nCookie: ".to_vec(), vec![b'x'; 2100]].concat();
    let requests: [(&[u8], Reason); 7] = [
        (&[22, 3, 1, 0, 5], Reason::Tls),
        (b"PRI * HTTP/2.0\r\n\r\n", Reason::Http2),
        (b"POST / HTTP/1.1\r\n", Reason::Method),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n", Reason::Body),
        (b"\0\0\0\0", Reason::Malformed),
        (&long, Reason::TooLong),
        (&huge, Reason::TooLong),
    ];
    for (octets, reason) in requests {
        let mut flow = flow(&OPEN);
        let out = after(|out| flow.request(CLIENT, octets, false, out));
        assert_eq!(out, [Action::Unprotected(reason)]);
        assert_eq!(after(|out| flow.response(SERVICE, b"HTTP", false, out)), []);
        assert_eq!(after(|out| flow.closed(out)), []);
    }
    let chunks = [&b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n"[..], &[1; 4096]].concat();
    let page = [&b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"[..], &[1; 100]].concat();
    let weak = b"HTTP/1.1 200 OK\r\nETag: W/\"x\"\r\nContent-Length: 5000\r\n\r\n";
    let endless = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &[1; 5000]].concat();
    let responses: [(&[u8], Reason); 6] = [
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", Reason::Interim),
        (b"220 mail\r\n", Reason::Malformed),
        (&chunks, Reason::Dynamic),
        (&page, Reason::Dynamic),
        (weak, Reason::Dynamic),
        (&endless, Reason::Dynamic),
    ];
    for (octets, reason) in responses {
        let mut flow = flow(&OPEN);
        after(|out| flow.request(CLIENT, GET, false, out));
        assert_eq!(after(|out| flow.response(SERVICE, octets, false, out)), [Action::Unprotected(reason)]);
    }
}

#[test]
fn late_input_times_out() {
    let half = b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\n12345";
    for (asked, octets, reason) in [(true, &half[..], Reason::Dynamic), (false, &half[..], Reason::Unasked)] {
        let mut flow = flow(&OPEN);
        if asked {
            after(|out| flow.request(CLIENT, GET, false, out));
        }
        assert_eq!(after(|out| flow.response(SERVICE, octets, false, out)), []);
        let mut out = after(|out| flow.tick(RESPONSE_PATIENCE - 1, out));
        // There is a request to store, or the handshake alone.
        if let [(ticket, _)] = stores(&out)[..] {
            out = after(|out| flow.stored(ticket, true, out));
            assert_eq!(out, if asked { limits(CLIENT + N, SERVICE, None) } else { Vec::new() });
        }
        let mut out = after(|out| flow.tick(RESPONSE_PATIENCE, out));
        if let [(ticket, _)] = stores(&out)[..] {
            out = after(|out| flow.stored(ticket, true, out));
        }
        assert_eq!(out[0], Action::Unprotected(reason));
    }
    let mut flow = Flow::new(crate::support::tuple(), &OPEN);
    assert_eq!(after(|out| flow.request(CLIENT, GET, false, out)), [Action::Unprotected(Reason::Unseen)]);
}

#[test]
fn limits_lift_after_unprotected_record_is_stored() {
    let mut flow = flow(&OPEN);
    let end = answered(&mut flow, 10);
    let out = after(|out| flow.request(CLIENT + N, b"POST / HTTP/1.1\r\n\r\n", false, out));
    let [(ticket, record)] = stores(&out).try_into().unwrap();
    assert!(record.unprotected);
    assert_eq!(out[0], limits(CLIENT + N, end, None)[0]);
    assert_eq!(after(|out| flow.stored(ticket + 1, true, out)), []);
    let over = after(|out| flow.stored(ticket, true, out));
    assert_eq!(over, [Action::Unprotected(Reason::Method), Action::Forget]);
}

#[test]
fn failed_store_passes_or_holds_as_configured() {
    let head = head(10);
    let mut flow = flow(&OPEN);
    after(|out| flow.request(CLIENT, GET, false, out));
    let [(ticket, _)] = stores(&after(|out| come(&mut flow, SERVICE, &head, out))).try_into().unwrap();
    let over = after(|out| flow.stored(ticket, false, out));
    assert_eq!(over, [Action::Unprotected(Reason::Store), Action::Forget]);

    let mut flow = established(CLIENT - 1, SERVICE - 1, &CLOSED);
    after(|out| flow.request(CLIENT, GET, false, out));
    let [(ticket, _)] = stores(&after(|out| come(&mut flow, SERVICE, &head, out))).try_into().unwrap();
    assert_eq!(after(|out| flow.stored(ticket, false, out)), []);
    assert_eq!(after(|out| flow.tick(1, out)), []);
    let (record, then) = kept(&mut flow, |flow, out| flow.tick(1000, out));
    let end = at(head.len() as u64 + 10);
    assert_eq!((record.version, then), (2, limits(CLIENT + N, end, Some(end))));
    // The record is stored again, as after the death of its store server.
    let (record, then) = kept(&mut flow, |flow, out| flow.renew(out));
    assert_eq!((record.version, record.responses.len(), then), (3, 1, vec![]));
}

#[test]
fn input_during_a_store_is_stored_after_it() {
    let mut flow = flow(&OPEN);
    after(|out| flow.request(CLIENT, GET, false, out));
    let [(first, _)] = stores(&after(|out| flow.tick(REQUEST_PATIENCE, out))).try_into().unwrap();
    let head = head(10);
    assert_eq!(after(|out| flow.response(SERVICE, &head, false, out)), []);
    assert_eq!(after(|out| flow.stored(first, true, out)), limits(CLIENT + N, SERVICE, None));
    let late = REQUEST_PATIENCE + FLIGHT_PATIENCE;
    let (record, then) = kept(&mut flow, |flow, out| flow.tick(late, out));
    assert_eq!((record.version, record.responses.len()), (2, 1));
    let end = at(head.len() as u64 + 10);
    assert_eq!(then, limits(CLIENT + N, end, Some(end)));
}

#[test]
fn adopted_connection_is_stored_before_it_sends() {
    let mut first = flow(&OPEN);
    after(|out| first.request(CLIENT, &[GET, GET, b"GET /x"].concat(), false, out));
    let (record, _) = kept(&mut first, |flow, out| come(flow, SERVICE, &head(5000), out));
    let end = at(head(5000).len() as u64 + 5000);
    let mut out = Vec::new();
    let mut second = Flow::resume(record.clone(), &OPEN, 7, &mut out);
    assert_eq!(second.limits(), Limits { ack: CLIENT + 2 * N + 6, data: SERVICE, fin_at: None });
    let (again, then) = kept(&mut second, |_, all| all.append(&mut out));
    assert_eq!(again, Record { version: 2, ..record });
    assert_eq!(then, limits(CLIENT + 2 * N + 6, end, None));
    // The second flow continues where the first one was: with the second request, and the rest of
    // the third.
    after(|out| second.request(CLIENT + 2 * N + 6, b" HTTP/1.1\r\nHost: h\r\n\r\n", false, out));
    let both = [head(1), vec![1], head(0)].concat();
    let (record, _) = kept(&mut second, |flow, out| flow.response(end, &both, false, out));
    assert_eq!((record.version, record.responses.len(), record.requests.len()), (3, 3, 0));
}
