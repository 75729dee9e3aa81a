//! Tests of answers: their heads, ranges, encoding, and reading by pieces.

use super::*;
use crate::http::{Fed, Head, Marks};
use proptest::prelude::*;

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn store() -> (tempfile::TempDir, Objects) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("ten.txt"), "0123456789").unwrap();
    std::fs::write(dir.path().join("big.bin"), vec![9; 300_000]).unwrap();
    std::fs::write(dir.path().join("empty"), "").unwrap();
    std::fs::create_dir(dir.path().join("a b")).unwrap();
    std::fs::create_dir_all(dir.path().join("loop/index.html")).unwrap();
    std::fs::write(dir.path().join("a b/index.html"), "<p>").unwrap();
    let objects = Objects::open(dir.path()).unwrap();
    (dir, objects)
}

fn request(line: &str, headers: &str) -> Request {
    match Head::default().feed(format!("{line} HTTP/1.1\r\nHost: h\r\n{headers}\r\n").as_bytes()) {
        Fed::Done(_, request) => request,
        more => panic!("{more:?}"),
    }
}

fn response(objects: &Objects, line: &str, headers: &str) -> String {
    let request = request(line, headers);
    let answer = Answer::new(&request, objects, CLIENT, 0).unwrap();
    let mut out = vec![0; answer.len() as usize];
    answer.read(0, &mut out, objects).unwrap();
    String::from_utf8_lossy(&out).into_owned()
}

#[test]
fn requests_get_their_status_headers_and_body() {
    let (_dir, objects) = store();
    let etag = response(&objects, "GET /ten.txt", "");
    let etag = etag.lines().find_map(|l| l.strip_prefix("ETag: ")).unwrap().to_owned();
    let cases = [
        ("GET /ten.txt", String::new(), "200 OK", "Content-Length: 10", "0123456789"),
        ("HEAD /ten.txt", String::new(), "200 OK", "Content-Length: 10", ""),
        ("GET /ten.txt", "Range: bytes=2-3\r\n".into(), "206", "Content-Range: bytes 2-3/10", "23"),
        ("GET /ten.txt", "Range: bytes=-1\r\n".into(), "206", "Content-Range: bytes 9-9/10", "9"),
        (
            "GET /ten.txt",
            "Range: bytes=10-\r\n".into(),
            "416",
            "Content-Range: bytes */10",
            "416 range not satisfiable\n",
        ),
        ("GET /ten.txt", format!("If-None-Match: {etag}\r\n"), "304", "ETag", ""),
        ("GET /ten.txt", format!("If-Range: {etag}\r\nRange: bytes=0-0\r\n"), "206", "bytes 0-0/10", "0"),
        ("GET /ten.txt", "If-Range: \"x\"\r\nRange: bytes=0-0\r\n".into(), "200", "text/plain", "0123456789"),
        ("GET /empty", String::new(), "200", "Content-Length: 0", ""),
        ("GET /none", String::new(), "404", "Content-Length: 14", "404 not found\n"),
        ("GET /a%20b", String::new(), "301", "Location: /a%20b/\r\n", "moved permanently\n"),
        ("GET //a%20b?x=%20&y", String::new(), "301", "Location: /a%20b/?x=%20&y\r\n", "moved permanently\n"),
        ("GET /loop/", String::new(), "301", "Location: /loop/index.html/\r\n", "moved permanently\n"),
        ("GET /ten.txt", "If-Match: \"x\"\r\n".into(), "412", "ETag", "412 precondition failed\n"),
        ("GET /ten.txt", "If-Match: *\r\nRange: bytes=0-0\r\n".into(), "206", "ETag", "0"),
        ("GET /a%20b/", String::new(), "200", "text/html", "<p>"),
        ("PUT /x", "Content-Length: 0\r\n".into(), "405", "Allow: GET", "405 method not allowed\n"),
        ("BREW /x", String::new(), "501", "Connection: close", "501 not implemented\n"),
        ("OPTIONS *", String::new(), "204", "Allow: GET", ""),
    ];
    for (line, headers, status, header, body) in cases {
        let text = response(&objects, line, &headers);
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{line}: {text}");
        assert!(text.contains(header), "{line}: {text}");
        assert_eq!(text.split_once("\r\n\r\n").unwrap().1, body, "{line}");
    }
}

#[test]
fn content_of_another_hash_is_refused() {
    let (dir, objects) = store();
    let request = request("GET /ten.txt", "");
    let mut bytes = Vec::new();
    Answer::new(&request, &objects, CLIENT, 7).unwrap().encode(&mut bytes);
    std::fs::write(dir.path().join("ten.txt"), "9876543210").unwrap();
    let elsewhere = Objects::open(dir.path()).unwrap();
    let answer = Answer::decode(&bytes).unwrap();
    let mut out = [0; 1];
    assert_eq!(answer.read(answer.len() - 1, &mut out, &elsewhere), Err(ReadError::NotMine));
    assert_eq!(answer.read(answer.len(), &mut out, &elsewhere), Err(ReadError::Beyond));
}

proptest! {
    /// Any piece of an answer, decoded separately for each piece, equals that part of the
    /// whole.
    #[test]
    fn every_piece_is_part_of_the_whole(from in 0u64..301_000, len in 0usize..3000) {
        let (_dir, objects) = store();
        let request = request("GET /big.bin", "Range: bytes=100-\r\n");
        let answer = Answer::new(&request, &objects, CLIENT, 1_700_000_000).unwrap();
        let mut whole = vec![0; answer.len() as usize];
        answer.read(0, &mut whole, &objects).unwrap();
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        prop_assert!(bytes.len() <= MAX_ANSWER);
        let again = Answer::decode(&bytes).unwrap();
        prop_assert_eq!(again, answer);
        let mut piece = vec![0; len];
        let got = again.read(from, &mut piece, &objects);
        match whole.get(from as usize..from as usize + len) {
            Some(want) => prop_assert!(got.is_ok() && piece == want),
            None => prop_assert_eq!(got, Err(ReadError::Beyond)),
        }
    }

    #[test]
    fn any_octets_decode_or_are_refused(input in prop::collection::vec(any::<u8>(), 0..120)) {
        let (_dir, objects) = store();
        if let Ok(answer) = Answer::decode(&input) {
            let _ = answer.read(0, &mut [0; 50], &objects);
        }
    }
}

/// Pictures behind a byte for the fuzz target.
const FUZZED: &[u8] = include_bytes!("../../../../fuzz/corpus/watermark/colour_420");
const FUZZED_PROGRESSIVE: &[u8] = include_bytes!("../../../../fuzz/corpus/watermark/progressive");

#[test]
fn marked_answers_are_private_to_their_client() {
    let (dir, objects) = store();
    let (picture, progressive) = (&FUZZED[1..], &FUZZED_PROGRESSIVE[1..]);
    std::fs::create_dir(dir.path().join("marked")).unwrap();
    for (name, content) in [("in", picture), ("progressive", progressive), ("text", b"text")] {
        std::fs::write(dir.path().join("marked").join(name), content).unwrap();
    }
    std::fs::write(dir.path().join("outside"), picture).unwrap();
    let patience = Duration::from_secs(60);
    let objects = objects.for_thread().patient_for(patience).with_marks(Marks::new("marked", ""));
    // The picture has room for one letter.
    let other = IpAddr::from([20, 0, 0, 2]);
    let answer = |path: &str, client| {
        let request = request(&format!("GET /{path}"), "");
        let answer = Answer::new(&request, &objects, client, 0).unwrap();
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        assert_eq!(Answer::decode(&bytes).unwrap(), answer);
        let mut out = vec![0; answer.len() as usize];
        answer.read(0, &mut out, &objects).unwrap();
        let head = out.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        (String::from_utf8(out[..head].to_vec()).unwrap(), out[head..].to_vec(), bytes)
    };
    let ((mine, body, bytes), (others, body_of_other, _)) =
        (answer("marked/in", CLIENT), answer("marked/in", other));
    assert!(body != picture && body != body_of_other);
    assert!(mine.contains("\r\nCache-Control: private\r\n"), "{mine}");
    let tag = |head: &str| head.lines().find_map(|line| line.strip_prefix("ETag: ").map(str::to_owned));
    assert!(tag(&mine).is_some() && tag(&mine) != tag(&others), "{mine}{others}");
    for (path, content) in [("outside", picture), ("marked/text", b"text")] {
        let (head, body, bytes) = answer(path, CLIENT);
        assert!(body == content && !head.contains("Cache-Control"), "{head}");
        assert_eq!(bytes[0], VERSION, "replicas without marks can continue it");
    }
    assert!(answer("marked/progressive", CLIENT).0.starts_with("HTTP/1.1 500 "), "never without a mark");
    // A mark under the version of answers without one is refused.
    let renamed = [&[VERSION], &bytes[1..]].concat();
    assert_eq!((bytes[0], Answer::decode(&renamed)), (VERSION_MARKED, Err(Malformed)));
}
