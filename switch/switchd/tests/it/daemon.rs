//! The program as a process: flags, the bare forwarder, metrics, shutdown.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rivulet_pktio::testing::{Netns, Process};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns};

const BIN: &str = env!("CARGO_BIN_EXE_rivulet-switch");

fn output(args: &[&str]) -> (bool, String, String) {
    let out = Command::new(BIN).args(args).output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    (out.status.success(), text(out.stdout), text(out.stderr))
}

#[test]
fn prints_help_and_refuses_bad_flags() {
    let (ok, out, _) = output(&["--help"]);
    assert!(ok && out.contains("--interface") && out.contains("--grpc-server-addr"));
    let (ok, out, _) = output(&["--json-version"]);
    assert!(ok && out == "2.23\n");
    for (args, wanted) in [
        (&["--no-such-flag"][..], "unrecognised option '--no-such-flag'"),
        (&["--no-p4", "-i", "1@pio-nowhere"], "pio-nowhere"),
        (&["/no/such/file.json", "--", "--grpc-server-addr", "127.0.0.1:0"], "/no/such/file.json"),
        (&["--no-p4", "--", "--grpc-server-addr", "nonsense"], "nonsense"),
    ] {
        let (ok, _, err) = output(args);
        assert!(!ok && err.contains(wanted), "{args:?}: {err}");
    }
}

/// A client of P4Runtime cannot operate the machine, and by default only local clients can connect.
#[test]
fn control_socket_is_for_its_owner_and_p4runtime_is_local() {
    let Some(rack) = Netns::new("pio-") else { return };
    let socket = std::env::temp_dir().join(format!("rivulet-control-{}.sock", std::process::id()));
    let child =
        rack.command(BIN).args(["--no-p4", "--control-socket"]).arg(&socket).stdout(Stdio::piped()).spawn();
    let mut running = Process(child.unwrap());
    let mut line = String::new();
    BufReader::new(running.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "Server listening on 127.0.0.1:9559\n");
    let deadline = Instant::now() + Duration::from_secs(20);
    while UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < deadline, "no listener on the control socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    let mut second = rack.command(BIN);
    second.args(["--no-p4", "--control-socket"]).arg(&socket);
    let taken = second.args(["--", "--grpc-server-addr", "127.0.0.1:0"]).output().unwrap();
    let said = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(!taken.status.success() && said.contains("another process listens"), "{said}");
    assert!(running.stop().success());
    std::fs::remove_file(&socket).unwrap();
}

fn get(ns: &Netns, path: &str) -> String {
    let mut stream = in_netns(Some(ns.name()), || TcpStream::connect("127.0.0.1:9100").unwrap()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn bare_forwarder_forwards_counts_and_ends() {
    let (Some(hosts), Some(rack)) = (Netns::new("pio-"), Netns::new("pio-")) else { return };
    hosts.quiet();
    rack.quiet();
    hosts.veth("h1", &rack, "p1");
    hosts.veth("h2", &rack, "p2");
    let child = rack
        .command(BIN)
        .args("--bare-forwarder -i 1@p1 -i 2@p2 --metrics-addr 127.0.0.1:9100 --thrift-port 9090".split(' '))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Process(child);
    let mut line = String::new();
    BufReader::new(running.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "Forwarding without P4\n");
    let mut warning = String::new();
    BufReader::new(running.0.stderr.as_mut().unwrap()).read_line(&mut warning).unwrap();
    assert!(warning.starts_with("Warning: --thrift-port is not served"), "{warning}");

    let open = |name| AfPacket::open(&hosts.interface(name), Config::default()).unwrap();
    let (mut h1, mut h2) = (open("h1"), open("h2"));
    let frame = [7u8; 100];
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut h1, &mut h2];
        assert_eq!(ends[from].send(&[TxFrame::new(&frame); 50]).unwrap(), 50);
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut got = 0;
        while got < 50 && Instant::now() < deadline {
            got += ends[to].recv().unwrap();
        }
        assert_eq!(got, 50);
    }
    let lines = [
        "rivulet_switch_port_up{port=\"1\",interface=\"p1\"} 1",
        "rivulet_switch_port_rx_packets_total{port=\"1\",interface=\"p1\"} 50",
        "rivulet_switch_port_tx_bytes_total{port=\"2\",interface=\"p2\"} 5000",
    ];
    // The worker counts frames a little after sending them.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = get(&rack, "/metrics");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        match lines.iter().find(|line| !metrics.lines().any(|l| l == **line)) {
            None => break,
            Some(line) => assert!(Instant::now() < deadline, "{line} in\n{metrics}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(get(&rack, "/other").starts_with("HTTP/1.1 404"));
    assert!(running.stop().success());
}
