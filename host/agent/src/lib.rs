//! The agents' channel (`controller/proto/rivulet/agent/v1/agent.proto`): how a replica registers, gets
//! services and keys, and says how it is.
//!
//! - [`Agent`]: the channel as a serving process holds it, to a controller or to an agent of its own host.
//! - [`Door`]: an agent of its own process: it holds the channel to the controller, keeps what came over it,
//!   and speaks the same protocol on a Unix socket to the serving processes of its host. So keys outlive a
//!   serving process, and one that starts while no controller answers has them at once.
//!
//! Nothing on the packet path waits for any of it: while the controller is away, what was given stays good.

mod address;
mod agent;
mod convert;
mod door;
mod due;
mod keep;
mod upstream;
/// The generated messages.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("rivulet.agent.v1");
}

pub use address::{AddressError, Controllers, TlsFiles};
pub use agent::{Agent, Status, TrodsCounts};
pub use convert::{Accepted, ConvertError, services};
pub use door::{Door, DoorConfig, DoorError};
pub use due::Due;

/// Why a channel cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The controllers' addresses, or the files for TLS.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No thread or runtime.
    #[error("the agent cannot start: {0}")]
    Start(#[from] std::io::Error),
}
