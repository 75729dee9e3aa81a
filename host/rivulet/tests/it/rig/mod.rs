//! A client and a server in separate network namespaces, with the real `rivulet` program in both.
#![allow(dead_code, missing_docs, reason = "each test file uses its part")]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rivulet_client::{Config, IoChoice, Stack, Stream};
use rivulet_packet::heartbeat::{ETHER_TYPE, Heartbeat};
use rivulet_pktio::filter::Rule;
use rivulet_pktio::testing::{Netns, Process, eventually};
use rivulet_pktio::{AfPacket, Filter, Interface, PacketIo, in_netns};
use tempfile::TempDir;

pub const RIVULET: &str = env!("CARGO_BIN_EXE_rivulet");
pub const SERVICE: &str = "10.9.0.1";

/// client -- veth -- server, with a folder of files.
pub struct Rig {
    pub client: Netns,
    pub server: Netns,
    pub dir: TempDir,
}

impl Rig {
    /// `None` if namespaces cannot be created; the test then returns.
    pub fn new() -> Option<Rig> {
        let (client, server) = (Netns::new("hst-c")?, Netns::new("hst-s")?);
        client.veth("c0", &server, "s0");
        client.ip("addr add 10.88.0.1/24 dev c0");
        server.ip("addr add 10.88.0.2/24 dev s0");
        client.ip(&format!("route add {SERVICE}/32 via 10.88.0.2"));
        Some(Rig::between(client, server))
    }

    /// Like [`new`](Self::new), with a router between the two; also returns the router's namespace.
    pub fn with_router() -> Option<(Rig, Netns)> {
        let (client, router, server) = (Netns::new("hst-c")?, Netns::new("hst-r")?, Netns::new("hst-s")?);
        client.veth("c0", &router, "r0");
        router.veth("r1", &server, "s0");
        client.ip("addr add 10.77.0.2/24 dev c0");
        router.ip("addr add 10.77.0.1/24 dev r0");
        router.ip("addr add 10.88.0.1/24 dev r1");
        server.ip("addr add 10.88.0.2/24 dev s0");
        client.ip(&format!("route add {SERVICE}/32 via 10.77.0.1"));
        router.ip(&format!("route add {SERVICE}/32 via 10.88.0.2"));
        server.ip("route add 10.77.0.0/24 via 10.88.0.1");
        router.run("sysctl -qw net.ipv4.ip_forward=1");
        Some((Rig::between(client, server), router))
    }

    fn between(client: Netns, server: Netns) -> Rig {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("www")).unwrap();
        let keys = Command::new(RIVULET).arg("keygen").arg(dir.path().join("keys.toml")).status().unwrap();
        assert!(keys.success());
        Rig { client, server, dir }
    }

    pub fn www(&self) -> PathBuf {
        self.dir.path().join("www")
    }

    /// Creates a file of bytes without short repetitions.
    pub fn file(&self, name: &str, size: usize) -> Vec<u8> {
        let mut state = 0x1234_5678_9abc_def1u64 ^ size as u64;
        let content: Vec<u8> = (0..size)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 32) as u8
            })
            .collect();
        std::fs::write(self.www().join(name), &content).unwrap();
        content
    }

    /// Starts a server and waits until it answers.
    pub fn serve(&self, flags: &[&str]) -> Process {
        self.serve_dir(&self.www(), flags)
    }

    /// Like [`serve`](Self::serve), with another folder.
    pub fn serve_dir(&self, dir: &Path, flags: &[&str]) -> Process {
        self.started(Process(self.serve_command(dir, flags).spawn().unwrap()))
    }

    /// The command that starts a server.
    pub fn serve_command(&self, dir: &Path, flags: &[&str]) -> Command {
        let mut command = self.server.command(RIVULET);
        command.arg("serve").arg(dir).args(["-i", "s0", "--listen", &format!("{SERVICE}:80")]);
        command.arg("--keys").arg(self.dir.path().join("keys.toml")).arg("--setup-address").args(flags);
        command
    }

    /// Waits until the server answers.
    pub fn started(&self, process: Process) -> Process {
        // The guard's nftables rules are installed last.
        eventually("the server starts", || {
            let tables = self.server.run("nft list tables netdev");
            tables.contains("rivulet_guard") && self.guard_is_of_a_living_process(&tables)
        });
        process
    }

    /// Starts a server of plain TCP at the service address, without waiting until it listens.
    pub fn plain_server(&self) -> Process {
        let mut command = self.server.command("python3");
        command.args(["-m", "http.server", "--bind", SERVICE, "80", "--directory"]).arg(self.www());
        Process(command.stderr(Stdio::null()).spawn().unwrap())
    }

    /// Downloads `file` from a server of plain TCP: complete, on the same handshake, and without a
    /// RST by the kernel.
    pub fn get_plainly(&self, flags: &[&str], content: &[u8]) {
        let mut command = self.get(&["--json"]);
        let out = command.args(flags).arg("-o").arg(self.out()).arg(url("file")).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(std::fs::read(self.out()).unwrap() == content);
        let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["transport"], "tcp");
        assert_eq!(self.server.counter("TcpPassiveOpens"), 1, "one handshake");
        assert_eq!(self.client.counter("TcpOutRsts"), 0);
    }

    /// Opens a stack at the client, within this process, and reads the first `octets` bytes of
    /// `file`. Meanwhile the client's kernel must send no segment; after a stack has ended, it
    /// answers late segments, as after any program's end.
    pub fn read_quietly(&self, io: IoChoice, octets: usize) -> (Stack, Stream) {
        let (stack, mut stream) = in_netns(Some(self.client.name()), || {
            let stack = Stack::with_io(Config::default(), io).unwrap();
            let stream = stack.connect(format!("{SERVICE}:80").parse().unwrap()).unwrap();
            (stack, stream)
        })
        .unwrap();
        let resets = self.client.counter("TcpOutRsts");
        stream.write_all(request("file").as_bytes()).unwrap();
        stream.read_exact(&mut vec![0; octets]).unwrap();
        assert_eq!(self.client.counter("TcpOutRsts"), resets, "the client's kernel answered");
        (stack, stream)
    }

    /// Deletes the interfaces of both and, after a pause, creates others with the same names and
    /// addresses.
    pub fn link_anew(&self, pause: Duration) {
        let ends = [("c0", &self.client), ("s0", &self.server)]
            .map(|(device, ns)| (device, ns, ns.run(&format!("cat /sys/class/net/{device}/address"))));
        self.client.ip("link del c0");
        std::thread::sleep(pause);
        self.client.veth("c0", &self.server, "s0");
        for (device, ns, mac) in ends {
            ns.ip(&format!("link set {device} address {}", mac.trim()));
        }
        self.client.ip("addr add 10.88.0.1/24 dev c0");
        self.server.ip("addr add 10.88.0.2/24 dev s0");
        self.client.ip(&format!("route add {SERVICE}/32 via 10.88.0.2"));
    }

    /// Waits until this many bytes of a download have arrived.
    pub fn progress(&self, octets: u64) {
        let part = self.dir.path().join("out.part");
        eventually("progress", || std::fs::metadata(&part).map_or(0, |m| m.len()) >= octets);
    }

    /// Starts a download of `file`.
    pub fn download(&self, flags: &[&str]) -> Child {
        let mut command = self.get(&["--json"]);
        command.args(flags).arg("-o").arg(self.out()).arg(url("file"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits for the end of a download, which must be complete, and returns its report.
    pub fn finished(&self, download: Child, content: &[u8]) -> serde_json::Value {
        let result = download.wait_with_output().unwrap();
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        assert!(std::fs::read(self.out()).unwrap() == content, "other content");
        serde_json::from_slice(&result.stdout).unwrap()
    }

    /// A counter of the server, from its metrics at port 9090.
    pub fn metric(&self, name: &str) -> u64 {
        let metrics = self.server.run("curl -s http://127.0.0.1:9090/metrics");
        let value = metrics.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }

    /// The flag value for a replica in a pool, behind a ToR that has the client's Ethernet address.
    pub fn member(&self) -> String {
        let mac = self.client.mac("c0").map(|octet| format!("{octet:02x}")).join(":");
        format!("1/3@{mac}")
    }

    /// A socket for the heartbeats that reach the client.
    pub fn heartbeats(&self) -> AfPacket {
        let client = Interface::new(Some(self.client.name()), "c0").unwrap();
        let filter = Some(Filter::new(&[Rule::EtherType(ETHER_TYPE)]).unwrap());
        AfPacket::open(&client, rivulet_pktio::Config { filter, ..Default::default() }).unwrap()
    }

    /// Heartbeats that arrived since the last call.
    pub fn read_heartbeats(io: &mut AfPacket) -> Vec<Heartbeat> {
        let mut all = Vec::new();
        while let count @ 1.. = io.recv().unwrap() {
            all.extend((0..count).map(|i| Heartbeat::parse(&io.frame(i).data[14..]).unwrap()));
        }
        all
    }

    fn guard_is_of_a_living_process(&self, tables: &str) -> bool {
        tables.lines().filter_map(|line| line.split("rivulet_guard_").nth(1)).any(|owner| {
            let pid = owner.split('_').next().unwrap_or_default();
            Path::new("/proc").join(pid).exists()
        })
    }

    pub fn get(&self, flags: &[&str]) -> Command {
        let mut command = self.client.command(RIVULET);
        command.arg("get").args(["--stall-timeout", "30"]).args(flags);
        command
    }

    /// Runs `rivulet run -- COMMAND` in the client's namespace.
    pub fn run(&self, line: &[&str]) -> Output {
        let mut command = self.client.command(RIVULET);
        command.env("RIVULET_SHIM", shim()).args(["run", "--"]).args(line);
        command.output().unwrap()
    }

    pub fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }
}

/// A request for a file, after which the connection closes.
pub fn request(path: &str) -> String {
    format!("GET /{path} HTTP/1.1\r\nHost: {SERVICE}\r\nConnection: close\r\n\r\n")
}

pub fn url(path: &str) -> String {
    format!("http://{SERVICE}/{path}")
}

/// The shim, beside the program. A build of the whole workspace has it; otherwise it is built here,
/// once.
pub fn shim() -> &'static Path {
    static SHIM: OnceLock<PathBuf> = OnceLock::new();
    SHIM.get_or_init(|| {
        let folder = Path::new(RIVULET).parent().unwrap();
        let shim = folder.join("librivulet_shim.so");
        if std::env::var_os("RIVULET_BIN").is_none() {
            let profile = folder.file_name().and_then(|name| name.to_str()).unwrap().replace("debug", "dev");
            let built = Command::new(env!("CARGO"))
                .args(["build", "--quiet", "--locked", "-p", "rivulet-shim", "--profile", &profile])
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .stdin(Stdio::null())
                .status()
                .expect("cargo");
            assert!(built.success(), "the shim does not build");
        }
        assert!(shim.is_file(), "{} is not there", shim.display());
        shim
    })
}
