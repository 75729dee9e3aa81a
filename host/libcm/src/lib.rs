//! The Congestion Manager's user library: the paper's libcm (Andersen, Bansal, Curtis, Seshan and
//! Balakrishnan, OSDI 2000, §2.2), over the kernel programs that `rivulet cm serve` passes to
//! clients.
//!
//! A [`Client`] has the same calls as [`rivulet_cm::Manager`]. It
//!
//! 1. [opens](Client::open) a flow for a UDP socket. Flows of one user to one address with one code
//!    point share a window.
//! 2. [requests](Client::request) to send. [`Event::Send`] from [`Client::poll`] grants it one
//!    datagram of up to an MTU. The kernel counts what it sends; [`Client::decline`] passes the
//!    grant to another flow.
//! 3. reports by [`Client::update`] which bytes its receiver acknowledged and which were lost.
//! 4. may [query](Client::query) its share, or subscribe to changes ([`Client::register_update`],
//!    [`Client::thresh`]).
//!
//! [`AsFd`](std::os::fd::AsFd) of a client is one descriptor for `select`, `poll` and `epoll`,
//! readable while events wait. Calls run kernel programs through the descriptors that the daemon
//! passed. Where a sandbox forbids bpf(2), they go through the daemon's process
//! ([`Client::proxied`]).

pub mod abi;
mod client;
pub mod daemon;
mod error;
mod ffi;
pub mod path;
mod ring;
mod run;
mod sigio;
mod udp;

pub use client::{Client, Event, FlowId, MacroflowId};
pub use error::Error;
pub use rivulet_cm::{Congestion, Key, MAX_BULK, Status, Thresholds, Update};
pub use run::{Calls, Descriptors, run};
pub use udp::CmUdp;
