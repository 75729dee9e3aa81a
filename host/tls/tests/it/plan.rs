//! The rest of a stream from any acknowledged number on, compared with the same stream made from
//! its beginning by a simple loop.

use proptest::prelude::*;
use rivulet_tls::{
    Answers, CLOSE_NOTIFY, CipherSuite, ContentType, Error, KEY_UPDATE, PlanError, Resumption, Source, State,
    Writer,
};
use rivulet_trods::{
    adopt::Refusal,
    record::{Body, Response},
};

use crate::state::{SUITES, object, state, whole};

/// A body.
fn body(seed: u64, length: u64) -> Vec<u8> {
    (0..length).map(|at| ((at * 31 + seed * 17) >> 3) as u8).collect()
}

fn plaintext(state: &State, index: usize) -> Vec<u8> {
    let response = &state.http.responses[index];
    match &response.body {
        Body::Whole(bytes) => bytes.clone(),
        Body::Object { head, .. } | Body::Generated { head, .. } => {
            let length = response.length - head.len() as u64;
            [&head[..], &body(length, length)].concat()
        }
    }
}

/// The whole stream, divided by a loop that does not use [`rivulet_tls::Response`].
fn stream(state: &State) -> Vec<u8> {
    let (mut secret, mut number, mut out) = (state.write.secret.clone(), state.write.record, Vec::new());
    for index in 0..state.http.responses.len() {
        if state.key_updates >> index & 1 != 0 {
            secret.record_key().seal(number, ContentType::Handshake, &KEY_UPDATE, &mut out).unwrap();
            (secret, number) = (secret.next_generation(), 0);
        }
        let (plaintext, key) = (plaintext(state, index), secret.record_key());
        let end = plaintext.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let (head, body) = plaintext.split_at(end);
        let (small, large) = body.split_at(body.len().min(65_536));
        for record in head.chunks(16_384).chain(small.chunks(4096)).chain(large.chunks(16_384)) {
            key.seal(number, ContentType::ApplicationData, record, &mut out).unwrap();
            number += 1;
        }
    }
    if state.http.responses.last().is_some_and(|last| last.close) {
        secret.record_key().seal(number, ContentType::Alert, &CLOSE_NOTIFY, &mut out).unwrap();
    }
    out
}

/// The bytes that the next replica sends to a client that has `had` bytes of the stream, and its
/// writer.
fn resumed(state: &State, had: usize, chunk: usize) -> (Vec<u8>, Writer) {
    let mut out = Vec::new();
    let mut resumption = Resumption::begin(state, state.write.sequence.wrapping_add(had as u32)).unwrap();
    while let Some(needed) = resumption.next(&mut out).unwrap() {
        let rest = &plaintext(state, needed.response)[needed.from as usize..];
        assert_eq!(rest.len() as u64, needed.length);
        for part in rest.chunks(chunk) {
            resumption.write(part, &mut out).unwrap();
        }
        assert_eq!(resumption.write(b"x", &mut out), Err(Error::NoResponse));
    }
    (out, resumption.into_writer())
}

/// Sequences of responses, with bodies of at most this length.
fn states(most: u64) -> impl Strategy<Value = State> {
    let response = prop_oneof![
        (0..most).prop_map(object),
        Just(object(4096)),
        "[a-z]{0,60}".prop_map(|body| whole(format!("HTTP/1.1 404 N\r\nA: {body}\r\n\r\n{body}").as_bytes())),
    ];
    let responses = prop::collection::vec(response, 0..5);
    (prop::sample::select(&SUITES[..]), any::<u32>(), responses, any::<(u16, bool)>()).prop_map(
        |(suite, sequence, responses, (updates, close))| {
            let mut state = state(suite, sequence, responses);
            state.key_updates = updates & ((2 << state.http.responses.len()) - 1);
            if let Some(last) = state.http.responses.last_mut() {
                last.close = close;
            }
            State::decode(&state.encode()).unwrap()
        },
    )
}

/// Checks that the writer is at the end of the stream, with the key of its generation.
fn assert_end(state: &State, writer: &Writer, length: usize) {
    let updates = state.key_updates & !(1 << state.http.responses.len());
    let position = writer.position();
    assert_eq!(position.sequence, state.write.sequence.wrapping_add(length as u32));
    assert_eq!(position.generation, updates.count_ones());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn stream_resumes_at_every_acknowledged_number(state in states(2000), chunk in 1..5000usize) {
        let whole = stream(&state);
        for had in 0..=whole.len() {
            let (rest, writer) = resumed(&state, had, chunk);
            prop_assert!(rest == whole[had..], "{had} of {}", whole.len());
            assert_end(&state, &writer, whole.len());
        }
    }

    #[test]
    fn long_stream_resumes_anywhere(
        state in states(300_000),
        places in prop::collection::vec(any::<prop::sample::Index>(), 30),
        chunk in 1..70_000usize,
    ) {
        let whole = stream(&state);
        for had in places.iter().map(|place| place.index(whole.len() + 1)) {
            let (rest, writer) = resumed(&state, had, chunk);
            prop_assert!(rest == whole[had..], "{had} of {}", whole.len());
            assert_end(&state, &writer, whole.len());
        }
    }

    /// A state without the responses that the client is known to have gives the same rest.
    #[test]
    fn dropped_responses_change_nothing(state in states(2000), place: prop::sample::Index) {
        let whole = stream(&state);
        let acked = place.index(whole.len() + 1);
        let mut less = state.clone();
        less.drop_acknowledged(state.write.sequence.wrapping_add(acked as u32));
        let first = less.write.sequence.wrapping_sub(state.write.sequence) as usize;
        for had in [acked, (acked + whole.len()) / 2, whole.len()] {
            prop_assert!(stream(&less) == whole[first..]);
            prop_assert!(resumed(&less, had - first, 1000).0 == whole[had..]);
        }
    }

    #[test]
    fn acknowledgement_that_no_replica_sent_is_refused(state in states(2000), beyond in 1..1u32 << 31) {
        let end = state.write.sequence.wrapping_add(stream(&state).len() as u32);
        let refused = Resumption::begin(&state, end.wrapping_add(beyond)).map(drop);
        prop_assert_eq!(refused, Err(PlanError::Acknowledged));
    }
}

#[test]
fn acknowledgement_lies_in_the_sent_part_of_a_response() {
    let mut state = state(CipherSuite::Aes128GcmSha256, 5, vec![object(1 << 33)]);
    let response = &mut state.http.responses[0];
    let head = response.length - (1 << 33);
    // 5 GiB and one byte were sent. Acknowledged numbers are less than 4 GiB before the end of that
    // record.
    response.passed = head + (5 << 30) + 1;
    let sent = state.tcp_record().responses[0].passed;
    let resumption = |back: u64| Resumption::begin(&state, 5u32.wrapping_add((sent - back) as u32));
    let needed = resumption(0).unwrap().next(&mut Vec::new()).unwrap().unwrap();
    assert!(needed.from > head + (5 << 30) && needed.length < 3 << 30);
    let needed = resumption((1 << 32) - 1).unwrap().next(&mut Vec::new()).unwrap().unwrap();
    assert!(needed.from > 1 << 30 && needed.from < 2 << 30, "{needed:?}");
    assert_eq!(resumption(0).unwrap().write(b"x", &mut Vec::new()), Err(Error::NoResponse));
    state.http.unprotected = true;
    assert_eq!(Resumption::begin(&state, 5).map(drop), Err(PlanError::Unprotected));
}

#[test]
fn end_of_the_clients_data_is_answered_by_close_notify() {
    let mut state = state(CipherSuite::Aes128GcmSha256, 5, vec![object(10)]);
    state.http.client_fin = true;
    let before = resumed(&state, 0, 10).0.len();
    state.http.requests.clear();
    let (all, _) = resumed(&state, 0, 10);
    assert_eq!(all.len(), before + 24, "everything is answered");
    assert_eq!(resumed(&state, all.len() - 1, 10).0, all[all.len() - 1..]);
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 20000\r\n\r\n";

/// An object of which this many bytes of the body are compared.
fn checked(count: u32) -> Response {
    let check = (count, crc32c::crc32c(&body(0, count.into())));
    let request = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n".to_vec();
    let length = HEAD.len() as u64 + 20_000;
    let body = Body::Object { request, head: HEAD.into(), check, digest: None };
    Response { length, passed: length, close: false, body }
}

fn part(from: usize, to: usize, etag: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 206 P\r\nETag: {etag}\r\nContent-Length: {}\r\nContent-Range: bytes {from}-{}/20000\r\n\r\n",
        to - from,
        to - 1
    );
    [head.as_bytes(), &body[from..to]].concat()
}

/// The plaintext from these answers, given in pieces of length `chunk`.
fn read(answers: &mut Answers, bytes: &[u8], chunk: usize) -> Result<Vec<u8>, Refusal> {
    let mut out = Vec::new();
    bytes.chunks(chunk).try_for_each(|bytes| answers.read(bytes, &mut out))?;
    Ok(out)
}

#[test]
fn rest_is_requested_from_the_server_and_compared() {
    let whole = body(0, 20_000);
    for (count, from) in [(0, 0), (0, 5000), (14_600, 0), (14_600, 5000), (14_600, 19_999)] {
        let response = checked(count);
        let source = Source::of(&response, HEAD.len() as u64 + from).unwrap();
        let (from, known) = (from as usize, count as usize);
        assert!(source.stored.is_empty());
        let request = String::from_utf8(source.request.clone()).unwrap();
        let asked: Vec<_> =
            request.lines().filter_map(|line| line.strip_prefix("Range: bytes=")).map(String::from).collect();
        let mut wanted = vec![format!("{from}-19999")];
        if count > 0 {
            wanted.insert(0, "0-14599".into());
        }
        assert_eq!(asked, wanted);
        assert_eq!(request.matches("If-Range: \"x\"\r\n").count(), wanted.len());
        let mut parts = part(from, 20_000, "\"x\"", &whole);
        if count > 0 {
            parts.splice(0..0, part(0, known, "\"x\"", &whole));
        }
        let all = [HEAD.as_bytes(), &whole].concat();
        for chunk in [1, 7, 1000, 50_000] {
            for answer in [&parts, &all] {
                let mut answers = source.answers();
                assert!(
                    read(&mut answers, answer, chunk) == Ok(whole[from..].to_vec()),
                    "{count} {from} {chunk}"
                );
                assert_eq!(answers.missing(), 0);
            }
            let mut other = all.clone();
            other[HEAD.len()] ^= 1;
            let read = read(&mut source.answers(), &other, chunk);
            assert_eq!(read.is_err(), count > 0, "another body is refused where it can be seen");
        }
    }
}

#[test]
fn other_object_is_refused() {
    let response = checked(0);
    let source = Source::of(&response, HEAD.len() as u64 + 100).unwrap();
    let whole = body(0, 20_000);
    for (answer, refusal) in [
        (part(100, 20_000, "\"y\"", &whole), Refusal::Tag),
        (part(100, 20_000, "W/\"x\"", &whole), Refusal::Tag),
        (part(99, 19_999, "\"x\"", &whole), Refusal::Length),
        (HEAD.replace("20000", "20001").into_bytes(), Refusal::Length),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec(), Refusal::Status(404)),
        (b"SSH-2.0-x\r\n".to_vec(), Refusal::Malformed),
        (vec![b'H'; 3000], Refusal::Malformed),
    ] {
        assert_eq!(read(&mut source.answers(), &answer, 100), Err(refusal));
    }
}

#[test]
fn head_comes_from_the_state() {
    let response = checked(0);
    let source = Source::of(&response, 5).unwrap();
    assert_eq!(source.stored, &HEAD.as_bytes()[5..]);
    assert!(String::from_utf8_lossy(&source.request).contains("Range: bytes=0-19999\r\n"));
    let stored = whole(b"HTTP/1.1 404 N\r\nContent-Length: 4\r\n\r\ngone");
    let source = Source::of(&stored, 20).unwrap();
    assert!(source.request.is_empty() && source.stored.ends_with(b"gone") && source.answers().missing() == 0);
    let empty = object(0);
    assert!(Source::of(&empty, empty.length).unwrap().request.is_empty());
}
