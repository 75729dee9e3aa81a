//! The Congestion Manager (Andersen, Bansal, Curtis, Seshan and Balakrishnan, OSDI 2000; RFC 3124): one congestion controller
//! for all flows to one destination, whatever protocols they are of.
//!
//! [`Manager`] has the paper's calls. It does no I/O and reads no clock: packets are the clients' affair, and every call that
//! something depends on takes the time. A client
//!
//! 1. [opens](Manager::open) a flow; flows to one address with one code point are a macroflow, whose window and round trip time
//!    they share, and whose history a new one finds;
//! 2. [requests](Manager::request) to send, is told by [`Event::Send`] from [`Manager::poll`] that it may send a packet of up to
//!    an MTU, and says by [`Manager::notify`] what it sent;
//! 3. says by [`Manager::update`] what became of it, as its receiver told it;
//! 4. may [ask](Manager::query) for its share, or be told of changes ([`Manager::register_update`], [`Manager::thresh`]).
//!
//! After each call there may be events, and [`Manager::poll_timeout`] says when [`Manager::handle_timeout`] wants to be called.
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
mod flow;
mod group;
mod macroflow;
mod manager;
mod pace;
pub mod scheduler;
mod thresholds;

/// Nanoseconds of a clock that never goes back and is not 0; which one is the caller's choice.
pub type Nanos = u64;

/// One millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// One second.
pub const SECOND: Nanos = 1_000_000_000;

pub use controller::{Aimd, Congestion, Controller, Rules};
pub use error::Error;
pub use flow::{FlowId, Key};
pub use group::{Group, Member};
pub use macroflow::MacroflowId;
pub use manager::{Config, Event, MAX_BULK, Manager, Status, Update};
pub use thresholds::Thresholds;
