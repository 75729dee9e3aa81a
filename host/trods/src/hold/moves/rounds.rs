//! Schedules the connections that leave a replica: a few at a time, at the pace of their adopters.

use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;

/// Number of connections that leave at a time, and the pause between two such batches.
pub(crate) const AT_A_TIME: usize = 16;
const STEP: Duration = Duration::from_millis(4);
/// Number of connections that are checked in each step, and the minimum interval between checks of
/// all connections.
const LOOKED: usize = 512;
const ROUND: Duration = Duration::from_millis(20);
/// Delay before the first connection leaves. By then the ToR sends clients' segments to the
/// adopter, and the adopter has the pins of connections that have not left yet. Segments that reach
/// it earlier would be lost until the client retransmits them.
const SETTLE: Duration = Duration::from_millis(200);
/// A response that may end within this time is completed here, not moved.
const GRACE: Duration = Duration::from_secs(1);

/// The order in which connections are checked.
#[derive(Debug)]
pub(crate) struct Rounds {
    since: Instant,
    /// Connections still to check in this round, and the start of the next round.
    todo: Vec<FlowKey>,
    round_at: Instant,
    step_at: Instant,
}

impl Rounds {
    /// Starts the rounds.
    pub fn begin(now: Instant) -> Rounds {
        Rounds { since: now, todo: Vec::new(), round_at: now, step_at: now + SETTLE }
    }

    /// Time of the next step.
    pub fn deadline(&self) -> Instant {
        if self.todo.is_empty() { self.step_at.max(self.round_at) } else { self.step_at }
    }

    /// The connections to handle now. `all` is called for the whole list when a round begins.
    pub fn step(&mut self, now: Instant, all: impl FnOnce() -> Vec<FlowKey>) -> Vec<FlowKey> {
        if now < self.step_at {
            return Vec::new();
        }
        if self.todo.is_empty() && now >= self.round_at {
            self.round_at = now + ROUND;
            self.todo = all();
        }
        self.step_at = now + STEP;
        self.todo.split_off(self.todo.len().saturating_sub(LOOKED))
    }

    /// Puts back a connection that could not be moved in this step.
    pub fn put_back(&mut self, key: FlowKey) {
        self.todo.push(key);
    }

    /// Whether a response under way may still end within [`GRACE`].
    pub fn is_early(&self, now: Instant) -> bool {
        now < self.since + GRACE
    }
}
