//! The server library: minisockets on real packets (section 3 of the Trickles paper).
//!
//! A [`Server`] takes segments with our option from one interface, judges each by the transport's stateless
//! step, and hands an event to the [`Application`] for every request that is to be answered. There are no
//! descriptors per connection and nothing is kept per connection, here or in the application.

pub mod counters;
pub mod heartbeat;
pub mod keys;
mod minisocket;
mod paths;
mod server;
pub mod service;

pub use minisocket::{Detached, EventKind, Minisocket};
pub use server::{Application, Config, Server, ServerError};
