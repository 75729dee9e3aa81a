//! `rivulet-tiny` with real clients (`rivulet get`): its memory does not grow with their number, and a download survives its
//! death. Needs root, and Rust's target x86_64-unknown-none; skipped without one of them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use rivulet_pktio::testing::{Netns, Process, eventually};
use tempfile::TempDir;

const SERVICE: &str = "10.9.0.1";
/// All memory that the program may write, bytes.
const MEMORY: u64 = 64 << 10;
/// What the kernel counts beside that, bytes: the first stack of the process with its arguments, and the ends of pages.
const KERNELS_SHARE: u64 = 32 << 10;

const PAGE: &[u8] = include_bytes!("../../site/index.html");
const PICTURE: &[u8] = include_bytes!("../../../../docs/pictures/failover.png");

/// The programs `rivulet-tiny` and `rivulet`. `make test` has built them; otherwise they are built here, once. `None`, with
/// a line for the report, if Rust lacks the target of `rivulet-tiny`.
fn programs() -> Option<&'static (PathBuf, PathBuf)> {
    static PROGRAMS: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        // TARGET/PROFILE/deps/it-HASH
        let test = std::env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap();
        let target = folder.parent().unwrap();
        if std::env::var_os("RIVULET_BIN").is_none() {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            let profile = folder.file_name().unwrap().to_str().unwrap().replace("debug", "dev");
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--locked", "-p", "rivulet", "--profile", &profile]);
            for command in [&mut Command::new(root.join("scripts/tiny.sh")), &mut cargo] {
                command.env("CARGO_TARGET_DIR", target).current_dir(&root).stdin(Stdio::null());
                assert!(command.status().unwrap().success(), "{command:?} failed");
            }
        }
        (target.join("x86_64-unknown-none/tiny/rivulet-tiny"), folder.join("rivulet"))
    });
    if !programs.0.is_file() {
        println!("SKIPPED: no {}: rustup target add x86_64-unknown-none", programs.0.display());
        return None;
    }
    Some(programs)
}

/// client -- veth -- router -- TAP -- rivulet-tiny
struct Rig {
    tiny: &'static Path,
    rivulet: &'static Path,
    client: Netns,
    router: Netns,
    dir: TempDir,
}

impl Rig {
    fn new() -> Option<Rig> {
        let (tiny, rivulet) = programs()?;
        let (client, router) = (Netns::new("tny-c")?, Netns::new("tny-r")?);
        client.veth("c0", &router, "r0");
        client.ip("addr add 10.88.0.1/24 dev c0");
        router.ip("addr add 10.88.0.2/24 dev r0");
        router.ip("tuntap add dev t0 mode tap");
        router.ip("link set dev t0 up");
        client.ip(&format!("route add {SERVICE}/32 via 10.88.0.2"));
        router.ip(&format!("route add {SERVICE}/32 dev t0"));
        router.run("sysctl -qw net.ipv4.ip_forward=1");
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("keys"), std::array::from_fn::<u8, 48, _>(|i| (i * 5) as u8)).unwrap();
        Some(Rig { tiny, rivulet, client, router, dir })
    }

    fn start(&self) -> Process {
        let mut command = self.router.command(self.tiny.to_str().unwrap());
        command
            .args(["t0", &format!("{SERVICE}:80")])
            .arg(self.dir.path().join("keys"))
            .stdout(Stdio::null());
        let process = Process(command.spawn().unwrap());
        // A TAP has a carrier while a process is attached.
        self.router.wait_until_up("t0");
        process
    }

    fn get(&self, path: &str, out: &str) -> Child {
        let mut command = self.client.command(self.rivulet.to_str().unwrap());
        command.args(["get", "-q", "--stall-timeout", "30", &format!("http://{SERVICE}/{path}"), "-o", out]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn report(&self) -> Report {
        Report(String::from_utf8(finished(self.get("memory", "-")).stdout).unwrap())
    }
}

fn finished(download: Child) -> Output {
    let out = download.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    out
}

/// The line that the server makes about itself.
#[derive(Debug)]
struct Report(String);

impl Report {
    /// The number after a name.
    fn number(&self, name: &str) -> u64 {
        let rest =
            self.0.split_once(&format!("{name} ")).unwrap_or_else(|| panic!("no {name}: {}", self.0)).1;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..digits].parse().unwrap()
    }
}

#[test]
fn memory_does_not_grow_with_fifty_clients() {
    let Some(rig) = Rig::new() else { return };
    let server = rig.start();
    let before = rig.report();
    let pages = [("", PAGE), ("failover.png", PICTURE)];
    let downloads: Vec<_> = (0..50).map(|i| (pages[i % 2].1, rig.get(pages[i % 2].0, "-"))).collect();
    for (content, download) in downloads {
        let out = finished(download);
        assert!(out.stdout == content, "{} bytes of {}", out.stdout.len(), content.len());
    }
    let after = rig.report();
    println!("{}{}", before.0, after.0);
    // 25 pictures take more than 1,300 packets.
    assert!(after.number("responses") > 1_300, "{after:?}");
    assert_eq!(after.number("heap"), before.number("heap"));
    assert_eq!(after.number("memory"), before.number("memory"));
    assert!(after.number("memory") <= MEMORY);
    // The kernel's account of the pages that the process has written.
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.0.id())).unwrap();
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kilobytes: u64 = anonymous.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes << 10 <= MEMORY + KERNELS_SHARE, "{status}");
}

#[test]
fn killed_server_continues_the_download() {
    let Some(rig) = Rig::new() else { return };
    // The picture takes six seconds, and less than a quarter of it fits into the queue, so that every server sends a part.
    rig.router.run("tc qdisc replace dev r0 root tbf rate 100kbit burst 4kb limit 16kb");
    let mut server = rig.start();
    let (file, part) = (rig.dir.path().join("picture"), rig.dir.path().join("picture.part"));
    let download = rig.get("failover.png", file.to_str().unwrap());
    for wanted in [10_000, 30_000] {
        eventually("progress", || std::fs::metadata(&part).map_or(0, |m| m.len()) >= wanted);
        // Dropping this kills the process of `ip netns exec`, which was replaced by the server.
        drop(server);
        server = rig.start();
    }
    finished(download);
    assert!(std::fs::read(file).unwrap() == PICTURE);
    let report = rig.report();
    assert!(report.number("requests") > 1, "the last server answered nothing: {report:?}");
}
