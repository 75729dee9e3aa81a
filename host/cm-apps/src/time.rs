//! The clock of the journal and the datagrams.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub type Nanos = u64;

/// One second.
pub(crate) const SECOND: Nanos = 1_000_000_000;
/// One millisecond.
pub(crate) const MILLISECOND: Nanos = 1_000_000;

/// The time.
#[must_use]
pub fn now() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64
}
