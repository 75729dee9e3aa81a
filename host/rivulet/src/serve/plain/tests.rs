use rivulet_pktio::testing::{PATIENCE, eventually};

use super::super::connections::{Counts, Limits};
use super::*;

fn talk(address: SocketAddr, request: &str, shut: bool) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    if shut {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
    let mut out = Vec::new();
    stream.read_to_end(&mut out).unwrap();
    out
}

#[test]
fn old_clients_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(dir.path().join("long"), &content).unwrap();
    std::fs::write(dir.path().join("a"), "aaaa").unwrap();
    let objects = Objects::open(dir.path()).unwrap();
    let uploads = Some(crate::http::Uploads::open(dir.path(), crate::http::Limits::default()).unwrap());
    let address = listen("127.0.0.1:0".parse().unwrap(), Site { objects, uploads }).unwrap();
    // Persistent and pipelined; the second answer is longer than any buffer.
    let request =
        "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /long HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    for shut in [false, true] {
        let out = talk(address, request, shut);
        let text = String::from_utf8_lossy(&out[..400]).into_owned();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("aaaaHTTP/1.1 200"), "{text}");
        assert!(out.ends_with(&content), "{} octets", out.len());
    }
    let body = "x".repeat(300_000);
    let put =
        format!("PUT /up HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\nConnection: close\r\n\r\n{body}");
    assert!(talk(address, &put, false).starts_with(b"HTTP/1.1 201 "));
    assert_eq!(std::fs::read(dir.path().join("up")).unwrap(), body.as_bytes());
    let out = talk(address, "nonsense\r\n\r\n", false);
    assert!(out.starts_with(b"HTTP/1.1 400 "));
}

/// A listener with these limits, a file of 20 MB, and uploads; returns its folder, address and
/// table of connections.
fn limited(limits: Limits) -> (tempfile::TempDir, SocketAddr, Connections) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("long"), vec![7; 20_000_000]).unwrap();
    std::fs::write(dir.path().join("a"), "aaaa").unwrap();
    let objects = Objects::open(dir.path()).unwrap();
    let uploads = Some(crate::http::Uploads::open(dir.path(), crate::http::Limits::default()).unwrap());
    let connections = Connections::new(limits);
    let site = Site { objects, uploads };
    let address = listen_among("127.0.0.1:0".parse().unwrap(), site, connections.clone()).unwrap();
    (dir, address, connections)
}

/// Opens a connection and sends these bytes.
fn hold(address: SocketAddr, sent: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(sent).unwrap();
    stream
}

const BODY: &[u8] = b"PUT /up HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\nx";
const ASK: &[u8] = b"GET /long HTTP/1.1\r\nHost: h\r\n\r\n";
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn slow_body_ends_at_its_deadline() {
    let limits = Limits { head: SHORT, least_rate: 1 << 20, ..Limits::default() };
    let (_dir, address, connections) = limited(limits);
    let mut stream = hold(address, BODY);
    // Often enough that no single read times out.
    eventually("it is closed", || {
        std::thread::sleep(Duration::from_millis(20));
        stream.write_all(b"x").is_err()
    });
    assert_eq!(connections.counts(), Counts { late: 1, ..Counts::default() });
    eventually("its place is free", || connections.open() == 0);
}

#[test]
fn unread_answer_ends_at_its_deadline() {
    let (_dir, address, connections) = limited(Limits { idle: SHORT, ..Limits::default() });
    let stream = hold(address, ASK);
    eventually("it is closed", || connections.counts().late == 1 && connections.open() == 0);
    drop(stream);
}

#[test]
fn slow_transfers_are_displaced_by_a_request() {
    for sent in [BODY, ASK] {
        let limits = Limits { all: 4, young: Duration::from_millis(50), ..Limits::default() };
        // The first bytes of the answer fill the buffers of both ends at once.
        let limits = Limits { slow_rate: u64::MAX, ..limits };
        let (_dir, address, connections) = limited(limits);
        let held: Vec<TcpStream> = (0..4).map(|_| hold(address, sent)).collect();
        eventually("all are admitted", || connections.open() == 4);
        std::thread::sleep(Duration::from_millis(200));
        for _ in 0..3 {
            let answer = talk(address, "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", false);
            assert!(answer.ends_with(b"aaaa"), "{} bytes", answer.len());
        }
        assert_eq!(connections.counts().refused, 0);
        assert!(connections.counts().displaced >= 1);
        drop(held);
    }
}

#[test]
fn displaced_connection_that_waits_for_content_ends() {
    let (dir, address, connections) = limited(Limits { all: 1, ..Limits::default() });
    // Hashing this file takes minutes; the threads end with the test.
    std::fs::File::create(dir.path().join("huge")).unwrap().set_len(1 << 42).unwrap();
    let held = hold(address, b"GET /huge HTTP/1.1\r\nHost: h\r\n\r\n");
    eventually("it is admitted", || connections.open() == 1);
    let other = hold(address, b"G");
    eventually("it gave way", || connections.counts().displaced == 1);
    eventually("its thread ended", || connections.open() == 1);
    drop((held, other));
}

#[test]
fn bytes_after_the_last_answer_do_not_hold_a_place() {
    let (_dir, address, connections) = limited(Limits { linger: SHORT, ..Limits::default() });
    let mut stream = hold(address, b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    stream.read_to_end(&mut Vec::new()).unwrap();
    eventually("its place is free", || {
        std::thread::sleep(Duration::from_millis(20));
        let _ = stream.write_all(b"x");
        connections.open() == 0
    });
    assert_eq!(connections.counts(), Counts::default());
}

#[test]
fn connection_stays_while_last_answer_is_read() {
    let limits = Limits { idle: SHORT, least_rate: 1000, ..Limits::default() };
    let connections = Connections::new(limits);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (socket, peer) = listener.accept().unwrap();
    let guest = connections.admit(peer, socket).unwrap();
    let mut goes_on = taking(&guest);
    assert!(goes_on(1_000_000));
    std::thread::sleep(2 * SHORT);
    assert!(goes_on(1000), "a client that takes it has more time");
    let mut goes_on = taking(&guest);
    assert!(goes_on(1_000_000));
    std::thread::sleep(2 * SHORT);
    assert!(!goes_on(999_999), "too slow");
    assert_eq!(connections.counts().late, 1);
    drop(client);
}
