//! The whole process with malformed input: damaged programs on its command line, random frames on
//! its ports, random bytes on its sockets. It reports an error or continues, but never crashes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rivulet_pktio::testing::{Netns, Process, eventually};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns};

const BIN: &str = env!("CARGO_BIN_EXE_rivulet-switch");
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../p4rt/tests/programs");
const GRPC: &str = "127.0.0.1:9559";
const METRICS: &str = "127.0.0.1:9100";

/// xorshift64: the same input in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

/// Sends bytes to a socket of the process, and reads for a moment.
fn send(ns: &Netns, address: &str, bytes: &[u8]) {
    let address: SocketAddr = address.parse().unwrap();
    let Ok(Ok(mut stream)) = in_netns(Some(ns.name()), || TcpStream::connect(address)) else { return };
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let _ = stream.write_all(bytes);
    let _ = stream.read(&mut [0; 512]);
}

#[test]
fn damaged_programs_are_refused_with_a_message() {
    let dir = std::env::temp_dir().join(format!("rivulet-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let whole = std::fs::read(format!("{PROGRAMS}/everything.json")).unwrap();
    let mut random = Random(5);
    for round in 0..40 {
        let mut text = whole.clone();
        if round % 2 == 0 {
            text.truncate(random.below(whole.len()));
        } else {
            // Mutate the JSON so that its syntax often stays valid: change digits, and drop letters
            // of names.
            for _ in 0..1 + random.below(30) {
                let at = random.below(text.len());
                match text[at] {
                    b'0'..=b'9' => text[at] = b'0' + random.below(10) as u8,
                    b'a'..=b'z' => text[at] = b'a' + random.below(26) as u8,
                    _ => {}
                }
            }
        }
        let path = dir.join("damaged.json");
        std::fs::write(&path, &text).unwrap();
        let child = Command::new(BIN)
            .arg(&path)
            .args(["--", "--grpc-server-addr", "127.0.0.1:0"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Process(child);
        let deadline = Instant::now() + Duration::from_millis(150);
        while running.lives() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        // An accepted program keeps running; a refused one logs the reason and exits normally.
        if let Some(status) = running.0.try_wait().unwrap() {
            let mut told = String::new();
            running.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
            assert_eq!(status.code(), Some(1), "round {round}: {status}: {told}");
            assert!(told.contains("damaged.json") && !told.contains("panicked"), "round {round}: {told}");
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn random_input_on_ports_and_sockets_never_crashes_it() {
    let (Some(hosts), Some(rack)) = (Netns::new("pio-"), Netns::new("pio-")) else { return };
    hosts.quiet();
    rack.quiet();
    rack.ip("link set lo up");
    hosts.veth("h1", &rack, "p1");
    hosts.veth("h2", &rack, "p2");
    let child = rack
        .command(BIN)
        .args(["-i", "1@p1", "-i", "2@p2", "--metrics-addr", METRICS, "--workers", "2"])
        .args([
            "--p4info",
            &format!("{PROGRAMS}/everything.p4info.txtpb"),
            &format!("{PROGRAMS}/everything.json"),
        ])
        .args(["--", "--cpu-port", "510", "--grpc-server-addr", GRPC])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut running = Process(child);
    let metric = |name: &str| -> Option<u64> {
        let mut stream = in_netns(Some(rack.name()), || TcpStream::connect(METRICS)).ok()?.ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let line = text.lines().find(|l| l.starts_with(&format!("{name} ")))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    eventually("it answers", || metric("rivulet_switch_received_total").is_some());

    let mut random = Random(9);
    let mut h1 = AfPacket::open(&hosts.interface("h1"), Config::default()).unwrap();
    let mut sent = 0;
    for _ in 0..100 {
        let frames: Vec<Vec<u8>> = (0..32)
            .map(|_| {
                let len = 14 + random.below(200);
                let mut frame = random.bytes(len);
                // Most frames start like IPv4, otherwise most programs would drop them in the first
                // parser state.
                if random.below(4) > 0 && len >= 34 {
                    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
                }
                // Avoid VLAN tags that are too short for Linux itself.
                if frame[12] == 0x81 || frame[12] == 0x88 {
                    frame[12] = 0;
                }
                frame
            })
            .collect();
        let frames: Vec<TxFrame> = frames.iter().map(|f| TxFrame::new(f)).collect();
        sent += h1.send(&frames).unwrap() as u64;
        for address in [GRPC, METRICS] {
            let len = random.below(300);
            let mut bytes = random.bytes(len);
            if random.below(2) == 0 {
                // After the preface of HTTP/2, send frames with wrong lengths.
                bytes.splice(0..0, *b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
            }
            send(&rack, address, &bytes);
        }
        assert!(running.lives());
    }
    eventually("all were received", || metric("rivulet_switch_received_total").is_some_and(|n| n >= sent));
    assert_eq!(metric("rivulet_switch_faults_total"), Some(0));
    assert!(running.lives());
}
