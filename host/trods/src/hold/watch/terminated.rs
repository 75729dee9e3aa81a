//! What the watch knows of this host's TLS terminators.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rivulet_bpf::trods::FlowKey;

use crate::flow::{Asked, Reason, StoreOutcome};

/// Time that the terminator has to register the connections that it had before this process began.
/// After that their records are searched for like those of another replica.
const REGISTRATION: Duration = Duration::from_secs(1);

/// What the watch knows of this host's terminators.
#[derive(Debug, Default)]
pub(super) struct Terminators {
    /// New connections to these ports are theirs.
    pub ports: HashSet<u16>,
    /// Answers to them.
    pub answers: Vec<(FlowKey, Asked, StoreOutcome)>,
    /// Connections that the kernel had when this process began, and when they were seen.
    begun: (Option<Instant>, HashSet<FlowKey>),
}

impl Terminators {
    /// Notes a connection that the kernel has and whose handshake this process has not seen. It
    /// counts as unprotected until it is registered.
    pub fn note_begun(&mut self, key: FlowKey, unprotected: &mut HashMap<Reason, u64>) {
        self.begun.0 = Some(Instant::now());
        self.begun.1.insert(key);
        *unprotected.entry(Reason::Unseen).or_default() += 1;
    }

    /// Ends the wait for a connection that is registered.
    pub fn forget_begun(&mut self, key: &FlowKey, unprotected: &mut HashMap<Reason, u64>) {
        if self.begun.1.remove(key)
            && let Some(count) = unprotected.get_mut(&Reason::Unseen)
        {
            *count = count.saturating_sub(1);
        }
    }

    /// Whether the kernel had the connection when this process began, so that the terminator may
    /// still register it.
    pub fn may_register(&mut self, key: &FlowKey) -> bool {
        if self.begun.0.is_some_and(|at| at.elapsed() > REGISTRATION) {
            self.begun = Default::default();
        }
        self.begun.1.contains(key)
    }
}
