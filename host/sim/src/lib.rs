//! A deterministic discrete-event network in virtual time, from a seed.
//!
//! [`net::Network`] runs [`net::Node`]s joined by [`link::Link`]s (rate, delay, queue, loss,
//! reordering, duplication, corruption, ECN marking). On top are the reference TCP with Reno's
//! congestion control, SACK and RACK ([`tcp`]), the same with the Congestion Manager instead of
//! Reno ([`managed`]), and the parts of Rivulet: a ToR that chooses replicas ([`tor`]), replicas
//! that die, stall and return ([`life`], [`replica`]), and clients that check every byte
//! ([`client`]).
//!
//! Time is nanoseconds since the start of the run ([`Nanos`]); the same seed gives the same run, packet for packet.

#![forbid(unsafe_code)]

pub mod address;
pub mod client;
pub mod conntrack;
pub mod content;
pub mod dumbbell;
pub mod experiments;
pub mod fetches;
pub mod hostile;
pub mod ids;
pub mod life;
pub mod link;
pub mod managed;
pub mod net;
pub mod packet;
pub mod random;
pub mod replica;
pub mod rng;
pub mod segment;
pub mod service;
pub mod sketch;
pub mod stats;
pub mod tcp;
pub mod tor;

/// Nanoseconds of virtual time.
pub type Nanos = u64;

/// One microsecond.
pub const MICROSECOND: Nanos = 1_000;
/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;
