//! The reference: TCP with Reno's congestion control (RFC 5681, RFC 3465), SACK recovery (RFC
//! 6675), RACK-TLP loss detection (RFC 8985), the timeout of RFC 6298 and an initial window of 10
//! (RFC 6928). Delayed acknowledgements are optional.
//!
//! Sequence numbers count segments, not bytes: every segment except the last is full.

mod client;
mod control;
mod rack;
mod receiver;
mod rto;
mod sender;
mod server;

pub use client::Client;
pub use control::{Control, Managed, Reno};
pub use receiver::Receiver;
pub use rto::Rto;
pub use sender::Sender;
pub use server::Server;

pub use crate::segment::{Ack, HEADERS, Kind, MSS, Segment};
