//! Clients of connections without a holder, and servers of a replica that could not send for a
//! while: neither waits for a timer that doubles.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rivulet_bpf::trods::Lease;
use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{eventually, read_once};
use rustix::net::sockopt;
use stateright::{Checker, Model, Property};

use crate::survive::{Plan, Rig, SERVICE};

/// When the client of an unknown connection gets its second RST, which leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    /// When it sends a segment by itself.
    Timer,
    /// When the replica that held the first RST back asks it for a segment, a second later.
    Asked,
}

/// Seconds without a segment after which a replica, and the BPF programs, forget a refusal.
const REFUSED_PAUSE: u16 = 3;
/// Restarts of agents, and segments that the client sends by itself before it gives up.
const RESTARTS: u8 = 4;
const SEGMENTS: u8 = 10;

/// A client of a connection that no replica holds and no record describes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    /// Retransmission timer of the client, seconds.
    timeout: u16,
    /// Segments that it sent by itself.
    segments: u8,
    /// The replica that gets what it sends.
    gets: usize,
    /// How long ago each replica's first RST was held back, seconds.
    refused: [Option<u16>; 2],
    restarts: u8,
    is_reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// The client's timer expires, and it sends a segment.
    Sends,
    /// A replica asks it, and it sends another segment.
    IsAsked(usize),
    /// An agent is killed and returns. It knows nothing any more, and the other replica gets the client.
    Restarts(usize),
}

struct Clients(Rules);

impl Client {
    /// Time passes, and a segment comes to the replica that gets it.
    fn sends(&mut self, after: u16) {
        for since in &mut self.refused {
            *since = since.map(|age| age + after).filter(|age| *age < REFUSED_PAUSE);
        }
        match self.refused[self.gets] {
            Some(age) => self.is_reset = age >= 1,
            None => self.refused[self.gets] = Some(0),
        }
    }
}

impl Model for Clients {
    type State = Client;
    type Action = Event;

    fn init_states(&self) -> Vec<Client> {
        let (segments, gets, refused, restarts, is_reset) = (0, 0, [None; 2], 0, false);
        vec![Client { timeout: 1, segments, gets, refused, restarts, is_reset }]
    }

    fn actions(&self, client: &Client, events: &mut Vec<Event>) {
        if client.is_reset {
            return;
        }
        let asks = |n: &usize| self.0 == Rules::Asked && client.refused[*n].is_some_and(|age| age <= 1);
        // A question comes before the timer's end.
        match (0..2).find(asks) {
            Some(n) => events.push(Event::IsAsked(n)),
            None if client.segments < SEGMENTS => events.push(Event::Sends),
            None => {}
        }
        if client.restarts < RESTARTS {
            events.extend([Event::Restarts(0), Event::Restarts(1)]);
        }
    }

    fn next_state(&self, before: &Client, event: Event) -> Option<Client> {
        let mut client = before.clone();
        match event {
            Event::Sends => {
                client.segments += 1;
                client.sends(client.timeout);
                client.timeout *= 2;
            }
            Event::IsAsked(_) => client.sends(1),
            Event::Restarts(n) => {
                client.refused[n] = None;
                client.gets = 1 - n;
                client.restarts += 1;
            }
        }
        Some(client)
    }

    fn properties(&self) -> Vec<Property<Clients>> {
        vec![
            Property::eventually("reset", |_, client: &Client| client.is_reset),
            Property::sometimes("restarted", |_, client: &Client| {
                client.restarts == RESTARTS && client.is_reset
            }),
        ]
    }
}

#[test]
fn every_client_of_no_connection_is_reset_in_the_end() {
    Clients(Rules::Asked).checker().spawn_bfs().join().assert_properties();
}

/// The run that was seen: agents restart until the client's timer is longer than a refusal is remembered.
#[test]
fn client_without_probe_waits_forever() {
    let checked = Clients(Rules::Timer).checker().spawn_bfs().join();
    let end = checked.assert_any_discovery("reset").last_state().clone();
    assert!(end.segments == SEGMENTS && end.restarts > 0, "{end:?}");
}

fn connect(rig: &Rig) -> TcpStream {
    let service: SocketAddr = SERVICE.parse().unwrap();
    let stream = in_netns(Some(rig.client.name()), || TcpStream::connect(service));
    stream.unwrap().unwrap()
}

/// An answer to this request, as much as is there at once.
fn ask(stream: &mut TcpStream, path: &str) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
}

/// The client sends one segment, and would send the next one only an hour later.
#[test]
fn client_of_unknown_connection_is_probed() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    rig.file("small", 100);
    let mut stream = connect(&rig);
    ask(&mut stream, "/small");
    rig.router.ip("link set x1 down");
    rig.steer("replace", 2);
    let socket = stream.as_fd();
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(3600)).unwrap();
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(1)).unwrap();
    sockopt::set_socket_keepalive(socket, true).unwrap();
    stream.set_nonblocking(true).unwrap();
    eventually("it is reset", || {
        stream.read(&mut [0; 100]).is_err_and(|e| e.kind() == ErrorKind::ConnectionReset)
    });
}

/// Its server's TCP counts what it could not send as lost on its own host, and does not double its timeout.
#[test]
fn server_resumes_soon_after_its_replica_may_send() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    rig.file("large", 20_000_000);
    let mut stream = connect(&rig);
    ask(&mut stream, "/large");
    let host = &rig.hosts[0];
    host.replica.set_lease(0, Lease { until: 0, settling: u64::MAX, ..Lease::default() });
    // The client takes all that has left, so that its window is open.
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut some = vec![0; 1 << 20];
    while let Ok(n) = stream.read(&mut some) {
        assert!(n > 0);
    }
    // The third field of its timer counts the attempts.
    let told = |name: &str, end: char| {
        let said = host.netns.run("ss -tnioH state established sport = :8080");
        let (_, fields) = said.split_once(name)?;
        fields.split(end).next()?.split([' ', ',']).next_back()?.parse::<u32>().ok()
    };
    eventually("it tried often", || told("timer:(", ')').is_some_and(|count| count >= 6));
    let backoff = told(" backoff:", ' ').unwrap_or(0);
    assert!(backoff < 3, "{backoff}");
    host.replica.set_lease(0, Lease { until: u64::MAX, settling: u64::MAX, ..Lease::default() });
    stream.set_read_timeout(None).unwrap();
    let mut got = 0;
    while got < 1_000_000 {
        got += read_once(&mut stream, &mut some).unwrap();
    }
}

/// Its connection has no record, and its kernel's FIN could not leave: it only waits, and no other replica knows of it.
#[test]
fn client_of_dead_server_and_agent_is_reset() {
    let Some(mut rig) = Rig::new(&Plan::default()) else { return };
    rig.file("large", 20_000_000);
    let mut stream = connect(&rig);
    let request = "GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes=0-9000000,9500000-19000000\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    let unprotected = || rig.hosts[0].replica.counts().unprotected.values().sum::<u64>();
    eventually("it is not protected", || unprotected() == 1);
    let silent = Lease { until: 0, settling: u64::MAX, ..Lease::default() };
    rig.hosts[0].replica.set_lease(0, silent);
    rig.hosts[0].server.0.kill().unwrap();
    rig.hosts[0].server.0.wait().unwrap();
    // As the ToR does with segments of an excluded replica after its programs are gone.
    rig.router.run("nft add table ip t");
    rig.router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
    rig.router.run("nft add rule ip t f ip saddr 10.8.9.9 drop");
    rig.another(&Plan { until: 0, ..Plan::default() });
    // The new process has looked at what the kernel has.
    std::thread::sleep(Duration::from_millis(500));
    rig.router.run("nft delete table ip t");
    rig.hosts[0].replica.set_lease(0, Lease { until: u64::MAX, ..silent });
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut some = vec![0; 1 << 20];
    let end = loop {
        match stream.read(&mut some) {
            Ok(0) => panic!("it ended as if it were whole"),
            Ok(_) => {}
            Err(e) => break e.kind(),
        }
    };
    assert_eq!(end, ErrorKind::ConnectionReset);
}
