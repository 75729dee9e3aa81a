//! A service with a store and a list of objects: timestamps name the responses that they can,
//! records protect the rest (`stamps.rs`, `survive.rs`).

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{PATIENCE, Process, eventually, read_once};

use crate::moves::{connect, drain, follow, get, sockets};
use crate::stamps::{content, named};
use crate::survive::{Plan, Rig, SERVICE, SERVICE6};

const LARGE: usize = 8_000_000;

/// Concurrent downloads, each into its own file.
struct Downloads<'r> {
    rig: &'r Rig,
    all: Vec<(&'static str, Process)>,
}

impl Downloads<'_> {
    fn begin<'r>(rig: &'r Rig, what: &[(&'static str, String)]) -> Downloads<'r> {
        let curl = |(name, arguments): &(&'static str, String)| {
            let mut command = rig.client.command("curl");
            command.args(["-g", "-s", "-S", "-m", "60", "--limit-rate", "2M"]).args(arguments.split(' '));
            // A connection may have several responses; the last one is kept.
            command.arg("-o").arg(rig.files.path().join(name));
            (*name, Process(command.spawn().unwrap()))
        };
        Downloads { rig, all: what.iter().map(curl).collect() }
    }

    fn got(&self, name: &str) -> u64 {
        fs::metadata(self.rig.files.path().join(name)).map_or(0, |m| m.len())
    }

    /// Lets the downloads run until each has `octets` bytes; the first ones to get there are
    /// paused, because on a busy machine they would end before the last one arrives.
    fn resume(&self, octets: u64) {
        let signal = |curl: &Process, signal| {
            let pid = rustix::process::Pid::from_child(&curl.0);
            rustix::process::kill_process(pid, signal).unwrap();
        };
        let mut waiting = vec![false; self.all.len()];
        eventually("a part of each", || {
            for ((name, curl), waits) in self.all.iter().zip(&mut waiting) {
                if !*waits && self.got(name) > octets {
                    signal(curl, rustix::process::Signal::STOP);
                    *waits = true;
                }
            }
            waiting.iter().all(|waits| *waits)
        });
        self.all.iter().for_each(|(_, curl)| signal(curl, rustix::process::Signal::CONT));
    }

    /// Waits until all downloads end, and compares their contents.
    fn end(mut self, contents: &[&[u8]]) {
        let ended: Vec<_> =
            self.all.iter_mut().map(|(name, curl)| (*name, curl.0.wait().unwrap().success())).collect();
        for ((name, success), content) in ended.into_iter().zip(contents) {
            assert!(success, "{name}: {} octets", self.got(name));
            assert!(fs::read(self.rig.files.path().join(name)).unwrap() == **content, "{name}");
        }
    }
}

fn rig(service: &'static str) -> Option<Rig> {
    let rig = named(
        &Plan { service, ..Plan::default() },
        &[("large", LARGE), ("changed", LARGE), ("small", 3000)],
    )?;
    rig.file("other", LARGE - 7);
    // With a small receive buffer, slow reading makes the server send slowly.
    let short = || fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 65536 131072");
    in_netns(Some(rig.client.name()), short).unwrap().unwrap();
    Some(rig)
}

fn dies(rig: &Rig) {
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell(1, 1);
    rig.tell_named(1, 1);
}

#[test]
fn unnamed_connections_resume_by_records_beside_named_ones() {
    for service in [SERVICE, SERVICE6] {
        let Some(rig) = rig(service) else { return };
        // After the agents have requested the table from the server.
        let changed = rig.file("changed", LARGE + 5);
        let to = |rest: &str| format!("http://{service}/{rest}");
        let downloads = Downloads::begin(
            &rig,
            &[
                ("named", to("large")),
                ("cookie", format!("-H Cookie:a=b {}", to("large"))),
                ("unlisted", to("other")),
                ("head", to("changed")),
                ("second", format!("-o /dev/null {} {}", to("small"), to("large"))),
                (
                    "third",
                    format!("-o /dev/null {} -o /dev/null {} {}", to("small"), to("small?"), to("other")),
                ),
            ],
        );
        downloads.resume(500_000);
        dies(&rig);
        let (large, other) = (content(&rig, "large"), content(&rig, "other"));
        downloads.end(&[&large, &large, &other, &changed, &large, &other]);
        let (first, second) = (rig.hosts[0].replica.counts(), || rig.hosts[1].replica.counts());
        assert_eq!((first.protected, first.unprotected), (6, Default::default()));
        eventually("they are counted", || second().adopted >= 6);
        assert_eq!((second().adopted, second().refused, second().unprotected), (6, 0, Default::default()));
    }
}

/// Without timestamps the kernel makes the handshake. One replica has no socket for the connection
/// any more.
#[test]
fn connection_without_timestamps_is_recorded_from_handshake() {
    let Some(rig) = rig(SERVICE) else { return };
    rig.client.run("sysctl -qw net.ipv4.tcp_timestamps=0");
    let downloads = Downloads::begin(&rig, &[("bare", format!("http://{SERVICE}/large"))]);
    downloads.resume(500_000);
    dies(&rig);
    downloads.end(&[&content(&rig, "large")]);
    let counts = rig.hosts[0].replica.counts();
    assert_eq!((counts.protected, counts.unprotected), (1, Default::default()));
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 1);
}

/// A connection that was adopted by its record is resumed by its next record, on the same host as
/// well.
#[test]
fn connection_survives_nginx_deaths_on_both_replicas() {
    let Some(mut rig) = rig(SERVICE) else { return };
    let what = [
        ("cookie", format!("-H Cookie:a=b http://{SERVICE}/large")),
        ("second", format!("-o /dev/null http://{SERVICE}/small http://{SERVICE}/large")),
    ];
    let downloads = Downloads::begin(&rig, &what);
    downloads.resume(500_000);
    let Downloads { all, .. } = downloads;
    rig.restart(0);
    std::thread::sleep(Duration::from_millis(500));
    let downloads = Downloads { rig: &rig, all };
    downloads.resume(2_000_000);
    eventually("they are counted", || rig.hosts[0].replica.counts().adopted == 2);
    dies(&rig);
    downloads.resume(3_500_000);
    let Downloads { all, .. } = downloads;
    rig.restart(1);
    let large = content(&rig, "large");
    Downloads { rig: &rig, all }.end(&[&large, &large]);
    // An adopted connection already requests the rest from the next server.
    let counts = rig.hosts[1].replica.counts();
    assert_eq!((counts.adopted, counts.refused), (2, 0));
}

/// The client has received no segment since the connection was recorded, and echoes an older
/// timestamp.
#[test]
fn record_takes_precedence_over_announcement() {
    let Some(rig) = rig(SERVICE) else { return };
    let to: SocketAddr = SERVICE.parse().unwrap();
    let mut stream = in_netns(Some(rig.client.name()), || TcpStream::connect(to)).unwrap().unwrap();
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: 10.8.9.9:8080\r\n\r\n").unwrap();
    let mut said = vec![0; 16_384];
    let (mut got, small) = (0, content(&rig, "small"));
    while !said[..got].ends_with(&small) {
        got += read_once(&mut stream, &mut said[got..]).unwrap();
    }
    rig.router.run("nft add table ip t");
    rig.router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
    rig.router.run(&format!("nft add rule ip t f tcp sport {} drop", to.port()));
    stream.write_all(b"GET /other HTTP/1.1\r\nHost: 10.8.9.9:8080\r\nConnection: close\r\n\r\n").unwrap();
    let first = &rig.hosts[0].replica;
    eventually("it is recorded", || first.counts().watched == 1);
    std::thread::sleep(Duration::from_millis(100));
    rig.router.run("nft delete table ip t");
    dies(&rig);
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert!(said.starts_with(b"HTTP/1.1 200 OK\r\n") && said.ends_with(&content(&rig, "other")));
    let counts = || rig.hosts[1].replica.counts();
    eventually("it is counted", || counts().protected == 1);
    assert_eq!((counts().adopted, counts().refused, first.counts().unprotected), (1, 0, Default::default()));
}

/// One connection is idle, the other in the middle of a response.
#[test]
fn named_connection_of_draining_replica_moves_by_record() {
    let Some(rig) = rig(SERVICE) else { return };
    let (small, large) = (content(&rig, "small"), content(&rig, "large"));
    let mut idle = connect(&rig);
    get(&mut idle, &small);
    let downloads = Downloads::begin(&rig, &[("named", format!("http://{SERVICE}/large"))]);
    downloads.resume(500_000);
    let (one, two) = (&rig.hosts[0].replica, &rig.hosts[1].replica);
    eventually("they are counted", || one.counts().protected == 2);
    assert_eq!(one.counts().watched, 0, "nothing is stored");
    follow(&rig);
    rig.steer("replace", 2);
    drain(&rig);
    eventually("both move", || (one.counts().moved, two.counts().adopted) == (2, 2));
    assert_eq!(sockets(&rig, 0), 0);
    get(&mut idle, &small);
    downloads.end(&[&large]);
    assert_eq!((one.counts().protected, two.counts().refused), (2, 0));
    assert_eq!((one.counts().unprotected, two.counts().unprotected), Default::default());
}

/// The segment that completes the handshake arrives twice, and right after it a request, also
/// twice: one processor handles a segment while another still handles the one before.
#[test]
fn duplicated_handshake_ack_opens_one_connection() {
    const THREADS: usize = 8;
    const EACH: usize = 150;
    let Some(rig) = rig(SERVICE) else { return };
    rig.client.run("nft add table ip twice");
    rig.client.run("nft add chain ip twice out { type filter hook output priority 0 ; }");
    rig.client.run("nft add rule ip twice out dup to 10.8.0.254 device c0");
    let (to, small): (SocketAddr, _) = (SERVICE.parse().unwrap(), content(&rig, "small"));
    let asks = |cookie: &str| {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request =
            format!("GET /small HTTP/1.1\r\nHost: 10.8.9.9:8080\r\n{cookie}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        assert!(said.ends_with(&small), "{} octets", said.len());
    };
    let client =
        || in_netns(Some(rig.client.name()), || (0..EACH).for_each(|n| asks(["", "Cookie: a\r\n"][n % 2])));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..THREADS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().for_each(|client| client.join().unwrap().unwrap());
    });
    let counts = || rig.hosts[0].replica.counts();
    eventually("they are counted", || counts().protected as usize >= THREADS * EACH);
    assert_eq!((counts().protected as usize, counts().unprotected), (THREADS * EACH, Default::default()));
}
