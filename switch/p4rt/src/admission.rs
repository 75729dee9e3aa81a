//! Limits the cost of a request before it is decoded.
//!
//! A decoded protobuf message takes up to a hundred times its encoded size: two bytes can encode an
//! empty update. So a limited number of requests is received at a time, each whole, within a time
//! limit and up to a length. The server counts a request's parts and only then decodes it. Streams
//! are recognised by their path and do not count, so that a controller can connect while all
//! permits are in use.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::{BodyExt as _, Full, Limited};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Bytes, Service, http};
use tonic::server::NamedService;

use crate::parts;
use crate::proto::p4::v1::p4_runtime_server::P4RuntimeServer;
use crate::server::Shared;
use crate::service::P4RuntimeService;

/// Requests other than reads that may be received and processed at a time; further ones wait.
const REQUESTS: usize = 8;
/// Reads that may run at a time; further ones wait.
const READS: usize = 8;
/// Longest `Read` and other small requests, in bytes.
const SMALL: usize = 1 << 20;
/// Longest `Write`, in bytes.
const WRITE: usize = 16 << 20;
/// Longest message on a stream, in bytes: a packet with its metadata, and some room.
const STREAMED: usize = 256 << 10;
/// Largest number of parts of a request: nested messages, strings and the like.
const PARTS: usize = 1 << 18;
/// Length of gRPC's message prefix: the compression flag and the length.
const PREFIX: usize = 5;

/// The permits of a server.
pub struct Permits {
    requests: Arc<Semaphore>,
    reads: Arc<Semaphore>,
}

impl Default for Permits {
    fn default() -> Self {
        Permits { requests: Arc::new(Semaphore::new(REQUESTS)), reads: Arc::new(Semaphore::new(READS)) }
    }
}

/// A request's permit, held during its lifetime.
pub type Permit = Arc<OwnedSemaphorePermit>;

/// The P4Runtime service with its limits.
#[derive(Clone)]
pub struct Bounded {
    requests: P4RuntimeServer<P4RuntimeService>,
    streams: P4RuntimeServer<P4RuntimeService>,
    shared: Arc<Shared>,
}

impl Bounded {
    /// Creates the service of a server.
    pub fn new(shared: Arc<Shared>) -> Self {
        let service = P4RuntimeServer::new(P4RuntimeService::new(shared.clone()));
        let requests = service
            .clone()
            .max_decoding_message_size(shared.config.max_message_bytes)
            .max_encoding_message_size(usize::MAX);
        Bounded { requests, streams: service.max_decoding_message_size(STREAMED), shared }
    }
}

impl NamedService for Bounded {
    const NAME: &'static str = <P4RuntimeServer<P4RuntimeService> as NamedService>::NAME;
}

impl Service<http::Request<Body>> for Bounded {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let rpc = request.uri().path().rsplit('/').next().unwrap_or_default();
        let max = self.shared.config.max_message_bytes;
        let (message, limit) = match rpc {
            "Write" => ("p4.v1.WriteRequest", max.min(WRITE)),
            "Read" => ("p4.v1.ReadRequest", max.min(SMALL)),
            "SetForwardingPipelineConfig" => ("p4.v1.SetForwardingPipelineConfigRequest", max),
            "GetForwardingPipelineConfig" => ("p4.v1.GetForwardingPipelineConfigRequest", max.min(SMALL)),
            "Capabilities" => ("p4.v1.CapabilitiesRequest", max.min(SMALL)),
            _ => return self.streams.call(request),
        };
        let permits = &self.shared.permits;
        let permits = if rpc == "Read" { &permits.reads } else { &permits.requests }.clone();
        let (mut service, patience) = (self.requests.clone(), self.shared.config.patience);
        Box::pin(async move {
            let Ok(permit) = permits.acquire_owned().await else {
                return Ok(Status::unavailable("the server is stopping").into_http());
            };
            let (mut head, body) = request.into_parts();
            let body = match tokio::time::timeout(patience, receive(body, message, limit)).await {
                Ok(Ok(body)) => body,
                Ok(Err(status)) => return Ok(status.into_http()),
                Err(_) => {
                    let late = format!("the request did not arrive whole within {patience:?}");
                    return Ok(Status::deadline_exceeded(late).into_http());
                }
            };
            let permit: Permit = Arc::new(permit);
            head.extensions.insert(permit.clone());
            let answer = service.call(http::Request::from_parts(head, Body::new(Full::new(body)))).await;
            drop(permit);
            answer
        })
    }
}

/// Receives the body of a request with a single message, and checks the number of its parts.
async fn receive(body: Body, message: &str, limit: usize) -> Result<Bytes, Status> {
    let received = Limited::new(body, limit.saturating_add(PREFIX)).collect().await;
    let body = received.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            Status::resource_exhausted(format!("the request is longer than {limit} bytes"))
        } else {
            Status::cancelled(format!("the request broke off: {error}"))
        }
    })?;
    let body = body.to_bytes();
    // The decoder refuses a compressed message.
    if let Some((&[0, ..], bytes)) = body.split_at_checked(PREFIX) {
        parts::check(message, bytes, PARTS)?;
    }
    Ok(body)
}
