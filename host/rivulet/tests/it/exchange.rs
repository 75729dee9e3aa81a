//! Requests of HTTP as rows of a table, and what servers answer to them, in short. The tables stand in `tests/requests/`.
#![allow(missing_docs, reason = "each test file uses its part")]

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rivulet_pktio::testing::read_once;

/// Sent after every request: shows whether the connection stays open, and where the next request
/// begins.
const LAST: &[u8] = b"GET /end.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
/// How long a server may take to close the connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// Rows that are tested at the same time.
const THREADS: usize = 8;

/// Abbreviations of long names in a table: the abbreviation, the letter of which the name consists,
/// and its length.
const LONG: [(&str, &str, usize); 4] =
    [("{250}", "n", 250), ("{197}", "r", 197), ("{198}", "r", 198), ("{199}", "r", 199)];

/// A line of a table: a request, the answer of every server of this repository, and that of nginx
/// if it differs, with the clause of the RFC.
pub struct Row<'a> {
    pub text: &'a str,
    pub want: &'a str,
    pub nginx: &'a str,
    pub clause: &'a str,
}

pub fn rows(table: &str) -> Vec<Row<'_>> {
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

/// The bytes of a request, in parts: before each part but the first, the client waits for the head
/// of an answer. `METHOD target
///
/// field
///
/// field` is an HTTP/1.1 request with a `Host`; `raw ` precedes literal bytes with escapes, among
/// them `\w` for a wait. Names of [`LONG`] are replaced by the long ones.
pub fn parts(text: &str, tag: &str) -> Vec<Vec<u8>> {
    let text = text.replace("{etag}", &format!("\"{tag}\"")).replace("{tag}", tag);
    let text =
        LONG.iter().fold(text, |text, (short, letter, length)| text.replace(short, &letter.repeat(*length)));
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

pub trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// Opens a connection to a server.
pub type Connect<'a> = dyn Fn() -> Box<dyn Duplex + Send> + Sync + 'a;

/// A server's answers to a request and to the one after it, abbreviated: status, range or location,
/// and the body of successful answers.
pub fn transcript(mut stream: Box<dyn Duplex + Send>, parts: Vec<Vec<u8>>) -> String {
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
        // If the server has closed, its answer shows that.
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
    answers.join(", ").replace(&"n".repeat(250), "{250}")
}

/// The entity tag that a server gives `ten.txt`, without its quotes.
pub fn tag(connect: &Connect<'_>) -> String {
    let answer = talk(connect().as_mut(), &parts("HEAD /ten.txt", ""));
    let text = String::from_utf8_lossy(&answer).into_owned();
    let tag = text.lines().find_map(|line| line.strip_prefix("ETag: \"")).expect("a strong tag");
    tag.trim_end_matches('"').to_owned()
}

pub fn store(dir: &Path) {
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

/// Answers of every server to the requests, several at a time.
pub fn answers(servers: &[(&str, &Connect<'_>)], requests: &[Vec<Vec<Vec<u8>>>]) -> Vec<Vec<String>> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(vec![Vec::new(); requests.len()]);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((n, of_servers)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|n| Some((n, requests.get(n)?)))
                {
                    let said = servers
                        .iter()
                        .zip(of_servers)
                        .map(|((_, connect), r)| transcript(connect(), r.clone()));
                    let said = said.collect();
                    all.lock().unwrap()[n] = said;
                }
            });
        }
    });
    all.into_inner().unwrap()
}

/// Creates files with names that broke other servers, or an earlier version: links, bytes that are
/// not UTF-8, long paths, characters with a meaning in URLs, and entries that are unreadable or not
/// files.
pub fn store_hostile_names(dir: &Path) {
    let path = |name: &[u8]| dir.join(OsStr::from_bytes(name));
    let long = [b'n'; 250];
    let (deep, deeper) = ([&long[..], b"/", &long].concat(), [&long[..], b"/", &long, b"/", &long].concat());
    for folder in [
        &b"real/sub"[..],
        b"real/none",
        b"dists/bookworm",
        b"lost+found",
        b"closed",
        b"empty",
        b"loop/index.html",
        b"secret-index",
        b"link-index",
        b"dangling-index",
        b"caf\xe9",
        b"sp ace",
        b"per%cent",
        b"ques?tion",
        b"ha#sh",
        b"semi;colon",
        b"co:lon",
        b"back\\slash",
        b"pl+us",
        b"quo\"te",
        b"tab\there",
        b"new\nline",
        b"...",
        b".hidden",
        b"a..",
        &deeper,
    ] {
        fs::create_dir_all(path(folder)).unwrap();
    }
    let at_limit = [&deep[..], b"/", &[b'r'; 197]].concat();
    let beyond_limit = [&deep[..], b"/", &[b'r'; 198]].concat();
    let below = |folder: &[u8], name: &[u8]| [folder, b"/", name].concat();
    for (name, content) in [
        (b"end.txt".to_vec(), "end"),
        (b"ten.txt".to_vec(), "0123456789"),
        (b"index.html".to_vec(), "index"),
        (b"empty.txt".to_vec(), ""),
        (b"real/index.html".to_vec(), "real"),
        (b"real/sub/index.html".to_vec(), "sub"),
        (b"real/sub/file".to_vec(), "file"),
        (b"dists/bookworm/Release".to_vec(), "release"),
        (b"lost+found/file".to_vec(), "lost"),
        (b"closed/file".to_vec(), "closed"),
        (b"secret.txt".to_vec(), "secret"),
        (b"secret-index/index.html".to_vec(), "secret"),
        (b"caf\xe9/index.html".to_vec(), "latin"),
        (b"caf\xe9/\xff\xfe.txt".to_vec(), "bytes"),
        ("caf\u{e9}.txt".as_bytes().to_vec(), "utf-8"),
        (b"sp ace/index.html".to_vec(), "space"),
        (b" .txt".to_vec(), "only space"),
        (b"per%cent/index.html".to_vec(), "percent"),
        (b"100%.txt".to_vec(), "hundred"),
        (b"%41.txt".to_vec(), "encoded"),
        (b"A.txt".to_vec(), "decoded"),
        (b"a%2fb.txt".to_vec(), "encoded slash"),
        (b"ques?tion/index.html".to_vec(), "question"),
        (b"ha#sh/index.html".to_vec(), "hash"),
        (b"semi;colon/index.html".to_vec(), "semicolon"),
        (b"co:lon/index.html".to_vec(), "colon"),
        (b"http:".to_vec(), "scheme"),
        (b"back\\slash/index.html".to_vec(), "backslash"),
        (b"pl+us/index.html".to_vec(), "plus"),
        (b"quo\"te/index.html".to_vec(), "quote"),
        (b"tab\there/index.html".to_vec(), "tab"),
        (b"new\nline/index.html".to_vec(), "newline"),
        (b".../index.html".to_vec(), "dots"),
        (b".hidden/file".to_vec(), "hidden"),
        (b"a../file".to_vec(), "dots behind"),
        (b"..b".to_vec(), "dots before"),
        (b"-".to_vec(), "dash"),
        (b"\x01\x7f".to_vec(), "controls"),
        (below(&long, b"index.html"), "long"),
        (below(&deep, b"file"), "deep"),
        (below(&deeper, b"file"), "deeper"),
        (at_limit, "at the limit"),
        (beyond_limit, "beyond the limit"),
    ] {
        fs::write(path(&name), content).unwrap();
    }
    for (link, to) in [
        (&b"linked"[..], "real"),
        (b"linked-far", "linked/sub"),
        (b"dists/stable", "bookworm"),
        (b"link.txt", "ten.txt"),
        (b"up.txt", "real/../ten.txt"),
        (b"dangling", "nothing"),
        (b"circle", "circle"),
        (b"link-index/index.html", "../ten.txt"),
        (b"dangling-index/index.html", "nothing"),
        (b"out", "../outside"),
        (b"out.txt", "../outside/file"),
    ] {
        std::os::unix::fs::symlink(to, path(link)).unwrap();
    }
    std::os::unix::fs::symlink(dir.join("ten.txt"), path(b"absolute.txt")).unwrap();
    fs::create_dir(dir.join("../outside")).unwrap();
    fs::write(dir.join("../outside/file"), "outside").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path(b"socket")).unwrap();
    assert!(Command::new("mkfifo").arg(path(b"pipe")).status().unwrap().success());
    for name in ["lost+found", "closed", "secret.txt", "secret-index/index.html"] {
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o0)).unwrap();
    }
}
