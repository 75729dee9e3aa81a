//! An emulated link: rate, delay with jitter, loss, duplication, reordering, an ECN threshold, and
//! a queue with a limit in packets.
//!
//! - [`Shaper`] is the model of one direction. It has no clock and no packets: the caller passes
//!   times in nanoseconds and any items. The same seed and calls give the same result, in virtual
//!   time as in real time.
//! - [`Link`] is a shaper with memory for frames; the ports of the embedded switch send through it.
//! - [`Wire`] joins two interfaces by a link in each direction. The program `rivulet-wire` runs
//!   one, and its settings can be changed through a [`control`] socket.
//!
//! In steady state no packet allocates memory, and the settings bound the memory.

pub mod control;
mod ecn;
mod link;
pub mod poll;
mod rng;
mod settings;
mod shaper;
mod slab;
mod wire;

pub use ecn::mark_congestion;
pub use link::{Link, LinkCounters};
pub use rng::Rng;
pub use settings::{SettingError, Settings};
pub use shaper::{Counters, Delivery, DropReason, Shaper};
pub use wire::{Direction, Wire, WireError, WireOptions};
