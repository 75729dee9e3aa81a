//! A deterministic discrete-event network in virtual time, from a seed.
//!
//! [`net::Network`] runs [`net::Node`]s joined by [`link::Link`]s (rate, delay, queue, loss, reordering, duplication,
//! corruption, ECN marking). On it stand the two ends of the reference, TCP with Reno's congestion control, SACK and
//! RACK ([`tcp`]), and the parts of Rivulet: replicas that die, stall and
//! return ([`life`]), and the transport's server and client.
//!
//! Time is nanoseconds since the start of the run ([`Nanos`]); the same seed gives the same run, packet for packet.

#![forbid(unsafe_code)]

pub mod dumbbell;
pub mod life;
pub mod link;
pub mod net;
pub mod packet;
pub mod rng;
pub mod stats;
pub mod tcp;

/// Nanoseconds of virtual time.
pub type Nanos = u64;

/// One microsecond.
pub const MICROSECOND: Nanos = 1_000;
/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;
