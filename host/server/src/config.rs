//! How a server is opened, and why that fails.

use rivulet_pktio::guard::GuardError;
use rivulet_pktio::{Interface, IoChoice, IoError, OpenError};

use crate::service::{Service, ServiceError};

/// How a server is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface towards the clients or the ToR.
    pub interface: Interface,
    /// The services at the start; may be empty.
    pub services: Vec<Service>,
    /// Grows with every start of the process; heartbeats carry it or a larger value.
    pub incarnation: u32,
    /// The packet I/O. AF_XDP supports one worker: with several, `AfXdp` is an error, and `Auto`
    /// means AF_PACKET.
    pub io: IoChoice,
}

/// Why a server cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The services are inconsistent.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The interface cannot be opened for packets.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The interface's state cannot be read.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The heartbeat thread cannot be started.
    #[error("cannot start the heartbeat thread: {0}")]
    Thread(#[source] std::io::Error),
    /// The kernel's TCP cannot be kept from answering.
    #[error(transparent)]
    Guard(#[from] GuardError),
}
