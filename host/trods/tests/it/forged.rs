//! Values that an attacker with access to memcached writes or moves: no connection is adopted by
//! them.

use std::io::{Read, Write};
use std::time::Duration;

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{eventually, read_once};
use rivulet_trods::Record;
use rivulet_trods::hold::{Departed, Reads};
use rivulet_trods::store::{RecordKeys, load};
use rivulet_trods::testing::keys;

use crate::moves::{connect, first, get, sockets, store};
use crate::survive::{Plan, Rig};

/// A value in memcached; `None`: there is none.
fn value(rig: &Rig, number: u32) -> Option<Vec<u8>> {
    let told = store(rig, format!("mg {}.{number} v\r\nmn\r\n", first()).as_bytes(), b"MN\r\n");
    let line = told.iter().position(|b| *b == b'\n')? + 1;
    Some(told[line..].strip_suffix(b"\r\nMN\r\n")?.to_vec())
}

fn put(rig: &Rig, number: u32, value: &[u8]) {
    let say = format!("ms {}.{number} {} T60\r\n", first(), value.len());
    store(rig, &[say.as_bytes(), value, b"\r\n"].concat(), b"HD\r\n");
}

fn delete(rig: &Rig, number: u32) {
    store(rig, format!("md {}.{number}\r\n", first()).as_bytes(), b"HD\r\n");
}

fn records(rig: &Rig) -> Vec<Record> {
    let read = || load(&rig.servers(), &first(), &keys(), Duration::from_secs(1));
    in_netns(Some(rig.router.name()), read).unwrap().records.into_iter().map(|(_, record)| record).collect()
}

#[test]
fn forged_record_adopts_no_connection() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let content = rig.file("large", 20_000_000);
    let mut stream = connect(&rig);
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut got = vec![0; 1_000_000];
    stream.read_exact(&mut got).unwrap();
    eventually("its record", || records(&rig).len() == 1);
    let (record, sealed) = (records(&rig).remove(0), value(&rig, 0).unwrap());
    let plain = record.encode();
    let shows = |what: &[u8]| sealed.windows(what.len()).any(|part| part == what);
    assert!(!shows(b"GET /large") && !shows(&plain[plain.len() - 16..]), "it can be read");
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    delete(&rig, 0);
    let mut altered = sealed.clone();
    *altered.last_mut().unwrap() ^= 1;
    let stranger = RecordKeys::new(5, 1, &[(1, [8; 16])]).seal(&format!("{}.3", first()), &plain).unwrap();
    // A record without sealing; a changed one; one sealed with another key; and a valid one under
    // other numbers.
    for (number, value) in [(1, &plain), (2, &altered), (3, &stranger), (4, &sealed), (70, &sealed)] {
        put(&rig, number, value);
    }
    let second = &rig.hosts[1].replica;
    let mut asked = 0;
    for _ in 0..3 {
        rig.tell(1, 1);
        asked += 1;
        // Twice as long as reading a valid record takes.
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!((asked, second.counts().adopted), (3, 0));
    // Under its own number the sealed record is accepted.
    put(&rig, 0, &sealed);
    rig.tell(1, 1);
    stream.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(&content), "{} bytes", got.len());
    eventually("it is counted", || second.counts().adopted == 1);
}

/// An older record under its own number: the client is ahead of it, so the replica does not resume
/// the connection and the client gets no wrong byte.
#[test]
fn restored_older_record_adopts_no_connection() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let (small, content) = (rig.file("small", 700), rig.file("large", 20_000_000));
    let mut stream = connect(&rig);
    let mut got = Vec::new();
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    while !got.ends_with(&small) {
        let mut more = [0; 4096];
        let count = read_once(&mut stream, &mut more).unwrap();
        got.extend_from_slice(&more[..count]);
    }
    eventually("its record", || records(&rig).len() == 1);
    let old = value(&rig, 0).unwrap();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut got = vec![0; 1_000_000];
    stream.read_exact(&mut got).unwrap();
    eventually("another record", || value(&rig, 0).is_some_and(|now| now != old));
    let new = value(&rig, 0).unwrap();
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    put(&rig, 0, &old);
    rig.tell(1, 1);
    let second = &rig.hosts[1].replica;
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(second.counts().adopted, 0);
    put(&rig, 0, &new);
    rig.tell(1, 1);
    stream.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(&content), "{} bytes", got.len());
}

/// The second replica reads the first one's former incarnations twice. It may adopt connections
/// whose records are there both times.
fn look_for_formers(rig: &Rig) {
    for _ in 0..2 {
        rig.hosts[1].replica.departed(Departed {
            prefix: first(),
            servers: rig.servers(),
            keys: keys(),
            other: Box::new(|_, _| None),
            waits: false,
            reads: Reads::LivingFormers,
        });
        std::thread::sleep(Duration::from_millis(1800));
    }
}

/// The list of a living replica's incarnations names a newer one than the replica has, so that its
/// present records look like a former incarnation's.
#[test]
fn forged_incarnation_list_adopts_no_live_connection() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    let small = rig.file("small", 700);
    let mut stream = connect(&rig);
    get(&mut stream, &small);
    eventually("its record", || records(&rig).len() == 1);
    let key = "www.r1.all";
    // The list is forged without a key, or stored by a second process of the same replica.
    for list in [b"2 1".to_vec(), keys().seal(key, b"2 1").unwrap()] {
        let say = format!("ms {key} {} T60\r\n", list.len());
        store(&rig, &[say.as_bytes(), &list, b"\r\n"].concat(), b"HD\r\n");
        // From now on the client's answers to probes would reach the second replica.
        rig.steer("replace", 2);
        look_for_formers(&rig);
        assert_eq!((rig.hosts[1].replica.counts().adopted, sockets(&rig, 1)), (0, 0));
        rig.steer("replace", 1);
        get(&mut stream, &small);
    }
    assert_eq!((sockets(&rig, 0), rig.hosts[0].replica.counts().protected), (1, 1));
}
