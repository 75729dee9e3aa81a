//! A switch with its packet path, a server on a port of the loopback, and a controller to talk to it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prost::Message as _;
use rivulet_engine::{DataPath, Switch, SwitchConfig};
use rivulet_p4rt::proto::google::rpc;
use rivulet_p4rt::proto::p4::config::v1::P4Info;
use rivulet_p4rt::proto::p4::v1 as p4;
use rivulet_p4rt::proto::rivulet::switch::v1::switch_client::SwitchClient;
use rivulet_p4rt::{
    LinkSettings, PacketInSender, PortError, PortStatus, Ports, Server, ServerConfig, TraceReport,
    packet_in_channel, parse_p4info,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

pub use p4::p4_runtime_client::P4RuntimeClient;
pub use p4::stream_message_request::Update as Say;
pub use p4::stream_message_response::Update as Heard;
pub use p4::update::Type;

pub const DEVICE: u64 = 7;
pub const CPU_PORT: u32 = 510;
/// How long a test waits for what must come.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long a test waits for what must not come.
pub const SILENCE: Duration = Duration::from_millis(200);

pub const JSON: &[u8] = include_bytes!("../programs/everything.json");
pub const P4INFO: &str = include_str!("../programs/everything.p4info.txtpb");

/// The packet path, run by the test and by a thread that takes commands when no packet comes.
pub struct Machine {
    path: Mutex<DataPath>,
    start: Instant,
    packet_in: PacketInSender,
    /// Ports there are, and whether they are up.
    pub ports: Mutex<BTreeMap<u32, bool>>,
    /// Links that were set.
    pub links: Mutex<BTreeMap<u32, LinkSettings>>,
    /// What came out, except at the CPU port.
    sent: Mutex<Vec<(u32, Vec<u8>)>>,
    /// While set, `packet_out` says it is full.
    pub full: AtomicBool,
    stop: AtomicBool,
}

impl Machine {
    /// Runs one frame through the switch and returns what came out at ports other than the CPU's.
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

    /// What packet-outs sent, once there is anything.
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

    fn list_ports(&self) -> Vec<PortStatus> {
        let status = |(port, up): (&u32, &bool)| PortStatus {
            port: *port,
            up: *up,
            link: self.links.lock().get(port).copied(),
            ..PortStatus::default()
        };
        self.ports.lock().iter().map(status).collect()
    }

    fn is_up(&self, port: u32) -> Option<bool> {
        self.ports.lock().get(&port).copied()
    }

    fn set_link(&self, port: u32, link: Option<LinkSettings>) -> Result<(), PortError> {
        let mut links = self.links.lock();
        match link {
            Some(link) => links.insert(port, link),
            None => links.remove(&port),
        };
        Ok(())
    }

    fn trace(&self, port: u32, frame: &[u8], dry_run: bool) -> Result<TraceReport, PortError> {
        if dry_run {
            return Err(PortError::Unsupported("dry runs".to_owned()));
        }
        let now = self.start.elapsed().as_micros() as u64;
        let mut outputs = Vec::new();
        let mut output = |port: u32, head: &[u8], rest: &[u8]| outputs.push((port, [head, rest].concat()));
        let trace = self.path.lock().process_traced(now, port, frame, &mut output);
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

/// A server under test. Dropping it stops its packet path; [`stop`](Self::stop) also waits for the server.
pub struct Bench {
    pub machine: Arc<Machine>,
    pub server: Server,
    pub address: SocketAddr,
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
        let config = ServerConfig { device_id: DEVICE, ..ServerConfig::default() };
        let server = Server::new(config, switch, machine.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, stop) = oneshot::channel::<()>();
        let serving = {
            let server = server.clone();
            tokio::spawn(async move {
                let stop = async { drop(stop.await) };
                server.serve(listener, packet_ins, events.digests, stop).await.unwrap();
            })
        };
        Bench { machine, server, address, info: Names::new(), shutdown: Some(shutdown), serving }
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
        SwitchClient::connect(format!("http://{}", self.address)).await.unwrap()
    }

    /// A controller that has said nothing yet.
    pub async fn controller(&self) -> Controller {
        let mut client = self.client().await;
        let (say, said) = mpsc::channel(1024);
        let heard = client.stream_channel(ReceiverStream::new(said)).await.unwrap().into_inner();
        Controller { client, say, heard, role: String::new(), election_id: None }
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

/// A controller: its stream and its unary calls.
pub struct Controller {
    pub client: P4RuntimeClient<Channel>,
    pub say: mpsc::Sender<p4::StreamMessageRequest>,
    pub heard: Streaming<p4::StreamMessageResponse>,
    pub role: String,
    pub election_id: Option<u64>,
}

pub fn uint128(id: Option<u64>) -> Option<p4::Uint128> {
    id.map(|low| p4::Uint128 { high: 0, low })
}

impl Controller {
    pub async fn say(&self, update: Say) {
        self.say.send(p4::StreamMessageRequest { update: Some(update) }).await.expect("the stream is open");
    }

    /// The next message, or how the stream ended.
    pub async fn hear(&mut self) -> Result<Heard, Status> {
        let next = tokio::time::timeout(PATIENCE, self.heard.message()).await;
        let message = next.expect("expected a message on the stream, none came")?;
        Ok(message
            .ok_or_else(|| Status::cancelled("the stream ended"))?
            .update
            .expect("a message has content"))
    }

    /// Checks that nothing comes.
    pub async fn silence(&mut self) {
        if let Ok(heard) = tokio::time::timeout(SILENCE, self.heard.message()).await {
            panic!("expected silence on the stream, heard {heard:?}");
        }
    }

    pub fn arbitration(&self, election_id: Option<u64>) -> p4::MasterArbitrationUpdate {
        p4::MasterArbitrationUpdate {
            device_id: DEVICE,
            role: (!self.role.is_empty())
                .then(|| p4::Role { name: self.role.clone(), ..p4::Role::default() }),
            election_id: uint128(election_id),
            status: None,
        }
    }

    /// Says an election id; the status and the id in the answer.
    pub async fn arbitrate(&mut self, election_id: Option<u64>) -> (Code, Option<u64>) {
        self.election_id = election_id;
        self.say(Say::Arbitration(self.arbitration(election_id))).await;
        self.hear_arbitration().await
    }

    pub async fn hear_arbitration(&mut self) -> (Code, Option<u64>) {
        match self.hear().await.unwrap() {
            Heard::Arbitration(a) => (Code::from(a.status.unwrap().code), a.election_id.map(|id| id.low)),
            other => panic!("expected an arbitration update, heard {other:?}"),
        }
    }

    pub fn request(&self, updates: Vec<p4::Update>) -> p4::WriteRequest {
        p4::WriteRequest {
            device_id: DEVICE,
            role: self.role.clone(),
            election_id: uint128(self.election_id),
            updates,
            ..p4::WriteRequest::default()
        }
    }

    pub async fn send(&mut self, request: p4::WriteRequest) -> Result<(), Status> {
        self.client.write(request).await.map(drop)
    }

    /// Writes one update; the code of its own error.
    pub async fn write(&mut self, r#type: Type, entity: impl Kind) -> Result<(), Code> {
        let request = self.request(vec![update(r#type, entity)]);
        match self.send(request).await {
            Ok(()) => Ok(()),
            Err(status) => {
                let codes = codes(&status);
                assert_eq!(codes.len(), 1, "one error for one update: {status:?}");
                Err(codes[0])
            }
        }
    }

    pub async fn insert(&mut self, entity: impl Kind) -> Result<(), Code> {
        self.write(Type::Insert, entity).await
    }

    pub async fn modify(&mut self, entity: impl Kind) -> Result<(), Code> {
        self.write(Type::Modify, entity).await
    }

    pub async fn delete(&mut self, entity: impl Kind) -> Result<(), Code> {
        self.write(Type::Delete, entity).await
    }

    /// Reads; all entities, and how the stream ended.
    pub async fn read_all(
        &mut self,
        entities: Vec<p4::entity::Entity>,
    ) -> (Vec<p4::entity::Entity>, Result<(), Status>) {
        let entities = entities.into_iter().map(|e| p4::Entity { entity: Some(e) }).collect();
        let request = p4::ReadRequest { device_id: DEVICE, role: String::new(), entities };
        let mut stream = match self.client.read(request).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => return (Vec::new(), Err(status)),
        };
        let mut found = Vec::new();
        loop {
            match stream.next().await {
                Some(Ok(response)) => found.extend(response.entities.into_iter().filter_map(|e| e.entity)),
                Some(Err(status)) => return (found, Err(status)),
                None => return (found, Ok(())),
            }
        }
    }

    /// Reads one request; the code of its own error.
    pub async fn read<E: Kind>(&mut self, request: E) -> Result<Vec<E>, Code> {
        let (found, end) = self.read_all(vec![request.wrap()]).await;
        end.map_err(|status| codes(&status).first().copied().unwrap_or(status.code()))?;
        Ok(found.into_iter().filter_map(|e| E::unwrap(e)).collect())
    }

    pub async fn set_pipeline(
        &mut self,
        action: PipelineAction,
        config: Option<p4::ForwardingPipelineConfig>,
    ) -> Result<(), Status> {
        let request = p4::SetForwardingPipelineConfigRequest {
            device_id: DEVICE,
            role: self.role.clone(),
            election_id: uint128(self.election_id),
            action: action as i32,
            config,
            ..p4::SetForwardingPipelineConfigRequest::default()
        };
        self.client.set_forwarding_pipeline_config(request).await.map(drop)
    }
}

pub fn update(r#type: Type, entity: impl Kind) -> p4::Update {
    p4::Update { r#type: r#type as i32, entity: Some(p4::Entity { entity: Some(entity.wrap()) }) }
}

/// The codes in the details of a batch's status, checked for their form; none if it has no details.
pub fn codes(status: &Status) -> Vec<Code> {
    let inner = rpc::Status::decode(status.details()).expect("the details are a google.rpc.Status");
    if inner.details.is_empty() {
        return Vec::new();
    }
    assert_eq!((status.code(), inner.code), (Code::Unknown, Code::Unknown as i32));
    assert_eq!(inner.message, status.message());
    let one = |any: &prost_types::Any| {
        assert_eq!(any.type_url, "type.googleapis.com/p4.v1.Error");
        Code::from(p4::Error::decode(&*any.value).unwrap().canonical_code)
    };
    inner.details.iter().map(one).collect()
}

/// Identifiers of the test program, by name.
pub struct Names {
    info: P4Info,
}

impl Names {
    pub fn new() -> Names {
        Names { info: p4info() }
    }

    pub fn id(&self, name: &str) -> u32 {
        let i = &self.info;
        let all = i
            .tables
            .iter()
            .map(|x| &x.preamble)
            .chain(i.actions.iter().map(|x| &x.preamble))
            .chain(i.action_profiles.iter().map(|x| &x.preamble))
            .chain(i.counters.iter().map(|x| &x.preamble))
            .chain(i.meters.iter().map(|x| &x.preamble))
            .chain(i.registers.iter().map(|x| &x.preamble))
            .chain(i.value_sets.iter().map(|x| &x.preamble))
            .chain(i.digests.iter().map(|x| &x.preamble));
        let found: Vec<u32> = all.flatten().filter(|p| p.alias == name).map(|p| p.id).collect();
        assert_eq!(found.len(), 1, "{name} in the P4Info");
        found[0]
    }

    pub fn action(&self, name: &str, params: &[&[u8]]) -> p4::Action {
        let param = |(value, id): (&&[u8], u32)| p4::action::Param { param_id: id, value: value.to_vec() };
        p4::Action { action_id: self.id(name), params: params.iter().zip(1..).map(param).collect() }
    }

    pub fn table_action(&self, name: &str, params: &[&[u8]]) -> Option<p4::TableAction> {
        let r#type = Some(p4::table_action::Type::Action(self.action(name, params)));
        Some(p4::TableAction { r#type })
    }

    /// An entry of a table without an action.
    pub fn key(&self, table: &str, r#match: Vec<p4::FieldMatch>) -> p4::TableEntry {
        p4::TableEntry { table_id: self.id(table), r#match, ..p4::TableEntry::default() }
    }

    pub fn entry(
        &self,
        table: &str,
        r#match: Vec<p4::FieldMatch>,
        action: &str,
        params: &[&[u8]],
    ) -> p4::TableEntry {
        p4::TableEntry { action: self.table_action(action, params), ..self.key(table, r#match) }
    }

    /// `l2`: destination MAC to a port.
    pub fn l2(&self, dst: u8, port: u8) -> p4::TableEntry {
        self.entry("l2", vec![exact(1, &[2, 0, 0, 0, 0, dst])], "forward", &[&[port]])
    }

    /// `routes`: a prefix to a port.
    pub fn route(&self, prefix: &[u8], len: i32, port: u8) -> p4::TableEntry {
        self.entry("routes", vec![lpm(1, prefix, len)], "forward", &[&[port]])
    }
}

pub fn exact(field_id: u32, value: &[u8]) -> p4::FieldMatch {
    let exact = p4::field_match::Exact { value: value.to_vec() };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Exact(exact)) }
}

pub fn lpm(field_id: u32, value: &[u8], prefix_len: i32) -> p4::FieldMatch {
    let lpm = p4::field_match::Lpm { value: value.to_vec(), prefix_len };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Lpm(lpm)) }
}

pub fn ternary(field_id: u32, value: &[u8], mask: &[u8]) -> p4::FieldMatch {
    let ternary = p4::field_match::Ternary { value: value.to_vec(), mask: mask.to_vec() };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Ternary(ternary)) }
}

pub fn optional(field_id: u32, value: &[u8]) -> p4::FieldMatch {
    let optional = p4::field_match::Optional { value: value.to_vec() };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Optional(optional)) }
}

pub fn range(field_id: u32, low: &[u8], high: &[u8]) -> p4::FieldMatch {
    let range = p4::field_match::Range { low: low.to_vec(), high: high.to_vec() };
    p4::FieldMatch { field_id, field_match_type: Some(p4::field_match::FieldMatchType::Range(range)) }
}

/// An Ethernet frame that no table knows: type 0x1234.
pub fn frame(dst: u8, src: u8) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, dst][..], &[2, 0, 0, 0, 1, src], &[0x12, 0x34], b"some payload, long enough"].concat()
}

/// An IPv4 packet.
pub fn ipv4(src: [u8; 4], dst: [u8; 4], ttl: u8) -> Vec<u8> {
    let mut f = frame(9, 9);
    f.truncate(12);
    f.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, ttl, 17, 0, 0]);
    f.extend(src);
    f.extend(dst);
    f.extend([0; 20]);
    f
}

/// A kind of entity, so that tests say `insert(entry)` and `read(entry)`.
pub trait Kind: Sized {
    fn wrap(self) -> p4::entity::Entity;
    fn unwrap(entity: p4::entity::Entity) -> Option<Self>;
}

macro_rules! kinds {
    ($($kind:ident),* $(,)?) => {$(
        impl Kind for p4::$kind {
            fn wrap(self) -> p4::entity::Entity {
                p4::entity::Entity::$kind(self)
            }
            fn unwrap(entity: p4::entity::Entity) -> Option<Self> {
                match entity {
                    p4::entity::Entity::$kind(kind) => Some(kind),
                    _ => None,
                }
            }
        }
    )*};
}

kinds!(
    ExternEntry,
    TableEntry,
    ActionProfileMember,
    ActionProfileGroup,
    MeterEntry,
    DirectMeterEntry,
    CounterEntry,
    DirectCounterEntry,
    PacketReplicationEngineEntry,
    ValueSetEntry,
    RegisterEntry,
    DigestEntry,
);
