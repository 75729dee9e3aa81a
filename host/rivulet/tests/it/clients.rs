//! Unmodified programs, each with a large download from stateless replicas that alternate and are
//! killed. Needs root; skipped if namespaces cannot be created or the program is not installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rivulet_pktio::testing::{PATIENCE, Process, eventually};

use crate::rig::SERVICE;
use crate::stateless::{BY_BLOCK, MAC, Rack, STACK};

/// A program, with its arguments for the source and the destination.
struct Client {
    program: &'static str,
    /// `{url}`, `{out}`: of the file; `{host}`, `{dir}`: parts of these; `{programs}`: folder of
    /// the tests' programs.
    args: &'static str,
    /// Shell commands that run at the client first.
    before: &'static str,
    /// Where the received data is.
    what: Output,
    /// The program repeats a refused request on another connection, as for a large object after a
    /// small answer; its range requests, which a kernel serves, break with their replica.
    again: bool,
}

enum Output {
    File,
    /// The page that the program prints contains length and hash ([`PAGE`]).
    Page,
}

const CLIENT: Client = Client { program: "", args: "", before: "", what: Output::File, again: false };

/// Fetches the file while the page loads, and shows length and FNV-1a hash of the received data.
const PAGE: &str = "<!doctype html><pre id=said></pre><script>
const ask = new XMLHttpRequest();
ask.open('GET', 'file', false);
ask.overrideMimeType('text/plain; charset=x-user-defined');
ask.send();
let hash = 0x811c9dc5;
for (let n = 0; n < ask.response.length; n++)
  hash = Math.imul(hash ^ ask.response.charCodeAt(n) & 0xff, 0x01000193);
said.textContent = `${ask.response.length} octets, ${hash >>> 0}`;
</script>";

fn page_of(content: &[u8]) -> String {
    let hash = content
        .iter()
        .fold(0x811c_9dc5u32, |hash, octet| (hash ^ u32::from(*octet)).wrapping_mul(0x0100_0193));
    format!("{} octets, {hash}", content.len())
}

/// Time until the ToR detects that a replica is dead.
const NOTICED: Duration = Duration::from_millis(50);
/// Rate in bytes a second, low enough to kill a replica in the middle.
const RATE: u64 = 4_000_000;
/// Bytes that the other replica sends before the killed one returns.
const BETWEEN: u64 = 200_000;

struct Download<'a> {
    rack: &'a Rack,
    servers: [Option<Process>; 2],
    client: Process,
    said: PathBuf,
}

impl Download<'_> {
    fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.said).unwrap()).into_owned()
    }

    /// Waits until this many bytes were sent to the client.
    fn given(&mut self, octets: u64) {
        eventually("what is sent", || {
            assert!(self.client.lives(), "it ended before {octets} octets: {}", self.output());
            self.rack.wire().given.load(Ordering::Relaxed) >= octets
        });
    }

    /// Kills the sending replica with SIGKILL after this many bytes, and restarts it once the other
    /// one has resumed, but before byte `next`. Packets go to the dead replica until its death is
    /// detected.
    fn kill(&mut self, octets: u64, next: u64) {
        self.given(octets);
        let wire = self.rack.wire();
        let victim = wire.sender.load(Ordering::Relaxed);
        drop(self.servers[victim as usize].take());
        wire.gate.store(next, Ordering::Relaxed);
        std::thread::sleep(NOTICED);
        wire.only.store(1 - victim, Ordering::Relaxed);
        self.given(octets + BETWEEN);
        self.servers[victim as usize] = Some(serve(self.rack, victim as usize));
        wire.only.store(BY_BLOCK, Ordering::Relaxed);
    }
}

fn serve(rack: &Rack, replica: usize) -> Process {
    rack.serve_with(replica, &["--large"])
}

/// A download of this many bytes with this many kills of a replica, while half a percent of all
/// packets is lost.
fn survives(client: &Client, size: usize, kills: usize) {
    let Some(rack) = Rack::new() else { return };
    let Some(program) = found(client.program, &rack) else {
        eprintln!("SKIPPED: there is no {}", client.program);
        return;
    };
    let content = rack.file("file", size);
    std::fs::write(rack.dir.path().join("www/page.html"), PAGE).unwrap();
    let servers = [0, 1].map(|n| Some(serve(&rack, n)));
    rack.wire().only.store(BY_BLOCK, Ordering::Relaxed);
    rack.wire().loss.store(5, Ordering::Relaxed);
    rack.wire().rate.store(RATE, Ordering::Relaxed);
    // The wire stops at each of these bytes, so that a late thread does not miss the place of a
    // kill.
    let gates: Vec<u64> = (1..=kills).map(|n| (n * size / (kills + 2)) as u64).collect();
    rack.wire().gate.store(gates[0], Ordering::Relaxed);
    if !client.before.is_empty() {
        let out = rack.client.command("sh").args(["-ec", client.before]).output().unwrap();
        assert!(out.status.success(), "{out:?}");
    }
    let out = rack.dir.path().join("out");
    let said = rack.dir.path().join("said");
    let mut command = rack.client.command(program.to_str().unwrap());
    command.args(client.args.split_whitespace().map(|word| fill(word, &rack, &out)));
    let said_file = std::fs::File::create(&said).unwrap();
    command.stdin(Stdio::null()).stderr(said_file.try_clone().unwrap()).stdout(said_file);
    let child = Process(command.env("HOME", rack.dir.path()).spawn().unwrap());
    let mut download = Download { rack: &rack, servers, client: child, said };
    for (round, &gate) in gates.iter().enumerate() {
        download.kill(gate, gates.get(round + 1).copied().unwrap_or(0));
    }
    let patience = Instant::now() + 4 * PATIENCE;
    while download.client.lives() {
        assert!(Instant::now() < patience, "stuck: {}", download.output());
        std::thread::sleep(Duration::from_millis(10));
    }
    let (status, said) = (download.client.0.wait().unwrap(), download.output());
    assert!(status.success(), "{status}: {said}");
    match client.what {
        Output::File => assert!(std::fs::read(&out).unwrap() == content, "other octets: {said}"),
        Output::Page => assert!(said.contains(&page_of(&content)), "other octets: {said}"),
    }
    if !client.again {
        assert_eq!(rack.client.counter("TcpEstabResets"), 0);
        for replica in &rack.replicas {
            assert_eq!(replica.counter("TcpPassiveOpens"), 0, "the kernel took no part");
        }
    }
}

fn fill(word: &str, rack: &Rack, out: &Path) -> String {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    word.replace("{url}", &crate::stateless::url("file"))
        .replace("{page}", &crate::stateless::url("page.html"))
        .replace("{host}", SERVICE)
        .replace("{out}", out.to_str().unwrap())
        .replace("{dir}", rack.dir.path().to_str().unwrap())
        .replace("{mac}", MAC)
        .replace("{stack}", STACK)
        .replace("{programs}", programs.to_str().unwrap())
}

/// Finds an installed program, or builds one of the tests' own.
fn found(program: &str, rack: &Rack) -> Option<PathBuf> {
    if program == "go" {
        return crate::programs::go_client().map(Path::to_owned);
    }
    if program == "netstack" {
        let built = rack.dir.path().join(program);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/netstack");
        let mut command = Command::new(crate::programs::go()?);
        command.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=readonly").current_dir(folder);
        let out = command.args(["build", "-o"]).arg(&built).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        return Some(built);
    }
    let out = Command::new("sh").args(["-c", "command -v \"$1\"", "sh", program]).output().unwrap();
    out.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&out.stdout).trim()))
}

/// Size for `make test`; programs that start or download slowly get less.
const SIZE: usize = 4_000_000;

macro_rules! clients {
    ($($(#[$how:meta])* $name:ident: $client:expr, $size:expr, $kills:expr;)*) => {
        $($(#[$how])* #[test] fn $name() { survives(&$client, $size, $kills); })*
    };
}

clients! {
    curl: Client { program: "curl", args: "-sSf -o {out} {url}", ..CLIENT }, SIZE, 2;
    go: Client { program: "go", args: "{url} {out}", ..CLIENT }, SIZE, 2;
    node_fetch: Client { program: "node", args: "{programs}/get.mjs fetch {url} {out}", ..CLIENT }, SIZE, 2;
    node_http: Client { program: "node", args: "{programs}/get.mjs http {url} {out}", ..CLIENT }, SIZE, 2;
    java_connection: Client { program: "java", args: "{programs}/Get.java connection {url} {out}", ..CLIENT }, SIZE, 2;
    java_client: Client { program: "java", args: "{programs}/Get.java client {url} {out}", ..CLIENT }, SIZE, 2;
    aria2: Client { program: "aria2c", args: "-q -d {dir} -o out {url}", ..CLIENT }, SIZE, 2;
    aria2_ranges: Client {
        program: "aria2c", args: "-q -d {dir} -o out -x 4 -s 4 -k 1M {url}", again: true, ..CLIENT
    }, SIZE, 2;
    chromium: Client {
        program: "chromium",
        args: "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
               --disable-component-update --disable-sync --disable-extensions --disable-dev-shm-usage \
               --user-data-dir={dir}/profile --dump-dom {page}",
        what: Output::Page,
        again: true,
        ..CLIENT
    }, SIZE, 2;
    tiny_buffer: Client { program: "python3", args: "{programs}/get.py --buffer 4096 {host} /file {out}", ..CLIENT }, SIZE, 2;
    // A pause of a busy machine must not look like a dead server.
    // mininet/tests/test_user_timeout.py tests pauses longer than the timeout, which need a ToR
    // that reports deaths.
    user_timeout: Client {
        program: "python3", args: "{programs}/get.py --user-timeout 20000 --rate 4e6 {host} /file {out}", ..CLIENT
    }, SIZE, 2;
    #[ignore = "long: fetches and builds gVisor"]
    netstack: Client {
        program: "netstack", args: "-device c0 -address {stack} -gateway 10.88.0.2 -mac {mac} -out {out} {url}", ..CLIENT
    }, 20_000_000, 2;
    few_retries: Client {
        program: "python3",
        args: "{programs}/get.py --rate 4e6 {host} /file {out}",
        before: "echo 5 > /proc/sys/net/ipv4/tcp_retries2",
        ..CLIENT
    }, SIZE, 2;
}
