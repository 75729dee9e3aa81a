//! Reads the pins: which connections other replicas hold although their segments may arrive here,
//! because they were adopted while this replica was excluded. It reads them from the other
//! replicas' records before it gets connections again, and forwards those connections' segments to
//! their holders.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use rivulet_bpf::trods::{FlowKey, Pin};

use super::{HoldError, PATIENCE};
use crate::record::{Age, Record};
use crate::store::{self, RecordKeys};

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
    /// Reads which connections the others hold. `wake` is called on another thread when all are
    /// read, or the store did not answer in time.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn ask(&self, absence: Absence, wake: impl FnOnce() + Send + 'static) -> Result<(), HoldError> {
        let load = self.load.clone();
        std::thread::Builder::new().name("pins".into()).spawn(move || {
            let mut held = Vec::new();
            let prefixes: Vec<_> = absence.others.iter().map(|(_, prefix, keys)| (&**prefix, keys)).collect();
            let loaded = store::load_all(&absence.servers, &prefixes, PATIENCE);
            for ((holder, ..), loaded) in absence.others.iter().zip(loaded) {
                if loaded.servers == 0 {
                    tracing::warn!("the store did not return the records of replica {holder}");
                }
                let pin = Pin { tor: absence.tor, holder: *holder };
                let protected = loaded.records.into_iter().filter(|(_, record)| {
                    !record.unprotected && (absence.gets)(record.tuple.client, record.tuple.service)
                });
                let key = |r: &Record| FlowKey::new(r.tuple.client, r.tuple.service);
                held.extend(protected.map(|(_, r)| (key(&r), pin, r.age())));
            }
            tracing::info!(connections = held.len(), members = absence.others.len(), "held by others");
            if let Some((server, ahead)) = store::clock_ahead(&absence.servers, PATIENCE) {
                let (by, how) = (ahead.unsigned_abs(), if ahead > 0 { "ahead of" } else { "behind" });
                tracing::error!(
                    "this host's clock is {by} s {how} that of the store {server}: connections of other replicas cannot be \
                     adopted where clocks are 2 s apart; set it, by NTP or chrony"
                );
            }
            // The error means that no receiver wants the result any more.
            let _ = load.send(Known { number: absence.number, held });
            wake();
        })?;
        Ok(())
    }

    /// The result, if it has arrived.
    pub fn known(&self) -> Option<Known> {
        self.loaded.try_recv().ok()
    }
}
