//! Connections that other replicas hold although their segments may arrive here: those adopted
//! while this replica was away. It reads them from the others' records before it gets connections
//! again, and hands their segments on.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};

use rivulet_bpf::trods::{FlowKey, Pin};

use super::{HoldError, PATIENCE};
use crate::record::{Age, Record};
use crate::store::{self, RecordKeys};

/// An absence of this replica, with the replicas that were alive meanwhile; or a time without one,
/// after which it may get connections of others.
pub struct Absence {
    /// Number of the absence, by lease and in order; used when it ends.
    pub number: (u32, u64),
    /// The other members that are alive: index in the pool, what the keys of their records begin with, and what these are sealed with.
    pub others: Vec<(u8, String, RecordKeys)>,
    /// The servers of their store.
    pub servers: Vec<SocketAddr>,
    /// Services with connections that timestamps name.
    pub named: Vec<SocketAddr>,
    /// Set of live replicas: bit r is replica r.
    pub alive: u64,
    /// The ToR's Ethernet address.
    pub tor: [u8; 6],
    /// Which connections it may get, by client and service.
    pub gets: Box<dyn Fn(SocketAddr, SocketAddr) -> bool + Send>,
}

impl Absence {
    /// The same as a change of the live set during which this replica was present.
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

/// The result of querying the pins after an absence.
#[derive(Debug)]
pub struct Known {
    /// Number of the absence.
    pub number: (u32, u64),
    /// Connections with their holders, and the age of that information.
    pub held: Vec<(FlowKey, Pin, Age)>,
}

/// The search for connections that others hold.
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
    /// Reads which connections the others hold. `wake` is called on another thread when that is
    /// known, or when the store did not answer in time.
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
                    tracing::warn!("the store does not tell what replica {holder} holds");
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
            // A receiver that was dropped needs no result.
            let _ = load.send(Known { number: absence.number, held });
            wake();
        })?;
        Ok(())
    }

    /// The result, when it is there.
    pub fn known(&self) -> Option<Known> {
        self.loaded.try_recv().ok()
    }
}
