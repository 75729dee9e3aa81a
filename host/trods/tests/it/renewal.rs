//! Records that are stored again, in real memcached servers. Needs root; skipped if namespaces
//! cannot be created.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{PATIENCE, eventually};
use rivulet_trods::Record;
use rivulet_trods::store::load;
use rivulet_trods::testing::keys;

use crate::survive::{Plan, Rig, SERVICE};

/// Opens idle connections, each after a small response.
fn idle(rig: &Rig, count: usize) -> Vec<TcpStream> {
    let content = rig.file("small", 700);
    let service: SocketAddr = SERVICE.parse().unwrap();
    let connect = || TcpStream::connect(service).unwrap();
    let mut streams: Vec<TcpStream> =
        (0..count).map(|_| in_netns(Some(rig.client.name()), connect).unwrap()).collect();
    for stream in &mut streams {
        get(stream, &content);
    }
    streams
}

fn get(stream: &mut TcpStream, content: &[u8]) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let (mut got, mut octet) = (Vec::new(), [0]);
    while !got.ends_with(content) {
        stream.read_exact(&mut octet).unwrap();
        got.push(octet[0]);
    }
}

/// The first replica's records in a store.
fn records(rig: &Rig, server: SocketAddr) -> Vec<Record> {
    let loaded =
        in_netns(Some(rig.router.name()), || load(&[server], "www.r1.1", &keys(), PATIENCE)).unwrap();
    assert_eq!((loaded.servers, loaded.damaged), (1, 0));
    loaded.records.into_iter().map(|(_, record)| record).collect()
}

#[test]
fn idle_record_is_renewed_unchanged() {
    let Some(rig) = Rig::new(&Plan { renewal: Duration::from_millis(500), ..Plan::default() }) else {
        return;
    };
    let streams = idle(&rig, 20);
    let [server] = rig.servers()[..] else { panic!() };
    let first = records(&rig, server);
    assert_eq!(first.len(), 20);
    eventually("each of them three times more", || {
        let now = records(&rig, server);
        now.iter().all(|record| {
            let before = first.iter().find(|before| before.tuple == record.tuple).unwrap();
            // The renewed record may lack the response, once the client has acknowledged it.
            let mut rest = before.clone();
            rest.drop_acknowledged(rest.passed());
            let again = Record { version: before.version, ..record.clone() };
            assert!(again == *before || again == rest, "{again:?} of {before:?}");
            record.version >= before.version + 3
        })
    });
    assert_eq!(rig.hosts[0].replica.counts().protected, 20);
    assert_eq!(rig.hosts[0].replica.counts().unprotected, Default::default());
    drop(streams);
    eventually("none is left", || records(&rig, server).is_empty());
}

#[test]
fn records_of_dead_store_server_move_to_the_other() {
    let Some(mut rig) = Rig::new(&Plan { stores: 2, ..Plan::default() }) else { return };
    let mut streams = idle(&rig, 20);
    let mut servers = rig.servers();
    let had: Vec<usize> = servers.iter().map(|server| records(&rig, *server).len()).collect();
    // All records are on the server that this replica prefers.
    let first = had.iter().position(|count| *count == 20).unwrap();
    assert_eq!(had[1 - first], 0);
    rig.stores[first].0.kill().unwrap();
    rig.stores[first].0.wait().unwrap();
    let left = servers.remove(1 - first);
    eventually("all of them at the other", || records(&rig, left).len() == 20);
    assert_eq!(rig.hosts[0].replica.counts().unprotected, Default::default());
    // The replica dies as well, and another one resumes the connections.
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell(1, 1);
    let content = rig.file("small", 700);
    for stream in &mut streams {
        get(stream, &content);
    }
    eventually("it is counted", || rig.hosts[1].replica.counts().adopted == 20);
    assert_eq!(rig.hosts[1].replica.counts().refused, 0);
}
