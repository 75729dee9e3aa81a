//! `rivulet agent --plain-tcp` with a service of protected connections: it sends on them only while
//! the ToR lists the replica as live. Needs root; skipped if namespaces cannot be created.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_agent::proto::{Plain, PoolMember, Service, TorKey, Trods};
use rivulet_packet::heartbeat::{self, Answer, ETHER_TYPE, Heartbeat};
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::testing::{PATIENCE, Process, eventually, read_once};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns};
use rivulet_plain::Segment;

use crate::agent::{agent, keep, service};
use crate::rig::{Rig, SERVICE, request};

const STORE: &str = "10.88.0.1:11211";

fn connect(rig: &Rig, to: &str) -> TcpStream {
    in_netns(Some(rig.client.name()), || TcpStream::connect(to).unwrap()).unwrap()
}

/// A value of memcached's statistics.
fn stat(rig: &Rig, name: &str) -> u64 {
    let mut stream = connect(rig, STORE);
    stream.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Incarnation and number of each record of replica 2 in the store. Other keys of the replica do
/// not have two numbers.
fn records(rig: &Rig) -> Vec<(u32, u32)> {
    let mut lines = BufReader::new(connect(rig, STORE));
    lines.get_mut().write_all(b"lru_crawler metadump all\r\n").unwrap();
    let keys = lines.lines().map(Result::unwrap).take_while(|line| line.starts_with("key="));
    keys.filter_map(|line| {
        let (incarnation, number) = line.strip_prefix("key=1-1.2.")?.split(' ').next()?.split_once('.')?;
        Some((incarnation.parse().ok()?, number.parse().ok()?))
    })
    .collect()
}

/// The incarnation under which the agent stores records. That of its heartbeats differs if the
/// agent got no answers for a while.
fn incarnation(rig: &Rig) -> u32 {
    records(rig).first().expect("no record").0
}

pub fn memcached(rig: &Rig) -> Option<Process> {
    if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: no memcached");
        return None;
    }
    let mut command = rig.client.command("memcached");
    command.args(["-u", "root", "-l", "10.88.0.1", "-p", "11211", "-U", "0", "-M"]);
    Some(Process(command.stdout(Stdio::null()).spawn().unwrap()))
}

/// The service as replica 2 gets it; `incarnation`: that of its records, as far as the controller
/// knows.
pub fn replicated(rig: &Rig, incarnation: u32) -> Service {
    let member = |replica: u32, last: u8, incarnation| PoolMember {
        replica,
        name: format!("r{replica}"),
        address: vec![10, 88, 0, last],
        incarnation,
    };
    let trods = Trods {
        store: vec![STORE.into()],
        copies: 1,
        closed: true,
        members: vec![member(0, 3, 0), member(2, 2, incarnation)],
        ..Trods::default()
    };
    Service {
        plain: Plain::Trods.into(),
        trods: Some(trods),
        slot_key: vec![4; 8],
        slots: vec![2, 0, 2, 0],
        tor_keys: vec![TorKey { epoch: 5, heartbeat: vec![5; 8], block: vec![6; 8] }],
        usable_tor_epoch: 5,
        ..service(rig)
    }
}

/// Answers heartbeats as the ToR does, with replica 2 alive or not.
fn answer(rig: &Rig, io: &mut AfPacket, beats: &[Heartbeat], alive: bool) {
    let (from, to) = (rig.client.mac("c0"), rig.server.mac("s0"));
    for beat in beats {
        let mask = if alive { 1 << 2 } else { 0 };
        let answer = Answer {
            settled: true,
            pool: beat.pool,
            replica: beat.replica,
            key_epoch: beat.key_epoch,
            tor_id: 1,
            incarnation: beat.incarnation,
            sequence: beat.sequence,
            alive: mask,
            plain: mask,
            tag: 0,
        };
        let mut frame = [&to[..], &from, &ETHER_TYPE.to_be_bytes(), &[0; 46]].concat();
        answer.tagged(heartbeat::TorKey::new([5; 8])).write(&mut frame[14..]).unwrap();
        io.send(&[TxFrame::new(&frame)]).unwrap();
    }
}

/// A fake ToR: its next answers, and what it has received.
#[derive(Default)]
pub struct Tor {
    pub alive: AtomicBool,
    stop: AtomicBool,
    /// Incarnation of the last ready heartbeat.
    pub ready: AtomicU32,
    /// Number of ready heartbeats; and of heartbeats that were not ready although an earlier
    /// process had sent ready ones.
    pub heard: AtomicU32,
    pub unready: AtomicU32,
}

impl Tor {
    /// Answers until it is stopped.
    pub fn run(&self, rig: &Rig) {
        let mut io = rig.heartbeats();
        while !self.stop.load(Ordering::Relaxed) {
            let beats = Rig::read_heartbeats(&mut io);
            answer(rig, &mut io, &beats, self.alive.load(Ordering::Relaxed));
            for beat in &beats {
                if beat.ready {
                    self.ready.store(beat.incarnation, Ordering::Relaxed);
                    self.heard.fetch_add(1, Ordering::Relaxed);
                } else if self.heard.load(Ordering::Relaxed) > 0 {
                    self.unready.fetch_add(1, Ordering::Relaxed);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until a new process's heartbeats supersede the former one's: they use the second of
    /// the start.
    pub fn pause(&self) {
        let second = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        eventually("the next second", || second() > self.ready.load(Ordering::Relaxed).into());
    }

    /// Waits until a process with another incarnation than `not` is ready, and returns its
    /// incarnation.
    pub fn ready(&self, not: u32) -> u32 {
        let ready = || self.ready.load(Ordering::Relaxed);
        eventually("a ready heartbeat", || ready() != not);
        ready()
    }
}

/// Ends the ToR's answers with the test.
pub struct Ends<'a>(pub &'a Tor);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

pub const FLAGS: &[&str] = &["--plain-tcp", "--setup-address"];

#[test]
fn replica_sends_only_stored_bytes_while_alive() {
    let Some(rig) = Rig::new() else { return };
    let Some(_store) = memcached(&rig) else { return };
    keep(&rig, replicated(&rig, 0));
    let content = rig.file("small", 1000);
    let _agent = agent(&rig, FLAGS);
    let _python = rig.plain_server();
    let tor = Tor::default();
    std::thread::scope(|scope| {
        let _ends = Ends(&tor);
        scope.spawn(|| tor.run(&rig));
        tor.ready(0);
        let mut stream = connect(&rig, &format!("{SERVICE}:80"));
        stream.write_all(request("small").as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert_eq!(
            read_once(&mut stream, &mut [0]).unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "it is excluded"
        );
        tor.alive.store(true, Ordering::Relaxed);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got.ends_with(&content) && got.starts_with(b"HTTP/1.0 200"));
        // A record and the bound on their number were stored; the record is deleted with its
        // connection.
        assert!(stat(&rig, "total_items") >= 2);
        drop(stream);
        eventually("the record is deleted", || records(&rig).is_empty());
    });
}

/// Number of the server kernel's connections to this client in this state.
fn sockets(rig: &Rig, state: &str, client: SocketAddr) -> usize {
    let port = client.port();
    rig.server.run(&format!("ss -Htn state {state} sport = :80 and dport = :{port}")).lines().count()
}

/// An agent that has adopted a connection is stopped: it sends nothing, and the next agent resumes
/// the connection.
#[test]
fn adopted_connection_outlives_its_agent() {
    let Some(rig) = Rig::new() else { return };
    let Some(_store) = memcached(&rig) else { return };
    keep(&rig, replicated(&rig, 0));
    // The test adds the service's address, because the agent would remove it at its end.
    rig.server.ip("addr add 10.9.0.1/32 dev lo");
    let content = rig.file("small", 1000);
    // The clock was set back since the last start, so all agents of this test seem to start within
    // one second.
    std::fs::write(rig.dir.path().join("agent.sock.incarnation"), "4000000000\n").unwrap();
    let first = agent(&rig, &FLAGS[..1]);
    let python = rig.plain_server();
    let tor = Tor::default();
    tor.alive.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let _ends = Ends(&tor);
        scope.spawn(|| tor.run(&rig));
        tor.ready(0);
        let mut stream = connect(&rig, &format!("{SERVICE}:80"));
        let client = stream.local_addr().unwrap();
        eventually("its record", || records(&rig).len() == 1);
        let incarnation = incarnation(&rig);
        assert_eq!(incarnation, 4_000_000_001, "it takes a number that another one had");
        // The web server dies, and another one starts.
        drop(python);
        assert_eq!(sockets(&rig, "established", client), 0);
        let _python = rig.plain_server();
        eventually("it is adopted", || sockets(&rig, "established", client) == 1);

        // Like a ToR that gets no heartbeats any more, this drops the replica's segments.
        rig.client.run("nft add table ip t");
        rig.client.run("nft add chain ip t i { type filter hook input priority 0 ; }");
        rig.client.run("nft add rule ip t i tcp sport 80 tcp flags & (fin|rst) != 0 drop");
        let mut wire = AfPacket::open(&rig.client.interface("c0"), Config::default()).unwrap();
        let resets = || rig.server.counter("TcpOutRsts");
        let before = resets();
        first.stop();
        assert_eq!(sockets(&rig, "fin-wait-1", client), 1, "its kernel ends it");
        stream.write_all(request("small").as_bytes()).unwrap();
        eventually("its kernel refuses what comes now", || resets() > before);
        let mut told = |is_it: &dyn Fn(&Segment<'_>) -> bool| {
            let mut any = false;
            while let count @ 1.. = wire.recv().unwrap() {
                for n in 0..count {
                    let packet = wire.frame(n).data.get(14..);
                    let segment = packet.and_then(|packet| Segment::parse(packet).ok());
                    any |= segment.is_some_and(|segment| segment.header.dst == client && is_it(&segment));
                }
            }
            any
        };
        assert!(!told(&|s| s.has(TcpFlags::FIN) || s.has(TcpFlags::RST)), "the client is told");

        let heard = tor.ready.load(Ordering::Relaxed);
        tor.pause();
        keep(&rig, replicated(&rig, incarnation));
        let _next = agent(&rig, &FLAGS[..1]);
        tor.ready(heard);
        eventually("it goes on again", || told(&|segment| !segment.payload.is_empty()));
        rig.client.run("nft delete table ip t");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got.ends_with(&content) && got.starts_with(b"HTTP/1.0 200"));
    });
}

/// The agent handles the ToR's answers when they arrive, not only when the next heartbeat is due.
#[test]
fn tor_answer_is_handled_before_next_heartbeat() {
    let Some(rig) = Rig::new() else { return };
    let Some(_store) = memcached(&rig) else { return };
    // The former agent's records are read only after the ToR has answered; this interval between
    // heartbeats is long.
    let seldom =
        Service { heartbeat_interval_us: 3_000_000, liveness_bound_us: 30_000_000, ..replicated(&rig, 7) };
    keep(&rig, seldom);
    let mut wire = AfPacket::open(&rig.client.interface("c0"), Config::default()).unwrap();
    let _agent = agent(&rig, FLAGS);
    // The agent's connection to the store is open before the second heartbeat is due.
    let (mut beats, mut asked) = (0, false);
    let deadline = Instant::now() + PATIENCE;
    while beats < 3 && !asked {
        assert!(Instant::now() < deadline, "{beats} heartbeats");
        let mut heard = None;
        for n in 0..wire.recv().unwrap() {
            let frame = wire.frame(n).data;
            if frame[12..14] == ETHER_TYPE.to_be_bytes() && frame[..6] == rig.client.mac("c0") {
                (heard, beats) = (Heartbeat::parse(&frame[14..]).ok(), beats + 1);
            } else if let Ok(segment) = Segment::parse(&frame[14..]) {
                asked |=
                    beats == 2 && segment.has(TcpFlags::SYN) && segment.header.dst == STORE.parse().unwrap();
            }
        }
        if let Some(beat) = heard.filter(|_| beats == 2) {
            answer(&rig, &mut wire, &[beat], true);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((beats, asked), (2, true));
}
