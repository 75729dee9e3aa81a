//! Connections that leave a replica, a few at a time: as fast as others go on with them.

use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;

/// So many are left at a time, and the next ones so much later.
pub(crate) const AT_A_TIME: usize = 16;
const STEP: Duration = Duration::from_millis(4);
/// So many are looked at meanwhile, and all of them again after this.
const LOOKED: usize = 512;
const ROUND: Duration = Duration::from_millis(20);
/// By then the ToR sends what clients say to who goes on with it, and that one knows who holds what until it is left: what comes
/// earlier would be lost, and come again much later.
const SETTLE: Duration = Duration::from_millis(200);
/// A response that is over so soon is not moved.
const GRACE: Duration = Duration::from_secs(1);

/// Which of them are looked at when.
#[derive(Debug)]
pub(crate) struct Rounds {
    since: Instant,
    /// What is still to be looked at in this round, and when the next one begins.
    todo: Vec<FlowKey>,
    round_at: Instant,
    step_at: Instant,
}

impl Rounds {
    /// They begin to leave.
    pub fn begin(now: Instant) -> Rounds {
        Rounds { since: now, todo: Vec::new(), round_at: now, step_at: now + SETTLE }
    }

    /// When there is something to do.
    pub fn deadline(&self) -> Instant {
        if self.todo.is_empty() { self.step_at.max(self.round_at) } else { self.step_at }
    }

    /// Those to be looked at now; `all` of them are asked for when a round begins.
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

    /// There was no room for one in this step.
    pub fn put_back(&mut self, key: FlowKey) {
        self.todo.push(key);
    }

    /// Whether a response under way may be over soon.
    pub fn is_early(&self, now: Instant) -> bool {
        now < self.since + GRACE
    }
}
