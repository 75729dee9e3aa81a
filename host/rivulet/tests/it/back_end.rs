//! Programs that use only UDP, behind two replicas of stateless TCP: name servers and httpudp, with
//! ordinary TCP clients. Needs root; skipped if namespaces cannot be created.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rivulet_pktio::testing::{Netns, Process, eventually};
use rivulet_pktio::{AfPacket, in_netns};

use crate::rig::{RIVULET, Rig, SERVICE};
use crate::stateless::{BY_CHANCE, Rack, SERVICE6};

const BACK_END: &str = "127.0.0.1:5300";
/// Number of messages of a zone transfer.
const TRANSFER: usize = 20;
/// Counts connections for which the back end would have to use TCP.
const REFUSED: &str = "rivulet_plain_refused_total{reason=\"kernel\"}";

/// A name server on each replica's host. The query's name gives the length of the answer; with a
/// `t` before it, the answer does not fit into a datagram.
struct NameServer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Number of further queries to drop.
    lose: AtomicU32,
    by_udp: AtomicU32,
    by_tcp: AtomicU32,
    /// Number of queries without EDNS of 65,535 bytes.
    small: AtomicU32,
}

impl NameServer {
    fn start(hosts: &[Netns]) -> NameServer {
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        for host in hosts {
            let open = || (UdpSocket::bind(BACK_END).unwrap(), TcpListener::bind(BACK_END).unwrap());
            let (udp, tcp) = in_netns(Some(host.name()), open).unwrap();
            udp.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            tcp.set_nonblocking(true).unwrap();
            let of_thread = shared.clone();
            threads.push(std::thread::spawn(move || answer(&udp, &of_thread)));
            let of_thread = shared.clone();
            threads.push(std::thread::spawn(move || accept(&tcp, &of_thread)));
        }
        NameServer { shared, threads }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn answer(socket: &UdpSocket, shared: &Shared) {
    let mut asked = [0; 2048];
    while !shared.stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut asked) else { continue };
        // The server's probe of its back end has an empty name (the root).
        if asked[12] == 0 {
            let _ = socket.send_to(&[&asked[..2], &[0x80, 5], &asked[4..length]].concat(), from);
            continue;
        }
        shared.by_udp.fetch_add(1, Ordering::Relaxed);
        if shared.lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            continue;
        }
        let asked = &asked[..length];
        // The OPT record is the last one here, and has no options.
        if asked[length - 8..length - 6] != [0xff, 0xff] {
            shared.small.fetch_add(1, Ordering::Relaxed);
        }
        let _ = socket.send_to(&respond(asked, true), from);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::Relaxed) {
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let shared = shared.clone();
        // The thread ends with its client.
        std::thread::spawn(move || {
            stream.set_nonblocking(false).unwrap();
            let mut length = [0; 2];
            while stream.read_exact(&mut length).is_ok() {
                let mut asked = vec![0; u16::from_be_bytes(length).into()];
                if stream.read_exact(&mut asked).is_err() {
                    break;
                }
                shared.by_tcp.fetch_add(1, Ordering::Relaxed);
                // A zone transfer takes several messages.
                let messages = if asked[13 + usize::from(asked[12]) + 2] == 252 { TRANSFER } else { 1 };
                for _ in 0..messages {
                    let _ = stream.write_all(&framed(&respond(&asked, false)));
                }
            }
        });
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&(message.len() as u16).to_be_bytes()[..], message].concat()
}

/// A TXT query for this name, with its length prefix.
fn query(id: u16, name: &str, edns: bool) -> Vec<u8> {
    let mut out = id.to_be_bytes().to_vec();
    out.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, edns.into(), name.len() as u8]);
    out.extend(name.as_bytes());
    out.extend([0, 0, 16, 0, 1]);
    if edns {
        out.extend([0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
    }
    framed(&out)
}

fn respond(message: &[u8], by_udp: bool) -> Vec<u8> {
    let length = usize::from(message[12]);
    let name = std::str::from_utf8(&message[13..13 + length]).unwrap();
    let truncated = by_udp && name.starts_with('t');
    let size: usize = name.trim_start_matches('t').parse().unwrap();
    let edns = message[11] == 1;
    let mut out = message[..12 + length + 6].to_vec();
    out[2] |= 0x84 | if truncated { 2 } else { 0 };
    out[6..12].copy_from_slice(&[0, u8::from(!truncated), 0, 0, 0, edns.into()]);
    if !truncated {
        out.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60]);
        out.extend((size as u16).to_be_bytes());
        out.extend((0..size).map(|n| (n * 7 + n / 251) as u8));
    }
    if edns {
        out.extend([0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0]);
    }
    out
}

fn connect(rack: &Rack, address: &str) -> TcpStream {
    let address: IpAddr = address.parse().unwrap();
    let to = SocketAddr::new(address, 53);
    let stream = in_netns(Some(rack.client.name()), || TcpStream::connect(to)).unwrap().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends all queries in one segment, and reads until the connection ends.
fn ask(rack: &Rack, address: &str, queries: &[Vec<u8>]) -> std::io::Result<Vec<u8>> {
    let mut stream = connect(rack, address);
    stream.write_all(&queries.concat())?;
    let mut got = Vec::new();
    stream.read_to_end(&mut got)?;
    Ok(got)
}

/// The answers that the name server makes.
fn want(queries: &[Vec<u8>]) -> Vec<u8> {
    queries.iter().flat_map(|query| framed(&respond(&query[2..], false))).collect()
}

fn dns(rack: &Rack, replica: usize, more: &[&str]) -> Process {
    rack.start(replica, 53, &[&["--back-end", "dns://127.0.0.1:5300"], more].concat())
}

fn event(rack: &Rack, replica: usize, name: &str) -> u64 {
    rack.metric(replica, &format!("rivulet_back_end_total{{event=\"{name}\"}}"))
}

#[test]
fn tcp_clients_of_dns_are_served_by_udp() {
    let Some(rack) = Rack::new() else { return };
    let server = NameServer::start(&rack.replicas);
    let _replicas = [dns(&rack, 0, &[]), dns(&rack, 1, &[])];
    let mut asked = 0;
    for stamps in [1, 0] {
        rack.client.run(&format!("sysctl -qw net.ipv4.tcp_timestamps={stamps}"));
        for address in [SERVICE, SERVICE6] {
            for names in [&["40"][..], &["900"], &["100", "t300", "7"], &["5", "6", "7", "8", "9", "10"]] {
                for edns in [false, true] {
                    let queries: Vec<_> =
                        names.iter().zip(1..).map(|(name, id)| query(id * 1111, name, edns)).collect();
                    let got = ask(&rack, address, &queries).unwrap();
                    assert!(got == want(&queries), "{names:?} at {address}, EDNS {edns}, stamps {stamps}");
                    asked += queries.len() as u32;
                }
            }
        }
    }
    rack.client.run("sysctl -qw net.ipv4.tcp_timestamps=1");
    let of = |counter: &AtomicU32| counter.load(Ordering::Relaxed);
    assert!(of(&server.shared.by_udp) >= asked && of(&server.shared.by_tcp) >= 8);
    assert_eq!(of(&server.shared.small), 0, "each query allows 65,535 octets");
    for replica in 0..2 {
        assert!(event(&rack, replica, "answers") > 5 && event(&rack, replica, "by_tcp") > 0);
        assert_eq!(rack.replicas[replica].counter("TcpExtListenOverflows"), 0);
        assert_eq!(rack.metric(replica, REFUSED), 0);
    }
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
}

/// Sends these pieces one after the other, closes this direction, and reads until the connection
/// ends.
fn ask_in_pieces(rack: &Rack, address: &str, pieces: &[&[u8]]) -> std::io::Result<Vec<u8>> {
    let mut stream = connect(rack, address);
    for piece in pieces {
        stream.write_all(piece)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut got = Vec::new();
    stream.read_to_end(&mut got)?;
    Ok(got)
}

/// The back end's TCP answers, on the client's connection: zone transfers, answers of more than 15
/// kB (more than a segment if the back end is not deterministic), more than 16 queries, and queries
/// in pieces.
#[test]
fn back_end_tcp_answers_queries_beyond_udp() {
    let Some(rack) = Rack::new() else { return };
    let server = NameServer::start(&rack.replicas);
    let _replicas = [dns(&rack, 0, &[]), dns(&rack, 1, &["--deterministic"])];
    let of_type = |kind: u8, name: &str| {
        let mut query = query(9, name, false);
        let at = query.len() - 3;
        query[at] = kind;
        query
    };
    let (many, long) = ((0..40).map(|n| query(n, "7", false)).collect::<Vec<_>>(), [query(1, "3000", false)]);
    let very_long = [query(1, "15400", true)];
    for (replica, address) in [(0, SERVICE), (0, SERVICE6), (1, SERVICE)] {
        rack.wire().only.store(replica, Ordering::Relaxed);
        for stamps in [1, 0] {
            rack.client.run(&format!("sysctl -qw net.ipv4.tcp_timestamps={stamps}"));
            let what = format!("{address} at {replica}, stamps {stamps}");
            for kind in [251, 252] {
                let asked = of_type(kind, "2000");
                let times = if kind == 252 { TRANSFER } else { 1 };
                let whole = want(std::slice::from_ref(&asked)).repeat(times);
                assert!(ask_in_pieces(&rack, address, &[&asked]).unwrap() == whole, "{kind}: {what}");
            }
            assert!(ask_in_pieces(&rack, address, &[&many.concat()]).unwrap() == want(&many), "many: {what}");
            assert!(ask_in_pieces(&rack, address, &[&long[0]]).unwrap() == want(&long), "long: {what}");
            let got = ask_in_pieces(&rack, address, &[&very_long[0]]).unwrap();
            assert!(got == want(&very_long), "very long: {what}");
            let one = query(5, "20", true);
            for cuts in [&[2][..], &[2, 9], &[20]] {
                let mut pieces = Vec::new();
                let mut at = 0;
                for &cut in cuts {
                    pieces.push(&one[at..cut]);
                    at = cut;
                }
                pieces.push(&one[at..]);
                let got = ask_in_pieces(&rack, address, &pieces).unwrap();
                assert!(got == want(std::slice::from_ref(&one)), "{cuts:?}: {what}");
            }
        }
    }
    rack.client.run("sysctl -qw net.ipv4.tcp_timestamps=1");
    assert!(server.shared.by_tcp.load(Ordering::Relaxed) > 100);
    assert_eq!((rack.metric(0, REFUSED), rack.metric(1, REFUSED)), (0, 0));
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
}

#[test]
fn queries_lost_by_the_back_end_are_retried() {
    let Some(rack) = Rack::new() else { return };
    let server = NameServer::start(&rack.replicas);
    let _replicas = [dns(&rack, 0, &[]), dns(&rack, 1, &[])];
    server.shared.lose.store(2, Ordering::Relaxed);
    let queries = [query(1, "100", true), query(2, "200", false)];
    let before = rack.client.counter("TcpRetransSegs");
    assert!(ask(&rack, SERVICE, &queries).unwrap() == want(&queries));
    assert!(rack.client.counter("TcpRetransSegs") > before);
    assert_eq!(server.shared.lose.load(Ordering::Relaxed), 0);
}

#[test]
fn replicas_are_killed_under_lossy_queries() {
    let Some(rack) = Rack::new() else { return };
    let _server = NameServer::start(&rack.replicas);
    let mut replicas = [0, 1].map(|n| Some(dns(&rack, n, &["--deterministic"])));
    rack.wire().loss.store(20, Ordering::Relaxed);
    let mut done = 0;
    for round in 0..6 {
        let target = round % 2;
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8u16)
                .map(|n| {
                    let rack = &rack;
                    scope.spawn(move || {
                        for name in ["200", "9000"] {
                            let queries = [query(n, name, n % 2 == 0), query(n + 100, "50", n % 3 == 0)];
                            assert!(ask(rack, SERVICE, &queries).unwrap() == want(&queries));
                        }
                    })
                })
                .collect();
            drop(replicas[target].take());
            std::thread::sleep(Duration::from_millis(30));
            rack.wire().only.store(1 - target as u32, Ordering::Relaxed);
            for client in clients {
                client.join().expect("a client of the killed replica's");
                done += 1;
            }
        });
        replicas[target] = Some(dns(&rack, target, &["--deterministic"]));
        rack.wire().only.store(BY_CHANCE, Ordering::Relaxed);
    }
    assert_eq!(done, 48);
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
}

/// The programs in `host/plain/examples`, in C and Python.
#[test]
fn plain_udp_programs_serve_http_answers() {
    let Some(rack) = Rack::new() else { return };
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plain/examples");
    let www = rack.dir.path().join("www");
    let small = vec![b's'; 1000];
    let page: Vec<u8> = (0..12_000u32).flat_map(|n| n.to_le_bytes()).take(12_000).collect();
    std::fs::write(www.join("small"), &small).unwrap();
    std::fs::write(www.join("page"), &page).unwrap();
    std::fs::write(rack.dir.path().join("secret"), "secret").unwrap();
    let binary = rack.dir.path().join("httpudp");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-o"];
    let built = Command::new("cc").args(flags).arg(&binary).arg(examples.join("httpudp.c")).status();
    let script = examples.join("httpudp.py");
    let program = |ns: &Netns, line: &[&str]| {
        let mut command = ns.command(line[0]);
        let process = command.args(&line[1..]).args(["8081", www.to_str().unwrap()]).stdout(Stdio::null());
        let process = Process(process.spawn().unwrap());
        eventually("it listens", || ns.run("ss -Hlun").contains("127.0.0.1:8081"));
        process
    };
    let mut programs: Vec<Vec<&str>> = Vec::new();
    match built {
        Ok(status) => {
            assert!(status.success(), "httpudp.c compiles without a warning");
            programs.push(vec![binary.to_str().unwrap()]);
        }
        Err(e) => eprintln!("SKIPPED: httpudp.c, no C compiler: {e}"),
    }
    match Command::new("python3").arg("--version").output() {
        Ok(_) => programs.push(vec!["python3", script.to_str().unwrap()]),
        Err(e) => eprintln!("SKIPPED: httpudp.py: {e}"),
    }
    for line in &programs {
        let _programs: Vec<_> = rack.replicas.iter().map(|ns| program(ns, line)).collect();
        let start = |n| rack.start(n, 80, &["--back-end", "udp://127.0.0.1:8081", "--deterministic"]);
        let _replicas = [start(0), start(1)];
        let url = |name: &str| format!("http://{SERVICE}/{name}");
        rack.wire().loss.store(20, Ordering::Relaxed);
        for _ in 0..5 {
            assert!(rack.get(&[&url("small")]) == small && rack.get(&[&url("page")]) == page, "{line:?}");
        }
        rack.wire().loss.store(0, Ordering::Relaxed);
        assert!(rack.get(&["-g", &format!("http://[{SERVICE6}]/page?x")]) == page);
        let head = String::from_utf8(rack.get(&["-I", &url("page")])).unwrap();
        assert!(head.contains("HTTP/1.1 200 OK\r\n") && head.contains("Content-Length: 12000\r\n"), "{head}");
        for name in ["none", "../secret", "%2e%2e/secret"] {
            assert_eq!(
                rack.get(&["--path-as-is", "-o", "/dev/null", "-w", "%{http_code}", &url(name)]),
                b"404",
                "{name}"
            );
        }
        assert_eq!(
            rack.curl(&["-d", "x=1", &url("small")]).status.code(),
            Some(56),
            "what changes something is not for it"
        );
        for replica in &rack.replicas {
            assert_eq!(replica.counter("TcpPassiveOpens"), 0, "the kernel took no part");
        }
    }
}

/// A replica without its back end is not ready in its heartbeats, until the back end answers again.
#[test]
fn replica_is_ready_only_while_back_end_answers() {
    let Some(rig) = Rig::new() else { return };
    let mut ear = rig.heartbeats();
    let ready = |ear: &mut AfPacket| Rig::read_heartbeats(ear).last().map(|beat| beat.ready);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plain/examples/httpudp.py");
    let program = || {
        let mut command = rig.server.command("python3");
        Process(command.arg(&script).arg("8081").arg(rig.www()).spawn().unwrap())
    };
    let mut command = rig.server.command(RIVULET);
    command.args(["serve", "--back-end", "udp://127.0.0.1:8081", "--plain", "stateless", "-i", "s0"]);
    command.args(["--listen", &format!("{SERVICE}:80"), "--member", &rig.member(), "--setup-address"]);
    command.arg("--keys").arg(rig.dir.path().join("keys.toml"));
    let _server = rig.started(Process(command.spawn().unwrap()));
    let mut beats = 0;
    eventually("many heartbeats", || {
        let all = Rig::read_heartbeats(&mut ear);
        assert!(all.iter().all(|beat| !beat.ready), "nobody answers yet");
        beats += all.len();
        beats > 100
    });
    for _ in 0..2 {
        let program = program();
        eventually("it to be ready", || ready(&mut ear) == Some(true));
        drop(program);
        eventually("it not to be ready", || ready(&mut ear) == Some(false));
    }
}

/// An unmodified nsd, if installed, with its own configuration and zone.
#[test]
fn nsd_serves_tcp_clients_through_its_udp_socket() {
    let nsd = ["/usr/sbin/nsd", "/usr/local/sbin/nsd"].into_iter().find(|path| Path::new(path).exists());
    let Some(nsd) = nsd else {
        eprintln!("SKIPPED: no nsd on this machine");
        return;
    };
    let Some(rack) = Rack::new() else { return };
    let dir = rack.dir.path();
    let mut zone =
        String::from("$ORIGIN xy.\n@ 60 SOA ns hostmaster 1 60 60 60 60\n@ 60 NS ns\nns 60 A 10.9.0.1\n");
    for n in 0..40 {
        zone += &format!("big 60 TXT \"{n:03} {}\"\n", "x".repeat(200));
    }
    zone += "small 60 TXT \"hello\"\n";
    std::fs::write(dir.join("zone"), zone).unwrap();
    let start = |host: usize| {
        let own = dir.join(host.to_string());
        std::fs::create_dir(&own).unwrap();
        let text = |name: &str| own.join(name).display().to_string();
        // One nsd answers any length by UDP; the other keeps its default, so TCP takes over.
        let size = if host == 0 { 65535 } else { 1232 };
        let conf = format!(
            "server:\n ip-address: 127.0.0.1@5300\n username: \"\"\n chroot: \"\"\n pidfile: \"{}\"\n xfrdfile: \"{}\"\n \
             zonelistfile: \"{}\"\n zonesdir: \"{}\"\n database: \"\"\n ipv4-edns-size: {size}\n server-count: 1\n\
             remote-control:\n control-enable: no\nzone:\n name: xy\n zonefile: zone\n",
            text("pid"),
            text("xfrd"),
            text("zones"),
            dir.display()
        );
        std::fs::write(own.join("nsd.conf"), conf).unwrap();
        let mut command = rack.replicas[host].command(nsd);
        let process = Process(command.args(["-d", "-c", &text("nsd.conf")]).spawn().unwrap());
        eventually("nsd listens", || rack.replicas[host].run("ss -Hlun").contains("127.0.0.1:5300"));
        process
    };
    let _nsd = [start(0), start(1)];
    let _replicas = [0, 1].map(|n| dns(&rack, n, &["--deterministic"]));
    let ask_for = |id: u16, label: &str| {
        let mut out = id.to_be_bytes().to_vec();
        out.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, label.len() as u8]);
        out.extend(label.as_bytes());
        out.extend(b"\x02xy\0\0\x10\0\x01");
        framed(&out)
    };
    for replica in 0..2 {
        rack.wire().only.store(replica, Ordering::Relaxed);
        for round in 0..5 {
            let queries = [ask_for(round, "small"), ask_for(round + 50, "big")];
            let got = ask(&rack, SERVICE, &queries).unwrap();
            let first = usize::from(u16::from_be_bytes([got[0], got[1]]));
            let (small, big) = got[2..].split_at(first);
            assert_eq!((&small[..2], &small[3..8]), (&round.to_be_bytes()[..], &[0, 0, 1, 0, 1][..]));
            assert_eq!((&big[2..4], &big[5..10]), (&(round + 50).to_be_bytes()[..], &[0, 0, 1, 0, 40][..]));
            assert!(big.len() > 40 * 200, "{}", big.len());
        }
    }
    assert!(event(&rack, 1, "by_tcp") >= 5 && event(&rack, 0, "by_tcp") == 0);
}
