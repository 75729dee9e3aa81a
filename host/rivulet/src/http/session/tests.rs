use super::*;
use crate::http::Limits;
use proptest::prelude::*;

fn input(data: &[u8], offset: usize, fin: bool) -> Input<'_> {
    let client = IpAddr::from([10, 0, 0, 1]);
    Input { connection: 5, client, stream: 0, offset: offset as u64, data, fin }
}

fn store() -> (tempfile::TempDir, Site) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), "aaaa").unwrap();
    std::fs::write(dir.path().join("b"), "bb").unwrap();
    let objects = Objects::open(dir.path()).unwrap();
    let uploads = Some(Uploads::open(dir.path(), Limits::default()).unwrap());
    (dir, Site { objects, uploads })
}

fn output(promises: &[Promise], site: &Site) -> Vec<u8> {
    let mut all = Vec::new();
    for promise in promises {
        assert_eq!(promise.start, all.len() as u64, "no gap");
        let answer = Answer::decode(&promise.answer).unwrap();
        let mut out = vec![0; (promise.end - promise.start) as usize];
        answer.read(0, &mut out, &site.objects).unwrap();
        all.extend(out);
    }
    all
}

const PIPELINE: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nGET / HTTHEAD /b HTTP/1.1\r\nHost: h\r\n\r\n\
        GET /none HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /a HTTP/1.1\r\n";

proptest! {
    /// Pipelined requests that are cut anywhere, with the state in a continuation between any two
    /// packets and at most `limit` promises each, give the output of one piece.
    #[test]
    fn pipelines_do_not_depend_on_packets(size in 1usize..200, limit in 1usize..4) {
        let (_dir, site) = store();
        let mut whole = Vec::new();
        let mut session = Session::new(0);
        session.feed(&input(PIPELINE, 0, true), &site, 9, 100, &mut whole);
        prop_assert_eq!(whole.len(), 4);
        prop_assert!(session.closed, "Connection: close");

        let (mut promises, mut at, mut sent) = (Vec::new(), 0, 0);
        let mut state = Vec::new();
        Session::new(0).encode(&mut state);
        while at < PIPELINE.len() {
            let mut session = Session::decode(&state).unwrap();
            // Bytes that were not consumed are passed again, with more after them.
            sent = (sent + size).min(PIPELINE.len());
            let mut now = Vec::new();
            let piece = input(&PIPELINE[at..sent], at, sent == PIPELINE.len());
            let progress = session.feed(&piece, &site, 9, limit, &mut now);
            prop_assert!(now.len() <= limit);
            at += progress.consumed;
            promises.extend(now);
            state.clear();
            session.encode(&mut state);
        }
        prop_assert_eq!(output(&promises, &site), output(&whole, &site));
    }
}

#[test]
fn finished_input_closes_after_complete_requests() {
    let (_dir, site) = store();
    let mut session = Session::new(0);
    let mut promises = Vec::new();
    let text = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET";
    let progress = session.feed(&input(text, 0, true), &site, 0, 9, &mut promises);
    assert_eq!((progress.consumed, promises.len(), session.closed), (31, 1, true));
}

#[test]
fn request_waits_while_content_is_hashed() {
    let (dir, mut site) = store();
    site.objects = site.objects.for_thread().patient_for(std::time::Duration::ZERO);
    std::fs::write(dir.path().join("long"), vec![1; 3 << 20]).unwrap();
    let text = b"GET /long HTTP/1.1\r\nHost: h\r\n\r\n";
    let mut session = Session::new(0);
    let mut promises = Vec::new();
    let first = session.feed(&input(text, 0, false), &site, 0, 9, &mut promises);
    assert_eq!((first.consumed, first.waiting), (0, true));
    for _ in 0..3000 {
        let next = session.feed(&input(text, 0, false), &site, 0, 9, &mut promises);
        if !next.waiting {
            assert_eq!((next.consumed, promises.len()), (text.len(), 1));
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("never hashed");
}

/// The packets of an upload arrive in reverse order and twice, each with the continuation from
/// after the head; then another request follows on the connection.
#[test]
fn upload_is_read_in_any_packet_order() {
    let (dir, site) = store();
    let head = b"PUT /new/file HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n";
    let body: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
    let mut session = Session::new(0);
    let mut promises = Vec::new();
    let progress = session.feed(&input(head, 0, false), &site, 3, 9, &mut promises);
    assert_eq!((progress.consumed, progress.goes_on), (head.len(), head.len() as u64));
    assert_eq!(output(&promises, &site), b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(session.good_for(0), (head.len() as u64, head.len() as u64 + 999));
    let mut state = Vec::new();
    session.encode(&mut state);

    let mut answers = Vec::new();
    for n in [9, 5, 5, 8, 7, 6, 4, 3, 2, 1, 0, 9, 0] {
        let mut session = Session::decode(&state).unwrap();
        let mut promises = Vec::new();
        let mut piece = body[n * 100..n * 100 + 100].to_vec();
        if n == 9 {
            piece.extend_from_slice(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        }
        let progress = session.feed(&input(&piece, head.len() + n * 100, false), &site, 3, 9, &mut promises);
        let whole = dir.path().join("new/file").exists();
        assert_eq!(promises.is_empty(), !whole, "piece {n}");
        if let Some(first) = promises.first() {
            answers.push(first.answer.clone());
            assert!(progress.goes_on >= (head.len() + 1000) as u64);
        }
        if n == 9 && whole {
            assert_eq!(promises.len(), 2, "the request behind the body");
        }
    }
    assert_eq!(std::fs::read(dir.path().join("new/file")).unwrap(), body);
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|a| *a == answers[0]), "whoever asks gets the same answer");
}
