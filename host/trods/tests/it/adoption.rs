//! Adoption of a dead replica's connections by another replica that has a real nginx.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_pktio::in_netns;
use rivulet_pktio::repair::unacknowledged;
use rivulet_pktio::testing::{PATIENCE, Process, eventually};
use rivulet_trods::adopt::{Adopters, Counts, Outcome, Refusal};
use rivulet_trods::record::{Body, Response};
use rivulet_trods::wake;
use rivulet_trods::{Record, Tuple};
use rustix::net::sockopt::set_socket_linger;

use crate::support::generate;
use crate::support::rack::{Rack, fetch, nginx, nginx_with, now_ms};
use crate::support::server::object;

const GET: &str = "GET /a.bin HTTP/1.1\r\nHost: h\r\n\r\n";
const SIZE: usize = 100_000;

/// Number of adopted connections, and of those among them that ended with a reset of the client.
fn counted(adopters: &Adopters) -> (u64, u64) {
    let Counts { adopted, refused, .. } = adopters.counts();
    (adopted, refused)
}

/// Length of the head at the start of `octets`.
fn head(octets: &[u8]) -> usize {
    octets.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4
}

fn replaced(octets: &[u8], old: &str, new: &str) -> Vec<u8> {
    let (head, body) = octets.split_at(head(octets));
    let text = std::str::from_utf8(head).unwrap();
    assert!(text.contains(old), "{old} in {text}");
    [text.replace(old, new).as_bytes(), body].concat()
}

/// The answer with the head of a keep-alive connection.
fn kept_open(answer: &[u8]) -> Vec<u8> {
    replaced(answer, "Connection: close", "Connection: keep-alive")
}

/// Creates `a.bin`, and returns nginx's answer to a request for it, after stopping nginx.
fn answer_of_stopped_nginx(rack: &Rack) -> Vec<u8> {
    std::fs::write(rack.www.path().join("a.bin"), object("a", SIZE)).unwrap();
    let nginx = rack.nginx();
    let full = kept_open(&fetch(&rack.r2, GET));
    assert!(nginx.stop().success());
    full
}

/// A client that has sent data and received the first bytes of the answer from the first replica,
/// which is then cut off. `knows`: all bytes that were held at the first replica.
struct Cut {
    client: TcpStream,
    record: Record,
    /// The sequence number of the answer's first byte.
    start: u32,
    _server: TcpStream,
}

fn cut(rack: &Rack, request: &str, knows: &[u8], had: usize, half_close: bool) -> Cut {
    rack.mend();
    let listener = rack.listen();
    let mut client = rack.connect();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(request.as_bytes()).unwrap();
    if half_close {
        client.shutdown(Shutdown::Write).unwrap();
    }
    server.read_exact(&mut vec![0; request.len()]).unwrap();
    server.write_all(&knows[..had]).unwrap();
    client.read_exact(&mut vec![0; had]).unwrap();
    let name = client.local_addr().unwrap();
    let asked = request.len() as u32 + u32::from(half_close);
    let mut found = None;
    eventually("the record", || {
        if let Some(seen) = rack.flows().get_mut(&name).filter(|seen| seen.asked == asked) {
            let start = seen.start.unwrap();
            seen.feed(|flow, out| flow.response(start, knows, false, out));
            // A request without an answer is stored alone after a while.
            if seen.record.is_none() {
                seen.feed(|flow, out| flow.tick(u64::MAX / 2, out));
            }
            found = seen.record.clone();
        }
        found.is_some()
    });
    rack.cut();
    let record = found.unwrap();
    let start = record.handshake.service_isn.wrapping_add(1);
    Cut { client, record, start, _server: server }
}

/// Adopts the connection and expects that the client is reset and gets no byte; `want` is the
/// reason, and this is the `count`th refusal by these adopters.
fn refused(
    rack: &Rack,
    adopters: &Adopters,
    ends: &Receiver<(Tuple, Outcome)>,
    mut cut: Cut,
    want: Refusal,
    count: u64,
) {
    rack.adopt(adopters, cut.record);
    let mut got = Vec::new();
    let error = cut.client.read_to_end(&mut got).unwrap_err();
    assert_eq!((error.kind(), got.len()), (ErrorKind::ConnectionReset, 0), "{want}");
    match ends.recv_timeout(PATIENCE).unwrap().1 {
        Outcome::Refused(refusal) => assert_eq!(refusal, want),
        other => panic!("{want}: {other:?}"),
    }
    assert_eq!(counted(adopters), (count, count));
}

fn rest(client: &mut TcpStream, length: usize) -> Vec<u8> {
    let mut octets = vec![0; length];
    client.read_exact(&mut octets).unwrap();
    octets
}

#[test]
fn curl_download_resumes_byte_for_byte() {
    let Some(rack) = Rack::new().filter(|_| !skipped(Feature::Tcx)) else { return };
    let size = 12 << 20;
    std::fs::write(rack.www.path().join("big.bin"), object("big", size)).unwrap();
    let other = tempfile::tempdir().unwrap();
    let _first = nginx(&rack.r1, other.path(), rack.www.path());
    let _second = rack.nginx();
    rack.slow("30mbit");
    let file = rack.folder.path().join("got");
    let mut command = rack.client.command("curl");
    command.args(["-sS", "-o"]).arg(&file).arg("http://10.9.0.1/big.bin");
    let mut curl = Process(command.spawn().unwrap());
    eventually("the first part", || std::fs::metadata(&file).is_ok_and(|meta| meta.len() > 1 << 20));
    rack.cut();
    let record = rack.flows().values().find_map(|seen| seen.record.clone()).unwrap();
    let (adopters, ends) = rack.adopters(PATIENCE);
    // Lost segments left holes; the programs bound acknowledgements beyond them (`beyond.h`).
    let _programs = rack.programs(&record);
    rack.adopt(&adopters, record);
    eventually("the end of the download", || !curl.lives());
    assert!(curl.0.wait().unwrap().success());
    assert!(std::fs::read(&file).unwrap() == object("big", size));
    assert!(matches!(ends.recv_timeout(PATIENCE).unwrap().1, Outcome::Over));
    assert_eq!(counted(&adopters), (1, 0));
}

#[test]
fn adopted_client_gets_rest_and_further_answers() {
    let Some(rack) = Rack::new() else { return };
    std::fs::write(rack.www.path().join("a.bin"), object("a", SIZE)).unwrap();
    std::fs::write(rack.www.path().join("b.bin"), object("b", 300)).unwrap();
    let _nginx = rack.nginx();
    let (adopters, _ends) = rack.adopters(PATIENCE);
    // The two replicas' heads differ only in fields that do not identify the object.
    let full = replaced(&fetch(&rack.r2, GET), "Server: nginx", "Server: another one");
    let full = kept_open(&full);
    let size = head(&full);
    let mut count = 0;
    for had in [0, 1, size - 1, size, size + 1, size + 1000, size + 50_000, full.len() - 1, full.len()] {
        let mut cut = cut(&rack, GET, &full, had, false);
        let place = rack.adopt(&adopters, cut.record);
        assert_eq!(place.ack.wrapping_sub(cut.start), had as u32);
        assert!(rest(&mut cut.client, full.len() - had) == full[had..], "{had}");
        // The adopted connection serves further requests like any other.
        for _ in 0..3 {
            cut.client.write_all(b"GET /b.bin HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(&object("b", 300)) {
                answer.extend(rest(&mut cut.client, 1));
            }
            assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
            assert_eq!(answer.len(), head(&answer) + 300);
        }
        count += 1;
    }
    assert_eq!(counted(&adopters), (count, 0));
}

#[test]
fn idle_client_is_adopted_after_second_death() {
    let Some(rack) = Rack::new() else { return };
    std::fs::write(rack.www.path().join("a.bin"), object("a", SIZE)).unwrap();
    let _nginx = rack.nginx();
    let full = kept_open(&fetch(&rack.r2, GET));
    let mut cut = cut(&rack, GET, &full, full.len(), false);
    // Each replica has its own clock, and sends nothing while the client has everything.
    let mut record = cut.record;
    for _ in 0..2 {
        let (place, now) = (rack.probe(&record), now_ms());
        let connection = wake::connection(&record, &place, now);
        record = record.taken_over(&connection, now);
    }
    let (adopters, _ends) = rack.adopters(PATIENCE);
    rack.adopt(&adopters, record);
    cut.client.write_all(GET.as_bytes()).unwrap();
    assert!(rest(&mut cut.client, full.len()).ends_with(&object("a", SIZE)));
}

#[test]
fn pipelined_requests_of_the_record_are_answered() {
    let Some(rack) = Rack::new() else { return };
    std::fs::write(rack.www.path().join("a.bin"), object("a", SIZE)).unwrap();
    std::fs::write(rack.www.path().join("b.bin"), object("b", 300)).unwrap();
    let _nginx = rack.nginx();
    let (adopters, _ends) = rack.adopters(PATIENCE);
    let a = kept_open(&fetch(&rack.r2, GET));
    let missing = "GET /none HTTP/1.1\r\nHost: h\r\n\r\n";
    let gone = kept_open(&fetch(&rack.r2, missing));
    let part = "GET /a.bin HTTP/1.1\r\nHost: h\r\nRange: bytes=500-60499\r\n\r\n";
    let parted = kept_open(&fetch(&rack.r2, part));
    assert!(parted.starts_with(b"HTTP/1.1 206 ") && parted.ends_with(&object("a", SIZE)[500..60_500]));
    let ask = "HEAD /a.bin HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let told = fetch(&rack.r2, &ask.replace("Connection: close\r\n", ""));
    let all = [GET, part, missing, ask].concat();
    let want = [&a[..], &parted, &gone, &told].concat();
    // The client is in each of three answers; the first replica knew another number of requests.
    for (known, had) in [
        (&a[..], 1000),
        (&[&a[..], &parted].concat(), 1000),
        (&[&a[..], &parted].concat(), a.len() + 1000),
        (&[&a[..], &parted, &gone].concat(), a.len() + 1000),
        (&[&a[..], &parted, &gone].concat(), a.len() + parted.len() + 10),
        (&want, a.len() + 1000),
        (&want, want.len() - 10),
        (&want, want.len()),
        (&[], 0),
    ] {
        let mut cut = cut(&rack, &all, known, had, false);
        let place = rack.adopt(&adopters, cut.record);
        assert_eq!(place.ack.wrapping_sub(cut.start), had as u32);
        let mut got = Vec::new();
        cut.client.read_to_end(&mut got).unwrap();
        // The bytes that the client lacks come from the second server, with another `Date`.
        assert_eq!(got.len(), want.len() - had, "{had}");
        let sure = known.len() - had;
        assert!(got[..sure] == known[had..], "{had}");
        for body in [&object("a", SIZE)[..], &object("a", SIZE)[500..60_500]] {
            let tail = &body[body.len() - 1000..];
            let count = |octets: &[u8]| octets.windows(1000).filter(|window| *window == tail).count();
            assert_eq!(count(&got), count(&want[had..]), "{had}");
        }
    }
    assert_eq!(counted(&adopters), (9, 0));
}

#[test]
fn half_closed_client_gets_everything_and_fin() {
    let Some(rack) = Rack::new() else { return };
    std::fs::write(rack.www.path().join("a.bin"), object("a", SIZE)).unwrap();
    let _nginx = rack.nginx();
    let (adopters, ends) = rack.adopters(PATIENCE);
    let full = kept_open(&fetch(&rack.r2, GET));
    for had in [3000, full.len()] {
        let mut cut = cut(&rack, GET, &full, had, true);
        rack.adopt(&adopters, cut.record);
        let mut got = Vec::new();
        cut.client.read_to_end(&mut got).unwrap();
        assert!(got == full[had..]);
        assert!(matches!(ends.recv_timeout(PATIENCE).unwrap().1, Outcome::Over));
    }
}

#[test]
fn changed_object_resets_the_client() {
    let Some(rack) = Rack::new() else { return };
    let file = rack.www.path().join("a.bin");
    std::fs::write(&file, object("a", SIZE)).unwrap();
    let nginx = rack.nginx();
    let (adopters, ends) = rack.adopters(Duration::from_millis(200));
    let full = fetch(&rack.r2, GET);
    let size = head(&full);
    let length = |n: usize| format!("Content-Length: {n}");
    let mut wrong = full.clone();
    wrong[size + 7] ^= 1;
    let (etag, coding) = ("ETag: \"", "Connection: close");
    let mut count = 0;
    let mut refuses = |rack: &Rack, request: &str, known: &[u8], had: usize, want: Refusal| {
        count += 1;
        refused(rack, &adopters, &ends, cut(rack, request, known, had, false), want, count);
    };
    let other = replaced(&full, etag, "ETag: \"x");
    // The client has a part of the head, or of the body.
    for had in [10, size + 5000] {
        refuses(&rack, GET, &other, had, Refusal::Tag);
        let longer = replaced(&full, &length(SIZE), &length(SIZE + 1));
        refuses(&rack, GET, &longer, had, Refusal::Length);
        let shorter = replaced(&full, &length(SIZE), &length(SIZE - 1));
        refuses(&rack, GET, &shorter, had, Refusal::Length);
        let coded = replaced(&full, coding, "Connection: close\r\nContent-Encoding: br");
        refuses(&rack, GET, &coded, had, Refusal::Coding);
        refuses(&rack, GET, &wrong, had, Refusal::Content);
        refuses(&rack, &GET.replace("a.bin", "none"), &full, had, Refusal::Status(404));
    }
    // The file changes, and with it the entity tag.
    std::fs::write(&file, object("a", SIZE + 5)).unwrap();
    refuses(&rack, GET, &full, size + 5000, Refusal::Tag);
    assert!(nginx.stop().success());
    refuses(&rack, GET, &full, size + 5000, Refusal::Unreachable);
}

#[test]
fn object_longer_than_sequence_space_resumes() {
    let Some(rack) = Rack::new() else { return };
    let length: u64 = 5 << 30;
    let file = std::fs::File::create(rack.www.path().join("a.bin")).unwrap();
    file.set_len(length).unwrap();
    let tail = object("tail", 20_000);
    std::os::unix::fs::FileExt::write_all_at(&file, &tail, length - 20_000).unwrap();
    let _nginx = rack.nginx();
    let (adopters, _ends) = rack.adopters(PATIENCE);
    let text = fetch(&rack.r2, &GET.replace("GET", "HEAD"));
    let head = kept_open(&text);
    let mut cut = cut(&rack, GET, &[], 0, false);
    // The record describes a response of which the client has all but the last part.
    let whole = head.len() as u64 + length;
    let mut record = cut.record;
    record.response_at = cut.start.wrapping_sub((whole - 20_000) as u32);
    let check = (4000, crc32c::crc32c(&[0; 4000]));
    let body = Body::Object { request: GET.as_bytes().to_vec(), head, check, digest: None };
    record.responses = vec![Response { length: whole, passed: whole, close: false, body }];
    (record.request_at, record.requests) = (record.acknowledged(), Vec::new());
    record = Record::decode(&record.encode()).unwrap();
    rack.adopt(&adopters, record);
    assert!(rest(&mut cut.client, 20_000) == tail);
    assert_eq!(counted(&adopters), (1, 0));
}

#[test]
fn restarted_server_serves_the_rest() {
    let Some(rack) = Rack::new() else { return };
    let size = 30 << 20;
    std::fs::write(rack.www.path().join("a.bin"), object("a", size)).unwrap();
    let nginx = rack.nginx();
    let full = kept_open(&fetch(&rack.r2, GET));
    let (adopters, _ends) = rack.adopters(PATIENCE);
    let mut cut = cut(&rack, GET, &full, 2000, false);
    rack.adopt(&adopters, cut.record);
    let mut got = rest(&mut cut.client, 1 << 20);
    // kill -9 in the middle of the response, while the client's window is full.
    drop(nginx);
    got.append(&mut rest(&mut cut.client, 1 << 20));
    let _nginx = rack.nginx();
    got.append(&mut rest(&mut cut.client, full.len() - 2000 - (2 << 20)));
    assert!(got == full[2000..]);
    assert_eq!(counted(&adopters), (1, 0));
}

#[test]
fn clients_without_timestamps_are_adopted_too() {
    let Some(rack) = Rack::new() else { return };
    rack.client.run("sysctl -qw net.ipv4.tcp_timestamps=0 net.ipv4.tcp_sack=0 net.ipv4.tcp_window_scaling=0");
    std::fs::write(rack.www.path().join("a.bin"), object("a", SIZE)).unwrap();
    let _nginx = rack.nginx();
    let (adopters, _ends) = rack.adopters(PATIENCE);
    let full = kept_open(&fetch(&rack.r2, GET));
    let mut cut = cut(&rack, GET, &full, 5000, false);
    let handshake = cut.record.handshake;
    assert_eq!((handshake.timestamp, handshake.sack, handshake.scales), (None, false, None));
    rack.adopt(&adopters, cut.record);
    assert!(rest(&mut cut.client, full.len() - 5000) == full[5000..]);
}

/// The request for this many generated bytes.
fn inputs(octets: usize, how: &str) -> String {
    format!("GET /{octets}/inputs{how} HTTP/1.1\r\nHost: h\r\n\r\n")
}

#[test]
fn regenerated_response_continues_at_the_clients_byte() {
    let Some(rack) = Rack::new() else { return };
    let _server = generate(&rack.r2, "0.0.0.0:80");
    let (adopters, _ends) = rack.adopters(PATIENCE);
    let mut count = 0;
    for how in ["", "?chunked"] {
        let asked = inputs(SIZE, how);
        let full = fetch(&rack.r2, &asked);
        let size = head(&full);
        // `seen`: bytes in the first replica's record; `had`: bytes that the client has.
        for (seen, had) in [
            (size, 0),
            (size, size),
            (size + 3000, 10),
            (size + 3000, size + 3000),
            (size + 50_000, size + 20_000),
            (full.len() - 1, full.len() - 1),
            (full.len(), size + 70_000),
            (full.len(), full.len()),
        ] {
            let mut cut = cut(&rack, &asked, &full[..seen], had, false);
            let place = rack.adopt(&adopters, cut.record);
            assert_eq!(place.ack.wrapping_sub(cut.start), had as u32);
            assert!(rest(&mut cut.client, full.len() - had) == full[had..], "{how} {seen} {had}");
            cut.client.write_all(b"GET /300/same HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            let next = fetch(&rack.r2, "GET /300/same HTTP/1.1\r\nHost: h\r\n\r\n");
            let answer = rest(&mut cut.client, next.len());
            assert!(answer[head(&answer)..] == next[head(&next)..], "{how} {seen} {had}");
            count += 1;
        }
    }
    assert_eq!(counted(&adopters), (count, 0));
}

#[test]
fn response_generated_differently_is_refused() {
    let Some(rack) = Rack::new() else { return };
    let _server = generate(&rack.r2, "0.0.0.0:80");
    let (adopters, ends) = rack.adopters(PATIENCE);
    let (length, number) = (format!("Content-Length: {SIZE}"), "X-TRODS: ");
    let asked = inputs(SIZE, "");
    let full = fetch(&rack.r2, &asked);
    let mut wrong = full.clone();
    wrong[head(&full) + 7000] ^= 1;
    let chunked = fetch(&rack.r2, &inputs(SIZE, "?chunked"));
    let more = |field: &str| replaced(&full, number, &format!("{field}\r\n{number}"));
    let mut count = 0;
    for (asked, known, want) in [
        (&asked, wrong, Refusal::Content),
        (&asked, replaced(&full, number, "X-TRODS: 1"), Refusal::Content),
        (&asked, replaced(&full, &length, &format!("Content-Length: {}", SIZE + 1)), Refusal::Length),
        (&asked, replaced(&full, "200 OK", "203 Other"), Refusal::Status(200)),
        (&asked, more("Content-Encoding: br"), Refusal::Coding),
        (&asked, more("Content-Type: text/plain"), Refusal::Coding),
        (&asked, more("ETag: W/\"x\""), Refusal::Tag),
        (&asked, more("Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT"), Refusal::Tag),
        // The first response was chunked; its record saw more chunks than the second one has.
        (&asked, chunked.clone(), Refusal::Length),
        (&inputs(SIZE / 2, "?chunked"), chunked, Refusal::Length),
    ] {
        for had in [10, head(&known) + 5000] {
            count += 1;
            let cut = cut(&rack, asked, &known[..head(&known) + 60_000], had, false);
            refused(&rack, &adopters, &ends, cut, want, count);
        }
    }
}

#[test]
fn restarted_server_regenerates_the_response() {
    let Some(rack) = Rack::new() else { return };
    for how in ["", "?chunked"] {
        let server = generate(&rack.r2, "0.0.0.0:80");
        let asked = inputs(30 << 20, how);
        let full = fetch(&rack.r2, &asked);
        // The longer patience covers the start of the interpreter on a busy machine.
        let (adopters, _ends) = rack.adopters(10 * PATIENCE);
        let mut cut = cut(&rack, &asked, &full[..9000], 2000, false);
        rack.adopt(&adopters, cut.record);
        let mut got = rest(&mut cut.client, 1 << 20);
        // kill -9 in the middle of the response: the client's window has no room for all of it.
        drop(server);
        let _server = generate(&rack.r2, "0.0.0.0:80");
        got.append(&mut rest(&mut cut.client, full.len() - 2000 - (1 << 20)));
        assert!(got == full[2000..], "{how}");
        assert_eq!(counted(&adopters), (1, 0));
    }
}

/// Serves one connection with `serve` instead of nginx.
fn serve_one(rack: &Rack, serve: impl FnOnce(TcpStream) + Send + 'static) -> std::thread::JoinHandle<()> {
    let listener = in_netns(Some(rack.r2.name()), || TcpListener::bind("127.0.0.1:80")).unwrap().unwrap();
    std::thread::spawn(move || serve(listener.accept().unwrap().0))
}

/// The request's body contains a complete request line, and the server dies after it has read a
/// part of the body. The rest must not reach the next server, which would execute it as a request.
#[test]
fn post_with_dead_server_reaches_no_other_server() {
    let Some(rack) = Rack::new() else { return };
    let full = answer_of_stopped_nginx(&rack);
    for first in [1, 60, 4000] {
        let (adopters, ends) = rack.adopters(PATIENCE);
        let mut cut = cut(&rack, GET, &full, full.len(), false);
        rack.adopt(&adopters, cut.record);
        let served = serve_one(&rack, move |mut server| {
            server.read_exact(&mut vec![0; first]).unwrap();
            // Linger 0: bytes that the server has not read are lost with its connection.
            set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
        });
        let hidden = "GET /executed HTTP/1.1\r\nHost: h\r\n\r\n".repeat(3000);
        let head = format!("POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", hidden.len());
        // The write may fail, because the client is reset while it sends.
        let said = cut.client.write_all((head + &hidden).as_bytes());
        served.join().unwrap();
        let next = in_netns(Some(rack.r2.name()), || TcpListener::bind("127.0.0.1:80")).unwrap().unwrap();
        let end = ends.recv_timeout(PATIENCE).unwrap().1;
        assert!(matches!(end, Outcome::Refused(Refusal::Interrupted)), "{first}: {end:?}");
        next.set_nonblocking(true).unwrap();
        let asked = next.accept();
        assert!(asked.is_err_and(|e| e.kind() == ErrorKind::WouldBlock), "another server was asked");
        let got = said.and_then(|()| cut.client.read(&mut [0; 1]).map(|_| ()));
        assert!(got.is_err_and(|e| matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)));
    }
}

/// A GET that no server answered changed nothing, so the next server gets it.
#[test]
fn get_with_dead_server_is_sent_to_the_next() {
    let Some(rack) = Rack::new() else { return };
    let full = answer_of_stopped_nginx(&rack);
    let (adopters, _ends) = rack.adopters(PATIENCE);
    let mut cut = cut(&rack, GET, &full, full.len(), false);
    rack.adopt(&adopters, cut.record);
    let served = serve_one(&rack, |mut server| server.read_exact(&mut vec![0; GET.len() + 5]).unwrap());
    cut.client.write_all([GET, &GET[..5]].concat().as_bytes()).unwrap();
    served.join().unwrap();
    let _nginx = rack.nginx();
    cut.client.write_all(&GET.as_bytes()[5..]).unwrap();
    let got = rest(&mut cut.client, 2 * full.len());
    assert!(got[..full.len()].ends_with(&object("a", SIZE)) && got.ends_with(&object("a", SIZE)));
}

/// nginx answers `gzip_static` with a strong entity tag, but does not serve ranges of it.
#[test]
fn answer_without_ranges_is_read_up_to_clients_byte() {
    let Some(rack) = Rack::new() else { return };
    let (size, asks) = (12 << 20, "Host: h\r\nAccept-Encoding: gzip\r\n\r\n");
    let get = GET.replace("Host: h\r\n\r\n", asks);
    for name in ["a.bin", "a.bin.gz"] {
        std::fs::write(rack.www.path().join(name), object(name, size)).unwrap();
    }
    let text = |text: &str| text.replace("sendfile on;", "sendfile on; gzip_static on;");
    let _nginx = nginx_with(&rack.r2, rack.folder.path(), rack.www.path(), text);
    let full = kept_open(&fetch(&rack.r2, &get));
    assert!(full.starts_with(b"HTTP/1.1 200 OK\r\n") && full.ends_with(&object("a.bin.gz", size)));
    let size = head(&full);
    for had in [10, size + 1, size + 5000, size + 200_000] {
        let (adopters, _ends) = rack.adopters(PATIENCE);
        let mut cut = cut(&rack, &get, &full, had, false);
        // In the first case the record's checksum covers no byte of the body.
        if had == 10
            && let Body::Object { check, .. } = &mut cut.record.responses[0].body
        {
            *check = (0, 0);
        }
        rack.adopt(&adopters, cut.record);
        assert!(rest(&mut cut.client, full.len() - had) == full[had..], "{had}");
        assert_eq!((counted(&adopters), adopters.counts().read_through), ((1, 0), 1), "{had}");
    }
}

/// An answer without a length: the end of the connection ends it.
fn answer_without_length() -> Vec<u8> {
    [&b"HTTP/1.0 200 OK\r\n\r\n"[..], &object("b", 300_000)].concat()
}

/// Sends [`answer_without_length`] to one client, then calls `end` with the connection.
fn serve_without_length(
    rack: &Rack,
    end: impl FnOnce(TcpStream) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    serve_one(rack, move |mut server| {
        server.read_exact(&mut vec![0; GET.len()]).unwrap();
        server.write_all(&answer_without_length()).unwrap();
        end(server);
    })
}

/// If a FIN followed an answer without a length, the cut answer would look complete.
#[test]
fn server_reset_in_answer_resets_the_client() {
    let Some(rack) = Rack::new() else { return };
    let full = answer_of_stopped_nginx(&rack);
    let part = answer_without_length();
    for is_reset in [false, true] {
        let (adopters, ends) = rack.adopters(PATIENCE);
        let mut cut = cut(&rack, GET, &full, full.len(), false);
        rack.adopt(&adopters, cut.record);
        let served = serve_without_length(&rack, move |server| {
            // The client must get these bytes before the reset.
            eventually("it was taken", || unacknowledged(&server).unwrap() == 0);
            if is_reset {
                set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
            }
        });
        cut.client.write_all(GET.as_bytes()).unwrap();
        let got = rest(&mut cut.client, part.len());
        served.join().unwrap();
        assert!(got == part, "all that came before");
        let end = cut.client.read(&mut [0; 1]);
        if is_reset {
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
            assert!(matches!(ends.recv_timeout(PATIENCE).unwrap().1, Outcome::Refused(Refusal::Cut)));
        } else {
            assert_eq!(end.unwrap(), 0);
        }
    }
}

/// The server stops in the middle of an answer without a length, or gets no request.
#[test]
fn idle_connection_is_reset_in_an_answer_and_closed_otherwise() {
    let Some(rack) = Rack::new() else { return };
    let full = answer_of_stopped_nginx(&rack);
    let part = answer_without_length();
    for is_answering in [false, true] {
        let (adopters, ends) = rack.adopters_with(PATIENCE, Duration::from_millis(500));
        let mut cut = cut(&rack, GET, &full, full.len(), false);
        rack.adopt(&adopters, cut.record);
        if !is_answering {
            assert!(matches!(ends.recv_timeout(PATIENCE).unwrap().1, Outcome::Idle));
            assert_eq!(cut.client.read(&mut [0; 1]).unwrap(), 0);
            continue;
        }
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let served = serve_without_length(&rack, move |server| {
            // Keeps the connection open until the client's FIN was seen.
            let _ = is_done.recv();
            drop(server);
        });
        cut.client.write_all(GET.as_bytes()).unwrap();
        assert!(rest(&mut cut.client, part.len()) == part, "all that came before");
        let end = cut.client.read(&mut [0; 1]);
        drop(done);
        served.join().unwrap();
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert!(matches!(ends.recv_timeout(PATIENCE).unwrap().1, Outcome::Refused(Refusal::Idle)));
    }
}
