//! Sockets under `rivulet run` beside the kernel's TCP: the same program, which checks errno, poll and epoll,
//! shutdown, fork and exec, runs over both. Needs root; skipped where namespaces cannot be made.

mod rig;

use std::path::Path;

use rig::{RIVULET, Rig, SERVICE, shim};

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
    // The kernel's own TCP, so that nothing else is asked for than what it does.
    checked(&rig, &["python3"], "tcp");
    let before = Rig::counter(&rig.client, "TcpActiveOpens");
    checked(&rig, &[RIVULET, "run", "--wait", "--", "python3"], "tcp");
    checked(&rig, &[RIVULET, "run", "--", "python3"], "early");
    assert_eq!(Rig::counter(&rig.client, "TcpActiveOpens"), before, "none of it was the kernel's TCP");
}

/// What programs tell their users.
#[test]
fn programs_say_why_a_connection_failed() {
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
