//! An emulated link: rate, delay with jitter, loss, duplication, reordering, an ECN threshold, and a
//! queue of so many packets.
//!
//! - [`Shaper`] is the model of one direction. It knows no clock and no packet: times are nanoseconds
//!   that the caller gives, items are whatever the caller puts in. The same seed and the same calls
//!   give the same result, in virtual time as in real.
//! - [`Link`] is a shaper with memory for frames: what a port of the embedded switch sends through.
//! - [`Wire`] joins two interfaces by a link in each direction; `rivulet-wire` is that as a program,
//!   its settings changed at run time through a [`control`] socket.
//!
//! In steady state nothing is allocated per packet; memory is bounded by the settings.

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
