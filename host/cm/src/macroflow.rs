//! A macroflow: the state shared by the flows to one destination.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::controller::Controller;
use crate::pace::Pace;
use crate::scheduler::Scheduler;
use crate::{FlowId, Group, Nanos};

/// Flows with equal paths share a macroflow by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Path {
    pub destination: IpAddr,
    pub dscp: u8,
}

#[derive(Debug)]
pub(crate) struct Macroflow {
    /// `None`: clients put the flows into this macroflow by
    /// [`Manager::set_macroflow`](crate::Manager::set_macroflow).
    pub path: Option<Path>,
    pub controller: Box<dyn Controller>,
    pub scheduler: Box<dyn Scheduler>,
    pub group: Group,
    pub pace: Pace,
    /// Bytes reserved by grants.
    pub reserved: u64,
    /// Sum of the weights of flows that wait, hold grants or have bytes outstanding.
    pub active: u64,
    /// Flows that registered for updates.
    pub watching: BTreeSet<FlowId>,
    /// Flows ordered by their oldest grant.
    pub granted: BTreeSet<(Nanos, FlowId)>,
    /// Flows with bytes outstanding, ordered by the time of their last feedback.
    pub awaiting_feedback: BTreeSet<(Nanos, FlowId)>,
    /// Recently reported bytes, and those of them that were lost.
    pub fate: (u64, u64),
    /// When bytes were last outstanding or granted.
    pub busy: Nanos,
    /// When the last flow was closed.
    pub empty: Option<Nanos>,
    /// Time of this macroflow's entry in the manager's timers.
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
            awaiting_feedback: BTreeSet::new(),
            fate: (0, 0),
            busy: now,
            empty: Some(now),
            armed: None,
        }
    }

    /// Bytes outstanding or granted.
    pub fn used(&self) -> u64 {
        self.controller.outstanding() + self.reserved
    }

    /// Whether a packet of this size fits the window. One packet always fits an unused window.
    pub fn has_room(&self, mtu: u32) -> bool {
        let used = self.used();
        used == 0 || used + u64::from(mtu) <= self.controller.window()
    }

    /// Whether the window limits the flows: it is used up, or in slow start, where it doubles, half
    /// used. `part`: one flow's (used, allowed) bytes, to judge only that flow.
    pub fn limited(&self, part: Option<(u64, u64)>, mtu: u32) -> bool {
        let (used, window) = part.unwrap_or((self.used(), self.controller.window()));
        if self.controller.slow_start() { 2 * used >= window } else { used + u64::from(mtu) > window }
    }
}
