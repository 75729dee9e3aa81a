//! `rivulet agent --plain-tcp` with a service whose connections outlive their replica: it protects them, and says something only
//! while the ToR counts it among the living. Needs root; skipped where namespaces cannot be made.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rivulet_agent::proto::{Plain, PoolMember, Service, TorKey, Trods};
use rivulet_packet::heartbeat::{self, Answer, ETHER_TYPE};
use rivulet_pktio::testing::{Process, eventually};
use rivulet_pktio::{AfPacket, PacketIo, TxFrame, in_netns};

use crate::agent::{agent, keep, service};
use crate::rig::{Rig, SERVICE, request};

const STORE: &str = "10.88.0.1:11211";

fn connect(rig: &Rig, to: &str) -> TcpStream {
    in_netns(Some(rig.client.name()), || TcpStream::connect(to).unwrap()).unwrap()
}

/// A number of memcached's.
fn stat(rig: &Rig, name: &str) -> u64 {
    let mut stream = connect(rig, STORE);
    stream.write_all(b"stats\r\nquit\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Answers heartbeats as the ToR does, in which replica 2 is alive, while `alive` is set.
fn answer(rig: &Rig, io: &mut AfPacket, alive: &AtomicBool) {
    let (from, to) = (rig.client.mac("c0"), rig.server.mac("s0"));
    for beat in Rig::heard(io) {
        let mask = if alive.load(Ordering::Relaxed) { 1 << 2 } else { 0 };
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

#[test]
fn a_replica_speaks_while_it_is_alive_and_what_it_says_is_stored_before() {
    let Some(rig) = Rig::new() else { return };
    let mut command = rig.client.command("memcached");
    command.args(["-u", "root", "-l", "10.88.0.1", "-p", "11211", "-U", "0", "-M"]);
    if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED: no memcached");
        return;
    }
    let _store = Process(command.stdout(Stdio::null()).spawn().unwrap());
    let member = |replica: u32, last: u8| PoolMember {
        replica,
        name: format!("r{replica}"),
        address: vec![10, 88, 0, last],
        incarnation: 0,
    };
    let trods = Trods {
        store: vec![STORE.into()],
        copies: 1,
        closed: true,
        members: vec![member(0, 3), member(2, 2)],
        ..Trods::default()
    };
    let trods = Service {
        plain: Plain::Trods.into(),
        trods: Some(trods),
        slot_key: vec![4; 8],
        slots: vec![2, 0, 2, 0],
        tor_keys: vec![TorKey { epoch: 5, heartbeat: vec![5; 8], block: vec![6; 8] }],
        usable_tor_epoch: 5,
        ..service(&rig)
    };
    keep(&rig, trods);
    let content = rig.file("small", 1000);
    let _agent = agent(&rig, &["--plain-tcp", "--setup-address"]);
    let _python = rig.plain_server();
    let (alive, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut io = rig.heartbeats();
    std::thread::scope(|scope| {
        eventually("a ready heartbeat", || Rig::heard(&mut io).iter().any(|beat| beat.ready));
        let (rig, alive, stop) = (&rig, &alive, &stop);
        let answering = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                answer(rig, &mut io, alive);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut stream = connect(rig, &format!("{SERVICE}:80"));
        stream.write_all(request("small").as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "it is excluded");
        alive.store(true, Ordering::Relaxed);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut got = Vec::new();
        stream.read_to_end(&mut got).unwrap();
        assert!(got.ends_with(&content) && got.starts_with(b"HTTP/1.0 200"));
        // The record and how many there are; the former is gone with its connection.
        assert!(stat(rig, "total_items") >= 2);
        drop(stream);
        eventually("the record is deleted", || stat(rig, "curr_items") == 1);
        stop.store(true, Ordering::Relaxed);
        answering.join().unwrap();
    });
}
