//! A client, and two replicas of a service behind a router.

use std::{
    fs,
    net::TcpStream,
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::Stdio,
    thread::{self, JoinHandle},
};

use rivulet_bpf::trods::{FlowKey, Lease, Limits, Trods};
use rivulet_pktio::{
    AfPacket, Config, Interface, LinkInfo, PacketIo, in_netns, repair,
    testing::{Netns, PATIENCE, Process, eventually, two_replicas},
};
use rivulet_plain::Segment;
use rivulet_tls::State;
use rivulet_trods::{
    Record,
    wake::{self, Place, Prober, Told},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::replica::{ORIGIN, SERVICE, Served, now_ms, stored_at};

pub struct Rack {
    client: Netns,
    router: Netns,
    r1: Netns,
    r2: Netns,
    folder: tempfile::TempDir,
    programs: Option<Trods>,
}

impl Rack {
    /// The service is initially at the first replica. `None`, with a line on standard error, if
    /// this machine lacks a needed feature.
    pub fn new() -> Option<Rack> {
        if rivulet_bpf::kernel::skipped(rivulet_bpf::kernel::Feature::Tcx) {
            return None;
        }
        let [client, router, r1, r2] = two_replicas("s")?;
        // Slow enough for a replica to die during a download.
        router.shape("c", "300mbit");
        let folder = tempfile::tempdir().unwrap();
        for name in ["www", "n1", "n2"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let certificate = rcgen::generate_simple_self_signed(["10.9.0.1".to_owned()]).unwrap();
        let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
        write("ca.pem", certificate.cert.pem().as_bytes());
        write("cert.der", certificate.cert.der());
        write("key.der", &certificate.signing_key.serialize_der());
        Some(Rack { client, router, r1, r2, folder, programs: None })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn www(&self) -> PathBuf {
        self.folder().join("www")
    }

    pub fn client(&self) -> &Netns {
        &self.client
    }

    /// Starts an unmodified server on each replica. Their response heads have different lengths.
    pub fn start_servers(&self) -> [Process; 2] {
        [(&self.r1, "n1"), (&self.r2, "n2")].map(|(ns, name)| {
            let (path, www) = (self.folder().join(name), self.www());
            let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|what| format!("{what}_temp_path {}/{what};\n", path.display()))
                .concat();
            let header = format!("add_header X-Served-By {}", name.repeat(if name == "n1" { 1 } else { 9 }));
            let text = format!(
                "user root; daemon off; master_process off; pid {0}/pid; error_log {0}/log;\nevents {{}}\nhttp {{\n\
                 {temporary}access_log off; sendfile on; server {{ listen {ORIGIN}; root {1}; {header}; }} }}\n",
                path.display(),
                www.display()
            );
            fs::write(path.join("conf"), text).unwrap();
            let mut command = ns.command("nginx");
            command.arg("-p").arg(&path).arg("-c").arg(path.join("conf")).arg("-e").arg(path.join("log"));
            let process = Process(command.stderr(Stdio::null()).spawn().expect("ip"));
            eventually("nginx (scripts/setup.sh --test)", || {
                in_netns(Some(ns.name()), || TcpStream::connect(ORIGIN).is_ok()).unwrap()
            });
            process
        })
    }

    /// Starts the process of the first replica.
    pub fn start_first(&self, suite: usize, limit: u64) -> Process {
        for name in ["listens", "state"] {
            let _ = fs::remove_file(self.folder().join(name));
        }
        let program = std::env::current_exe().unwrap();
        let mut command = self.r1.command(program.to_str().unwrap());
        command.args(["--exact", "adoption::first_replica", "--ignored", "--nocapture"]);
        command.env("TLS_REPLICA", self.folder()).env("TLS_SUITE", suite.to_string());
        command.env("TLS_LIMIT", limit.to_string());
        let process = Process(command.stdout(Stdio::null()).spawn().unwrap());
        eventually("the first replica listens", || self.folder().join("listens").exists());
        process
    }

    /// Cuts off the first replica, so that neither FIN nor RST leaves it. The service's packets go
    /// to the second replica, which passes them to the test before its kernel.
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

    /// Adopts a connection whose replica was cut off, and serves it to its end.
    pub fn adopt(&mut self, state: State) -> JoinHandle<()> {
        let tcp = state.tcp_record();
        let place = self.probe(&tcp);
        self.bound(&tcp);
        let connection = wake::connection(&tcp, &place, now_ms());
        let socket = repair::restore(&connection, Some(self.r2.name())).unwrap();
        self.r2.run("nft flush chain ip t i");
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let (ns, store) = (self.r2.name().to_owned(), stored_at(self.folder()).with_extension("2"));
        thread::spawn(move || {
            let served = || Served::adopt(socket, state, store, place.ack)?.serve();
            in_netns(Some(&ns), served).unwrap().unwrap();
        })
    }

    /// Probes the client with an old byte, as TRODS does, to learn which bytes it has.
    fn probe(&self, tcp: &Record) -> Place {
        let prober = in_netns(Some(self.r2.name()), Prober::open).unwrap().unwrap();
        let config = Config { promiscuous: false, ..Config::default() };
        let mut io = AfPacket::open(&self.r2.interface("eth0"), config).unwrap();
        let (mut place, mut count) = (None, 0);
        eventually("an answer to the probe", || {
            // Repeats the probe only every twentieth time.
            if count % 20 == 0 {
                prober.send(tcp, now_ms()).unwrap();
            }
            count += 1;
            let wait = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
            poll(&mut [PollFd::from_borrowed_fd(io.as_fd(), PollFlags::IN)], Some(&wait)).unwrap();
            for n in 0..io.recv().unwrap_or(0) {
                let Some(Ok(segment)) = io.frame(n).data.get(14..).map(Segment::parse) else { continue };
                match wake::read(tcp, &segment, now_ms()) {
                    Told::Waits(at) => place = Some(at).filter(|at| at.fresh).or(place),
                    Told::Gone => panic!("the client ended early"),
                    Told::Nothing => {}
                }
            }
            place.is_some()
        });
        place.unwrap()
    }

    /// Has TRODS's programs lower acknowledgements of a client that has data behind holes.
    fn bound(&mut self, tcp: &Record) {
        let programs = self.programs.get_or_insert_with(|| {
            let mut programs = Trods::load().unwrap();
            let interface = Interface::new(Some(self.r2.name()), "eth0").unwrap();
            let index = LinkInfo::of(&interface).unwrap().index;
            in_netns(Some(self.r2.name()), || programs.attach(index)).unwrap().unwrap();
            programs.leases().unwrap().set(0, Lease { until: u64::MAX, ..Lease::default() }).unwrap();
            programs.protect(SERVICE.parse().unwrap(), 0).unwrap();
            programs
        });
        let far = 1 << 30;
        let limits = Limits {
            ack: tcp.acknowledged().wrapping_add(far),
            data: tcp.response_at.wrapping_add(far),
            first: tcp.response_at,
            acked: tcp.response_at,
            adopted: true,
            ..Limits::default()
        };
        programs.insert(&FlowKey::new(tcp.tuple.client, tcp.tuple.service), &limits).unwrap();
    }
}
