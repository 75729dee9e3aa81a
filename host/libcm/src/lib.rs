//! The Congestion Manager's library for programs of users: the paper's libcm (Andersen, Bansal, Curtis, Seshan and Balakrishnan,
//! OSDI 2000, §2.2), over the calls that `rivulet cm serve` hands out.
//!
//! A [`Client`] has the paper's calls, which are [`rivulet_cm::Manager`]'s too. It
//!
//! 1. [opens](Client::open) a flow for a UDP socket; flows of one user to one address with one code point share a window;
//! 2. [requests](Client::request) to send, and is told by [`Event::Send`] from [`Client::poll`] that it may send a datagram of up
//!    to an MTU. What it sends the kernel counts by itself; by [`Client::decline`] it leaves its turn to another flow;
//! 3. says by [`Client::update`] what became of it, as its receiver told it;
//! 4. may [ask](Client::query) for its share, or be told of changes ([`Client::register_update`], [`Client::thresh`]).
//!
//! [`AsFd`](std::os::fd::AsFd) of a client is one descriptor for `select`, `poll` and `epoll`: it can be read from while events
//! wait. The calls run in the kernel, by the descriptors of programs that the door passed on; where a sandbox forbids bpf(2) they go
//! through the door's process ([`Client::proxied`]).

pub mod abi;
mod client;
pub mod door;
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
