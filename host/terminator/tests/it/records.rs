//! Compares the captured ciphertext of responses with the ciphertext that another replica makes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rivulet_terminator::{ConnectionState, Direction, Observer, ResponsePlace};
use rivulet_tls::{CipherSuite, ContentType, Response, record_bytes};
use rustls::SupportedCipherSuite;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite as suites;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore};

use crate::backend::content;
use crate::{Rig, client_config, connect_with, get, read_head, read_response};

/// The connection states that the terminator reports.
#[derive(Debug, Default)]
struct States(Mutex<Vec<(Direction, Direction, ResponsePlace)>>);

impl Observer for States {
    fn observe(&self, _client: &TcpStream, state: &ConnectionState<'_>) {
        let state = (state.received.clone(), state.sent.clone(), state.response.clone());
        self.0.lock().unwrap().push(state);
    }
}

/// Forwards one connection to `to`, and keeps a copy of the bytes from there.
fn capture(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let captured = Arc::new(Mutex::new(Vec::new()));
    let kept = captured.clone();
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(to).unwrap();
        let (mut from, mut into) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || io::copy(&mut from, &mut into));
        let (mut server, mut client, mut block) = (server, client, [0; 4096]);
        while let Ok(count) = server.read(&mut block) {
            if count == 0 {
                return;
            }
            kept.lock().unwrap().extend_from_slice(&block[..count]);
            if client.write_all(&block[..count]).is_err() {
                return;
            }
        }
    });
    (address, captured)
}

/// The ciphertext of a response from `offset` on, as another replica makes it.
fn remake(place: &ResponsePlace, sent: &Direction, plaintext: &[u8], offset: u64) -> Vec<u8> {
    let response =
        Response::new(place.offset as u32, place.record, place.head.len() as u64, place.body).unwrap();
    let (key, mut out) = (sent.secret.record_key(), Vec::new());
    let Some(first) = response.record_at(offset) else { return out };
    for record in response.records_from(offset) {
        let plaintext = &plaintext[record.plaintext.start as usize..record.plaintext.end as usize];
        key.seal(record.number, ContentType::ApplicationData, plaintext, &mut out).unwrap();
    }
    out.split_off((offset - first.offset) as usize)
}

const SUITES: [(CipherSuite, SupportedCipherSuite); 3] = [
    (CipherSuite::Aes128GcmSha256, suites::TLS13_AES_128_GCM_SHA256),
    (CipherSuite::Aes256GcmSha384, suites::TLS13_AES_256_GCM_SHA384),
    (CipherSuite::Chacha20Poly1305Sha256, suites::TLS13_CHACHA20_POLY1305_SHA256),
];

#[test]
fn other_replica_makes_same_ciphertext_from_any_offset() {
    for (_, suite) in SUITES {
        let states = Arc::new(States::default());
        let observer = states.clone();
        let rig = Rig::with(|config| config.observer = Some(observer));
        let (address, captured) = capture(rig.address());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(rig.authority()).unwrap()).unwrap();
        let provider = CryptoProvider { cipher_suites: vec![suite], ..default_provider() };
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut stream = connect_with(config, address);
        let mut plaintexts = Vec::new();
        for length in [0, 1, 4_096, 4_097, 65_536, 65_537, 300_000] {
            let (head, body) = get(&mut stream, &format!("/{length}"));
            assert!(body == content(length));
            plaintexts.push([head.as_bytes(), &body].concat());
        }
        // Responses without a known length use record numbers too.
        stream.write_all(b"GET /chunked/50000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        read_head(&mut stream);
        let mut chunks = Vec::new();
        while !chunks.ends_with(b"0\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            chunks.push(byte[0]);
        }
        let (head, body) = get(&mut stream, "/20000");
        plaintexts.push([head.as_bytes(), &body].concat());

        let (captured, states) = (captured.lock().unwrap(), states.0.lock().unwrap());
        // The first state is that of the end of the handshake, the ticket's record included.
        let ((received, sent, _), states) = states.split_first().unwrap();
        assert_eq!((received.next_record, sent.next_record), (0, 1));
        assert_eq!(states.len(), plaintexts.len());
        let mut at = sent.offset;
        for (n, ((_, sent, place), plaintext)) in states.iter().zip(&plaintexts).enumerate() {
            assert!(
                place.offset == at || n == states.len() - 1,
                "response {n} must begin after the one before"
            );
            let whole = remake(place, sent, plaintext, 0);
            at = place.offset + whole.len() as u64;
            let wire = &captured[place.offset as usize..at as usize];
            for offset in (0..wire.len()).step_by(1_237).chain([0, 1, wire.len() - 1, wire.len()]) {
                assert!(
                    remake(place, sent, plaintext, offset as u64) == wire[offset..],
                    "response {n} differs from offset {offset}"
                );
            }
        }
        assert_eq!(at as usize, captured.len());
    }
}

#[test]
fn handshake_sends_one_ticket_record_before_data() {
    let rig = Rig::new();
    let (address, captured) = capture(rig.address());
    let mut stream = connect_with(client_config(&rig.authority(), &[&TLS13]), address);
    assert_eq!(get(&mut stream, "/5").1, content(5));
    let captured = captured.lock().unwrap();
    let mut kinds = Vec::new();
    let mut rest = &captured[..];
    while let Ok(Some(length)) = record_bytes(rest) {
        kinds.push(rest[0]);
        rest = &rest[length..];
    }
    // The last three records after the server's flight: the ticket, the head, the body.
    assert_eq!(kinds[kinds.len() - 3..], [23, 23, 23]);
}

#[test]
fn tls_1_2_is_served_and_counted_apart() {
    let rig = Rig::new();
    let mut stream = connect_with(client_config(&rig.authority(), &[&TLS12]), rig.address());
    for length in [1, 300_000] {
        assert!(get(&mut stream, &format!("/{length}")).1 == content(length));
    }
    let body = content(100_000);
    write!(stream, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
    stream.write_all(&body).unwrap();
    assert!(read_response(&mut stream).1 == body);
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(rig.count("rivulet_tls_handshakes_total{version=\"1.2\"}"), 1);
    assert_eq!(rig.count("rivulet_tls_handshakes_total{version=\"1.3\"}"), 0);
    assert_eq!(rig.count("rivulet_tls_responses_total{records=\"repeatable\"}"), 0);
    assert_eq!(rig.count("rivulet_tls_responses_total{records=\"other\"}"), 3);
}
