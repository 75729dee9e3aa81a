//! The agents' channel (`controller/proto/rivulet/agent/v1/agent.proto`): a replica registers,
//! receives services and keys, and reports its status.
//!
//! - [`Agent`]: the channel of a serving process to a controller or to this host's agent process.
//! - [`Relay`]: the agent process. It holds the channel to the controller, saves the last update,
//!   and serves the same protocol on a Unix socket to the serving processes of its host. So keys
//!   outlive a serving process, and a new one gets them at once even while no controller answers.
//!
//! The packet path waits for none of this: while the controller is away, the last update stays in
//! force.

mod address;
mod agent;
mod convert;
mod keep;
mod pending;
mod relay;
mod terminator;
mod upstream;
/// The generated messages.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("rivulet.agent.v1");
}

pub use address::{AddressError, Controllers, TlsFiles};
pub use agent::{Agent, Status, TrodsCounts};
pub use convert::{Accepted, ConvertError, services};
pub use pending::PendingUpdate;
pub use proto::TlsStatus;
pub use relay::{Relay, RelayConfig, RelayError};
pub use terminator::{TerminatorChannel, TlsService};

/// Why a channel cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The controllers' addresses or the TLS files are not usable.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// No thread or runtime could be started.
    #[error("the agent cannot start: {0}")]
    Start(#[from] std::io::Error),
}
