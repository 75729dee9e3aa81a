//! Clients of the kernel's TCP that hold connections and send little do not keep others from being
//! served. Needs root; skipped if namespaces cannot be created.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{PATIENCE, Process, eventually, read_once};
use socket2::{Domain, Socket, Type};

use crate::rig::{Rig, SERVICE};

/// Limits on the simultaneous connections of one address, and of all.
const PER_ADDRESS: usize = 128;
const ALL: usize = 512;

impl Rig {
    fn serve_kernel(&self) -> Process {
        self.server.ip("route add 10.88.0.0/16 dev s0");
        let server = self.serve(&["--plain", "kernel", "--metrics", "127.0.0.1:9090"]);
        eventually("it listens", || self.curl("10.88.0.1").is_ok());
        server
    }

    /// Opens connections from an address and sends these bytes on each.
    fn hold(&self, from: Ipv4Addr, count: usize, sent: &[u8]) -> Vec<TcpStream> {
        let there: SocketAddr = format!("{SERVICE}:80").parse().unwrap();
        let connect = || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.bind(&SocketAddr::new(from.into(), 0).into())?;
            socket.connect_timeout(&there.into(), PATIENCE)?;
            let mut stream = TcpStream::from(socket);
            stream.write_all(sent)?;
            Ok::<TcpStream, std::io::Error>(stream)
        };
        in_netns(Some(self.client.name()), || (0..count).map(|_| connect().unwrap()).collect()).unwrap()
    }

    /// Runs curl from this address of the client and returns the body.
    fn curl(&self, from: &str) -> Result<Vec<u8>, String> {
        let mut command = self.client.command("curl");
        command.args(["-sS", "--max-time", "20", "--interface", from, &format!("http://{SERVICE}/file")]);
        let out = command.output().unwrap();
        if out.status.success() { Ok(out.stdout) } else { Err(String::from_utf8_lossy(&out.stderr).into()) }
    }

    fn metric_of(&self, name: &str) -> u64 {
        let metrics = self.server.run("curl -s http://127.0.0.1:9090/metrics");
        metrics
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))
            .map_or(0, |n| n.parse().unwrap())
    }
}

/// A client with more than its share of connections loses its oldest ones; others are still served.
#[test]
fn one_client_cannot_take_all_connections() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("file", 100_000);
    rig.client.ip("addr add 10.88.0.3/24 dev c0");
    let _server = rig.serve_kernel();
    let mut held = rig.hold(Ipv4Addr::new(10, 88, 0, 1), ALL + 8, b"G");
    assert_eq!(rig.curl("10.88.0.3").as_ref(), Ok(&content), "another client");
    assert_eq!(rig.curl("10.88.0.1").as_ref(), Ok(&content), "the same client");
    let displaced = "rivulet_plain_ended_total{reason=\"displaced\"}";
    eventually("the oldest gave way", || rig.metric_of(displaced) >= (ALL + 8 - PER_ADDRESS) as u64);
    held[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(read_once(&mut held[0], &mut [0; 10]), Ok(0) | Err(_)), "the oldest is closed");
    eventually("load has them", || rig.metric_of("rivulet_load") >= PER_ADDRESS as u64 / 2);
    assert!(rig.metric_of("rivulet_plain_open") <= ALL as u64);
}

/// Connections with half a head each, from as many networks as the limit on all connections allows.
#[test]
fn half_open_requests_are_displaced_by_a_request() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("file", 100_000);
    for n in 1..=5 {
        rig.client.ip(&format!("addr add 10.88.{n}.1/32 dev c0"));
    }
    let _server = rig.serve_kernel();
    let held: Vec<_> = (1..=5)
        .map(|n| rig.hold(Ipv4Addr::new(10, 88, n, 1), 104, b"GET /file HTTP/1.1\r\nHost: a"))
        .collect();
    for _ in 0..3 {
        assert_eq!(rig.curl("10.88.0.1").as_ref(), Ok(&content));
    }
    assert_eq!(rig.metric_of("rivulet_plain_ended_total{reason=\"refused\"}"), 0);
    drop(held);
}

/// A client sends a byte of its head now and then, and never the end.
#[test]
fn slow_request_head_ends_the_connection() {
    let Some(rig) = Rig::new() else { return };
    rig.file("file", 1000);
    let _server = rig.serve_kernel();
    let mut slow = rig.hold(Ipv4Addr::new(10, 88, 0, 1), 1, b"GET /file HTTP/1.1\r\nX: ").remove(0);
    eventually("it is closed", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let _ = slow.write(b"x");
        rig.metric_of("rivulet_plain_ended_total{reason=\"late\"}") == 1
    });
}

/// Stops and continues the server: system calls that it waits in return EINTR.
fn freeze(server: &Process) {
    for signal in [libc::SIGSTOP, libc::SIGCONT] {
        // Time for the server to enter the call, and to leave it.
        std::thread::sleep(std::time::Duration::from_millis(300));
        // SAFETY: a signal to a child of this test that was not waited for.
        assert_eq!(unsafe { libc::kill(server.0.id() as libc::pid_t, signal) }, 0);
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
}

/// On a socket with a timeout, a call returns EINTR when its process is stopped and continued,
/// frozen or suspended.
#[test]
fn connections_outlive_a_stopped_server() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("file", 30_000_000);
    rig.server.ip("route add 10.88.0.0/16 dev s0");
    let dir = rig.www().display().to_string();
    let server = rig.serve(&["--plain", "kernel", "--metrics", "127.0.0.1:9090", "--upload", &dir]);
    eventually("it listens", || rig.curl("10.88.0.1").is_ok());
    let hold = |sent: &[u8]| {
        let stream = rig.hold(Ipv4Addr::new(10, 88, 0, 1), 1, sent).remove(0);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut idle = hold(b"");
    let mut head = hold(b"GET /file HTTP/1.1\r\nHost: h\r\nConn");
    let mut body = hold(b"PUT /up HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nConnection: close\r\n\r\nab");
    // The client reads nothing yet, so the server waits in a write.
    let mut answer = hold(b"GET /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    freeze(&server);
    idle.write_all(b"GET /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    head.write_all(b"ection: close\r\n\r\n").unwrap();
    body.write_all(b"cd").unwrap();
    let all = |stream: &mut TcpStream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    };
    assert!(all(&mut body).starts_with(b"HTTP/1.1 201 "), "in a body");
    assert_eq!(std::fs::read(rig.www().join("up")).unwrap(), b"abcd");
    for (what, stream) in
        [("before a head", &mut idle), ("in a head", &mut head), ("in an answer", &mut answer)]
    {
        assert!(all(stream).ends_with(&content), "{what}");
    }
}
