//! Clients that violate TLS or keep connections open.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rivulet_tls::{CipherSuite, ContentType, KEY_UPDATE, RecordKey, TrafficSecret};
use rustls::version::TLS13;
use rustls::{ClientConnection, KeyLog, StreamOwned};

use crate::backend::content;
use crate::{PATIENCE, Rig, client_config, connect_with, get, read_response};

/// Reads until the connection ends, even by a RST.
fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut all, mut block) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut block) {
            Ok(0) => return all,
            Ok(count) => all.extend_from_slice(&block[..count]),
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return all,
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn only_plain_http_gets_an_answer() {
    let rig = Rig::new();
    let mut stream = TcpStream::connect(rig.address()).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (head, body) = read_response(&mut stream);
    assert!(head.starts_with("HTTP/1.1 400") && body.ends_with(b"HTTPS alone.\n"));
    assert_eq!(read_all(&mut stream), b"");
    for bytes in [&b"\x80\x2e\x01\0\x02"[..], b"\0\0\0", b"\x16\x02\0\0\x01\0", b"ssh"] {
        let mut stream = TcpStream::connect(rig.address()).unwrap();
        stream.write_all(bytes).unwrap();
        assert_eq!(read_all(&mut stream), b"", "{bytes:?}");
    }
    assert_eq!(rig.count("rivulet_tls_handshake_failures_total{reason=\"plain_http\"}"), 1);
    assert_eq!(rig.count("rivulet_tls_handshake_failures_total{reason=\"not_tls\"}"), 4);
}

#[test]
fn broken_handshake_is_refused_with_an_alert() {
    let rig = Rig::new();
    for bytes in [
        // Data before a handshake, a record without content, one that is too long, and a message
        // that is not a ClientHello.
        &b"\x17\x03\x03\0\x05hello"[..],
        b"\x16\x03\x01\0\0",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\0\x05\x01\xff\xff\xff\xff",
        b"\x16\x03\x01\0\x04\x02\0\0\0",
    ] {
        let mut stream = TcpStream::connect(rig.address()).unwrap();
        stream.write_all(bytes).unwrap();
        let answer = read_all(&mut stream);
        assert!(answer.is_empty() || answer[0] == 21, "{bytes:?}: {answer:?}");
    }
    rig.wait_for("rivulet_tls_handshake_failures_total{reason=\"refused\"}", 5);
}

#[test]
fn handshake_without_end_is_refused() {
    let rig = Rig::new();
    let mut stream = TcpStream::connect(rig.address()).unwrap();
    // A ClientHello of 16 MB in records of one byte: the terminator stops reading long before its
    // end.
    let mut sent = 0;
    let first = b"\x16\x03\x01\0\x04\x01\xff\xff\xff";
    let mut bytes = first.to_vec();
    while sent < (1 << 20) && stream.write_all(&bytes).is_ok() {
        sent += bytes.len();
        bytes = b"\x16\x03\x01\0\x01\0".repeat(1000);
    }
    rig.wait_for("rivulet_tls_handshake_failures_total{reason=\"refused\"}", 1);
}

#[test]
fn half_handshakes_and_idle_connections_end_in_time() {
    let rig = Rig::with(|config| {
        config.limits.handshake = Duration::from_millis(300);
        config.limits.head = Duration::from_millis(300);
        config.limits.idle = Duration::from_millis(300);
    });
    let mut silent = TcpStream::connect(rig.address()).unwrap();
    let mut half = TcpStream::connect(rig.address()).unwrap();
    half.write_all(b"\x16\x03\x01\x01\0\x01").unwrap();
    assert_eq!(read_all(&mut silent), b"");
    assert_eq!(read_all(&mut half), b"");
    assert_eq!(rig.count("rivulet_tls_handshake_failures_total{reason=\"late\"}"), 2);
    // An idle connection ends with close_notify, one in the middle of a head with status 408.
    let mut idle = rig.connect();
    get(&mut idle, "/1");
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    let mut slow = rig.connect();
    slow.write_all(b"GET / HT").unwrap();
    assert!(read_response(&mut slow).0.starts_with("HTTP/1.1 408"));
    // A request that the server does not answer.
    let mut waiting = rig.connect();
    assert!(get(&mut waiting, "/never").0.starts_with("HTTP/1.1 504"));
    // A request whose body does not arrive.
    let mut body = rig.connect();
    body.write_all(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n").unwrap();
    assert!(body.read(&mut [0]).is_err());
    drop((idle, slow, waiting, body));
    rig.wait_for("rivulet_tls_open", 0);
}

#[test]
fn connection_limit_closes_new_and_idle_ones() {
    let rig = Rig::with(|config| config.max_connections = 4);
    let mut idle: Vec<_> = (0..4).map(|_| rig.connect()).collect();
    for stream in &mut idle {
        get(stream, "/1");
    }
    let mut fifth = TcpStream::connect(rig.address()).unwrap();
    assert_eq!(read_all(&mut fifth), b"");
    assert_eq!(rig.count("rivulet_tls_refused_total"), 1);
    // Closed long before the time limit of a minute.
    for stream in &mut idle {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    drop(idle);
    rig.wait_for("rivulet_tls_open", 0);
    assert_eq!(get(&mut rig.connect(), "/5").1, content(5));
}

#[derive(Debug, Default)]
struct ClientSecret(Mutex<Vec<u8>>);

impl KeyLog for ClientSecret {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        if label == "CLIENT_TRAFFIC_SECRET_0" {
            *self.0.lock().unwrap() = secret.to_vec();
        }
    }
}

/// A client that seals its own records after the handshake.
struct Sealer {
    stream: StreamOwned<ClientConnection, TcpStream>,
    secret: TrafficSecret,
    key: RecordKey,
    number: u64,
}

impl Sealer {
    fn new(rig: &Rig) -> Self {
        let log = Arc::new(ClientSecret::default());
        let mut config = client_config(&rig.authority(), &[&TLS13]);
        config.key_log = log.clone();
        let mut stream = connect_with(config, rig.address());
        stream.conn.complete_io(&mut stream.sock).unwrap();
        let suite = stream.conn.negotiated_cipher_suite().unwrap().suite();
        let suite = CipherSuite::from_number(suite.into()).unwrap();
        let secret = TrafficSecret::new(suite, &log.0.lock().unwrap()).unwrap();
        Self { stream, key: secret.record_key(), secret, number: 0 }
    }

    fn seal(&mut self, content: ContentType, plaintext: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        self.key.seal(self.number, content, plaintext, &mut record).unwrap();
        self.number += 1;
        record
    }

    fn update_key(&mut self) -> Vec<u8> {
        let record = self.seal(ContentType::Handshake, &KEY_UPDATE);
        self.secret = self.secret.next_generation();
        (self.key, self.number) = (self.secret.record_key(), 0);
        record
    }

    /// Sends bytes; returns the alert with which the server ends the connection.
    fn alert(mut self, bytes: &[u8]) -> String {
        let _ = self.stream.sock.write_all(bytes);
        self.stream.read(&mut [0]).map_or_else(|e| e.to_string(), |count| format!("{count} bytes"))
    }
}

#[test]
fn invalid_record_ends_connection_with_alert() {
    let rig = Rig::new();
    let request = b"GET /5 HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut client = Sealer::new(&rig);
    let mut changed = client.seal(ContentType::ApplicationData, request);
    changed[20] ^= 1;
    assert!(client.alert(&changed).contains("BadRecordMac"));
    let mut client = Sealer::new(&rig);
    client.number = 1;
    let skipped = client.seal(ContentType::ApplicationData, request);
    assert!(client.alert(&skipped).contains("BadRecordMac"));
    let client = Sealer::new(&rig);
    assert!(client.alert(b"\x17\x03\x03\xff\xff").contains("RecordOverflow"));
    let mut client = Sealer::new(&rig);
    let hello = client.seal(ContentType::Handshake, b"\x01\0\0\0");
    assert!(client.alert(&hello).contains("UnexpectedMessage"));
    let client = Sealer::new(&rig);
    assert!(client.alert(b"\x16\x03\x03\0\x04\x01\0\0\0").contains("UnexpectedMessage"));
    assert_eq!(rig.count("rivulet_tls_broken_total"), 5);
    assert_eq!(rig.backend.requests(), 0);
}

#[test]
fn replayed_record_is_refused() {
    let rig = Rig::new();
    let mut client = Sealer::new(&rig);
    let record = client
        .seal(ContentType::ApplicationData, b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    client.stream.sock.write_all(&record).unwrap();
    read_response(&mut client.stream);
    assert!(client.alert(&record).contains("BadRecordMac"));
    assert_eq!(rig.backend.requests(), 1);
}

#[test]
fn flood_of_empty_records_ends_connection() {
    let rig = Rig::new();
    let mut client = Sealer::new(&rig);
    // The permitted number of KeyUpdates, then a request.
    let mut bytes: Vec<u8> = (0..32).flat_map(|_| client.update_key()).collect();
    bytes.extend(client.seal(ContentType::ApplicationData, b"GET /5 HTTP/1.1\r\nHost: h\r\n\r\n"));
    client.stream.sock.write_all(&bytes).unwrap();
    assert_eq!(read_response(&mut client.stream).1, content(5));
    let updates: Vec<u8> = (0..33).flat_map(|_| client.update_key()).collect();
    assert!(client.alert(&updates).contains("UnexpectedMessage"));
    let mut client = Sealer::new(&rig);
    let empty: Vec<u8> = (0..33).flat_map(|_| client.seal(ContentType::ApplicationData, b"")).collect();
    assert!(client.alert(&empty).contains("UnexpectedMessage"));
}

#[test]
fn pipelined_requests_are_buffered_within_limit() {
    let rig = Rig::new();
    let mut client = Sealer::new(&rig);
    client.stream.sock.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let first = client.seal(ContentType::ApplicationData, b"GET /never HTTP/1.1\r\nHost: h\r\n\r\n");
    client.stream.sock.write_all(&first).unwrap();
    let requests = b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\n".repeat(500);
    let mut sent = 0;
    // The kernel's buffers hold some megabytes; then the client's writes block.
    while sent < (64 << 20) {
        let record = client.seal(ContentType::ApplicationData, &requests);
        if client.stream.sock.write_all(&record).is_err() {
            break;
        }
        sent += record.len();
    }
    assert!(sent < (64 << 20), "{sent} bytes were read behind a request without an answer");
    // Closing a socket with unread bytes sends a RST, which must end the connection even while the
    // terminator reads nothing from it.
    reset(client.stream.sock);
    rig.wait_for("rivulet_tls_open", 0);
}

/// Closes a socket with a RST.
fn reset(socket: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
}

#[test]
fn reader_below_minimum_rate_is_closed() {
    let rig = Rig::with(|config| {
        config.limits.idle = Duration::from_millis(500);
        config.limits.least_rate = 1 << 30;
    });
    let mut stream = rig.connect();
    stream.write_all(b"GET /large/300000000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    // Reads a few bytes now and then.
    let mut block = [0; 4096];
    while stream.read(&mut block).is_ok_and(|count| count > 0) {
        std::thread::sleep(Duration::from_millis(20));
        if rig.count("rivulet_tls_late_total") > 0 {
            return;
        }
    }
    assert_eq!(rig.count("rivulet_tls_late_total"), 1);
}
