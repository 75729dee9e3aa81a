//! Unmodified HTTP clients download through `rivulet run`, byte for byte: curl, wget, Python's urllib and a Go
//! program. Needs root; skipped where namespaces cannot be made. The gigabyte is for
//! `cargo test --profile ci -p rivulet --test it programs:: -- --ignored`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use crate::rig::{self, RIVULET, Rig, shim, url};
use tempfile::TempDir;

/// The Go client, built once; `None` if Go is not installed.
pub(crate) fn go_client() -> Option<&'static Path> {
    static CLIENT: OnceLock<Option<(TempDir, PathBuf)>> = OnceLock::new();
    let built = CLIENT.get_or_init(|| {
        let dir = TempDir::new().unwrap();
        let program = build_go_client(dir.path())?;
        Some((dir, program))
    });
    built.as_ref().map(|(_, program)| program.as_path())
}

pub(crate) fn go() -> Option<&'static str> {
    ["go", "/usr/local/go/bin/go"].into_iter().find(|go| Command::new(go).arg("version").output().is_ok())
}

fn build_go_client(into: &Path) -> Option<PathBuf> {
    let go = go()?;
    let program = into.join("fetch");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/fetch.go");
    let mut command = Command::new(go);
    // go needs a cache folder, which a caller without HOME lacks.
    if std::env::var_os("HOME").is_none() && std::env::var_os("GOCACHE").is_none() {
        command.env("GOCACHE", into.join("cache"));
    }
    command.env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod").arg("build").arg("-o").arg(&program);
    let out = command.arg(source).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(program)
}

/// Each client's command for one download.
fn clients(out: &str, from: &str) -> Vec<Vec<String>> {
    let urllib = "import sys, urllib.request as u; u.urlretrieve(sys.argv[1], sys.argv[2])";
    let mut all = vec![
        vec!["curl", "-sSf", "-o", out, from],
        vec!["wget", "-q", "-O", out, from],
        vec!["python3", "-c", urllib, from, out],
    ]
    .into_iter()
    .map(|words| words.into_iter().map(str::to_owned).collect())
    .collect::<Vec<Vec<String>>>();
    match go_client() {
        Some(go) => all.push(vec![go.to_str().unwrap().into(), from.into(), out.into()]),
        None => eprintln!("no Go here: its client is not tried"),
    }
    all
}

fn every_client(rig: &Rig, size: usize) {
    let content = rig.file("file", size);
    // The server notices a changed file within this time.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let out = rig.out();
    for client in clients(out.to_str().unwrap(), &url("file")) {
        let _ = std::fs::remove_file(&out);
        let words: Vec<&str> = client.iter().map(String::as_str).collect();
        let started = Instant::now();
        let result = rig.run(&words);
        let seconds = started.elapsed().as_secs_f64();
        assert!(result.status.success(), "{client:?}: {result:?}");
        assert!(std::fs::read(&out).unwrap() == content, "{client:?}: {size} octets, other content");
        println!("{size} octets in {seconds:.2} s: {}", words[0]);
    }
}

#[test]
fn every_client_downloads_every_size() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    for size in [1, 10_000, 500_000, 20_000_000] {
        every_client(&rig, size);
    }
    assert_eq!(rig.client.counter("TcpActiveOpens"), 0, "none of it was the kernel's TCP");
}

#[test]
#[ignore = "a gigabyte, four times"]
fn every_client_downloads_a_gigabyte() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    every_client(&rig, 1_000_000_000);
    assert_eq!(rig.client.counter("TcpActiveOpens"), 0, "none of it was the kernel's TCP");
}

/// A program without libc is reported with the reason why it has no connection, and the programs
/// that it starts are served, too.
#[test]
fn go_program_is_served_or_reported() {
    let Some(rig) = Rig::new() else { return };
    let Some(go) = go_client() else { return };
    let _server = rig.serve(&[]);
    let content = rig.file("file", 300_000);
    let mut command = rig.client.command(RIVULET);
    command.env("RIVULET_SHIM", shim()).args(["run", "--wait", "--"]).arg(go);
    let out = command.arg(format!("http://{}:81/file", rig::SERVICE)).arg(rig.out()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("connection refused"), "{said}");

    // A dynamically linked program that starts a static one.
    let line = format!(
        "{} {} {} && curl -sS -o {}.2 {}",
        go.display(),
        url("file"),
        rig.out().display(),
        rig.out().display(),
        url("file")
    );
    let out = rig.run(&["bash", "-c", &line]);
    assert!(out.status.success(), "{out:?}");
    assert!(out.stderr.is_empty(), "{out:?}");
    assert!(std::fs::read(rig.out()).unwrap() == content);
    assert!(std::fs::read(rig.out().with_extension("2")).unwrap() == content);
    // The stack opened the refused connection, so the kernel opened none.
    assert_eq!(rig.client.counter("TcpActiveOpens"), 0);

    // With the preloaded library alone the Go program is not caught, which a message reports.
    let mut command = rig.client.command(RIVULET);
    command.env("RIVULET_SHIM", shim()).args(["run", "--by", "shim", "--", "bash", "-c", &line]);
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let told: Vec<&str> = said.lines().filter(|line| line.contains("plain TCP")).collect();
    assert!(told.len() == 1 && told[0].contains(go.to_str().unwrap()), "{said}");
    assert!(rig.client.counter("TcpActiveOpens") > 0);
}

/// A child process that outlives `rivulet run` connects by plain TCP.
#[test]
fn process_outliving_its_command_connects_by_plain_tcp() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let content = rig.file("file", 300_000);
    let (out, go) = (rig.out(), rig.dir.path().join("go"));
    let fetch = format!("curl -sS -o {0}.part {1} && mv {0}.part {0}", out.display(), url("file"));
    let line = format!("(while [ ! -e {} ]; do sleep 0.1; done; {fetch}) >/dev/null 2>&1 &", go.display());
    let result = rig.run(&["sh", "-c", &line]);
    assert!(result.status.success(), "{result:?}");
    std::fs::write(go, "").unwrap();
    let patience = Instant::now() + std::time::Duration::from_secs(60);
    while !out.exists() {
        assert!(Instant::now() < patience, "it did not connect");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(std::fs::read(out).unwrap() == content);
    assert!(rig.client.counter("TcpActiveOpens") > 0);
}
