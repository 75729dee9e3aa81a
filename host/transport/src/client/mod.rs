//! The client: it keeps the state of the connection for both sides.

mod close;
mod connection;
mod generation;
mod input;
mod losses;
mod output;
mod path;
mod plain;
mod receive;
mod request;
mod rtt;
mod send;
mod suspend;
mod timers;
mod types;

pub use connection::Connection;
pub use suspend::ResumeError;
pub use types::{
    Config, ConnectionError, Event, InputError, MAX_REQUESTS, Read, RequestError, Statistics, TcpHandshake,
};
