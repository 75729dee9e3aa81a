//! The stored form of a connection: decoding gives the encoded state, and other bytes are refused.

use proptest::prelude::*;
use rivulet_tls::{
    CipherSuite, ContentType, MAX_STATE_BYTES, Position, Response, State, StateError, TrafficSecret,
    flow_place,
};
use rivulet_trods::{
    Record, Tuple,
    record::{self, Body, Handshake, RecordError, UNKNOWN},
    store::RecordKeys,
    testing,
};

pub const SUITES: [CipherSuite; 3] =
    [CipherSuite::Aes128GcmSha256, CipherSuite::Aes256GcmSha384, CipherSuite::Chacha20Poly1305Sha256];

const REQUEST: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\nAuthorization: password\r\n\r\n";

fn tuple() -> Tuple {
    Tuple { client: "10.0.0.1:4000".parse().unwrap(), service: "10.9.0.1:443".parse().unwrap() }
}

fn keys(service: u16) -> RecordKeys {
    RecordKeys::new(service, 1, &[(1, [7; 16])])
}

/// A connection after its handshake, with these responses; the next byte in both directions has
/// this TCP sequence number.
pub fn state(suite: CipherSuite, sequence: u32, responses: Vec<record::Response>) -> State {
    let secret = |byte| TrafficSecret::new(suite, &vec![byte; suite.secret_bytes()]).unwrap();
    let idle = testing::idle(tuple(), 9, 30);
    let handshake = Handshake { scales: Some((7, 8)), timestamp: Some(5), at_ms: 1 << 40, ..idle.handshake };
    let http = Record { handshake, version: 3, responses, requests: b"GET /b".to_vec(), ..idle };
    State {
        http,
        write: Position { secret: secret(0xa1), generation: 0, record: 1, sequence },
        read: Position { secret: secret(0xc2), generation: 0, record: 4, sequence: 1000 },
        key_updates: 0,
        client_fin: false,
    }
}

/// An object with a body of this length, from its strong entity tag.
pub fn object(body: u64) -> record::Response {
    let head = format!("HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: {body}\r\n\r\n").into_bytes();
    let length = head.len() as u64 + body;
    let body = Body::Object { request: REQUEST.to_vec(), head, check: (0, 0), digest: None };
    record::Response { length, passed: length, close: false, body }
}

pub fn whole(bytes: &[u8]) -> record::Response {
    let length = bytes.len() as u64;
    record::Response { length, passed: length, close: false, body: Body::Whole(bytes.to_vec()) }
}

fn assert_same(one: &State, other: &State) {
    assert_eq!(*one.encode(), *other.encode());
    assert_eq!(
        (&one.http, one.key_updates, one.client_fin),
        (&other.http, other.key_updates, other.client_fin)
    );
}

#[test]
fn encoding_round_trips() {
    for suite in SUITES {
        let mut all = state(suite, u32::MAX - 5, vec![object(70_000), whole(b"HTTP/1.1 204 No\r\n\r\n")]);
        (all.write.generation, all.read.generation, all.key_updates) = (3, 7, 0b110);
        (all.http.client_fin, all.client_fin) = (true, true);
        let mut partial = object(5 << 30);
        partial.passed -= 1 << 30;
        for state in [state(suite, 0, Vec::new()), state(suite, 7, vec![partial]), all] {
            let bytes = state.encode();
            assert!(bytes.len() <= MAX_STATE_BYTES);
            assert_same(&State::decode(&bytes).unwrap(), &state);
        }
    }
}

/// The encoding of version 1. This fails if the format changes without a new version.
#[test]
fn first_version_has_these_bytes() {
    let mut state = state(CipherSuite::Aes128GcmSha256, 0x0102_0304, Vec::new());
    state.http.requests.clear();
    let hex: String = state.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    let position = |secret: &str, record: &str, sequence: &str| {
        format!("{}00000000{record}{sequence}", secret.repeat(32))
    };
    let expected = [
        "544c5301", // "TLS", version 1
        "1301",     // TLS_AES_128_GCM_SHA256
        "00",       // flags
        "0000",     // KeyUpdates
        &position("a1", "0000000000000001", "01020304"),
        &position("c2", "0000000000000004", "000003e8"),
        &state.http.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>(),
    ];
    assert_eq!(hex, expected.concat());
}

#[test]
fn cut_or_changed_bytes_are_refused_or_another_state() {
    let bytes = state(CipherSuite::Aes256GcmSha384, 1, vec![object(5000)]).encode();
    for end in 0..bytes.len() {
        assert!(State::decode(&bytes[..end]).is_err(), "{end}");
    }
    assert_eq!(
        State::decode(&[&bytes[..], b"x"].concat()).unwrap_err(),
        StateError::Http(RecordError::Damaged)
    );
    let long = [&bytes[..], &vec![0; MAX_STATE_BYTES]].concat();
    assert_eq!(State::decode(&long).unwrap_err(), StateError::Damaged);
    for at in 0..4 {
        let mut other = bytes.to_vec();
        other[at] ^= 1;
        assert_eq!(State::decode(&other).unwrap_err(), StateError::Magic);
    }
}

#[test]
fn impossible_state_is_refused() {
    let with = |change: &dyn Fn(&mut State)| {
        let mut state = state(CipherSuite::Chacha20Poly1305Sha256, 1, vec![object(70_000)]);
        change(&mut state);
        State::decode(&state.encode()).map(drop)
    };
    assert_eq!(with(&|_| {}), Ok(()));
    let field = |what| Err(StateError::Field(what));
    assert_eq!(with(&|state| state.client_fin = true), field("a FIN in the middle of the client's data"));
    assert_eq!(with(&|state| state.key_updates = 0b100), field("a KeyUpdate behind the last response"));
    assert_eq!(with(&|state| state.write.record = 1 << 24), field("the number of the next record"));
    let length = field("the length of a response");
    assert_eq!(with(&|state| state.write.record = (1 << 24) - 10), length, "its records do not fit");
    assert_eq!(with(&|state| state.http.responses[0] = whole(b"no head")), length);
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-TRODS: 5\r\n\r\n";
    let open = |state: &mut State| {
        let seen = record::Seen { sum: 0, rest: record::Rest::Chunks(record::Chunked::default()) };
        let body = Body::Generated { request: REQUEST.to_vec(), head: chunked.to_vec(), seen };
        let passed = chunked.len() as u64;
        state.http.responses[0] = record::Response { length: UNKNOWN, passed, close: false, body };
    };
    assert_eq!(with(&open), length, "the end of its records is unknown");
    let mut bytes = state(CipherSuite::Aes128GcmSha256, 1, Vec::new()).encode().to_vec();
    bytes[6] = 2;
    assert_eq!(State::decode(&bytes).map(drop), field("a flag"));
    (bytes[6], bytes[5]) = (0, 4);
    assert_eq!(State::decode(&bytes).map(drop), field("the cipher suite"));
}

#[test]
fn sealed_state_opens_for_its_flow_alone() {
    let state = state(CipherSuite::Aes128GcmSha256, 1, vec![object(5000)]);
    let place = flow_place(&state.tuple());
    let sealed = state.seal(&keys(5), &place).unwrap();
    assert_same(&State::open_flow(&keys(5), &state.tuple(), &sealed).unwrap(), &state);
    let Tuple { client, service } = state.tuple();
    let other = Tuple { client: "10.0.0.1:4001".parse().unwrap(), service };
    let refused = |opened: Result<State, StateError>| assert_eq!(opened.map(drop), Err(StateError::Seal));
    refused(State::open_flow(&keys(5), &other, &sealed));
    refused(State::open_flow(&keys(5), &Tuple { client: service, service: client }, &sealed));
    refused(State::open(&keys(5), "3-5.1.7.12", &sealed));
    refused(State::open(&keys(6), &place, &sealed));
    // Sealed with the right keys, but stored under another flow's key.
    let sealed = state.seal(&keys(5), &flow_place(&other)).unwrap();
    let opened = State::open_flow(&keys(5), &other, &sealed);
    assert_eq!(opened.map(drop), Err(StateError::Field("another flow")));
    assert!(state.seal(&RecordKeys::new(5, 1, &[]), &place).is_none(), "without keys nothing is stored");
}

#[test]
fn sealed_state_is_encrypted_and_authenticated() {
    let state = state(CipherSuite::Aes128GcmSha256, 1, vec![object(5000)]);
    let place = flow_place(&state.tuple());
    let sealed = state.seal(&keys(5), &place).unwrap();
    for shown in [&[0xa1; 8][..], &[0xc2; 8], b"password", b"GET /b"] {
        assert!(!sealed.windows(shown.len()).any(|part| part == shown), "{shown:?}");
    }
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        for bytes in [&changed[..], &sealed[..at]] {
            assert_eq!(State::open(&keys(5), &place, bytes).map(drop), Err(StateError::Seal), "{at}");
        }
    }
}

#[test]
fn debug_output_has_no_secrets() {
    let state = state(CipherSuite::Aes128GcmSha256, 1, vec![object(5000)]);
    for text in [format!("{state:?}"), format!("{state:#?}")] {
        assert!(text.contains("10.0.0.1:4000"));
        // 0xa1 and 0xc2 in decimal and hexadecimal, and the requests, which Rust prints as decimal
        // numbers: "GET" begins with 71, "pa" is 112, 97.
        for secret in ["161", "a1", "194", "c2", "password", "GET", "112"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
}

#[test]
fn acknowledged_responses_are_dropped() {
    let suite = CipherSuite::Aes128GcmSha256;
    let mut first = state(suite, u32::MAX - 10, vec![object(70_000), object(10), object(0)]);
    first.key_updates = 0b1010;
    let laid = |sequence, record, response: &record::Response, body| {
        Response::new(sequence, record, response.length - body, body).unwrap()
    };
    let one = laid(u32::MAX - 10, 1, &first.http.responses[0], 70_000);
    let update = one.next_sequence().wrapping_add(27);
    let two = laid(update, 0, &first.http.responses[1], 10);
    for (acked, left) in [
        (u32::MAX - 10, 3),
        (one.next_sequence().wrapping_sub(1), 3),
        (one.next_sequence(), 2),
        (update, 2),
        (two.next_sequence().wrapping_sub(1), 2),
        (two.next_sequence(), 1),
        (two.next_sequence().wrapping_add(1 << 20), 3),
    ] {
        let mut state = first.clone();
        state.drop_acknowledged(acked);
        assert_eq!(state.http.responses.len(), left, "{acked}");
        let (sequence, record, generation, updates) = [
            (two.next_sequence(), two.next_record(), 1, 0b10),
            (one.next_sequence(), one.next_record(), 0, 0b101),
            (u32::MAX - 10, 1, 0, 0b1010),
        ][left - 1];
        let write = &state.write;
        assert_eq!((write.sequence, write.record, write.generation), (sequence, record, generation));
        assert_eq!(state.key_updates, updates);
        // The key is that of the state's generation.
        let mut secret = first.write.secret.clone();
        (0..generation).for_each(|_| secret = secret.next_generation());
        let seal = |secret: &TrafficSecret| {
            let mut out = Vec::new();
            secret.record_key().seal(0, ContentType::ApplicationData, b"x", &mut out).unwrap();
            out
        };
        assert_eq!(seal(&write.secret), seal(&secret));
        assert_eq!(state.tcp_record().passed(), first.tcp_record().passed(), "TCP's end stays");
        assert!(State::decode(&state.encode()).is_ok());
    }
}

#[test]
fn tcp_record_counts_ciphertext() {
    let mut state = state(CipherSuite::Aes128GcmSha256, 100, vec![object(10), object(70_000)]);
    state.key_updates = 0b10;
    state.http.responses[1].passed = state.http.responses[1].length - 70_000 + 4097;
    let one = Response::new(100, 1, state.http.responses[0].length - 10, 10).unwrap();
    let head = state.http.responses[1].length - 70_000;
    let tcp = state.tcp_record();
    assert_eq!((tcp.response_at, tcp.acknowledged()), (100, 1000));
    // If one byte of the second small record may have been sent, the whole record may have been.
    let sent = one.ciphertext_bytes() + 27 + head + 22 + 2 * (4096 + 22);
    assert_eq!(tcp.passed(), 100 + sent as u32);
    (state.http.client_fin, state.client_fin) = (true, true);
    assert_eq!(state.tcp_record().acknowledged(), 1001);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = State::decode(&[&b"TLS\x01\x13\x01"[..], &bytes].concat());
    }
}
