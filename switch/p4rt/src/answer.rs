//! Builds the answer to a read while it is sent: one message waits for the client while the next
//! one is built.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use prost::Message as _;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tonic::Status;

use crate::admission::Permit;
use crate::proto::p4::v1 as p4;
use crate::server::Shared;

/// Limits of one `ReadResponse`: bytes and number of entities.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_ENTITIES: usize = 4096;

/// The messages of a read, and its result.
pub struct Answer {
    first: Option<Result<p4::ReadResponse, Status>>,
    messages: mpsc::Receiver<p4::ReadResponse>,
    end: Option<oneshot::Receiver<Result<(), Status>>>,
}

impl Answer {
    /// Starts a read; ready when its first message is, or when it fails without one. It holds its
    /// permit until it ends.
    ///
    /// # Errors
    /// As [`Shared::read`], if it fails before the first entity.
    pub async fn begin(
        shared: &Arc<Shared>,
        request: p4::ReadRequest,
        secrets: bool,
        permit: Option<Permit>,
    ) -> Result<Answer, Status> {
        let (to_client, messages) = mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        let shared = shared.clone();
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let mut chunk = Chunk::default();
            let send = |message| runtime.block_on(deliver(&shared, &to_client, message));
            let result = shared.read(&request, secrets, &mut |entity| match chunk.add(entity) {
                Some(full) => send(full),
                None => Ok(()),
            });
            let result = match chunk.rest() {
                Some(rest) if !matches!(&result, Err(s) if is_broken(s)) => send(rest).and(result),
                _ => result,
            };
            // The client may have disconnected.
            let _ = end.send(result);
        });
        let mut answer = Answer { first: None, messages, end: Some(ended) };
        match std::future::poll_fn(|cx| Pin::new(&mut answer).poll_next(cx)).await {
            // Errors of some of the requests follow the entities found for the others.
            Some(Err(status)) if is_broken(&status) => Err(status),
            first => {
                answer.first = first;
                Ok(answer)
            }
        }
    }
}

/// Whether a status invalidates the entities already found, not just some requests.
fn is_broken(status: &Status) -> bool {
    status.code() != tonic::Code::Unknown
}

/// Waits until the client has taken the previous message, up to a timeout.
async fn deliver(
    shared: &Shared,
    to_client: &mpsc::Sender<p4::ReadResponse>,
    message: p4::ReadResponse,
) -> Result<(), Status> {
    let patience = shared.config.patience;
    let mut stopping = shared.stopping.subscribe();
    tokio::select! {
        sent = to_client.send_timeout(message, patience) => sent.map_err(|_| {
            Status::deadline_exceeded(format!("no message of the read was taken for {patience:?}"))
        }),
        _ = stopping.wait_for(|stopping| *stopping) => Err(Status::unavailable("the switch stops")),
    }
}

impl Stream for Answer {
    type Item = Result<p4::ReadResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let Some(message) = ready!(self.messages.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(message)));
        }
        let Some(end) = self.end.as_mut() else { return Poll::Ready(None) };
        let result = ready!(Pin::new(end).poll(cx));
        self.end = None;
        Poll::Ready(match result {
            Ok(Ok(())) => None,
            Ok(Err(status)) => Some(Err(status)),
            Err(_) => Some(Err(Status::internal("the read ended in a panic, which is a bug of this server"))),
        })
    }
}

/// A message being built.
#[derive(Default)]
struct Chunk {
    entities: Vec<p4::Entity>,
    bytes: usize,
}

impl Chunk {
    /// Adds an entity; returns the finished message if it is full.
    fn add(&mut self, entity: p4::Entity) -> Option<p4::ReadResponse> {
        let bytes = entity.encoded_len();
        let full = self.bytes + bytes > CHUNK_BYTES || self.entities.len() == CHUNK_ENTITIES;
        let message = if full { self.rest() } else { None };
        self.bytes += bytes;
        self.entities.push(entity);
        message
    }

    /// Returns the remaining entities, if any.
    fn rest(&mut self) -> Option<p4::ReadResponse> {
        self.bytes = 0;
        let entities = std::mem::take(&mut self.entities);
        (!entities.is_empty()).then_some(p4::ReadResponse { entities })
    }
}
