//! Planned moves: connections leave a replica that is drained, one after the other, while it lives (`docs/moves.md`).
//!
//! The record of a protected connection always has what another replica needs to resume it. So a
//! move needs only two things: this replica stops sending, and the other one learns of it. This
//! replica mutes the connection, makes its kernel forget it, and then adds it to a list beside its
//! records ([`List`]). The others read that list while they know that this replica drains, and
//! announce how far they have read: a connection is left only to a member that reads.

mod follow;
mod leave;
mod list;
mod rounds;

use std::time::Duration;

pub use follow::Followers;
pub use leave::{Leave, Leaving};
pub use list::{LISTED, Left, List};
pub(crate) use rounds::{AT_A_TIME, Rounds};

/// Interval at which the other members' marks are read.
const POLL: Duration = Duration::from_millis(4);

/// The key of the list of a replica's connections that were left.
fn list_key(prefix: &str) -> String {
    format!("{prefix}.left")
}

/// The key under which a member announces how far it has read.
fn mark_key(prefix: &str, reader: u8) -> String {
    format!("{prefix}.left.{reader}")
}
