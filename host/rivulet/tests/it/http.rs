//! HTTP beside nginx: the same octets to both, and what each says. Where they differ, the RFC's clause stands beside it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rivulet_cli::http::{Limits, Objects, Site, Uploads};
use rivulet_cli::serve::plain::listen;

use rivulet_pktio::testing::Process;

/// A request; what `rivulet serve` says; what nginx says if that differs, and the clause by which ours is right too.
type Row = (&'static str, &'static str, Option<(&'static str, &'static str)>);

/// In a request: here the client waits for the head of an answer before it goes on.
const WAIT: char = '\u{1}';
/// Behind every request: shows whether the connection went on, and where.
const LAST: &str = "GET /end.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

const ROWS: &[Row] = &[
    // HTTP/1.0 and persistence, as `ab -k` has it.
    (
        "GET /ten.txt HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: h\r\nUser-Agent: ApacheBench/2.3\r\n\r\n",
        "200 0123456789, 200 end",
        None,
    ),
    ("GET /ten.txt HTTP/1.0\r\nHost: h\r\nConnection: Keep-Alive\r\n\r\n", "200 0123456789, 200 end", None),
    ("GET /ten.txt HTTP/1.0\r\nHost: h\r\n\r\n", "200 0123456789", None),
    ("GET /ten.txt HTTP/1.0\r\n\r\n", "200 0123456789", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "200 0123456789", None),
    ("GET /ten.txt HTTP/1.1\r\n\r\n", "400", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "400", None),
    ("GET /ten.txt HTTP/1.2\r\nHost: h\r\n\r\n", "200 0123456789, 200 end", None),
    ("GET /ten.txt HTTP/2.0\r\nHost: h\r\n\r\n", "505", None),
    // A body where none is wanted.
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nGET /", "200 0123456789, 200 end", None),
    ("HEAD /ten.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nGET /", "200, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "200 0123456789, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n", "413", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nGET /", "400", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nGET /", "400", None),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "411",
        Some((
            "200 0123456789, 200 end",
            "RFC 9112 section 6.3: a body without Content-Length may be refused with 411",
        )),
    ),
    // Uploads.
    ("PUT /new HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", "201, 200 end", None),
    (
        "PUT /chunks HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        "411",
        Some(("201, 200 end", "RFC 9112 section 6.3: a body without Content-Length may be refused with 411")),
    ),
    ("PUT /coded HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", "501", None),
    (
        "PUT /both HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        "400",
        None,
    ),
    ("PUT /old HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400", None),
    (
        "PUT /none HTTP/1.1\r\nHost: h\r\n\r\n",
        "411",
        Some(("500", "RFC 9110 section 15.5.12: a length is wanted")),
    ),
    // Expectations.
    (
        "PUT /later HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n\u{1}abc",
        "100, 201, 200 end",
        None,
    ),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n\u{1}abc",
        "100, 200 0123456789, 200 end",
        None,
    ),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n",
        "200 0123456789, 200 end",
        Some(("100, 200 0123456789, 200 end", "RFC 9110 section 10.1.1: the final answer is good enough")),
    ),
    ("PUT /new HTTP/1.0\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabc", "204", None),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nExpect: gifts\r\n\r\n",
        "417",
        Some((
            "200 0123456789, 200 end",
            "RFC 9110 section 10.1.1: what cannot be met may be refused with 417",
        )),
    ),
    // Ranges.
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=2-4\r\n\r\n", "206 2-4/10 234, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=7-\r\n\r\n", "206 7-9/10 789, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=-2\r\n\r\n", "206 8-9/10 89, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=5-99\r\n\r\n", "206 5-9/10 56789, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=-99\r\n\r\n", "206 0-9/10 0123456789, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=10-\r\n\r\n", "416 */10, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=-0\r\n\r\n", "416 */10, 200 end", None),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=4-2\r\n\r\n",
        "200 0123456789, 200 end",
        Some(("416 */10, 200 end", "RFC 9110 section 14.2: an invalid Range may be ignored")),
    ),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=-\r\n\r\n",
        "200 0123456789, 200 end",
        Some(("416 */10, 200 end", "RFC 9110 section 14.2: an invalid Range may be ignored")),
    ),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=x\r\n\r\n",
        "200 0123456789, 200 end",
        Some(("416 */10, 200 end", "RFC 9110 section 14.2: an invalid Range may be ignored")),
    ),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: lines=1-2\r\n\r\n", "200 0123456789, 200 end", None),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=8-99999999999999999999\r\n\r\n",
        "206 8-9/10 89, 200 end",
        Some(("416 */10, 200 end", "RFC 9110 section 14.1.2: beyond the end is the end")),
    ),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=0-0,2-3\r\n\r\n",
        "200 0123456789, 200 end",
        Some(("206 multipart, 200 end", "RFC 9110 section 14.2: Range may be ignored")),
    ),
    (
        "HEAD /ten.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=2-4\r\n\r\n",
        "200, 200 end",
        Some(("206 2-4/10, 200 end", "RFC 9110 section 14.2: Range is ignored with other methods than GET")),
    ),
    (
        "GET /empty.txt HTTP/1.1\r\nHost: h\r\nRange: bytes=0-\r\n\r\n",
        "416 */0, 200 end",
        Some(("200, 200 end", "RFC 9110 section 15.5.17: nothing of it is there")),
    ),
    // Targets.
    ("GET http://h/ten.txt HTTP/1.1\r\nHost: h\r\n\r\n", "200 0123456789, 200 end", None),
    ("GET HTTP://other:8080/ten.txt?x HTTP/1.1\r\nHost: h\r\n\r\n", "200 0123456789, 200 end", None),
    ("GET http://h?/ten.txt HTTP/1.1\r\nHost: h\r\n\r\n", "200 index, 200 end", None),
    ("GET ten.txt HTTP/1.1\r\nHost: h\r\n\r\n", "400", None),
    ("GET * HTTP/1.1\r\nHost: h\r\n\r\n", "400", None),
    (
        "OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
        "204, 200 end",
        Some(("400", "RFC 9110 section 9.3.7: the server as a whole")),
    ),
    ("GET /ten.txt?a=/b#c HTTP/1.1\r\nHost: h\r\n\r\n", "200 0123456789, 200 end", None),
    // Lines.
    ("GET /ten.txt HTTP/1.1\nHost: h\n\n", "200 0123456789, 200 end", None),
    ("\r\n\r\nGET /ten.txt HTTP/1.1\r\nHost: h\r\n\r\n", "200 0123456789, 200 end", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", "400", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: h\r\n folded: b\r\n\r\n", "400", None),
    ("GET /ten.txt HTTP/1.1\r\nHost : h\r\n\r\n", "400", None),
    ("GET /ten.txt HTTP/1.1\r\nHost: a\rb\r\n\r\n", "400", None),
    (
        "GET /ten.txt\r\n\r\n",
        "400",
        Some(("0123456789", "RFC 9112 section 3: a request has a version; nginx speaks HTTP/0.9")),
    ),
    (
        "GET  /ten.txt HTTP/1.1\r\nHost: h\r\n\r\n",
        "400",
        Some(("200 0123456789, 200 end", "RFC 9112 section 3: one space")),
    ),
    (
        "get /ten.txt HTTP/1.1\r\nHost: h\r\n\r\n",
        "501",
        Some(("400", "RFC 9110 section 9.1: methods know case, and one that is not known is 501")),
    ),
    // Pipelines.
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\n\r\nHEAD /ten.txt HTTP/1.1\r\nHost: h\r\n\r\nGET /none HTTP/1.1\r\nHost: h\r\n\r\n",
        "200 0123456789, 200, 404, 200 end",
        None,
    ),
    (
        "GET /ten.txt HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxyGET /empty.txt HTTP/1.1\r\nHost: h\r\n\r\n",
        "200 0123456789, 200, 200 end",
        None,
    ),
];

/// What a server says to a row, in short: status, range and, of what succeeded, the body of each answer.
fn said(stream: &mut (impl Read + Write), request: &str) -> String {
    let mut all = Vec::new();
    let mut block = [0; 4096];
    let mut parts = request.split(WAIT).peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        // A server that has closed is told by what it said.
        let _ = stream.write_all(part.as_bytes());
        if last {
            let _ = stream.write_all(LAST.as_bytes());
        }
        while last || !all.windows(4).any(|w| w == b"\r\n\r\n") {
            match stream.read(&mut block) {
                Ok(0) | Err(_) => break,
                Ok(n) => all.extend_from_slice(&block[..n]),
            }
        }
    }
    let text = String::from_utf8(all).unwrap();
    let mut rest = text.as_str();
    let mut answers = Vec::new();
    while let Some((head, behind)) = rest.split_once("\r\n\r\n") {
        let field = |name: &str| {
            head.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix(name).map(|v| v.trim().to_owned()))
        };
        let status = head.split(' ').nth(1).unwrap_or("none");
        let length = field("content-length:").map_or(0, |l| l.parse().unwrap());
        let bare =
            matches!(status, "100" | "204" | "304") || behind.is_empty() || behind.starts_with("HTTP/1.1 ");
        let length = if bare { 0 } else { length };
        let mut answer = status.to_owned();
        if let Some(range) = field("content-range:") {
            answer += &format!(" {}", range.trim_start_matches("bytes "));
        }
        if field("content-type:").is_some_and(|kind| kind.starts_with("multipart/")) {
            answer += " multipart";
        } else if status.starts_with('2') && length > 0 {
            answer += &format!(" {}", &behind[..length]);
        }
        answers.push(answer);
        rest = &behind[length..];
    }
    if !rest.is_empty() {
        answers.push(rest.to_owned());
    }
    answers.join(", ")
}

fn store(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for (name, content) in
        [("ten.txt", "0123456789"), ("empty.txt", ""), ("end.txt", "end"), ("index.html", "index")]
    {
        fs::write(dir.join(name), content).unwrap();
    }
}

fn nginx(dir: &Path) -> Process {
    let path = dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {path}/{what};\n"))
        .concat();
    let text = format!(
        "daemon off; master_process off; pid {path}/pid; error_log {path}/log;\nevents {{}}\nhttp {{\n{temporary}\
         access_log off; default_type text/plain;\nserver {{ listen unix:{path}/socket; root {path}/www;\n\
         location / {{ dav_methods PUT; }} }}\n}}\n"
    );
    fs::write(dir.join("conf"), text).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-p").arg(dir).arg("-c").arg(dir.join("conf")).arg("-e").arg(dir.join("log"));
    let process = Process(command.stderr(Stdio::null()).spawn().expect("nginx (scripts/setup.sh --test)"));
    let patience = Instant::now() + Duration::from_secs(20);
    while UnixStream::connect(dir.join("socket")).is_err() {
        assert!(Instant::now() < patience, "{}", fs::read_to_string(dir.join("log")).unwrap_or_default());
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

#[test]
fn every_form_of_a_request_beside_nginx() {
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    store(&ours.path().join("www"));
    store(&theirs.path().join("www"));
    let www = ours.path().join("www");
    let uploads = Some(Uploads::open(&www, Limits::default()).unwrap());
    let site = Site { objects: Objects::open(&www).unwrap(), uploads };
    let address = listen("127.0.0.1:0".parse().unwrap(), site).unwrap();
    let _nginx = nginx(theirs.path());
    let mut wrong = Vec::new();
    for (request, want, differs) in ROWS {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(PATIENCE).unwrap();
        let us = said(&mut stream, request);
        let mut stream = UnixStream::connect(theirs.path().join("socket")).unwrap();
        stream.set_read_timeout(PATIENCE).unwrap();
        let nginx = said(&mut stream, request);
        let (nginx_want, clause) = differs.unwrap_or((want, ""));
        if us != *want
            || nginx != nginx_want
            || (differs.is_some() && (nginx_want == *want || clause.is_empty()))
        {
            wrong.push(format!("{request:?}\n  want {want:?}\n  ours {us:?}\n nginx {nginx:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), ROWS.len(), wrong.join("\n"));
}
