//! `rivulet-wire` between two interfaces in namespaces of the test's own. Upper time limits leave
//! room for a busy machine; lower limits are exact.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rivulet_link::control::request;
use rivulet_pktio::testing::{Netns, PATIENCE, Process, eventually};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame};

const PREFIX: &str = "pio-";

struct Bench {
    a: Netns,
    m: Netns,
    b: Netns,
    wire: Process,
    socket: PathBuf,
}

impl Bench {
    fn new(options: &str) -> Option<Bench> {
        let (a, m, b) = (Netns::new(PREFIX)?, Netns::new(PREFIX)?, Netns::new(PREFIX)?);
        for ns in [&a, &m, &b] {
            ns.quiet();
        }
        a.veth("va", &m, "ma");
        b.veth("vb", &m, "mb");
        let socket = std::env::temp_dir().join(format!("{}.sock", m.name()));
        // One interface in the wire's own namespace, the other with an explicit namespace.
        let wire = m
            .command(env!("CARGO_BIN_EXE_rivulet-wire"))
            .args(["ma", &format!("{}:mb", m.name()), "--control", socket.to_str().unwrap()])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let wire = Process(wire);
        let mut bench = Bench { a, m, b, wire, socket };
        let mut line = String::new();
        BufReader::new(bench.wire.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("rivulet-wire: ma <-> "), "{line}");
        Some(bench)
    }

    fn ports(&self) -> (AfPacket, AfPacket) {
        let open = |ns: &Netns, name| AfPacket::open(&ns.interface(name), Config::default()).unwrap();
        (open(&self.a, "va"), open(&self.b, "vb"))
    }

    fn stat(&self, direction: &str, key: &str) -> u64 {
        let all = request(&self.socket, "stats").unwrap();
        let line = all.lines().find(|l| l.starts_with(direction)).unwrap();
        let word = line.split(' ').find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
        word.unwrap_or_else(|| panic!("{key} in {line}")).parse().unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn frame(len: usize, number: u32) -> Vec<u8> {
    let mut f = vec![0xff; len];
    f[12..14].copy_from_slice(&[0x88, 0xb6]);
    f[14..18].copy_from_slice(&number.to_be_bytes());
    f
}

fn number(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().unwrap())
}

/// A pause of this length counts as the end of the frames.
const SILENCE: Duration = Duration::from_millis(200);

/// Sends numbered frames at an interval, and waits for `wanted` of them and then for unexpected
/// ones. Returns number and one-way time of each frame that arrived.
fn probe(
    from: &mut dyn PacketIo,
    to: &mut dyn PacketIo,
    count: u32,
    gap: Duration,
    wanted: impl Fn() -> usize,
) -> Vec<(u32, Duration)> {
    let mut sent = Vec::new();
    let mut got = Vec::new();
    let (mut next, mut asked) = (Instant::now(), Instant::now());
    let mut quiet = Instant::now();
    let deadline = Instant::now() + PATIENCE;
    let mut missing = true;
    while (sent.len() as u32) < count || missing || quiet.elapsed() < SILENCE {
        if Instant::now() > deadline {
            break;
        }
        if (sent.len() as u32) < count && Instant::now() >= next {
            sent.push(Instant::now());
            from.send(&[TxFrame::new(&frame(200, sent.len() as u32 - 1))]).unwrap();
            next += gap;
            quiet = Instant::now();
        }
        for i in 0..to.recv().unwrap() {
            let n = number(to.frame(i).data);
            if let Some(at) = sent.get(n as usize) {
                got.push((n, at.elapsed()));
            }
            quiet = Instant::now();
        }
        if asked.elapsed() > Duration::from_millis(20) {
            (missing, asked) = (got.len() < wanted(), Instant::now());
        }
    }
    got
}

/// Sends frames until one arrives, because the wire reopens an interface some time after it is up.
fn until_it_passes(from: &mut dyn PacketIo, to: &mut dyn PacketIo) {
    let probe = frame(200, u32::MAX);
    eventually("frames pass", || {
        from.send(&[TxFrame::new(&probe)]).unwrap();
        to.recv().unwrap() > 0
    });
}

fn quantile(times: &[(u32, Duration)], q: f64) -> Duration {
    let mut sorted: Vec<Duration> = times.iter().map(|t| t.1).collect();
    sorted.sort();
    sorted[((sorted.len() - 1) as f64 * q) as usize]
}

#[test]
fn delay_holds_both_ways_and_changes_at_run_time() {
    let Some(bench) = Bench::new("--delay 5ms --b-to-a delay=2ms") else { return };
    let (mut a, mut b) = bench.ports();
    let ms = Duration::from_millis;
    let check = |times: &[(u32, Duration)], count: usize, wanted: Duration| {
        assert_eq!(times.len(), count);
        assert!(times.iter().all(|t| t.1 >= wanted), "earlier than {wanted:?}");
        let median = quantile(times, 0.5);
        // Frames are never early. How late they are depends on the machine's load, so this only
        // distinguishes a delay from a hang. The shaper's tests check exact times in virtual time.
        assert!(median < wanted + ms(5000), "median {median:?} for {wanted:?}");
    };
    check(&probe(&mut a, &mut b, 50, ms(4), || 50), 50, ms(5));
    check(&probe(&mut b, &mut a, 50, ms(4), || 50), 50, ms(2));
    request(&bench.socket, "set b-to-a delay=10ms").unwrap();
    check(&probe(&mut b, &mut a, 20, ms(4), || 20), 20, ms(10));
    check(&probe(&mut a, &mut b, 20, ms(4), || 20), 20, ms(5));
    request(&bench.socket, "set delay=0").unwrap();
    check(&probe(&mut a, &mut b, 20, ms(4), || 20), 20, ms(0));
    assert_eq!(bench.stat("a-to-b", "delivered"), 90);
    assert_eq!(bench.stat("b-to-a", "delivered"), 70);
}

#[test]
fn rate_and_queue_length_hold() {
    let Some(bench) = Bench::new("--rate 100mbit --queue 50") else { return };
    let (mut a, mut b) = bench.ports();
    // 1250-byte frames, offered as fast as the wire's socket accepts them, 0.6 s at a time.
    let f = frame(1250, 0);
    let (mut got, mut last, start) = (0u32, Instant::now(), Instant::now());
    // The rate is never exceeded, counted from before the first frame was offered, so that frames
    // that waited for this test do not count as fast. A busy machine may delay sender or wire for a
    // while.
    eventually("a good part of the rate, and more than the queue takes", || {
        let (before, began) = (got, Instant::now());
        while began.elapsed() < Duration::from_millis(600) {
            a.send(&[TxFrame::new(&f); 4]).unwrap();
            let n = b.recv().unwrap() as u32;
            if n > 0 {
                last = Instant::now();
                got += n;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        let rate = f64::from(got) * 10_000.0 / last.duration_since(start).as_secs_f64();
        assert!(rate < 1.03e8, "{rate} bit/s");
        let now = f64::from(got - before) * 10_000.0 / began.elapsed().as_secs_f64();
        now > 0.2e8 && bench.stat("a-to-b", "queue_drops") > 0
    });
}

#[test]
fn loss_and_duplication_happen_and_are_counted() {
    let Some(bench) = Bench::new("--loss 20% --seed 3") else { return };
    let (mut a, mut b) = bench.ports();
    // The number of losses is final when all frames have passed the wire.
    let left = || 500 - bench.stat("a-to-b", "lost") as usize;
    let got = probe(&mut a, &mut b, 500, Duration::from_micros(200), left).len() as u64;
    assert_eq!(got, left() as u64);
    assert!((330..470).contains(&got), "{got} of 500");
    request(&bench.socket, "set loss=0 duplicate=1").unwrap();
    assert_eq!(probe(&mut a, &mut b, 100, Duration::from_micros(200), || 200).len(), 200);
}

#[test]
fn bad_requests_are_refused_and_the_wire_continues() {
    let Some(mut bench) = Bench::new("") else { return };
    for bad in
        ["", "set", "set rate=0", "set a-to-b", "set speed=1", "stop", "set rate=1mbit loss=9", "\u{1f}"]
    {
        let result = request(&bench.socket, bad);
        assert!(matches!(bad, "set" | "set a-to-b") == result.is_ok(), "{bad:?}: {result:?}");
    }
    assert!(request(&bench.socket, &"x".repeat(100_000)).is_err());
    // Idle connections do not keep others out permanently.
    let idle: Vec<_> = (0..40).map(|_| std::os::unix::net::UnixStream::connect(&bench.socket)).collect();
    drop(idle);
    let mut shown = String::new();
    eventually("it answers again", || request(&bench.socket, "show").map(|told| shown = told).is_ok());
    assert!(shown.starts_with("a-to-b rate=unlimited delay=0ns"), "{shown}");
    let (mut a, mut b) = bench.ports();
    assert_eq!(probe(&mut a, &mut b, 10, Duration::from_millis(1), || 10).len(), 10);

    let out = Command::new(env!("CARGO_BIN_EXE_rivulet-wire"))
        .args(["set", bench.socket.to_str().unwrap(), "a-to-b", "rate=1mbit"])
        .output()
        .unwrap();
    assert!(out.status.success());
    assert!(request(&bench.socket, "show").unwrap().contains("a-to-b rate=1000000bit"));

    // SIGTERM to the wire (`ip netns exec` became it): it prints its counters and removes its
    // socket file.
    let pid = bench.wire.0.id() as i32;
    // SAFETY: a plain system call on a child that was not reaped.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    assert!(bench.wire.0.wait().unwrap().success());
    assert!(!bench.socket.exists());
}

#[test]
fn recreated_interface_works_again() {
    let Some(bench) = Bench::new("") else { return };
    let (mut a, mut b) = bench.ports();
    bench.m.ip("link set mb down");
    a.send(&[TxFrame::new(&frame(100, 0))]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    bench.m.ip("link set mb up");
    // `b` itself reports the error once.
    while b.recv().is_err() {}
    until_it_passes(&mut a, &mut b);
    assert_eq!(probe(&mut a, &mut b, 10, Duration::from_millis(1), || 10).len(), 10);
    bench.b.ip("link del vb");
    std::thread::sleep(Duration::from_millis(50));
    bench.b.veth("vb", &bench.m, "mb");
    b.reopen().unwrap();
    until_it_passes(&mut a, &mut b);
    assert_eq!(probe(&mut a, &mut b, 10, Duration::from_millis(1), || 10).len(), 10);
    assert_eq!(probe(&mut b, &mut a, 10, Duration::from_millis(1), || 10).len(), 10);
}
