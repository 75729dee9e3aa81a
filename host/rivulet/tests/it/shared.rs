//! A stack's connections to one service are streams of one connection, but look like separate
//! connections to every program. Needs root; skipped if namespaces cannot be created.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use crate::rig::{RIVULET, Rig, SERVICE, request, shim, url};
use rivulet_client::{Stack, Stream};
use rivulet_pktio::in_netns;

fn service() -> SocketAddr {
    format!("{SERVICE}:80").parse().unwrap()
}

/// Runs `f` with a stack in the client's namespace, on a thread of its own.
fn inside<T: Send>(rig: &Rig, f: impl FnOnce(Stack) -> T + Send) -> T {
    in_netns(Some(rig.client.name()), || f(Stack::start().unwrap())).unwrap()
}

/// The complete answer to a request for this file.
fn fetch(mut stream: &Stream, name: &str) -> Vec<u8> {
    stream.write_all(request(name).as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

/// Fetches all files at the same time, each on a separate thread.
fn fetch_all(streams: &[Stream], names: &[String], contents: &[Vec<u8>]) {
    std::thread::scope(|scope| {
        for ((stream, name), content) in streams.iter().zip(names).zip(contents) {
            scope.spawn(move || assert!(fetch(stream, name).ends_with(content), "{name}: other content"));
        }
    });
}

fn files(rig: &Rig, count: usize, size: usize) -> (Vec<String>, Vec<Vec<u8>>) {
    let names: Vec<String> = (0..count).map(|i| format!("f{i}")).collect();
    let contents = names.iter().enumerate().map(|(i, name)| rig.file(name, size + i)).collect();
    (names, contents)
}

#[test]
fn simultaneous_connects_share_one_connection() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let (names, contents) = files(&rig, 30, 100_000);
    inside(&rig, |stack| {
        let connect = |stack: &Stack| stack.connect(service()).unwrap();
        // A thread is in the namespace of the thread that starts it.
        let streams: Vec<Stream> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..30).map(|_| scope.spawn(|| connect(&stack))).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(streams.iter().all(|s| s.local_addr() == streams[0].local_addr()), "one connection");
        fetch_all(&streams, &names, &contents);
        // Connections are separate on request, and for callers that bind a port.
        let separate = stack.separate();
        let own = [connect(&separate), connect(&separate)];
        assert!(own[0].local_addr() != own[1].local_addr() && own[0].local_addr() != streams[0].local_addr());
        let port = SocketAddr::new(own[0].local_addr().ip(), 7_654);
        let bound = stack.connect_from(service(), Some(port)).unwrap();
        assert_eq!(bound.local_addr(), port);
        for stream in own.iter().chain([&bound]) {
            assert!(fetch(stream, "f3").ends_with(&contents[3]));
        }
        let other = stack.connect(service()).unwrap();
        assert_eq!(other.local_addr(), streams[0].local_addr());
    });
}

/// The server is killed twice while twenty streams of one connection download, and every 500th
/// packet is lost: all streams get their complete files.
#[test]
fn streams_survive_kills_and_losses() {
    let Some(rig) = Rig::new() else { return };
    rig.server.run("tc qdisc add dev s0 root tbf rate 40mbit burst 16kb limit 200kb");
    // A machine that sends more slowly than the queue overflows none, and the server repeats
    // packets that its own kernel drops (ENOBUFS). So packets are lost by a route to a device
    // without a receiver.
    rig.server.ip("link add nowhere type veth peer name nobody");
    rig.server.run("nft add table netdev t");
    rig.server.run("nft add chain netdev t out { type filter hook egress device s0 priority 0 ; }");
    rig.server.run("nft add rule netdev t out numgen inc mod 500 == 499 counter fwd to nowhere");
    let (names, contents) = files(&rig, 20, 1_000_000);
    let mut server = rig.serve(&[]);
    let streams: Vec<Stream> =
        inside(&rig, |stack| names.iter().map(|_| stack.connect(service()).unwrap()).collect());
    std::thread::scope(|scope| {
        let running = scope.spawn(|| fetch_all(&streams, &names, &contents));
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(900));
            // Dropping the process kills it with SIGKILL.
            drop(server);
            server = rig.serve(&[]);
        }
        running.join().unwrap();
    });
    let s = streams[0].statistics();
    assert!(s.declared >= 10, "some of 29 were lost: {s:?}");
}

/// Cancelled streams, unread streams, and streams with a deleted file do not affect the other
/// streams.
#[test]
fn failed_stream_does_not_end_other_streams() {
    let Some(rig) = Rig::new() else { return };
    rig.server.shape("s0", "40mbit");
    let _server = rig.serve(&[]);
    let (names, contents) = files(&rig, 4, 2_000_000);
    rig.file("gone", 5_000_000);
    inside(&rig, |stack| {
        let streams: Vec<Stream> = names.iter().map(|_| stack.connect(service()).unwrap()).collect();
        let [mut dropped, mut aborted, mut unread, mut failing] =
            [0; 4].map(|_| stack.connect(service()).unwrap());
        for stream in [&mut dropped, &mut aborted, &mut unread, &mut failing] {
            stream.write_all(request("gone").as_bytes()).unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
        }
        std::fs::write(rig.www().join("gone"), b"other").unwrap();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| fetch_all(&streams, &names, &contents));
            drop(dropped);
            aborted.abort();
            assert_eq!(aborted.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionAborted);
            let failed = failing.read_to_end(&mut Vec::new()).unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::ConnectionReset, "{failed}");
            running.join().unwrap();
        });
        // The connection still works, also for new streams.
        let more = stack.connect(service()).unwrap();
        assert_eq!(more.local_addr(), streams[0].local_addr());
        assert!(fetch(&more, "f1").ends_with(&contents[1]));
    });
}

/// A stream that opens soon after the last one closed uses the same connection.
#[test]
fn idle_connection_is_reused_then_closed() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let content = rig.file("file", 100_000);
    inside(&rig, |stack| {
        let one = || {
            let stream = stack.connect(service()).unwrap();
            assert!(fetch(&stream, "file").ends_with(&content));
            stream.local_addr()
        };
        // On a busy machine more than a second may pass between two of them.
        let pairs: Vec<_> = (0..20).map(|_| one()).collect();
        assert!(pairs.windows(2).filter(|pair| pair[0] == pair[1]).count() > 10, "{pairs:?}");
        let before = one();
        std::thread::sleep(Duration::from_millis(2500));
        assert_ne!(one(), before);
        let separate = stack.separate();
        let apart = || {
            let stream = separate.connect(service()).unwrap();
            assert!(fetch(&stream, "file").ends_with(&content));
            stream.local_addr()
        };
        assert_ne!(apart(), apart());
    });
}

#[test]
fn streams_to_plain_tcp_server_are_kernel_connections() {
    let Some(rig) = Rig::new() else { return };
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    let _server = rig.plain_server();
    let (names, contents) = files(&rig, 5, 50_000);
    rivulet_pktio::testing::eventually("it listens", || rig.server.run("ss -Htln").contains(":80"));
    inside(&rig, |stack| {
        let streams: Vec<Stream> = names.iter().map(|_| stack.connect(service()).unwrap()).collect();
        fetch_all(&streams, &names, &contents);
        assert!(streams.iter().all(Stream::is_plain_tcp));
    });
    assert_eq!(rig.server.counter("TcpPassiveOpens"), 5, "no handshake was begun for nothing");
}

#[test]
fn refused_connection_fails_every_shared_stream() {
    let Some(rig) = Rig::new() else { return };
    rig.server.ip(&format!("addr add {SERVICE}/32 dev lo"));
    inside(&rig, |stack| {
        let streams: Vec<Stream> = (0..3).map(|_| stack.connect(service()).unwrap()).collect();
        for mut stream in streams {
            stream.open_silently();
            assert_eq!(stream.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        }
    });
}

/// Unmodified programs: the addresses that they see, and the data that they get.
#[test]
fn programs_share_a_connection_unless_separate_is_set() {
    let Some(rig) = Rig::new() else { return };
    let _server = rig.serve(&[]);
    let (names, contents) = files(&rig, 8, 300_000);
    let program = "import socket, sys\n\
        all = [socket.create_connection((sys.argv[1], 80)) for _ in range(5)]\n\
        print(len({s.getsockname() for s in all}))\n\
        for s in all: s.sendall(b'GET /f2 HTTP/1.1\\r\\nHost: h\\r\\nConnection: close\\r\\n\\r\\n')\n\
        print({len(b''.join(iter(lambda: s.recv(65536), b''))) > 300000 for s in all})\n";
    for (flags, sockets) in [(&["run"][..], "1"), (&["run", "--separate"], "5")] {
        let mut command = rig.client.command(RIVULET);
        command.env("RIVULET_SHIM", shim()).args(flags).args(["--", "python3", "-c", program, SERVICE]);
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert_eq!(text, format!("{sockets}\n{{True}}\n"), "{}", String::from_utf8_lossy(&out.stderr));
    }
    let mut line: Vec<String> = ["curl", "-sS", "--parallel"].map(str::to_owned).into();
    for name in &names {
        line.extend(["-o".into(), rig.dir.path().join(name).to_str().unwrap().into(), url(name)]);
    }
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let out = rig.run(&words);
    assert!(out.status.success(), "{out:?}");
    for (name, content) in names.iter().zip(&contents) {
        assert!(std::fs::read(rig.dir.path().join(name)).unwrap() == *content, "{name}");
    }
    let mut command = rig.client.command(RIVULET);
    command.env("RIVULET_SHIM", shim()).args(["run", "--", "curl", "-sS", &url("f0")]).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
}
