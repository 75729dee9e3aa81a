//! HTTP beside nginx: the same bytes to the server of files and to nginx, and what each answers. The rows
//! stand in `tests/requests/`. Where nginx differs, the clause of the RFC by which ours is right stands beside it.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_cli::http::{Limits, Objects, Site, Uploads};
use rivulet_cli::serve::plain::listen;
use rivulet_pktio::testing::{Process, read_once};

use crate::rig::{Rig, url};

/// Requests that change nothing.
const REQUESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requests/requests.txt");
/// Requests that store something, in the order in which they are sent.
const UPLOADS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requests/uploads.txt");
/// Behind every request: shows whether the connection stays open, and where the next request begins.
const LAST: &[u8] = b"GET /end.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
/// A server that has not closed the connection after this is given up.
const PATIENCE: Duration = Duration::from_secs(20);
/// Rows at a time.
const THREADS: usize = 8;

/// A line of a table: a request, the answers of every server here, and those of nginx with a clause where they differ.
struct Row<'a> {
    text: &'a str,
    want: &'a str,
    nginx: &'a str,
    clause: &'a str,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    let row = |line| {
        let mut columns = str::split(line, '\t');
        let mut next = || columns.next().unwrap_or_default();
        let (text, want) = (next(), next());
        let (nginx, clause) = (next(), next());
        assert!(nginx.is_empty() == clause.is_empty(), "a difference has a clause: {line}");
        Row { text, want, nginx: if nginx.is_empty() { want } else { nginx }, clause }
    };
    lines.map(row).collect()
}

/// The bytes of a request, in parts: before each but the first, the client waits for the head of an answer. `METHOD target | field |
/// field` is a request of HTTP/1.1 with a `Host`; behind `raw ` stand the bytes themselves, with escapes, `\w` for a wait.
fn parts(text: &str, tag: &str) -> Vec<Vec<u8>> {
    let text = text.replace("{etag}", &format!("\"{tag}\"")).replace("{tag}", tag);
    let Some(raw) = text.strip_prefix("raw ") else {
        let mut fields = text.split(" | ");
        let line = fields.next().unwrap_or_default();
        let fields: String = fields.map(|field| format!("{field}\r\n")).collect();
        return vec![format!("{line} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes()];
    };
    let mut parts = vec![Vec::new()];
    let mut rest = raw.bytes();
    while let Some(b) = rest.next() {
        let byte = match (b, if b == b'\\' { rest.next() } else { None }) {
            (b'\\', Some(b'r')) => b'\r',
            (b'\\', Some(b'n')) => b'\n',
            (b'\\', Some(b't')) => b'\t',
            (b'\\', Some(b'x')) => {
                let digits = [rest.next(), rest.next()].map(|d| char::from(d.unwrap()).to_digit(16).unwrap());
                (digits[0] << 4 | digits[1]) as u8
            }
            (b'\\', Some(b'w')) => {
                parts.push(Vec::new());
                continue;
            }
            (b'\\', Some(other)) => other,
            (other, _) => other,
        };
        parts.last_mut().unwrap().push(byte);
    }
    parts
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// How connections to a server are made.
type Connect<'a> = dyn Fn() -> Box<dyn Duplex + Send> + Sync + 'a;

/// What a server answers to a request and to what follows it, in short: status, range or location and, of what succeeded, the
/// body of each answer.
fn said(mut stream: Box<dyn Duplex + Send>, parts: Vec<Vec<u8>>) -> String {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(talk(stream.as_mut(), &parts));
    });
    match receiver.recv_timeout(PATIENCE) {
        Ok(all) => summary(&all),
        Err(_) => "nothing in time".into(),
    }
}

fn talk(stream: &mut dyn Duplex, parts: &[Vec<u8>]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut block = [0; 4096];
    let mut parts = parts.iter().peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        let whole = if last { [part, LAST].concat() } else { part.clone() };
        // A server that has closed is known by its answer.
        let _ = stream.write_all(&whole);
        while last || !all.windows(4).any(|w| w == b"\r\n\r\n") {
            match read_once(stream, &mut block) {
                Ok(0) | Err(_) => break,
                Ok(n) => all.extend_from_slice(&block[..n]),
            }
        }
    }
    all
}

fn summary(all: &[u8]) -> String {
    let ascii = |b: &u8| char::from(if b.is_ascii() { *b } else { b'?' });
    let text: String = all.iter().map(ascii).collect();
    let mut rest = text.as_str();
    let mut answers = Vec::new();
    while let Some((head, behind)) = rest.split_once("\r\n\r\n") {
        let field = |name: &str| {
            head.lines().find_map(|l| {
                let (field, value) = l.split_once(':')?;
                field.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let status = head.split(' ').nth(1).unwrap_or("none");
        let length = field("content-length").map_or(0, |l| l.parse().unwrap());
        let bare =
            matches!(status, "100" | "204" | "304") || behind.is_empty() || behind.starts_with("HTTP/1.1 ");
        let length = if bare { 0 } else { length.min(behind.len()) };
        let mut answer = status.to_owned();
        if let Some(range) = field("content-range") {
            answer += &format!(" {}", range.trim_start_matches("bytes "));
        }
        if status.starts_with('3')
            && let Some(location) = field("location")
        {
            answer += &format!(" {location}");
        }
        if field("content-type").is_some_and(|kind| kind.starts_with("multipart/")) {
            answer += " multipart";
        } else if status.starts_with('2') && length > 0 {
            answer += &format!(" {}", &behind[..length]);
        }
        answers.push(answer);
        rest = &behind[length..];
    }
    if !rest.is_empty() {
        answers.push(rest.escape_default().to_string());
    }
    answers.join(", ")
}

/// The entity tag that a server gives `ten.txt`, without its quotes.
fn tag(connect: &Connect<'_>) -> String {
    let answer = talk(connect().as_mut(), &parts("HEAD /ten.txt", ""));
    let text = String::from_utf8_lossy(&answer).into_owned();
    let tag = text.lines().find_map(|line| line.strip_prefix("ETag: \"")).expect("a strong tag");
    tag.trim_end_matches('"').to_owned()
}

fn store(dir: &Path) {
    fs::create_dir_all(dir.join("folder/sub")).unwrap();
    fs::create_dir_all(dir.join("loop/index.html")).unwrap();
    fs::create_dir(dir.join("hidden")).unwrap();
    for (name, content) in [
        ("ten.txt", "0123456789"),
        ("empty.txt", ""),
        ("end.txt", "end"),
        ("index.html", "index"),
        ("folder/index.html", "inner"),
        ("folder/sub/index.html", "innermost"),
        ("100%.txt", "percent"),
        ("a b.txt", "space"),
        ("a+b.txt", "plus"),
        ("a;b.txt", "semicolon"),
        ("a:b.txt", "colon"),
        ("'.txt", "quote"),
        ("\".txt", "quotes"),
        ("a\\b.txt", "backslash"),
        ("~user.txt", "tilde"),
        ("question?.txt", "question"),
        ("hash#.txt", "hash"),
        ("caf\u{e9}.txt", "coffee"),
        ("hidden/.secret", "secret"),
    ] {
        fs::write(dir.join(name), content).unwrap();
    }
    fs::write(dir.join(OsStr::from_bytes(b"latin\xe9.txt")), "latin").unwrap();
}

/// A process without the right to read what its user may not: tests run as root.
const BOUNDED: [&str; 2] =
    ["--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"];

fn nginx(dir: &Path, www: &Path) -> Process {
    let path = dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {path}/{what};\n"))
        .concat();
    let text = format!(
        "daemon off; master_process off; user root; pid {path}/pid; error_log {path}/log;\nevents {{}}\nhttp {{\n{temporary}\
         access_log off; default_type text/plain; absolute_redirect off;\nserver {{ listen unix:{path}/socket;\n\
         root {}; location / {{ dav_methods PUT; }} }}\n}}\n",
        www.display()
    );
    fs::write(dir.join("conf"), text).unwrap();
    let mut command = Command::new("setpriv");
    command.args(BOUNDED).arg("nginx").arg("-p").arg(dir).arg("-c").arg(dir.join("conf"));
    let process = command.arg("-e").arg(dir.join("log")).stderr(Stdio::null()).spawn();
    let process = Process(process.expect("nginx (scripts/setup.sh --test)"));
    let patience = Instant::now() + Duration::from_secs(20);
    while UnixStream::connect(dir.join("socket")).is_err() {
        assert!(Instant::now() < patience, "{}", fs::read_to_string(dir.join("log")).unwrap_or_default());
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

/// What every server answers to the requests, several at a time.
fn answers(servers: &[(&str, &Connect<'_>)], requests: &[Vec<Vec<Vec<u8>>>]) -> Vec<Vec<String>> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(vec![Vec::new(); requests.len()]);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((n, of_servers)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, requests.get(n)?)))
                {
                    let said =
                        servers.iter().zip(of_servers).map(|((_, connect), r)| said(connect(), r.clone()));
                    let said = said.collect();
                    all.lock()[n] = said;
                }
            });
        }
    });
    all.into_inner()
}

#[test]
fn every_form_of_a_request_beside_nginx() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&ours, &theirs] {
        store(&dir.path().join("www"));
    }
    let objects = Objects::open(&ours.path().join("www")).unwrap();
    let address = listen("127.0.0.1:0".parse().unwrap(), Site { objects, uploads: None }).unwrap();
    let _nginx = nginx(theirs.path(), &theirs.path().join("www"));
    let by_kernel = || Box::new(TcpStream::connect(address).unwrap()) as Box<dyn Duplex + Send>;
    let by_nginx =
        || Box::new(UnixStream::connect(theirs.path().join("socket")).unwrap()) as Box<dyn Duplex + Send>;
    let servers: [(&str, &Connect<'_>); 2] = [("kernel", &by_kernel), ("nginx", &by_nginx)];
    let text = fs::read_to_string(REQUESTS).unwrap();
    let table = rows(&text);
    assert!(table.len() >= 200);
    let tags = servers.map(|(_, connect)| tag(connect));
    let requests: Vec<Vec<_>> =
        table.iter().map(|row| tags.iter().map(|tag| parts(row.text, tag)).collect()).collect();
    check(&servers, &table, &answers(&servers, &requests));
}

/// All of ours answer as the row says, and nginx as it says of nginx.
fn check(servers: &[(&str, &Connect<'_>)], table: &[Row<'_>], all: &[Vec<String>]) {
    let mut wrong = Vec::new();
    for (row, all) in table.iter().zip(all) {
        let (nginx, ours) = all.split_last().unwrap();
        if ours.iter().any(|ours| ours != row.want)
            || nginx != row.nginx
            || nginx == row.want && !row.clause.is_empty()
        {
            let names = servers.iter().zip(all).map(|((name, _), said)| format!("\n  {name}: {said}"));
            wrong.push(format!("{}\n  want: {}{}", row.text, row.want, names.collect::<String>()));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), table.len(), wrong.join("\n"));
}

#[test]
fn uploads_beside_nginx() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for dir in [&ours, &theirs] {
        store(&dir.path().join("www"));
    }
    let www = ours.path().join("www");
    let limits = Limits { body: 1000, ..Limits::default() };
    let uploads = Some(Uploads::open(&www, limits).unwrap());
    let site = Site { objects: Objects::open(&www).unwrap(), uploads };
    let address = listen("127.0.0.1:0".parse().unwrap(), site).unwrap();
    let _nginx = nginx(theirs.path(), &theirs.path().join("www"));
    let by_kernel = || Box::new(TcpStream::connect(address).unwrap()) as Box<dyn Duplex + Send>;
    let by_nginx =
        || Box::new(UnixStream::connect(theirs.path().join("socket")).unwrap()) as Box<dyn Duplex + Send>;
    let servers: [(&str, &Connect<'_>); 2] = [("kernel", &by_kernel), ("nginx", &by_nginx)];
    let text = fs::read_to_string(UPLOADS).unwrap();
    let table = rows(&text);
    let tags = servers.map(|(_, connect)| tag(connect));
    // One after the other: what one stores the next one finds.
    let one = |row: &Row<'_>| {
        servers.iter().zip(&tags).map(|((_, connect), tag)| said(connect(), parts(row.text, tag))).collect()
    };
    let all: Vec<Vec<String>> = table.iter().map(one).collect();
    check(&servers, &table, &all);
    assert_eq!(fs::read(www.join("ten.txt")).unwrap(), b"0123456789", "what was refused left it as it was");
}

#[test]
fn a_growing_log_comes_as_long_as_it_was() {
    let Some(rig) = Rig::new() else { return };
    let begun = rig.file("log", 20_000_000);
    let path = rig.www().join("log");
    let _server = rig.serve(&["--plain", "none"]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = fs::File::options().append(true).open(&path).unwrap();
            while !stop.load(Ordering::Relaxed) {
                log.write_all(b"another line of the log\n").unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let out = rig.get(&[]).arg("-o").arg(rig.out()).arg(url("log")).output();
        stop.store(true, Ordering::Relaxed);
        let out = out.unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    });
    let (got, now) = (fs::read(rig.out()).unwrap(), fs::read(&path).unwrap());
    assert!(got.len() >= begun.len() && now.starts_with(&got), "{} bytes of {}", got.len(), now.len());
}
