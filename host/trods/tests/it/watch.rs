//! Real clients and an nginx, with the BPF programs and flows between them and a fake store that
//! reports its records. Needs root; skipped if namespaces cannot be created.

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rivulet_bpf::kernel::{Feature, skipped};
use rivulet_bpf::trods::{Counters, FlowKey, Lease};
use rivulet_pktio::in_netns;
use rivulet_pktio::testing::{Netns, Process, eventually};
use rivulet_trods::hold::{Hold, Keeper, Status, Watch};
use rivulet_trods::{Reason, Record, Settings};
use tempfile::TempDir;

use crate::support::nginx;

const SERVICE: &str = "10.7.0.2:8080";

/// A fake store: its behaviour and its contents.
#[derive(Debug, Default)]
pub struct Shelf {
    records: HashMap<FlowKey, Record>,
    /// Number of records that were passed to it.
    handed: usize,
    /// Each record that was stored, in order.
    history: Vec<Record>,
    /// Results that it has not reported yet.
    pending: VecDeque<(FlowKey, u64)>,
    /// While this is set, the store reports no results.
    silent: bool,
    failing: bool,
    /// Every record has to be stored again.
    stale: bool,
    forgotten: usize,
}

/// Handle of the fake store, which by default stores at once.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Shelf>>);

impl Keeper for Shared {
    fn store(&mut self, key: &FlowKey, ticket: u64, record: &Record) {
        let mut shelf = self.0.lock().unwrap();
        shelf.handed += 1;
        shelf.pending.push_back((*key, ticket));
        if !shelf.failing {
            shelf.records.insert(*key, record.clone());
            shelf.history.push(record.clone());
        }
    }

    fn forget(&mut self, key: &FlowKey) {
        let mut shelf = self.0.lock().unwrap();
        shelf.records.remove(key);
        shelf.pending.retain(|(other, _)| other != key);
        shelf.forgotten += 1;
    }

    fn is_stale(&self, _: &FlowKey) -> bool {
        self.0.lock().unwrap().stale
    }

    fn turn(&mut self, settled: &mut dyn FnMut(&FlowKey, u64, bool)) {
        let mut shelf = self.0.lock().unwrap();
        while !shelf.silent
            && let Some((key, ticket)) = shelf.pending.pop_front()
        {
            settled(&key, ticket, !shelf.failing);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let due = !self.0.lock().unwrap().pending.is_empty();
        due.then(|| Instant::now() + Duration::from_millis(1))
    }

    fn wait<'k>(&'k self, _: &mut Vec<(BorrowedFd<'k>, bool)>) {}
}

/// A client's namespace, a replica's with nginx, and the watch on its interface.
struct Rig {
    client: Netns,
    store: Shared,
    said: Arc<Mutex<(Status, Counters)>>,
    stop: Arc<AtomicBool>,
    /// The test has stopped the server.
    dead: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    dir: TempDir,
    nginx: Process,
    replica: Netns,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let done = self.thread.take().unwrap().join();
        assert!(done.is_ok() || std::thread::panicking());
    }
}

impl Rig {
    fn new() -> Option<Rig> {
        // Longer than any of these tests takes.
        Rig::with_idle(Duration::from_secs(600))
    }

    /// A rig in which a connection counts as closed after this idle time.
    fn with_idle(idle: Duration) -> Option<Rig> {
        if skipped(Feature::Tcx) {
            return None;
        }
        let (client, replica) = (Netns::new("watch-c")?, Netns::new("watch-r")?);
        client.veth("c0", &replica, "r0");
        client.ip("addr add 10.7.0.1/24 dev c0");
        replica.ip("addr add 10.7.0.2/24 dev r0");
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("www")).unwrap();
        let nginx = nginx(&replica, SERVICE, dir.path(), dir.path());
        let (store, said) = (Shared::default(), Arc::<Mutex<(Status, Counters)>>::default());
        let (stop, dead) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (hold, leases) = {
            let hold = Hold::open(&replica.interface("r0")).unwrap_or_else(|e| panic!("{e}"));
            let leases = hold.programs().leases().unwrap();
            (hold, leases)
        };
        leases.set(0, Lease { until: u64::MAX, settling: 0, ..Lease::default() }).unwrap();
        let (of_thread, at) = (store.clone(), Arc::clone(&said));
        let (end, gone) = (Arc::clone(&stop), Arc::clone(&dead));
        let mut watch = Watch::new(hold, of_thread).unwrap();
        watch.set_idle(idle);
        watch.set_services(&[(SERVICE.parse().unwrap(), 0, Settings::default())]).unwrap();
        let (never, other) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            // Keeps the other end of the pipe open: its end would wake the loop without a pause.
            let _other = other;
            while !end.load(Ordering::Relaxed) {
                watch.wait(Duration::from_millis(5), &[never.as_fd()]);
                watch.turn(|key, _| panic!("an orphan: {key:?}")).unwrap();
                watch.sweep().unwrap();
                let early = watch.ended_early();
                for key in early.into_iter().filter(|_| !gone.load(Ordering::Relaxed)) {
                    assert_eq!(watch.judge(&key, true).unwrap(), None, "it was not killed");
                }
                *at.lock().unwrap() = (watch.status(), watch.hold().counters().unwrap());
            }
        });
        Some(Rig { client, store, said, stop, dead, thread: Some(thread), dir, nginx, replica })
    }

    fn file(&self, name: &str, octets: usize) -> Vec<u8> {
        let content: Vec<u8> = (0..octets).map(|n| (n * 7 + n / 251) as u8).collect();
        fs::write(self.dir.path().join("www").join(name), &content).unwrap();
        content
    }

    /// Runs curl and returns its standard output.
    fn curl(&self, arguments: &str) -> Vec<u8> {
        let mut command = self.client.command("curl");
        let out = command.args(["-s", "-S", "-m", "60"]).args(arguments.split(' ')).output().unwrap();
        assert!(out.status.success(), "{arguments}: {}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    }

    /// Opens a connection of the test itself.
    fn connect(&self) -> TcpStream {
        let service: SocketAddr = SERVICE.parse().unwrap();
        let stream = in_netns(Some(self.client.name()), || TcpStream::connect(service).unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Opens a connection to a server of the test itself, instead of nginx.
    fn connect_to_test(&mut self) -> (TcpStream, TcpStream) {
        self.nginx.0.kill().unwrap();
        self.nginx.0.wait().unwrap();
        let listener = in_netns(Some(self.replica.name()), || TcpListener::bind(SERVICE)).unwrap().unwrap();
        (self.connect(), listener.accept().unwrap().0)
    }

    fn status(&self) -> (Status, Counters) {
        self.said.lock().unwrap().clone()
    }

    /// Waits until every connection has ended; returns the numbers of stored and deleted records
    /// since the last call.
    fn over(&self) -> (usize, usize) {
        eventually("the end of all connections", || self.status().0.watched == 0);
        let mut shelf = self.store.0.lock().unwrap();
        assert!(shelf.records.is_empty(), "{:?}", shelf.records);
        (std::mem::take(&mut shelf.history).len(), std::mem::take(&mut shelf.forgotten))
    }
}

#[test]
fn download_is_stored_first_and_deleted_after_its_end() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("large", 5_000_000);
    rig.store.0.lock().unwrap().silent = true;
    let mut stream = rig.connect();
    stream.set_nonblocking(true).unwrap();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("a record", || !rig.store.0.lock().unwrap().history.is_empty());
    eventually("its response is held", || rig.status().1.held > 0);
    assert!(stream.read(&mut [0]).is_err(), "an octet came before the store said that it has its record");
    assert_ne!(rivulet_pktio::repair::unacknowledged(&stream).unwrap(), 0);
    rig.store.0.lock().unwrap().silent = false;
    stream.set_nonblocking(false).unwrap();
    let (mut head, mut octet) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut octet).unwrap();
        head.push(octet[0]);
    }
    let mut body = vec![0; content.len()];
    stream.read_exact(&mut body).unwrap();
    assert!(body == content);
    assert_eq!(rig.status().0.watched, 1);
    drop(stream);
    assert_eq!(rig.over().1, 1);
    assert_eq!(rig.status().0.unprotected, HashMap::new());
}

#[test]
fn curl_requests_are_protected() {
    let Some(rig) = Rig::new() else { return };
    let (small, large) = (rig.file("small", 700), rig.file("large", 1_000_000));
    let url = format!("http://{SERVICE}");
    assert!(rig.curl(&format!("{url}/small")) == small);
    assert!(
        rig.curl(&format!("{url}/small {url}/large {url}/small")) == [&small[..], &large, &small].concat()
    );
    assert!(rig.curl(&format!("-r 1000-200000 {url}/large")) == large[1000..=200_000]);
    assert!(rig.curl(&format!("--http1.0 {url}/large")) == large);
    assert!(rig.curl(&format!("-H Connection:close {url}/large")) == large);
    let head = String::from_utf8(rig.curl(&format!("-I {url}/large"))).unwrap();
    assert!(head.contains("Content-Length: 1000000"), "{head}");
    let tag = head.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap().to_owned();
    let status = |more: &str| {
        let got = rig.curl(&format!("-o /dev/null -w %{{http_code}} {more}"));
        String::from_utf8(got).unwrap()
    };
    assert_eq!(status(&format!("-H If-None-Match:{tag} {url}/large")), "304");
    assert_eq!(status(&format!("{url}/none")), "404");
    assert_eq!(status(&format!("-r 2000000- {url}/large")), "416");
    let (stored, forgotten) = rig.over();
    assert!(stored >= 11 && forgotten == 9, "{stored} records, {forgotten} forgotten");
    assert_eq!(rig.status().0.unprotected, HashMap::new());
    let counters = rig.status().1;
    assert_eq!((counters.opened, counters.full, counters.lost), (9, 0, 0));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let Some(rig) = Rig::new() else { return };
    let (one, two) = (rig.file("one", 100_000), rig.file("two", 50_000));
    let mut stream = rig.connect();
    let request = |name: &str, more: &str| format!("GET /{name} HTTP/1.1\r\nHost: a\r\n{more}\r\n");
    let all = [request("one", ""), request("two", ""), request("one", "Connection: close\r\n")].concat();
    stream.write_all(all.as_bytes()).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    for body in [one.clone(), two, one] {
        let head = got.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        assert!(got[head..head + body.len()] == body);
        got.drain(..head + body.len());
    }
    assert!(got.is_empty());
    drop(stream);
    assert_eq!(rig.over().1, 1);
}

/// One segment of the server ends a response and begins the next one, for which the record has no
/// room until the client has acknowledged the first.
#[test]
fn segment_of_two_responses_is_released_in_part() {
    let Some(mut rig) = Rig::new() else { return };
    let (mut stream, mut server) = rig.connect_to_test();
    let requests = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(6);
    stream.write_all(&requests).unwrap();
    server.read_exact(&mut vec![0; requests.len()]).unwrap();
    // Each is stored whole, and a record has room for one.
    let body = |n: u8| (0..4040).map(|at| b'a' + (n + (at % 23) as u8) % 26).collect::<Vec<u8>>();
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 4040\r\n\r\n";
    let responses: Vec<u8> = (0..6).flat_map(|n| [&head[..], &body(n)].concat()).collect();
    server.write_all(&responses).unwrap();
    let mut got = vec![0; responses.len()];
    stream.read_exact(&mut got).unwrap();
    assert!(got == responses);
    assert_eq!(rig.status().0.unprotected, HashMap::new());
    let most = rig.store.0.lock().unwrap().history.iter().map(|record| record.responses.len()).max();
    assert_eq!(most, Some(1));
    drop((stream, server));
    assert_eq!(rig.over().1, 1);
}

#[test]
fn unprotectable_connection_continues_unprotected() {
    let Some(rig) = Rig::new() else { return };
    let url = format!("http://{SERVICE}");
    let small = rig.file("small", 700);
    let post = rig.curl(&format!("-o /dev/null -w %{{http_code}} -d abc {url}/small"));
    assert_eq!(post, b"405");
    rig.store.0.lock().unwrap().failing = true;
    assert!(rig.curl(&format!("{url}/small")) == small);
    eventually("both are counted", || rig.status().0.unprotected.values().sum::<u64>() == 2);
    let counted = rig.status().0.unprotected;
    assert_eq!(counted.get(&Reason::Store), Some(&1), "{counted:?}");
    assert_eq!(rig.over().0, 0);
}

fn small(stream: &mut TcpStream, content: &[u8]) {
    stream.write_all(b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (mut got, mut octet) = (Vec::new(), [0]);
    while !got.ends_with(content) {
        stream.read_exact(&mut octet).unwrap();
        got.push(octet[0]);
    }
}

#[test]
fn idle_connection_is_dropped_and_active_one_stays() {
    let Some(rig) = Rig::with_idle(Duration::from_secs(3)) else { return };
    let content = rig.file("small", 700);
    let (mut silent, mut speaks) = (rig.connect(), rig.connect());
    small(&mut silent, &content);
    let key = FlowKey::new(speaks.local_addr().unwrap(), SERVICE.parse().unwrap());
    eventually("one is forgotten", || {
        small(&mut speaks, &content);
        rig.status().0.watched == 1
    });
    {
        let shelf = rig.store.0.lock().unwrap();
        assert_eq!((shelf.records.keys().collect::<Vec<_>>(), shelf.forgotten), (vec![&key], 1));
    }
    // nginx still has the connection, and answers as if it had never been watched.
    small(&mut silent, &content);
    assert_eq!(rig.status().0.watched, 1);
    assert_eq!(rig.status().0.unprotected, HashMap::new());
    drop((silent, speaks));
    assert_eq!(rig.over().1, 2);
}

#[test]
fn stale_record_is_stored_again_and_failure_changes_nothing() {
    let Some(rig) = Rig::new() else { return };
    let content = rig.file("small", 700);
    let mut stream = rig.connect();
    small(&mut stream, &content);
    let stored = || rig.store.0.lock().unwrap().history.len();
    let before = stored();
    rig.store.0.lock().unwrap().stale = true;
    eventually("it is stored again", || stored() >= before + 3);
    {
        let shelf = rig.store.0.lock().unwrap();
        let same = |record: &Record| Record { version: 0, ..record.clone() };
        let [.., one, two] = &shelf.history[..] else { panic!() };
        assert_eq!((same(one), two.version), (same(two), one.version + 1));
    }
    // The client keeps the bytes that it has received.
    let failed = {
        let mut shelf = rig.store.0.lock().unwrap();
        shelf.failing = true;
        shelf.handed
    };
    eventually("it is tried", || rig.store.0.lock().unwrap().handed > failed + 3);
    assert_eq!((rig.status().0.watched, rig.status().0.unprotected), (1, HashMap::new()));
    {
        let mut shelf = rig.store.0.lock().unwrap();
        (shelf.failing, shelf.stale) = (false, false);
    }
    eventually("nothing more is tried", || rig.store.0.lock().unwrap().pending.is_empty());
    small(&mut stream, &content);
    drop(stream);
    assert_eq!(rig.over().1, 1);
    assert_eq!(rig.status().0.unprotected, HashMap::new());
}

#[test]
fn killed_server_sends_no_fin_or_rst() {
    let Some(mut rig) = Rig::new() else { return };
    rig.file("large", 50_000_000);
    let mut stream = rig.connect();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    rig.dead.store(true, Ordering::Relaxed);
    rig.nginx.0.kill().unwrap();
    rig.nginx.0.wait().unwrap();
    // Bytes that the server's kernel still has arrive, and then nothing.
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut got = Vec::new();
    let end = stream.read_to_end(&mut got);
    assert_eq!(end.unwrap_err().kind(), ErrorKind::WouldBlock, "the client was told");
    assert!(got.len() < 50_000_000 && rig.status().1.resets + rig.status().1.fins > 0);
    assert_eq!((rig.status().0.watched, rig.status().0.unprotected), (1, HashMap::new()));
    assert_eq!(rig.store.0.lock().unwrap().records.len(), 1);
}

#[test]
fn fin_of_live_server_is_released() {
    let Some(mut rig) = Rig::new() else { return };
    let (mut stream, mut server) = rig.connect_to_test();
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    server.read_exact(&mut [0; 32]).unwrap();
    server.write_all(b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 50000000\r\n\r\nhalf").unwrap();
    // Without a stored record nothing would be deleted.
    eventually("it is stored", || !rig.store.0.lock().unwrap().history.is_empty());
    drop(server);
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(got.ends_with(b"\r\n\r\nhalf"), "{}", String::from_utf8_lossy(&got));
    eventually("it is counted", || rig.status().0.unprotected.get(&Reason::Closed) == Some(&1));
    assert_eq!(rig.over().1, 1);
}
