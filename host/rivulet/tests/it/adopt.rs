//! Connections that stateless TCP cannot serve: the replica's kernel takes them over, on the same
//! handshake. Real clients, and a wire that distributes packets to replicas like a ToR. Needs root;
//! skipped if namespaces cannot be created.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{PATIENCE, Process, eventually, lacks_af_xdp, read_once};
use socket2::{Domain, Socket, Type};

use crate::rig::SERVICE;
use crate::stateless::{AS_TOR, Rack, SERVICE6, url};

/// Limit on the connections of one client at a replica, and on those of all clients.
const SHARE: usize = 128;
const LIMIT: usize = 512;

impl Rack {
    /// A rack whose wire distributes packets as a ToR does.
    fn steered() -> Option<Rack> {
        let rack = Rack::new()?;
        rack.wire().only.store(AS_TOR, Ordering::Relaxed);
        Some(rack)
    }

    /// Starts a replica that accepts uploads. Its table has the files that exist now.
    fn storing(&self, replica: usize, flags: &[&str]) -> Process {
        let dir = self.dir.path().join("www").display().to_string();
        self.serve_with(replica, &[&["--upload", &dir], flags].concat())
    }

    /// The sum of a metric over both replicas.
    fn sum(&self, name: &str) -> u64 {
        // The processes publish metrics every few milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        (0..2).map(|n| self.metric(n, name)).sum()
    }

    fn adopted(&self) -> u64 {
        let all = ["request", "object", "split", "pipelined"];
        all.iter().map(|cause| self.sum(&format!("rivulet_plain_adopted_total{{cause=\"{cause}\"}}"))).sum()
    }

    fn refused(&self, why: &str) -> u64 {
        self.sum(&format!("rivulet_plain_refused_total{{reason=\"{why}\"}}"))
    }

    fn none_refused(&self) {
        for why in ["syn", "stray", "later", "full", "kernel"] {
            assert_eq!(self.refused(why), 0, "{why}");
        }
    }

    fn stamps(&self, on: bool) {
        self.client.run(&format!("sysctl -qw net.ipv4.tcp_timestamps={}", u8::from(on)));
    }

    /// A client's socket, connected from this port (0: any).
    fn connect(&self, port: u16) -> TcpStream {
        self.connect_with(port, |_| Ok(()))
    }

    /// A client's socket on this port, with this sequence number in its SYN.
    fn connect_at(&self, port: u16, seq: u32) -> TcpStream {
        self.connect_with(port, |socket| {
            // The kernel chooses a sequence number only if none was set.
            let options = [
                (libc::TCP_REPAIR, 1),
                (libc::TCP_REPAIR_QUEUE, 2),
                (libc::TCP_QUEUE_SEQ, seq as i32),
                (libc::TCP_REPAIR, 0),
            ];
            options.into_iter().try_for_each(|(option, value)| set_option(socket, option, value))
        })
    }

    fn connect_with(
        &self,
        port: u16,
        prepare: impl FnOnce(&Socket) -> std::io::Result<()> + Send,
    ) -> TcpStream {
        let there: SocketAddr = format!("{SERVICE}:80").parse().unwrap();
        let connected = in_netns(Some(self.client.name()), || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            prepare(&socket)?;
            socket.bind(&SocketAddr::new([10, 88, 0, 1].into(), port).into())?;
            socket.connect_timeout(&there.into(), PATIENCE)?;
            Ok::<TcpStream, std::io::Error>(socket.into())
        });
        let stream = connected.unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends these pieces one after the other, closes this direction, and returns everything
    /// received.
    fn say(&self, pieces: &[&[u8]]) -> Vec<u8> {
        let mut stream = self.connect(0);
        stream.set_nodelay(true).unwrap();
        for piece in pieces {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    }

    fn stored(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join("www").join(name)).unwrap()
    }
}

/// Sets a TCP socket option.
fn set_option(socket: &Socket, option: i32, value: i32) -> std::io::Result<()> {
    let (at, length) = ((&raw const value).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: the value is a local of the given size.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, option, at, length) };
    if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn body(answer: &[u8]) -> &[u8] {
    let head = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("the end of a head") + 4;
    &answer[head..]
}

#[test]
fn kernel_serves_requests_beyond_stateless_tcp() {
    let Some(rack) = Rack::steered() else { return };
    let (small, big) = (rack.file("small", 700), rack.file("big", 3_000_000));
    let _servers = [0, 1].map(|n| rack.storing(n, &[]));
    let upload: Vec<u8> = (0..300_000u32).map(|n| (n.wrapping_mul(40_503) >> 7) as u8).collect();
    let from = rack.dir.path().join("from");
    std::fs::write(&from, &upload).unwrap();
    let mut adopted = 0;
    for (round, (stamps, host)) in [true, false]
        .into_iter()
        .flat_map(|s| [(s, SERVICE.into()), (s, format!("[{SERVICE6}]"))])
        .enumerate()
    {
        rack.stamps(stamps);
        let to = format!("http://{host}/up{round}");
        let from = from.to_str().unwrap();
        assert_eq!(rack.get(&["-g", "-T", from, "-o", "/dev/null", "-w", "%{http_code}", &to]), b"201");
        assert!(rack.stored(&format!("up{round}")) == upload, "{host}, timestamps {stamps}");
        let big_url = format!("http://{host}/big");
        assert!(rack.get(&["-g", &big_url]) == big, "{host}, timestamps {stamps}");
        // An uploaded file is not in the table of stateless TCP.
        assert!(rack.get(&["-g", &to]) == upload, "{host}, timestamps {stamps}");
        adopted += 3;
        assert_eq!(rack.adopted(), adopted, "{host}, timestamps {stamps}");
        // The kernel keeps a connection that it has, whatever request comes next.
        let opened = rack.client.counter("TcpActiveOpens");
        let small_url = format!("http://{host}/small");
        let all = rack.get(&["-g", &big_url, &small_url, &big_url, &small_url]);
        assert!(all == [&big[..], &small, &big, &small].concat(), "{host}, timestamps {stamps}");
        adopted += 1;
        assert_eq!(rack.client.counter("TcpActiveOpens"), opened + 1);
        assert_eq!(rack.adopted(), adopted, "{host}, timestamps {stamps}");
    }
    assert_eq!(rack.client.counter("TcpEstabResets"), 0);
    assert_eq!(rack.client.counter("TcpExtPAWSEstab"), 0);
    rack.none_refused();
    for replica in &rack.replicas {
        assert_eq!(replica.counter("TcpOutRsts"), 0);
        assert_eq!(replica.counter("TcpInErrs"), 0, "checksums");
    }
    eventually("all were let go", || rack.sum("rivulet_plain_adopted") == 0);
}

/// Behind a ToR, the packets after a small answer may reach any replica, so the kernel cannot take
/// over: the connection ends before any byte of the next answer, and clients repeat the request on
/// another connection.
#[test]
fn kernel_request_after_small_answer_is_repeated() {
    let Some(rack) = Rack::steered() else { return };
    let (small, big) = (rack.file("small", 700), rack.file("big", 300_000));
    let tor = rack.client.run("cat /sys/class/net/c0/address");
    let _servers = [0, 1].map(|n| rack.serve_with(n, &["--member", &format!("1/{n}@{}", tor.trim())]));
    for stamps in [true, false] {
        rack.stamps(stamps);
        let opened = rack.client.counter("TcpActiveOpens");
        let all = rack.get(&[&url("small"), &url("big"), &url("small")]);
        assert!(all == [&small[..], &big, &small].concat(), "timestamps {stamps}");
        assert_eq!(rack.client.counter("TcpActiveOpens"), opened + 2);
    }
    // Without timestamps the small answer ends the connection by itself. With them, each repeated
    // request was refused once.
    assert_eq!((rack.adopted(), rack.client.counter("TcpEstabResets")), (2, 1));
    assert!(rack.refused("later") >= 1);
}

#[test]
fn kernel_takes_partial_half_closed_and_malformed_requests() {
    let Some(rack) = Rack::steered() else { return };
    let big = rack.file("big", 500_000);
    let _servers = [0, 1].map(|n| rack.storing(n, &[]));
    for stamps in [true, false] {
        rack.stamps(stamps);
        for pieces in [
            &[&b"GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"[..]][..],
            &[b"G", b"ET /big HT", b"TP/1.1\r\nHost: h\r\nConnec", b"tion: close\r\n\r", b"\n"],
        ] {
            let answer = rack.say(pieces);
            assert!(answer.starts_with(b"HTTP/1.1 200 ") && body(&answer) == big, "timestamps {stamps}");
        }
        let put = [&b"PUT /half HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n"[..], b"123456789"];
        assert!(rack.say(&put).starts_with(b"HTTP/1.1 20"), "timestamps {stamps}");
        assert_eq!(rack.stored("half"), b"123456789");
        std::fs::remove_file(rack.dir.path().join("www/half")).unwrap();
        // A TLS ClientHello.
        let hello = [&[22, 3, 1, 0, 100, 1, 0, 0, 96, 3, 3][..], &[7; 94], b"\r\n\r\n"].concat();
        assert!(rack.say(&[&hello]).starts_with(b"HTTP/1.1 400 "), "timestamps {stamps}");
    }
    assert_eq!((rack.adopted(), rack.client.counter("TcpEstabResets")), (8, 0));
    rack.none_refused();
}

#[test]
fn lost_segments_are_retransmitted() {
    let Some(rack) = Rack::steered() else { return };
    let (big, small) = (rack.file("big", 1_000_000), rack.file("small", 3000));
    let _servers = [0, 1].map(|n| rack.storing(n, &[]));
    let from = rack.dir.path().join("from");
    std::fs::write(&from, &big).unwrap();
    // With neither, the kernel's timer doubles until data that was sent once is acknowledged. At a loss of 20 it came to wait
    // for more than a minute, after which the server ends the connection.
    for (sack, stamps, loss) in [(1, true, 20), (1, false, 20), (0, true, 20), (0, false, 5)] {
        rack.wire().loss.store(loss, Ordering::Relaxed);
        rack.client.run(&format!("sysctl -qw net.ipv4.tcp_sack={sack}"));
        rack.stamps(stamps);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (rack, big, small, from) = (&rack, &big, &small, from.to_str().unwrap());
                scope.spawn(move || match n {
                    0 | 1 => assert!(rack.get(&[&url("big")]) == *big, "SACK {sack}, timestamps {stamps}"),
                    2 => {
                        rack.get(&["-T", from, &url("lossy")]);
                        assert!(rack.stored("lossy") == *big, "SACK {sack}, timestamps {stamps}");
                    }
                    _ => (0..5).for_each(|_| assert!(rack.get(&[&url("small")]) == *small)),
                });
            }
        });
    }
    assert_eq!(rack.client.counter("TcpExtPAWSEstab"), 0);
}

/// Stateless answers and the kernel's connections stay separate, even if workers share the flows.
#[test]
fn each_connection_is_answered_by_kernel_or_stateless() {
    let Some(rack) = Rack::steered() else { return };
    let (big, small) = (rack.file("big", 2_000_000), rack.file("small", 5000));
    let _servers = [rack.storing(0, &[]), rack.storing(1, &["--workers", "3"])];
    for stamps in [true, false] {
        rack.stamps(stamps);
        let (answered, passed) =
            (rack.sum("rivulet_plain_answered_total"), rack.sum("rivulet_plain_passed_total"));
        for _ in 0..20 {
            assert!(rack.get(&[&url("small")]) == small);
        }
        assert!(rack.sum("rivulet_plain_answered_total") >= answered + 20);
        assert_eq!(rack.sum("rivulet_plain_passed_total"), passed, "nothing of these for the kernel");
        let answered = rack.sum("rivulet_plain_answered_total");
        for _ in 0..5 {
            assert!(rack.get(&[&url("big")]) == big);
        }
        assert_eq!(rack.sum("rivulet_plain_answered_total"), answered, "nothing of these without state");
        assert!(rack.sum("rivulet_plain_passed_total") > passed + 5 * 100);
    }
    // At the same time, on flows that differ only in their ports.
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (rack, big, small) = (&rack, &big, &small);
            scope.spawn(move || {
                for round in 0..6 {
                    match (n + round) % 2 {
                        0 => assert!(rack.get(&[&url("small")]) == *small),
                        _ => assert!(rack.get(&[&url("big")]) == *big),
                    }
                }
            });
        }
    });
    assert_eq!(rack.adopted(), 10 + 24);
    rack.none_refused();
    for replica in &rack.replicas {
        assert_eq!(replica.counter("TcpOutRsts"), 0);
    }
}

/// A RST at once spares the client its own timeout.
#[test]
fn connection_of_another_replica_is_refused_at_once() {
    let Some(rack) = Rack::steered() else { return };
    rack.file("big", 8_000_000);
    let _servers = [rack.serve(0), rack.serve(1)];
    for (round, stamps) in [(1, true), (2, false)] {
        rack.stamps(stamps);
        rack.wire().only.store(0, Ordering::Relaxed);
        let mut stream = rack.connect(0);
        stream.write_all(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut block = vec![0; 100_000];
        for _ in 0..20 {
            stream.read_exact(&mut block).unwrap();
        }
        rack.wire().only.store(1, Ordering::Relaxed);
        let mut rest = Vec::new();
        let end = stream.read_to_end(&mut rest).expect_err("a reset");
        assert_eq!(end.kind(), ErrorKind::ConnectionReset, "timestamps {stamps}");
        assert!(rack.refused("stray") >= round);
    }
    assert_eq!(rack.sum("rivulet_plain_handed_on_total"), 0, "there is no ToR");
}

/// Behind a ToR, a segment of an unknown connection first goes to the slot's other candidate.
#[test]
fn segment_of_another_replica_returns_to_the_tor() {
    let Some(rack) = Rack::steered() else { return };
    let big = rack.file("big", 8_000_000);
    let tor = rack.client.run("cat /sys/class/net/c0/address");
    let _servers = [rack.serve(0), rack.serve_with(1, &["--member", &format!("1/1@{}", tor.trim())])];
    for stamps in [true, false] {
        rack.stamps(stamps);
        rack.wire().only.store(0, Ordering::Relaxed);
        let mut stream = rack.connect(0);
        stream.write_all(b"GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = vec![0; 2_000_000];
        stream.read_exact(&mut answer).unwrap();
        let before = rack.sum("rivulet_plain_handed_on_total");
        rack.wire().only.store(1, Ordering::Relaxed);
        // Keeps reading, so that the client sends acknowledgements.
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| stream.read_to_end(&mut answer).map(|_| ()));
            eventually("it is handed on", || rack.sum("rivulet_plain_handed_on_total") > before);
            rack.wire().only.store(0, Ordering::Relaxed);
            reader.join().unwrap().unwrap();
        });
        assert!(body(&answer) == big, "it goes on: timestamps {stamps}");
    }
    rack.none_refused();
}

/// With AF_XDP the kernel gets only those of the service's segments that the server passes to it.
#[test]
fn kernel_takes_over_connections_under_af_xdp() {
    if lacks_af_xdp() {
        return;
    }
    let Some(rack) = Rack::steered() else { return };
    let big = rack.file("big", 1_000_000);
    for (replica, peer) in rack.replicas.iter().zip(["m1", "m2"]) {
        replica.offloads_off("s0");
        rack.middle.offloads_off(peer);
    }
    let _servers = [0, 1].map(|n| rack.storing(n, &["--io", "af_xdp"]));
    let from = rack.dir.path().join("from");
    std::fs::write(&from, &big).unwrap();
    for stamps in [true, false] {
        rack.stamps(stamps);
        assert!(rack.get(&[&url("big")]) == big, "timestamps {stamps}");
        rack.get(&["-T", from.to_str().unwrap(), &url("up")]);
        assert!(rack.stored("up") == big, "timestamps {stamps}");
    }
    assert_eq!(rack.adopted(), 4);
    rack.none_refused();
}

/// Requests a file in one segment and reads its whole answer.
fn fetch_on(stream: &mut TcpStream, name: &str, content: &[u8]) {
    stream.write_all(format!("GET /{name} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut block = [0; 8192];
    while answer.len() < content.len() || body(&answer).len() < content.len() {
        let n = read_once(stream, &mut block).unwrap();
        assert!(n > 0, "{name}: the connection ended");
        answer.extend_from_slice(&block[..n]);
    }
    assert!(body(&answer) == content, "{name}");
}

/// The kernel and stateless TCP serve connections with the same addresses and ports in turn.
#[test]
fn reused_ports_alternate_between_kernel_and_stateless() {
    let Some(rack) = Rack::steered() else { return };
    let (big, small) = (rack.file("big", 100_000), rack.file("small", 5000));
    let _servers = [0, 1].map(|n| rack.storing(n, &[]));
    let rounds = [
        ("big", &big),
        ("small", &small),
        ("big", &big),
        ("big", &big),
        ("small", &small),
        ("small", &small),
    ];
    for stamps in [true, false] {
        rack.stamps(stamps);
        for (round, (name, content)) in rounds.into_iter().enumerate() {
            let mut stream = rack.connect(5555);
            fetch_on(&mut stream, name, content);
            // Linger 0 makes a RST, so that no connection stays in TIME-WAIT on this port.
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            // In one round the RST is lost: the next connection's SYN shows the replica's socket
            // that its client is gone.
            rack.wire().loss.store(if round == 2 { 1000 } else { 0 }, Ordering::Relaxed);
            drop(stream);
            std::thread::sleep(Duration::from_millis(if round == 2 { 100 } else { 0 }));
            rack.wire().loss.store(0, Ordering::Relaxed);
            if round != 2 {
                eventually("the kernel's has ended", || rack.sum("rivulet_plain_adopted") == 0);
            }
        }
    }
    assert_eq!(rack.adopted(), 6);
    rack.none_refused();
}

/// The next connection's sequence numbers lie within the first one's window, as when a client uses
/// the port again within 4 ms. The first one's RST is lost, so the kernel still has its socket.
#[test]
fn port_reused_within_first_window_is_served() {
    let Some(rack) = Rack::steered() else { return };
    let (big, small) = (rack.file("big", 100_000), rack.file("small", 700));
    let _servers = [rack.serve(0), rack.serve(1)];
    rack.stamps(true);
    for (first, (name, content)) in
        (1_000_000_u32..).step_by(20_000).zip([("big", &big), ("small", &small), ("big", &big)])
    {
        let mut stream = rack.connect_at(5556, first);
        fetch_on(&mut stream, name, content);
        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        rack.wire().loss.store(1000, Ordering::Relaxed);
        drop(stream);
        std::thread::sleep(Duration::from_millis(50));
        rack.wire().loss.store(0, Ordering::Relaxed);
    }
    assert_eq!(rack.adopted(), 2);
}

/// A client at its limit of connections opens another one, which displaces its oldest; other
/// clients' connections are adopted as before.
#[test]
fn adopted_connections_of_a_client_are_limited() {
    let Some(rack) = Rack::steered() else { return };
    let big = rack.file("big", 100_000);
    let mut servers = [0, 1].map(|n| rack.storing(n, &[]));
    rack.wire().only.store(0, Ordering::Relaxed);
    let mut held = Vec::new();
    for _ in 0..LIMIT + 8 {
        let mut stream = rack.connect(0);
        stream.write_all(b"PUT /never HTTP/1.1\r\n").unwrap();
        held.push(stream);
    }
    eventually("its share is held", || rack.metric(0, "rivulet_plain_adopted") == SHARE as u64);
    let end = read_once(&mut held[0], &mut [0; 100]);
    assert!(matches!(end, Ok(0)) || end.is_err_and(|e| e.kind() == ErrorKind::ConnectionReset));
    rack.client.ip("addr add 10.88.0.7/24 dev c0");
    for replica in &rack.replicas {
        let mac = rack.client.run("cat /sys/class/net/c0/address");
        replica.ip(&format!("neigh add 10.88.0.7 lladdr {} dev s0", mac.trim()));
    }
    assert!(rack.get(&["--interface", "10.88.0.7", &url("big")]) == big, "another client");
    assert!(rack.get(&[&url("big")]) == big, "the same client");
    assert_eq!(rack.refused("full"), 0);
    drop(held);
    eventually("all were let go", || rack.metric(0, "rivulet_plain_adopted") == 0);
    assert!(servers.iter_mut().all(Process::lives));
}
