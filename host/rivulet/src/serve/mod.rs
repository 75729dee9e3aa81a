//! `rivulet serve`: files over Rivulet, and over plain TCP beside it.

mod address;
mod adopted;
mod args;
mod command;
mod connections;
mod dns_relay;
mod listeners;
pub mod metrics;
pub mod plain;
mod shelf;
pub mod stateless;
mod table;
mod workers;

pub(crate) use address::ServiceAddresses;
pub use args::ServeArgs;
pub use command::serve;
