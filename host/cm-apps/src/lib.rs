//! The applications of the Congestion Manager's paper (Andersen, Bansal, Curtis, Seshan and Balakrishnan, OSDI 2000, §3.4, §3.6
//! and §4.4), by `host/libcm`: a server of layered streams, and a relay that makes unmodified audio adaptive.
//!
//! | | |
//! |---|---|
//! | [`wire`] | the datagrams between the two ends |
//! | [`admission`] | a stream goes only to who asked for it from its own address |
//! | [`outstanding`] | what the receiver's reports say became of which packets |
//! | [`layers`] | which layer fits; layered content by request and callback (ALF) and by rate callback |
//! | [`audio`] | policer and application buffer (the paper's Figure 2) |
//! | [`session`], [`server`] | one receiver's stream; all of them, on one socket and one ring |
//! | [`receiver`], [`receive`] | what a receiver counts and when it reports; its loop |
//! | [`journal`] | what both ends write of it: JSON lines |
//!
//! A crate of its own, not examples of the library: two programs share the protocol, its loss detection and the journal,
//! demo, benches and tests run them as binaries, and the library would otherwise depend on what only they need. Nothing here
//! has rights: it is what a user's program looks like.

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
