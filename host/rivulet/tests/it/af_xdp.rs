//! Server and client over AF_XDP, beside other programs on their interfaces. Needs root and a
//! kernel with AF_XDP; otherwise skipped.

use std::io::Read;
use std::time::Duration;

use crate::rig::{RIVULET, Rig, SERVICE, shim, url};
use rivulet_client::IoChoice;
use rivulet_pktio::AfPacket;
use rivulet_pktio::testing::{Netns, eventually, lacks_af_xdp};

const XDP: [&str; 2] = ["--io", "af_xdp"];

/// client -- veth -- server, with offloads off, as AF_XDP needs it.
fn rig() -> Option<Rig> {
    if lacks_af_xdp() {
        return None;
    }
    let rig = Rig::new()?;
    offloads_off(&rig);
    Some(rig)
}

fn offloads_off(rig: &Rig) {
    rig.client.offloads_off("c0");
    rig.server.offloads_off("s0");
}

fn has_program(ns: &Netns, device: &str) -> bool {
    ns.run(&format!("ip link show dev {device}")).contains("prog/xdp")
}

/// Downloads the file with these flags; returns the messages if that fails.
fn get(rig: &Rig, flags: &[&str], content: &[u8]) -> Result<(), String> {
    let _ = std::fs::remove_file(rig.out());
    let out = rig.get(&["--json"]).args(flags).arg("-o").arg(rig.out()).arg(url("file")).output().unwrap();
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["transport"], "rivulet");
    assert!(std::fs::read(rig.out()).unwrap() == content, "other content");
    Ok(())
}

fn plain(rig: &Rig, content: &[u8]) {
    let _ = std::fs::remove_file(rig.out());
    let retry = "--retry 20 --retry-delay 1 --retry-connrefused";
    rig.client.run(&format!("curl -sSf {retry} -o {} {}", rig.out().display(), url("file")));
    assert!(std::fs::read(rig.out()).unwrap() == content, "plain TCP: other content");
}

/// Both ends use AF_XDP, with plain TCP on the same port, and other programs on the same
/// interfaces.
#[test]
fn af_xdp_download_runs_beside_plain_tcp() {
    let Some(rig) = rig() else { return };
    let server = rig.serve(&XDP);
    assert!(has_program(&rig.server, "s0"));
    let content = rig.file("file", 3_000_000);
    get(&rig, &XDP, &content).unwrap();
    assert!(!has_program(&rig.client, "c0"), "gone with the client");
    get(&rig, &["--io", "auto"], &content).unwrap();
    get(&rig, &[], &content).unwrap();
    assert_eq!(rig.server.counter("TcpInSegs"), 0, "the server's kernel saw none of it");
    plain(&rig, &content);
    let mut command = rig.client.command(RIVULET);
    command.env("RIVULET_SHIM", shim()).args(["run", "--io", "af_xdp", "--", "curl", "-sSf", "-o"]);
    let result = command.arg(rig.out()).arg(url("file")).output().unwrap();
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    assert!(std::fs::read(rig.out()).unwrap() == content);
    assert_eq!(rig.server.counter("TcpOutRsts"), 0, "the server's kernel answered");
    server.stop();
    assert!(!has_program(&rig.server, "s0"));
}

/// A stack over AF_XDP takes only its own packets: another process's connections from the same
/// address continue. Only the interface's queue is exclusive.
#[test]
fn af_xdp_stack_leaves_other_processes_connections_alone() {
    let Some(rig) = rig() else { return };
    let _server = rig.serve(&["--io", "af_xdp"]);
    let content = rig.file("file", 3_000_000);
    let (stack, mut stream) = rig.read_quietly(IoChoice::AfXdp, 100_000);
    assert!(has_program(&rig.client, "c0"));
    get(&rig, &[], &content).unwrap();
    get(&rig, &["--io", "auto"], &content).unwrap();
    let refused = get(&rig, &XDP, &content).unwrap_err();
    assert!(refused.contains("c0") && refused.contains("one process at a time"), "{refused}");
    plain(&rig, &content);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() >= content.len() - 100_000 && content.ends_with(&rest), "{} octets", rest.len());
    drop((stream, stack));
    eventually("the program to go", || !has_program(&rig.client, "c0"));
}

/// Fallback (section 2.6) over AF_XDP: the kernel takes over the handshake, and gets its segments
/// from then on.
#[test]
fn client_falls_back_to_plain_tcp() {
    let Some(rig) = rig() else { return };
    let content = rig.file("file", 2_000_000);
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    let _python = rig.plain_server();
    eventually("python", || rig.server.run("ss -Hltn").contains(":80 "));
    rig.get_plainly(&["--io", "af_xdp"], &content);
    let mut command = rig.get(&["-q", "--io", "af_xdp", "-o"]);
    let out = command.arg(rig.out()).arg(format!("http://{SERVICE}:81/file")).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("refused"));
}

/// A router in the middle reduces its MTU, and its ICMP reaches the server. Then both ends'
/// interfaces go down for a while, and their own MTU changes.
#[test]
fn download_survives_mtu_and_interface_changes() {
    let Some(rig) = rig() else { return };
    let Some(router) = Netns::new("hst-x") else { return };
    rig.client.ip("link del c0");
    rig.client.veth("c0", &router, "rc");
    rig.server.veth("s0", &router, "rs");
    offloads_off(&rig);
    for device in ["rc", "rs"] {
        router.offloads_off(device);
        // AF_XDP bypasses the queueing discipline of its own interface, so the router limits the
        // rate.
        router.run(&format!("tc qdisc add dev {device} root tbf rate 10mbit burst 64kb limit 256kb"));
    }
    rig.client.ip("addr add 10.88.1.1/24 dev c0");
    router.ip("addr add 10.88.1.254/24 dev rc");
    rig.server.ip("addr add 10.88.2.1/24 dev s0");
    router.ip("addr add 10.88.2.254/24 dev rs");
    router.run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.icmp_ratelimit=0");
    rig.client.ip("route add default via 10.88.1.254");
    rig.server.ip("route add default via 10.88.2.254");
    router.ip(&format!("route add {SERVICE}/32 via 10.88.2.1"));

    let server = rig.serve(&["--io", "af_xdp", "--metrics", "127.0.0.1:9090"]);
    let content = rig.file("file", 8_000_000);
    let running = rig.download(&XDP);
    rig.progress(1_500_000);
    router.ip("link set rc mtu 1280");
    rig.progress(3_000_000);
    for (octets, ns, device, peer) in
        [(4_000_000, &rig.client, "c0", "rc"), (5_500_000, &rig.server, "s0", "rs")]
    {
        ns.ip(&format!("link set {device} down"));
        ns.ip(&format!("link set {device} mtu 1260"));
        ns.ip(&format!("link set {device} up"));
        // A default route disappears with its interface.
        let last = if device == "c0" { "1" } else { "2" };
        ns.ip(&format!("route replace default via 10.88.{last}.254"));
        router.wait_until_up(peer);
        rig.progress(octets);
    }
    rig.finished(running, &content);
    assert!(rig.metric("rivulet_path_too_big_total") > 0, "the router did say so");
    server.stop();
}

/// kill -9 leaves nothing behind, and the server uses an interface that was deleted and created
/// again.
#[test]
fn killed_server_leaves_nothing_on_recreated_interface() {
    let Some(rig) = rig() else { return };
    let content = rig.file("file", 1_000_000);
    let mut server = rig.serve(&XDP);
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    // The kernel detaches the XDP program some time after the process has ended.
    eventually("the program to go", || !has_program(&rig.server, "s0"));
    let _server = rig.serve(&XDP);
    get(&rig, &XDP, &content).unwrap();
    rig.link_anew(Duration::ZERO);
    offloads_off(&rig);
    eventually("the server to open it again", || has_program(&rig.server, "s0"));
    get(&rig, &XDP, &content).unwrap();
    plain(&rig, &content);
}

/// An interface comes back unsuitable for AF_XDP: with `auto` a connection continues by AF_PACKET.
#[test]
fn connection_continues_by_af_packet_on_unsuitable_interface() {
    let Some(rig) = rig() else { return };
    let _server = rig.serve(&[]);
    rig.server.run("tc qdisc add dev s0 root tbf rate 40mbit burst 64kb limit 256kb");
    let content = rig.file("file", 3_000_000);
    let (_stack, mut stream) = rig.read_quietly(IoChoice::Auto, 100_000);
    assert!(has_program(&rig.client, "c0"));
    rig.link_anew(Duration::ZERO);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(rest.len() >= content.len() - 100_000 && content.ends_with(&rest), "{} octets", rest.len());
    assert!(!has_program(&rig.client, "c0"));
}

/// A server with an interface that returns unsuitable reports itself not ready in its heartbeats
/// until the interface is suitable.
#[test]
fn server_on_unsuitable_interface_is_not_ready() {
    let Some(rig) = rig() else { return };
    let content = rig.file("file", 100_000);
    let member = rig.member();
    let _server = rig.serve(&[&XDP[..], &["--member", &member, "--heartbeat-us", "10000"]].concat());
    let mut heard = rig.heartbeats();
    eventually("it to be ready", || beats(&mut heard).last() == Some(&true));
    rig.link_anew(Duration::ZERO);
    let mut heard = rig.heartbeats();
    let mut all = Vec::new();
    eventually("heartbeats on the new one", || {
        all.extend(beats(&mut heard));
        all.len() > 50
    });
    // The first heartbeat after the deletion may be sent before the server notices.
    assert!(all.iter().skip(1).all(|ready| !ready), "{all:?}");
    offloads_off(&rig);
    eventually("it to be ready again", || beats(&mut heard).last() == Some(&true));
    get(&rig, &[], &content).unwrap();
}

/// Whether each of the next heartbeats is ready.
fn beats(io: &mut AfPacket) -> Vec<bool> {
    Rig::read_heartbeats(io).iter().map(|beat| beat.ready).collect()
}

/// An AF_XDP socket that cannot be opened is an error that names what to change; `auto` uses
/// AF_PACKET instead.
#[test]
fn errors_name_the_setting_to_change() {
    let Some(rig) = rig() else { return };
    let content = rig.file("file", 500_000);
    let refused = |flags: &[&str]| {
        let mut command = rig.server.command("timeout");
        command.args(["60", RIVULET, "serve"]).arg(rig.www());
        command.args(["-i", "s0", "--listen", &format!("{SERVICE}:80")]);
        let out = command.arg("--keys").arg(rig.dir.path().join("keys.toml")).args(flags).output().unwrap();
        assert!(!out.status.success());
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let said = refused(&["--io", "af_xdp", "--workers", "2"]);
    assert!(said.contains("--workers 1"), "{said}");
    rig.client.run("ethtool -K c0 tx on");
    let said = refused(&XDP);
    assert!(said.contains("ethtool -K c0 tx off"), "{said}");
    let said = refused(&["--io", "something"]);
    assert!(said.contains("af_packet, af_xdp or auto"), "{said}");
    let server = rig.serve(&["--io", "auto"]);
    assert!(!has_program(&rig.server, "s0"));
    get(&rig, &[], &content).unwrap();
    server.stop();
    rig.client.run("ethtool -K c0 tx off");
    let _server = rig.serve(&["--io", "auto", "--workers", "2"]);
    assert!(!has_program(&rig.server, "s0"));
    get(&rig, &XDP, &content).unwrap();
}
