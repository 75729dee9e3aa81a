//! A connection survives the death of its server; a file that changes meanwhile ends only its own
//! download. Needs root; skipped if namespaces cannot be created.

use std::process::Stdio;

use crate::rig::{self, Rig, url};
use rivulet_pktio::testing::eventually;

/// Slow enough that a process dies in the middle of a download.
const RATE: &str = "40mbit";

/// The serving process is killed twice with SIGKILL in the middle of one download; the same
/// connection finishes.
#[test]
fn download_survives_two_server_kills() {
    let Some(rig) = Rig::new() else { return };
    rig.server.shape("s0", RATE);
    let content = rig.file("file", 25_000_000);
    let mut server = rig.serve(&[]);
    let download = rig.download(&[]);
    for wanted in [4_000_000, 14_000_000] {
        rig.progress(wanted);
        // Dropping this kills the process of `ip netns exec`, which was replaced by the server.
        drop(server);
        server = rig.serve(&[]);
    }
    let report = rig.finished(download, &content);
    assert_eq!(report["bytes"], 25_000_000);
    assert!(report["longest_gap_ms"].as_f64().unwrap() > 50.0, "it did die: {}", report["longest_gap_ms"]);
    assert_eq!(rig.server.counter("TcpOutRsts"), 0, "the dead server's kernel kept silent");
    server.stop();
    assert!(!rig.server.run("nft list tables netdev").contains("rivulet"), "everything was taken down");
    let links = rig.server.run("ip addr");
    assert!(!links.contains("rivulet0") && !links.contains(rig::SERVICE), "{links}");
}

/// A server that is stopped reports that it is not ready before it ends. Otherwise the ToR would
/// still send segments of Rivulet's clients, and the kernel, which still listens, would accept them
/// as plain TCP.
#[test]
fn stopping_server_first_reports_not_ready() {
    let Some(rig) = Rig::new() else { return };
    let server = rig.serve(&["--member", &rig.member(), "--heartbeat-us", "2000"]);
    let mut heard = rig.heartbeats();
    eventually("it to be ready", || Rig::read_heartbeats(&mut heard).last().is_some_and(|beat| beat.ready));
    server.stop();
    let all = Rig::read_heartbeats(&mut heard);
    assert!(all.last().is_some_and(|beat| !beat.ready), "{all:?}");
}

/// The file is truncated while it is served: the download ends with an error, and the server stays
/// alive.
#[test]
fn truncated_file_fails_only_its_own_download() {
    let Some(rig) = Rig::new() else { return };
    rig.server.shape("s0", RATE);
    let server = rig.serve(&[]);
    rig.file("file", 25_000_000);
    let other = rig.file("other", 100_000);
    let out = rig.out();
    let mut command = rig.get(&["-o"]);
    let download = command.arg(&out).arg(url("file")).stderr(Stdio::piped()).spawn().unwrap();
    rig.progress(2_000_000);
    let file = std::fs::File::options().write(true).open(rig.www().join("file")).unwrap();
    file.set_len(1_000_000).unwrap();
    let result = download.wait_with_output().unwrap();
    assert_eq!(result.status.code(), Some(4), "{}", String::from_utf8_lossy(&result.stderr));
    assert!(!out.exists(), "what came is not passed off as the whole");
    let again = rig.get(&["-q", "-o"]).arg(&out).arg(url("other")).status().unwrap();
    assert!(again.success() && std::fs::read(&out).unwrap() == other);
    server.stop();
}

#[test]
fn put_survives_death_of_its_server() {
    upload("PUT");
}

#[test]
fn post_survives_death_of_its_server() {
    upload("POST");
}

/// curl uploads 10 MB and the server dies in the middle: the same connection finishes, and the file
/// is complete. The file does not appear before that.
fn upload(method: &str) {
    let Some(rig) = Rig::new() else { return };
    rig.client.shape("c0", RATE);
    let storage = rig.dir.path().join("storage");
    std::fs::create_dir(&storage).unwrap();
    let flags = ["--plain", "none", "--upload", storage.to_str().unwrap()];
    let content = rig.file("source", 10_000_000);
    let mut server = rig.serve(&flags);
    let source = rig.www().join("source");
    let mut command = rig.client.command(rig::RIVULET);
    command.env("RIVULET_SHIM", rig::shim()).args([
        "run",
        "--",
        "curl",
        "-sS",
        "-w",
        "%{http_code}",
        "-X",
        method,
    ]);
    let upload = command.arg("-T").arg(source).arg(url("up/file")).stdout(Stdio::piped()).spawn().unwrap();
    let parts = storage.join(".rivulet-uploads");
    let so_far = || {
        let entries = std::fs::read_dir(&parts).unwrap();
        let data = entries.flatten().find(|e| e.file_name().to_string_lossy().ends_with(".data"));
        data.map_or(0, |e| e.metadata().map_or(0, |m| m.len()))
    };
    eventually("progress", || so_far() >= 3_000_000);
    drop(server);
    assert!(!storage.join("up/file").exists());
    server = rig.serve(&flags);
    let result = upload.wait_with_output().unwrap();
    assert!(result.status.success(), "{:?}", result.status);
    assert_eq!(String::from_utf8_lossy(&result.stdout), "201");
    assert!(std::fs::read(storage.join("up/file")).unwrap() == content);
    server.stop();
}
