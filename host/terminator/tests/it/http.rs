//! HTTP/1.1 through the terminator.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use rivulet_terminator::Forwarded;

use crate::backend::content;
use crate::{Rig, get, read_head, read_response};

fn is_cut(result: std::io::Result<usize>) -> bool {
    // The connection ended without close_notify.
    result.is_err_and(|e| e.kind() == std::io::ErrorKind::UnexpectedEof)
}

#[test]
fn kept_connection_serves_many_requests_over_one_server_connection() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    for length in [10, 0, 70_000, 1] {
        assert!(get(&mut stream, &format!("/{length}")).1 == content(length));
    }
    assert_eq!((rig.backend.connections(), rig.backend.requests()), (1, 4));
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    let lengths = [100_000, 3, 0, 20_000, 7];
    let requests = lengths.map(|n| format!("GET /{n} HTTP/1.1\r\nHost: h\r\n\r\n")).concat();
    stream.write_all(requests.as_bytes()).unwrap();
    for length in lengths {
        assert!(read_response(&mut stream).1 == content(length), "{length}");
    }
}

#[test]
fn server_gets_client_address_only_from_our_fields() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    stream
        .write_all(b"GET /head HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 1.1.1.1\r\nX_Forwarded_Proto: http\r\n\r\n")
        .unwrap();
    let head = String::from_utf8(read_response(&mut stream).1).unwrap();
    let fields: Vec<&str> = head.lines().filter(|l| l.to_lowercase().contains("forwarded")).collect();
    let expected = ["X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: https", "X-Forwarded-Host: a.example"];
    assert_eq!(fields, expected);
}

#[test]
fn proxy_header_is_sent_once_before_requests() {
    let rig = Rig::with(|config| config.forwarded = Forwarded::ProxyProtocol);
    let mut stream = rig.connect();
    let port = stream.sock.local_addr().unwrap().port();
    let first = get(&mut stream, "/head").1;
    let first: Vec<u8> = String::from_utf8(first).unwrap().chars().map(|c| c as u8).collect();
    let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01".to_vec();
    expected.extend(port.to_be_bytes());
    expected.extend(rig.address().port().to_be_bytes());
    expected.extend(b"GET /head HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(first, expected);
    assert_eq!(get(&mut stream, "/head").1, b"GET /head HTTP/1.1\r\nHost: h\r\n\r\n");
}

#[test]
fn head_and_304_have_no_body() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    stream.write_all(b"HEAD /500 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(read_head(&mut stream).contains("Content-Length: 500"));
    stream.write_all(b"GET /cached HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert!(read_head(&mut stream).contains("Content-Length: 7"));
    assert_eq!(get(&mut stream, "/3").1, content(3));
}

#[test]
fn bodies_of_requests_arrive_whole() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    let body = content(1_000_000);
    write!(stream, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
    stream.write_all(&body).unwrap();
    assert!(read_response(&mut stream).1 == body);
    stream
        .write_all(
            b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        )
        .unwrap();
    assert_eq!(read_response(&mut stream).1, b"5\r\nhello\r\n0\r\n\r\n");
    stream
        .write_all(b"POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        .unwrap();
    assert_eq!(read_head(&mut stream), "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"ab").unwrap();
    assert_eq!(read_response(&mut stream).1, b"ab");
}

#[test]
fn response_of_unknown_length_ends_with_server() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    stream.write_all(b"GET /chunked/30000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_head(&mut stream);
    let mut expected = Vec::new();
    for part in content(30_000).chunks(10_000) {
        expected.extend(format!("{:x}\r\n", part.len()).bytes().chain(part.iter().copied()).chain(*b"\r\n"));
    }
    expected.extend(b"0\r\n\r\n");
    let mut chunks = vec![0; expected.len()];
    stream.read_exact(&mut chunks).unwrap();
    assert!(chunks == expected);
    stream.write_all(b"GET /close/100000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_head(&mut stream);
    let mut body = Vec::new();
    stream.read_to_end(&mut body).unwrap();
    assert!(body == content(100_000));
}

#[test]
fn cut_response_has_no_close_notify() {
    let rig = Rig::new();
    for path in ["/cut/3000", "/cut/100000"] {
        let mut stream = rig.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        read_head(&mut stream);
        assert!(is_cut(std::io::copy(&mut stream, &mut std::io::sink()).map(|_| 0)), "{path}");
    }
}

#[test]
fn answer_before_the_body_ends_the_connection() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    stream.write_all(b"POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nabc").unwrap();
    let (head, body) = read_response(&mut stream);
    assert!(head.starts_with("HTTP/1.1 413") && body == b"no\n");
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn get_is_repeated_when_idle_connection_was_closed() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    assert_eq!(get(&mut stream, "/1").1, content(1));
    assert_eq!(get(&mut stream, "/stale").1, content(10));
    assert_eq!((rig.backend.connections(), rig.backend.requests()), (2, 3));
}

#[test]
fn post_is_never_sent_twice() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    assert_eq!(get(&mut stream, "/1").1, content(1));
    stream.write_all(b"POST /stale HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").unwrap();
    assert!(read_response(&mut stream).0.starts_with("HTTP/1.1 502"));
    assert_eq!((rig.backend.connections(), rig.backend.requests()), (1, 2));
}

#[test]
fn unrequested_response_ends_the_connection() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    assert_eq!(get(&mut stream, "/twice").1, b"a");
    let mut rest = Vec::new();
    let _ = write!(stream, "GET /1 HTTP/1.1\r\nHost: h\r\n\r\n");
    let _ = stream.read_to_end(&mut rest);
    assert!(!rest.ends_with(b"b"), "{}", String::from_utf8_lossy(&rest));
}

#[test]
fn malformed_response_gives_502() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    assert!(get(&mut stream, "/garbage").0.starts_with("HTTP/1.1 502"));
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn unreachable_server_gives_502() {
    let away = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rig = Rig::with(|config| config.server = away);
    let mut stream = rig.connect();
    assert!(get(&mut stream, "/").0.starts_with("HTTP/1.1 502"));
    assert_eq!(rig.count("rivulet_tls_bad_responses_total"), 1);
}

#[test]
fn refused_request_gets_its_status_and_reaches_no_server() {
    let rig = Rig::new();
    let long = format!("GET / HTTP/1.1\r\nHost: h\r\nA: {}\r\n\r\n", "a".repeat(40_000));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
        ("CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", "501"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"),
        (&long, "431"),
    ] {
        let mut stream = rig.connect();
        stream.write_all(request.as_bytes()).unwrap();
        assert!(read_response(&mut stream).0.starts_with(&format!("HTTP/1.1 {status}")), "{request}");
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(rig.backend.requests(), 0);
}

#[test]
fn upgraded_connection_is_a_tunnel_with_half_close() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    stream
        .write_all(b"GET /upgrade HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nfirst")
        .unwrap();
    assert!(read_head(&mut stream).starts_with("HTTP/1.1 101"));
    let bytes = content(20_000);
    for sent in [&b""[..], &bytes, b"x"] {
        let expected = if sent.is_empty() { b"first" } else { sent };
        stream.write_all(sent).unwrap();
        let mut got = vec![0; expected.len()];
        stream.read_exact(&mut got).unwrap();
        assert!(got == expected);
    }
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"end");
}

#[test]
fn response_101_without_an_upgrade_is_refused() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    assert!(get(&mut stream, "/upgrade").0.starts_with("HTTP/1.1 502"));
}

#[test]
fn response_is_complete_after_client_closes() {
    let rig = Rig::new();
    for by_tls in [true, false] {
        let mut stream = rig.connect();
        stream.write_all(b"GET /400000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        if by_tls {
            stream.conn.send_close_notify();
        }
        stream.flush().unwrap();
        stream.sock.shutdown(Shutdown::Write).unwrap();
        assert!(read_response(&mut stream).1 == content(400_000));
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}

/// A client that closes its direction right after its request reads the response slowly: the end of
/// the response, and `close_notify`, still wait to be sent when the terminator has read its FIN.
#[test]
fn slow_reader_gets_all_bytes_after_its_fin() {
    const LENGTH: usize = 20_000_000;
    let rig = Rig::new();
    let mut stream = rig.connect();
    write!(stream, "GET /{LENGTH} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    stream.sock.shutdown(Shutdown::Write).unwrap();
    thread::sleep(std::time::Duration::from_millis(300));
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("close_notify");
    assert!(all.ends_with(&content(LENGTH)), "{} bytes", all.len());
}

#[test]
fn inputs_reach_neither_server_nor_client() {
    let rig = Rig::new();
    let mut stream = rig.connect();
    stream.write_all(b"GET /head HTTP/1.1\r\nHost: h\r\nX-TRODS: 7\r\nx_trods: 8\r\n\r\n").unwrap();
    let head = String::from_utf8(read_response(&mut stream).1).unwrap();
    assert!(!head.to_lowercase().contains("trods"), "{head}");
    stream.write_all(b"GET /inputs HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let (head, body) = read_response(&mut stream);
    assert!(!head.contains("TRODS") && head.contains("ETag"), "{head}");
    assert_eq!(body, b"made");
}

#[test]
fn slow_reader_gets_all_bytes_beside_others() {
    let rig = Rig::with(|config| config.workers = 1);
    let mut slow = rig.connect();
    slow.write_all(b"GET /large/30000000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_head(&mut slow);
    for _ in 0..20 {
        assert_eq!(get(&mut rig.connect(), "/1000").1, content(1000));
    }
    let mut count = 0;
    let mut block = vec![0; 1 << 20];
    while count < 30_000_000 {
        count += slow.read(&mut block).unwrap();
    }
    assert_eq!(count, 30_000_000);
}

#[test]
fn connections_are_served_beside_each_other() {
    let rig = Rig::new();
    thread::scope(|scope| {
        for n in 0..16_usize {
            let rig = &rig;
            scope.spawn(move || {
                let mut stream = rig.connect();
                for round in 0..20 {
                    let length = n * 7_919 + round * 4_001;
                    assert!(get(&mut stream, &format!("/{length}")).1 == content(length));
                }
            });
        }
    });
    assert_eq!(rig.count("rivulet_tls_requests_total"), 320);
    rig.wait_for("rivulet_tls_open", 0);
}

#[test]
fn stop_ends_idle_connections_and_lets_responses_finish() {
    let rig = Rig::new();
    let mut idle = rig.connect();
    assert_eq!(get(&mut idle, "/1").1, content(1));
    let mut busy = rig.connect();
    busy.write_all(b"GET /large/20000000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_head(&mut busy);
    let Rig { terminator, backend: _backend, folder: _folder } = rig;
    let address = terminator.addresses().unwrap()[0];
    let stopping = thread::spawn(move || terminator.stop().unwrap());
    assert_eq!(idle.read(&mut [0]).unwrap(), 0);
    drop(idle);
    let mut body = vec![0; 20_000_000];
    busy.read_exact(&mut body).unwrap();
    assert_eq!(busy.read(&mut [0]).unwrap(), 0);
    drop(busy);
    stopping.join().unwrap();
    assert!(TcpStream::connect(address).is_err());
}
