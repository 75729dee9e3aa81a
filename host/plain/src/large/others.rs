//! What is known of the replicas beside this one: whether what they remember lasts.
//!
//! A client whose every octet is acknowledged repeats nothing, so it has no timer that can end the connection (TCP_USER_TIMEOUT
//! counts while anything is not acknowledged), and none that wakes somebody when all who remember it are dead. It is left without
//! only where somebody else is known to remember it, and nobody has died for a while.

use crate::large::clock::Time;

/// For so long nobody came or went, microseconds: replicas that die one behind the other take what each remembers along.
const STEADY: Time = 10_000_000;
/// For so long who comes may be one that had no room here before.
const CROWDED: Time = 3_600_000_000;

#[derive(Clone, Debug)]
pub(super) struct Others {
    /// Since when the same replicas are alive, this one not alone; none if that is not so, or not known.
    since: Option<Time>,
    /// How many have died so far.
    died: u32,
    /// When this replica last forgot a connection that it had, for want of room: who comes next may be that one.
    forgot: Option<Time>,
}

impl Others {
    pub(super) const UNKNOWN: Others = Others { since: None, died: 0, forgot: None };

    /// The same others are alive since then, none if that is not known, and so many have died so far; whether these are others than before.
    pub(super) fn know(&mut self, since: Option<Time>, died: u32) -> bool {
        self.since = since;
        std::mem::replace(&mut self.died, died) != died
    }

    /// A connection found no room any more that was with this replica.
    pub(super) fn forget(&mut self, now: Time) {
        self.forgot = Some(now);
    }

    /// Whether another replica remembers a connection that was another's when this one got it, at `shared`.
    pub(super) fn remember(&self, shared: Option<Time>, now: Time) -> bool {
        let (Some(since), Some(shared)) = (self.since, shared) else { return false };
        let crowded = self.forgot.is_some_and(|then| now < then.saturating_add(CROWDED));
        !crowded && since <= shared && now >= since.saturating_add(STEADY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_died_remembers_nothing() {
        let mut others = Others::UNKNOWN;
        assert!(!others.remember(Some(50_000_000), 60_000_000), "nobody is known");
        assert!(!others.know(Some(20_000_000), 0));
        assert!(others.remember(Some(25_000_000), 30_000_000));
        assert!(!others.remember(Some(25_000_000), 29_999_999), "somebody died a moment ago");
        assert!(!others.remember(Some(19_999_999), 60_000_000), "who had it may have died since");
        assert!(!others.remember(None, 60_000_000), "nobody else had it");
        others.forget(30_000_000);
        assert!(!others.remember(Some(31_000_000), 3_629_999_999), "it may have been this one that had it");
        assert!(others.remember(Some(31_000_000), 3_630_000_000));
        assert!(others.know(None, 1) && !others.know(None, 1));
        assert!(!others.remember(Some(31_000_000), 3_630_000_000));
    }
}
