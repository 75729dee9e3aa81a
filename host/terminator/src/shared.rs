//! State that all workers share.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::counters::Counters;
use crate::head::Forwarded;
use crate::limits::TimeLimits;
use crate::link::Link;
use crate::reload::Reload;
use crate::state::Observer;

pub(crate) struct Shared {
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) server: SocketAddr,
    pub(crate) forwarded: Forwarded,
    pub(crate) max_connections: usize,
    pub(crate) limits: TimeLimits,
    pub(crate) scarce_limits: TimeLimits,
    pub(crate) reload: Reload,
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// The link to the agent, which has the connections' states stored.
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) stop: AtomicBool,
}
