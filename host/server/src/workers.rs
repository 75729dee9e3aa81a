//! Several workers of one replica: each has a packet socket and a thread, and handles its share of
//! the flows.
//!
//! The packet path shares nothing. Workers exchange single numbers, each written by one worker and
//! read by the leader, which sends the heartbeats, and reduced path MTUs, over bounded channels.
//! All of this is soft state; what finds no room is learned again.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::service_set::{ServiceSet, SharedServiceSet};

/// Path MTUs queued for a worker.
const MAX_REPORTED: usize = 64;

/// State that one worker publishes, on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Seat {
    /// Requests in the last batch.
    load: AtomicU32,
    /// Services with keys that this worker found to be outdated.
    behind: SharedServiceSet,
    /// When it began its current task, microseconds; 0 while it waits for packets.
    busy_since: AtomicU64,
}

/// The MTU of a path to a client, in bytes.
type Path = (IpAddr, u16);

/// What the heartbeat thread knows of the other replicas.
#[derive(Debug)]
struct Peers {
    /// Since when the set of live replicas is unchanged, microseconds; [`UNKNOWN`]: there are no
    /// others, or it is not known.
    since: AtomicU64,
    /// How many replicas have died so far.
    died: AtomicU32,
}

const UNKNOWN: u64 = u64::MAX;

/// The published state of all workers of a replica.
#[derive(Clone, Debug)]
pub(crate) struct Seats {
    seats: Arc<[Seat]>,
    peers: Arc<Peers>,
}

impl Seats {
    fn new(count: usize) -> Seats {
        let peers = Peers { since: AtomicU64::new(UNKNOWN), died: AtomicU32::new(0) };
        Seats { seats: (0..count).map(|_| Seat::default()).collect(), peers: peers.into() }
    }

    /// Since when the set of other live replicas is unchanged, microseconds, and how many have died
    /// so far.
    pub fn set_peers(&self, since: Option<u64>, died: u32) {
        self.peers.since.store(since.unwrap_or(UNKNOWN), Ordering::Relaxed);
        self.peers.died.store(died, Ordering::Relaxed);
    }

    /// The values of the last [`Seats::set_peers`].
    pub fn peers(&self) -> (Option<u64>, u32) {
        let since = self.peers.since.load(Ordering::Relaxed);
        (Some(since).filter(|since| *since != UNKNOWN), self.peers.died.load(Ordering::Relaxed))
    }

    /// Requests in the last batches, over all workers.
    pub fn load(&self) -> usize {
        self.seats.iter().map(|seat| seat.load.load(Ordering::Relaxed) as usize).sum()
    }

    /// Services with keys that a worker found to be outdated.
    pub fn behind(&self) -> ServiceSet {
        self.seats.iter().fold(ServiceSet::default(), |all, seat| all.or(seat.behind.load()))
    }

    /// The longest time that a worker has been busy with one task, microseconds. Detects a hanging
    /// worker.
    pub fn oldest(&self, now: u64) -> u64 {
        let since =
            self.seats.iter().map(|seat| seat.busy_since.load(Ordering::Relaxed)).filter(|since| *since != 0);
        since.map(|since| now.saturating_sub(since)).max().unwrap_or(0)
    }
}

/// A worker's place among the workers of its replica.
#[derive(Debug)]
pub(crate) struct Place {
    seats: Seats,
    index: usize,
    others: Vec<SyncSender<Path>>,
    reported: Receiver<Path>,
}

impl Place {
    /// The only worker.
    pub fn alone() -> Place {
        let (_, reported) = sync_channel(0);
        Place { seats: Seats::new(1), index: 0, others: Vec::new(), reported }
    }

    /// Makes places for `count` workers, the leader's first.
    pub fn all(count: usize) -> Vec<Place> {
        let seats = Seats::new(count);
        let (to, reported): (Vec<_>, Vec<_>) = (0..count).map(|_| sync_channel(MAX_REPORTED)).unzip();
        let others = |index| {
            let others = to.iter().enumerate().filter(move |(other, _)| *other != index);
            others.map(|(_, sender)| sender.clone()).collect()
        };
        let place =
            |(index, reported)| Place { seats: seats.clone(), index, others: others(index), reported };
        reported.into_iter().enumerate().map(place).collect()
    }

    /// The number of workers.
    pub fn count(&self) -> usize {
        self.seats.seats.len()
    }

    /// Whether this is the leader, which sends heartbeats and sets up what a replica needs once.
    pub fn leads(&self) -> bool {
        self.index == 0
    }

    fn own(&self) -> &Seat {
        &self.seats.seats[self.index]
    }

    /// Records the start of a task, or waiting (`None`).
    pub fn set_busy(&self, now: Option<u64>) {
        self.own().busy_since.store(now.map_or(0, |now| now.max(1)), Ordering::Relaxed);
    }

    /// Records the requests in the last batch.
    pub fn set_load(&self, load: usize) {
        self.own().load.store(u32::try_from(load).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Records that the keys of the service at this index are outdated.
    pub fn add_behind(&self, service: usize) {
        // Only this worker writes here.
        let mut behind = self.own().behind.load();
        behind.add(service);
        self.own().behind.store(behind);
    }

    /// Clears the record of services with outdated keys, because new keys have come.
    pub fn has_news(&self) {
        self.own().behind.store(ServiceSet::default());
    }

    /// The published state of all workers.
    pub fn seats(&self) -> &Seats {
        &self.seats
    }

    /// Reports a path MTU to the other workers: the ICMP error about a packet may reach any worker.
    pub fn report_path(&self, client: IpAddr, mtu: u16) {
        for other in &self.others {
            // If the channel is full or its worker has ended, a router will report the MTU again.
            let _ = other.try_send((client, mtu));
        }
    }

    /// Takes a path MTU reported by another worker.
    pub fn take_reported_path(&self) -> Option<Path> {
        self.reported.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_sees_the_state_of_all_workers() {
        let places = Place::all(3);
        assert_eq!(places.iter().map(Place::leads).collect::<Vec<_>>(), [true, false, false]);
        for (n, place) in places.iter().enumerate() {
            place.set_load(10 + n);
        }
        places[1].add_behind(2);
        places[2].add_behind(200);
        let seats = places[0].seats();
        assert_eq!((seats.load(), seats.behind()), (33, [2, 200].into_iter().collect()));
        places[2].has_news();
        assert_eq!(seats.behind(), [2].into_iter().collect());
        assert_eq!(seats.oldest(500), 0, "all wait");
        places[0].set_busy(Some(100));
        assert_eq!(seats.oldest(500), 400, "the leader too may hang");
        places[0].set_busy(None);
        places[1].set_busy(Some(450));
        places[2].set_busy(Some(0));
        assert_eq!(seats.oldest(500), 499);
        places[2].set_busy(None);
        assert_eq!(seats.oldest(500), 50);
    }

    #[test]
    fn reported_paths_reach_other_workers_and_are_bounded() {
        let places = Place::all(2);
        let client = IpAddr::from([10, 0, 0, 1]);
        for n in 0..10 * MAX_REPORTED as u16 {
            places[1].report_path(client, n);
        }
        assert_eq!(places[1].take_reported_path(), None);
        let reported: Vec<_> = std::iter::from_fn(|| places[0].take_reported_path()).collect();
        assert_eq!((reported.len(), reported[0]), (MAX_REPORTED, (client, 0)));
        places[1].report_path(client, 5);
        assert_eq!(places[0].take_reported_path(), Some((client, 5)));
    }
}
