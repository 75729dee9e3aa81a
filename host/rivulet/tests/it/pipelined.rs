//! Several requests on one connection, of which stateless TCP answers as many as it can before it
//! passes the connection to the kernel: large files after small ones, and pipelined requests. Needs
//! root; skipped if namespaces cannot be created.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::PATIENCE;

use crate::rig::SERVICE;
use crate::stateless::Rack;

impl Rack {
    fn pipelined(&self) -> u64 {
        // Heartbeats carry the counters every few milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        self.metric(0, "rivulet_plain_adopted_total{cause=\"pipelined\"}")
    }

    fn dial(&self) -> TcpStream {
        let stream = in_netns(Some(self.client.name()), || TcpStream::connect((SERVICE, 80)));
        let stream = stream.unwrap().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Creates files of these sizes; returns their contents and the requests for them. The last
    /// request closes the connection.
    fn requests(&self, sizes: &[usize]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let last = sizes.len() - 1;
        let both = sizes.iter().enumerate().map(|(n, size)| {
            let close = if n == last { "Connection: close\r\n" } else { "" };
            let request = format!("GET /p{n} HTTP/1.1\r\nHost: h\r\n{close}\r\n").into_bytes();
            (self.file(&format!("p{n}"), *size), request)
        });
        both.unzip()
    }
}

/// The contents of the responses on a connection.
fn contents(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(end) = stream.windows(4).position(|w| w == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&stream[..end]).into_owned();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
        let (from, length) = (end + 4, length.parse::<usize>().unwrap());
        all.push(stream[from..(from + length).min(stream.len())].to_vec());
        stream = &stream[(from + length).min(stream.len())..];
    }
    all
}

/// A file that only the kernel's TCP can send is requested on the connection of a small one, and
/// real clients get it on that connection.
#[test]
fn large_file_is_sent_on_small_files_connection() {
    let Some(rack) = Rack::new() else { return };
    rack.wire().only.store(0, Ordering::Relaxed);
    let names = ["small", "large", "small", "large"];
    let bodies = [rack.file("small", 700), rack.file("large", 300_000)];
    let _server = rack.serve(0);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/keepalive.py");
    let lacks_httpx =
        !Command::new("python3").args(["-c", "import httpx"]).output().unwrap().status.success();
    for client in ["http.client", "httpx"] {
        if client == "httpx" && lacks_httpx {
            eprintln!("no httpx here: it is not tried");
            continue;
        }
        let opened = rack.client.counter("TcpActiveOpens");
        let mut command = rack.client.command("python3");
        let out = command.arg(&script).args([client, SERVICE]).args(names).output().unwrap();
        assert!(out.status.success(), "{client}: {}", String::from_utf8_lossy(&out.stderr));
        let sums: Vec<_> = String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect();
        let want = bodies.iter().map(|body| sha256(body)).collect::<Vec<_>>();
        assert_eq!(sums, [&want[..], &want].concat(), "{client}");
        assert_eq!(rack.client.counter("TcpActiveOpens"), opened + 1, "{client}: one connection");
    }
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
    assert_eq!(rack.client.counter("TcpExtPAWSEstab"), 0);
}

fn sha256(data: &[u8]) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(data).unwrap();
    let out = child.wait_with_output().unwrap();
    String::from_utf8(out.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

/// Pipelined requests in one segment, in a segment each, and after a first one with an answer, as
/// apt sends them: all are answered in order, and the client repeats none.
#[test]
fn pipelined_requests_are_answered_without_a_timeout() {
    let Some(rack) = Rack::new() else { return };
    rack.wire().only.store(0, Ordering::Relaxed);
    let sizes: Vec<usize> = (0..30).map(|n| [2000, 100, 9000, 0, 14_000, 40_000][n % 6]).collect();
    let (bodies, requests) = rack.requests(&sizes);
    let _server = rack.serve(0);
    for how in 0..4 {
        let before = rack.pipelined();
        let timeouts = rack.client.counter("TcpExtTCPTimeouts");
        let mut stream = rack.dial();
        let mut all = Vec::new();
        match how {
            0 => stream.write_all(&requests.concat()).unwrap(),
            1 => requests.iter().for_each(|request| stream.write_all(request).unwrap()),
            2 => {
                stream.write_all(&requests[0]).unwrap();
                let mut block = [0; 4096];
                while contents(&all).first().is_none_or(|first| first.len() < sizes[0]) {
                    let n = stream.read(&mut block).unwrap();
                    assert!(n > 0);
                    all.extend_from_slice(&block[..n]);
                }
                stream.write_all(&requests[1..].concat()).unwrap();
            }
            // The second request before the first is answered, the rest after both answers.
            _ => {
                stream.write_all(&requests[..2].concat()[..requests[0].len() + 9]).unwrap();
                std::thread::sleep(Duration::from_millis(20));
                stream.write_all(&requests.concat()[requests[0].len() + 9..]).unwrap();
            }
        }
        stream.read_to_end(&mut all).unwrap();
        assert!(contents(&all) == bodies, "{how}: {} answers", contents(&all).len());
        assert_eq!(rack.pipelined(), before + 1, "{how}");
        assert_eq!(rack.client.counter("TcpExtTCPTimeouts"), timeouts, "{how}: nothing was sent again");
    }
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
}

/// Some packets are lost: every answer is complete, whether stateless TCP or the kernel retransmits
/// it.
#[test]
fn pipelined_requests_survive_loss() {
    let Some(rack) = Rack::new() else { return };
    rack.wire().only.store(0, Ordering::Relaxed);
    let (bodies, requests) = rack.requests(&[3000, 700, 14_000, 0, 5000, 12_000, 100, 900]);
    let _server = rack.serve(0);
    rack.wire().loss.store(30, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (rack, bodies, requests) = (&rack, &bodies, &requests);
            scope.spawn(move || {
                for round in 0..12 {
                    let mut stream = rack.dial();
                    match (client + round) % 3 {
                        0 => stream.write_all(&requests.concat()).unwrap(),
                        1 => requests.iter().for_each(|request| stream.write_all(request).unwrap()),
                        _ => {
                            stream.write_all(&requests[0]).unwrap();
                            std::thread::sleep(Duration::from_millis(2));
                            stream.write_all(&requests[1..].concat()).unwrap();
                        }
                    }
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).unwrap();
                    assert!(contents(&all) == *bodies, "client {client}, round {round}");
                }
            });
        }
    });
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
}

/// apt, which sends ten requests at a time, fetches from a folder of packages.
#[test]
fn apt_fetches_packages_without_a_timeout() {
    if ["apt-get", "dpkg-deb"].iter().any(|name| Command::new(name).arg("--version").output().is_err()) {
        eprintln!("no apt here");
        return;
    }
    let Some(rack) = Rack::new() else { return };
    rack.wire().only.store(0, Ordering::Relaxed);
    let (dir, names) = (rack.dir.path(), (0..30).map(|n| format!("p{n:02}")).collect::<Vec<_>>());
    let mut index = String::new();
    for (n, name) in names.iter().enumerate() {
        let from = dir.join(name);
        std::fs::create_dir_all(from.join("DEBIAN")).unwrap();
        let control = format!(
            "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: a test\n"
        );
        std::fs::write(from.join("DEBIAN/control"), &control).unwrap();
        std::fs::write(from.join("data"), vec![n as u8; 500]).unwrap();
        let deb = dir.join(format!("www/{name}.deb"));
        let built = Command::new("dpkg-deb").args(["-Zgzip", "-b"]).arg(&from).arg(&deb).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let content = std::fs::read(&deb).unwrap();
        let (size, sum) = (content.len(), sha256(&content));
        index += &format!("{control}Filename: ./{name}.deb\nSize: {size}\nSHA256: {sum}\n\n");
    }
    std::fs::write(dir.join("www/Packages"), index).unwrap();
    let state = dir.join("apt");
    for folder in ["etc", "lists/partial", "cache/archives/partial", "out"] {
        std::fs::create_dir_all(state.join(folder)).unwrap();
    }
    std::fs::write(state.join("status"), "").unwrap();
    std::fs::write(state.join("etc/sources.list"), format!("deb [trusted=yes] http://{SERVICE}/ ./\n"))
        .unwrap();
    let _server = rack.serve(0);
    let at = |name: &str| state.join(name).display().to_string();
    let apt = |words: &[&str]| {
        let mut command = rack.client.command("apt-get");
        command.current_dir(state.join("out"));
        for option in [
            format!("Dir::Etc={}", at("etc")),
            format!("Dir::Etc::sourcelist={}", at("etc/sources.list")),
            "Dir::Etc::sourceparts=-".into(),
            format!("Dir::State={}", state.display()),
            format!("Dir::State::lists={}", at("lists")),
            format!("Dir::State::status={}", at("status")),
            format!("Dir::Cache={}", at("cache")),
            "APT::Sandbox::User=root".into(),
            "Acquire::http::Proxy=false".into(),
            "Acquire::Retries=0".into(),
        ] {
            command.args(["-o", &option]);
        }
        let out = command.args(words).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    };
    apt(&["update"]);
    let (before, timeouts) = (rack.pipelined(), rack.client.counter("TcpExtTCPTimeouts"));
    apt(&[&["download"], &names.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    for name in &names {
        let want = std::fs::read(dir.join(format!("www/{name}.deb"))).unwrap();
        assert!(std::fs::read(state.join(format!("out/{name}_1_all.deb"))).unwrap() == want, "{name}");
    }
    assert!(rack.pipelined() > before);
    assert_eq!(rack.client.counter("TcpExtTCPTimeouts"), timeouts, "no request was sent again");
}
