//! Changes of interfaces, paths and resources during a transfer: MTU changes, routers with a
//! smaller MTU, an interface down and up, a full disk, no descriptors left, and a server that is
//! killed repeatedly. Needs root; skipped if namespaces cannot be created.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::{RIVULET, Rig, SERVICE, shim, url};
use rivulet_pktio::testing::{Netns, Process, eventually};

/// Limits the rate, so that changes fall into the middle of a transfer.
fn shape(rig: &Rig, rate: &str) {
    for (ns, device) in [(&rig.server, "s0"), (&rig.client, "c0")] {
        ns.shape(device, rate);
    }
}

/// Both ends' MTU shrinks and grows during a download: the same connection finishes.
#[test]
fn download_survives_mtu_changes() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&["--plain", "none"]);
    shape(&rig, "10mbit");
    let content = rig.file("file", 8_000_000);
    let download = rig.download(&[]);
    for (octets, mtu) in [(1_500_000, 1280), (4_000_000, 1500)] {
        rig.progress(octets);
        rig.server.ip(&format!("link set s0 mtu {mtu}"));
        rig.client.ip(&format!("link set c0 mtu {mtu}"));
    }
    rig.finished(download, &content);
}

/// Each end's interface goes down for a while.
#[test]
fn download_survives_interface_down_and_up() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&["--plain", "none"]);
    shape(&rig, "10mbit");
    let content = rig.file("file", 8_000_000);
    let download = rig.download(&[]);
    for (octets, ns, device) in [(1_500_000, &rig.client, "c0"), (4_000_000, &rig.server, "s0")] {
        rig.progress(octets);
        ns.ip(&format!("link set {device} down"));
        std::thread::sleep(Duration::from_millis(600));
        ns.ip(&format!("link set {device} up"));
    }
    let report = rig.finished(download, &content);
    assert!(report["longest_gap_ms"].as_f64().unwrap() > 250.0, "it was down: {}", report["longest_gap_ms"]);
}

/// The interfaces of server and client are deleted, missing for a while, and created again. The
/// same connection continues, and the kernels still send no segment of it.
#[test]
fn connection_survives_recreated_interfaces() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&["--metrics", "127.0.0.1:9090"]);
    // The queue is larger than the server's share of it: when the interface is deleted, the rest
    // waits as requests.
    rig.server.run("tc qdisc add dev s0 root tbf rate 15mbit burst 16kb limit 600kb");
    let content = rig.file("file", 6_000_000);
    let download = rig.download(&[]);
    rig.progress(1_000_000);
    println!("{} requests had waited long", rig.metric("rivulet_late_requests_total"));
    rig.link_anew(Duration::from_millis(300));
    rig.finished(download, &content);
    assert_eq!(rig.server.counter("TcpOutRsts"), 0);
}

/// The server's interface is moved to another namespace for a while, and comes back with the same
/// index.
#[test]
fn download_survives_interface_in_another_namespace() {
    let Some(rig) = Rig::new() else { return };
    let Some(other) = Netns::new("hst-o") else { return };
    let content = rig.file("file", 100_000);
    let _server = rig.serve(&[]);
    let index = || rig.server.run("cat /sys/class/net/s0/ifindex");
    let before = index();
    rig.server.ip(&format!("link set s0 netns {}", other.name()));
    // The server checks its interface five times a second.
    std::thread::sleep(Duration::from_secs(1));
    other.ip(&format!("link set s0 netns {}", rig.server.name()));
    rig.server.ip("addr add 10.88.0.2/24 dev s0");
    rig.server.ip("link set s0 up");
    assert_eq!(index(), before);
    rig.finished(rig.download(&[]), &content);
}

/// client -- router -- server, with an MTU of the far link that is smaller than both ends assume.
struct Routed {
    rig: Rig,
    router: Netns,
}

impl Routed {
    fn new() -> Option<Routed> {
        let rig = Rig::new()?;
        let router = Netns::new("hst-r")?;
        // The rig's own link is replaced: c0 and s0 lead to the router now.
        rig.client.ip("link del c0");
        rig.client.veth("c0", &router, "rc");
        rig.server.veth("s0", &router, "rs");
        rig.client.ip("addr add 10.88.1.1/24 dev c0");
        router.ip("addr add 10.88.1.254/24 dev rc");
        rig.server.ip("addr add 10.88.2.1/24 dev s0");
        router.ip("addr add 10.88.2.254/24 dev rs");
        router.run("sysctl -qw net.ipv4.ip_forward=1");
        router.run("sysctl -qw net.ipv4.icmp_ratelimit=0");
        rig.client.ip("route add default via 10.88.1.254");
        rig.server.ip("route add default via 10.88.2.254");
        router.ip(&format!("route add {SERVICE}/32 via 10.88.2.1"));
        Some(Routed { rig, router })
    }
}

/// A router reduces its MTU and reports it by ICMP: the server's answers shrink.
#[test]
fn smaller_path_mtu_shrinks_answers() {
    let Some(Routed { rig, router }) = Routed::new() else { return };
    let server = rig.serve(&["--plain", "none", "--metrics", "127.0.0.1:9090"]);
    shape(&rig, "20mbit");
    let content = rig.file("file", 6_000_000);
    let download = rig.download(&[]);
    rig.progress(1_500_000);
    router.ip("link set rc mtu 1280");
    rig.finished(download, &content);
    assert!(rig.metric("rivulet_path_too_big_total") > 0, "the router did say so");
    server.stop();
}

/// A router reduces its MTU in the other direction: the client's requests, which carry an upload,
/// shrink.
#[test]
fn smaller_path_mtu_shrinks_requests() {
    let Some(Routed { rig, router }) = Routed::new() else { return };
    let storage = rig.dir.path().join("storage");
    std::fs::create_dir(&storage).unwrap();
    let _server = rig.serve(&["--plain", "none", "--upload", storage.to_str().unwrap()]);
    shape(&rig, "20mbit");
    let content = rig.file("source", 5_000_000);
    let mut command = rig.client.command(RIVULET);
    command.env("RIVULET_SHIM", shim()).args(["run", "--", "curl", "-sS", "-w", "%{http_code}", "-T"]);
    let upload =
        command.arg(rig.www().join("source")).arg(url("file")).stdout(Stdio::piped()).spawn().unwrap();
    let parts = storage.join(".rivulet-uploads");
    eventually("progress", || {
        let entries = std::fs::read_dir(&parts).unwrap();
        entries.flatten().any(|e| e.metadata().is_ok_and(|m| m.len() > 1_500_000))
    });
    router.ip("link set rs mtu 1280");
    let result = upload.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&result.stdout), "201");
    assert!(std::fs::read(storage.join("file")).unwrap() == content);
}

/// The client's disk is full: the error is clear, received data is kept, and the download resumes
/// once there is room.
#[test]
fn full_disk_keeps_data_and_download_resumes() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&["--plain", "none"]);
    let content = rig.file("file", 3_000_000);
    let disk = rig.dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    // A separate mount namespace, which ends with the command.
    let line = format!(
        "mount -t tmpfs -o size=1m none {0} && {RIVULET} get -q -o {0}/file {1}; code=$?; ls {0}; \
         mount -o remount,size=8m {0} && {RIVULET} get -q -c -o {0}/file {1} && cp {0}/file {2}; exit $code",
        disk.display(),
        url("file"),
        rig.out().display()
    );
    let out = rig.client.command("unshare").args(["-m", "sh", "-c", &line]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("No space left"), "{said}");
    let left = String::from_utf8_lossy(&out.stdout);
    assert!(left.contains("file.part") && !left.lines().any(|name| name == "file"), "{left}");
    assert!(std::fs::read(rig.out()).unwrap() == content, "went on when there was room");
}

/// Open descriptors of a process.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Without free descriptors the server reports an error to clients of another file, stays alive,
/// and loses no client; a client without free descriptors reports it and ends.
#[test]
fn server_without_free_descriptors_keeps_serving() {
    let Some(rig) = Rig::new() else { return };
    let names: Vec<String> = (0..40).map(|i| format!("f{i}")).collect();
    for name in &names {
        // Too long to be kept in memory, so each file needs a descriptor.
        rig.file(name, 300_000);
    }
    let server = rig.serve(&["--plain", "none"]);
    let pid = server.0.id();
    let limit = |n: u64| {
        let limit = libc::rlimit { rlim_cur: n, rlim_max: 4096 };
        let none = std::ptr::null_mut();
        // SAFETY: the structure that this call reads.
        let set = unsafe { libc::prlimit(pid as i32, libc::RLIMIT_NOFILE, &raw const limit, none) };
        assert_eq!(set, 0);
    };
    let get = |name: &str| {
        let mut command = rig.get(&["-q", "-o"]);
        command.arg(rig.out()).arg(url(name)).output().unwrap()
    };
    assert!(get("f0").status.success());
    let before = descriptors(pid);
    limit(before as u64 - 2);
    rig.file("new", 100_000);
    let refused = get("new");
    assert!(!refused.status.success(), "a file that cannot be opened");
    assert!(!refused.stderr.is_empty());
    limit(1024);
    for name in names.iter().map(String::as_str).chain(["new"]) {
        let out = get(name);
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
    assert!(descriptors(pid) <= before + 2, "{} descriptors, {before} before", descriptors(pid));

    let mut command = rig.get(&["-q", "-o"]);
    command.arg(rig.out()).arg(url("f1"));
    // SAFETY: one async-signal-safe call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 6, rlim_max: 6 };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("Too many open files"), "{said}");
}

/// The serving process is killed with SIGKILL in the middle of a download, repeatedly: the
/// restarted process takes over and the same connection finishes. `RIVULET_KILLS` sets the number
/// of kills; a hundred take about a minute.
#[test]
fn download_survives_repeated_server_kills() {
    let Some(rig) = Rig::new() else { return };
    let kills: u64 = std::env::var("RIVULET_KILLS").map_or(4, |n| n.parse().expect("a number"));
    shape(&rig, "20mbit");
    // Each kill causes a pause; between two kills at least this many bytes arrive.
    const STEP: u64 = 700_000;
    // More bytes arrive while a server starts, on a busy machine many more; the download must not
    // end before the last kill.
    let size = 20_000_000 + 3 * STEP * kills;
    let content = rig.file("file", size as usize);
    let start = || rig.serve(&["--plain", "none"]);
    let mut server: Process = start();
    let download = rig.download(&[]);
    for kill in 0..kills {
        rig.progress(STEP * (kill + 1));
        // SAFETY: a signal to a child of this test that was not waited for.
        unsafe { libc::kill(server.0.id() as i32, libc::SIGKILL) };
        drop(server);
        server = start();
        eventually("the dead one's rules to be cleared", || {
            rig.server.run("nft list tables netdev").matches("rivulet_guard").count() == 1
        });
    }
    // The rest is sent without a rate limit.
    rig.server.run("tc qdisc del dev s0 root");
    let report = rig.finished(download, &content);
    println!("{kills} kills, {size} octets, one connection: longest pause {} ms", report["longest_gap_ms"]);
    assert_eq!(rig.server.counter("TcpOutRsts"), 0);
    server.stop();
    assert!(!rig.server.run("nft list tables netdev").contains("rivulet"));
}

/// Wrong flags and missing files are reported by name.
#[test]
fn wrong_flags_and_missing_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let empty = std::fs::File::create(dir.path().join("empty")).unwrap();
    empty.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let cases: [(&[&str], &str); 8] = [
        (&["serve", ".", "-i", "lo"], "--listen and --keys"),
        (&["serve", "missing", "-i", "lo", "--listen", "10.9.0.1:80", "--keys", "empty"], "missing"),
        (&["serve", ".", "-i", "lo", "--listen", "10.9.0.1:80", "--keys", "empty"], "empty"),
        (&["serve", ".", "-i", "lo", "--controller", "unix:x"], "--name"),
        (&["serve", ".", "-i", "lo", "--controller", "nonsense", "--name", "r1"], "unix:PATH or HOST:PORT"),
        (&["agent", "-i", "nosuch", "--name", "r1", "--controller", "unix:x"], "nosuch"),
        (&["agent", "-i", "lo", "--name", "r1", "--controller", "192.0.2.1:5"], "TLS"),
        (&["run", "--", "/no/such/program"], "/no/such/program"),
    ];
    for (flags, told) in cases {
        let mut command = Command::new(RIVULET);
        command.current_dir(dir.path()).args(flags).env("RIVULET_SHIM", RIVULET);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(told), "{flags:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}
