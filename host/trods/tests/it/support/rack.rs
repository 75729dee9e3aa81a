//! A client, and two replicas of a service behind a router, each with nginx, in network namespaces.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rivulet_bpf::trods::{FlowKey, Lease, Limits, Trods};
use rivulet_packet::segment::TcpFlags;
use rivulet_pktio::testing::{Netns, PATIENCE, Process, eventually, two_replicas};
use rivulet_pktio::{AfPacket, Config, Interface, LinkInfo, PacketIo, in_netns};
use rivulet_plain::Segment;
use rivulet_trods::adopt::{AdoptConfig, Adopters, Outcome};
use rivulet_trods::digest::Digests;
use rivulet_trods::wake::{self, Place, Prober, Told};
use rivulet_trods::{Action, AdoptAs, Flow, Record, Tuple, Unknown};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt};

use super::OPEN;

pub const SERVICE: &str = "10.9.0.1:80";

pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// Starts nginx in a namespace, on all its addresses.
pub fn nginx(ns: &Netns, folder: &Path, www: &Path) -> Process {
    nginx_with(ns, folder, www, str::to_owned)
}

/// Like [`nginx`]; `change` edits the configuration.
pub fn nginx_with(ns: &Netns, folder: &Path, www: &Path, change: impl Fn(&str) -> String) -> Process {
    let path = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {path}/{what};\n"))
        .concat();
    let text = format!(
        "user root; daemon off; master_process off; pid {path}/pid; error_log {path}/log;\nevents {{}}\nhttp {{\n{temporary}\
         access_log off; sendfile on; server {{ listen 80; root {}; }} }}\n",
        www.display()
    );
    std::fs::write(folder.join("conf"), change(&text)).unwrap();
    let mut command = ns.command("nginx");
    command.arg("-p").arg(folder).arg("-c").arg(folder.join("conf")).arg("-e").arg(folder.join("log"));
    let process = Process(command.stderr(Stdio::null()).spawn().expect("ip"));
    let connects = || TcpStream::connect("127.0.0.1:80").is_ok();
    eventually("nginx (scripts/setup.sh --test)", || in_netns(Some(ns.name()), connects).unwrap());
    process
}

/// What a flow shows of a connection after all its segments were passed through it, with every
/// record stored at once.
pub struct Seen {
    flow: Flow,
    pub record: Option<Record>,
    /// The sequence number of the service's first byte, once its SYN-ACK was seen.
    pub start: Option<u32>,
    /// Bytes that the client has sent, its FIN included.
    pub asked: u32,
    isn: u32,
}

impl Seen {
    pub fn feed(&mut self, step: impl FnOnce(&mut Flow, &mut Vec<Action>)) {
        let mut out = Vec::new();
        step(&mut self.flow, &mut out);
        while let Some(action) = out.pop() {
            if let Action::Store { ticket, record } = action {
                self.record = Some(*record);
                self.flow.stored(ticket, true, &mut out);
            }
        }
    }
}

type Flows = Arc<Mutex<HashMap<SocketAddr, Seen>>>;

/// Passes the packets on the first replica's interface to a flow.
struct Watch {
    flows: Flows,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn frames(ns: &Netns, name: &str) -> AfPacket {
    AfPacket::open(&ns.interface(name), Config { promiscuous: false, ..Config::default() }).unwrap()
}

/// Passes the frames that arrive within a moment to `each`.
fn receive(io: &mut AfPacket, mut each: impl FnMut(&[u8])) {
    let wait = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    poll(&mut [PollFd::from_borrowed_fd(io.as_fd(), PollFlags::IN)], Some(&wait)).unwrap();
    let count = io.recv().unwrap_or(0);
    for n in 0..count {
        if let Some(packet) = io.frame(n).data.get(14..) {
            each(packet);
        }
    }
}

/// A socket that receives all packets of a namespace, outgoing ones too, before segmentation.
fn packets(ns: &Netns) -> OwnedFd {
    let every = Protocol::from_raw(NonZeroU32::new(u32::from(3u16.to_be())).unwrap());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let open = || socket_with(AddressFamily::PACKET, SocketType::DGRAM, flags, Some(every)).unwrap();
    let socket = in_netns(Some(ns.name()), open).unwrap();
    sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20).unwrap();
    socket
}

impl Watch {
    fn start(ns: &Netns) -> Watch {
        let socket = packets(ns);
        let (flows, stop) = (Flows::default(), Arc::new(AtomicBool::new(false)));
        let (ours, ends) = (flows.clone(), stop.clone());
        let service: SocketAddr = SERVICE.parse().unwrap();
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 17];
            while !ends.load(Ordering::Relaxed) {
                let Ok((_, length)) = recv(&socket, &mut buffer[..], RecvFlags::empty()) else {
                    let wait = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
                    poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&wait)).unwrap();
                    continue;
                };
                let each = |packet: &[u8]| {
                    let Ok(segment) = Segment::parse(packet) else { return };
                    let header = segment.header;
                    let client = if header.dst == service { header.src } else { header.dst };
                    let (syn, fin) = (segment.has(TcpFlags::SYN), segment.has(TcpFlags::FIN));
                    let mut flows = ours.lock().unwrap();
                    if header.dst == service && syn {
                        let mut flow = Flow::new(Tuple { client, service }, &OPEN);
                        flow.tick(now_ms(), &mut Vec::new());
                        flow.syn(&packet[20..]);
                        flows.insert(
                            client,
                            Seen { flow, record: None, start: None, asked: 0, isn: header.seq },
                        );
                    }
                    let Some(seen) = flows.get_mut(&client) else { return };
                    if header.dst == service {
                        seen.flow.acknowledged(header.ack);
                        if !syn {
                            let isn = seen.isn;
                            seen.asked = seen.asked.max(segment.end().wrapping_sub(isn.wrapping_add(1)));
                            seen.feed(|flow, out| flow.request(header.seq, segment.payload, fin, out));
                        }
                    } else if syn {
                        seen.flow.syn_ack(&packet[20..]);
                        seen.start = Some(header.seq.wrapping_add(1));
                    } else {
                        seen.feed(|flow, out| flow.response(header.seq, segment.payload, fin, out));
                    }
                };
                each(&buffer[..length]);
            }
        });
        Watch { flows, stop, thread: Some(thread) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub struct Rack {
    pub client: Netns,
    router: Netns,
    pub r1: Netns,
    pub r2: Netns,
    watch: Watch,
    pub www: tempfile::TempDir,
    pub folder: tempfile::TempDir,
}

impl Rack {
    /// Creates the rack; the service's address is routed to the first replica.
    pub fn new() -> Option<Rack> {
        let [client, router, r1, r2] = two_replicas("t")?;
        let watch = Watch::start(&r1);
        let (www, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // nginx's worker process runs as another user.
        std::fs::set_permissions(www.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Some(Rack { client, router, r1, r2, watch, www, folder })
    }

    pub fn slow(&self, rate: &str) {
        self.router.shape("c", rate);
    }

    pub fn nginx(&self) -> Process {
        nginx(&self.r2, self.folder.path(), self.www.path())
    }

    pub fn connect(&self) -> TcpStream {
        let stream = in_netns(Some(self.client.name()), || TcpStream::connect(SERVICE)).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A listener at the first replica, instead of nginx.
    pub fn listen(&self) -> TcpListener {
        // A child process that another test forks holds the former socket until it executes its
        // program.
        let mut found = None;
        eventually("the address is free", || {
            match in_netns(Some(self.r1.name()), || TcpListener::bind(SERVICE)).unwrap() {
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
                listener => found = Some(listener.unwrap()),
            }
            found.is_some()
        });
        found.unwrap()
    }

    pub fn flows(&self) -> MutexGuard<'_, HashMap<SocketAddr, Seen>> {
        self.watch.flows.lock().unwrap()
    }

    /// Cuts off the first replica, and routes the service's packets to the second one, whose kernel
    /// does not get them yet.
    pub fn cut(&self) {
        self.router.run("nft add rule ip t f iifname r1 drop");
        self.r2.run("nft add rule ip t i ip daddr 10.9.0.1 drop");
        self.router.ip("route replace 10.9.0.1 via 10.0.2.2");
    }

    /// Undoes [`cut`](Self::cut).
    pub fn mend(&self) {
        self.router.run("nft flush chain ip t f");
        self.router.ip("route replace 10.9.0.1 via 10.0.1.2");
    }

    /// Starts the second replica's adopters; returns them and the receiver of outcomes.
    pub fn adopters(&self, patience: Duration) -> (Adopters, Receiver<(Tuple, Outcome)>) {
        self.adopters_with(patience, PATIENCE)
    }

    /// Like [`adopters`](Self::adopters); `idle` as in [`AdoptConfig`].
    pub fn adopters_with(
        &self,
        patience: Duration,
        idle: Duration,
    ) -> (Adopters, Receiver<(Tuple, Outcome)>) {
        let (ended, ends) = channel();
        let origin = "127.0.0.1:80".parse().unwrap();
        let adopt_as = AdoptAs::Client;
        let (digests, unknown) = (Digests::default(), Unknown::Trust);
        let config = AdoptConfig { origin, patience, idle, adopt_as, carries: true, digests, unknown };
        let start = || Adopters::start(config, ended).unwrap();
        (in_netns(Some(self.r2.name()), start).unwrap(), ends)
    }

    /// Probes the client of a connection that is cut off; returns its position.
    pub fn probe(&self, record: &Record) -> Place {
        let prober = in_netns(Some(self.r2.name()), Prober::open).unwrap().unwrap();
        let mut io = frames(&self.r2, "eth0");
        let mut place = None;
        let mut count = 0;
        eventually("an answer to the probe", || {
            // The probe is sent in every 20th round.
            if count % 20 == 0 {
                prober.send(record, now_ms()).unwrap();
            }
            count += 1;
            receive(&mut io, |packet| {
                let Ok(segment) = Segment::parse(packet) else { return };
                assert!(segment.is_intact());
                if let Told::Waits(at) = wake::read(record, &segment, now_ms()) {
                    // Linux reports the probe's byte in a SACK block, unless SACK is off.
                    place = Some(at).filter(|at| at.fresh || !record.handshake.sack).or(place);
                }
            });
            place.is_some()
        });
        place.unwrap()
    }

    /// Loads the BPF programs at the second replica, with limits that hold nothing back: they bound
    /// the acknowledgements of a client that holds bytes behind holes (`beyond.h`).
    pub fn programs(&self, record: &Record) -> Trods {
        let mut programs = Trods::load().unwrap();
        let interface = Interface::new(Some(self.r2.name()), "eth0").unwrap();
        let index = LinkInfo::of(&interface).unwrap().index;
        in_netns(Some(self.r2.name()), || programs.attach(index)).unwrap().unwrap();
        let Tuple { client, service } = record.tuple;
        programs.leases().unwrap().set(0, Lease { until: u64::MAX, ..Lease::default() }).unwrap();
        programs.protect(service, 0).unwrap();
        let far = 1 << 30;
        let limits = Limits {
            ack: record.acknowledged().wrapping_add(far),
            data: record.response_at.wrapping_add(far),
            first: record.response_at,
            acked: record.response_at,
            adopted: true,
            ..Limits::default()
        };
        programs.insert(&FlowKey::new(client, service), &limits).unwrap();
        programs
    }

    /// Adopts a connection that is cut off, and lets its packets reach the kernel.
    pub fn adopt(&self, adopters: &Adopters, record: Record) -> Place {
        let place = self.probe(&record);
        let connection = wake::connection(&record, &place, now_ms());
        in_netns(Some(self.r2.name()), || adopters.adopt(record, &connection, place.sent)).unwrap().unwrap();
        self.r2.run("nft flush chain ip t i");
        place
    }
}

/// The server's complete answer to this request, read until the server closes.
pub fn fetch(ns: &Netns, request: &str) -> Vec<u8> {
    let mut stream = in_netns(Some(ns.name()), || TcpStream::connect("127.0.0.1:80")).unwrap().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    said
}
