//! The requests from the tests of `rivulet serve`, sent to an nginx with protected connections. A
//! client gets the same answers as without an agent, also on a connection that another replica
//! adopted before the request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{Netns, PATIENCE};

use crate::support::nginx_with;
use crate::survive::{Plan, Rig, SERVICE};

#[allow(dead_code, reason = "what servers answer stands in the tables for `rivulet serve`")]
#[path = "../../../rivulet/tests/it/exchange.rs"]
mod exchange;

use exchange::{Connect, Duplex, answers, parts, rows, store, store_hostile_names, tag};

const REQUESTS: &str = include_str!("../../../rivulet/tests/requests/requests.txt");
const NAMES: &str = include_str!("../../../rivulet/tests/requests/names.txt");

fn connect(from: &Netns) -> TcpStream {
    let to: SocketAddr = SERVICE.parse().unwrap();
    in_netns(Some(from.name()), || TcpStream::connect(to)).unwrap().unwrap()
}

/// Opens a connection and waits for one answer.
fn connect_and_ask(from: &Netns) -> TcpStream {
    let mut stream = connect(from);
    stream.write_all(b"GET /end.txt HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut got = Vec::new();
    while !got.ends_with(b"\r\n\r\nend") {
        let mut block = [0; 1000];
        let count = stream.read(&mut block).unwrap();
        assert!(count > 0, "closed");
        got.extend_from_slice(&block[..count]);
    }
    stream
}

/// The expected answers of a row at an adopter. nginx closes after a 412 without announcing it; the
/// adopter then sends the next request to a new connection (RFC 9110 section 9.2.2).
fn repeats_request(nginx: &str) -> String {
    if nginx == "412" { "412, 200 end".into() } else { nginx.into() }
}

#[test]
fn protected_and_adopted_connections_answer_as_nginx_does() {
    let server = |ns: &Netns, service: &str, root: &Path, dir: &Path| {
        nginx_with(ns, service, root, dir, &|text| {
            // With the default of 512, nginx would close idle connections of this test.
            let text = text.replace("events {}", "events { worker_connections 4096; }");
            text.replace("sendfile on;", "absolute_redirect off;")
        })
    };
    let Some(rig) = Rig::new(&Plan { server: &server, ..Plan::default() }) else { return };
    let www = rig.files.path().join("www");
    store(&www);
    store_hostile_names(&www);
    let text: Vec<&str> = rows(REQUESTS).iter().chain(&rows(NAMES)).map(|row| row.text).collect();
    assert!(text.len() >= 500);
    let direct: &Connect<'_> = &|| Box::new(connect(&rig.hosts[1].netns)) as Box<dyn Duplex + Send>;
    let tag = tag(direct);
    let requests =
        |servers: usize| -> Vec<_> { text.iter().map(|text| vec![parts(text, &tag); servers]).collect() };
    let protected: &Connect<'_> = &|| Box::new(connect(&rig.client));
    let both = answers(&[("nginx", direct), ("protected", protected)], &requests(2));
    let idle: Vec<TcpStream> = text.iter().map(|_| connect_and_ask(&rig.client)).collect();
    let idle = Mutex::new(idle);
    let (first, second) = (&rig.hosts[0].replica, &rig.hosts[1].replica);
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    rig.tell(1, 1);
    let until = Instant::now() + PATIENCE;
    // Connections that ended just before the replica was cut off may count as adopted too.
    while second.counts().adopted < text.len() as u64 {
        assert!(Instant::now() < until, "{:?} {:?}", first.counts(), second.counts());
        std::thread::sleep(Duration::from_millis(20));
    }
    let adopted: &Connect<'_> = &|| Box::new(idle.lock().unwrap().pop().expect("one for each row"));
    let behind = answers(&[("adopted", adopted)], &requests(1));
    let mut wrong = Vec::new();
    for ((text, both), behind) in text.iter().zip(&both).zip(&behind) {
        let is_same = behind[0] == both[0] || behind[0] == repeats_request(&both[0]);
        if both[1] != both[0] || !is_same {
            wrong.push(format!(
                "{text}\n  nginx: {}\n  protected: {}\n  adopted: {}",
                both[0], both[1], behind[0]
            ));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), text.len(), wrong.join("\n"));
    assert_eq!(second.counts().refused, 0, "{:?}", second.counts());
}
