//! Tracks whether the other replicas' soft state is reliable.
//!
//! A client without unacknowledged data retransmits nothing. So no timer can end its connection
//! (TCP_USER_TIMEOUT counts while data is unacknowledged), and none wakes a replica when all with
//! its state are dead. All data is acknowledged only while another replica is known to have the
//! client's state and no replica has died for a while (`docs/plain.md`).

use crate::codec::Flow;
use crate::large::clock::Time;

/// Time without a change of the live set, microseconds: replicas that die one after the other take
/// their state along.
const STEADY: Time = 10_000_000;
/// For this long a client without an entry may be one that had no room before.
const CROWDED: Time = 3_600_000_000;

/// The latest connection that a set of the table had no room for, and that this replica had.
///
/// A segment of that connection may come back here later, and would look as if another replica had sent the earlier part.
#[derive(Clone, Copy, Debug)]
struct Eviction {
    at: Time,
    /// The client's network; none if the set evicted connections of several networks within [`CROWDED`].
    network: Option<[u32; 4]>,
}

#[derive(Clone, Debug)]
pub(super) struct Others {
    /// Since when the set of live peers is unchanged; `None` without peers, or if it is unknown.
    since: Option<Time>,
    /// Number of peers that have died so far.
    died: u32,
    /// The latest eviction of each set of the connection table. It is kept by set because an evicted
    /// connection can only come back to the same set. A client that chooses its ports can fill a set
    /// with five connections, and then spoils the judgement of that set alone.
    evictions: Box<[Option<Eviction>]>,
}

impl Others {
    /// Nothing is known of other replicas; the table has this many sets.
    pub(super) fn unknown(sets: usize) -> Others {
        Others { since: None, died: 0, evictions: vec![None; sets].into() }
    }

    /// Bytes on the heap.
    pub(super) fn octets(&self) -> usize {
        size_of_val(&*self.evictions)
    }

    /// Records since when the set of live peers is unchanged (`None`: unknown) and how many peers
    /// have died so far. Returns whether that number has changed.
    pub(super) fn know(&mut self, since: Option<Time>, died: u32) -> bool {
        self.since = since;
        std::mem::replace(&mut self.died, died) != died
    }

    /// Records that `set` had no room any more for a connection that was with this replica.
    pub(super) fn evict(&mut self, set: usize, flow: &Flow, now: Time) {
        let network = flow.network();
        let before = self.evictions[set].filter(|before| before.is_recent(now));
        let only = before.is_none_or(|before| before.network == Some(network));
        self.evictions[set] = Some(Eviction { at: now, network: only.then_some(network) });
    }

    /// Whether another replica remembers a connection of `set` that was another's when this one got it, at `shared`.
    pub(super) fn remember(&self, set: usize, flow: &Flow, shared: Option<Time>, now: Time) -> bool {
        let (Some(since), Some(shared)) = (self.since, shared) else { return false };
        let may_be_own = self.evictions[set].is_some_and(|evicted| {
            evicted.is_recent(now) && evicted.network.is_none_or(|network| network == flow.network())
        });
        !may_be_own && since <= shared && now >= since.saturating_add(STEADY)
    }
}

impl Eviction {
    fn is_recent(&self, now: Time) -> bool {
        now < self.at.saturating_add(CROWDED)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr, SocketAddr};

    use super::*;

    fn flow(client: IpAddr, port: u16) -> Flow {
        Flow::new((client, port).into(), SocketAddr::from(([10, 9, 0, 1], 80)))
    }

    #[test]
    fn dead_replicas_do_not_count_as_remembering() {
        let mut others = Others::unknown(1);
        let one = flow([10, 0, 0, 1].into(), 1000);
        let remember = |others: &Others, shared, now| others.remember(0, &one, shared, now);
        assert!(!remember(&others, Some(50_000_000), 60_000_000), "no other replica is known");
        assert!(!others.know(Some(20_000_000), 0));
        assert!(remember(&others, Some(25_000_000), 30_000_000));
        assert!(!remember(&others, Some(25_000_000), 29_999_999), "a replica died a moment ago");
        assert!(
            !remember(&others, Some(19_999_999), 60_000_000),
            "the replica that had it may have died since"
        );
        assert!(!remember(&others, None, 60_000_000), "no other replica had it");
        others.evict(0, &one, 30_000_000);
        assert!(
            !remember(&others, Some(31_000_000), 3_629_999_999),
            "it may have been this replica that had it"
        );
        assert!(remember(&others, Some(31_000_000), 3_630_000_000));
        assert!(others.know(None, 1) && !others.know(None, 1));
        assert!(!remember(&others, Some(31_000_000), 3_630_000_000));
    }

    #[test]
    fn evictions_count_for_their_set_and_network() {
        let mut others = Others::unknown(2);
        others.know(Some(0), 0);
        let remember = |others: &Others, set, client| {
            others.remember(set, &flow(client, 1000), Some(20_000_000), 40_000_000)
        };
        let v6 = |last| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, last));
        let (one, two): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        others.evict(0, &flow(one, 5000), 30_000_000);
        others.evict(0, &flow(one, 5001), 30_000_000);
        assert!(!remember(&others, 0, one));
        assert!(remember(&others, 0, two), "of another client");
        assert!(remember(&others, 1, one), "of another set");
        others.evict(0, &flow(two, 5000), 31_000_000);
        assert!(!remember(&others, 0, one) && !remember(&others, 0, v6(1)), "of several networks");
        others.evict(1, &flow(v6(1), 5000), 30_000_000);
        assert!(!remember(&others, 1, v6(2)), "of the same 64 bits");
        assert!(remember(&others, 1, one));
        // An hour after the first ones only the latest counts.
        others.evict(0, &flow(two, 5000), 3_631_000_000);
        assert!(others.remember(0, &flow(one, 1000), Some(20_000_000), 3_640_000_000));
    }
}
