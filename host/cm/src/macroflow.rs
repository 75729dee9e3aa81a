//! A macroflow: what flows to one destination have in common.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::controller::Controller;
use crate::pace::Pace;
use crate::scheduler::Scheduler;
use crate::{FlowId, Group, Nanos};

/// A macroflow (`cm_mid`). A number is given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacroflowId(pub(crate) u64);

/// What flows belong together by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    pub destination: IpAddr,
    pub dscp: u8,
}

#[derive(Debug)]
pub(crate) struct Macroflow {
    /// None: its flows were put here by their clients.
    pub path: Option<Path>,
    pub controller: Box<dyn Controller>,
    pub scheduler: Box<dyn Scheduler>,
    pub group: Group,
    pub pace: Pace,
    /// Bytes that grants stand for.
    pub reserved: u64,
    /// Sum of the weights of flows that wait, have grants or have something outstanding.
    pub active: u64,
    /// Those that want to be told of changes.
    pub watching: BTreeSet<FlowId>,
    /// Flows by their oldest grant.
    pub granted: BTreeSet<(Nanos, FlowId)>,
    /// Flows of which something is outstanding, by when they were heard of last.
    pub unheard: BTreeSet<(Nanos, FlowId)>,
    /// Bytes of which was learnt lately what became of them, and those of them that were lost.
    pub fate: (u64, u64),
    /// When last something was outstanding or granted.
    pub busy: Nanos,
    /// When its last flow was closed.
    pub empty: Option<Nanos>,
    /// Its entry in the manager's timers.
    pub armed: Option<Nanos>,
}

impl Macroflow {
    pub fn new(
        path: Option<Path>,
        controller: Box<dyn Controller>,
        scheduler: Box<dyn Scheduler>,
        now: Nanos,
    ) -> Self {
        Self {
            path,
            controller,
            scheduler,
            group: Group::default(),
            pace: Pace::default(),
            reserved: 0,
            active: 0,
            watching: BTreeSet::new(),
            granted: BTreeSet::new(),
            unheard: BTreeSet::new(),
            fate: (0, 0),
            busy: now,
            empty: Some(now),
            armed: None,
        }
    }

    /// Bytes that are outstanding or may be at any moment.
    pub fn used(&self) -> u64 {
        self.controller.outstanding() + self.reserved
    }

    /// Whether a packet of this size may be sent too. One may always.
    pub fn has_room(&self, mtu: u32) -> bool {
        let used = self.used();
        used == 0 || used + u64::from(mtu) <= self.controller.window()
    }

    /// Whether the window is what holds the flows back: it is used up, or half of it is in slow start, where it doubles. `part`:
    /// bytes that a flow uses, and may use, if it is about these.
    pub fn limited(&self, part: Option<(u64, u64)>, mtu: u32) -> bool {
        let (used, window) = part.unwrap_or((self.used(), self.controller.window()));
        if self.controller.slow_start() { 2 * used >= window } else { used + u64::from(mtu) > window }
    }
}
