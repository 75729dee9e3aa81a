//! The agent as a separate process. It holds one stream to the controllers and relays the same
//! protocol over a Unix socket to the serving processes of this host.
//!
//! The newest serving process represents the replica: its hello and its reports go to the
//! controller, and all serving processes get the updates. The agent is not on the packet path, and
//! sends no heartbeats while a serving process is attached.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_private_file::{SocketType, listen_at};
use rivulet_server::service::Service;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Response, Streaming};

use crate::address::Controllers;
use crate::agent::{Refusal, Status, hello, urgent};
use crate::proto::agent_message::Message as FromAgent;
use crate::proto::agents_server::{Agents, AgentsServer};
use crate::proto::controller_message::Message as FromController;
use crate::proto::{AgentMessage, ControllerMessage, Hello, Report, TlsStatus, TrodsStatus, Update};
use crate::{AgentError, keep, terminator, upstream};

/// Timeout of a serving process's hello.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest number of serving processes at the same time.
const MAX_SERVING_PROCESSES: usize = 16;
/// Longest message of a serving process in bytes.
const MAX_MESSAGE: usize = 64 << 10;

/// Settings of an agent process.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Name of this replica in the controller's configuration.
    pub name: String,
    /// The controllers.
    pub controllers: Controllers,
    /// Ethernet address of the interface to the ToR.
    pub mac: [u8; 6],
    /// Incarnation in the heartbeats of this process.
    pub incarnation: u32,
    /// Path of the socket for serving processes.
    pub socket: PathBuf,
    /// Owner of the socket. Besides root and the agent's own user, only this user may connect.
    pub owner: Option<u32>,
    /// File that keeps the last update.
    pub keep: Option<PathBuf>,
}

/// Why an agent process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The socket failed.
    #[error("{0}: {1}")]
    Socket(PathBuf, #[source] io::Error),
    /// The file of the last update failed.
    #[error("{0}: {1}")]
    Keep(PathBuf, #[source] io::Error),
    /// No thread or runtime could be started.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// A running agent process; its threads run until the process ends.
pub struct Relay {
    /// Version and services of each checked update, for the heartbeats sent while no serving
    /// process is attached.
    pub updates: mpsc::Receiver<(u64, Vec<Service>)>,
    shared: Arc<Shared>,
    socket: PathBuf,
}

/// An attached serving process, or TLS terminator.
struct ServingProcess {
    id: u64,
    hello: Hello,
    report: Option<Report>,
}

/// The agent's own identity and status, reported while no serving process is attached.
struct Own {
    hello: Hello,
    status: Option<Status>,
    /// Version of the update in `Shared::update`.
    held: u64,
    /// Services of that update that are not served.
    refused: Refusal,
}

struct Shared {
    name: String,
    owner: Option<u32>,
    update: watch::Sender<Option<Update>>,
    hello: watch::Sender<Hello>,
    report: watch::Sender<Report>,
    serving: Mutex<Vec<ServingProcess>>,
    terminators: Mutex<Vec<ServingProcess>>,
    own: Mutex<Own>,
}

impl Shared {
    fn attached(&self, are_terminators: bool) -> &Mutex<Vec<ServingProcess>> {
        if are_terminators { &self.terminators } else { &self.serving }
    }

    /// Publishes the current hello and report to the controllers.
    fn publish(&self) {
        let own = self.own.lock();
        let serving = self.serving.lock();
        let (hello, mut report) = match serving.last() {
            Some(process) => {
                let silent = || Report {
                    reason: "the serving process has not reported yet".into(),
                    ..Report::default()
                };
                (process.hello.clone(), process.report.clone().unwrap_or_else(silent))
            }
            None => {
                let mut report = own.status.as_ref().map_or_else(
                    || Report { reason: "no serving process is attached".into(), ..Report::default() },
                    Report::from,
                );
                // The update counts as in force: a serving process that attaches gets it before its
                // first packet.
                report.version_in_force = own.held;
                (own.hello.clone(), report)
            }
        };
        own.refused.add_to(&mut report);
        // Plain TCP of a local web server belongs to this process, whichever process serves
        // Rivulet.
        report.trods = own.status.as_ref().and_then(|status| status.trods.as_ref()).map(TrodsStatus::from);
        {
            let (update, terminators) = (self.update.borrow(), self.terminators.lock());
            let reports: Vec<&[TlsStatus]> =
                terminators.iter().filter_map(|t| t.report.as_ref()).map(|r| &r.tls[..]).collect();
            report.tls = terminator::statuses(update.as_ref(), own.refused.services(), &reports);
            // Why its address refuses connections, for example.
            if !report.ready
                && let Some(why) = terminator::trouble(update.as_ref(), &report.tls)
            {
                report.reason = why;
            }
        }
        let set = |now: &mut Hello| std::mem::replace(now, hello.clone()) != hello;
        self.hello.send_if_modified(set);
        self.report.send_if_modified(|now| {
            let told = urgent(now) == urgent(&report);
            *now = report;
            !told
        });
    }

    /// Applies the accepted part of an update; returns false when the receiver was dropped.
    fn take(&self, update: Update, keep: Option<&PathBuf>, to: &mpsc::Sender<(u64, Vec<Service>)>) -> bool {
        let version = update.version;
        let accepted = crate::services(&update);
        let (refused, services) = (Refusal::of(&accepted, version), accepted.services);
        tracing::info!(version, services = services.len(), "update");
        if let Some(path) = keep
            && let Err(e) = keep::save(path, &update)
        {
            tracing::warn!(path = %path.display(), error = %e, "cannot save the update");
        }
        {
            let mut own = self.own.lock();
            own.held = version;
            own.refused = refused;
        }
        self.update.send_replace(Some(update));
        self.publish();
        to.send((version, services)).is_ok()
    }
}

impl Relay {
    /// Starts to listen and to register.
    pub fn open(config: RelayConfig) -> Result<Relay, RelayError> {
        let kept = match &config.keep {
            Some(path) => keep::load(path).map_err(|e| RelayError::Keep(path.clone(), e))?,
            None => None,
        };
        let own = hello(&config.name, config.incarnation, config.mac);
        let (update, _) = watch::channel(None);
        let (said, hello) = watch::channel(own.clone());
        let (told, report) = watch::channel(Report::default());
        let shared = Arc::new(Shared {
            name: config.name,
            owner: config.owner,
            update,
            hello: said,
            report: told,
            serving: Mutex::default(),
            terminators: Mutex::default(),
            own: Mutex::new(Own { hello: own, status: None, held: 0, refused: Refusal::default() }),
        });
        let (to, updates) = mpsc::channel();
        if let Some(kept) = kept {
            tracing::info!(version = kept.version, "starting with the saved update");
            shared.take(kept, None, &to);
        }
        shared.publish();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Start)?;
        let at = |e| RelayError::Socket(config.socket.clone(), e);
        let listener = {
            let _inside = runtime.enter();
            listen(&config.socket, config.owner).map_err(at)?
        };
        let of_thread = shared.clone();
        let (controllers, kept) = (config.controllers, config.keep);
        let work = async move {
            let of_server = of_thread.clone();
            let service = AgentsServer::new(SocketServer(of_server)).max_decoding_message_size(MAX_MESSAGE);
            let served = tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(UnixListenerStream::new(listener));
            let upstream =
                upstream::keep(&controllers, hello, report, |u| of_thread.take(u, kept.as_ref(), &to));
            tokio::select! {
                result = served => if let Err(e) = result {
                    tracing::error!(error = %e, "the socket for serving processes failed");
                },
                () = upstream => {}
            }
        };
        let spawned = std::thread::Builder::new().name("agent".into()).spawn(move || runtime.block_on(work));
        spawned.map_err(AgentError::Start)?;
        Ok(Relay { updates, shared, socket: config.socket })
    }

    /// Sets the status reported while no serving process is attached.
    pub fn set_status(&self, status: Status) {
        self.shared.own.lock().status = Some(status);
        self.shared.publish();
    }

    /// Sets the Ethernet address of the heartbeats for plain TCP.
    pub fn set_mac(&self, mac: [u8; 6]) {
        self.shared.own.lock().hello.mac = mac.to_vec();
        self.shared.publish();
    }

    /// Number of attached serving processes; while there are any, they send the heartbeats.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.shared.serving.lock().len()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// Binds the socket for its owner only, and first removes a socket without a listener.
fn listen(path: &PathBuf, owner: Option<u32>) -> io::Result<UnixListener> {
    if let Ok(meta) = fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
        }
        match UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
            Err(e) => return Err(e),
            Ok(_) => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens at this socket"));
            }
        }
    }
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let listener = std::os::unix::net::UnixListener::from(listen_at(path, SocketType::STREAM)?);
    listener.set_nonblocking(true)?;
    if owner.is_some() {
        std::os::unix::fs::chown(path, owner, None)?;
    }
    UnixListener::from_std(listener)
}

struct SocketServer(Arc<Shared>);

impl SocketServer {
    fn may_connect(&self, uid: Option<u32>) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        uid.is_some_and(|uid| uid == 0 || uid == ours || Some(uid) == self.0.owner)
    }
}

#[tonic::async_trait]
impl Agents for SocketServer {
    type RegisterStream = ReceiverStream<Result<ControllerMessage, tonic::Status>>;

    async fn register(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::RegisterStream>, tonic::Status> {
        let credentials = request.extensions().get::<UdsConnectInfo>().and_then(|i| i.peer_cred);
        if !self.may_connect(credentials.map(|c| c.uid())) {
            tracing::warn!(uid = credentials.map(|c| c.uid()), "refused keys to a process of another user");
            return Err(tonic::Status::permission_denied("this agent serves another user"));
        }
        let mut incoming = request.into_inner();
        let first = tokio::time::timeout(PATIENCE, incoming.message()).await;
        let Ok(Ok(Some(AgentMessage { message: Some(FromAgent::Hello(hello)) }))) = first else {
            return Err(tonic::Status::invalid_argument("the first message must be `hello`"));
        };
        let shared = self.0.clone();
        let is_terminator = hello.terminator;
        if !is_terminator && hello.name != shared.name {
            let text = format!("this is the agent of replica {:?}, not of {:?}", shared.name, hello.name);
            return Err(tonic::Status::not_found(text));
        }
        if !is_terminator && hello.mac.len() != 6 {
            return Err(tonic::Status::invalid_argument("`mac` is not 6 bytes"));
        }
        let id = {
            let mut serving = shared.attached(is_terminator).lock();
            if serving.len() >= MAX_SERVING_PROCESSES {
                return Err(tonic::Status::resource_exhausted("too many serving processes"));
            }
            let id = serving.iter().map(|s| s.id + 1).max().unwrap_or(0);
            serving.push(ServingProcess { id, hello, report: None });
            id
        };
        let what = if is_terminator { "a TLS terminator" } else { "a serving process" };
        tracing::info!(pid = credentials.and_then(|c| c.pid()), "{what} is attached");
        let (to, outgoing) = tokio::sync::mpsc::channel(4);
        tokio::spawn(async move {
            shared.publish();
            relay(&shared, (is_terminator, id), &mut incoming, &to).await;
            shared.attached(is_terminator).lock().retain(|s| s.id != id);
            tracing::info!("{what} disconnected");
            shared.publish();
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// Serves one serving process or terminator until it disconnects.
async fn relay(
    shared: &Shared,
    (is_terminator, id): (bool, u64),
    incoming: &mut Streaming<AgentMessage>,
    to: &tokio::sync::mpsc::Sender<Result<ControllerMessage, tonic::Status>>,
) {
    let mut update = shared.update.subscribe();
    update.mark_changed();
    loop {
        tokio::select! {
            message = incoming.message() => match message {
                Ok(Some(AgentMessage { message: Some(FromAgent::Report(report)) })) => {
                    if let Some(process) = shared.attached(is_terminator).lock().iter_mut().find(|s| s.id == id) {
                        process.report = Some(report);
                    }
                    shared.publish();
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return,
            },
            changed = update.changed() => {
                if changed.is_err() {
                    return;
                }
                let next = update.borrow_and_update().clone();
                if let Some(next) = next {
                    let next = match is_terminator {
                        true => terminator::part_for_terminators(&next, shared.own.lock().refused.services()),
                        false => next,
                    };
                    let message = ControllerMessage { message: Some(FromController::Update(next)) };
                    if to.send(Ok(message)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
