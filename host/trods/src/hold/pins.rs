//! Reads the pins: which connections other replicas hold although their segments may arrive here,
//! because they were adopted while this replica was excluded. It reads them from the other
//! replicas' records before it gets connections again, and forwards those connections' segments to
//! their holders.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rivulet_bpf::trods::{FlowKey, Pin};

use super::{HoldError, PATIENCE};
use crate::record::{Age, Record};
use crate::store::{self, RecordKeys};

/// Pause before a store that did not answer is read again.
const RETRY: Duration = Duration::from_millis(250);
/// Longest time without an answer for which the replica waits: clients of connections that no
/// replica holds are reset within two seconds.
const WAITS: Duration = Duration::from_secs(2);
/// Time for which reading is repeated.
const REPEATS: Duration = Duration::from_secs(20);
/// Pause before a store that was away is read once more. It may have lost its records, and by then
/// the holders have stored theirs again.
const STORED_AGAIN: Duration = Duration::from_secs(1);

/// A time in which this replica was excluded, with the replicas that were alive; or a change of the
/// live set while it was present, after which it may get connections of other replicas.
pub struct Absence {
    /// Number of the absence: index of the lease, and a count. Passed back when the absence ends.
    pub number: (u32, u64),
    /// The other live members: index in the pool, prefix of the keys of their records, and the keys
    /// that seal these.
    pub others: Vec<(u8, String, RecordKeys)>,
    /// The servers of the members' store.
    pub servers: Vec<SocketAddr>,
    /// Services with connections that timestamps name.
    pub named: Vec<SocketAddr>,
    /// Set of live replicas: bit r is replica r.
    pub alive: u64,
    /// The ToR's Ethernet address.
    pub tor: [u8; 6],
    /// Whether this replica may get the segments of a connection, given its client and service.
    pub gets: Box<dyn Fn(SocketAddr, SocketAddr) -> bool + Send>,
}

impl Absence {
    /// A repetition of the query, treated like a change of the live set without an absence.
    pub(crate) fn once_more(&self) -> Absence {
        Absence {
            number: (self.number.0, 0),
            others: Vec::new(),
            servers: Vec::new(),
            named: self.named.clone(),
            alive: self.alive,
            tor: self.tor,
            gets: Box::new(|_, _| true),
        }
    }
}

impl std::fmt::Debug for Absence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Absence({:?})", self.number)
    }
}

/// The pins that were read after an absence.
#[derive(Debug)]
pub struct Known {
    /// Number of the absence.
    pub number: (u32, u64),
    /// Connections with their holders, and the age of each holder's record.
    pub held: Vec<(FlowKey, Pin, Age)>,
}

/// The thread pool that reads pins, and its results.
#[derive(Debug)]
pub struct Pins {
    load: Sender<Known>,
    loaded: Receiver<Known>,
}

impl Default for Pins {
    fn default() -> Pins {
        let (load, loaded) = channel();
        Pins { load, loaded }
    }
}

impl Pins {
    /// Reads which connections the others hold. A store that does not answer is read again:
    /// without the pins this replica would hand the segments of a living connection to the wrong
    /// one, which resets it. `wake` is called on another thread for each result: when the store has
    /// answered, or did not in time, and for later answers.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn ask(&self, absence: Absence, wake: impl Fn() + Send + 'static) -> Result<(), HoldError> {
        let load = self.load.clone();
        thread::Builder::new().name("pins".into()).spawn(move || {
            // A receiver that was dropped needs no result.
            read(&absence, |known| {
                let _ = load.send(known);
                wake();
            });
            if let Some((server, ahead)) = store::clock_ahead(&absence.servers, PATIENCE) {
                let (by, how) = (ahead.unsigned_abs(), if ahead > 0 { "ahead of" } else { "behind" });
                tracing::error!(
                    "this host's clock is {by} s {how} that of the store {server}: connections of other replicas cannot be \
                     adopted where clocks are 2 s apart; set it, by NTP or chrony"
                );
            }
        })?;
        Ok(())
    }

    /// The result, if it has arrived.
    pub fn known(&self) -> Option<Known> {
        self.loaded.try_recv().ok()
    }
}

/// Reads the others' records until the store has answered for each. The first result ends the
/// absence; later ones have the number of a change without an absence.
fn read(absence: &Absence, mut report: impl FnMut(Known)) {
    let began = Instant::now();
    let all = || absence.others.iter().collect::<Vec<_>>();
    let (mut missing, mut number, mut was_away) = (all(), absence.number, false);
    while began.elapsed() < REPEATS {
        let prefixes: Vec<_> = missing.iter().map(|(_, prefix, keys)| (&**prefix, keys)).collect();
        let loaded = store::load_all(&absence.servers, &prefixes, PATIENCE);
        let (mut held, mut unread) = (Vec::new(), Vec::new());
        for (member, loaded) in missing.into_iter().zip(loaded) {
            if loaded.servers == 0 {
                unread.push(member);
            }
            let pin = Pin { tor: absence.tor, holder: member.0 };
            let protected = loaded.records.into_iter().filter(|(_, record)| {
                !record.unprotected && (absence.gets)(record.tuple.client, record.tuple.service)
            });
            let key = |r: &Record| FlowKey::new(r.tuple.client, r.tuple.service);
            held.extend(protected.map(|(_, r)| (key(&r), pin, r.age())));
        }
        if !unread.is_empty() && !was_away {
            let replicas: Vec<_> = unread.iter().map(|(replica, ..)| replica).collect();
            tracing::warn!(?replicas, "the store does not answer what they hold");
        }
        let is_late = number != absence.number;
        if unread.is_empty() || is_late || began.elapsed() >= WAITS {
            tracing::info!(connections = held.len(), unread = unread.len(), "held by others");
            report(Known { number, held });
            number.1 = 0;
        }
        let pause;
        (missing, was_away, pause) = match (unread.is_empty(), was_away) {
            (true, false) => return,
            (true, true) => (all(), false, STORED_AGAIN),
            (false, _) => (unread, true, RETRY),
        };
        thread::sleep(pause);
    }
}
