//! What all workers share.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::RwLock;
use rustls::ServerConfig;

use crate::counters::Counters;
use crate::head::Forwarded;
use crate::limits::TimeLimits;
use crate::state::Observer;

pub(crate) struct Shared {
    pub(crate) listeners: Vec<TcpListener>,
    pub(crate) server: SocketAddr,
    pub(crate) forwarded: Forwarded,
    pub(crate) max_connections: usize,
    pub(crate) limits: TimeLimits,
    pub(crate) scarce_limits: TimeLimits,
    pub(crate) config: RwLock<Arc<ServerConfig>>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) stop: AtomicBool,
}
