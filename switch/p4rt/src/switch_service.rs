//! The gRPC service for ports, links and traces: `rivulet.switch.v1.Switch`.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::ports::PortError;
use crate::proto::rivulet::switch::v1 as proto;
use crate::server::Shared;
use crate::service::work;

/// Converts a port error to a gRPC status.
pub fn status(error: PortError) -> Status {
    let message = error.to_string();
    match error {
        PortError::NotFound(_) => Status::not_found(message),
        PortError::Exists(_) => Status::already_exists(message),
        PortError::Invalid(_) => Status::invalid_argument(message),
        PortError::Full(_) => Status::resource_exhausted(message),
        PortError::Unsupported(_) => Status::unimplemented(message),
        PortError::System(_) => Status::unknown(message),
    }
}

/// The service.
pub struct SwitchService {
    /// The server's state.
    pub shared: Arc<Shared>,
}

#[tonic::async_trait]
impl proto::switch_server::Switch for SwitchService {
    async fn add_port(
        &self,
        request: Request<proto::AddPortRequest>,
    ) -> Result<Response<proto::AddPortResponse>, Status> {
        let r = request.into_inner();
        if r.interface.is_empty() {
            return Err(Status::invalid_argument("the request has no interface"));
        }
        work(&self.shared, move |s| s.ports.add_port(r.port, &r.interface).map_err(status)).await?;
        Ok(Response::new(proto::AddPortResponse {}))
    }

    async fn remove_port(
        &self,
        request: Request<proto::RemovePortRequest>,
    ) -> Result<Response<proto::RemovePortResponse>, Status> {
        let port = request.into_inner().port;
        work(&self.shared, move |s| s.ports.remove_port(port).map_err(status)).await?;
        Ok(Response::new(proto::RemovePortResponse {}))
    }

    async fn list_ports(
        &self,
        _request: Request<proto::ListPortsRequest>,
    ) -> Result<Response<proto::ListPortsResponse>, Status> {
        let mut ports = work(&self.shared, |s| Ok(s.ports.list_ports())).await?;
        ports.sort_by_key(|p| p.port);
        Ok(Response::new(proto::ListPortsResponse { ports }))
    }

    async fn set_link(
        &self,
        request: Request<proto::SetLinkRequest>,
    ) -> Result<Response<proto::SetLinkResponse>, Status> {
        let r = request.into_inner();
        r.link.as_ref().map_or(Ok(()), check_link)?;
        work(&self.shared, move |s| s.ports.set_link(r.port, r.link).map_err(status)).await?;
        Ok(Response::new(proto::SetLinkResponse {}))
    }

    async fn trace(
        &self,
        request: Request<proto::TraceRequest>,
    ) -> Result<Response<proto::TraceResponse>, Status> {
        let r = request.into_inner();
        let traced =
            work(&self.shared, move |s| s.ports.trace(r.ingress_port, &r.packet, r.dry_run).map_err(status));
        let traced = traced.await?;
        let outputs =
            traced.outputs.into_iter().map(|(port, packet)| proto::TraceOutput { port, packet }).collect();
        Ok(Response::new(proto::TraceResponse { text: traced.text, json: traced.json, outputs }))
    }
}

fn check_link(l: &proto::Link) -> Result<(), Status> {
    for (name, p) in [("loss", l.loss), ("duplicate", l.duplicate), ("reorder", l.reorder)] {
        if !(0.0..=1.0).contains(&p) {
            return Err(Status::invalid_argument(format!("{name} is a probability, not {p}")));
        }
    }
    Ok(())
}
