//! Flows: how they are named, and what is kept of one.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;

use crate::group::Member;
use crate::thresholds::Watch;
use crate::{MacroflowId, Nanos};

/// A flow (`cm_flowid`). A number is given once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub(crate) u64);

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.0)
    }
}

/// What a flow is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Where its packets come from: a host may have several addresses.
    pub source: SocketAddr,
    /// Where they go.
    pub destination: SocketAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Differentiated services code point: packets of another one may see another queue.
    pub dscp: u8,
}

/// A flow's part of the manager.
#[derive(Debug)]
pub(crate) struct Flow {
    pub key: Key,
    pub macroflow: MacroflowId,
    pub mtu: u32,
    pub weight: u32,
    /// Requests that were not granted yet.
    pub requests: u32,
    /// When each grant was given that is neither used nor declined, the oldest first.
    pub grants: VecDeque<Nanos>,
    /// Those of them of which the client was not told yet.
    pub undelivered: usize,
    pub member: Member,
    /// What it pulled last, bytes, and whether it wanted more.
    pub pulled: Option<(u64, bool)>,
    /// It waits, has grants, or something of it is outstanding.
    pub active: bool,
    /// When last there was feedback, or when the first of what is outstanding was sent.
    pub heard: Nanos,
    pub send: u64,
    pub watch: Option<Watch>,
}

impl Flow {
    pub fn outstanding(&self) -> u64 {
        self.member.outstanding()
    }
}
