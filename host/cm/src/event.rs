//! What passes between a client and the manager: feedback, a flow's share, and events.

use crate::{Congestion, FlowId, Nanos};

/// A flow's share of the network, from its macroflow's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Status {
    /// Bytes a second: the flow's share of the window each round trip.
    pub rate: u64,
    /// Smoothed round trip time, ns.
    pub rtt: Nanos,
    /// Mean deviation of the round trip time, ns.
    pub deviation: Nanos,
    /// Recently lost bytes per million.
    pub loss: u32,
}

/// Feedback that a client got from its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Update {
    /// Bytes now known to have arrived or to be lost.
    pub nsent: u64,
    /// Bytes of `nsent` that arrived.
    pub nrecd: u64,
    /// Kind of congestion.
    pub congestion: Congestion,
    /// Round trip time sample in ns; 0: none.
    pub rtt: Nanos,
}

/// An event for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The flow may send one packet of up to an MTU (`cmapp_send`).
    Send {
        /// The flow.
        flow: FlowId,
        /// The token registered by [`Manager::register_send`](crate::Manager::register_send).
        token: u64,
    },
    /// The flow's share crossed a threshold (`cmapp_update`). Changes not yet polled are merged
    /// into one event.
    Update {
        /// The flow.
        flow: FlowId,
        /// The token registered by [`Manager::register_update`](crate::Manager::register_update).
        token: u64,
        /// The flow's share now.
        status: Status,
    },
}
