//! The state that is kept of each flow.

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::group::Member;
use crate::thresholds::Watch;
use crate::{MacroflowId, Nanos};

/// The addresses, protocol and code point that identify a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Source address and port: a host can have several addresses.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Differentiated services code point: packets with another one may use another queue.
    pub dscp: u8,
}

/// The manager's state of one flow.
#[derive(Debug)]
pub(crate) struct Flow {
    pub key: Key,
    pub macroflow: MacroflowId,
    pub mtu: u32,
    pub weight: u32,
    /// Requests not granted yet.
    pub requests: u32,
    /// Times of the grants that are neither used nor declined, oldest first.
    pub grants: VecDeque<Nanos>,
    /// Grants in `grants` that were not delivered to the client yet.
    pub undelivered: usize,
    pub member: Member,
    /// Result of the last [`pull`](crate::Manager::pull) in bytes, and whether the flow wanted
    /// more.
    pub pulled: Option<(u64, bool)>,
    /// The flow waits, holds grants, or has bytes outstanding.
    pub active: bool,
    /// Time of the last feedback, or when the first outstanding byte was sent.
    pub last_feedback: Nanos,
    pub send: u64,
    pub watch: Option<Watch>,
}

impl Flow {
    pub fn outstanding(&self) -> u64 {
        self.member.outstanding()
    }
}
