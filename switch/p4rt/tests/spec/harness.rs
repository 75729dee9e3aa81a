//! A switch with its packet path, a server on a loopback port, and a controller.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rivulet_engine::{DataPath, Switch, SwitchConfig};
use rivulet_p4rt::proto::p4::config::v1::P4Info;
use rivulet_p4rt::proto::p4::v1 as p4;
use rivulet_p4rt::proto::rivulet::switch::v1::switch_client::SwitchClient;
use rivulet_p4rt::{
    Link, PacketInSender, Port, PortError, Ports, Server, ServerConfig, TraceReport, packet_in_channel,
    parse_p4info,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Channel;

pub use crate::controller::*;
pub use p4::p4_runtime_client::P4RuntimeClient;
pub use p4::stream_message_request::Update as Outgoing;
pub use p4::stream_message_response::Update as Received;
pub use p4::update::Type;

pub const DEVICE: u64 = 7;
pub const CPU_PORT: u32 = 510;
/// How long a test waits for an expected event.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a test waits for something that must not happen.
pub const SILENCE: Duration = Duration::from_millis(200);

pub const JSON: &[u8] = include_bytes!("../programs/everything.json");
pub const P4INFO: &str = include_str!("../programs/everything.p4info.txtpb");

/// The packet path, run by the test and by a thread that handles commands between packets.
pub struct Machine {
    path: Mutex<DataPath>,
    start: Instant,
    packet_in: PacketInSender,
    /// Existing ports, and whether they are up.
    pub ports: Mutex<BTreeMap<u32, bool>>,
    /// Links that were set.
    pub links: Mutex<BTreeMap<u32, Link>>,
    /// Packets sent, except to the CPU port.
    sent: Mutex<Vec<(u32, Vec<u8>)>>,
    /// While set, `packet_out` fails as full.
    pub full: AtomicBool,
    stop: AtomicBool,
}

impl Machine {
    /// Runs one frame through the switch and returns the packets sent, except to the CPU port.
    pub fn packet(&self, port: u32, frame: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.process(port, frame);
        std::mem::take(&mut *self.sent.lock())
    }

    fn process(&self, port: u32, frame: &[u8]) {
        let now = self.start.elapsed().as_micros() as u64;
        let mut sent = self.sent.lock();
        self.path.lock().process(now, port, frame, &mut |port: u32, head: &[u8], rest: &[u8]| {
            if port == CPU_PORT {
                self.packet_in.send(head, rest);
            } else {
                sent.push((port, [head, rest].concat()));
            }
        });
    }

    /// Packets sent by packet-outs, once there are any.
    pub async fn sent(&self) -> Vec<(u32, Vec<u8>)> {
        let start = Instant::now();
        loop {
            let sent = std::mem::take(&mut *self.sent.lock());
            if !sent.is_empty() || start.elapsed() > PATIENCE {
                return sent;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Ports for Machine {
    fn add_port(&self, port: u32, interface: &str) -> Result<(), PortError> {
        if interface == "missing" {
            return Err(PortError::NotFound(interface.to_owned()));
        }
        match self.ports.lock().insert(port, true) {
            Some(_) => Err(PortError::Exists(format!("port {port}"))),
            None => Ok(()),
        }
    }

    fn remove_port(&self, port: u32) -> Result<(), PortError> {
        self.ports.lock().remove(&port).map(drop).ok_or_else(|| PortError::NotFound(format!("port {port}")))
    }

    fn list_ports(&self) -> Vec<Port> {
        let status = |(port, up): (&u32, &bool)| Port {
            port: *port,
            up: *up,
            link: self.links.lock().get(port).copied(),
            ..Port::default()
        };
        self.ports.lock().iter().map(status).collect()
    }

    fn is_up(&self, port: u32) -> Option<bool> {
        self.ports.lock().get(&port).copied()
    }

    fn set_link(&self, port: u32, link: Option<Link>) -> Result<(), PortError> {
        let mut links = self.links.lock();
        match link {
            Some(link) => links.insert(port, link),
            None => links.remove(&port),
        };
        Ok(())
    }

    fn trace(&self, port: u32, frame: &[u8], dry_run: bool) -> Result<TraceReport, PortError> {
        let now = self.start.elapsed().as_micros() as u64;
        let mut outputs = Vec::new();
        let mut output = |port: u32, head: &[u8], rest: &[u8]| outputs.push((port, [head, rest].concat()));
        let mut path = self.path.lock();
        let trace = if dry_run {
            path.dry_run(now, port, frame, &mut output)
        } else {
            path.process_traced(now, port, frame, &mut output)
        };
        Ok(TraceReport { text: trace.to_string(), json: String::new(), outputs })
    }

    fn packet_out(&self, frame: Vec<u8>) -> Result<(), PortError> {
        if self.full.load(Ordering::Relaxed) {
            return Err(PortError::Full("the packet-out queue".to_owned()));
        }
        self.process(CPU_PORT, &frame);
        Ok(())
    }
}

/// A server under test. Dropping it stops its packet path; [`stop`](Self::stop) also waits for the
/// server.
pub struct Bench {
    pub machine: Arc<Machine>,
    pub server: Server,
    pub address: SocketAddr,
    /// Address of the service for ports, links and traces.
    pub control: SocketAddr,
    pub info: Names,
    shutdown: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.machine.stop.store(true, Ordering::Relaxed);
    }
}

impl Bench {
    /// A server without a pipeline.
    pub async fn empty() -> Bench {
        Bench::with(ServerConfig::default()).await
    }

    /// The same with another configuration.
    pub async fn with(config: ServerConfig) -> Bench {
        let (switch, path, events) = Switch::new(SwitchConfig::default());
        let (packet_in, packet_ins) = packet_in_channel(64);
        let machine = Arc::new(Machine {
            path: Mutex::new(path),
            start: Instant::now(),
            packet_in,
            ports: Mutex::new([(1, true), (2, true), (3, false)].into()),
            links: Mutex::default(),
            sent: Mutex::default(),
            full: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let polled = machine.clone();
        std::thread::spawn(move || {
            while !polled.stop.load(Ordering::Relaxed) {
                let now = polled.start.elapsed().as_micros() as u64;
                polled.path.lock().poll(now, &mut |_: u32, _: &[u8], _: &[u8]| {});
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let config = ServerConfig { device_id: DEVICE, ..config };
        let server = Server::new(config, switch, machine.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let control_listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let control = control_listener.local_addr().unwrap();
        let (shutdown, stop) = oneshot::channel::<()>();
        let serving = {
            let server = server.clone();
            tokio::spawn(async move {
                let stop = async { drop(stop.await) };
                let control = Some(control_listener.into());
                server.serve(listener, control, packet_ins, events.digests, stop).await.unwrap();
            })
        };
        Bench { machine, server, address, control, info: Names::new(), shutdown: Some(shutdown), serving }
    }

    /// A server with the test program and a primary with election id 1.
    pub async fn new() -> (Bench, Controller) {
        let bench = Bench::empty().await;
        let mut controller = bench.primary(1).await;
        controller.set_pipeline(PipelineAction::VerifyAndCommit, Some(config())).await.unwrap();
        (bench, controller)
    }

    pub async fn client(&self) -> P4RuntimeClient<Channel> {
        P4RuntimeClient::connect(format!("http://{}", self.address)).await.unwrap()
    }

    pub async fn switch_client(&self) -> SwitchClient<Channel> {
        SwitchClient::connect(format!("http://{}", self.control)).await.unwrap()
    }

    /// Sets a port's link up or down, like the kernel.
    pub fn set_link_up(&self, port: u32, up: bool) {
        self.machine.ports.lock().insert(port, up);
    }

    /// A controller without a message so far.
    pub async fn controller(&self) -> Controller {
        self.controller_on(self.client().await).await
    }

    /// The same on an existing connection.
    pub async fn controller_on(&self, mut client: P4RuntimeClient<Channel>) -> Controller {
        let (requests, outgoing) = mpsc::channel(1024);
        let received = client.stream_channel(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        Controller { client, requests, received, role: String::new(), election_id: None }
    }

    /// A controller that has become primary of the default role.
    pub async fn primary(&self, election_id: u64) -> Controller {
        let mut controller = self.controller().await;
        let (code, _) = controller.arbitrate(Some(election_id)).await;
        assert_eq!(code, Code::Ok, "a controller with a fresh, higher id becomes primary");
        controller
    }

    /// Ends the server and waits for it.
    pub async fn stop(mut self) {
        drop(self.shutdown.take());
        tokio::time::timeout(PATIENCE, &mut self.serving).await.expect("the server ends").unwrap();
    }
}

pub use p4::set_forwarding_pipeline_config_request::Action as PipelineAction;

/// The test program's configuration.
pub fn config() -> p4::ForwardingPipelineConfig {
    p4::ForwardingPipelineConfig {
        p4info: Some(p4info()),
        p4_device_config: JSON.to_vec(),
        cookie: Some(p4::forwarding_pipeline_config::Cookie { cookie: 99 }),
    }
}

pub fn p4info() -> P4Info {
    parse_p4info(P4INFO.as_bytes()).unwrap()
}
