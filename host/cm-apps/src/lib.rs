//! The applications of the Congestion Manager's paper (Andersen, Bansal, Curtis, Seshan and Balakrishnan, OSDI 2000, §3.4, §3.6
//! and §4.4), by `host/libcm`: a server of layered streams, and a relay that makes unmodified audio adaptive.
//!
//! | | |
//! |---|---|
//! | [`wire`] | the datagrams between the two ends |
//! | [`admission`] | address validation before a stream is sent |
//! | [`outstanding`] | tracks which packets arrived, are lost or are outstanding, from the receiver's reports |
//! | [`layers`] | which layer fits; layered content by request and callback (ALF) and by rate callback |
//! | [`audio`] | policer and application buffer (the paper's Figure 2) |
//! | [`session`], [`server`] | one receiver's stream; all streams, on one socket and one event ring |
//! | [`receiver`], [`receive`] | counts what arrived and schedules reports; the receiver's loop |
//! | [`journal`] | JSON lines that both ends write |
//!
//! This is a crate of its own, not an example of the library: two programs share the protocol, its
//! loss detection and the journal, and the demo, benches and tests run them as binaries. It needs
//! no privileges, like any user's program.

pub mod admission;
pub mod audio;
pub mod journal;
pub mod layers;
pub mod outstanding;
pub mod receive;
pub mod receiver;
pub mod server;
pub mod session;
mod source;
mod time;
pub mod wire;

pub use source::{Next, Source};
pub use time::{Nanos, now};
