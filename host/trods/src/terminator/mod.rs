//! The door between the agent and the TLS terminators of its host: a Unix socket whose messages have boundaries. The agent's side
//! is [`Door`]; the terminator's is in the crate `rivulet-terminator`.
//!
//! A terminator begins with [`Request::Hello`] and gets [`Reply::Welcome`]. From then on it hands over the records of its
//! connections, and the agent answers each. The agent hands over connections of dead replicas with their sockets.

mod door;
mod message;

pub use door::Door;
pub use message::{MAX_MESSAGE, MAX_PORTS, MessageError, Reply, Request, VERSION};
