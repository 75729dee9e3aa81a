//! Lifetimes of replicas: when each one is up, dead, stalled or sick, fixed before the run.

use crate::Nanos;

/// State of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// It serves requests.
    #[default]
    Up,
    /// It drops all packets and sends none.
    Dead,
    /// It sends nothing and processes incoming packets when it resumes.
    Stalled,
    /// It sends heartbeats as ready but drops all requests.
    Sick,
}

/// A replica's state over time: up at first, then each state from its time on.
#[derive(Debug, Clone, Default)]
pub struct Life {
    changes: Vec<(Nanos, State)>,
}

impl Life {
    /// Creates a life with these changes in order of time.
    ///
    /// # Panics
    /// If the times do not ascend, which is an error of the scenario.
    pub fn new(changes: Vec<(Nanos, State)>) -> Self {
        assert!(changes.is_sorted_by_key(|c| c.0), "changes in order");
        Self { changes }
    }

    /// The state at a time.
    pub fn at(&self, now: Nanos) -> State {
        self.changes.iter().rev().find(|c| c.0 <= now).map_or(State::Up, |c| c.1)
    }

    /// When a stalled replica resumes; `None` if never.
    pub fn resumes(&self, now: Nanos) -> Option<Nanos> {
        self.changes.iter().find(|c| c.0 > now && c.1 != State::Stalled).map(|c| c.0)
    }

    /// Time of the last heartbeat until `now`, if heartbeats are sent at every multiple of
    /// `interval` while the replica is up or sick. `None` before the first one.
    fn last_heartbeat(&self, now: Nanos, interval: Nanos) -> Option<Nanos> {
        let beats = |state| matches!(state, State::Up | State::Sick);
        let mut end = now + 1; // exclusive end of the span examined
        for (from, state) in self.changes.iter().rev().copied().chain([(0, State::Up)]) {
            if from >= end {
                continue;
            }
            let last = (end - 1) / interval * interval;
            if beats(state) && last >= from {
                return Some(last);
            }
            end = from;
        }
        None
    }

    /// Whether a ToR excludes this replica at `now`. The ToR excludes a replica after `bound`
    /// without a heartbeat and readmits it after three heartbeats within `bound`.
    pub fn excluded(&self, now: Nanos, interval: Nanos, bound: Nanos) -> bool {
        let Some(last) = self.last_heartbeat(now, interval) else { return true };
        if now - last > bound {
            return true;
        }
        // Readmitted only after three heartbeats in a row; before its first gap it was never
        // excluded.
        let Some(start) = self.spell(last) else { return false };
        last < start.div_ceil(interval) * interval + 2 * interval
    }

    /// Start of the run of heartbeats that contains `at`; `None`: since the start.
    fn spell(&self, at: Nanos) -> Option<Nanos> {
        let beats = |state| matches!(state, State::Up | State::Sick);
        let mut start = None;
        for (from, state) in self.changes.iter().copied().take_while(|c| c.0 <= at) {
            match (beats(state), start) {
                (true, None) => start = Some(from),
                (false, _) => start = None,
                _ => {}
            }
        }
        // Up since the start without a gap.
        let silent_before = self.changes.iter().any(|c| c.0 <= at && !beats(c.1));
        if silent_before { start } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusion_follows_missing_heartbeats_and_ends_after_three() {
        let life = Life::new(vec![(1_000, State::Dead), (5_000, State::Up)]);
        assert_eq!((life.at(999), life.at(1_000), life.at(6_000)), (State::Up, State::Dead, State::Up));
        let excluded = |now| life.excluded(now, 10, 100);
        // The last heartbeat was at 990.
        assert!(!excluded(0) && !excluded(1_090) && excluded(1_091));
        // Heartbeats resume at 5000, 5010, 5020.
        assert!(excluded(5_000) && excluded(5_019) && !excluded(5_020));
        assert!(!Life::default().excluded(12_345, 10, 100));
    }

    #[test]
    fn a_sick_replica_is_not_excluded_and_a_stalled_one_is() {
        let life = Life::new(vec![(100, State::Sick), (1_000, State::Stalled), (2_000, State::Up)]);
        assert!(!life.excluded(900, 10, 50));
        assert!(life.excluded(1_500, 10, 50));
        assert_eq!(life.resumes(1_500), Some(2_000));
    }
}
