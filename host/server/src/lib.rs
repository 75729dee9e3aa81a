//! The server library: minisockets on real packets (section 3 of the Trickles paper).
//!
//! A [`Server`] takes segments with our option from one interface, judges each by the transport's stateless
//! step, and hands an event to the [`Application`] for every request that is to be answered. There are no
//! descriptors per connection and nothing is kept per connection, here or in the application.
//!
//! For several processors [`Server::open_workers`] gives several servers of one replica, which share nothing on the way
//! of a packet: the kernel gives each flow to one of them.

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

/// A number for [`Config::incarnation`]: the second of the start, so that heartbeats of a former process are told from ours.
#[must_use]
pub fn incarnation() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}
