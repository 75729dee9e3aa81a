//! The server library: minisockets on real packets (section 3 of the Trickles paper).
//!
//! A [`Server`] takes segments with our option from one interface, judges each with the transport's
//! stateless step, and passes an event to the [`Application`] for every request to be answered.
//! Neither the library nor the application has descriptors or state for a connection.
//!
//! For several processors, [`Server::open_workers`] makes several servers of one replica that share
//! nothing on the packet path; the kernel assigns each flow to one of them.

mod adopt;
mod back_end;
mod config;
pub mod counters;
mod detached;
pub mod heartbeat;
mod interface;
pub mod keys;
pub mod limits;
mod minisocket;
mod paths;
mod pulse;
mod rules;
mod running;
mod server;
pub mod service;
mod service_set;
mod tunnel;
mod workers;

pub use adopt::{Adopted, Door, Doorway, MAX_ADOPTED, MAX_PATIENCE};
pub use back_end::{BackEnd, BackEndCounters};
pub use config::{Config, ServerError};
pub use minisocket::{Detached, EventKind, Minisocket};
pub use pulse::PoolView;
pub use server::{Application, Server};

/// A value for [`Config::incarnation`]: the time of the start in seconds, which distinguishes this
/// process's heartbeats from those of earlier ones.
#[must_use]
pub fn incarnation() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}
