//! Connections of a terminator with an agent: which records the agent gets, and what waits until
//! they are stored. The socket is that of the real agent; the test answers in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rivulet_terminator::Config;
use rivulet_tls::{Resumption, Source, State};
use rivulet_trods::record::{Body, Handshake};
use rivulet_trods::terminator::{Door, Reply, Request};
use rivulet_trods::{Asked, Reason, Record, StoreOutcome};

use crate::backend::content;
use crate::{PATIENCE, Rig, get, read_head, read_response};

/// The handshake that the agent reports of each connection.
const HANDSHAKE: Handshake = Handshake {
    client_isn: 7,
    service_isn: 8,
    mss: 1400,
    scales: Some((5, 6)),
    sack: true,
    timestamp: Some(9),
    first_timestamp: None,
    stamps: None,
    at_ms: 10,
};

/// The messages that the agent received, and how it answers.
#[derive(Debug, Default)]
struct Log {
    records: Vec<Record>,
    /// Records of connections from before the agent's restart.
    registered: Vec<Record>,
    others: Vec<Request>,
    /// Records that wait for an answer.
    waiting: Vec<Asked>,
    holds: bool,
    stops: bool,
}

impl Log {
    fn states(&self) -> Vec<State> {
        let state = |record: &Record| State::decode(record.tls.as_ref().unwrap().bytes()).unwrap();
        self.records.iter().map(state).collect()
    }
}

/// An agent that confirms each record, at once or when the test permits it.
struct Agent {
    log: Arc<Mutex<Log>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    fn open(path: &Path, port: u16) -> Self {
        let log = Arc::new(Mutex::new(Log::default()));
        let mut door = Door::open(path, None).unwrap();
        let of_thread = log.clone();
        let thread = thread::spawn(move || {
            loop {
                let mut messages = Vec::new();
                door.take(false, &mut messages);
                let mut log = of_thread.lock().unwrap();
                for message in messages {
                    match message {
                        Request::Store(asked, record) => {
                            log.records.push(*record);
                            log.waiting.push(asked);
                        }
                        Request::Register { asked, record, is_adopted: false } => {
                            log.registered.push(*record);
                            log.waiting.push(asked);
                        }
                        other => log.others.push(other),
                    }
                }
                if !log.holds {
                    for asked in std::mem::take(&mut log.waiting) {
                        if asked.ticket == 1 {
                            let (connection, handshake) = (asked.connection, HANDSHAKE);
                            let watched = Reply::Watched { connection, handshake, version: 100 };
                            assert!(door.send(port, &watched, None));
                        }
                        assert!(door.send(port, &Reply::Stored(asked, StoreOutcome::Kept), None));
                    }
                }
                if log.stops {
                    return;
                }
                drop(log);
                thread::sleep(Duration::from_millis(1));
            }
        });
        Self { log, thread: Some(thread) }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }

    /// Waits until the log satisfies a condition.
    fn until(&self, what: &str, is: impl Fn(&Log) -> bool) {
        for _ in 0..PATIENCE.as_millis() / 2 {
            if is(&self.log()) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        panic!("not seen: {what}: {:?}", self.log());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.log.lock().unwrap().stops = true;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn rig() -> (Rig, Agent) {
    rig_with(|_| ())
}

fn rig_with(change: impl FnOnce(&mut Config)) -> (Rig, Agent) {
    let folder = tempfile::tempdir().unwrap();
    rig_at(&folder.path().join("door"), change)
}

/// With the agent's socket at this path.
fn rig_at(path: &Path, change: impl FnOnce(&mut Config)) -> (Rig, Agent) {
    let address: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let agent = Agent::open(path, address.port());
    let rig = Rig::with(|config| {
        (config.listen, config.agent) = (vec![address], Some(path.to_owned()));
        change(config);
    });
    (rig, agent)
}

/// The bytes that another replica makes from this state for a client that has acknowledged `acked`,
/// with the object's content.
fn remake(state: &State, acked: u32, object: &[u8]) -> Vec<u8> {
    let mut resumption = Resumption::begin(state, acked).unwrap();
    let mut out = Vec::new();
    while let Some(needed) = resumption.next(&mut out).unwrap() {
        let response = &state.http.responses[needed.response];
        let source = Source::of(response, needed.from).unwrap();
        resumption.write(source.stored, &mut out).unwrap();
        if let Body::Object { head, .. } = &response.body {
            let from = (needed.from as usize).saturating_sub(head.len());
            resumption.write(&object[from..], &mut out).unwrap();
        }
    }
    out
}

#[test]
fn state_of_each_response_is_stored_before_it_leaves() {
    let (rig, agent) = rig();
    let mut stream = rig.connect();
    get(&mut stream, "/5");
    agent.log().holds = true;
    let (begun, sent) = (agent.log().records.len(), stream.sock.try_clone().unwrap());
    stream.write_all(b"GET /300000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    agent.until("a state with the response", |log| log.records.len() > begun);
    // Without the rule, bytes would have left within this time.
    sent.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let early = stream.read(&mut [0; 100]).unwrap_err();
    assert!(matches!(early.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{early}");
    sent.set_read_timeout(Some(PATIENCE)).unwrap();
    agent.log().holds = false;
    let (_, body) = read_response(&mut stream);
    assert!(body == content(300_000));
    let states = agent.log().states();
    let state = states.last().unwrap();
    let place = state.places().unwrap().pop().unwrap();
    let whole = remake(state, place.position.sequence, &content(300_000));
    assert_eq!(whole.len() as u64, place.response.ciphertext_bytes());
    let later = place.position.sequence.wrapping_add(200_000);
    assert!(remake(state, later, &content(300_000)) == whole[200_000..]);
}

#[test]
fn unsafe_request_waits_until_protection_end_is_stored() {
    let (rig, agent) = rig();
    let mut stream = rig.connect();
    get(&mut stream, "/5");
    let before = rig.backend.requests();
    agent.log().holds = true;
    stream.write_all(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc").unwrap();
    agent.until("the end of the protection", |log| log.records.last().is_some_and(|last| last.unprotected));
    thread::sleep(Duration::from_millis(100));
    assert_eq!(rig.backend.requests(), before, "the server already got the request");
    agent.log().holds = false;
    let (_, body) = read_response(&mut stream);
    assert_eq!(body, b"abc");
    let is_end = |request: &Request| matches!(request, Request::Unprotected(_, Reason::Method));
    agent.until("the reason", |log| log.others.iter().any(is_end));
    // The connection itself continues.
    assert_eq!(get(&mut stream, "/7").1, content(7));
    let totals = rig.terminator.counters().totals();
    assert_eq!((totals.protected, totals.unprotected), (1, BTreeMap::from([("method", 1)])));
}

#[test]
fn request_waits_for_a_server_that_ends_before_its_response() {
    let (rig, _agent) = rig();
    let mut stream = rig.connect();
    assert!(get(&mut stream, "/drop/3").0.starts_with("HTTP/1.1 200 "));
    assert_eq!(rig.backend.requests(), 4);
    // A server that ends at each request does not get it for ever.
    assert!(get(&mut stream, "/drop/100000").0.starts_with("HTTP/1.1 502 "));
    assert!(rig.backend.requests() < 40, "{} requests", rig.backend.requests());
}

#[test]
fn request_waits_for_a_server_that_is_started_again() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (rig, _agent) = rig_with(|config| config.server = server);
    let mut stream = rig.connect();
    stream.write_all(b"GET /5 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    rig.wait_for("rivulet_tls_requests_total", 1);
    let listener = TcpListener::bind(server).unwrap();
    let (mut connection, _) = listener.accept().unwrap();
    assert!(read_head(&mut connection).starts_with("GET /5 HTTP/1.1\r\n"));
    connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
    assert_eq!(read_response(&mut stream).1, b"hello");
}

#[test]
fn connections_end_after_their_last_byte() {
    let (rig, agent) = rig();
    let mut stream = rig.connect();
    write!(stream, "GET /20000 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let (_, body) = read_response(&mut stream);
    assert!(body == content(20_000));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"", "no close_notify would be an error");
    agent.until("the end", |log| log.others.iter().any(|other| matches!(other, Request::End(..))));
    // The stored state has the close_notify, too.
    let passed = agent.log().records.last().unwrap().passed();
    let ends = agent.log().others.clone();
    assert!(matches!(ends[..], [Request::End(_, at)] if at == passed), "{ends:?}, {passed}");
}

#[test]
fn connections_without_agent_are_served_unprotected() {
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::with(|config| config.agent = Some(folder.path().join("door")));
    assert!(get(&mut rig.connect(), "/100000").1 == content(100_000));
    let totals = rig.terminator.counters().totals();
    assert_eq!((totals.protected, totals.unprotected), (0, BTreeMap::from([("no_agent", 1)])));
}

#[test]
fn connections_continue_after_agent_ends() {
    let (rig, agent) = rig();
    let mut stream = rig.connect();
    get(&mut stream, "/5");
    agent.log().holds = true;
    stream.write_all(b"GET /30000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let begun = agent.log().records.len();
    agent.until("the next state", |log| log.records.len() >= begun);
    drop(agent);
    assert!(read_response(&mut stream).1 == content(30_000));
}

/// A state from before the agent's end would not have the request.
#[test]
fn restarted_agent_gets_state_and_handshake_of_each_connection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("door");
    let (rig, agent) = rig_at(&path, |_| ());
    let mut streams = [rig.connect(), rig.connect()];
    for stream in &mut streams {
        get(stream, "/5");
    }
    agent.until("the states with the responses", |log| log.records.len() >= 4);
    drop(agent);
    streams[0].write_all(b"GET /300000 HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    // The response to a request without a stored state waits for the next agent.
    rig.wait_for("rivulet_tls_requests_total", 3);
    let sent = streams[0].sock.try_clone().unwrap();
    sent.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let early = streams[0].read(&mut [0; 100]).unwrap_err();
    assert!(matches!(early.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{early}");
    sent.set_read_timeout(Some(PATIENCE)).unwrap();
    let agent = Agent::open(&path, rig.address().port());
    assert!(read_response(&mut streams[0]).1 == content(300_000));
    agent.until("both connections", |log| {
        let clients: BTreeSet<_> = log.registered.iter().map(|record| record.tuple.client).collect();
        clients.len() == 2
    });
    for record in &agent.log().registered {
        assert!(record.handshake == HANDSHAKE && record.version > 100, "{record:?}");
        assert!(State::decode(record.tls.as_ref().unwrap().bytes()).is_ok());
    }
    // The agent knows them now.
    let registered = agent.log().registered.len();
    for stream in &mut streams {
        assert!(get(stream, "/20000").1 == content(20_000));
    }
    let log = agent.log();
    assert!(log.registered.len() == registered && log.records.len() >= 2, "{log:?}");
    assert!(!log.others.iter().any(|other| matches!(other, Request::Unprotected(..))), "{log:?}");
}

#[test]
fn records_of_long_connections_stay_short() {
    let (rig, agent) = rig();
    let mut stream = rig.connect();
    for n in 0..40 {
        assert_eq!(get(&mut stream, &format!("/{}", n * 10)).1.len(), n * 10);
    }
    let lengths: Vec<usize> = agent.log().records.iter().map(Record::size).collect();
    assert!(lengths.len() >= 40 && lengths.iter().all(|length| *length < 4000), "{lengths:?}");
}
