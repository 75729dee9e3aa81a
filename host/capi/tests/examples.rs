//! The C examples, compiled against the header and run in network namespaces. Needs root and a C compiler;
//! skipped where namespaces cannot be made.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rivulet_pktio::testing::Netns;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const SERVICE: &str = "10.9.0.1";

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where cargo put the library: this test runs in the same folder's `deps`.
fn library() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "rivulet-capi"])
        .current_dir(ROOT)
        .status();
    assert!(built.unwrap().success());
    let me = std::env::current_exe().unwrap();
    let folder = me.parent().unwrap().parent().unwrap();
    [folder.to_owned(), folder.with_file_name("debug")]
        .into_iter()
        .find(|f| f.join("librivulet_msk.so").exists())
        .expect("librivulet_msk.so")
}

fn compile(name: &str, library: &Path, into: &Path) -> PathBuf {
    let program = into.join(name);
    let out = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(format!("{ROOT}/examples/{name}.c"))
        .arg(format!("-I{ROOT}/include"))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .arg("-lrivulet_msk")
        .output()
        .expect("cc");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

fn keys(dir: &Path) -> PathBuf {
    // What `rivulet keygen` writes; the keys of a test need not be secret.
    let path = dir.join("keys.toml");
    let text = "service = 1\nusable_seal = 1\nusable_nonce = 1\n\n[[seal]]\nepoch = 1\n\
        master = \"000102030405060708090a0b0c0d0e0f\"\n\n[[nonce]]\nepoch = 1\nk = \"0001020304050607\"\n\
        k_prime = \"08090a0b0c0d0e0f\"\nopening = \"101112131415161718191a1b1c1d1e1f\"\n";
    std::fs::write(&path, text).unwrap();
    path
}

fn serve(ns: &Netns, program: &Path, keys: &Path) -> Process {
    let mut command = ns.command(program.to_str().unwrap());
    let child = command.args(["s0", SERVICE, "7"]).arg(keys).spawn().unwrap();
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let alive = format!("rivulet_guard_{}_", child.id());
    while !ns.run("nft list tables netdev").contains(&alive) {
        assert!(std::time::Instant::now() < patience, "the example did not start");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Process(child)
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

/// The echo service counts each client's lines and keeps nothing: killed between two lines, its successor
/// goes on counting.
#[test]
fn echo_goes_on_counting_after_kill() {
    let Some((client, server)) = namespaces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let library = library();
    let (echo, talk) = (compile("echo", &library, dir.path()), compile("talk", &library, dir.path()));
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
    // Each stream has a beginning of its own.
    let parallel: Vec<String> = (0..3).map(|_| next()).collect();
    assert_eq!(parallel, ["parallel 1: one", "parallel 1: two", "parallel 1: three"]);
    assert!(talking.0.wait().unwrap().success());
}

#[test]
fn clock_tells_the_time_and_ends() {
    let Some((client, server)) = namespaces() else { return };
    let dir = tempfile::tempdir().unwrap();
    let library = library();
    let (clock, talk) = (compile("clock", &library, dir.path()), compile("talk", &library, dir.path()));
    let _process = serve(&server, &clock, &keys(dir.path()));
    let out = client.run(&format!("{} {SERVICE} 7 now", talk.display()));
    let year = out.split('-').next().unwrap().parse::<u32>();
    assert!(year.is_ok_and(|year| year >= 2024) && out.contains("Z\n"), "{out}");
}
