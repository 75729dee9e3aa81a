//! Planned moves: connections leave a replica that is drained, one after the other, while it lives (`docs/moves.md`).
//!
//! The record of a protected connection says at any moment how another replica goes on with it. So a move needs no more than
//! that this one is silent from now on, which only itself can know, and that the other one hears of it: this one mutes the
//! connection, has its kernel forget it, and only then names it in a list beside its records ([`List`]). The others read that
//! list while they know that it drains, and say how far they have read: nothing is left to who does not read.

mod follow;
mod leave;
mod list;
mod rounds;

use std::time::Duration;

pub use follow::Followers;
pub use leave::{Leave, Leaving};
pub use list::{LISTED, Left, List};
pub(crate) use rounds::{AT_A_TIME, Rounds};

/// Between two looks at the others' word.
const POLL: Duration = Duration::from_millis(4);

/// The key of the list of a replica's connections that were left.
fn list_key(prefix: &str) -> String {
    format!("{prefix}.left")
}

/// The key under which a member says how far it has read.
fn mark_key(prefix: &str, reader: u8) -> String {
    format!("{prefix}.left.{reader}")
}
