//! Malformed frames, forged continuations and floods are counted and refused without using memory,
//! while a client is served. Needs root; skipped if namespaces cannot be created.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::rig::{Rig, SERVICE, url};
use rivulet_packet::{
    Class, Ecn, EthHeader, RequestBuilder, RequestClass, RivuletOption, SealedContinuation, SegmentHeader,
    SynOptions, TcpFlags, TorBlock, TransportContinuation,
};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns};

/// Number of frames of each kind of attack.
const EACH: u32 = 5000;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A frame to the service: a well-formed header of `class`, then `payload`.
fn frame(eth: &EthHeader, port: u16, class: RequestClass, number_low: u16, payload: &[u8]) -> Vec<u8> {
    let header = SegmentHeader {
        src: format!("10.88.0.1:{port}").parse().unwrap(),
        dst: format!("{SERVICE}:80").parse().unwrap(),
        ecn: Ecn::NotEct,
        seq: 1,
        ack: 0,
        flags: TcpFlags::of(Class::Request(class)),
        option: RivuletOption { class: Class::Request(class), number_low },
        syn_options: (class == RequestClass::Syn).then_some(SynOptions {
            mss: 1460,
            ts_value: 0,
            ts_echo: 0,
            window_scale: 14,
        }),
    };
    let mut out = vec![0; 2000];
    let at = eth.length() + header.payload_offset();
    out[at..at + payload.len()].copy_from_slice(payload);
    let length = header.finish_frame(eth, &mut out, payload.len()).unwrap();
    out.truncate(length);
    out
}

/// A request with a continuation that no replica sealed.
fn forged(state: &mut u64) -> (u16, Vec<u8>) {
    let fields = TransportContinuation {
        tag: random(state) as u32,
        number: random(state) as u32,
        seal_epoch: 1,
        nonce_epoch: 1,
        mss: 1400,
        start_cwnd: 10,
        ..TransportContinuation::default()
    };
    let mut mac = [0; 12];
    mac[..8].copy_from_slice(&random(state).to_be_bytes());
    let sealed = SealedContinuation { fields: TransportContinuation { base: fields.number, ..fields }, mac };
    let builder = RequestBuilder { continuation: Some(&sealed), ..RequestBuilder::default() };
    let mut out = vec![0; 1500];
    let length = builder.write(&mut out).unwrap();
    out.truncate(length);
    (builder.number_low(), out)
}

/// Sends all kinds of attack; returns the number of frames that were not sent.
fn attack(eth: &EthHeader) -> u64 {
    let interface = rivulet_pktio::Interface::new(None, "c0").unwrap();
    let config = Config { filter: Some(rivulet_pktio::Filter::new(&[]).unwrap()), ..Config::default() };
    let mut io = AfPacket::open(&interface, config).unwrap();
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut unsent = 0;
    for i in 0..EACH {
        let garbage: Vec<u8> = (0..100 + i % 400).map(|_| random(&mut state) as u8).collect();
        let (low, request) = forged(&mut state);
        // SYNs with a request in them, each from a new port: the server answers and keeps nothing.
        let mut syn = vec![0; 1200];
        let builder = RequestBuilder { class: RequestClass::Syn, pad_to: 1200, ..RequestBuilder::default() };
        builder.write(&mut syn).unwrap();
        let port = 1024 + (i % 60_000) as u16;
        let mut damaged = frame(eth, port, RequestClass::Normal, low, &request);
        let last = damaged.len() - 1;
        damaged[last] ^= 0xff;
        let frames = [
            frame(eth, port, RequestClass::Normal, 0, &garbage),
            frame(eth, port, RequestClass::Normal, low, &request),
            frame(eth, port, RequestClass::Syn, 0, &syn),
            damaged,
        ];
        let frames: Vec<TxFrame<'_>> = frames.iter().map(|f| TxFrame::new(f)).collect();
        unsent += (frames.len() - io.send(&frames).unwrap()) as u64;
        if i % 16 == 0 {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    unsent + io.stats().tx_dropped
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn floods_are_refused_and_use_no_memory() {
    let Some(rig) = Rig::new() else { return };
    let server = rig.serve(&["--metrics", "127.0.0.1:9090", "--plain", "none"]);
    let content = rig.file("file", 5_000_000);
    let eth = EthHeader { dst: rig.server.mac("s0"), src: rig.client.mac("c0"), vlan: None };
    // One round before the measurement: memory of fixed size becomes resident as it is first used.
    let mut unsent = in_netns(Some(rig.client.name()), || attack(&eth)).unwrap();
    let metrics = || rig.server.run("curl -s http://127.0.0.1:9090/metrics");
    for _ in 0..3 {
        let out = rig.get(&["-q", "-o"]).arg(rig.out()).arg(url("file")).output().unwrap();
        assert!(out.status.success(), "{}\n{}", String::from_utf8_lossy(&out.stderr), metrics());
    }
    let before = resident_kib(server.0.id());

    let download =
        rig.get(&["-q", "-o"]).arg(rig.out()).arg(url("file")).stderr(Stdio::piped()).spawn().unwrap();
    unsent += in_netns(Some(rig.client.name()), || attack(&eth)).unwrap();
    let result = download.wait_with_output().unwrap();
    assert!(result.status.success(), "{}\n{}", String::from_utf8_lossy(&result.stderr), metrics());
    assert!(std::fs::read(rig.out()).unwrap() == content);

    // Frames that a full queue of the kernel dropped before the server's own queue.
    let dropped = rig.client.run("cat /sys/class/net/c0/statistics/tx_dropped");
    let unsent = unsent + dropped.trim().parse::<u64>().unwrap();
    let value = |name: &str| -> u64 {
        let metrics = metrics();
        let line =
            metrics.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {metrics}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    for name in [
        "rivulet_refused_total{reason=\"malformed\"}",
        "rivulet_refused_total{reason=\"forged\"}",
        "rivulet_dropped_total{reason=\"damaged\"}",
    ] {
        // The last frames may still wait to be read.
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            let (counted, queue) = (value(name), value("rivulet_dropped_total{reason=\"receive_queue\"}"));
            if counted > 0 && counted + queue + unsent >= u64::from(2 * EACH) {
                break;
            }
            let told = format!("{name} {counted}, {queue} lost in the queue, {unsent} before it");
            assert!(Instant::now() < patience, "{told}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let grown = resident_kib(server.0.id()).saturating_sub(before);
    assert!(grown < 1 << 10, "grown by {grown} KiB");
}

/// A request that names an unknown key epoch, with a block like the ToR's.
fn of_a_later_epoch(eth: &EthHeader) -> Vec<u8> {
    let fields = TransportContinuation {
        seal_epoch: 77,
        nonce_epoch: 77,
        mss: 1400,
        start_cwnd: 10,
        ..Default::default()
    };
    let sealed = SealedContinuation { fields, mac: [0; 12] };
    let builder = RequestBuilder { continuation: Some(&sealed), ..RequestBuilder::default() };
    let mut payload = vec![0; 1500];
    let length = builder.write(&mut payload).unwrap();
    payload.truncate(length);
    let block = TorBlock { seal_epoch: 77, nonce_epoch: 77, time_valid: true, ..TorBlock::default() };
    block.stamp(&mut payload).unwrap();
    frame(eth, 5000, RequestClass::Normal, builder.number_low(), &payload)
}

/// Only the ToR writes its block. A forged block, from a neighbour or in a tunnel, must not make
/// this replica report that its keys are old, which would get it excluded.
#[test]
fn forged_tor_block_is_ignored() {
    let Some(rig) = Rig::new() else { return };
    let flags = [
        "--member",
        &rig.member(),
        "--trust-tor",
        "--bound-us",
        "5000000",
        "--tunnel",
        "10.88.0.2@10.88.0.1",
    ];
    let _server = rig.serve(&[&flags[..], &["--metrics", "127.0.0.1:9090", "--plain", "none"]].concat());
    let mut heartbeats = rig.heartbeats();
    let mut ready = || loop {
        std::thread::sleep(Duration::from_millis(20));
        if let Some(last) = Rig::read_heartbeats(&mut heartbeats).last() {
            return last.ready;
        }
    };
    let tor = EthHeader { dst: rig.server.mac("s0"), src: rig.client.mac("c0"), vlan: None };
    let neighbour = EthHeader { src: [2, 0, 0, 0, 0, 0x66], ..tor };
    let plain = of_a_later_epoch(&tor);
    let mut tunnelled = plain[..14].to_vec();
    let length = (20 + plain.len() - 14) as u16;
    tunnelled.extend([
        0x45,
        0,
        (length >> 8) as u8,
        length as u8,
        0,
        0,
        0,
        0,
        64,
        4,
        0,
        0,
        10,
        88,
        0,
        1,
        10,
        88,
        0,
        2,
    ]);
    tunnelled.extend_from_slice(&plain[14..]);
    let send = |frame: &[u8], refused: u64| {
        in_netns(Some(rig.client.name()), || {
            let interface = rivulet_pktio::Interface::new(None, "c0").unwrap();
            let config =
                Config { filter: Some(rivulet_pktio::Filter::new(&[]).unwrap()), ..Config::default() };
            let mut io = AfPacket::open(&interface, config).unwrap();
            assert_eq!(io.send(&[TxFrame::new(frame)]).unwrap(), 1);
        })
        .unwrap();
        let patience = Instant::now() + Duration::from_secs(20);
        while rig.metric("rivulet_refused_total{reason=\"seal_epoch\"}") < refused {
            assert!(Instant::now() < patience, "not taken");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let patience = Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(Instant::now() < patience, "never ready");
    }
    send(&of_a_later_epoch(&neighbour), 1);
    assert!(ready(), "a neighbour's word");
    send(&tunnelled, 2);
    assert!(ready(), "what came in a tunnel");
    send(&plain, 3);
    let patience = Instant::now() + Duration::from_secs(20);
    while ready() {
        assert!(Instant::now() < patience, "the ToR itself is believed");
    }
}
