//! A controller's stream: handles its messages and sends to it.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tonic::{Code, Status, Streaming};

use crate::arbitration::{Peer, RoleKey};
use crate::proto::p4::v1 as p4;
use crate::server::{Shared, count};
use crate::service::work;
use crate::stream::{Inbox, Next};
use p4::stream_message_request::Update as Said;
use p4::stream_message_response::Update;

/// Sends queued messages to a client until either side ends the stream.
pub async fn write_stream(
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
        // Waits until the client reads; meanwhile messages collect in the bounded inbox.
        if to_client.send(message).await.is_err() || last {
            return;
        }
    }
}

/// The receiving side of a controller's stream.
pub struct Client {
    peer: Peer,
    shared: Arc<Shared>,
    role: Option<RoleKey>,
}

impl Client {
    /// A stream without a message so far.
    pub fn new(peer: Peer, shared: Arc<Shared>) -> Self {
        Client { peer, shared, role: None }
    }

    /// Receives until the stream ends, and reports the reason over `end`.
    pub async fn run(
        mut self,
        mut messages: Streaming<p4::StreamMessageRequest>,
        end: oneshot::Sender<Option<Status>>,
    ) {
        let mut stopping = self.shared.stopping.subscribe();
        let patience = self.shared.config.patience;
        let mut introduction = std::pin::pin!(tokio::time::sleep(patience));
        let status = loop {
            let message = tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => break Some(Status::unavailable("the switch stops")),
                () = self.peer.outbox.closed() => break None,
                // Without arbitration the stream would be unknown to any arbiter that could end it.
                () = &mut introduction, if self.role.is_none() => break Some(Status::deadline_exceeded(format!(
                    "no arbitration update within {patience:?}, which must be a stream's first message"
                ))),
                message = messages.message() => message,
            };
            match message {
                Ok(Some(message)) => {
                    if let Err(status) = self.handle_message(message).await {
                        break Some(status);
                    }
                }
                Ok(None) => break None,
                Err(status) => break Some(status),
            }
        };
        // First make sure that this client no longer counts as the primary.
        if let Some(role) = self.role.take() {
            let stream = self.peer.stream;
            let left = work(&self.shared, move |shared| {
                shared.leave(&role, stream);
                Ok(())
            });
            if left.await.is_err() {
                tracing::error!("a stream could not be ended properly");
            }
        }
        tracing::debug!(stream = self.peer.stream, lost = self.peer.outbox.lost(), ?status, "a stream ended");
        let _ = end.send(status);
    }

    async fn handle_message(&mut self, message: p4::StreamMessageRequest) -> Result<(), Status> {
        match message.update {
            Some(Said::Arbitration(message)) => {
                let (peer, known) = (self.peer.clone(), self.role.clone());
                let arbitrated =
                    work(&self.shared, move |shared| shared.arbitrate(&peer, known.as_ref(), &message));
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
        if !self.shared.is_primary(self.peer.stream) {
            return Err(Status::permission_denied("only the primary may send packets"));
        }
        let headers = self.shared.headers.read().clone();
        let headers = headers.ok_or_else(|| Status::failed_precondition("no pipeline has been committed"))?;
        let frame = headers.index.packet_out.frame(packet, &headers.names)?;
        self.shared.ports.packet_out(frame).map_err(crate::switch_service::status)?;
        count(&self.shared.counts.packet_outs);
        Ok(())
    }

    fn acknowledge(&self, ack: &p4::DigestListAck) -> Result<(), Status> {
        if !self.shared.is_primary(self.peer.stream) {
            return Err(Status::permission_denied("only the primary acknowledges digests"));
        }
        if self.shared.digests.lock().acknowledge(ack) {
            return Ok(());
        }
        Err(Status::invalid_argument(format!("no digest with id {:#010x} in the P4Info", ack.digest_id)))
    }

    /// Sends the client a stream error; it is the first to be dropped if the client does not read.
    fn complain(&self, status: Status, details: p4::stream_error::Details) {
        debug_assert_ne!(status.code(), Code::Ok);
        self.peer.outbox.data(Update::Error(p4::StreamError {
            canonical_code: status.code() as i32,
            message: status.message().to_owned(),
            space: crate::SPACE.to_owned(),
            code: status.code() as i32,
            details: Some(details),
        }));
    }
}
