//! Forged acknowledgements of large answers: frames with the source address of a host that never
//! connected. Needs root; skipped if namespaces cannot be created.

use std::fs::File;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rivulet_packet::{EthHeader, TcpFlags, eth};
use rivulet_pktio::testing::{Process, eventually};
use rivulet_pktio::{AfPacket, Config, Filter, PacketIo, TxFrame, in_netns};
use rivulet_plain::{Header, Options, Stamps};

use crate::rig::SERVICE;
use crate::stateless::{MAC, Rack, STACK, url};

/// Source ports that the forger uses in rotation.
const PORTS: u32 = 512;
const GROUP: u32 = 32;
/// Acknowledgement numbers that it tries for each port, equally spaced.
const GUESSES: u32 = 64;
/// Further acknowledgements after each of them, and their distance in bytes: most of what a replica
/// sends for a window of 1 MB.
const RUN: u32 = 16;
const STEP: u32 = 884_736;

/// Bytes that a replica's interface has received and sent.
fn carried(rack: &Rack) -> (u64, u64) {
    let of = |name| {
        rack.replicas[0].run(&format!("cat /sys/class/net/s0/statistics/{name}")).trim().parse().unwrap()
    };
    (of("rx_bytes"), of("tx_bytes"))
}

fn serve(rack: &Rack) -> Process {
    rack.wire().only.store(0, Ordering::Relaxed);
    let server = rack.serve_with(0, &["--large"]);
    rack.file("small", 100);
    eventually("it answers", || rack.curl(&[&url("small")]).status.success());
    server
}

/// Sends guessed acknowledgements and timestamps, which name the largest window, and further ones
/// after each guess.
fn forge(rack: &Rack) {
    let ethernet = EthHeader { dst: rack.replicas[0].mac("s0"), src: rack.client.mac("c0"), vlan: None };
    let config = Config { filter: Some(Filter::new(&[]).unwrap()), ..Config::default() };
    let mut io = AfPacket::open(&rack.client.interface("c0"), config).unwrap();
    for group in 0..PORTS / GROUP {
        for (guess, step) in (0..GUESSES).flat_map(|guess| (0..RUN).map(move |step| (guess, step))) {
            let frames: Vec<Vec<u8>> = (0..GROUP)
                .map(|n| {
                    let port = group * GROUP + n;
                    let random = port.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995;
                    let value = random & 0xff00_0000 | 1 << 22 | 63 << 16 | (port & 7) << 3 | 7;
                    // Offsets at which segments of a path with short segments end: one of sixteen
                    // is right.
                    let first = (random & 0x78 | 1).wrapping_add(guess * (u32::MAX / GUESSES / 128 * 128));
                    let header = Header {
                        src: format!("{STACK}:{}", 10_000 + port).parse().unwrap(),
                        dst: format!("{SERVICE}:80").parse().unwrap(),
                        seq: 1,
                        ack: first.wrapping_add(step * STEP),
                        flags: TcpFlags(TcpFlags::ACK),
                        window: 0xffff,
                        options: Options {
                            stamps: Some(Stamps { value: 1000 + guess, echo: value }),
                            ..Options::default()
                        },
                    };
                    let mut frame = vec![0; ethernet.length() + header.length()];
                    assert!(ethernet.fill(&mut frame, eth::IPV4));
                    header.finish(&mut frame[ethernet.length()..], 0).unwrap();
                    frame
                })
                .collect();
            let batch: Vec<TxFrame<'_>> = frames.iter().map(|frame| TxFrame::new(frame)).collect();
            let _ = io.send(&batch).unwrap();
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The forger cannot see the answers; the host of the forged address does not exist and sends no
/// RST. When a timestamp's window of 1 MB counted as sent, the forger drew many times the bytes
/// that it sent.
#[test]
fn blind_forger_gets_fewer_bytes_than_it_sends() {
    let Some(rack) = Rack::new() else { return };
    File::create(rack.dir.path().join("www/large")).unwrap().set_len(1 << 28).unwrap();
    let _server = serve(&rack);
    assert_eq!(rack.replicas[0].mac("s0").map(|byte| format!("{byte:02x}")).join(":"), MAC);
    let before = carried(&rack);
    in_netns(Some(rack.client.name()), || forge(&rack)).unwrap();
    // Answers that were started probe their client in this time.
    std::thread::sleep(Duration::from_secs(2));
    let after = carried(&rack);
    let (sent, drawn) = (after.0 - before.0, after.1 - before.1);
    println!("the forger sent {sent} bytes and drew {drawn}");
    assert!(sent > u64::from(PORTS * GUESSES * RUN) * 66 / 4, "{sent}: its frames are lost");
    assert!(drawn < sent, "{drawn} bytes for {sent}");
}

/// After a client program has ended, its kernel answers the next segment with a RST, and the server
/// sends nothing more.
#[test]
fn reset_ends_the_transmission() {
    let Some(rack) = Rack::new() else { return };
    rack.file("large", 8_000_000);
    let _server = serve(&rack);
    let mut curl = rack.client.command("curl");
    curl.args(["-sS", "--limit-rate", "200k", "-o", "/dev/null", &url("large")]).stderr(Stdio::null());
    let curl = Process(curl.spawn().unwrap());
    eventually("the download is under way", || carried(&rack).1 > 300_000);
    drop(curl);
    let resets = || rack.client.counter("TcpOutRsts");
    eventually("the client resets", || resets() > 0);
    std::thread::sleep(Duration::from_millis(500));
    let (before, sent) = (resets(), carried(&rack).1);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(resets(), before, "{} bytes since", carried(&rack).1 - sent);
}
