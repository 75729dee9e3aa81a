//! The stream to the controller, opened again whenever it ends.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use rivulet_server::service::Service;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use super::proto::agent_message::Message as FromAgent;
use super::proto::agents_client::AgentsClient;
use super::proto::controller_message::Message as FromController;
use super::proto::{AgentMessage, Hello, Report};

/// A report goes out at least this often.
const REPORT: Duration = Duration::from_millis(500);
/// Pause before the stream is opened again, doubled up to the second value.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Why the channel cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Not `unix:PATH` or `HOST:PORT`.
    #[error("{0:?} is not a controller's address: unix:PATH or HOST:PORT")]
    Address(String),
    /// No thread or runtime.
    #[error("the agent cannot start: {0}")]
    Start(#[from] std::io::Error),
}

/// What the packet path says of itself, for the next report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Version of the update in force.
    pub version: u64,
    /// The packet path is ready.
    pub ready: bool,
    /// Why not, in words.
    pub reason: String,
    /// Requests waiting.
    pub load: u32,
    /// Requests answered since the start.
    pub requests: u64,
    /// Requests refused since the start.
    pub refused: u64,
    /// What was wrong with the last update.
    pub error: String,
}

/// The running channel. Updates that were accepted arrive at the receiver; the thread ends with the
/// process.
#[derive(Debug)]
pub struct Agent {
    /// Version and services of each update, checked.
    pub updates: mpsc::Receiver<(u64, Vec<Service>)>,
    status: Arc<Mutex<Status>>,
}

/// Who speaks.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    name: String,
    incarnation: u16,
    mac: [u8; 6],
}

impl Agent {
    /// Registers at `controller` (`unix:PATH` or `HOST:PORT`) as `name`, for good.
    pub fn start(controller: &str, name: &str, incarnation: u16, mac: [u8; 6]) -> Result<Agent, AgentError> {
        let endpoint = endpoint(controller)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (sender, updates) = mpsc::channel();
        let status = Arc::new(Mutex::new(Status::default()));
        let of_thread = status.clone();
        let identity = Identity { name: name.to_owned(), incarnation, mac };
        std::thread::Builder::new()
            .name("agent".into())
            .spawn(move || runtime.block_on(keep(&endpoint, &identity, &sender, &of_thread)))?;
        Ok(Agent { updates, status })
    }

    /// Sets what the next report says.
    pub fn set_status(&self, status: Status) {
        let mut now = self.status.lock();
        let error = std::mem::take(&mut now.error);
        *now = Status { error: if status.error.is_empty() { error } else { status.error.clone() }, ..status };
    }
}

fn endpoint(controller: &str) -> Result<Endpoint, AgentError> {
    let bad = || AgentError::Address(controller.to_owned());
    let uri = match controller.strip_prefix("unix:") {
        Some(path) if path.starts_with('/') => format!("unix://{path}"),
        Some(_) => return Err(bad()),
        None if controller.rsplit_once(':').is_some() => format!("http://{controller}"),
        None => return Err(bad()),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|_| bad())?;
    Ok(endpoint.connect_timeout(Duration::from_secs(5)).http2_keep_alive_interval(Duration::from_secs(5)))
}

/// Opens the stream again and again. Ends when nobody takes updates any more.
async fn keep(
    endpoint: &Endpoint,
    identity: &Identity,
    updates: &mpsc::Sender<(u64, Vec<Service>)>,
    status: &Mutex<Status>,
) {
    let mut pause = RETRY.0;
    loop {
        match endpoint.connect().await {
            Ok(channel) => {
                pause = RETRY.0;
                match converse(channel, identity, updates, status).await {
                    Ok(true) => return,
                    Ok(false) => tracing::info!("the controller ended the stream"),
                    Err(e) => tracing::warn!(error = %e, "the controller's stream broke"),
                }
            }
            Err(e) => tracing::debug!(error = %e, "the controller does not answer"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

/// One stream from its first message to its end; true if nobody takes updates any more.
async fn converse(
    channel: Channel,
    identity: &Identity,
    updates: &mpsc::Sender<(u64, Vec<Service>)>,
    status: &Mutex<Status>,
) -> Result<bool, tonic::Status> {
    let mut client = AgentsClient::new(channel).max_decoding_message_size(1 << 20);
    let (to_controller, outgoing) = tokio::sync::mpsc::channel(4);
    let hello = Hello {
        name: identity.name.clone(),
        incarnation: identity.incarnation.into(),
        mac: identity.mac.to_vec(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let gone = |_| tonic::Status::cancelled("the stream ended");
    to_controller.send(AgentMessage { message: Some(FromAgent::Hello(hello)) }).await.map_err(gone)?;
    let mut incoming = client.register(ReceiverStream::new(outgoing)).await?.into_inner();
    let mut tick = tokio::time::interval(REPORT);
    loop {
        tokio::select! {
            message = incoming.message() => {
                let Some(message) = message? else { return Ok(false) };
                let Some(FromController::Update(update)) = message.message else { continue };
                match super::services(&update) {
                    Ok(services) => {
                        tracing::info!(version = update.version, services = services.len(), "update");
                        status.lock().error.clear();
                        if updates.send((update.version, services)).is_err() {
                            return Ok(true);
                        }
                    }
                    Err(e) => {
                        tracing::error!(version = update.version, error = %e, "update refused");
                        status.lock().error = e.to_string();
                    }
                }
                // The packet path takes it up within milliseconds; the report says so then.
                tick.reset_after(Duration::from_millis(20));
            }
            _ = tick.tick() => {
                let report = report(&status.lock());
                to_controller.send(AgentMessage { message: Some(FromAgent::Report(report)) }).await.map_err(gone)?;
            }
        }
    }
}

fn report(status: &Status) -> Report {
    Report {
        version_in_force: status.version,
        ready: status.ready,
        reason: status.reason.clone(),
        load: status.load,
        requests_total: status.requests,
        refused_total: status.refused,
        error: status.error.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::agents_server::{Agents, AgentsServer};
    use super::super::proto::{ControllerMessage, Update};
    use super::*;
    use tonic::{Request, Response, Streaming};

    struct Door(mpsc::SyncSender<AgentMessage>);

    #[tonic::async_trait]
    impl Agents for Door {
        type RegisterStream = ReceiverStream<Result<ControllerMessage, tonic::Status>>;

        async fn register(
            &self,
            request: Request<Streaming<AgentMessage>>,
        ) -> Result<Response<Self::RegisterStream>, tonic::Status> {
            let seen = self.0.clone();
            let (to_agent, outgoing) = tokio::sync::mpsc::channel(4);
            let mut incoming = request.into_inner();
            tokio::spawn(async move {
                let mut first = true;
                while let Ok(Some(message)) = incoming.message().await {
                    let _ = seen.try_send(message);
                    if std::mem::take(&mut first) {
                        let update = Update { version: 5, services: vec![] };
                        let message = ControllerMessage { message: Some(FromController::Update(update)) };
                        let _ = to_agent.send(Ok(message)).await;
                    }
                }
            });
            Ok(Response::new(ReceiverStream::new(outgoing)))
        }
    }

    /// The agent is there before the controller is, says hello, gets an update and reports what it is told.
    #[test]
    fn registers_over_a_unix_socket_and_reports() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("door.sock");
        let agent = Agent::start(&format!("unix:{}", path.display()), "r1", 77, [2, 0, 0, 0, 0, 5]).unwrap();
        let (seen, messages) = mpsc::sync_channel(100);
        std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let listener = tokio::net::UnixListener::bind(path).unwrap();
                let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
                let server = tonic::transport::Server::builder().add_service(AgentsServer::new(Door(seen)));
                server.serve_with_incoming(incoming).await.unwrap();
            });
        });
        let patience = Duration::from_secs(10);
        let (version, services) = agent.updates.recv_timeout(patience).unwrap();
        assert_eq!((version, services.len()), (5, 0));
        agent.set_status(Status { version: 5, ready: true, ..Status::default() });
        let first = messages.recv_timeout(patience).unwrap().message.unwrap();
        let FromAgent::Hello(hello) = first else { panic!("expected hello, got {first:?}") };
        assert_eq!((hello.name.as_str(), hello.incarnation, hello.mac.len()), ("r1", 77, 6));
        loop {
            match messages.recv_timeout(patience).unwrap().message {
                Some(FromAgent::Report(report)) if report.version_in_force == 5 => {
                    assert!(report.ready);
                    break;
                }
                Some(FromAgent::Report(_)) => {}
                other => panic!("expected a report, got {other:?}"),
            }
        }
    }

    #[test]
    fn addresses_of_controllers() {
        for good in ["unix:/run/x.sock", "127.0.0.1:9559", "[::1]:9559", "host:1"] {
            assert!(endpoint(good).is_ok(), "{good}");
        }
        for bad in ["", "unix:x", "nowhere", "a b:1"] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }
}
