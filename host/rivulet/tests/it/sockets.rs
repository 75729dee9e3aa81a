//! Sockets under `rivulet run` behave like the kernel's TCP: the same program, which checks errno,
//! poll and epoll, shutdown, fork and exec, runs over both. Needs root; skipped if namespaces
//! cannot be created.

use std::collections::BTreeMap;
use std::path::Path;

use crate::rig::{RIVULET, Rig, SERVICE, shim};

fn checked(rig: &Rig, how: &[&str], mode: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/sockets.py");
    let mut command = rig.client.command(how.first().copied().unwrap_or("python3"));
    command.current_dir(rig.dir.path()).env("RIVULET_SHIM", shim()).args(how.iter().skip(1));
    let out = command.arg(script).args([SERVICE, "80", mode]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.ends_with("all\n"),
        "{how:?} {mode}: passed {text}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn sockets_behave_as_over_tcp() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    rig.file("file", 500_000);
    // The kernel's own TCP is the reference.
    checked(&rig, &["python3"], "tcp");
    let before = rig.client.counter("TcpActiveOpens");
    checked(&rig, &[RIVULET, "run", "--wait", "--", "python3"], "tcp");
    checked(&rig, &[RIVULET, "run", "--", "python3"], "early");
    assert_eq!(rig.client.counter("TcpActiveOpens"), before, "none of it was the kernel's TCP");
}

/// Compares result and errno of each call over the kernel's TCP and over Rivulet.
#[test]
fn calls_return_the_same_as_over_tcp() {
    const SILENT: &str = "10.9.0.9";
    let Some(rig) = Rig::new() else { return };
    let storage = rig.www();
    let server = rig.serve(&["--upload", storage.to_str().unwrap()]);
    rig.file("file", 500_000);
    // Packets to this address reach no host and get no answer.
    rig.client.ip(&format!("route add {SILENT}/32 via 10.88.0.2"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/compare.py");
    let said = |how: &[&str], mode: &str| -> BTreeMap<String, serde_json::Value> {
        let mut command = rig.client.command(how.first().copied().unwrap_or("python3"));
        command.current_dir(rig.dir.path()).env("RIVULET_SHIM", shim()).args(how.iter().skip(1)).arg(&script);
        let out = command.args([SERVICE, "80", mode]).arg(&storage).arg(SILENT).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let errors = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.ends_with("[\"all\", true]\n"), "{mode}: {text}\n{errors}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let tcp = said(&["python3"], "tcp");
    let waiting = said(&[RIVULET, "run", "--wait", "--", "python3"], "wait");
    let early = said(&[RIVULET, "run", "--", "python3"], "early");
    assert!(waiting.len() > 45 && early.len() > 45, "{} and {} cases", waiting.len(), early.len());
    let compared = [("waiting", &waiting), ("early", &early)];
    let different: Vec<_> = compared
        .iter()
        .flat_map(|(mode, ours)| ours.iter().map(move |(case, value)| (mode, case, value)))
        .filter(|(_, case, value)| tcp.get(*case) != Some(*value))
        .map(|(mode, case, value)| format!("{mode}: {case}: {value}, over TCP {:?}", tcp.get(case)))
        .collect();
    assert!(different.is_empty(), "{different:#?}");
    server.stop();
}

/// Programs' messages to their users when a connection fails.
#[test]
fn programs_report_why_a_connection_failed() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let closed = format!("http://{SERVICE}:81/file");
    let curl = rig.run(&["curl", "-sS", &closed]);
    assert!(String::from_utf8_lossy(&curl.stderr).contains("refused"), "{curl:?}");
    let wget = rig.run(&["wget", "-q", "-t", "1", "-O", "-", "--server-response", &closed]);
    assert_eq!(wget.status.code(), Some(4), "a network failure: {wget:?}");
    let mut command = rig.client.command(RIVULET);
    command.env("RIVULET_SHIM", shim()).args(["run", "--wait", "--", "curl", "-sS", &closed]);
    let curl = command.output().unwrap();
    assert_eq!(curl.status.code(), Some(7), "curl's code for a connection that was not made: {curl:?}");
}
