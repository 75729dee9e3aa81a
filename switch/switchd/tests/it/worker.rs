//! The packet loop over real interfaces, with a test processor instead of the engine.

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rivulet_engine::{Output, Trace};
use rivulet_p4rt::{Link, PortError, Ports, packet_in_channel};
use rivulet_pktio::testing::{Netns, PATIENCE, eventually};
use rivulet_pktio::{AfPacket, Config, PacketIo, TxFrame, in_netns};
use rivulet_switch::options::IoChoice;
use rivulet_switch::ports::{PortConfig, PortControl};
use rivulet_switch::processor::Processor;
use rivulet_switch::worker::{Worker, WorkerConfig, WorkerCounters};

const PREFIX: &str = "pio-";
const CPU: u32 = 510;

/// Sends each frame to the ports listed from byte 14 on (zero ends the list; 200 means the CPU
/// port), with the ingress port written to byte 30.
struct Addressed;

impl Processor for Addressed {
    fn process(&mut self, _now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) {
        let mut copy = frame.to_vec();
        if copy.len() > 30 {
            copy[30] = port as u8;
        }
        for to in frame.iter().skip(14).take_while(|p| **p != 0) {
            let to = if *to == 200 { CPU } else { u32::from(*to) };
            out.emit(to, &copy[..20], &copy[20..]);
        }
    }

    fn process_traced(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace {
        self.process(now_us, port, frame, out);
        Trace { time_us: now_us, ingress_port: port, length: frame.len(), steps: Vec::new() }
    }

    fn dry_run(&mut self, now_us: u64, port: u32, frame: &[u8], out: &mut impl Output) -> Trace {
        self.process_traced(now_us, port, frame, out)
    }

    fn poll(&mut self, _now_us: u64, _out: &mut impl Output) -> Option<u64> {
        None
    }
}

struct Bench {
    hosts: Netns,
    rack: Netns,
    control: PortControl,
    counters: Arc<WorkerCounters>,
    stop: OwnedFd,
    threads: Vec<JoinHandle<()>>,
    packet_ins: rivulet_p4rt::PacketIns,
}

impl Bench {
    /// Creates `count` pairs of interfaces, h1-p1 and so on; the p ends are not ports yet.
    fn new(count: u32, pcap: Option<&std::path::Path>) -> Option<Bench> {
        Bench::with_workers(count, pcap, 1)
    }

    fn with_workers(count: u32, pcap: Option<&std::path::Path>, workers: usize) -> Option<Bench> {
        let (hosts, rack) = (Netns::new(PREFIX)?, Netns::new(PREFIX)?);
        hosts.quiet();
        rack.quiet();
        for i in 1..=count {
            hosts.veth(&format!("h{i}"), &rack, &format!("p{i}"));
        }
        let config = PortConfig {
            io: IoChoice::AfPacket,
            pcap: pcap.map(Into::into),
            cpu_port: Some(CPU),
            drop_port: 511,
            max_ports: 512,
            workers,
        };
        let (control, inboxes) = PortControl::new(config).unwrap();
        let counters = Arc::new(WorkerCounters::default());
        let (sender, packet_ins) = packet_in_channel(64);
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        let start = rivulet_link::poll::now();
        let worker = |(i, inbox)| {
            let config = WorkerConfig {
                cpu: Some((CPU, sender.clone())),
                dump_packet_data: 0,
                trace: None,
                counters: counters.clone(),
                start,
                quiet: i > 0,
            };
            let mut worker = Worker::new(Addressed, inbox, config).unwrap();
            let end = stop.try_clone().unwrap();
            std::thread::spawn(move || worker.run(end.as_fd()).unwrap())
        };
        let threads = inboxes.into_iter().enumerate().map(worker).collect();
        Some(Bench { hosts, rack, control, counters, stop, threads, packet_ins })
    }

    fn name(&self, port: u32) -> String {
        format!("{}:p{port}", self.rack.name())
    }

    fn add(&self, port: u32) {
        self.control.add_port(port, &self.name(port)).unwrap();
    }

    fn host(&self, i: u32) -> AfPacket {
        AfPacket::open(&self.hosts.interface(&format!("h{i}")), Config::default()).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).unwrap();
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok() || std::thread::panicking(), "a worker panicked");
        }
    }
}

fn frame(to: &[u8], mark: u8) -> Vec<u8> {
    let mut f = vec![mark; 60];
    f[..12].fill(2);
    f[12..14].copy_from_slice(&[0x88, 0xb6]);
    f[14..30].fill(0);
    f[14..14 + to.len()].copy_from_slice(to);
    f
}

/// Sends frames into a host's interface.
fn send(io: &mut AfPacket, frames: &[Vec<u8>]) {
    let frames: Vec<TxFrame> = frames.iter().map(|f| TxFrame::new(f)).collect();
    assert_eq!(io.send(&frames).unwrap(), frames.len());
}

/// Receives until there are `count` frames, or none arrived for a while.
fn receive(io: &mut AfPacket, count: usize) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    let deadline = Instant::now() + if count == 0 { Duration::from_millis(100) } else { PATIENCE };
    while Instant::now() < deadline && (count == 0 || got.len() < count) {
        for i in 0..io.recv().unwrap_or(0) {
            got.push(io.frame(i).data.to_vec());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    got
}

/// The byte that distinguishes this file's frames.
fn marks(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().map(|f| f[40]).collect()
}

#[test]
fn copies_go_to_their_ports_and_back_to_the_ingress() {
    let Some(bench) = Bench::new(3, None) else { return };
    (1..=3).for_each(|i| bench.add(i));
    let (mut h1, mut h2, mut h3) = (bench.host(1), bench.host(2), bench.host(3));
    let sent: Vec<_> = (0..100u8).map(|i| frame(&[2, 1, 3, 1], i)).collect();
    for chunk in sent.chunks(20) {
        send(&mut h1, chunk);
    }
    for (host, copies) in [(&mut h2, 1), (&mut h3, 1), (&mut h1, 2)] {
        let got = receive(host, 100 * copies);
        assert_eq!(got.len(), 100 * copies);
        for (i, f) in got.iter().enumerate() {
            assert_eq!(
                (f[40], f[30], f.len()),
                ((i / copies) as u8, 1, 60),
                "order, ingress port and length"
            );
        }
    }
    send(&mut h2, &[frame(&[9, 3], 7)]);
    assert_eq!(receive(&mut h3, 1).len(), 1);
    assert_eq!(bench.counters.no_such_port.load(Ordering::Relaxed), 1);
    // Frames are counted a little after they were sent.
    let wanted = [(1, true, 100, 200), (2, true, 1, 100), (3, true, 0, 101)];
    let mut seen = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while seen != wanted && Instant::now() < deadline {
        let ports = bench.control.list_ports();
        seen = ports.iter().map(|p| (p.port, p.up, p.rx_packets, p.tx_packets)).collect();
    }
    assert_eq!(seen, wanted);
}

/// AF_XDP if the peer's offloads allow it, AF_PACKET otherwise, and an error without a choice.
#[test]
fn packet_io_depends_on_the_interface() {
    let (Some(hosts), Some(rack)) = (Netns::new(PREFIX), Netns::new(PREFIX)) else { return };
    if std::process::Command::new("ethtool").arg("--version").output().is_err() {
        eprintln!("SKIPPED: no ethtool");
        return;
    }
    hosts.veth("h1", &rack, "p1");
    let p1 = rack.interface("p1");
    let backend = |choice| rivulet_switch::ports::open(&p1, choice, None).map(|io| io.backend().to_string());
    assert_eq!(backend(IoChoice::Auto).unwrap(), "af_packet");
    let refused = backend(IoChoice::AfXdp).unwrap_err().to_string();
    assert!(refused.contains("ethtool -K h1 tx off txvlan off gro off"), "{refused}");
    hosts.run("ethtool -K h1 tx off txvlan off gro off");
    assert_eq!(backend(IoChoice::Auto).unwrap(), "af_xdp");
    assert_eq!(backend(IoChoice::AfXdp).unwrap(), "af_xdp");
    assert_eq!(backend(IoChoice::AfPacket).unwrap(), "af_packet");
}

#[test]
fn ports_are_added_and_removed_under_traffic() {
    let Some(bench) = Bench::new(2, None) else { return };
    bench.add(1);
    assert!(matches!(bench.control.add_port(1, "lo"), Err(PortError::Exists(_))));
    assert!(matches!(bench.control.add_port(2, &bench.name(1)), Err(PortError::Exists(_))));
    let (mut h1, mut h2) = (bench.host(1), bench.host(2));
    let no_such_port = || bench.counters.no_such_port.load(Ordering::Relaxed);
    for round in 0..5u8 {
        let before = no_such_port();
        send(&mut h1, &[frame(&[2], round)]);
        eventually("dropped: there is no port 2", || no_such_port() == before + 1);
        assert!(receive(&mut h2, 0).is_empty(), "there is no port 2");
        // A port can have any number; large ones are looked up differently.
        bench.control.add_port(if round == 3 { 2 } else { 2000 }, &bench.name(2)).unwrap();
        send(&mut h1, &[frame(&[2], round)]);
        if round != 3 {
            eventually("dropped: it is port 2000", || no_such_port() == before + 2);
        }
        assert_eq!(receive(&mut h2, usize::from(round == 3)).len(), usize::from(round == 3));
        bench.control.remove_port(if round == 3 { 2 } else { 2000 }).unwrap();
    }
    assert!(matches!(bench.control.remove_port(2), Err(PortError::NotFound(_))));
    assert_eq!(bench.control.list_ports().len(), 1);
}

#[test]
fn link_state_is_seen_and_a_vanished_interface_comes_back() {
    let Some(bench) = Bench::new(2, None) else { return };
    bench.add(1);
    bench.add(2);
    let (mut h1, mut h2) = (bench.host(1), bench.host(2));
    let up = |port| bench.control.is_up(port).unwrap();
    assert!(up(1) && up(2));
    bench.rack.ip("link set p2 down");
    eventually("down", || !up(2));
    send(&mut h1, &[frame(&[2], 0)]);
    eventually("processed", || bench.control.list_ports()[0].rx_packets == 1);
    bench.rack.ip("link set p2 up");
    eventually("up", || up(2));
    while h2.recv().is_err() {}
    send(&mut h1, &[frame(&[2], 1)]);
    assert_eq!(marks(&receive(&mut h2, 1)), [1], "frames sent while it was down are lost, not late");
    bench.hosts.ip("link set h2 down");
    eventually("no carrier", || !up(2));

    bench.rack.ip("link del p2");
    send(&mut h1, &[frame(&[2], 2)]);
    eventually("gone", || !up(2) && bench.control.list_ports()[0].rx_packets == 3);
    bench.hosts.veth("h2", &bench.rack, "p2");
    eventually("back", || up(2));
    h2.reopen().unwrap();
    send(&mut h1, &[frame(&[2], 3)]);
    assert_eq!(marks(&receive(&mut h2, 1)), [3]);
    send(&mut h2, &[frame(&[1], 3)]);
    assert_eq!(receive(&mut h1, 1).len(), 1);
    // A port with a deleted interface can be removed.
    bench.rack.ip("link del p2");
    eventually("gone", || !up(2));
    bench.control.remove_port(2).unwrap();
}

#[test]
fn link_shapes_frames_that_its_port_sends() {
    let Some(bench) = Bench::new(2, None) else { return };
    bench.add(1);
    bench.add(2);
    let (mut h1, mut h2) = (bench.host(1), bench.host(2));
    let link = Link { delay_ns: 20_000_000, ..Link::default() };
    bench.control.set_link(2, Some(link)).unwrap();
    let mut round_trip = || {
        let start = Instant::now();
        send(&mut h1, &[frame(&[2], 1)]);
        assert_eq!(receive(&mut h2, 1).len(), 1);
        start.elapsed()
    };
    assert!(round_trip() >= Duration::from_millis(20));
    assert_eq!(bench.control.list_ports()[1].link.map(|l| l.delay_ns), Some(20_000_000));
    bench.control.set_link(2, Some(Link { loss: 1.0, ..link })).unwrap();
    send(&mut h1, &[frame(&[2], 1)]);
    eventually("counted", || bench.control.list_ports()[1].tx_dropped == 1);
    assert!(receive(&mut h2, 0).is_empty());
    bench.control.set_link(2, None).unwrap();
    let mut h1 = bench.host(1);
    send(&mut h1, &[frame(&[2], 1)]);
    assert_eq!(receive(&mut h2, 1).len(), 1);
    assert!(matches!(bench.control.set_link(7, Some(link)), Err(PortError::NotFound(_))));
}

#[test]
fn cpu_port_and_traces_work() {
    let Some(bench) = Bench::new(1, None) else { return };
    bench.add(1);
    let mut h1 = bench.host(1);
    bench.control.packet_out(frame(&[1], 5)).unwrap();
    let got = receive(&mut h1, 1);
    assert_eq!((got.len(), got[0][30]), (1, CPU as u8));
    eventually("counted", || bench.counters.packet_outs.load(Ordering::Relaxed) == 1);
    // More than one batch.
    (0..200).for_each(|i| bench.control.packet_out(frame(&[1], i)).unwrap());
    assert_eq!(receive(&mut h1, 200).len(), 200);

    let report = bench.control.trace(1, &frame(&[1, 200], 3), false).unwrap();
    assert_eq!(report.outputs.iter().map(|(p, _)| *p).collect::<Vec<_>>(), [1, CPU]);
    assert!(report.text.contains("port 1") && report.json.contains("\"ingress_port\":1"));
    assert!(receive(&mut h1, 0).is_empty(), "a traced frame is not sent");
    assert_eq!(bench.control.trace(1, &frame(&[1], 3), true).unwrap().outputs.len(), 1);

    // 64 packet-ins fit and the others are dropped, without waiting.
    for _ in 0..10 {
        send(&mut h1, &vec![frame(&[200, 1], 3); 10]);
        assert_eq!(receive(&mut h1, 10).len(), 10);
    }
    assert!(format!("{:?}", bench.packet_ins).contains("dropped: 36"), "{:?}", bench.packet_ins);
}

#[test]
fn kernel_frames_get_checksums_and_are_in_pcap_files() {
    let dir = std::env::temp_dir().join(format!("rivulet-worker-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let Some(bench) = Bench::new(1, Some(&dir)) else { return };
    bench.add(1);
    bench.hosts.ip("addr add 10.0.0.1/24 dev h1");
    bench.hosts.ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev h1");
    let mut payload = [0; 64];
    payload[0] = 9;
    in_netns(Some(bench.hosts.name()), || {
        UdpSocket::bind("10.0.0.1:1111").unwrap().send_to(&payload, "10.0.0.2:9").unwrap()
    })
    .unwrap();
    let input = dir.join(format!("{}_p1_in.pcap", bench.rack.name()));
    eventually("written", || std::fs::read(&input).is_ok_and(|b| b.len() > 24));
    let record = std::fs::read(&input).unwrap()[40..].to_vec();
    assert_eq!(record.len(), 14 + 20 + 8 + 64);
    let mut pseudo = record[26..34].to_vec();
    pseudo.extend([0, 17, 0, 72]);
    let sum = rivulet_pktio::internet_sum(&record[34..], rivulet_pktio::internet_sum(&pseudo, 0));
    assert_eq!(sum, 0xffff, "UDP checksum");
    let mut h1 = bench.host(1);
    send(&mut h1, &[frame(&[1], 1)]);
    assert_eq!(receive(&mut h1, 1).len(), 1);
    let output = dir.join(format!("{}_p1_out.pcap", bench.rack.name()));
    eventually("written", || std::fs::read(&output).is_ok_and(|b| b.len() == 24 + 16 + 60));
    drop(bench);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Two workers share the frames of each port by flow, in order, and their counters add up.
#[test]
fn two_workers_share_flows() {
    let Some(bench) = Bench::with_workers(2, None, 2) else { return };
    bench.add(1);
    bench.add(2);
    let (mut h1, mut h2) = (bench.host(1), bench.host(2));
    // UDP over IPv4 to port 2: the kernel's hash selects the flow.
    let packet = |flow: u8, number: u8| {
        let mut f = frame(&[2], number);
        f[12..14].copy_from_slice(&[8, 0]);
        // The list of ports starts at the IPv4 header, so its first entry is 0x45, which is not a
        // port.
        f[14..34].copy_from_slice(&[0x45, 2, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f[34..38].copy_from_slice(&[1, flow, 0, 9]);
        f[41] = flow;
        f
    };
    for number in 0..50 {
        let burst: Vec<_> = (0..16).map(|flow| packet(flow, number)).collect();
        send(&mut h1, &burst);
    }
    let got = receive(&mut h2, 800);
    assert_eq!(got.len(), 800);
    for flow in 0..16 {
        let numbers: Vec<u8> = got.iter().filter(|f| f[41] == flow).map(|f| f[40]).collect();
        assert_eq!(numbers, (0..50).collect::<Vec<_>>(), "flow {flow}");
    }
    let seen = |port: usize| {
        let p = &bench.control.list_ports()[port];
        (p.rx_packets, p.tx_packets)
    };
    eventually("counted", || (seen(0), seen(1)) == ((800, 0), (0, 800)));
    let shares: Vec<u64> =
        bench.control.entries()[0].1.shared.iter().map(|s| s.rx_packets.load(Ordering::Relaxed)).collect();
    assert!(shares.iter().all(|n| *n >= 50), "flows of both: {shares:?}");
    // Ports are added and removed for all workers; packet-outs are sent once.
    bench.control.packet_out(frame(&[2], 9)).unwrap();
    assert_eq!(marks(&receive(&mut h2, 1)), [9]);
    bench.control.remove_port(2).unwrap();
    bench.add(2);
    send(&mut h1, &[frame(&[2], 1)]);
    assert_eq!(receive(&mut h2, 1).len(), 1);
    assert!(matches!(bench.control.set_link(2, None), Err(PortError::Unsupported(_))));
}
