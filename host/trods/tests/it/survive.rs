//! curl, two replicas with nginx, a memcached on another host: a replica is cut off, and the other one goes on. A route in
//! place of the ToR, and the test in place of its answers. Needs root; skipped where namespaces cannot be made.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_bpf::trods::Lease;
use rivulet_pktio::testing::{Netns, Process, eventually};
use rivulet_trods::Settings;
use rivulet_trods::hold::Departed;
use rivulet_trods::replica::{Protected, Replica};
use rivulet_trods::store::{StoreConfig, prefix};
use tempfile::TempDir;

use crate::support::nginx;

const SERVICE: &str = "10.8.9.9:8080";
const STORE: &str = "10.8.3.3:11211";

/// A replica's host, nginx and all that protects it.
struct Host {
    replica: Replica,
    nginx: Process,
    _dir: TempDir,
    _netns: Netns,
}

struct Rig {
    hosts: Vec<Host>,
    client: Netns,
    router: Netns,
    files: TempDir,
    _store: Process,
}

impl Rig {
    /// The client behind `rate`, and two replicas.
    fn new(rate: &str) -> Option<Rig> {
        if skipped(Feature::Tcx) {
            return None;
        }
        if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED: no memcached");
            return None;
        }
        let (client, router) = (Netns::new("surv-c")?, Netns::new("surv-x")?);
        router.run("sysctl -qw net.ipv4.ip_forward=1");
        router.ip("addr add 10.8.3.3/32 dev lo");
        client.veth("c0", &router, "x0");
        client.ip("addr add 10.8.0.1/24 dev c0");
        router.ip("addr add 10.8.0.254/24 dev x0");
        client.ip("route add default via 10.8.0.254");
        router.shape("x0", rate);
        let mut memcached = router.command("memcached");
        memcached.args(["-u", "root", "-l", "10.8.3.3", "-p", "11211", "-U", "0", "-M"]);
        let store = Process(memcached.stdout(Stdio::null()).spawn().unwrap());
        let files = tempfile::tempdir().unwrap();
        fs::create_dir(files.path().join("www")).unwrap();
        let mut rig = Rig { hosts: Vec::new(), client, router, files, _store: store };
        for n in [1, 2] {
            let host = rig.host(n)?;
            rig.hosts.push(host);
        }
        rig.steer("add", 1);
        Some(rig)
    }

    fn host(&self, n: u8) -> Option<Host> {
        let netns = Netns::new(&format!("surv-r{n}"))?;
        self.router.veth(&format!("x{n}"), &netns, "r0");
        self.router.ip(&format!("addr add 10.8.{n}.254/24 dev x{n}"));
        netns.ip(&format!("addr add 10.8.{n}.1/24 dev r0"));
        netns.ip("addr add 10.8.9.9/32 dev lo");
        netns.ip(&format!("route add default via 10.8.{n}.254"));
        let dir = tempfile::tempdir().unwrap();
        let nginx = nginx(&netns, SERVICE, self.files.path(), dir.path());
        let replica = Replica::start(&netns.interface("r0")).unwrap_or_else(|e| panic!("{e}"));
        // As behind a ToR that has just excluded another: what nobody here knows is not reset.
        replica.set_lease(0, Lease { until: u64::MAX, settling: u64::MAX });
        let store = StoreConfig {
            servers: vec![STORE.parse().unwrap()],
            own: vec![format!("10.8.{n}.1").parse().unwrap()],
            copies: 1,
            prefix: prefix("www", &format!("r{n}"), 1).unwrap(),
            patience: std::time::Duration::from_millis(500),
        };
        let sockets = vec![SERVICE.parse().unwrap()];
        replica.protect(vec![Protected { sockets, lease: 0, settings: Settings { closed: true }, store }]);
        Some(Host { replica, nginx, _dir: dir, _netns: netns })
    }

    /// Has what the client sends go to replica `n`.
    fn steer(&self, how: &str, n: u8) {
        self.router.ip(&format!("route {how} 10.8.9.9/32 via 10.8.{n}.1"));
    }

    fn file(&self, name: &str, octets: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..octets).map(|n| (n * 7 + n / 251) as u8).collect();
        fs::write(self.files.path().join("www").join(name), &content).unwrap();
        content
    }

    /// curl, which writes into a file of the rig's.
    fn curl(&self, arguments: &str) -> Process {
        let mut command = self.client.command("curl");
        let out = self.files.path().join("got");
        command.args(["-s", "-S", "-m", "120", "-o"]).arg(out).args(arguments.split(' '));
        Process(command.spawn().unwrap())
    }

    fn got(&self) -> usize {
        fs::metadata(self.files.path().join("got")).map_or(0, |m| m.len() as usize)
    }

    /// Replica `of` is told that `dead` is gone.
    fn tell(&self, of: usize, dead: u8) {
        self.hosts[of].replica.departed(Departed {
            prefix: prefix("www", &format!("r{dead}"), 1).unwrap(),
            servers: vec![STORE.parse::<SocketAddr>().unwrap()],
            other: Box::new(|_, _| None),
            waits: false,
        });
    }
}

#[test]
fn a_download_goes_on_from_another_replica() {
    let Some(rig) = Rig::new("100mbit") else { return };
    let content = rig.file("large", 20_000_000);
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell(1, 1);
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(fs::read(rig.files.path().join("got")).unwrap() == content);
    let (first, second) = (&rig.hosts[0].replica, &rig.hosts[1].replica);
    eventually("it is counted", || second.counts().adopted == 1);
    assert_eq!((first.counts().protected, second.counts().refused), (1, 0));
    assert_eq!((first.counts().unprotected, second.counts().unprotected), Default::default());
}

#[test]
fn nginx_dies_and_the_download_goes_on_elsewhere() {
    let Some(mut rig) = Rig::new("100mbit") else { return };
    let content = rig.file("large", 20_000_000);
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("a third of it", || rig.got() > 7_000_000);
    rig.hosts[0].nginx.0.kill().unwrap();
    rig.hosts[0].nginx.0.wait().unwrap();
    // As a ToR does that has heard that it is not ready: its lease is not prolonged, and its place is another's.
    rig.hosts[0].replica.set_lease(0, Lease::default());
    rig.steer("replace", 2);
    rig.tell(1, 1);
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(fs::read(rig.files.path().join("got")).unwrap() == content);
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 1);
    assert_eq!(rig.hosts[1].replica.counts().refused, 0);
}
