//! The agent: a replica's channel to the controller.
//!
//! It registers by name, gets services and keys, and reports what is in force. Nothing on the packet path
//! waits for it: while the controller is away, the replica serves on what it has.

mod channel;
mod convert;
/// The generated messages of `controller/proto/rivulet/agent/v1/agent.proto`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("rivulet.agent.v1");
}

pub use channel::{Agent, AgentError, Status};
pub use convert::{ConvertError, services};
