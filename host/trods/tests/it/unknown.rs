//! Two stalls that growing retransmission timers used to cause: of clients of connections without a
//! holder, and of servers on a replica that was not allowed to send for a while.

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

/// What makes the client of an unknown connection get its second RST, which is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    /// A segment that the client sends by its own timer.
    Timer,
    /// A segment with which the client answers a probe, a second after the first RST was held back.
    Asked,
}

/// Seconds without a segment after which a replica, and its BPF programs, forget a RST that was
/// held back.
const REFUSED_PAUSE: u16 = 3;
/// Number of restarts of agents, and of segments that the client sends before it gives up.
const RESTARTS: u8 = 4;
const SEGMENTS: u8 = 10;

/// A client of a connection that no replica holds and no record describes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    /// The client's retransmission timeout, seconds.
    timeout: u16,
    /// Segments that the client has sent by its timer.
    segments: u8,
    /// The replica that gets the client's segments.
    gets: usize,
    /// How long ago each replica held back the first RST, seconds.
    refused: [Option<u16>; 2],
    restarts: u8,
    is_reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// The client's timer expires, and it sends a segment.
    Sends,
    /// This replica probes the client, which sends a segment in answer.
    IsAsked(usize),
    /// This replica's agent is killed and returns. It has lost its state, and the other replica
    /// gets the client's segments.
    Restarts(usize),
}

struct Clients(Rules);

impl Client {
    /// Advances the time by `after` and sends a segment to the replica that gets it.
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
        // A probe that is due before the timer expires comes first.
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
fn every_client_without_holder_is_reset_eventually() {
    Clients(Rules::Asked).checker().spawn_bfs().join().assert_properties();
}

/// The failure that was seen: agents restart until the client's timer is longer than the time for
/// which a held RST is remembered.
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

/// Sends a request, and reads what has arrived of the answer.
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

/// The server's TCP counts segments that it was not allowed to send as lost on its own host, and
/// does not double its timeout.
#[test]
fn server_resumes_soon_after_its_replica_may_send() {
    let Some(rig) = Rig::new(&Plan::default()) else { return };
    rig.file("large", 20_000_000);
    let mut stream = connect(&rig);
    ask(&mut stream, "/large");
    let host = &rig.hosts[0];
    host.replica.set_lease(0, Lease { until: 0, settling: u64::MAX, ..Lease::default() });
    // The client reads all that has arrived, so that its window is open.
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut some = vec![0; 1 << 20];
    while let Ok(n) = stream.read(&mut some) {
        assert!(n > 0);
    }
    // The third field of `timer:` counts the retransmissions.
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

/// The connection has no record, and its kernel's FIN was held back: the client only waits, and no
/// other replica knows the connection.
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
    // Like a ToR that drops an excluded replica's segments, after the BPF programs are gone.
    rig.router.run("nft add table ip t");
    rig.router.run("nft add chain ip t f { type filter hook forward priority 0 ; }");
    rig.router.run("nft add rule ip t f ip saddr 10.8.9.9 drop");
    rig.another(&Plan { until: 0, ..Plan::default() });
    // Long enough for the new process to list the kernel's connections.
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
