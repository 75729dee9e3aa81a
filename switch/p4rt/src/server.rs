//! The server: its state, its requests, and its tasks and threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use rivulet_engine::{DigestSample, Pipeline, Switch};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::Status;
use tonic::service::Routes;

use crate::admission::{Bounded, Permits};
use crate::arbitration::{Arbiter, Peer, Primary, RoleKey, election_id};
use crate::config::Config;
pub use crate::counts::Totals;
pub(crate) use crate::counts::{Counts, count};
use crate::device::Device;
use crate::digest::Digests;
use crate::error::{UpdateError, batch_status, invalid};
use crate::idle::Idle;
use crate::index::Index;
use crate::listener::{self, Listener};
use crate::packet_io::PacketIns;
use crate::ports::Ports;
use crate::proto::p4::v1 as p4;
use crate::proto::rivulet::switch::v1::switch_server::SwitchServer;
use crate::switch_service::SwitchService;
use crate::tls::Tls;
use crate::translation::Snapshot;
use crate::write::action::watched_is_up;
use p4::entity::Entity;
use p4::set_forwarding_pipeline_config_request::Action;
use p4::stream_message_response::Update;

/// Interval of checks for idle entries.
const IDLE_SWEEP: Duration = Duration::from_millis(250);
/// Intervals of checks of watched ports, with a selector and without one.
const WATCH_NAP: Duration = Duration::from_millis(5);
const NO_WATCH_NAP: Duration = Duration::from_millis(50);
/// Longest sleep of the digest thread, which delays its end.
const DIGEST_NAP: Duration = Duration::from_millis(100);

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Device id; requests for other ids get NOT_FOUND. BMv2's default is 0.
    pub device_id: u64,
    /// Longest message accepted, in bytes. gRPC's default of 4 MiB is too small for the JSON of
    /// large programs.
    pub max_message_bytes: usize,
    /// Idle time of a connection before a keep-alive ping. Without an answer for the same time
    /// again, the connection is closed, and its primary is removed.
    pub keepalive: Duration,
    /// Time limit for a client to send a request, to take a message of a read, and to send the
    /// first arbitration update on a stream.
    pub patience: Duration,
    /// Certificate and key for TLS; `None`: without TLS.
    pub tls: Option<Tls>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let (max_message_bytes, keepalive) = (64 << 20, Duration::from_secs(10));
        let patience = Duration::from_secs(30);
        ServerConfig { device_id: 0, max_message_bytes, keepalive, patience, tls: None }
    }
}

/// Why [`Server::serve`] ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener or HTTP/2 failed.
    #[error("gRPC: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// A thread could not be started.
    #[error("starting a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The packet metadata headers of the forwarding pipeline; `None` before the first one.
#[derive(Default)]
pub(crate) struct PacketHeaders {
    /// Has the headers of packet-ins and packet-outs.
    pub index: Arc<Index>,
    /// Strings of translated types in packets and digests; empty tables for the others.
    pub names: Snapshot,
}

/// A P4Runtime server for one device. The crate's documentation describes its use.
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
}

/// State of all tasks. Lock in the order of the fields; a read holds no lock while it is sent.
pub(crate) struct Shared {
    pub config: ServerConfig,
    pub switch: Switch,
    pub ports: Arc<dyn Ports>,
    pub device: RwLock<Device>,
    /// Held during a write, so that a change of primary waits for it, but not while the write waits
    /// for the device.
    pub arbiter: Mutex<Arbiter>,
    pub digests: Mutex<Digests>,
    /// Copy of the arbiter's primaries, for tasks that must not wait for a write.
    pub primaries: RwLock<Arc<Vec<Primary>>>,
    pub headers: RwLock<Option<Arc<PacketHeaders>>>,
    pub next_stream: AtomicU64,
    pub permits: Permits,
    /// Number of writes to array cells.
    cell_writes: AtomicU64,
    pub counts: Counts,
    pub stopping: watch::Sender<bool>,
    /// Packet-ins that the packet path itself dropped.
    channel_lost: Mutex<Option<Arc<AtomicU64>>>,
    start: Instant,
}

/// Nanoseconds since the Unix epoch, for timestamps in messages.
pub(crate) fn epoch_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether an entity is about array cells, which are read one by one.
fn is_cell(entity: &Entity) -> bool {
    matches!(entity, Entity::CounterEntry(_) | Entity::MeterEntry(_) | Entity::RegisterEntry(_))
}

impl Server {
    /// Creates a server for that switch. It does nothing before [`serve`](Self::serve).
    pub fn new(config: ServerConfig, switch: Switch, ports: Arc<dyn Ports>) -> Server {
        let shared = Shared {
            switch,
            ports,
            device: RwLock::default(),
            arbiter: Mutex::new(Arbiter::new(config.device_id)),
            digests: Mutex::default(),
            primaries: RwLock::default(),
            headers: RwLock::default(),
            next_stream: AtomicU64::new(1),
            permits: Permits::default(),
            cell_writes: AtomicU64::new(0),
            counts: Counts::default(),
            stopping: watch::Sender::new(false),
            channel_lost: Mutex::default(),
            start: Instant::now(),
            config,
        };
        Server { shared: Arc::new(shared) }
    }

    /// Sets and commits a pipeline like a controller's VERIFY_AND_COMMIT without a cookie. `p4info`
    /// is in text or binary form, `device_config` is the JSON.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the place; the previous pipeline stays.
    pub fn install(&self, p4info: &[u8], device_config: Vec<u8>) -> Result<(), UpdateError> {
        let p4info = crate::p4info::parse(p4info)?;
        let stored = p4::ForwardingPipelineConfig {
            p4info: Some(p4info),
            p4_device_config: device_config,
            cookie: None,
        };
        let new = Config::load(stored)?;
        let mut device = self.shared.device.write();
        device.apply(Action::VerifyAndCommit, new, &self.shared.switch, &*self.shared.ports)?;
        self.shared.committed(&device);
        Ok(())
    }

    /// The totals.
    pub fn totals(&self) -> Totals {
        let c = &self.shared.counts;
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        Totals {
            packet_ins: get(&c.packet_ins),
            packet_ins_lost: get(&c.packet_ins_lost)
                + self.shared.channel_lost.lock().as_deref().map_or(0, get),
            packet_outs: get(&c.packet_outs),
            packet_outs_lost: get(&c.packet_outs_lost),
            digest_lists: get(&c.digest_lists),
            updates: get(&c.updates),
            batches_failed: get(&c.batches_failed),
        }
    }

    /// Serves until `shutdown` completes, then ends the streams, waits for running requests and
    /// returns. `packet_ins` and `digests` are the receiving ends of the packet path's channels.
    /// The service for ports, links and traces is only served on `control`, because its clients can
    /// operate the machine.
    ///
    /// # Errors
    /// If the listener fails or a thread cannot be started.
    pub async fn serve(
        &self,
        listener: impl Into<Listener>,
        control: Option<Listener>,
        packet_ins: PacketIns,
        digests: Receiver<DigestSample>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        let shared = &self.shared;
        let listener = listener.into();
        tracing::info!(?listener, ?control, device_id = shared.config.device_id, "P4Runtime is served");
        let digest_thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("p4rt-digests".into())
                .spawn(move || shared.run_digests(&digests))?
        };
        let watch_thread = {
            let shared = shared.clone();
            std::thread::Builder::new().name("p4rt-ports".into()).spawn(move || shared.run_watch())?
        };
        let packets = tokio::spawn(shared.clone().run_packet_ins(packet_ins));
        let idle = tokio::spawn(shared.clone().run_idle());
        let p4runtime = Routes::new(Bounded::new(shared.clone()));
        let switch = Routes::new(SwitchServer::new(SwitchService { shared: shared.clone() }));
        let served = async {
            let controlled = async {
                match control {
                    Some(control) => listener::run(shared.clone(), control, switch, false).await,
                    None => Ok(()),
                }
            };
            tokio::try_join!(listener::run(shared.clone(), listener, p4runtime, true), controlled).map(drop)
        };
        let ended = async {
            shutdown.await;
            // Streams now end themselves, and the transport waits for them.
            shared.stopping.send_replace(true);
            std::future::pending().await
        };
        let result = tokio::select! {
            result = served => result,
            never = ended => never,
        };
        shared.stopping.send_replace(true);
        packets.abort();
        idle.abort();
        // Joining takes at most one sleep of the threads.
        let joined = tokio::task::spawn_blocking(move || (digest_thread.join(), watch_thread.join())).await;
        if !matches!(joined, Ok((Ok(()), Ok(())))) {
            tracing::error!("a thread of the server panicked");
        }
        Ok(result?)
    }

    /// As [`serve`](Self::serve), on an address to bind.
    ///
    /// # Errors
    /// If the address cannot be bound, and as [`serve`](Self::serve).
    pub async fn bind_and_serve(
        &self,
        address: SocketAddr,
        packet_ins: PacketIns,
        digests: Receiver<DigestSample>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        self.serve(TcpListener::bind(address).await?, None, packet_ins, digests, shutdown).await
    }
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Updates what depends on the forwarding pipeline after a commit.
    fn committed(&self, device: &Device) {
        let Some(config) = &device.forwarding else { return };
        self.digests.lock().configure(config);
        self.publish(config, config.message_names());
    }

    /// Gives packets and digests the headers and strings of the forwarding pipeline.
    fn publish(&self, config: &Config, names: Snapshot) {
        self.digests.lock().set_names(names.clone());
        *self.headers.write() = Some(Arc::new(PacketHeaders { index: config.index.clone(), names }));
    }

    /// Gives packets and digests the strings of the forwarding pipeline, if a write changed them.
    fn follow_names(&self, config: &Config) {
        let names = config.message_names();
        let is_changed = self.headers.read().as_ref().is_some_and(|headers| !names.is_same(&headers.names));
        if is_changed {
            self.publish(config, names);
        }
    }

    /// Checks a request's device id: NOT_FOUND for another.
    pub fn check_device(&self, device_id: u64) -> Result<(), Status> {
        if device_id == self.config.device_id {
            return Ok(());
        }
        Err(Status::not_found(format!("no device with id {device_id}, this is {}", self.config.device_id)))
    }

    /// `Write`.
    #[allow(deprecated)]
    pub fn write(&self, request: &p4::WriteRequest) -> Result<(), Status> {
        self.check_device(request.device_id)?;
        let role = RoleKey::new(&request.role, request.role_id);
        let mut device = self.device.write();
        let arbiter = self.arbiter.lock();
        arbiter.check(&role, election_id(request.election_id.as_ref()))?;
        let config = device.current_mut()?;
        if request.updates.iter().filter_map(|u| u.entity.as_ref()?.entity.as_ref()).any(is_cell) {
            self.cell_writes.fetch_add(1, Ordering::SeqCst);
        }
        let result = config.batch(request, &*self.ports);
        self.counts.updates.fetch_add(request.updates.len() as u64, Ordering::Relaxed);
        if result.is_err() {
            count(&self.counts.batches_failed);
        }
        let is_digest = |u: &p4::Update| {
            matches!(u.entity.as_ref().and_then(|e| e.entity.as_ref()), Some(Entity::DigestEntry(_)))
        };
        if device.saved.is_none()
            && let Some(config) = device.forwarding.as_ref().filter(|c| !c.names.0.is_empty())
        {
            self.follow_names(config);
        }
        if device.saved.is_none()
            && let Some(config) = &device.forwarding
            && request.updates.iter().any(is_digest)
        {
            self.digests.lock().configure(config);
        }
        result
    }

    /// `Read`: passes each entity to `give`, whose error ends the read. State that only controllers
    /// write is that of one moment. Array cells, which packets write too, are read one by one, and
    /// the read ends with ABORTED if a controller writes one meanwhile. `secrets`: whether to show
    /// secret parameters.
    ///
    /// # Errors
    /// UNKNOWN with an error for each request, after all entities found; or the reason why the read
    /// ended early.
    pub fn read(
        &self,
        request: &p4::ReadRequest,
        secrets: bool,
        give: &mut dyn FnMut(p4::Entity) -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.check_device(request.device_id)?;
        let device = self.device.read();
        let config = device.current()?.clone();
        let cell_writes = self.cell_writes.load(Ordering::SeqCst);
        let mut all = Vec::with_capacity(request.entities.len());
        let mut results = Vec::with_capacity(request.entities.len());
        for entity in &request.entities {
            let entity = entity.entity.as_ref().ok_or_else(|| invalid("the entity is not set"));
            match entity.and_then(|e| Ok((is_cell(e), config.read(e)?))) {
                Ok(found) => {
                    all.push(found);
                    results.push(Ok(()));
                }
                Err(error) => results.push(Err(error)),
            }
        }
        drop(device);
        for (cells, found) in all {
            for mut entity in found {
                if cells && self.cell_writes.load(Ordering::SeqCst) != cell_writes {
                    return Err(Status::aborted(
                        "a controller wrote to cells while they were read: read again",
                    ));
                }
                if !secrets {
                    config.index.hide_secrets(&mut entity);
                }
                give(entity)?;
            }
        }
        batch_status("requests", &results)
    }

    /// `SetForwardingPipelineConfig`.
    #[allow(deprecated)]
    pub fn set_pipeline(&self, request: p4::SetForwardingPipelineConfigRequest) -> Result<(), Status> {
        self.check_device(request.device_id)?;
        let role = RoleKey::new(&request.role, request.role_id);
        let id = election_id(request.election_id.as_ref());
        self.arbiter.lock().check(&role, id)?;
        let action = match Action::try_from(request.action) {
            Ok(Action::Unspecified) | Err(_) => {
                return Err(Status::invalid_argument("the request has no action"));
            }
            Ok(action) => action,
        };
        let new = match (action, request.config) {
            (Action::Commit, Some(_)) => return Err(Status::invalid_argument("COMMIT takes no config")),
            (Action::Commit, None) => None,
            (_, None) => return Err(Status::invalid_argument("the request has no config")),
            // Compile without a lock, so that writes, reads and arbitration continue meanwhile.
            (_, Some(config)) => Some(Config::load(config)?),
        };
        let mut device = self.device.write();
        let arbiter = self.arbiter.lock();
        arbiter.check(&role, id)?;
        match new {
            Some(new) => device.apply(action, new, &self.switch, &*self.ports)?,
            None => device.commit(&self.switch)?,
        }
        if matches!(action, Action::VerifyAndCommit | Action::Commit | Action::ReconcileAndCommit) {
            self.committed(&device);
            tracing::info!(?action, "a pipeline was committed");
        }
        Ok(())
    }

    /// `GetForwardingPipelineConfig`.
    pub fn get_pipeline(
        &self,
        request: &p4::GetForwardingPipelineConfigRequest,
    ) -> Result<Option<p4::ForwardingPipelineConfig>, Status> {
        use p4::get_forwarding_pipeline_config_request::ResponseType;
        self.check_device(request.device_id)?;
        let r#type = ResponseType::try_from(request.response_type).map_err(|_| {
            Status::invalid_argument(format!("unknown response type {}", request.response_type))
        })?;
        let Ok(stored) = self.device.read().current().map(|config| config.stored.clone()) else {
            return Ok(None);
        };
        let with_info = matches!(r#type, ResponseType::All | ResponseType::P4infoAndCookie);
        let with_device = matches!(r#type, ResponseType::All | ResponseType::DeviceConfigAndCookie);
        Ok(Some(p4::ForwardingPipelineConfig {
            p4info: stored.p4info.clone().filter(|_| with_info),
            p4_device_config: if with_device { stored.p4_device_config.clone() } else { Vec::new() },
            cookie: stored.cookie,
        }))
    }

    /// Handles a stream's `MasterArbitrationUpdate`.
    pub fn arbitrate(
        &self,
        peer: &Peer,
        known: Option<&RoleKey>,
        message: &p4::MasterArbitrationUpdate,
    ) -> Result<RoleKey, Status> {
        let mut arbiter = self.arbiter.lock();
        let result = arbiter.update(peer, known, message);
        self.follow_primaries(&arbiter);
        result
    }

    /// Handles the end of a stream.
    pub fn leave(&self, role: &RoleKey, stream: u64) {
        let mut arbiter = self.arbiter.lock();
        arbiter.disconnect(role, stream);
        self.follow_primaries(&arbiter);
    }

    fn follow_primaries(&self, arbiter: &Arbiter) {
        let now = arbiter.primaries();
        let before = std::mem::replace(&mut *self.primaries.write(), Arc::new(now.clone()));
        let was = |now: &Primary| before.iter().any(|b| b.peer.stream == now.peer.stream);
        if !now.iter().all(was) {
            self.digests.lock().new_primary();
        }
    }

    /// Whether a stream is a primary's.
    pub fn is_primary(&self, stream: u64) -> bool {
        self.primaries.read().iter().any(|p| p.peer.stream == stream)
    }

    /// Whether this connection carries the stream of the default role's primary. A read request
    /// does not identify its controller, and other roles can be claimed by any client.
    pub fn is_primary_connection(&self, connection: u64) -> bool {
        self.primaries.read().iter().any(|p| p.default_role && p.peer.connection == connection)
    }

    /// Sends an update to all primaries; returns false if there is none, or none had room.
    fn tell(&self, update: &Update) -> bool {
        let primaries = self.primaries.read().clone();
        primaries.iter().filter(|p| p.peer.outbox.data(update.clone())).count() > 0
    }

    fn run_digests(&self, samples: &Receiver<DigestSample>) {
        while !*self.stopping.borrow() {
            let now = self.now();
            let deadline = self.digests.lock().deadline();
            let nap =
                deadline.map_or(DIGEST_NAP, |d| Duration::from_nanos(d.saturating_sub(now)).min(DIGEST_NAP));
            let lists = match samples.recv_timeout(nap) {
                Ok(sample) => self.digests.lock().sample(self.now(), &sample).into_iter().collect(),
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => {
                    std::thread::sleep(nap);
                    Vec::new()
                }
            };
            let due = self.digests.lock().due(self.now());
            for list in lists.into_iter().chain(due) {
                count(&self.counts.digest_lists);
                self.tell(&Update::Digest(list));
            }
        }
    }

    /// Excludes members from selection while their watched port is down.
    fn run_watch(&self) {
        while !*self.stopping.borrow() {
            let pipeline = self.switch.forwarding();
            let selects = |p: &Pipeline| p.info().profiles.iter().any(|p| p.has_selector);
            let Some(pipeline) = pipeline.filter(selects) else {
                std::thread::sleep(NO_WATCH_NAP);
                continue;
            };
            // If the packet path is busy, it is tried again later.
            let _ = pipeline.follow_liveness(|watch| watched_is_up(watch, &*self.ports));
            std::thread::sleep(WATCH_NAP);
        }
    }

    async fn run_packet_ins(self: Arc<Self>, mut packets: PacketIns) {
        *self.channel_lost.lock() = Some(packets.dropped.clone());
        while let Some(frame) = packets.receiver.recv().await {
            let headers = self.headers.read().clone();
            let packet = headers.and_then(|h| h.index.packet_in.packet_in(&frame, &h.names));
            let sent = packet.is_some_and(|p| self.tell(&Update::Packet(p)));
            count(if sent { &self.counts.packet_ins } else { &self.counts.packet_ins_lost });
        }
    }

    async fn run_idle(self: Arc<Self>) {
        let mut sweep = tokio::time::interval(IDLE_SWEEP);
        sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let idle = Arc::new(Mutex::new(Idle::default()));
        loop {
            sweep.tick().await;
            let (shared, idle) = (self.clone(), idle.clone());
            let swept = tokio::task::spawn_blocking(move || {
                let device = shared.device.read();
                let found = device.forwarding.as_ref().map(|c| idle.lock().sweep(c, shared.now()));
                drop(device);
                for notification in found.into_iter().flatten() {
                    shared.tell(&Update::IdleTimeoutNotification(notification));
                }
            });
            if swept.await.is_err() {
                tracing::error!("looking for idle entries panicked");
            }
        }
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
