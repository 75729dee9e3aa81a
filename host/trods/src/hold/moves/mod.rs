//! Planned moves: connections leave a drained replica while it is alive (`docs/moves.md`).
//!
//! The record of a protected connection always has what another replica needs to resume it. So a
//! move needs only two steps: this replica stops sending, and the adopter is informed. This replica
//! mutes the connection, removes it from its kernel, and then adds it to a list in the store
//! ([`List`]). The other members read the list of each replica that is being drained, and announce
//! how far they have read. A connection is listed only for a member that reads.

mod follow;
mod leave;
mod list;
mod rounds;

use std::time::Duration;

pub use follow::Followers;
pub use leave::{Leave, Leaving};
pub use list::{LISTED, Left, List};
pub(crate) use rounds::{AT_A_TIME, Rounds};

/// Interval at which the other members' positions are read.
const POLL: Duration = Duration::from_millis(4);

/// The store's key of a replica's list.
fn list_key(prefix: &str) -> String {
    format!("{prefix}.left")
}

/// The store's key under which member `reader` announces how far it has read.
fn mark_key(prefix: &str, reader: u8) -> String {
    format!("{prefix}.left.{reader}")
}
