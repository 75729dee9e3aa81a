//! What a request may cost before it is decoded.
//!
//! A message of protobuf takes up to a hundred times its bytes once it is decoded: two bytes are an empty update.
//! So requests are received whole, a bounded number at a time, each within a time and up to a length; their parts
//! are counted, and only then they are decoded. Streams are told apart by their path and not counted here: a
//! controller gets through while all places are taken.

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

/// Requests other than reads that may be received, decoded and worked on at the same time; more wait.
const REQUESTS: usize = 8;
/// Reads that may be under way at the same time; more wait.
const READS: usize = 8;
/// Longest `Read` and other requests without much in them, bytes.
const SMALL: usize = 1 << 20;
/// Longest `Write`, bytes.
const WRITE: usize = 16 << 20;
/// Longest message on a stream, bytes: a packet, its metadata, and room.
const STREAMED: usize = 256 << 10;
/// Most parts of a request: messages within messages, strings and the like.
const PARTS: usize = 1 << 18;
/// What gRPC puts before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The places of a server.
pub struct Places {
    requests: Arc<Semaphore>,
    reads: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Places { requests: Arc::new(Semaphore::new(REQUESTS)), reads: Arc::new(Semaphore::new(READS)) }
    }
}

/// A request's place, for as long as it lives.
pub type Place = Arc<OwnedSemaphorePermit>;

/// P4Runtime with its bounds.
#[derive(Clone)]
pub struct Bounded {
    requests: P4RuntimeServer<P4RuntimeService>,
    streams: P4RuntimeServer<P4RuntimeService>,
    shared: Arc<Shared>,
}

impl Bounded {
    /// The service of a server.
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
        let places = &self.shared.places;
        let places = if rpc == "Read" { &places.reads } else { &places.requests }.clone();
        let (mut service, patience) = (self.requests.clone(), self.shared.config.patience);
        Box::pin(async move {
            let Ok(place) = places.acquire_owned().await else {
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
            let place: Place = Arc::new(place);
            head.extensions.insert(place.clone());
            let answer = service.call(http::Request::from_parts(head, Body::new(Full::new(body)))).await;
            drop(place);
            answer
        })
    }
}

/// The whole body of a request of one message, its parts counted.
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
    // A compressed one is refused by who decodes it.
    if let Some((&[0, ..], bytes)) = body.split_at_checked(PREFIX) {
        parts::check(message, bytes, PARTS)?;
    }
    Ok(body)
}
