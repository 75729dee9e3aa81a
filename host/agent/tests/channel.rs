//! The channel against the test's own controllers: over a Unix socket, over TCP with mutual TLS,
//! with dead controllers, and through an agent process.
#![allow(missing_docs)]

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rivulet_agent::proto::agent_message::Message as FromAgent;
use rivulet_agent::proto::agents_server::{Agents, AgentsServer};
use rivulet_agent::proto::controller_message::Message as FromController;
use rivulet_agent::proto::{
    AgentMessage, ControllerMessage, NonceKey, Plain, Report, SealKey, Service, TicketKey, Tls, Update,
};
use rivulet_agent::{
    Agent, Controllers, Relay, RelayConfig, Status, TerminatorChannel, TlsFiles, TlsStatus, TrodsCounts,
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Streaming};

const PATIENCE: Duration = Duration::from_secs(20);

/// A controller that sends the same update to every agent and records the messages that it
/// receives.
#[derive(Clone)]
struct Controller {
    update: Arc<Mutex<Update>>,
    heard: mpsc::SyncSender<AgentMessage>,
}

#[tonic::async_trait]
impl Agents for Controller {
    type RegisterStream = ReceiverStream<Result<ControllerMessage, tonic::Status>>;

    async fn register(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::RegisterStream>, tonic::Status> {
        let (to, outgoing) = tokio::sync::mpsc::channel(4);
        let mut incoming = request.into_inner();
        let (update, heard) = (self.update.lock().clone(), self.heard.clone());
        tokio::spawn(async move {
            let message = ControllerMessage { message: Some(FromController::Update(update)) };
            let _ = to.send(Ok(message)).await;
            while let Ok(Some(message)) = incoming.message().await {
                let _ = heard.try_send(message);
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// A controller that runs until it is dropped, which closes its listener and streams.
struct Running {
    runtime: Option<tokio::runtime::Runtime>,
    heard: mpsc::Receiver<AgentMessage>,
    port: u16,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

enum At<'a> {
    Unix(&'a Path),
    Tls(ServerTlsConfig),
}

fn controller(at: At<'_>, version: u64) -> Running {
    controller_of(at, Update { version, services: vec![service()] })
}

fn controller_of(at: At<'_>, update: Update) -> Running {
    let (sender, heard) = mpsc::sync_channel(1000);
    let service = AgentsServer::new(Controller { update: Arc::new(Mutex::new(update)), heard: sender });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut port = 0;
    match at {
        At::Unix(path) => {
            let listener = runtime.block_on(async { tokio::net::UnixListener::bind(path).unwrap() });
            runtime.spawn(
                Server::builder().add_service(service).serve_with_incoming(UnixListenerStream::new(listener)),
            );
        }
        At::Tls(config) => {
            let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
            port = listener.local_addr().unwrap().port();
            let mut server = Server::builder().tls_config(config).unwrap();
            runtime.spawn(server.add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
        }
    }
    Running { runtime: Some(runtime), heard, port }
}

fn service() -> Service {
    Service {
        id: 1,
        name: "www".into(),
        addresses: vec![vec![10, 9, 0, 1]],
        port: 80,
        pool: 1,
        replica: 2,
        tor_mac: vec![2, 0, 0, 0, 0, 1],
        heartbeat_interval_us: 2000,
        liveness_bound_us: 20_000,
        trust_tor: true,
        plain: Plain::Kernel.into(),
        seal_keys: vec![SealKey { epoch: 3, master: vec![1; 16] }],
        nonce_keys: vec![NonceKey { epoch: 4, k: vec![1; 8], k_prime: vec![2; 8], opening: vec![3; 16] }],
        usable_seal_epoch: 3,
        usable_nonce_epoch: 4,
        horizon_us: 4_000_000,
        tunnels: Vec::new(),
        ..Service::default()
    }
}

fn unix(path: &Path) -> String {
    format!("unix:{}", path.display())
}

fn start(addresses: &[String], tls: Option<TlsFiles>) -> Agent {
    Agent::start(Controllers::new(addresses, tls).unwrap(), "r1", 77, [2, 0, 0, 0, 0, 5]).unwrap()
}

/// Waits for a report that satisfies `wanted`.
fn reported(heard: &mpsc::Receiver<AgentMessage>, what: &str, wanted: impl Fn(&Report) -> bool) -> Report {
    let deadline = Instant::now() + PATIENCE;
    let mut last = None;
    while let Ok(message) = heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        match message.message {
            Some(FromAgent::Report(report)) if wanted(&report) => return report,
            other => last = other,
        }
    }
    panic!("no report: {what}; the last message was {last:?}");
}

fn hello(heard: &mpsc::Receiver<AgentMessage>, incarnation: u32) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let message =
            heard.recv_timeout(deadline.saturating_duration_since(Instant::now())).expect("a hello");
        if let Some(FromAgent::Hello(hello)) = message.message
            && hello.incarnation == incarnation
        {
            assert_eq!((hello.name.as_str(), hello.mac.len()), ("r1", 6));
            return;
        }
    }
}

/// The agent starts before the controller, sends its hello, gets an update and reports its status.
#[test]
fn registers_over_a_unix_socket_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.sock");
    let agent = start(&[unix(&path)], None);
    std::thread::sleep(Duration::from_millis(50));
    let controller = controller(At::Unix(&path), 5);
    let (version, services) = agent.updates.recv_timeout(PATIENCE).unwrap();
    assert_eq!((version, services[0].keys.usable_seal), (5, 3));
    hello(&controller.heard, 77);
    agent.set_status(&Status { version: 5, ready: true, ..Status::default() });
    let report = reported(&controller.heard, "in force", |r| r.version_in_force == 5);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    assert!(report.ready && clock.abs_diff(report.clock_ms) < 60_000, "this host's clock: {report:?}");
}

/// The first of several controllers does not exist and the second one dies: the agent uses the
/// third.
#[test]
fn next_controller_is_used_when_one_dies() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = ["a", "b", "c"].iter().map(|n| dir.path().join(n)).collect();
    let (second, third) = (controller(At::Unix(&paths[1]), 2), controller(At::Unix(&paths[2]), 3));
    let agent = start(&paths.iter().map(|p| unix(p)).collect::<Vec<_>>(), None);
    assert_eq!(agent.updates.recv_timeout(PATIENCE).unwrap().0, 2);
    drop(second);
    assert_eq!(agent.updates.recv_timeout(PATIENCE).unwrap().0, 3);
    hello(&third.heard, 77);
}

/// A certificate authority.
struct Lab {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    authority: String,
}

impl Lab {
    fn new() -> Lab {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap().pem();
        Lab { issuer: rcgen::Issuer::new(params, key), authority }
    }

    /// A signed certificate and its key, in PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.into()]).unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// The TLS configuration of a controller at 127.0.0.1.
    fn server(&self) -> ServerTlsConfig {
        let (certificate, key) = self.sign("127.0.0.1");
        ServerTlsConfig::new()
            .identity(Identity::from_pem(certificate, key))
            .client_ca_root(Certificate::from_pem(&self.authority))
    }

    /// A replica's files: a certificate of this authority, and `authority` for the controllers'
    /// certificates.
    fn files(&self, dir: &Path, authority: &Lab) -> TlsFiles {
        let (certificate, key) = self.sign("r1");
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        TlsFiles {
            authority: write("authority.pem", &authority.authority),
            certificate: write("certificate.pem", &certificate),
            key: {
                let path = dir.join("key.pem");
                // Renewed files replace earlier ones, but `create` refuses to replace a file.
                let _ = std::fs::remove_file(&path);
                rivulet_private_file::create(&path, key.as_bytes()).unwrap();
                path
            },
        }
    }
}

#[test]
fn registers_over_tcp_with_mutual_tls() {
    let lab = Lab::new();
    let dir = tempfile::tempdir().unwrap();
    let controller = controller(At::Tls(lab.server()), 9);
    let agent = start(&[format!("127.0.0.1:{}", controller.port)], Some(lab.files(dir.path(), &lab)));
    assert_eq!(agent.updates.recv_timeout(PATIENCE).unwrap().0, 9);
    hello(&controller.heard, 77);
}

/// A replica with an unknown certificate gets no keys, and a replica takes none from a controller
/// with an unknown certificate. With the right files in place it registers without a restart.
#[test]
fn unknown_certificates_get_and_give_no_keys() {
    let (lab, stranger) = (Lab::new(), Lab::new());
    let dir = tempfile::tempdir().unwrap();
    let controller = controller(At::Tls(lab.server()), 9);
    let address = [format!("127.0.0.1:{}", controller.port)];
    for (files, who) in
        [(stranger.files(dir.path(), &lab), "replica"), (lab.files(dir.path(), &stranger), "controller")]
    {
        let agent = start(&address, Some(files));
        let update = agent.updates.recv_timeout(Duration::from_millis(700));
        assert!(update.is_err(), "a strange {who}");
        assert!(controller.heard.try_recv().is_err(), "a strange {who} was heard");
    }
    let agent = start(&address, Some(stranger.files(dir.path(), &lab)));
    assert!(agent.updates.recv_timeout(Duration::from_millis(300)).is_err());
    lab.files(dir.path(), &lab);
    assert_eq!(agent.updates.recv_timeout(PATIENCE).unwrap().0, 9, "renewed certificates are read again");
}

fn config(dir: &Path, controller: &Path) -> RelayConfig {
    RelayConfig {
        name: "r1".into(),
        controllers: Controllers::new(&[unix(controller)], None).unwrap(),
        mac: [2, 0, 0, 0, 0, 5],
        incarnation: 7,
        socket: dir.join("agent.sock"),
        owner: None,
        keep: Some(dir.join("kept")),
    }
}

fn relay(dir: &Path, controller: &Path) -> Result<Relay, rivulet_agent::RelayError> {
    Relay::open(config(dir, controller))
}

/// A serving process behind an agent process: hello and reports are relayed. The keys survive the
/// controller's death and reach the next serving process, also after a restart of the agent
/// process.
#[test]
fn serving_processes_attach_and_detach_from_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("controller.sock");
    let controller = controller(At::Unix(&path), 5);
    let door_of_agent = relay(dir.path(), &path).unwrap();
    let socket = dir.path().join("agent.sock");
    hello(&controller.heard, 7);
    let report = reported(&controller.heard, "nobody attached", |r| r.version_in_force == 5);
    assert!(!report.ready && report.reason.contains("no serving process"), "{report:?}");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let twice = relay(dir.path(), &path).err().expect("two agents at one socket").to_string();
    assert!(twice.contains("another agent"), "{twice}");

    let serving = start(&[unix(&socket)], None);
    assert_eq!(serving.updates.recv_timeout(PATIENCE).unwrap().0, 5);
    hello(&controller.heard, 77);
    assert_eq!(door_of_agent.attached(), 1);
    serving.set_status(&Status { version: 5, ready: true, load: 3, ..Status::default() });
    assert_eq!(reported(&controller.heard, "ready", |r| r.ready).load, 3);
    // Counters of TRODS come from the agent process, whichever serving process is attached.
    let unprotected = [("tls", 2)].into();
    let trods = TrodsCounts { incarnation: 7, unprotected, outside: 5, ..TrodsCounts::default() };
    door_of_agent.set_status(Status { trods: Some(trods), ..Status::default() });
    let report = reported(&controller.heard, "counts of TRODS", |r| r.trods.is_some());
    let trods = report.trods.unwrap();
    assert_eq!((report.ready, report.load, trods.incarnation, trods.outside), (true, 3, 7, 5));
    assert_eq!(trods.unprotected["tls"], 2);

    let other = Agent::start(Controllers::new(&[unix(&socket)], None).unwrap(), "r2", 1, [2; 6]).unwrap();
    assert!(other.updates.recv_timeout(Duration::from_millis(200)).is_err(), "another replica's name");

    drop(controller);
    std::fs::remove_file(&path).unwrap();
    let next = start(&[unix(&socket)], None);
    let (version, services) = next.updates.recv_timeout(PATIENCE).unwrap();
    assert_eq!((version, services.len()), (5, 1), "without a controller");

    // The agent process restarts while there is no controller.
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("kept"), elsewhere.path().join("kept")).unwrap();
    let _door = relay(elsewhere.path(), &path).unwrap();
    let next = start(&[unix(&elsewhere.path().join("agent.sock"))], None);
    assert_eq!(next.updates.recv_timeout(PATIENCE).unwrap().0, 5, "kept");
}

/// A terminator gets the accepted services with TLS, with no other keys than those of tickets, and what it reports is in
/// the agent's report.
#[test]
fn terminator_gets_services_with_tls_alone_and_its_status_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("controller.sock");
    let pair = || rivulet_agent::proto::Certificate { certificate: "/c".into(), key: "/k".into() };
    let tls = || Tls {
        certificates: vec![pair()],
        server: "127.0.0.1:80".into(),
        ticket_keys: vec![TicketKey { epoch: 3, key: vec![9; 32] }],
        usable_ticket_epoch: 3,
        ..Tls::default()
    };
    let other = |id: u32, tls| Service {
        id,
        name: format!("s{id}"),
        addresses: vec![vec![10, 9, 0, id as u8]],
        tls,
        ..service()
    };
    let refused = Tls { server: "127.0.0.1:0".into(), ..tls() };
    let services = vec![service(), other(2, Some(tls())), other(4, Some(refused))];
    let controller = controller_of(At::Unix(&path), Update { version: 5, services });
    let agent = relay(dir.path(), &path).unwrap();
    hello(&controller.heard, 7);
    let report = reported(&controller.heard, "none is attached", |r| r.version_in_force == 5);
    assert_eq!((report.tls.len(), report.tls[0].service), (1, 2), "the refused one is no service");
    assert!(report.tls[0].error.contains("rivulet tls is not attached"), "{report:?}");
    assert!(report.reason.starts_with("s2: TLS: rivulet tls is not attached"), "{report:?}");

    let terminator = TerminatorChannel::start(&dir.path().join("agent.sock")).unwrap();
    let services = terminator.updates.recv_timeout(PATIENCE).unwrap();
    let found: Vec<_> = services.iter().map(|s| (s.id, &*s.name, s.tls.tickets().len())).collect();
    assert_eq!(found, [(2, "s2", 1)]);
    assert_eq!(services[0].sockets, ["10.9.0.2:80".parse().unwrap()]);
    assert_eq!(agent.attached(), 0, "it is no serving process");
    let good = TlsStatus { service: 2, serving: true, protected: 4, ..TlsStatus::default() };
    let stranger = TlsStatus { service: 9, ..TlsStatus::default() };
    terminator.set_status(vec![stranger, good.clone()]);
    let report = reported(&controller.heard, "its status", |r| r.tls.iter().any(|tls| tls.serving));
    assert_eq!(report.tls, [good]);
    let long = TlsStatus { service: 2, error: "ä".repeat(10_000), ..TlsStatus::default() };
    terminator.set_status(vec![long]);
    let report = reported(&controller.heard, "an error", |r| r.tls.iter().any(|tls| !tls.serving));
    assert_eq!(report.tls[0].error, "ä".repeat(250));
}

/// Only a socket without a listener is replaced; other files at the path are left alone.
#[test]
fn only_dead_sockets_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock");
    std::fs::write(&socket, "mine").unwrap();
    assert!(relay(dir.path(), Path::new("/no/such/controller")).is_err());
    assert_eq!(std::fs::read(&socket).unwrap(), b"mine");
    std::fs::remove_file(&socket).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let opened = relay(dir.path(), Path::new("/no/such/controller")).unwrap();
    drop(opened);
    assert!(!socket.exists());
}

/// Only root, the agent's own user and the configured owner get a replica's keys, even if another
/// user can connect to the socket.
#[test]
fn agents_socket_refuses_keys_to_other_users() {
    const OWNER: u32 = 65_533;
    const STRANGER: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("controller.sock");
    let _controller = controller(At::Unix(&path), 5);
    let _door = Relay::open(RelayConfig { owner: Some(OWNER), ..config(dir.path(), &path) }).unwrap();
    let socket = dir.path().join("agent.sock");
    let metadata = std::fs::metadata(&socket).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o600, OWNER));
    // A user id can be set per thread, and new threads inherit it.
    let start_as = |uid: u32| {
        let (to, started) = mpsc::channel();
        let socket = socket.clone();
        std::thread::spawn(move || {
            let uid = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            to.send((start(&[unix(&socket)], None), UnixStream::connect(&socket).is_ok())).unwrap();
        });
        started.recv().unwrap()
    };
    let (owner, connects) = start_as(OWNER);
    assert!(connects);
    assert_eq!(owner.updates.recv_timeout(PATIENCE).unwrap().0, 5);
    assert!(!start_as(STRANGER).1, "the socket's mode");
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let (stranger, connects) = start_as(STRANGER);
    assert!(connects);
    assert!(stranger.updates.recv_timeout(Duration::from_secs(1)).is_err(), "another user got keys");
}
