//! Planned moves of connections from a live replica to one that reads its list: downloads and idle
//! connections. Needs root; skipped if namespaces cannot be created.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rivulet_bpf::trods::Pin;
use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{PATIENCE, eventually, read_once};
use rivulet_trods::hold::{Absence, Departed, Leave, Left, List, Reads};
use rivulet_trods::store::{load, prefix};
use rivulet_trods::testing::keys;
use rivulet_trods::{Flow, Record};

use crate::support::{CLOSED, established, stores};
use crate::survive::{Plan, Rig, SERVICE};

/// The second replica's index in the pool.
const SECOND: u8 = 1;

pub fn first() -> String {
    prefix("www", "r1", 1).unwrap()
}

/// Drains the first replica; the second one is the adopter of its clients.
pub fn drain(rig: &Rig) {
    let pin = Pin { tor: [2, 0, 0, 0, 0, 0xfe], holder: SECOND };
    let leave = Leave {
        prefix: first(),
        servers: rig.servers(),
        keys: keys(),
        services: vec![SERVICE.parse().unwrap()],
        to: Box::new(move |_, _| Some(pin)),
    };
    rig.hosts[0].replica.leave(vec![leave], vec![]);
}

/// Routes the clients' segments to the second replica, which forwards them to their holder, the
/// first one; the forwarded segments end at the router.
pub fn hand_on(rig: &Rig) {
    let two = &rig.hosts[1].replica;
    two.away(Absence {
        number: (0, 0),
        others: vec![(0, first(), keys())],
        servers: rig.servers(),
        named: Vec::new(),
        alive: 0b11,
        tor: rig.router.mac("x2"),
        gets: Box::new(|_, _| true),
    });
    eventually("it knows which replica holds them", || !two.back().is_empty());
    rig.steer("replace", 2);
}

/// Makes the second replica read the first one's list of connections that left.
pub fn follow(rig: &Rig) {
    let departed = Departed {
        prefix: first(),
        servers: rig.servers(),
        keys: keys(),
        other: Box::new(|_, _| None),
        waits: false,
        reads: Reads::Told,
    };
    rig.hosts[1].replica.follow(vec![(SECOND, departed)]);
}

pub fn connect(rig: &Rig) -> TcpStream {
    let to: SocketAddr = SERVICE.parse().unwrap();
    let stream = in_netns(Some(rig.client.name()), || TcpStream::connect(to)).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Requests a small file on a keep-alive connection.
pub fn get(stream: &mut TcpStream, content: &[u8]) {
    ask(stream);
    answered(stream, content);
}

fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: 10.8.9.9:8080\r\n\r\n").unwrap();
}

fn answered(stream: &mut TcpStream, content: &[u8]) {
    let mut got = Vec::new();
    while !got.ends_with(content) {
        let mut octets = [0; 4096];
        let count = read_once(stream, &mut octets).unwrap();
        assert!(count > 0, "the client was told of an end");
        got.extend_from_slice(&octets[..count]);
    }
    assert!(got.starts_with(b"HTTP/1.1 200 OK\r\n"));
}

/// Sends commands to the store and reads its answer up to `until`.
pub fn store(rig: &Rig, say: &[u8], until: &[u8]) -> Vec<u8> {
    let server = rig.servers()[0];
    let mut stream = in_netns(Some(rig.router.name()), || TcpStream::connect(server)).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(say).unwrap();
    let mut told = Vec::new();
    while !told.ends_with(until) {
        let mut octets = [0; 8192];
        let count = read_once(&mut stream, &mut octets).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&told));
        told.extend_from_slice(&octets[..count]);
    }
    told
}

/// The list of connections that left the first replica.
fn list(rig: &Rig) -> Option<List> {
    let told = store(rig, format!("mg {}.left v\r\nmn\r\n", first()).as_bytes(), b"MN\r\n");
    let (line, value) = told.split_at(told.windows(2).position(|two| two == b"\r\n")? + 2);
    let length: usize = std::str::from_utf8(line.strip_prefix(b"VA ")?).ok()?.trim().parse().ok()?;
    List::decode(&keys().open(&format!("{}.left", first()), &value[..length])?)
}

pub fn records(rig: &Rig) -> Vec<Record> {
    let loaded =
        in_netns(Some(rig.router.name()), || load(&rig.servers(), &first(), &keys(), Duration::from_secs(1)));
    loaded.unwrap().records.into_iter().map(|(_, record)| record).collect()
}

pub fn sockets(rig: &Rig, of: usize) -> usize {
    rig.hosts[of].netns.run("ss -Htn state established dst 10.8.0.1").lines().count()
}

#[test]
fn a_download_moves_in_the_middle() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let content = rig.file("large", 40_000_000);
    let mut curl = rig.curl(&format!("http://{SERVICE}/large"));
    eventually("it brings something", || rig.got() > 2_000_000);
    follow(&rig);
    rig.steer("replace", 2);
    drain(&rig);
    let status = curl.0.wait().unwrap();
    assert!(status.success(), "{status}: {} octets", rig.got());
    assert!(fs::read(rig.files.path().join("got")).unwrap() == content);
    let (one, two) = (&rig.hosts[0].replica, &rig.hosts[1].replica);
    eventually("it is counted", || (one.counts().moved, two.counts().adopted) == (1, 1));
    assert_eq!((two.counts().refused, sockets(&rig, 0)), (0, 0));
    assert_eq!((one.counts().unprotected, two.counts().unprotected), Default::default());
    eventually("its record is deleted where it was", || records(&rig).is_empty());
}

#[test]
fn idle_connections_move_to_a_reading_member() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let small = rig.file("small", 700);
    let mut streams: Vec<TcpStream> = (0..40).map(|_| connect(&rig)).collect();
    streams.iter_mut().for_each(|stream| get(stream, &small));
    // The position of a member that has stopped reading, from before this list.
    let mark = |read: u64| {
        let digits = read.to_string();
        let say = format!("ms {}.left.{SECOND} {} T60\r\n{digits}\r\n", first(), digits.len());
        store(&rig, say.as_bytes(), b"HD\r\n");
    };
    mark(1);
    drain(&rig);
    eventually("it says that there is nothing yet", || list(&rig).is_some());
    let first = list(&rig).unwrap().end();
    for stream in &mut streams {
        get(stream, &small);
    }
    let moved = || rig.hosts[0].replica.counts().moved;
    assert_eq!((moved(), sockets(&rig, 0), list(&rig).unwrap().end()), (0, 40, first), "to nobody");
    // Only now does the adopter read the list.
    follow(&rig);
    rig.steer("replace", 2);
    eventually("all of them move", || moved() == 40);
    for stream in &mut streams {
        get(stream, &small);
    }
    let two = || rig.hosts[1].replica.counts();
    eventually("they are counted", || two().adopted == 40);
    assert_eq!((two().refused, two().unprotected), (0, Default::default()));
    assert_eq!((sockets(&rig, 0), list(&rig).unwrap().end()), (0, first + 40));
    eventually("their records are deleted where they were", || records(&rig).is_empty());
}

/// Data arrives between the former holder's last segment and the adopter's first read of the list.
#[test]
fn parked_data_reaches_the_adopter() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let small = rig.file("small", 700);
    // The client retransmits nothing in this time.
    rig.client.ip("route replace default via 10.8.0.254 rto_min 100s");
    rig.client.run("sysctl -qw net.ipv4.tcp_early_retrans=0");
    let mut stream = connect(&rig);
    get(&mut stream, &small);
    hand_on(&rig);
    let two = &rig.hosts[1].replica;
    ask(&mut stream);
    follow(&rig);
    drain(&rig);
    answered(&mut stream, &small);
    eventually("it is counted", || (rig.hosts[0].replica.counts().moved, two.counts().adopted) == (1, 1));
}

/// The list names a former connection, and one under a number that another connection has by now.
#[test]
fn connection_for_another_member_is_not_adopted() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let small = rig.file("small", 700);
    let mut stream = connect(&rig);
    get(&mut stream, &small);
    eventually("its record", || records(&rig).len() == 1);
    let record = records(&rig).remove(0);
    let name = |list: &List| {
        let value = keys().seal(&format!("{}.left", first()), &list.encode()).unwrap();
        let say = format!("ms {}.left {} T60\r\n", first(), value.len());
        store(&rig, &[say.as_bytes(), &value, b"\r\n"].concat(), b"HD\r\n");
    };
    let read = |place: u64| {
        let key = format!("mg {}.left.{SECOND} v\r\nmn\r\n", first());
        let told = store(&rig, key.as_bytes(), b"MN\r\n");
        let line = told.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
        let sealed = told[line..].strip_suffix(b"\r\nMN\r\n").unwrap_or_default();
        let mark = keys().open(&format!("{}.left.{SECOND}", first()), sealed);
        mark.is_some_and(|mark| mark == place.to_string().into_bytes())
    };
    let mut list = List::new(7);
    list.push(Left { number: 0, age: record.age() });
    name(&list);
    follow(&rig);
    eventually("it reads", || read(8));
    let mut other = record.clone();
    other.version += 1;
    list.push(Left { number: 0, age: other.age() });
    name(&list);
    eventually("it has read on", || read(9));
    // Waits for further reads, so that an adoption by the list would have happened.
    for _ in 0..20 {
        get(&mut stream, &small);
    }
    assert_eq!((sockets(&rig, 0), sockets(&rig, 1)), (1, 0));
    assert_eq!(rig.hosts[1].replica.counts().adopted, 0);
}

/// The client would retransmit unacknowledged data much later, so its connection does not move.
#[test]
fn unstored_request_prevents_a_move() {
    let mut out = Vec::new();
    let mut flow: Flow = established(999, 4999, &CLOSED);
    assert_eq!(flow.movable(), None, "nothing is stored of it");
    flow.tick(60, &mut out);
    let kept = |flow: &mut Flow, out: &mut Vec<_>| {
        let (ticket, record) = stores(out).pop().expect("it is handed to the store");
        assert_eq!(flow.movable(), None, "it is on its way there");
        out.clear();
        flow.stored(ticket, true, out);
        record
    };
    let record = kept(&mut flow, &mut out);
    assert_eq!(flow.movable(), Some(record), "an idle one moves");
    let request = b"GET /9 HTTP/1.1\r\n\r\n";
    flow.request(1000, request, false, &mut out);
    assert_eq!(flow.movable(), None, "asked");
    flow.tick(120, &mut out);
    let record = kept(&mut flow, &mut out);
    assert_eq!(record.requests, request);
    assert_eq!(flow.movable(), Some(record), "another one answers it");
    flow.request(1000 + request.len() as u32, b"", true, &mut out);
    while let Some((ticket, _)) = stores(&out).pop() {
        out.clear();
        flow.stored(ticket, true, &mut out);
    }
    assert_eq!(flow.movable(), None, "its client is about to end it");
}
