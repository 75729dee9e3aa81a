//! The Congestion Manager (Andersen, Bansal, Curtis, Seshan and Balakrishnan, OSDI 2000; RFC 3124):
//! one congestion controller for all flows to one destination, whatever their protocol.
//!
//! [`Manager`] implements the paper's calls. It does no I/O and reads no clock: the client sends
//! the packets and passes the time to every call that needs it. A client
//!
//! 1. [opens](Manager::open) a flow. Flows to one address with one code point form a macroflow.
//!    They share its window and round trip time, and a new flow starts with its history.
//! 2. [requests](Manager::request) to send. [`Event::Send`] from [`Manager::poll`] grants it one
//!    packet of up to an MTU, and the client reports the bytes that it sent by [`Manager::notify`].
//! 3. reports by [`Manager::update`] which bytes its receiver acknowledged and which were lost.
//! 4. may [query](Manager::query) its share, or subscribe to changes ([`Manager::register_update`],
//!    [`Manager::thresh`]).
//!
//! Each call can create events, and [`Manager::poll_timeout`] returns the time of the next call of
//! [`Manager::handle_timeout`].
//!
//! | the paper, RFC 3124 | here |
//! |---|---|
//! | `cm_open`, `cm_close`, `cm_mtu` | [`Manager::open`], [`Manager::close`], [`Manager::mtu`] |
//! | `cm_request`, `cm_notify`, `cm_update`, `cm_query` and the bulk calls | the same names |
//! | `cm_register_send`, `cmapp_send` | [`Manager::register_send`], [`Event::Send`] |
//! | `cm_register_update`, `cm_thresh`, `cmapp_update` | [`Manager::register_update`], [`Manager::thresh`], [`Event::Update`] |
//! | `cm_getmacroflow`, `cm_setmacroflow` | [`Manager::macroflow`], [`Manager::set_macroflow`], [`Manager::split`] |
//! | a client that cannot be called | [`Manager::pull`] |

#![forbid(unsafe_code)]

pub mod controller;
mod error;
mod event;
mod flow;
mod group;
mod ids;
mod macroflow;
mod manager;
mod pace;
pub mod scheduler;
mod thresholds;

/// Nanoseconds of a monotonic clock that is never 0; the caller chooses the clock.
pub type Nanos = u64;

/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;

pub use controller::{Aimd, Congestion, Controller, Rules};
pub use error::Error;
pub use event::{Event, Status, Update};
pub use flow::Key;
pub use group::{Group, Member};
pub use ids::{FlowId, MacroflowId};
pub use manager::{Config, MAX_BULK, Manager};
pub use thresholds::Thresholds;
