//! curl downloads from two replicas with nginx, and a memcached on another host: one replica is cut
//! off, and the other one resumes the download. A route stands in for the ToR, and the test makes
//! the ToR's answers. Needs root; skipped if namespaces cannot be created.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_bpf::trods::{Lease, Pin};
use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{self, Netns, Process, eventually, read_once};
use rivulet_plain::CookieKey;
use rivulet_trods::Settings;
use rivulet_trods::hold::{Absence, Departed, Reads};
use rivulet_trods::replica::{Gone, Protected, Replica};
use rivulet_trods::store::{RENEWAL, StoreConfig, load, prefix};
use rivulet_trods::testing::keys;
use rivulet_trods::ts::Named;
use rivulet_trods::ts::hints::{PORT as PORT_OF_HINTS, Peers};
use tempfile::TempDir;

use crate::support::{CLOSED, nginx, nginx_of};

pub const SERVICE: &str = "10.8.9.9:8080";
pub const SERVICE6: &str = "[fd00:8:9::9]:8080";
/// Addresses of the store servers' hosts, and their port.
pub const STORES: [&str; 2] = ["10.8.3.3", "10.8.3.4"];
const PORT: u16 = 11211;
/// Ethernet address of the router, which stands in for the ToR.
pub const TOR: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Key that authenticates the replicas' hints.
pub const SECRET: [u8; 8] = [7; 8];

/// A replica's host with nginx and its agent's part.
pub struct Host {
    pub replica: Replica,
    pub server: Process,
    pub netns: Netns,
    dir: TempDir,
}

impl Host {
    /// Folder of this server alone.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Parameters of a rig with a client and two replicas.
pub struct Plan<'a> {
    /// Rate of the client's link, as in `tc`.
    pub rate: &'a str,
    pub settings: Settings,
    pub server: Start<'a>,
    /// Address and port of the service.
    pub service: &'a str,
    /// Number of store servers to start, at the first addresses of [`STORES`].
    pub stores: usize,
    pub renewal: Duration,
    /// End of the replicas' first lease.
    pub until: u64,
    /// Whether timestamps name the objects of the list at `/list`; stores protect the other
    /// responses.
    pub named: bool,
}

impl Default for Plan<'_> {
    fn default() -> Self {
        let (rate, settings, service) = ("100mbit", CLOSED, SERVICE);
        let (renewal, until) = (RENEWAL, u64::MAX);
        Plan { rate, settings, server: &nginx, service, stores: 1, renewal, until, named: false }
    }
}

fn services() -> Vec<SocketAddr> {
    [SERVICE, SERVICE6].map(|service| service.parse().unwrap()).to_vec()
}

/// Starts a server: namespace, address, folder of files, working folder.
pub type Start<'a> = &'a dyn Fn(&Netns, &str, &Path, &Path) -> Process;

pub struct Rig {
    pub hosts: Vec<Host>,
    pub client: Netns,
    pub router: Netns,
    pub files: TempDir,
    pub stores: Vec<Process>,
}

impl Rig {
    pub fn new(plan: &Plan<'_>) -> Option<Rig> {
        if skipped(Feature::Tcx) {
            return None;
        }
        if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED: no memcached");
            return None;
        }
        let (client, router) = (Netns::new("surv-c")?, Netns::new("surv-x")?);
        router.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1");
        client.veth("c0", &router, "x0");
        client.ip("addr add 10.8.0.1/24 dev c0");
        router.ip("addr add 10.8.0.254/24 dev x0");
        client.ip("route add default via 10.8.0.254");
        client.ip("addr add fd00:8::1/64 dev c0 nodad");
        router.ip("addr add fd00:8::254/64 dev x0 nodad");
        client.ip("route add default via fd00:8::254");
        router.shape("x0", plan.rate);
        let store = |address: &&str| {
            router.ip(&format!("addr add {address}/32 dev lo"));
            let mut memcached = router.command("memcached");
            memcached.args(["-u", "root", "-l", address, "-p", &PORT.to_string(), "-U", "0", "-M"]);
            Process(memcached.stdout(Stdio::null()).spawn().unwrap())
        };
        let stores = STORES[..plan.stores].iter().map(store).collect();
        let files = tempfile::tempdir().unwrap();
        fs::create_dir(files.path().join("www")).unwrap();
        let mut rig = Rig { hosts: Vec::new(), client, router, files, stores };
        for n in [1, 2] {
            let host = rig.host(n, plan)?;
            rig.hosts.push(host);
        }
        rig.steer("add", 1);
        Some(rig)
    }

    fn host(&self, n: u8, plan: &Plan<'_>) -> Option<Host> {
        let netns = Netns::new(&format!("surv-r{n}"))?;
        self.router.veth(&format!("x{n}"), &netns, "r0");
        self.router.ip(&format!("addr add 10.8.{n}.254/24 dev x{n}"));
        netns.ip(&format!("addr add 10.8.{n}.1/24 dev r0"));
        netns.ip("addr add 10.8.9.9/32 dev lo");
        netns.ip(&format!("route add default via 10.8.{n}.254"));
        self.router.ip(&format!("addr add fd00:8:{n}::254/64 dev x{n} nodad"));
        netns.ip(&format!("addr add fd00:8:{n}::1/64 dev r0 nodad"));
        netns.ip("addr add fd00:8:9::9/128 dev lo nodad");
        netns.ip(&format!("route add default via fd00:8:{n}::254"));
        let dir = tempfile::tempdir().unwrap();
        let server = (plan.server)(&netns, plan.service, self.files.path(), dir.path());
        let replica = self.replica(n, plan, &netns);
        Some(Host { replica, server, dir, netns })
    }

    fn replica(&self, n: u8, plan: &Plan<'_>, netns: &Netns) -> Replica {
        let replica = Replica::start(&netns.interface("r0"), plan.settings.wake, plan.named)
            .unwrap_or_else(|e| panic!("{e}"));
        // Like a ToR that has just excluded a member: no RST is sent for unknown connections.
        replica.set_lease(0, Lease { until: plan.until, settling: u64::MAX, ..Lease::default() });
        let other = 3 - n;
        let peers = Peers {
            own: n,
            // The last peer is the test itself, on the router.
            others: [(other, format!("{other}.1")), (3, format!("{n}.254"))]
                .map(|(n, at)| (n, format!("10.8.{at}:{PORT_OF_HINTS}").parse().unwrap()))
                .to_vec(),
            secret: SECRET,
        };
        let named = Named {
            list: "/list".into(),
            keys: vec![(CookieKey::new([1; 8]), true)],
            in_force: None,
            peers,
            tor: TOR,
            mss: [1460, 1440],
        };
        let store = StoreConfig {
            servers: self.servers(),
            own: vec![format!("10.8.{n}.1").parse().unwrap()],
            copies: 1,
            prefix: prefix("www", &format!("r{n}"), 1).unwrap(),
            formers: Vec::new(),
            patience: Duration::from_millis(500),
            renewal: plan.renewal,
        };
        let (store, named) = ((plan.stores > 0).then_some(store), plan.named.then_some(named));
        let sockets = vec![plan.service.parse().unwrap()];
        let others = vec![prefix("www", &format!("r{other}"), 1).unwrap()];
        replica.protect(vec![Protected {
            sockets,
            lease: 0,
            settings: plan.settings,
            store,
            keys: keys(),
            others,
            named,
        }]);
        replica
    }

    /// Replaces the process that protects the first replica's connections; its web server keeps
    /// running.
    pub fn another(&mut self, plan: &Plan<'_>) {
        let Host { replica, server, dir, netns } = self.hosts.remove(0);
        drop(replica);
        let replica = self.replica(1, plan, &netns);
        self.hosts.insert(0, Host { replica, server, dir, netns });
    }

    /// Addresses of the configured store servers, running or not.
    pub fn servers(&self) -> Vec<SocketAddr> {
        let all = STORES.iter().take(self.stores.len());
        all.map(|address| SocketAddr::new(address.parse().unwrap(), PORT)).collect()
    }

    /// Routes the client's segments to replica `n`; `how` is `add` or `replace`.
    pub fn steer(&self, how: &str, n: u8) {
        self.router.ip(&format!("route {how} 10.8.9.9/32 via 10.8.{n}.1"));
        self.router.ip(&format!("route {how} fd00:8:9::9/128 via fd00:8:{n}::1"));
    }

    pub fn file(&self, name: &str, octets: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..octets).map(|n| (n * 7 + n / 251) as u8).collect();
        fs::write(self.files.path().join("www").join(name), &content).unwrap();
        content
    }

    /// Starts curl, which writes into the rig's output file.
    pub fn curl(&self, arguments: &str) -> Process {
        let mut command = self.client.command("curl");
        let out = self.files.path().join("got");
        command.args(["-s", "-S", "-m", "120", "-o"]).arg(out).args(arguments.split(' '));
        Process(command.spawn().unwrap())
    }

    pub fn got(&self) -> usize {
        fs::metadata(self.files.path().join("got")).map_or(0, |m| m.len() as usize)
    }

    /// Kills this replica's nginx and starts it again.
    pub fn restart(&mut self, of: usize) {
        let host = &mut self.hosts[of];
        host.server.0.kill().unwrap();
        host.server.0.wait().unwrap();
        host.server = nginx(&host.netns, SERVICE, self.files.path(), host.dir.path());
    }

    /// Reports to replica `of` that `dead`, which had announced its connections, has died, and that
    /// replica `of` gets their segments: in one answer of the ToR or in two.
    pub fn tell_named(&self, of: usize, dead: u8) {
        self.change_named(of, !(1 << dead));
        self.report_named_death(of, dead, None);
        self.change_named(of, !(1 << dead));
    }

    /// Reports to replica `of` that `dead` has died, and which other replica gets its clients'
    /// segments.
    pub fn report_named_death(&self, of: usize, dead: u8, other: Option<Pin>) {
        self.hosts[of].replica.departed_named(Gone {
            replica: dead,
            services: services(),
            other: Box::new(move |_, _| other),
            waits: false,
        });
    }

    /// Reports to replica `of` that it gets segments of connections that these live replicas may
    /// hold.
    pub fn change_named(&self, of: usize, alive: u64) {
        self.hosts[of].replica.away(Absence {
            number: (0, 0),
            others: Vec::new(),
            servers: Vec::new(),
            named: services(),
            alive,
            tor: TOR,
            gets: Box::new(|_, _| true),
        });
    }

    /// Reports to replica `of` that `dead` has died.
    pub fn tell(&self, of: usize, dead: u8) {
        self.hosts[of].replica.departed(Departed {
            prefix: prefix("www", &format!("r{dead}"), 1).unwrap(),
            servers: self.servers(),
            keys: keys(),
            other: Box::new(|_, _| None),
            waits: false,
            reads: Reads::Told,
        });
    }
}

#[test]
fn download_resumes_at_another_replica() {
    for service in [SERVICE, SERVICE6] {
        let Some(rig) = Rig::new(&Plan { service, ..Plan::default() }) else { return };
        let content = rig.file("large", 20_000_000);
        let mut curl = rig.curl(&format!("-g http://{service}/large"));
        eventually("a third of it", || rig.got() > 7_000_000);
        rig.router.ip("link set x1 down");
        rig.steer("replace", 2);
        rig.tell(1, 1);
        let status = curl.0.wait().unwrap();
        assert!(status.success(), "{service} {status}: {} octets", rig.got());
        assert!(fs::read(rig.files.path().join("got")).unwrap() == content);
        let (first, second) = (&rig.hosts[0].replica, &rig.hosts[1].replica);
        eventually("it is counted", || second.counts().adopted == 1);
        assert_eq!((first.counts().protected, second.counts().refused), (1, 0));
        assert_eq!((first.counts().unprotected, second.counts().unprotected), Default::default());
    }
}

/// A download resumes after its replica's death although its client has bytes after more holes than
/// SACK blocks can report.
pub fn resumes_behind_holes(rig: &Rig, content: &[u8], tell: impl Fn()) {
    // The megabyte under way waits in this queue, so the sender learns of losses much later.
    rig.router.run("tc qdisc replace dev x0 root tbf rate 100mbit burst 64kb limit 1500kb");
    rig.hosts[0].netns.run("ethtool -K r0 tso off gso off");
    rig.router.run("nft add table ip t");
    rig.router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    // The distance between two holes is more than a first flight.
    rig.router.run("nft add rule ip t f tcp sport 8080 numgen inc mod 40 == 39 counter drop");
    let lost = || {
        let said = rig.router.run("nft list chain ip t f");
        let (_, count) = said.split_once("counter packets ").unwrap();
        count.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    eventually("some are lost", || lost() >= 5);
    rig.router.ip("link set x1 down");
    rig.router.run("nft delete table ip t");
    rig.steer("replace", 2);
    tell();
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(fs::read(rig.files.path().join("got")).unwrap() == content);
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 1);
}

#[test]
fn data_behind_holes_does_not_stall_the_adopter() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let content = rig.file("large", 20_000_000);
    resumes_behind_holes(&rig, &content, || rig.tell(1, 1));
}

#[test]
fn download_resumes_elsewhere_after_death_of_nginx() {
    let Some(mut rig) = Rig::new(&Plan::default()) else { return };
    let content = rig.file("large", 20_000_000);
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    rig.hosts[0].server.0.kill().unwrap();
    rig.hosts[0].server.0.wait().unwrap();
    // Like a ToR to which the replica reported that it is not ready: the lease ends, and the
    // clients' segments go to the other replica.
    rig.hosts[0].replica.set_lease(0, Lease::default());
    rig.steer("replace", 2);
    rig.tell(1, 1);
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(fs::read(rig.files.path().join("got")).unwrap() == content);
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 1);
    assert_eq!(rig.hosts[1].replica.counts().refused, 0);
}

/// A connection that has ended is not resumed, even if its last segment is still on its way or
/// lost.
#[test]
fn connection_closed_by_client_ends_once() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let content = rig.file("large", 20_000_000);
    let to: SocketAddr = SERVICE.parse().unwrap();
    let mut stream = in_netns(Some(rig.client.name()), || TcpStream::connect(to)).unwrap().unwrap();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut got = vec![0; 7_000_000];
    stream.read_exact(&mut got).unwrap();
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell(1, 1);
    while !got.ends_with(&content) {
        let mut more = [0; 65_536];
        let count = read_once(&mut stream, &mut more).unwrap();
        assert!(count > 0, "{} octets", got.len());
        got.extend_from_slice(&more[..count]);
    }
    // Drops pure acknowledgements, so that the server's FIN is not acknowledged.
    rig.client.run("nft add table ip last");
    rig.client.run("nft add chain ip last out { type filter hook output priority 0 ; }");
    rig.client.run("nft add rule ip last out tcp flags == ack drop");
    drop(stream);
    eventually("it has the server's", || rig.client.run("ss -Htan").contains("TIME-WAIT"));
    // Long enough for the agent to check a server that closed too early.
    std::thread::sleep(Duration::from_millis(300));
    let there = rig.hosts[1].netns.run("ss -Htan state last-ack dst 10.8.0.1");
    assert_eq!(there.lines().count(), 1, "it was given up: {there}");
    rig.client.run("nft delete table ip last");
    let records = || load(&rig.servers(), "www.r2.1", &keys(), Duration::from_secs(1)).records.len();
    let records = || in_netns(Some(rig.router.name()), records).unwrap();
    eventually("it is over", || records() == 0);
    let counts = rig.hosts[1].replica.counts();
    assert_eq!((counts.adopted, counts.refused), (1, 0));
}

/// The children of a process.
fn children(id: u32) -> Vec<String> {
    let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn download_resumes_here_after_death_of_a_worker() {
    let Some(mut rig) = Rig::new(&Plan::default()) else { return };
    let content = rig.file("large", 20_000_000);
    let host = &mut rig.hosts[0];
    host.server.0.kill().unwrap();
    host.server.0.wait().unwrap();
    host.server = nginx_of("worker_processes 1", &host.netns, SERVICE, rig.files.path(), host.dir.path());
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    let master = rig.hosts[0].server.0.id();
    let workers = children(master);
    for worker in &workers {
        assert!(Command::new("kill").args(["-9", worker]).status().unwrap().success());
    }
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(fs::read(rig.files.path().join("got")).unwrap() == content);
    let counts = || rig.hosts[0].replica.counts();
    eventually("it is counted", || counts().adopted == 1);
    assert_eq!((workers.len(), counts().refused, counts().unprotected), (1, 0, Default::default()));
    // Once the master process has exited, its new worker cannot be found by its parent.
    let workers = children(master);
    rig.hosts[0].server.0.kill().unwrap();
    rig.hosts[0].server.0.wait().unwrap();
    workers.iter().for_each(|worker| {
        let _ = Command::new("kill").args(["-9", worker]).status();
    });
}

/// The replica dies 20 ms after the handshakes, and the clients then send their first requests to
/// it.
#[test]
fn first_request_after_a_death_is_answered() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let content = rig.file("small", 1000);
    let to: SocketAddr = SERVICE.parse().unwrap();
    let connect = || in_netns(Some(rig.client.name()), || TcpStream::connect(to)).unwrap().unwrap();
    let mut streams: Vec<TcpStream> = (0..10).map(|_| connect()).collect();
    std::thread::sleep(Duration::from_millis(20));
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    for (n, stream) in streams.iter_mut().enumerate() {
        let method = ["GET", "POST"][n % 2];
        stream.set_read_timeout(Some(testing::PATIENCE)).unwrap();
        let request =
            format!("{method} /small HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
    }
    rig.tell(1, 1);
    let mut answered = 0;
    for (n, mut stream) in streams.into_iter().enumerate() {
        let mut got = Vec::new();
        let result = stream.read_to_end(&mut got);
        // On a busy machine some handshakes may not be stored by then.
        assert!(n % 2 == 0 || result.is_err(), "POST may not be executed twice");
        if result.is_ok() {
            assert!(got.starts_with(b"HTTP/1.1 200 ") && got.ends_with(&content), "{n}: {} bytes", got.len());
            answered += 1;
        }
    }
    assert!(answered > 0);
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted >= answered);
}
