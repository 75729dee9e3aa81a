//! The C examples, compiled against the header and run in network namespaces. Needs root and a C compiler;
//! skipped where namespaces cannot be made.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use prost::Message;
use rivulet_agent::{Controllers, Relay, RelayConfig, proto};
use rivulet_pktio::testing::{Netns, Process, eventually};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SERVICE: &str = "10.9.0.1";

/// Installs the library below this folder as `make install-capi` does. Cargo built it next to this
/// test.
fn install(into: &Path) -> PathBuf {
    let me = std::env::current_exe().unwrap();
    let folder = me.parent().unwrap();
    let prefix = into.join("usr");
    let status = Command::new(format!("{ROOT}/install.sh"))
        .arg(folder)
        .env_remove("DESTDIR")
        .env_remove("LIBDIR")
        .env("PREFIX", &prefix)
        .status()
        .expect("install.sh");
    assert!(status.success());
    prefix
}

/// Output of pkg-config for the installed copy.
fn pkg_config(prefix: &Path, flag: &str) -> Vec<String> {
    let out = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .args([flag, "rivulet"])
        .output()
        .expect("pkg-config");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program from the crate's folder.
fn compile(name: &str, prefix: &Path, into: &Path) -> PathBuf {
    let program = into.join(Path::new(name).file_name().unwrap());
    let out = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(format!("{ROOT}/{name}.c"))
        .args(pkg_config(prefix, "--cflags"))
        .args(pkg_config(prefix, "--libs"))
        .arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()))
        .output()
        .expect("cc");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

fn keys(dir: &Path) -> PathBuf {
    // The format of `rivulet keygen`.
    let path = dir.join("keys.toml");
    let text = "service = 1\nusable_seal = 1\nusable_nonce = 1\n\n[[seal]]\nepoch = 1\n\
        master = \"000102030405060708090a0b0c0d0e0f\"\n\n[[nonce]]\nepoch = 1\nk = \"0001020304050607\"\n\
        k_prime = \"08090a0b0c0d0e0f\"\nopening = \"101112131415161718191a1b1c1d1e1f\"\n";
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    path
}

fn serve(ns: &Netns, program: &Path, keys: &Path) -> Process {
    started(ns, ns.command(program.to_str().unwrap()).args(["s0", SERVICE, "7"]).arg(keys))
}

/// Starts a program and waits until it serves.
fn started(ns: &Netns, command: &mut Command) -> Process {
    let child = command.spawn().unwrap();
    let alive = format!("rivulet_guard_{}_", child.id());
    let process = Process(child);
    eventually("the example starts", || ns.run("nft list tables netdev").contains(&alive));
    process
}

fn namespaces() -> Option<(Netns, Netns)> {
    let (client, server) = (Netns::new("hst-d")?, Netns::new("hst-t")?);
    client.veth("c0", &server, "s0");
    client.ip("addr add 10.88.0.1/24 dev c0");
    server.ip("addr add 10.88.0.2/24 dev s0");
    server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    client.ip(&format!("route add {SERVICE}/32 via 10.88.0.2"));
    Some((client, server))
}

/// The echo service counts each client's lines without keeping state: after a kill between two
/// lines its successor continues the count.
#[test]
fn echo_continues_its_count_after_kill() {
    let Some((client, server)) = namespaces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let library = install(dir.path());
    let (echo, talk) =
        (compile("examples/echo", &library, dir.path()), compile("examples/talk", &library, dir.path()));
    let keys = keys(dir.path());
    let mut process = serve(&server, &echo, &keys);

    let mut command = client.command(talk.to_str().unwrap());
    command.args([SERVICE, "7", "one", "two", "three"]).env("TALK_PAUSE", "1");
    let mut talking = Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut input = talking.0.stdin.take().unwrap();
    let mut lines = BufReader::new(talking.0.stdout.take().unwrap()).lines();
    let mut next = || lines.next().expect("a line").unwrap();
    for (n, text) in ["one", "two", "three"].iter().enumerate() {
        assert_eq!(next(), format!("{}: {text}", n + 1));
        drop(process);
        process = serve(&server, &echo, &keys);
        input.write_all(b"\n").unwrap();
    }
    // Each stream starts its own count.
    let parallel: Vec<String> = (0..3).map(|_| next()).collect();
    assert_eq!(parallel, ["parallel 1: one", "parallel 1: two", "parallel 1: three"]);
    assert!(talking.0.wait().unwrap().success());
}

/// An agent's file with the last update of a controller.
fn kept(dir: &Path, tor_mac: [u8; 6]) -> PathBuf {
    let service = proto::Service {
        id: 1,
        name: "echo".into(),
        addresses: vec![vec![10, 9, 0, 1]],
        port: 7,
        pool: 1,
        replica: 2,
        tor_mac: tor_mac.into(),
        heartbeat_interval_us: 10_000,
        liveness_bound_us: 100_000,
        seal_keys: vec![proto::SealKey { epoch: 1, master: vec![1; 16] }],
        nonce_keys: vec![proto::NonceKey {
            epoch: 1,
            k: vec![1; 8],
            k_prime: vec![2; 8],
            opening: vec![3; 16],
        }],
        usable_seal_epoch: 1,
        usable_nonce_epoch: 1,
        horizon_us: 4_000_000,
        ..proto::Service::default()
    };
    let path = dir.join("kept");
    let mut file = std::fs::File::options();
    let mut file = file.write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(&proto::Update { version: 3, services: vec![service] }.encode_to_vec()).unwrap();
    path
}

/// Services and keys come from the host's agent instead of a file. A successor that gets them the
/// same way continues the connection.
#[test]
fn echo_serves_services_of_the_agent() {
    let Some((client, server)) = namespaces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let prefix = install(dir.path());
    let (echo, talk) =
        (compile("examples/echo", &prefix, dir.path()), compile("examples/talk", &prefix, dir.path()));
    let socket = dir.path().join("agent.sock");
    let nobody = format!("unix:{}", dir.path().join("nobody.sock").display());
    let _agent = Relay::open(RelayConfig {
        name: "r1".into(),
        controllers: Controllers::new(&[nobody], None).unwrap(),
        mac: server.mac("s0"),
        incarnation: 5,
        socket: socket.clone(),
        owner: None,
        keep: Some(kept(dir.path(), client.mac("c0"))),
    })
    .unwrap();
    let agent = format!("unix:{}", socket.display());
    let serve = || started(&server, server.command(echo.to_str().unwrap()).args(["s0", &agent, "r1"]));
    let process = serve();
    let mut command = client.command(talk.to_str().unwrap());
    command.args([SERVICE, "7", "one", "two"]).env("TALK_PAUSE", "1");
    let mut talking = Process(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut input = talking.0.stdin.take().unwrap();
    let mut lines = BufReader::new(talking.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().expect("a line").unwrap(), "1: one");
    drop(process);
    let _successor = serve();
    input.write_all(b"\n").unwrap();
    assert_eq!(lines.next().expect("a line").unwrap(), "2: two");
}

#[test]
fn clock_answers_and_ends_the_connection() {
    let Some((client, server)) = namespaces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let library = install(dir.path());
    let (clock, talk) =
        (compile("examples/clock", &library, dir.path()), compile("examples/talk", &library, dir.path()));
    let _process = serve(&server, &clock, &keys(dir.path()));
    let out = client.run(&format!("{} {SERVICE} 7 now", talk.display()));
    let year = out.split('-').next().unwrap().parse::<u32>();
    assert!(year.is_ok_and(|year| year >= 2024) && out.contains("Z\n"), "{out}");
}

/// Null pointers, wrong counts and foreign minisockets are errors, and an event listed beside a
/// wrong one can still be answered.
#[test]
fn wrong_arguments_from_c_are_refused() {
    let Some((client, server)) = namespaces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let refusals = compile("tests/refusals", &install(dir.path()), dir.path());
    let _process = serve(&server, &refusals, &keys(dir.path()));
    let out = client.run(&format!("{} {SERVICE} 7", refusals.display()));
    assert_eq!(out, "still here\n");
}
