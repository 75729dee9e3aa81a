//! The agent as a process of its own: one stream to the controllers, and a Unix socket for the serving
//! processes of this host, with the same protocol on both.
//!
//! The newest serving process speaks for the replica: its hello and its reports go on to the controller.
//! Updates go to all of them. Nothing here is on the packet path, and heartbeats do not come from here while
//! a serving process is attached.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
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
use crate::proto::{AgentMessage, ControllerMessage, Hello, Report, TrodsStatus, Update};
use crate::{AgentError, keep, upstream};

/// A serving process says who it is within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Serving processes at the same time.
const MAX_SPEAKERS: usize = 16;
/// Longest message of a serving process, octets.
const MAX_MESSAGE: usize = 64 << 10;

/// How an agent is opened.
#[derive(Clone, Debug)]
pub struct DoorConfig {
    /// Name of this replica in the controller's configuration.
    pub name: String,
    /// Where controllers are.
    pub controllers: Controllers,
    /// Ethernet address of the interface towards the ToR.
    pub mac: [u8; 6],
    /// What heartbeats of this process carry.
    pub incarnation: u32,
    /// Path of the socket for serving processes.
    pub socket: PathBuf,
    /// The user, besides root and our own, who may open it; it becomes his.
    pub owner: Option<u32>,
    /// Keep the last update in this file.
    pub keep: Option<PathBuf>,
}

/// Why an agent cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// The socket.
    #[error("{0}: {1}")]
    Socket(PathBuf, #[source] io::Error),
    /// The file with the last update.
    #[error("{0}: {1}")]
    Keep(PathBuf, #[source] io::Error),
    /// No thread or runtime.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// An agent that runs; its threads end with the process.
pub struct Door {
    /// Version and services of each update, checked, for whoever sends heartbeats in place of a serving process.
    pub updates: mpsc::Receiver<(u64, Vec<Service>)>,
    shared: Arc<Shared>,
    socket: PathBuf,
}

/// A serving process.
struct Speaker {
    id: u64,
    hello: Hello,
    report: Option<Report>,
}

/// What is said while no serving process is attached.
struct Own {
    hello: Hello,
    status: Option<Status>,
    /// Version of the update that is held.
    held: u64,
    /// What is not served of it.
    refused: Refusal,
}

struct Shared {
    name: String,
    owner: Option<u32>,
    update: watch::Sender<Option<Update>>,
    hello: watch::Sender<Hello>,
    report: watch::Sender<Report>,
    speakers: Mutex<Vec<Speaker>>,
    own: Mutex<Own>,
}

impl Shared {
    /// Says to the controllers what is now to be said.
    fn retell(&self) {
        let own = self.own.lock();
        let speakers = self.speakers.lock();
        let (hello, mut report) = match speakers.last() {
            Some(speaker) => {
                let silent = || Report {
                    reason: "the serving process has not reported yet".into(),
                    ..Report::default()
                };
                (speaker.hello.clone(), speaker.report.clone().unwrap_or_else(silent))
            }
            None => {
                let mut report = own.status.as_ref().map_or_else(
                    || Report { reason: "no serving process is attached".into(), ..Report::default() },
                    Report::from,
                );
                // Held is as good as in force: whoever attaches has it before his first packet.
                report.version_in_force = own.held;
                (own.hello.clone(), report)
            }
        };
        own.refused.add_to(&mut report);
        // Plain TCP of nginx is this process's, whoever else serves.
        report.trods = own.status.as_ref().and_then(|status| status.trods.as_ref()).map(TrodsStatus::from);
        let set = |now: &mut Hello| std::mem::replace(now, hello.clone()) != hello;
        self.hello.send_if_modified(set);
        self.report.send_if_modified(|now| {
            let told = urgent(now) == urgent(&report);
            *now = report;
            !told
        });
    }

    /// Takes up what can be of an update; false if nobody holds the other end any more.
    fn take(&self, update: Update, keep: Option<&PathBuf>, to: &mpsc::Sender<(u64, Vec<Service>)>) -> bool {
        let version = update.version;
        let accepted = crate::services(&update);
        let (refused, services) = (Refusal::of(&accepted, version), accepted.services);
        tracing::info!(version, services = services.len(), "update");
        if let Some(path) = keep
            && let Err(e) = keep::save(path, &update)
        {
            tracing::warn!(path = %path.display(), error = %e, "the update is not kept");
        }
        {
            let mut own = self.own.lock();
            own.held = version;
            own.refused = refused;
        }
        self.update.send_replace(Some(update));
        self.retell();
        to.send((version, services)).is_ok()
    }
}

impl Door {
    /// Listens and registers from now on, both for good.
    pub fn open(config: DoorConfig) -> Result<Door, DoorError> {
        let kept = match &config.keep {
            Some(path) => keep::load(path).map_err(|e| DoorError::Keep(path.clone(), e))?,
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
            speakers: Mutex::default(),
            own: Mutex::new(Own { hello: own, status: None, held: 0, refused: Refusal::default() }),
        });
        let (to, updates) = mpsc::channel();
        if let Some(kept) = kept {
            tracing::info!(version = kept.version, "going on with the update that was kept");
            shared.take(kept, None, &to);
        }
        shared.retell();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AgentError::Start)?;
        let at = |e| DoorError::Socket(config.socket.clone(), e);
        let listener = {
            let _inside = runtime.enter();
            listen(&config.socket, config.owner).map_err(at)?
        };
        let of_thread = shared.clone();
        let (controllers, kept) = (config.controllers, config.keep);
        let work = async move {
            let of_door = of_thread.clone();
            let service = AgentsServer::new(Entrance(of_door)).max_decoding_message_size(MAX_MESSAGE);
            let served = tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(UnixListenerStream::new(listener));
            let upstream =
                upstream::keep(&controllers, hello, report, |u| of_thread.take(u, kept.as_ref(), &to));
            tokio::select! {
                result = served => if let Err(e) = result {
                    tracing::error!(error = %e, "the socket for serving processes");
                },
                () = upstream => {}
            }
        };
        let spawned = std::thread::Builder::new().name("agent".into()).spawn(move || runtime.block_on(work));
        spawned.map_err(AgentError::Start)?;
        Ok(Door { updates, shared, socket: config.socket })
    }

    /// Sets what is reported while no serving process is attached.
    pub fn set_status(&self, status: Status) {
        self.shared.own.lock().status = Some(status);
        self.shared.retell();
    }

    /// Heartbeats of plain TCP come from this Ethernet address from now on.
    pub fn set_mac(&self, mac: [u8; 6]) {
        self.shared.own.lock().hello.mac = mac.to_vec();
        self.shared.retell();
    }

    /// Serving processes that are attached: heartbeats are theirs.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.shared.speakers.lock().len()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// Binds the socket, for its owner alone. One that nobody listens at any more is taken away first.
fn listen(path: &PathBuf, owner: Option<u32>) -> io::Result<UnixListener> {
    if let Ok(meta) = fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "something else stands there"));
        }
        match UnixStream::connect(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
            Err(e) => return Err(e),
            Ok(_) => return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens there")),
        }
    }
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let listener = UnixListener::bind(path)?;
    // Whoever comes in between is asked for his user when he speaks.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    if owner.is_some() {
        std::os::unix::fs::chown(path, owner, None)?;
    }
    Ok(listener)
}

struct Entrance(Arc<Shared>);

impl Entrance {
    fn may_enter(&self, uid: Option<u32>) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        uid.is_some_and(|uid| uid == 0 || uid == ours || Some(uid) == self.0.owner)
    }
}

#[tonic::async_trait]
impl Agents for Entrance {
    type RegisterStream = ReceiverStream<Result<ControllerMessage, tonic::Status>>;

    async fn register(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Self::RegisterStream>, tonic::Status> {
        let credentials = request.extensions().get::<UdsConnectInfo>().and_then(|i| i.peer_cred);
        if !self.may_enter(credentials.map(|c| c.uid())) {
            tracing::warn!(uid = credentials.map(|c| c.uid()), "a process of another user wants keys");
            return Err(tonic::Status::permission_denied("this agent serves another user"));
        }
        let mut incoming = request.into_inner();
        let first = tokio::time::timeout(PATIENCE, incoming.message()).await;
        let Ok(Ok(Some(AgentMessage { message: Some(FromAgent::Hello(hello)) }))) = first else {
            return Err(tonic::Status::invalid_argument("the first message must be `hello`"));
        };
        let shared = self.0.clone();
        if hello.name != shared.name {
            let text = format!("this is the agent of replica {:?}, not of {:?}", shared.name, hello.name);
            return Err(tonic::Status::not_found(text));
        }
        if hello.mac.len() != 6 {
            return Err(tonic::Status::invalid_argument("`mac` is not 6 octets"));
        }
        let id = {
            let mut speakers = shared.speakers.lock();
            if speakers.len() >= MAX_SPEAKERS {
                return Err(tonic::Status::resource_exhausted("too many serving processes"));
            }
            let id = speakers.iter().map(|s| s.id + 1).max().unwrap_or(0);
            speakers.push(Speaker { id, hello, report: None });
            id
        };
        tracing::info!(pid = credentials.and_then(|c| c.pid()), "a serving process is attached");
        let (to, outgoing) = tokio::sync::mpsc::channel(4);
        tokio::spawn(async move {
            shared.retell();
            attend(&shared, id, &mut incoming, &to).await;
            shared.speakers.lock().retain(|s| s.id != id);
            tracing::info!("a serving process is gone");
            shared.retell();
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }
}

/// One serving process, until it is gone.
async fn attend(
    shared: &Shared,
    id: u64,
    incoming: &mut Streaming<AgentMessage>,
    to: &tokio::sync::mpsc::Sender<Result<ControllerMessage, tonic::Status>>,
) {
    let mut update = shared.update.subscribe();
    update.mark_changed();
    loop {
        tokio::select! {
            message = incoming.message() => match message {
                Ok(Some(AgentMessage { message: Some(FromAgent::Report(report)) })) => {
                    if let Some(speaker) = shared.speakers.lock().iter_mut().find(|s| s.id == id) {
                        speaker.report = Some(report);
                    }
                    shared.retell();
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
                    let message = ControllerMessage { message: Some(FromController::Update(next)) };
                    if to.send(Ok(message)).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
