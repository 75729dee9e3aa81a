//! Parts that several tests of connections share.

pub mod rack;

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{Netns, Process, eventually};
use rivulet_plain::{Header, Options, Stamps};
use rivulet_trods::{Action, AdoptAs, Flow, Settings, Tuple, Unknown, Wake};

pub const OPEN: Settings = Settings {
    closed: false,
    deterministic: false,
    wake: Wake::Server,
    adopt_as: AdoptAs::Client,
    // `digests.rs` tests unknown digests; in the other tests a download may end before its digest
    // is known.
    unknown: Unknown::Trust,
};
pub const CLOSED: Settings = Settings { closed: true, ..OPEN };
pub const DETERMINISTIC: Settings = Settings { deterministic: true, ..OPEN };

pub fn tuple() -> Tuple {
    Tuple { client: "10.0.0.1:4000".parse().unwrap(), service: "10.9.0.1:80".parse().unwrap() }
}

/// The TCP header of a SYN (of a SYN-ACK, if `ack`), with the options that Linux sends.
pub fn syn(seq: u32, ack: bool) -> Vec<u8> {
    let Tuple { client, service } = tuple();
    let header = Header {
        src: if ack { service } else { client },
        dst: if ack { client } else { service },
        seq,
        ack: 0,
        flags: TcpFlags(if ack { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN }),
        window: 0xffff,
        options: Options {
            mss: Some(1460),
            scale: Some(7),
            sack_permitted: true,
            stamps: Some(Stamps { value: 1000, echo: 0 }),
            ..Options::default()
        },
    };
    let mut packet = vec![0; header.length()];
    header.finish(&mut packet, 0).unwrap();
    packet.split_off(20)
}

/// A flow with a complete handshake, at time 0.
pub fn established(client_isn: u32, service_isn: u32, settings: &Settings) -> Flow {
    let mut flow = Flow::new(tuple(), settings);
    let mut out = Vec::new();
    flow.tick(0, &mut out);
    flow.syn(&syn(client_isn, false));
    flow.syn_ack(&syn(service_isn, true));
    assert_eq!(out, []);
    flow
}

/// A deterministic random sequence (SplitMix64).
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
}

/// A server of static objects as a function: its answer to a request, and whether it closes
/// afterwards.
pub mod server {
    use super::Dice;

    /// The object of this name and size.
    pub fn object(name: &str, size: usize) -> Vec<u8> {
        let mut dice = Dice(name.bytes().fold(7, |hash: u64, b| hash.wrapping_mul(31) ^ u64::from(b)));
        (0..size).map(|_| dice.below(256) as u8).collect()
    }

    fn size_of(name: &str) -> usize {
        name.trim_start_matches('/').split('?').next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    /// The responses to all complete requests in `octets`, and whether the connection ends after
    /// them.
    pub fn answers(octets: &[u8]) -> (Vec<u8>, bool) {
        answers_from(octets, "7")
    }

    /// Like [`answers`]; responses are generated from `inputs`, unless a request carries its own.
    pub fn answers_from(mut octets: &[u8], inputs: &str) -> (Vec<u8>, bool) {
        let mut out = Vec::new();
        while let Some(end) = octets.windows(4).position(|four| four == b"\r\n\r\n") {
            let close = answer(std::str::from_utf8(&octets[..end]).unwrap(), inputs, &mut out);
            octets = &octets[end + 4..];
            if close {
                return (out, true);
            }
        }
        (out, false)
    }

    fn answer(request: &str, inputs: &str, out: &mut Vec<u8>) -> bool {
        let mut words = request.trim_start().split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        let close = request.contains("Connection: close");
        let connection = if close { "Connection: close\r\n" } else { "" };
        let told = request.lines().find_map(|line| line.strip_prefix("X-TRODS: ")).unwrap_or(inputs);
        let (name, inputs) = match target.contains("inputs") {
            true => (format!("{target} from {told}"), format!("X-TRODS: {told}\r\n")),
            false => (target.to_owned(), String::new()),
        };
        let body = object(&name, size_of(target));
        let etag = format!("ETag: \"{target}\"\r\n");
        let range = request.lines().find_map(|line| line.strip_prefix("Range: bytes="));
        let mut say = |head: String, body: &[u8]| {
            out.extend_from_slice(head.as_bytes());
            if method != "HEAD" {
                out.extend_from_slice(body);
            }
        };
        let n = body.len();
        if target.contains("missing") {
            say(format!("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n{connection}\r\n"), b"gone");
        } else if target.contains("same") {
            say(format!("HTTP/1.1 304 Not Modified\r\n{etag}{connection}\r\n"), b"");
        } else if target.contains("chunked") {
            let mut chunks = Vec::new();
            for chunk in body.chunks(100) {
                chunks.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                chunks.extend_from_slice(chunk);
                chunks.extend_from_slice(b"\r\n");
            }
            chunks.extend_from_slice(b"0\r\n\r\n");
            say(
                format!("HTTP/1.1 200 OK\r\n{inputs}Transfer-Encoding: chunked\r\n{connection}\r\n"),
                &chunks,
            );
        } else if target.contains("dynamic") {
            say(format!("HTTP/1.1 200 OK\r\n{inputs}Content-Length: {n}\r\n{connection}\r\n"), &body);
        } else if let Some((first, last)) = range.and_then(|range| range.split_once('-')) {
            let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
            let part = &body[first..=last];
            let length = part.len();
            say(
                format!(
                    "HTTP/1.1 206 Partial Content\r\n{etag}Content-Range: bytes {first}-{last}/{n}\r\n\
                     Content-Length: {length}\r\n{connection}\r\n"
                ),
                part,
            );
        } else {
            say(format!("HTTP/1.1 200 OK\r\n{etag}Content-Length: {n}\r\n{connection}\r\n"), &body);
        }
        close
    }
}

/// The records that the actions store, in order.
pub fn stores(out: &[Action]) -> Vec<(u64, rivulet_trods::Record)> {
    let store = |action: &Action| match action {
        Action::Store { ticket, record } => Some((*ticket, (**record).clone())),
        _ => None,
    };
    out.iter().filter_map(store).collect()
}

/// Starts nginx with one process at a service's address, with the files of `root`/www and its own
/// folder `dir`.
pub fn nginx(replica: &Netns, service: &str, root: &Path, dir: &Path) -> Process {
    nginx_of("master_process off", replica, service, root, dir)
}

/// Like [`nginx`], with this number of processes.
pub fn nginx_of(processes: &str, replica: &Netns, service: &str, root: &Path, dir: &Path) -> Process {
    nginx_with(replica, service, root, dir, &|text| text.replace("master_process off", processes))
}

/// Like [`nginx_of`]; `change` edits the configuration.
pub fn nginx_with(
    replica: &Netns,
    service: &str,
    root: &Path,
    dir: &Path,
    change: &dyn Fn(&str) -> String,
) -> Process {
    let (path, www) = (dir.display().to_string(), root.join("www").display().to_string());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {path}/{what};\n"))
        .concat();
    let text = format!(
        "user root; daemon off; master_process off; pid {path}/pid; error_log {path}/log;\nevents {{}}\nhttp {{\n{temporary}\
         access_log off; default_type text/plain; sendfile on;\nserver {{ listen {service}; root {www}; }} }}\n"
    );
    std::fs::write(dir.join("conf"), change(&text)).unwrap();
    let mut command = replica.command("nginx");
    command.args(["-p", &path, "-c", &format!("{path}/conf"), "-e", &format!("{path}/log")]);
    let process = Process(command.stderr(Stdio::null()).spawn().expect("nginx (scripts/setup.sh --test)"));
    let service: SocketAddr = service.parse().unwrap();
    eventually("nginx listens", || {
        in_netns(Some(replica.name()), || TcpStream::connect(service).is_ok()).unwrap()
    });
    process
}

/// Starts the server `generate.py` in a namespace.
pub fn generate(ns: &Netns, service: &str) -> Process {
    let service: SocketAddr = service.parse().unwrap();
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/support/generate.py");
    let mut command = ns.command("python3");
    command.arg(script).args([service.ip().to_string(), service.port().to_string()]);
    let process = Process(command.spawn().expect("python3"));
    eventually("the server listens", || {
        in_netns(Some(ns.name()), || TcpStream::connect(service).is_ok()).unwrap()
    });
    process
}
