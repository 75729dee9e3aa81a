//! Several workers, one replica: each has a packet socket and a thread of its own and takes its share of the flows.
//!
//! Nothing is shared on the way of a packet. What the workers tell each other are single numbers, each written by one
//! worker and read by the one that sends the heartbeats, and paths that take less, over bounded channels: they are
//! soft state, and what finds no room there is learned again.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::service_set::{ServiceSet, SharedServiceSet};

/// Paths told to a worker that it has not looked at yet.
const MAX_TOLD: usize = 64;

/// What one worker says of itself, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Seat {
    /// Requests in the last batch.
    load: AtomicU32,
    /// Services whose keys it found to be old.
    behind: SharedServiceSet,
    /// When it began what it is doing, microseconds; 0 while it waits for packets: the watermark of its progress.
    busy_since: AtomicU64,
}

/// A path to a client that takes packets of so many octets at most.
type Path = (IpAddr, u16);

/// What the thread of the heartbeats knows of the other replicas.
#[derive(Debug)]
struct Others {
    /// Since when the same ones are alive, microseconds; [`UNKNOWN`]: there are none, or that is not known.
    since: AtomicU64,
    /// How many have died so far.
    died: AtomicU32,
}

const UNKNOWN: u64 = u64::MAX;

/// All seats of a replica.
#[derive(Clone, Debug)]
pub(crate) struct Seats {
    seats: Arc<[Seat]>,
    others: Arc<Others>,
}

impl Seats {
    fn new(count: usize) -> Seats {
        let others = Others { since: AtomicU64::new(UNKNOWN), died: AtomicU32::new(0) };
        Seats { seats: (0..count).map(|_| Seat::default()).collect(), others: others.into() }
    }

    /// Since when the same other replicas are alive, microseconds, and how many have died so far.
    pub fn set_others(&self, since: Option<u64>, died: u32) {
        self.others.since.store(since.unwrap_or(UNKNOWN), Ordering::Relaxed);
        self.others.died.store(died, Ordering::Relaxed);
    }

    /// What [`Seats::set_others`] said last.
    pub fn others(&self) -> (Option<u64>, u32) {
        let since = self.others.since.load(Ordering::Relaxed);
        (Some(since).filter(|since| *since != UNKNOWN), self.others.died.load(Ordering::Relaxed))
    }

    /// Requests in the last batches of all.
    pub fn load(&self) -> usize {
        self.seats.iter().map(|seat| seat.load.load(Ordering::Relaxed) as usize).sum()
    }

    /// Services whose keys a worker found to be old.
    pub fn behind(&self) -> ServiceSet {
        self.seats.iter().fold(ServiceSet::default(), |all, seat| all.or(seat.behind.load()))
    }

    /// For how long a worker has been at one thing, microseconds: the longest of all. One that hangs is told by this.
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
    told: Receiver<Path>,
}

impl Place {
    /// The only place.
    pub fn alone() -> Place {
        let (_, told) = sync_channel(0);
        Place { seats: Seats::new(1), index: 0, others: Vec::new(), told }
    }

    /// So many places, the leader's first.
    pub fn all(count: usize) -> Vec<Place> {
        let seats = Seats::new(count);
        let (to, told): (Vec<_>, Vec<_>) = (0..count).map(|_| sync_channel(MAX_TOLD)).unzip();
        let others = |index| {
            let others = to.iter().enumerate().filter(move |(other, _)| *other != index);
            others.map(|(_, sender)| sender.clone()).collect()
        };
        let place = |(index, told)| Place { seats: seats.clone(), index, others: others(index), told };
        told.into_iter().enumerate().map(place).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.seats.seats.len()
    }

    /// The one that sends heartbeats and sets up what a replica needs once.
    pub fn leads(&self) -> bool {
        self.index == 0
    }

    fn own(&self) -> &Seat {
        &self.seats.seats[self.index]
    }

    /// Works from `now` on, or waits.
    pub fn set_busy(&self, now: Option<u64>) {
        self.own().busy_since.store(now.map_or(0, |now| now.max(1)), Ordering::Relaxed);
    }

    /// Requests in the last batch.
    pub fn set_load(&self, load: usize) {
        self.own().load.store(u32::try_from(load).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// The keys of the service at this place are old.
    pub fn add_behind(&self, service: usize) {
        // Only this worker writes here.
        let mut behind = self.own().behind.load();
        behind.add(service);
        self.own().behind.store(behind);
    }

    /// New keys came.
    pub fn has_news(&self) {
        self.own().behind.store(ServiceSet::default());
    }

    /// What all say.
    pub fn seats(&self) -> &Seats {
        &self.seats
    }

    /// Tells the others of a path. An error about a packet comes to any of them.
    pub fn tell(&self, client: IpAddr, mtu: u16) {
        for other in &self.others {
            // Full, or its worker has ended: the router says it again.
            let _ = other.try_send((client, mtu));
        }
    }

    /// What another worker told.
    pub fn told(&self) -> Option<Path> {
        self.told.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_knows_of_all() {
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
    fn paths_are_told_to_the_others_and_bounded() {
        let places = Place::all(2);
        let client = IpAddr::from([10, 0, 0, 1]);
        for n in 0..10 * MAX_TOLD as u16 {
            places[1].tell(client, n);
        }
        assert_eq!(places[1].told(), None);
        let told: Vec<_> = std::iter::from_fn(|| places[0].told()).collect();
        assert_eq!((told.len(), told[0]), (MAX_TOLD, (client, 0)));
        places[1].tell(client, 5);
        assert_eq!(places[0].told(), Some((client, 5)));
    }
}
