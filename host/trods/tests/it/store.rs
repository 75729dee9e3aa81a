//! The store, with real memcached servers and with fake ones that misbehave.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_pktio::testing::{PATIENCE, Process, eventually};
use rivulet_trods::Record;
use rivulet_trods::store::{
    Done, LIFETIME, RENEWAL, RecordKeys, Store, StoreConfig, StoreError, Stored, clock_ahead, erase,
    incarnations, load, load_all, prefix,
};
use rivulet_trods::testing::keys;
use rustix::event::{PollFd, PollFlags, poll};

use crate::records::record;

/// A memcached server on its own port.
pub struct Memcached {
    pub address: SocketAddr,
    pub process: Process,
    _folder: tempfile::TempDir,
}

impl Memcached {
    /// Starts memcached. `None`, with a line on standard error, if it is not installed.
    pub fn start() -> Option<Memcached> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("port");
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", "-1", "-U", "0", "-u", "nobody", "-M", "-m", "64", "-t", "1"]);
        command.env("MEMCACHED_PORT_FILENAME", &file).stdout(Stdio::null()).stderr(Stdio::null());
        // memcached gives up root and then writes its socket here.
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let process = match command.spawn() {
            Ok(child) => Process(child),
            Err(e) => {
                eprintln!("SKIPPED: cannot run memcached: {e}");
                return None;
            }
        };
        let mut port = None;
        eventually("memcached's port", || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            port = text.lines().find_map(|line| line.strip_prefix("TCP INET: ")?.trim().parse().ok());
            port.is_some_and(|port: u16| TcpStream::connect(("127.0.0.1", port)).is_ok())
        });
        let address = SocketAddr::from(([127, 0, 0, 1], port.unwrap()));
        Some(Memcached { address, process, _folder: folder })
    }

    /// All records under this prefix, as another replica reads them.
    fn load(&self) -> Vec<(u32, Record)> {
        let number = |(stored, record): (Vec<Stored>, _)| {
            assert_eq!((stored.len(), stored[0].server), (1, self.address));
            (stored[0].number, record)
        };
        self.found().into_iter().map(number).collect()
    }

    fn found(&self) -> Vec<(Vec<Stored>, Record)> {
        let loaded = load(&[self.address], "web.r1.7", &keys(), PATIENCE);
        assert_eq!((loaded.servers, loaded.damaged), (1, 0));
        loaded.records
    }
}

/// The records found at several servers.
fn found_at(servers: &[SocketAddr]) -> Vec<Record> {
    load(servers, "web.r1.7", &keys(), PATIENCE).records.into_iter().map(|(_, record)| record).collect()
}

/// A timeout that even a busy machine does not exceed.
const LONG: Duration = Duration::from_secs(2);

fn store(servers: &[SocketAddr], copies: u8, patience: Duration) -> Store {
    let prefix = prefix("web", "r1", 7).unwrap();
    // The order in which servers are preferred depends on the prefix; these tests need a fixed one.
    let mut servers = servers.to_vec();
    let turn = crc32c::crc32c(prefix.as_bytes()) as usize % servers.len();
    servers.rotate_right(turn);
    let config = StoreConfig {
        servers,
        own: Vec::new(),
        copies,
        prefix,
        formers: Vec::new(),
        patience,
        renewal: RENEWAL,
    };
    Store::new(&config, &keys(), Instant::now()).unwrap()
}

/// Runs the store until `count` operations are complete, and returns their results.
fn finish(store: &mut Store, count: usize) -> Vec<Done> {
    let mut done = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        store.turn(Instant::now(), &mut done);
        if done.len() >= count {
            return done;
        }
        assert!(Instant::now() < deadline, "{done:?}");
        let wait = store.deadline().saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
        let mut fds: Vec<PollFd<'_>> = store
            .descriptors()
            .map(|(fd, writes)| {
                let flags = if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                PollFd::from_borrowed_fd(fd, flags)
            })
            .collect();
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
        poll(&mut fds, Some(&wait)).unwrap();
    }
}

fn of(n: u32, version: u32) -> Record {
    let mut record = record();
    record.tuple.client.set_port(n as u16);
    record.version = version;
    record
}

fn put(store: &mut Store, n: u32, version: u32) {
    store.put(n, version.into(), &of(n, version), Instant::now());
}

/// Stores one record; returns whether it was stored.
fn kept(store: &mut Store, n: u32, version: u32) -> bool {
    put(store, n, version);
    let done = finish(store, 1);
    assert_eq!((done.len(), done[0].n, done[0].ticket), (1, n, version.into()));
    done[0].kept
}

#[test]
fn another_replica_finds_stored_records() {
    let Some(server) = Memcached::start() else { return };
    let mut store = store(&[server.address], 1, LONG);
    for n in 0..1000 {
        put(&mut store, n, 1);
    }
    let done = finish(&mut store, 1000);
    assert!(done.len() == 1000 && done.iter().all(|done| done.kept && done.ticket == 1));
    assert_eq!(store.pending(), 0);
    assert!(kept(&mut store, 5, 2));
    store.forget(6);
    // The number is used again before the deletion is sent.
    store.forget(7);
    assert!(kept(&mut store, 7, 9));
    let mut found = server.load();
    found.sort_by_key(|(n, _)| *n);
    let want: Vec<_> = (0..1000)
        .filter(|n| *n != 6)
        .map(|n| (n, of(n, [1, 2, 9][usize::from(n == 5) + 2 * usize::from(n == 7)])))
        .collect();
    assert!(found == want);
    assert_eq!(load(&[server.address], "web.r1.8", &keys(), PATIENCE).records, []);
}

/// An adopter deletes a connection's former records; the returning replica reuses the number.
#[test]
fn newer_record_is_not_deleted() {
    let Some(server) = Memcached::start() else { return };
    let mut store = store(&[server.address], 1, LONG);
    for n in 0..300 {
        put(&mut store, n, 1);
    }
    finish(&mut store, 300);
    let outdated: Vec<Stored> = server.found().into_iter().flat_map(|(stored, _)| stored).collect();
    assert_eq!(outdated.len(), 300);
    store.forget(7);
    assert!(kept(&mut store, 7, 2) && kept(&mut store, 299, 2));
    assert_eq!(erase("web.r1.7", outdated.clone(), PATIENCE), 1);
    let mut left = server.load();
    left.sort_by_key(|(n, _)| *n);
    assert_eq!(left, [(7, of(7, 2)), (299, of(299, 2))]);
    // A record that is already gone is no failure.
    assert_eq!(erase("web.r1.7", outdated, PATIENCE), 1);
}

#[test]
fn two_copies_are_on_two_servers() {
    let (Some(one), Some(two)) = (Memcached::start(), Memcached::start()) else { return };
    let mut both = store(&[one.address, two.address], 2, LONG);
    assert!(kept(&mut both, 3, 1));
    assert_eq!((one.load(), two.load()), (vec![(3, of(3, 1))], vec![(3, of(3, 1))]));
    drop(one);
    assert!(kept(&mut both, 3, 2), "one that is left is better than none");
    assert_eq!(two.load(), [(3, of(3, 2))]);
}

#[test]
fn the_next_server_takes_over_when_one_dies() {
    let (Some(one), Some(two)) = (Memcached::start(), Memcached::start()) else { return };
    let mut store = store(&[one.address, two.address], 1, LONG);
    assert!(kept(&mut store, 0, 1) && kept(&mut store, 1, 1));
    assert_eq!((one.load().len(), two.load().len()), (2, 0));
    let addresses = [one.address, two.address];
    drop(one);
    for version in 2..20 {
        assert!(kept(&mut store, 0, version));
    }
    assert_eq!(two.load(), [(0, of(0, 19))]);
    drop(two);
    assert!(!kept(&mut store, 0, 20), "nobody is left");
    let loaded = load(&addresses, "web.r1.7", &keys(), PATIENCE);
    assert_eq!((loaded.servers, loaded.records.len()), (0, 0));
}

/// The newest record counts, whichever servers have older ones.
#[test]
fn old_records_on_another_server_do_not_count() {
    let (Some(one), Some(two)) = (Memcached::start(), Memcached::start()) else { return };
    for (server, version) in [(&one, 4), (&two, 3)] {
        let mut store = store(&[server.address], 1, LONG);
        assert!(kept(&mut store, 0, version));
    }
    let both = [two.address, one.address];
    assert_eq!(found_at(&both), [of(0, 4)]);
    // A later connection between the same addresses and ports, with another number.
    let mut later = of(0, 1);
    later.handshake.at_ms += 1;
    later.handshake.client_isn += 1;
    let mut store = store(&[two.address], 1, LONG);
    store.put(9, 1, &later, Instant::now());
    finish(&mut store, 1);
    assert_eq!(found_at(&both), [later]);
    // Stale copies on every server are listed for deletion together.
    let found = load(&both, "web.r1.7", &keys(), PATIENCE).records;
    let outdated: Vec<Stored> = found.into_iter().flat_map(|(stored, _)| stored).collect();
    assert_eq!((outdated.len(), erase("web.r1.7", outdated, PATIENCE)), (3, 2));
    assert_eq!(found_at(&both), []);
}

/// A fake server: `answer` makes the reply to each stored record, and the receiver gets these.
fn pretender(
    answer: impl Fn(usize, &str) -> Option<String> + Send + 'static,
) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let mut count = 0;
        for stream in listener.incoming() {
            // The error means that the test has ended.
            let Ok(stream) = stream else { return };
            if serve(stream, &answer, &mut count, &tell).is_none() {
                return;
            }
        }
    });
    (address, told)
}

fn serve(
    stream: TcpStream,
    answer: &impl Fn(usize, &str) -> Option<String>,
    count: &mut usize,
    tell: &Sender<String>,
) -> Option<()> {
    let mut from = BufReader::new(stream);
    let mut line = String::new();
    while from.read_line(&mut line).is_ok_and(|n| n > 0) {
        let mut words = line.split_ascii_whitespace();
        let mut is_index = false;
        if words.next() == Some("ms") {
            is_index = words.next()?.ends_with(".all");
            let length: usize = words.next()?.parse().ok()?;
            from.read_exact(&mut vec![0; length + 2]).ok()?;
        }
        // The list of incarnations is stored too; no test waits for it.
        if is_index {
            let opaque = line.trim().rsplit(' ').next()?;
            from.get_mut().write_all(format!("HD {opaque}\r\n").as_bytes()).ok()?;
            line.clear();
            continue;
        }
        *count += 1;
        tell.send(line.trim().to_owned()).ok()?;
        let opaque = line.trim().rsplit(' ').next()?.to_owned();
        match answer(*count, &opaque) {
            Some(said) => from.get_mut().write_all(said.as_bytes()).ok()?,
            None => break,
        }
        line.clear();
    }
    Some(())
}

#[test]
fn record_goes_to_next_server_when_first_is_slow() {
    let Some(good) = Memcached::start() else { return };
    // This server never answers.
    let (slow, told) = pretender(|_, _| Some(String::new()));
    let mut store = store(&[slow, good.address], 1, Duration::from_millis(50));
    for version in 1..10 {
        assert!(kept(&mut store, 0, version));
    }
    assert_eq!(good.load(), [(0, of(0, 9))]);
    // The slow server got the bound, and one record before it became the last choice. A second
    // later it may be tried again.
    let asked: Vec<String> = told.try_iter().collect();
    assert!(asked.len() >= 2 && asked[0].starts_with("ms web.r1.7 34 "), "{asked:?}");
    assert!(asked[1].starts_with("ms web.r1.7.0 "), "{asked:?}");
}

#[test]
fn late_answer_still_counts() {
    let (slow, told) = pretender(|_, opaque| {
        std::thread::sleep(Duration::from_millis(100));
        Some(format!("HD {opaque}\r\n"))
    });
    let mut store = store(&[slow], 1, Duration::from_millis(20));
    // With no other server the store waits 25 times as long.
    put(&mut store, 0, 1);
    let done = finish(&mut store, 1);
    assert_eq!(told.try_iter().count(), 2);
    assert!(done[0].kept);
}

#[test]
fn record_fails_if_no_server_answers() {
    let (slow, _told) = pretender(|_, _| Some(String::new()));
    let mut store = store(&[slow], 1, Duration::from_millis(2));
    assert!(!kept(&mut store, 0, 1));
}

#[test]
fn malformed_answer_is_a_failure() {
    let Some(good) = Memcached::start() else { return };
    for rubbish in [
        "OK\r\n",
        "HD\r\n",
        "HD O12345\r\n",
        "\r\n",
        "\0\0\0\n",
        "HD O1 HD O1",
        "ERROR\r\n",
        "CLIENT_ERROR bad data chunk\r\n",
        "VA 5 O1\r\nhello\r\n",
        "NS O1\r\n",
        "SERVER_ERROR out of memory storing object\r\n",
    ] {
        // The first command stores the bound; a valid answer to it makes only the record's count.
        let text = rubbish.to_owned();
        let (bad, told) = pretender(move |count, opaque| {
            Some(if count % 2 == 1 { format!("HD {opaque}\r\n") } else { text.clone() + &"x".repeat(3000) })
        });
        let mut both = store(&[bad, good.address], 1, LONG);
        let version = 1 + u32::try_from(rubbish.len()).unwrap();
        assert!(kept(&mut both, 0, version), "{rubbish}");
        assert!(told.try_iter().count() >= 2, "{rubbish}");
        assert_eq!(good.load(), [(0, of(0, version))]);
        let mut alone = store(&[bad], 1, Duration::from_millis(20));
        assert!(!kept(&mut alone, 0, 1), "{rubbish}");
    }
}

#[test]
fn endless_answer_is_not_read_forever() {
    for said in [
        "VA 999999999 c1\r\n",
        "VA 5 c1\r\nhello\r\n",
        "VA 1\r\n1\r\n",
        "VA 1 c\r\n1\r\n",
        "VA 8224 c1\r\n",
        "VA x\r\n",
        "EN",
        "x".repeat(1000).as_str(),
        "VA 10 c1\r\n4294967295\r\n",
    ] {
        let said = said.to_owned();
        let (bad, _told) = pretender(move |_, _| Some(said.clone()));
        let loaded = load(&[bad], "web.r1.7", &keys(), Duration::from_millis(300));
        assert_eq!((loaded.servers, loaded.records.len()), (0, 0));
    }
}

/// Records are stored again well before they expire, and not all at the same time.
#[test]
fn a_record_is_stale_well_before_its_lifetime_ends() {
    let Some(server) = Memcached::start() else { return };
    let mut store = store(&[server.address], 1, LONG);
    let begin = Instant::now();
    for n in 0..1000 {
        put(&mut store, n, 1);
    }
    assert!((0..1000).all(|n| !store.is_stale(n, begin)), "they are on their way");
    finish(&mut store, 1000);
    let after = |share: f64| Instant::now() + Duration::from_secs(u64::from(LIFETIME)).mul_f64(share);
    let stale = |store: &Store, share: f64| (0..1000).filter(|n| store.is_stale(*n, after(share))).count();
    assert_eq!((stale(&store, 0.3), stale(&store, 0.7)), (0, 1000));
    // Each tenth of the interval has about as many renewals as any other.
    let counts: Vec<usize> =
        (0..=10).map(|n| stale(&store, 1.0 / 3.0 * (1.0 + f64::from(n) / 10.0))).collect();
    assert!(counts.windows(2).all(|two| (90..=110).contains(&(two[1] - two[0]))), "{counts:?}");
    store.forget(3);
    assert!(!store.is_stale(3, after(0.9)) && !store.is_stale(5000, after(0.9)));
}

#[test]
fn records_of_lost_server_are_stale() {
    let (Some(one), Some(two)) = (Memcached::start(), Memcached::start()) else { return };
    let mut single = store(&[one.address, two.address], 1, LONG);
    let mut both = store(&[one.address, two.address], 2, LONG);
    for n in 0..5 {
        assert!(kept(&mut single, n, 1) && kept(&mut both, n, 1));
    }
    assert_eq!((one.load().len(), two.load().len()), (5, 5));
    let soon = |store: &Store| (0..5).filter(|n| store.is_stale(*n, Instant::now())).count();
    let late = |store: &Store| {
        (0..5).filter(|n| store.is_stale(*n, Instant::now() + Duration::from_secs(60))).count()
    };
    assert_eq!((soon(&single), soon(&both), late(&single), late(&both)), (0, 0, 0, 0));
    drop(one);
    // The store notices the loss even while it stores nothing.
    let mut done = Vec::new();
    eventually("the loss", || {
        single.turn(Instant::now(), &mut done);
        both.turn(Instant::now(), &mut done);
        soon(&single) == 5
    });
    assert!(kept(&mut single, 0, 2));
    assert_eq!((soon(&single), two.load().iter().filter(|(_, record)| record.version == 2).count()), (4, 1));
    // Of two copies one is left, and there is no server for another one.
    assert_eq!(soon(&both), 0);
    drop(two);
    eventually("the other loss", || {
        single.turn(Instant::now(), &mut done);
        both.turn(Instant::now(), &mut done);
        // Between attempts to connect there is no descriptor to wait on.
        single.descriptors().count() == 0 && soon(&single) == 0
    });
}

/// The server answers only after all replicas' queries have arrived.
#[test]
fn records_of_several_replicas_are_read_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let mut streams: Vec<TcpStream> = (0..3).map(|_| listener.accept().unwrap().0).collect();
        let mut asked: Vec<String> = streams
            .iter()
            .map(|stream| {
                let mut line = String::new();
                BufReader::new(stream).read_line(&mut line).unwrap();
                line
            })
            .collect();
        // The bound and the first 64 records: none of them exists.
        streams.iter_mut().for_each(|stream| stream.write_all(&b"EN\r\n".repeat(1 + 64)).unwrap());
        asked.sort();
        asked
    });
    let keys = keys();
    let loaded = load_all(&[address], &["p.0.1", "p.1.1", "p.2.1"].map(|prefix| (prefix, &keys)), PATIENCE);
    assert_eq!(loaded.iter().map(|loaded| loaded.servers).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(server.join().unwrap(), ["mg p.0.1 v c\r\n", "mg p.1.1 v c\r\n", "mg p.2.1 v c\r\n"]);
}

#[test]
fn servers_on_this_host_are_not_used() {
    let config = StoreConfig {
        servers: vec!["10.0.0.1:11211".parse().unwrap(); 2],
        own: vec!["10.0.0.1".parse().unwrap()],
        copies: 1,
        prefix: prefix("web", "r1", 7).unwrap(),
        formers: Vec::new(),
        patience: LONG,
        renewal: RENEWAL,
    };
    let refused = |config: StoreConfig| Store::new(&config, &keys(), Instant::now()).map(drop);
    assert_eq!(refused(config.clone()), Err(StoreError::Alone));
    assert_eq!(
        refused(StoreConfig { own: Vec::new(), copies: 3, ..config.clone() }),
        Err(StoreError::Copies(3))
    );
    let many = vec!["10.0.0.2:1".parse().unwrap(); 17];
    assert_eq!(refused(StoreConfig { servers: many, ..config }), Err(StoreError::Servers(17)));
    for name in ["", "a b", "a.b", "a\r\nmd x", &"a".repeat(65), "\u{e9}"] {
        assert_eq!(prefix(name, "r1", 1), Err(StoreError::Name(name.to_owned())));
        assert_eq!(prefix("web", name, 1), Err(StoreError::Name(name.to_owned())));
    }
}

/// memcached reports its time, which shows that two hosts' clocks differ.
#[test]
fn clock_difference_to_the_store_is_detected() {
    let Some(server) = Memcached::start() else { return };
    assert_eq!(clock_ahead(&[server.address], PATIENCE), None);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    for (theirs, ahead) in [(now - 100, 100), (now + 100, -100)] {
        let (other, _told) =
            pretender(move |_, _| Some(format!("STAT pid 1\r\nSTAT time {theirs}\r\nEND\r\n")));
        let (_, found) = clock_ahead(&[server.address, other], PATIENCE).unwrap();
        assert!((found - ahead).abs() < 60, "{found}");
    }
    let (silent, _told) = pretender(|_, _| Some("STAT time x\r\nEND\r\n".to_owned()));
    assert_eq!(clock_ahead(&[silent], PATIENCE), None);
}

/// A replica's incarnations are found with any one of them known, and former ones even before the
/// present one has stored a record.
#[test]
fn former_incarnations_are_found() {
    let Some(server) = Memcached::start() else { return };
    let at = [server.address];
    assert_eq!(incarnations(&at, "web.r1.7", &keys(), PATIENCE), BTreeSet::new());
    let config = StoreConfig {
        servers: at.to_vec(),
        own: Vec::new(),
        copies: 1,
        prefix: prefix("web", "r1", 7).unwrap(),
        formers: vec![6, 3],
        patience: LONG,
        renewal: RENEWAL,
    };
    let mut store = Store::new(&config, &keys(), Instant::now()).unwrap();
    let found = |known: &str| incarnations(&at, known, &keys(), PATIENCE);
    eventually("they stand there", || {
        store.turn(Instant::now(), &mut Vec::new());
        found("web.r1.7").contains(&7)
    });
    assert_eq!(found("web.r1.2"), [3, 6, 7].into());
    assert_eq!(found("web.r2.7"), BTreeSet::new(), "another replica's");
}

/// Stores a value under a key, as an attacker with access to the server can.
fn forge(server: &Memcached, key: &str, value: &[u8]) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let command = format!("ms {key} {}\r\n", value.len());
    stream.write_all(&[command.as_bytes(), value, b"\r\n"].concat()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert_eq!(answer, "HD\r\n");
}

/// The value of a key.
fn value(server: &Memcached, key: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(format!("mg {key} v\r\n").as_bytes()).unwrap();
    let (mut from, mut line) = (BufReader::new(stream), String::new());
    from.read_line(&mut line).unwrap();
    let mut value = vec![0; line.trim().strip_prefix("VA ").unwrap().parse().unwrap()];
    from.read_exact(&mut value).unwrap();
    value
}

/// Number of reads that the server has processed.
fn read_count(server: &Memcached) -> u64 {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"stats\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    lines.find_map(|line| line.strip_prefix("STAT cmd_get ")?.parse().ok()).unwrap()
}

#[test]
fn forged_bound_hides_no_record_and_costs_nothing() {
    let Some(server) = Memcached::start() else { return };
    let mut store = store(&[server.address], 1, LONG);
    for n in 0..300 {
        put(&mut store, n, 1);
    }
    finish(&mut store, 300);
    let sealed = value(&server, "web.r1.7");
    let stranger = RecordKeys::new(5, 1, &[(1, [8; 16])]).seal("web.r1.7", b"0").unwrap();
    let moved = keys().seal("web.r2.7", b"0").unwrap();
    for forged in [&b"0"[..], b"1", b"1048576", b"x", &stranger, &moved] {
        forge(&server, "web.r1.7", forged);
        let before = read_count(&server);
        assert_eq!(server.load().len(), 300, "{forged:?}");
        let count = read_count(&server) - before;
        assert!(count <= 1 + 64 + 3 * 256, "{count} values were asked for");
    }
    // A restored older bound hides later records, just as a deletion does.
    let before = keys().seal("web.r1.7", b"256").unwrap();
    for (count, found) in [(&before, 256), (&sealed, 300)] {
        forge(&server, "web.r1.7", count);
        assert_eq!(server.load().len(), found);
    }
}

#[test]
fn forged_incarnations_are_not_read() {
    let Some(server) = Memcached::start() else { return };
    let found = || incarnations(&[server.address], "web.r1.7", &keys(), PATIENCE);
    let key = "web.r1.all";
    let stranger = RecordKeys::new(5, 1, &[(1, [8; 16])]).seal(key, b"9 8 7").unwrap();
    let moved = keys().seal("web.r2.all", b"9 8 7").unwrap();
    for forged in [&b"9 8 7"[..], b"7", &stranger, &moved] {
        forge(&server, key, forged);
        assert_eq!(found(), BTreeSet::new(), "{forged:?}");
    }
    // A restored older list hides the newer incarnations, and nothing more.
    forge(&server, key, &keys().seal(key, b"6 3").unwrap());
    assert_eq!(found(), [3, 6].into());
}

#[test]
fn index_values_are_resealed_under_new_keys() {
    let Some(server) = Memcached::start() else { return };
    let mut store = store(&[server.address], 1, LONG);
    assert!(kept(&mut store, 0, 1));
    let next = RecordKeys::new(5, 2, &[(1, [7; 16]), (2, [9; 16])]);
    store.set_keys(&next, Instant::now());
    let alone = RecordKeys::new(5, 2, &[(2, [9; 16])]);
    for key in ["web.r1.7", "web.r1.all"] {
        eventually("it is under the new key", || {
            store.turn(Instant::now(), &mut Vec::new());
            alone.open(key, &value(&server, key)).is_some()
        });
    }
}

#[test]
fn store_without_keys_stores_nothing() {
    let Some(server) = Memcached::start() else { return };
    let mut store = store(&[server.address], 1, LONG);
    store.set_keys(&RecordKeys::new(5, 1, &[]), Instant::now());
    assert!(!kept(&mut store, 0, 1));
    store.set_keys(&keys(), Instant::now());
    assert!(kept(&mut store, 0, 2));
}
