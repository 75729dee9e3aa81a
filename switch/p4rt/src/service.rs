//! The gRPC service `p4.v1.P4Runtime`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::admission::Permit;
use crate::answer::Answer;
use crate::arbitration::Peer;
use crate::client::{Client, write_stream};
use crate::listener::connection;
use crate::proto::p4::v1 as p4;
use crate::server::Shared;
use crate::stream::outbox;
use p4::p4_runtime_server::P4Runtime;

/// Runs blocking work on a separate thread.
pub async fn work<T: Send + 'static>(
    shared: &Arc<Shared>,
    job: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let shared = shared.clone();
    let done = tokio::task::spawn_blocking(move || job(&shared)).await;
    done.unwrap_or_else(|_| {
        Err(Status::internal("the request ended in a panic, which is a bug of this server"))
    })
}

/// The service.
pub struct P4RuntimeService {
    shared: Arc<Shared>,
}

impl P4RuntimeService {
    /// Creates the service of a server.
    pub fn new(shared: Arc<Shared>) -> Self {
        P4RuntimeService { shared }
    }
}

#[tonic::async_trait]
impl P4Runtime for P4RuntimeService {
    type ReadStream = Answer;
    type StreamChannelStream = ReceiverStream<Result<p4::StreamMessageResponse, Status>>;

    async fn write(&self, request: Request<p4::WriteRequest>) -> Result<Response<p4::WriteResponse>, Status> {
        let request = request.into_inner();
        work(&self.shared, move |shared| shared.write(&request)).await?;
        Ok(Response::new(p4::WriteResponse {}))
    }

    async fn read(&self, request: Request<p4::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let connection = connection(request.extensions());
        let permit = request.extensions().get::<Permit>().cloned();
        let secrets = self.shared.is_primary_connection(connection);
        Ok(Response::new(Answer::begin(&self.shared, request.into_inner(), secrets, permit).await?))
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
        let stream = self.shared.next_stream.fetch_add(1, Ordering::Relaxed);
        let peer = Peer { stream, connection: connection(request.extensions()), outbox };
        let client = Client::new(peer, self.shared.clone());
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
