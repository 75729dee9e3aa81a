//! The gRPC face of the server: `p4.v1.P4Runtime`, and the listener.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::Server as Transport;
use tonic::transport::server::Connected;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::arbitration::RoleKey;
use crate::proto::p4::v1 as p4;
use crate::proto::rivulet::switch::v1::switch_server::SwitchServer;
use crate::server::{Shared, count};
use crate::stream::{Inbox, Next, Outbox, outbox};
use crate::switch_service::SwitchService;
use p4::p4_runtime_server::{P4Runtime, P4RuntimeServer};
use p4::stream_message_request::Update as Said;
use p4::stream_message_response::Update;

/// Bytes of entities in one `ReadResponse`: well below the 4 MiB that clients take by default.
const READ_CHUNK: usize = 1 << 20;
/// How long a shutdown waits for clients to let go of their connections.
const GRACE: Duration = Duration::from_secs(2);

/// Where the server listens. A Unix socket crosses network namespaces.
#[derive(Debug)]
pub enum Listener {
    /// HOST:PORT.
    Tcp(TcpListener),
    /// A path in the file system.
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Listener::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Listener::Unix(listener)
    }
}

/// Serves both services on the listener until `shutdown`, then for as long as streams take to end.
pub async fn run(
    shared: Arc<Shared>,
    listener: Listener,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    match listener {
        Listener::Tcp(listener) => {
            // A small write must not wait for the peer's delayed acknowledgement.
            let incoming = TcpListenerStream::new(listener).map(|socket| {
                socket.inspect(|s| {
                    let _ = s.set_nodelay(true);
                })
            });
            run_on(shared, incoming, shutdown).await
        }
        Listener::Unix(listener) => run_on(shared, UnixListenerStream::new(listener), shutdown).await,
    }
}

async fn run_on<I, C>(
    shared: Arc<Shared>,
    incoming: I,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error>
where
    I: Stream<Item = std::io::Result<C>> + Send,
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    C::ConnectInfo: Clone + Send + Sync + 'static,
{
    let limit = shared.config.max_message_bytes;
    let p4runtime = P4RuntimeServer::new(P4RuntimeService { shared: shared.clone() })
        .max_decoding_message_size(limit)
        .max_encoding_message_size(usize::MAX);
    let switch = SwitchServer::new(SwitchService { shared: shared.clone() });
    let mut stopped = shared.stopping.subscribe();
    let ended = {
        let shared = shared.clone();
        async move {
            shutdown.await;
            // Streams end by themselves now; the transport waits for them.
            shared.stopping.send_replace(true);
        }
    };
    let mut transport = Transport::builder();
    if let Some(tls) = &shared.config.tls {
        transport = transport.tls_config(tls.config())?;
    }
    let serve = transport
        .http2_keepalive_interval(Some(shared.config.keepalive))
        .http2_keepalive_timeout(Some(shared.config.keepalive))
        .add_service(p4runtime)
        .add_service(switch)
        .serve_with_incoming_shutdown(incoming, ended);
    tokio::select! {
        result = serve => result,
        () = async {
            let _ = stopped.wait_for(|stopping| *stopping).await;
            tokio::time::sleep(GRACE).await;
        } => Ok(()),
    }
}

/// Runs a request's work on a thread that may block, a bounded number at a time.
pub async fn work<T: Send + 'static>(
    shared: &Arc<Shared>,
    job: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let permit = shared.workers.acquire().await;
    let _permit = permit.map_err(|_| Status::unavailable("the server is stopping"))?;
    let shared = shared.clone();
    let done = tokio::task::spawn_blocking(move || job(&shared)).await;
    done.unwrap_or_else(|_| {
        Err(Status::internal("the request ended in a panic, which is a bug of this server"))
    })
}

struct P4RuntimeService {
    shared: Arc<Shared>,
}

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl P4Runtime for P4RuntimeService {
    type ReadStream = Boxed<p4::ReadResponse>;
    type StreamChannelStream = ReceiverStream<Result<p4::StreamMessageResponse, Status>>;

    async fn write(&self, request: Request<p4::WriteRequest>) -> Result<Response<p4::WriteResponse>, Status> {
        let request = request.into_inner();
        work(&self.shared, move |shared| shared.write(&request)).await?;
        Ok(Response::new(p4::WriteResponse {}))
    }

    async fn read(&self, request: Request<p4::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let (found, status) = work(&self.shared, move |shared| shared.read(&request)).await?;
        let last = status.err().map(Err);
        let stream = tokio_stream::iter(chunks(found).map(Ok).chain(last));
        Ok(Response::new(Box::pin(stream)))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<p4::SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<p4::SetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        work(&self.shared, move |shared| shared.set_pipeline(request)).await?;
        Ok(Response::new(p4::SetForwardingPipelineConfigResponse {}))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<p4::GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<p4::GetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        let config = work(&self.shared, move |shared| shared.get_pipeline(&request)).await?;
        Ok(Response::new(p4::GetForwardingPipelineConfigResponse { config }))
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<p4::StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let (outbox, inbox) = outbox();
        let (to_client, responses) = mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        let client = Client {
            stream: self.shared.next_stream.fetch_add(1, Ordering::Relaxed),
            shared: self.shared.clone(),
            outbox,
            role: None,
        };
        tokio::spawn(write_stream(inbox, to_client, ended));
        tokio::spawn(client.run(request.into_inner(), end));
        Ok(Response::new(ReceiverStream::new(responses)))
    }

    async fn capabilities(
        &self,
        request: Request<p4::CapabilitiesRequest>,
    ) -> Result<Response<p4::CapabilitiesResponse>, Status> {
        let device_id = request.into_inner().device_id;
        if device_id != 0 {
            self.shared.check_device(device_id)?;
        }
        Ok(Response::new(p4::CapabilitiesResponse {
            p4runtime_api_version: crate::P4RUNTIME_API_VERSION.to_owned(),
            experimental: None,
        }))
    }
}

/// Groups entities into messages of bounded size.
fn chunks(found: Vec<p4::Entity>) -> impl Iterator<Item = p4::ReadResponse> + Send {
    let mut rest = found.into_iter().peekable();
    std::iter::from_fn(move || {
        let mut entities = vec![rest.next()?];
        let mut bytes = entities[0].encoded_len();
        while let Some(next) = rest.peek() {
            bytes += next.encoded_len();
            if bytes > READ_CHUNK {
                break;
            }
            entities.extend(rest.next());
        }
        Some(p4::ReadResponse { entities })
    })
}

/// Sends what waits for a client until the stream is ended, from here or from there.
async fn write_stream(
    mut inbox: Inbox,
    to_client: mpsc::Sender<Result<p4::StreamMessageResponse, Status>>,
    mut ended: oneshot::Receiver<Option<Status>>,
) {
    loop {
        let (message, last) = match inbox.next(&mut ended).await {
            Next::Message(update) => (Ok(p4::StreamMessageResponse { update: Some(update) }), false),
            Next::Ended(Some(status)) => (Err(status), true),
            Next::Ended(None) => return,
        };
        // Waits for the client to read; what comes meanwhile gathers in the bounded inbox.
        if to_client.send(message).await.is_err() || last {
            return;
        }
    }
}

/// One controller's stream, the side that listens.
struct Client {
    stream: u64,
    shared: Arc<Shared>,
    outbox: Outbox,
    role: Option<RoleKey>,
}

impl Client {
    async fn run(
        mut self,
        mut messages: Streaming<p4::StreamMessageRequest>,
        end: oneshot::Sender<Option<Status>>,
    ) {
        let mut stopping = self.shared.stopping.subscribe();
        let status = loop {
            let message = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => break Some(Status::unavailable("the switch stops")),
                () = self.outbox.closed() => break None,
                message = messages.message() => message,
            };
            match message {
                Ok(Some(message)) => {
                    if let Err(status) = self.hear(message).await {
                        break Some(status);
                    }
                }
                Ok(None) | Err(_) => break None,
            }
        };
        // First of all nobody may take this client for the primary any more.
        if let Some(role) = self.role.take() {
            let stream = self.stream;
            let left = work(&self.shared, move |shared| {
                shared.leave(&role, stream);
                Ok(())
            });
            if left.await.is_err() {
                tracing::error!("a stream could not be ended properly");
            }
        }
        tracing::debug!(stream = self.stream, lost = self.outbox.lost(), ?status, "a stream ended");
        let _ = end.send(status);
    }

    async fn hear(&mut self, message: p4::StreamMessageRequest) -> Result<(), Status> {
        match message.update {
            Some(Said::Arbitration(message)) => {
                let (stream, outbox, known) = (self.stream, self.outbox.clone(), self.role.clone());
                let arbitrated = work(&self.shared, move |shared| {
                    shared.arbitrate(stream, &outbox, known.as_ref(), &message)
                });
                self.role = Some(arbitrated.await?);
            }
            Some(Said::Packet(packet)) => {
                if let Err(status) = self.packet_out(&packet) {
                    count(&self.shared.counts.packet_outs_lost);
                    let packet_out = Some(packet);
                    self.complain(
                        status,
                        p4::stream_error::Details::PacketOut(p4::PacketOutError { packet_out }),
                    );
                }
            }
            Some(Said::DigestAck(ack)) => {
                if let Err(status) = self.acknowledge(&ack) {
                    let digest_list_ack = Some(ack);
                    let details = p4::DigestListAckError { digest_list_ack };
                    self.complain(status, p4::stream_error::Details::DigestListAck(details));
                }
            }
            Some(Said::Other(other)) => {
                let details = p4::StreamOtherError { other: Some(other) };
                let status = Status::unimplemented("v1model has no messages of its own");
                self.complain(status, p4::stream_error::Details::Other(details));
            }
            None => {
                let status = Status::invalid_argument("the message is empty, or of a newer release");
                self.complain(status, p4::stream_error::Details::Other(p4::StreamOtherError::default()));
            }
        }
        Ok(())
    }

    fn packet_out(&self, packet: &p4::PacketOut) -> Result<(), Status> {
        if !self.shared.is_primary(self.stream) {
            return Err(Status::permission_denied("only the primary may send packets"));
        }
        let headers = self.shared.headers.read().clone();
        let headers = headers.ok_or_else(|| Status::failed_precondition("no pipeline has been committed"))?;
        let frame = headers.packet_out.frame(packet)?;
        self.shared.ports.packet_out(frame).map_err(crate::switch_service::status)?;
        count(&self.shared.counts.packet_outs);
        Ok(())
    }

    fn acknowledge(&self, ack: &p4::DigestListAck) -> Result<(), Status> {
        if !self.shared.is_primary(self.stream) {
            return Err(Status::permission_denied("only the primary acknowledges digests"));
        }
        if self.shared.digests.lock().acknowledge(ack) {
            return Ok(());
        }
        Err(Status::invalid_argument(format!("no digest with id {:#010x} in the P4Info", ack.digest_id)))
    }

    /// Tells the client of an error in what it said; lost first when it does not read.
    fn complain(&self, status: Status, details: p4::stream_error::Details) {
        debug_assert_ne!(status.code(), Code::Ok);
        self.outbox.data(Update::Error(p4::StreamError {
            canonical_code: status.code() as i32,
            message: status.message().to_owned(),
            space: crate::SPACE.to_owned(),
            code: status.code() as i32,
            details: Some(details),
        }));
    }
}
