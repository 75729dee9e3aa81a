//! The encoding of records.

use proptest::prelude::*;
use rivulet_trods::digest::Digest;
use rivulet_trods::record::{
    Body, Chunked, Handshake, MAX_RECORD, MAX_RESPONSES, Record, RecordError, Response, Rest, Seen, UNKNOWN,
};
use rivulet_trods::testing;

use crate::support::tuple;

pub const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 1000\r\n\r\n";

/// Heads of responses without a strong entity tag.
const KNOWN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";
const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-TRODS: 5\r\n\r\n";

pub fn object() -> Response {
    let length = HEAD.len() as u64 + 1000;
    let digest = Some(Digest([9; 16]));
    let body = Body::Object { request: REQUEST.to_vec(), head: HEAD.to_vec(), check: (10, 77), digest };
    Response { length, passed: length, close: false, body }
}

/// A generated response with `seen` bytes of its body in the checksum.
fn generated(head: &[u8], seen: u64, length: u64, rest: Rest) -> Response {
    let seen_all = head.len() as u64 + seen;
    let seen = Seen { sum: if seen == 0 { 0 } else { 77 }, rest };
    let body = Body::Generated { request: REQUEST.to_vec(), head: head.to_vec(), seen };
    Response { length, passed: seen_all, close: false, body }
}

pub fn record() -> Record {
    let idle = testing::idle(tuple(), 9, 30);
    let handshake = Handshake {
        service_isn: u32::MAX,
        scales: Some((7, 8)),
        timestamp: Some(5),
        at_ms: 1 << 40,
        ..idle.handshake
    };
    Record { handshake, version: 3, responses: vec![object()], requests: b"GET /b".to_vec(), ..idle }
}

#[test]
fn encoding_round_trips() {
    let whole = Response { length: 3, passed: 3, close: true, body: Body::Whole(b"abc".to_vec()) };
    let part = Response { passed: 7, ..object() };
    let mut v6 = record();
    v6.tuple.client = "[fd00::1]:5".parse().unwrap();
    v6.tuple.service = "[fd00::2]:80".parse().unwrap();
    v6.responses = vec![object(), whole, part];
    let mut bare = record();
    bare.handshake = Handshake { scales: None, sack: false, timestamp: None, ..bare.handshake };
    (bare.client_fin, bare.unprotected) = (true, true);
    (bare.responses, bare.requests) = (Vec::new(), Vec::new());
    let (known, chunked) = (KNOWN.len() as u64 + 5000, CHUNKED.len() as u64 + 70);
    let mut again = record();
    again.responses = vec![
        generated(KNOWN, 5000, known, Rest::Octets(0)),
        generated(CHUNKED, 70, chunked, Rest::Chunks(Chunked::Over)),
        generated(KNOWN, 4000, known, Rest::Octets(1000)),
    ];
    let mut open = record();
    open.responses = vec![generated(CHUNKED, 70, UNKNOWN, Rest::Chunks(Chunked::Data(7)))];
    let mut first = record();
    first.responses = vec![generated(CHUNKED, 0, UNKNOWN, Rest::Chunks(Chunked::default()))];
    let mut adopted = record();
    adopted.handshake.first_timestamp = Some(4);
    adopted.handshake.stamps = Some(0x07e0_0000);
    for record in [record(), v6, bare, again, open, first, adopted] {
        let octets = record.encode();
        assert_eq!((octets.len(), Record::decode(&octets)), (record.size(), Ok(record)));
    }
}

#[test]
fn any_changed_byte_damages_a_record() {
    let octets = record().encode();
    for n in 0..octets.len() {
        assert!(Record::decode(&octets[..n]).is_err(), "{n}");
        let mut other = octets.clone();
        other[n] ^= 1;
        let want = if n < 4 { RecordError::Magic } else { RecordError::Damaged };
        assert_eq!(Record::decode(&other), Err(want), "{n}");
    }
    assert_eq!(Record::decode(&[&octets[..], &[0]].concat()), Err(RecordError::Damaged));
    let long = [&octets[..4], &vec![0; MAX_RECORD]].concat();
    assert_eq!(Record::decode(&long), Err(RecordError::Damaged));
}

#[test]
fn record_with_trailing_bytes_is_refused() {
    let mut octets = record().encode();
    octets.truncate(octets.len() - 4);
    for more in [&b""[..], b"x"] {
        octets.extend_from_slice(more);
        let whole = [&octets[..], &crc32c::crc32c(&octets).to_be_bytes()].concat();
        assert_eq!(Record::decode(&whole).is_ok(), more.is_empty());
    }
}

#[test]
fn inconsistent_record_is_refused() {
    let with = |change: &dyn Fn(&mut Record)| {
        let mut record = record();
        change(&mut record);
        Record::decode(&record.encode())
    };
    assert!(with(&|_| {}).is_ok());
    let weak = String::from_utf8(HEAD.to_vec()).unwrap().replace("ETag: ", "ETag: W/").into_bytes();
    let (two, more) = ([REQUEST, REQUEST].concat(), [HEAD, b"x"].concat());
    let bodies: [(&[u8], &[u8], u32); 7] = [
        (&two, HEAD, 0),
        (REQUEST, &more, 0),
        (REQUEST, &weak, 0),
        (REQUEST, &HEAD[..HEAD.len() - 1], 0),
        (&REQUEST[1..], HEAD, 0),
        (b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n", HEAD, 0),
        (REQUEST, HEAD, 1001),
    ];
    for (request, head, seen) in bodies {
        let body =
            Body::Object { request: request.to_vec(), head: head.to_vec(), check: (seen, 0), digest: None };
        let length = head.len() as u64 + 1000;
        let refused = with(&|record| {
            record.responses = vec![Response { length, passed: length, close: false, body: body.clone() }];
        });
        assert!(matches!(refused, Err(RecordError::Field(_))), "{refused:?}");
    }
    let whole = |length, octets: &[u8]| Response {
        length,
        passed: length,
        close: false,
        body: Body::Whole(octets.into()),
    };
    let known = KNOWN.len() as u64 + 5000;
    let seen = |record: &mut Record, response: Response| record.responses = vec![response];
    let changes: [&dyn Fn(&mut Record); 23] = [
        &|record| seen(record, generated(KNOWN, 10, known + 1, Rest::Octets(4990))),
        &|record| seen(record, generated(KNOWN, 10, UNKNOWN, Rest::Octets(4990))),
        &|record| seen(record, generated(KNOWN, 10, known, Rest::Chunks(Chunked::Data(7)))),
        &|record| seen(record, generated(CHUNKED, 10, UNKNOWN, Rest::Chunks(Chunked::Over))),
        &|record| seen(record, generated(CHUNKED, 10, known, Rest::Chunks(Chunked::Data(7)))),
        &|record| seen(record, generated(CHUNKED, 10, UNKNOWN, Rest::Chunks(Chunked::Data(0)))),
        &|record| seen(record, generated(CHUNKED, 0, UNKNOWN, Rest::Chunks(Chunked::Data(7)))),
        // The response's body ends only with the connection.
        &|record| seen(record, generated(b"HTTP/1.1 200 OK\r\n\r\n", 10, UNKNOWN, Rest::Octets(7))),
        // Only a part of the head was sent.
        &|record| {
            let whole = generated(CHUNKED, 0, UNKNOWN, Rest::Chunks(Chunked::default()));
            seen(record, Response { passed: whole.passed - 1, ..whole });
        },
        &|record| record.responses[0].length += 1,
        &|record| record.responses[0].passed += 1,
        &|record| (record.responses[0].length, record.responses[0].passed) = (0, 0),
        // A further response after one that is incomplete.
        &|record| record.responses = vec![Response { passed: 7, ..object() }, object()],
        &|record| record.responses = vec![object(); MAX_RESPONSES + 1],
        &|record| record.responses = vec![whole(5000, &[0; 5000])],
        &|record| record.responses = vec![whole(4, b"abc")],
        &|record| record.responses = vec![whole(0, b"")],
        &|record| record.requests = vec![b'a'; 4097],
        &|record| record.handshake.scales = Some((15, 0)),
        &|record| (record.handshake.timestamp, record.handshake.first_timestamp) = (None, Some(1)),
        // Timestamps of the kernel, with an object, or with an index: none has only the common
        // bits.
        &|record| record.handshake.stamps = Some(1),
        &|record| record.handshake.stamps = Some(0x07e0_0001),
        &|record| record.handshake.stamps = Some(0x0fe0_0000),
    ];
    for (n, change) in changes.iter().enumerate() {
        assert!(matches!(with(change), Err(RecordError::Field(_))), "{n}: {:?}", with(change));
    }
}

#[test]
fn higher_version_of_a_connection_wins() {
    let of = |isn: u32, version: u32, at_ms: u64| {
        let mut record = record();
        (record.handshake.client_isn, record.handshake.at_ms, record.version) = (isn, at_ms, version);
        record.age()
    };
    assert!(of(1, 4, 10).is_after(&of(1, 3, 20)), "it went on from the other");
    assert!(!of(1, 3, 20).is_after(&of(1, 4, 10)));
    assert!(of(1, 3, 20).is_after(&of(1, 3, 10)), "both went on from the same");
    assert!(of(2, 1, 20).is_after(&of(1, 9, 10)), "another one between the same ends");
    assert!(!of(1, 3, 10).is_after(&of(1, 3, 10)));
}

#[test]
fn acknowledged_responses_leave_the_record() {
    let mut three = record();
    three.response_at = u32::MAX - 500;
    three.responses = vec![object(), object(), Response { passed: 7, ..object() }];
    let ends: Vec<u32> = (1..3).map(|n| three.response_at.wrapping_add(n * object().length as u32)).collect();
    let passed = three.passed();
    for (ack, left) in [
        (three.response_at, 3),
        (ends[0].wrapping_sub(1), 3),
        (ends[0], 2),
        (ends[1].wrapping_sub(1), 2),
        (ends[1], 1),
        (passed, 1),
        // No client can have acknowledged this.
        (passed.wrapping_add(1), 3),
        (three.response_at.wrapping_sub(1), 3),
    ] {
        let mut record = three.clone();
        record.drop_acknowledged(ack);
        assert_eq!((record.responses.len(), record.passed()), (left, passed), "{ack}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic_the_decoder(octets in prop::collection::vec(any::<u8>(), 0..300), at in 4usize..200) {
        let _ = Record::decode(&octets);
        // With a valid checksum.
        let mut whole = record().encode();
        whole.truncate(at.min(whole.len()));
        whole.extend_from_slice(&octets);
        let sum = crc32c::crc32c(&whole);
        whole.extend_from_slice(&sum.to_be_bytes());
        if let Ok(record) = Record::decode(&whole) {
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }
}
