//! `rivulet get --suspend` and `--resume`: downloads that rest in a file and go on elsewhere. Needs root; skipped where
//! namespaces cannot be made.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output};
use std::time::Duration;

use rivulet_pktio::testing::Netns;
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{RIVULET, Rig, SERVICE, url};

/// Slow enough that a download is suspended in its middle.
const RATE: &str = "40mbit";
/// Requests older than this are not ordinary ones any more, so a pause of a few seconds is as one of hours.
const HORIZON: [&str; 2] = ["--horizon-ms", "300"];

/// Downloads `file` until `wanted` bytes have come, and suspends the download.
fn suspend(rig: &Rig, download: Child, wanted: u64) -> Output {
    rig.progress(wanted);
    let pid = Pid::from_child(&download);
    kill_process(pid, Signal::INT).unwrap();
    let ended = download.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(5), "{text}");
    assert!(text.contains("rivulet get --resume"), "{text}");
    ended
}

fn download(rig: &Rig, flags: &[&str]) -> Child {
    let file = rig.dir.path().join("suspended");
    rig.download(&[flags, &["--suspend", file.to_str().unwrap()]].concat())
}

/// The command that resumes in a namespace.
fn resume(rig: &Rig, client: &Netns) -> Command {
    let mut command = client.command(RIVULET);
    command.args(["get", "--json", "--resume"]).arg(rig.dir.path().join("suspended"));
    command.arg("-o").arg(rig.out());
    command
}

fn report(out: &Output) -> serde_json::Value {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn suspended_download_resumes_on_another_machine() {
    let Some(rig) = Rig::new() else { return };
    let Some(other) = Netns::new("hst-o") else { return };
    other.veth("o0", &rig.server, "s1");
    other.ip("addr add 10.99.0.7/24 dev o0");
    rig.server.ip("addr add 10.99.0.2/24 dev s1");
    let content = rig.file("file", 8_000_000);
    rig.server.shape("s0", RATE);
    let server = rig.serve(&HORIZON);
    suspend(&rig, download(&rig, &[]), 2_000_000);
    drop(server);
    let file = rig.dir.path().join("suspended");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    std::thread::sleep(Duration::from_secs(3));

    // A replica that did not exist then, and a client with another address on another link.
    rig.client.ip("link del c0");
    other.ip(&format!("route add {SERVICE}/32 via 10.99.0.2"));
    let mut command = rig.server.command(RIVULET);
    command.arg("serve").arg(rig.www()).args(["-i", "s1", "--listen", &format!("{SERVICE}:80")]);
    command.arg("--keys").arg(rig.dir.path().join("keys.toml")).arg("--setup-address").args(HORIZON);
    command.args(["--metrics", "127.0.0.1:9090"]);
    let _server = rig.started(rivulet_pktio::testing::Process(command.spawn().unwrap()));
    rig.server.shape("s1", RATE);
    // Suspended and resumed a second time, into the same file.
    let again = resume(&rig, &other)
        .arg("--suspend")
        .arg(&file)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    suspend(&rig, again, 5_000_000);
    let last = report(&resume(&rig, &other).output().unwrap());
    assert!(std::fs::read(rig.out()).unwrap() == content);
    assert_eq!((&last["status"], &last["transport"]), (&200.into(), &"rivulet".into()), "on its connection");
    assert!(last["bytes"].as_u64().unwrap() < 3_000_000, "the rest alone: {}", last["bytes"]);
    assert!(last["counts"]["restarts"].as_u64().unwrap() >= 1);
    assert!(last["local"].as_str().unwrap().starts_with("10.99.0.7:"));
    assert!(!file.exists(), "nothing is left to resume");
}

/// The server's keys have changed, so that it cannot read the continuation: the rest is requested on a new connection, and
/// of other content nothing is joined to the beginning.
#[test]
fn download_continues_after_keys_or_content_change() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("file", 4_000_000);
    rig.server.shape("s0", RATE);
    for other_content in [false, true] {
        let server = rig.serve(&[]);
        suspend(&rig, download(&rig, &[]), 1_000_000);
        drop(server);
        std::fs::remove_file(rig.dir.path().join("keys.toml")).unwrap();
        let keys =
            Command::new(RIVULET).arg("keygen").arg(rig.dir.path().join("keys.toml")).status().unwrap();
        assert!(keys.success());
        let expected = if other_content { rig.file("file", 4_000_001) } else { content.clone() };
        let _server = rig.serve(&[]);
        let last = report(&resume(&rig, &rig.client).output().unwrap());
        assert_eq!(last["status"], if other_content { 200 } else { 206 });
        assert!(std::fs::read(rig.out()).unwrap() == expected, "other content {other_content}");
        std::fs::remove_file(rig.out()).unwrap();
    }
}

#[test]
fn plain_tcp_download_is_suspended_and_resumed() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("file", 4_000_000);
    rig.client.run("ethtool -K c0 tx off");
    let _server = rig.serve(&["--plain", "kernel"]);
    rig.server.shape("s0", RATE);
    // A client without Rivulet: the address of the service at another port than Rivulet's.
    suspend(&rig, download(&rig, &[]), 1_000_000);
    let suspended = std::fs::read(rig.dir.path().join("suspended")).unwrap();
    // Without the connection, as one of plain TCP is written.
    let line = 56 + suspended[56..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let rest = &suspended[56..line];
    let file = [&suspended[..24], blake3::hash(rest).as_bytes(), rest].concat();
    std::fs::write(rig.dir.path().join("suspended"), file).unwrap();
    let last = report(&resume(&rig, &rig.client).output().unwrap());
    assert_eq!(last["status"], 206);
    assert!(std::fs::read(rig.out()).unwrap() == content);
}

#[test]
fn wrong_suspensions_and_resumptions_name_their_remedy() {
    let Some(rig) = Rig::new() else { return };
    rig.file("file", 4_000_000);
    rig.server.shape("s0", RATE);
    let _server = rig.serve(&[]);
    suspend(&rig, download(&rig, &[]), 1_000_000);
    let file = rig.dir.path().join("suspended");
    let fails = |command: &mut Command, text: &str| {
        let out = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(1) && stderr.contains(text), "{text}: {stderr}");
    };
    let suspending = |output: &str, url: &str| {
        let mut command = rig.get(&["-q", "--suspend"]);
        command.arg(&file).args(["-o", output]).arg(url);
        command
    };
    fails(&mut suspending("x", &url("file")), "the file exists; resume it, or delete it");
    std::fs::rename(&file, rig.dir.path().join("kept")).unwrap();
    fails(&mut suspending("-", &url("file")), "must go to a file");
    fails(suspending("x", &url("file")).arg(url("file")), "one URL at a time");
    std::fs::rename(rig.dir.path().join("kept"), &file).unwrap();
    let part = rig.dir.path().join("out.part");
    let received = std::fs::read(&part).unwrap();
    std::fs::write(&part, &received[1..]).unwrap();
    fails(&mut resume(&rig, &rig.client), "bytes and not");
    std::fs::remove_file(&part).unwrap();
    fails(&mut resume(&rig, &rig.client), "copy it here from the machine that suspended");
    std::fs::write(&part, &received).unwrap();
    let mut changed = std::fs::read(&file).unwrap();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    std::fs::write(&file, &changed).unwrap();
    fails(&mut resume(&rig, &rig.client), "damaged or changed");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    fails(&mut resume(&rig, &rig.client), "chmod 600");
}
