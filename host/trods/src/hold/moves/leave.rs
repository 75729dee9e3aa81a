//! The leaving side of a planned move: stops sending on a drained replica's connections, and lists
//! these for their adopters.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_bpf::trods::{FlowKey, Pin};

use super::{AT_A_TIME, LISTED, Left, List, POLL, Rounds, list_key, mark_key};
use crate::hold::{HoldError, Stores, Watch};
use crate::store::{LIFETIME, Notices, RecordKeys};

/// Limit on the listed connections that their adopter has not read yet.
const AHEAD: u64 = LISTED as u64 / 2;
/// After this time no member searches for a connection that left, so the number of its record may
/// be reused.
const KEPT: Duration = Duration::from_secs(90);
/// Position of a member that does not read the list.
const NOT_READING: u64 = u64::MAX;
/// Limit on the members of a pool.
const MEMBERS: u8 = 64;

/// The services with connections that leave, and the means for it.
pub struct Leave {
    /// Prefix of the keys of this replica's records.
    pub prefix: String,
    /// The servers of this replica's store.
    pub servers: Vec<SocketAddr>,
    /// Keys with which the list is sealed.
    pub keys: RecordKeys,
    /// Services with connections that leave.
    pub services: Vec<SocketAddr>,
    /// The adopter of a connection, given its client and service.
    pub to: Box<dyn Fn(SocketAddr, SocketAddr) -> Option<Pin> + Send>,
}

impl std::fmt::Debug for Leave {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leave({})", self.prefix)
    }
}

/// The state of a planned move on the leaving replica.
#[derive(Debug, Default)]
pub struct Leaving {
    places: Vec<Place>,
    /// Connections that left, each with the time: the numbers of their records are reused after
    /// [`KEPT`].
    left: VecDeque<(Instant, FlowKey)>,
    moved: u64,
}

#[derive(Debug)]
struct Place {
    leave: Leave,
    rounds: Rounds,
    desk: Desk,
    /// Position in the list after its last entry.
    named: u64,
}

impl Leaving {
    /// Sets the services with connections that leave from now on. Connections that have left do not
    /// come back.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn set(&mut self, all: Vec<Leave>) -> Result<(), HoldError> {
        let mut before = std::mem::take(&mut self.places);
        let now = Instant::now();
        for leave in all {
            let same = before.iter().position(|place| {
                let of = |leave: &Leave| (leave.prefix.clone(), leave.servers.clone(), leave.keys.usable());
                of(&place.leave) == of(&leave)
            });
            match same {
                Some(at) => self.places.push(Place { leave, ..before.swap_remove(at) }),
                None => {
                    tracing::info!(prefix = leave.prefix, "connections move to other replicas");
                    let named = now_us();
                    let desk = Desk::open(&leave, named)?;
                    self.places.push(Place { leave, rounds: Rounds::begin(now), desk, named });
                }
            }
        }
        Ok(())
    }

    /// Time of the next step.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.places.iter().map(|place| place.rounds.deadline()).min()
    }

    /// The services with connections that leave.
    #[must_use]
    pub fn services(&self) -> Vec<SocketAddr> {
        self.places.iter().flat_map(|place| &place.leave.services).copied().collect()
    }

    /// Number of connections that have left.
    #[must_use]
    pub fn moved(&self) -> u64 {
        self.moved
    }

    /// Moves the next connections.
    ///
    /// # Errors
    /// A system call failed; connections that were not muted stay here.
    pub fn turn(&mut self, now: Instant, watch: &mut Watch<Stores>) -> Result<(), HoldError> {
        while self.left.front().is_some_and(|(at, _)| now >= *at + KEPT)
            && let Some((_, key)) = self.left.pop_front()
        {
            // A later connection between the same addresses and ports may have taken over the
            // number.
            if !watch.has(&key) && !self.left.iter().any(|(_, other)| *other == key) {
                watch.forget(&key);
            }
        }
        for place in &mut self.places {
            place.turn(now, watch, &mut self.left, &mut self.moved)?;
        }
        Ok(())
    }
}

impl Place {
    fn turn(
        &mut self,
        now: Instant,
        watch: &mut Watch<Stores>,
        left: &mut VecDeque<(Instant, FlowKey)>,
        moved: &mut u64,
    ) -> Result<(), HoldError> {
        let mut room = AT_A_TIME;
        for key in self.rounds.step(now, || watch.keys(&self.leave.services)) {
            if room == 0 {
                self.rounds.put_back(key);
                continue;
            }
            let Some(record) = watch.movable(&key)? else { continue };
            if record.is_waited_for() && self.rounds.is_early(now) {
                continue;
            }
            let Some(to) = (self.leave.to)(key.client(), key.service()) else { continue };
            let Some(number) = watch.keeper_mut().number(&key) else { continue };
            let is_behind = |read: u64| self.named.saturating_sub(read) >= AHEAD;
            if self.desk.mark(to.holder).is_none_or(is_behind) {
                continue;
            }
            watch.move_to(&key, to)?;
            tracing::debug!(client = %key.client(), holder = to.holder, "left");
            self.desk.name(Left { number, age: record.age() });
            left.push_back((now, key));
            self.named += 1;
            *moved += 1;
            room -= 1;
        }
        Ok(())
    }
}

/// Handle of the thread that writes the list and reads how far other members have read it.
#[derive(Debug)]
struct Desk {
    send: Sender<Left>,
    marks: Arc<[AtomicU64; MEMBERS as usize]>,
}

impl Desk {
    /// Starts the thread. After this handle is dropped, the thread writes what is left and ends.
    fn open(leave: &Leave, first: u64) -> Result<Desk, HoldError> {
        let marks = Arc::new([const { AtomicU64::new(NOT_READING) }; MEMBERS as usize]);
        let (send, receive) = channel();
        let (prefix, mut notices) = (leave.prefix.clone(), Notices::new(&leave.servers, &leave.keys));
        let theirs = Arc::clone(&marks);
        std::thread::Builder::new()
            .name("moves".into())
            .spawn(move || write(&prefix, List::new(first), &mut notices, &receive, &theirs))?;
        Ok(Desk { send, marks })
    }

    /// Position up to which `member` has read; `None`: it does not read the list.
    fn mark(&self, member: u8) -> Option<u64> {
        let mark = self.marks.get(usize::from(member))?.load(Ordering::Relaxed);
        (mark != NOT_READING).then_some(mark)
    }

    /// Adds a muted connection to the list.
    fn name(&self, left: Left) {
        // The thread exists, since `open` succeeded.
        let _ = self.send.send(left);
    }
}

fn write(
    prefix: &str,
    mut list: List,
    notices: &mut Notices,
    receive: &Receiver<Left>,
    marks: &[AtomicU64; MEMBERS as usize],
) {
    let (list_key, keys): (_, Vec<String>) =
        (list_key(prefix), (0..MEMBERS).map(|n| mark_key(prefix, n)).collect());
    let mut is_new = true;
    loop {
        let ends = match receive.recv_timeout(POLL) {
            Ok(left) => {
                list.push(left);
                receive.try_iter().for_each(|left| list.push(left));
                is_new = true;
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(POLL);
                true
            }
        };
        // If no server stored the list, it is written again.
        is_new = is_new && notices.put(&list_key, LIFETIME, &list.encode()) == 0;
        if ends && !is_new {
            return;
        }
        let mut read = [NOT_READING; MEMBERS as usize];
        notices.get(&keys, |place, value| {
            let told = std::str::from_utf8(value).ok().and_then(|digits| digits.parse::<u64>().ok());
            // If two servers have different positions of a member, the later one counts.
            let is_later = |told: &u64| read[place] == NOT_READING || *told > read[place];
            read[place] = told.filter(is_later).unwrap_or(read[place]);
        });
        marks.iter().zip(read).for_each(|(mark, read)| mark.store(read, Ordering::Relaxed));
    }
}

/// First position of a new list, from the clock: larger than every position of earlier lists.
fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}
