//! Stateless TCP with real clients: curl and wget, two replicas that share no state, and between
//! them a wire that sends each packet to either replica and loses some. Needs root; skipped if
//! namespaces cannot be created.

use std::collections::VecDeque;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rivulet_pktio::testing::{Netns, Process, eventually};
use rivulet_pktio::{AfPacket, Config, IoError, PacketIo, TxFrame};
use rivulet_plain::{Segment, Stamp};
use tempfile::TempDir;

use crate::rig::{RIVULET, SERVICE};

pub(crate) const SERVICE6: &str = "fd00:9::1";
/// Values of `Wire::only`: packets go to either replica at random, or as a ToR would send them.
pub(crate) const BY_CHANCE: u32 = 2;
pub(crate) const AS_TOR: u32 = 3;
/// Segments of large answers by blocks of 256 kB of acknowledged bytes, the rest as a ToR does.
pub(crate) const BY_BLOCK: u32 = 4;
const QUEUE: usize = 100;
/// Address of a client's stack beside its kernel's.
pub(crate) const STACK: &str = "10.88.0.9";
/// Ethernet address of both replicas: the client sees them as one host.
pub(crate) const MAC: &str = "02:00:00:00:09:01";

/// client -- wire -- two replicas.
pub(crate) struct Rack {
    pub(crate) client: Netns,
    pub(crate) replicas: [Netns; 2],
    pub(crate) dir: TempDir,
    wire: Option<(Arc<Wire>, JoinHandle<()>)>,
    pub(crate) middle: Netns,
}

/// Settings and counters of the wire.
#[derive(Default)]
pub(crate) struct Wire {
    stop: AtomicBool,
    /// Packets lost of 1,000, in each direction.
    pub(crate) loss: AtomicU32,
    /// The only replica that gets packets; [`BY_CHANCE`] or [`AS_TOR`]: either.
    pub(crate) only: AtomicU32,
    pub(crate) carried: [AtomicU64; 2],
    /// Rate to the client, bytes a second, behind a queue of [`QUEUE`] packets; 0: unlimited.
    pub(crate) rate: AtomicU64,
    /// With a rate: bytes of frames sent to the client, their limit (0: none), and the replica that
    /// sent the last ones.
    pub(crate) given: AtomicU64,
    pub(crate) gate: AtomicU64,
    pub(crate) sender: AtomicU32,
}

impl Rack {
    pub(crate) fn new() -> Option<Rack> {
        let (client, middle) = (Netns::new("slt-c")?, Netns::new("slt-m")?);
        let replicas = [Netns::new("slt-a")?, Netns::new("slt-b")?];
        middle.quiet();
        client.veth("c0", &middle, "m0");
        client.ip("addr add 10.88.0.1/24 dev c0");
        client.ip("addr add fd00:88::1/64 dev c0 nodad");
        for (n, replica) in replicas.iter().enumerate() {
            replica.veth("s0", &middle, ["m1", "m2"][n]);
            replica.ip("link set s0 down");
            replica.ip(&format!("link set s0 address {MAC}"));
            replica.ip("link set s0 up");
            replica.wait_until_up("s0");
            replica.ip("addr add 10.88.0.2/24 dev s0");
            replica.ip("addr add fd00:88::2/64 dev s0 nodad");
        }
        // The answer to a replica's ARP request may reach the other replica, so both get the
        // client's Ethernet address here.
        let mac = client.run("cat /sys/class/net/c0/address");
        for replica in &replicas {
            for hop in ["10.88.0.1", STACK, "fd00:88::1"] {
                replica.ip(&format!("neigh add {hop} lladdr {} dev s0", mac.trim()));
            }
        }
        for hop in ["10.88.0.2", "fd00:88::2"] {
            client.ip(&format!("neigh add {hop} lladdr {MAC} dev c0"));
        }
        client.ip(&format!("route add {SERVICE}/32 via 10.88.0.2"));
        client.ip(&format!("route add {SERVICE6}/128 via fd00:88::2"));
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("www")).unwrap();
        let keys = Command::new(RIVULET).arg("keygen").arg(dir.path().join("keys.toml")).status().unwrap();
        assert!(keys.success());
        let wire = Arc::new(Wire { only: BY_CHANCE.into(), ..Wire::default() });
        let open = |name| AfPacket::open(&middle.interface(name), Config::default()).unwrap();
        let ports = [open("m0"), open("m1"), open("m2")];
        let of_thread = wire.clone();
        let thread = std::thread::spawn(move || carry(ports, &of_thread));
        Some(Rack { client, replicas, dir, wire: Some((wire, thread)), middle })
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire.as_ref().unwrap().0
    }

    pub fn file(&self, name: &str, size: usize) -> Vec<u8> {
        let content: Vec<u8> =
            (0..size).map(|n| (n as u32).wrapping_mul(2_654_435_761).to_be_bytes()[n % 3]).collect();
        let path = self.dir.path().join("www").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &content).unwrap();
        content
    }

    pub(crate) fn serve(&self, replica: usize) -> Process {
        self.serve_with(replica, &[])
    }

    /// Starts a replica with further flags.
    pub(crate) fn serve_with(&self, replica: usize, flags: &[&str]) -> Process {
        let www = self.dir.path().join("www");
        self.start(replica, 80, &[&[www.to_str().unwrap()], flags].concat())
    }

    /// Starts a replica with these first arguments.
    pub(crate) fn start(&self, replica: usize, port: u16, what: &[&str]) -> Process {
        let ns = &self.replicas[replica];
        let mut command = ns.command(RIVULET);
        command.arg("serve").args(what).args(["-i", "s0", "--plain", "stateless"]);
        command.args(["--listen", &format!("{SERVICE}:{port}"), "--listen", &format!("[{SERVICE6}]:{port}")]);
        command.arg("--keys").arg(self.dir.path().join("keys.toml")).args(["--setup-address"]);
        command.args(["--metrics", "127.0.0.1:9090"]);
        let process = Process(command.spawn().unwrap());
        let pid = process.0.id();
        eventually("the server starts", || {
            let tables = ns.run("nft list tables netdev");
            // `ip netns exec` is replaced by the program, so the guard's table has this process id.
            tables.contains(&format!("rivulet_guard_{pid}_"))
        });
        process
    }

    pub(crate) fn metric(&self, replica: usize, name: &str) -> u64 {
        let metrics = self.replicas[replica].run("curl -s http://127.0.0.1:9090/metrics");
        metrics.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')).unwrap().parse().unwrap()
    }

    pub(crate) fn curl(&self, args: &[&str]) -> Output {
        let mut command = self.client.command("curl");
        // Enough time for retransmissions on a slow machine.
        command.args(["-sS", "--max-time", "240"]).args(args);
        command.output().unwrap()
    }

    /// Runs curl, which must succeed, and returns its output.
    pub(crate) fn get(&self, args: &[&str]) -> Vec<u8> {
        let out = self.curl(args);
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        if let Some((wire, thread)) = self.wire.take() {
            wire.stop.store(true, Ordering::Relaxed);
            let _ = thread.join();
        }
    }
}

/// Carries frames: the client's to a random replica each, the replicas' to the client.
fn carry(mut ports: [AfPacket; 3], wire: &Wire) {
    let mut state = 0x1234_5678_9abc_def1u64;
    let mut chance = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    let (mut queue, mut free) = (VecDeque::<(u32, Vec<u8>)>::new(), Instant::now());
    while !wire.stop.load(Ordering::Relaxed) {
        let mut idle = true;
        while free <= Instant::now()
            && wire.given.load(Ordering::Relaxed) <= wire.gate.load(Ordering::Relaxed).wrapping_sub(1)
            && let Some((sender, frame)) = queue.pop_front()
        {
            let rate = wire.rate.load(Ordering::Relaxed).max(1);
            free += Duration::from_nanos(frame.len() as u64 * 1_000_000_000 / rate);
            let _ = ports[0].send(&[TxFrame::new(&frame)]);
            wire.sender.store(sender, Ordering::Relaxed);
            wire.given.fetch_add(frame.len() as u64, Ordering::Relaxed);
        }
        for from in 0..3 {
            let count = match ports[from].recv() {
                Ok(count) => count,
                // A replica's interface is down for a moment while the rack is set up.
                Err(IoError::Down(_)) => 0,
                Err(e) => panic!("{e}"),
            };
            idle &= count == 0;
            for index in 0..count {
                let frame = ports[from].frame(index).data.to_vec();
                if chance(1000) < wire.loss.load(Ordering::Relaxed).into() {
                    continue;
                }
                let to = match (from, wire.only.load(Ordering::Relaxed)) {
                    (0, BY_CHANCE) => 1 + chance(2) as usize,
                    (0, how @ (AS_TOR | BY_BLOCK)) => {
                        let block = by_block(&frame).filter(|_| how == BY_BLOCK);
                        1 + block.or_else(|| by_flow(&frame)).unwrap_or_else(|| chance(2) as usize)
                    }
                    (0, only) => 1 + only as usize,
                    _ => 0,
                };
                if from == 0 {
                    wire.carried[to - 1].fetch_add(1, Ordering::Relaxed);
                }
                if to == 0 && wire.rate.load(Ordering::Relaxed) > 0 {
                    if queue.is_empty() {
                        free = free.max(Instant::now());
                    }
                    if queue.len() < QUEUE {
                        queue.push_back((from as u32 - 1, frame));
                    }
                    continue;
                }
                // A frame that finds the queue full is lost, as on any link.
                let _ = ports[to].send(&[TxFrame::new(&frame)]);
            }
        }
        if idle {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The replica of the flow, for segments that are distributed by flow: all except those that
/// acknowledge a part of an answer.
fn by_flow(frame: &[u8]) -> Option<usize> {
    let segment = Segment::parse(frame.get(14..)?).ok()?;
    let stamp = segment.header.options.stamps.map(|stamps| Stamp::parse(stamps.echo));
    let port = segment.header.src.port();
    (!matches!(stamp, Some(Stamp::Answer(_)))).then(|| usize::from(port ^ port >> 1) & 1)
}

/// The replica of the block that contains the acknowledged byte of a large answer.
fn by_block(frame: &[u8]) -> Option<usize> {
    let segment = Segment::parse(frame.get(14..)?).ok()?;
    rivulet_plain::is_under_way(&segment)
        .then(|| (segment.header.ack >> 18).wrapping_mul(0x9e37_79b9) as usize >> 31)
}

pub(crate) fn url(path: &str) -> String {
    format!("http://{SERVICE}/{path}")
}

#[test]
fn curl_and_wget_are_served_by_two_replicas_at_once() {
    let Some(rack) = Rack::new() else { return };
    let files = [("a", 1), ("b/c.html", 900), ("d", 5000), ("e", 14_000)]
        .map(|(name, size)| (name, rack.file(name, size)));
    let _servers = [rack.serve(0), rack.serve(1)];
    for (name, content) in &files {
        assert!(rack.get(&[&url(name)]) == *content, "{name}");
        assert!(rack.get(&["-g", &format!("http://[{SERVICE6}]/{name}")]) == *content, "{name} over IPv6");
        assert!(rack.get(&["-0", &url(name)]) == *content, "{name} over HTTP/1.0");
        let wget = rack.client.command("wget").args(["-q", "-O", "-", &url(name)]).output().unwrap();
        assert!(wget.status.success() && wget.stdout == *content, "{name}: {wget:?}");
    }
    // One connection, several requests.
    let urls: Vec<String> = files.iter().map(|(name, _)| url(name)).collect();
    let before = rack.client.counter("TcpActiveOpens");
    let all = rack.get(&urls.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(all == files.iter().flat_map(|(_, content)| content.clone()).collect::<Vec<_>>());
    assert_eq!(rack.client.counter("TcpActiveOpens"), before + 1);
    // Without timestamps.
    rack.client.run("sysctl -qw net.ipv4.tcp_timestamps=0");
    for (name, content) in &files {
        assert!(rack.get(&[&url(name)]) == *content, "{name} without timestamps");
    }
    rack.client.run("sysctl -qw net.ipv4.tcp_timestamps=1");
    // Other features of HTTP.
    assert_eq!(rack.get(&["-r", "10-19", &url("d")]), files[2].1[10..20]);
    let head = String::from_utf8(rack.get(&["-I", &url("b/c.html")])).unwrap();
    assert!(head.contains("Content-Length: 900\r\nContent-Type: text/html; charset=utf-8\r\n"), "{head}");
    let etag = head.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap().to_owned();
    let same = format!("If-None-Match: {etag}");
    assert_eq!(rack.get(&["-w", "%{http_code}", "-H", &same, &url("b/c.html")]), b"304");
    assert_eq!(rack.get(&["-o", "/dev/null", "-w", "%{http_code}", &url("none")]), b"404");
    assert_eq!(rack.get(&["-w", "%{redirect_url}", "-o", "/dev/null", &url("b")]), url("b/").into_bytes());
    for replica in 0..2 {
        assert!(rack.wire().carried[replica].load(Ordering::Relaxed) > 50, "replica {replica} had its share");
        assert_eq!(rack.replicas[replica].counter("TcpPassiveOpens"), 0, "the kernel took no part");
        assert!(rack.metric(replica, "rivulet_plain_answered_total") > 5);
    }
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
    assert_eq!(rack.client.counter("TcpExtPAWSEstab"), 0);
}

#[test]
fn replicas_are_killed_under_lossy_downloads() {
    let Some(rack) = Rack::new() else { return };
    let content = rack.file("page", 10_000);
    let small = rack.file("small", 300);
    let mut servers = [Some(rack.serve(0)), Some(rack.serve(1))];
    rack.wire().loss.store(20, Ordering::Relaxed);
    let (page, little) = (url("page"), url("small"));
    let urls = [page.as_str(), "--next", "-sS", &page];
    let mut done = 0;
    for round in 0..6 {
        let target = round % 2;
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|n| {
                    let (rack, content, small, urls, little) = (&rack, &content, &small, &urls, &little);
                    scope.spawn(move || match n % 2 {
                        0 => assert!(rack.get(urls) == [content.as_slice(), content].concat()),
                        _ => assert!(rack.get(&[little]) == *small),
                    })
                })
                .collect();
            // SIGKILL in the middle: packets still go to both for a while, as before a ToR has
            // detected the death.
            drop(servers[target].take());
            std::thread::sleep(Duration::from_millis(30));
            rack.wire().only.store(1 - target as u32, Ordering::Relaxed);
            for client in clients {
                client.join().expect("a client of the killed replica's");
                done += 1;
            }
        });
        servers[target] = Some(rack.serve(target));
        rack.wire().only.store(BY_CHANCE, Ordering::Relaxed);
    }
    assert_eq!(done, 48);
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
}
