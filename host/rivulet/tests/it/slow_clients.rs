//! Clients of the kernel's TCP that hold connections and send little: others are served all the same. Needs root; skipped where namespaces
//! cannot be made.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{PATIENCE, Process, eventually, read_once};
use socket2::{Domain, Socket, Type};

use crate::rig::{Rig, SERVICE};

/// Connections of one address at a time, and of all.
const PER_ADDRESS: usize = 128;
const ALL: usize = 512;

impl Rig {
    fn serve_kernel(&self) -> Process {
        self.server.ip("route add 10.88.0.0/16 dev s0");
        let server = self.serve(&["--plain", "kernel", "--metrics", "127.0.0.1:9090"]);
        eventually("it listens", || self.curl("10.88.0.1").is_ok());
        server
    }

    /// Connections from an address, each of which has sent this.
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

    /// What curl gets from an address of the client's.
    fn curl(&self, from: &str) -> Result<Vec<u8>, String> {
        let mut command = self.client.command("curl");
        command.args(["-sS", "--max-time", "20", "--interface", from, &format!("http://{SERVICE}/file")]);
        let out = command.output().unwrap();
        if out.status.success() { Ok(out.stdout) } else { Err(String::from_utf8_lossy(&out.stderr).into()) }
    }

    fn told(&self, name: &str) -> u64 {
        let metrics = self.server.run("curl -s http://127.0.0.1:9090/metrics");
        metrics
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(' '))
            .map_or(0, |n| n.parse().unwrap())
    }
}

/// A client that holds more than its share of connections loses its oldest ones, and keeps none of the others out.
#[test]
fn one_clients_connections_keep_no_other_out() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("file", 100_000);
    rig.client.ip("addr add 10.88.0.3/24 dev c0");
    let _server = rig.serve_kernel();
    let mut held = rig.hold(Ipv4Addr::new(10, 88, 0, 1), ALL + 8, b"G");
    assert_eq!(rig.curl("10.88.0.3").as_ref(), Ok(&content), "another client");
    assert_eq!(rig.curl("10.88.0.1").as_ref(), Ok(&content), "the same client");
    let displaced = "rivulet_plain_ended_total{reason=\"displaced\"}";
    eventually("the oldest gave way", || rig.told(displaced) >= (ALL + 8 - PER_ADDRESS) as u64);
    held[0].set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(read_once(&mut held[0], &mut [0; 10]), Ok(0) | Err(_)), "the oldest is closed");
    eventually("load has them", || rig.told("rivulet_load") >= PER_ADDRESS as u64 / 2);
    assert!(rig.told("rivulet_plain_open") <= ALL as u64);
}

/// Half a head each, from as many networks as have all connections together.
#[test]
fn many_networks_connections_give_way_to_a_request() {
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
    assert_eq!(rig.told("rivulet_plain_ended_total{reason=\"refused\"}"), 0);
    drop(held);
}

/// A byte now and then is no head.
#[test]
fn a_head_that_takes_too_long_is_the_end() {
    let Some(rig) = Rig::new() else { return };
    rig.file("file", 1000);
    let _server = rig.serve_kernel();
    let mut slow = rig.hold(Ipv4Addr::new(10, 88, 0, 1), 1, b"GET /file HTTP/1.1\r\nX: ").remove(0);
    eventually("it is closed", || {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let _ = slow.write(b"x");
        rig.told("rivulet_plain_ended_total{reason=\"late\"}") == 1
    });
}
