//! How a server is opened, and why it cannot be.

use rivulet_pktio::guard::GuardError;
use rivulet_pktio::{Interface, IoChoice, IoError, OpenError};

use crate::service::{Service, ServiceError};

/// How a server is opened.
#[derive(Clone, Debug)]
pub struct Config {
    /// The interface towards the clients or the ToR.
    pub interface: Interface,
    /// What is served from the start; may be empty.
    pub services: Vec<Service>,
    /// Grows with every start of the process; heartbeats carry it or a greater one.
    pub incarnation: u32,
    /// What moves the packets. AF_XDP is for one worker: with several `AfXdp` is an error, and `Auto` is AF_PACKET.
    pub io: IoChoice,
}

/// Why a server cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The services contradict themselves.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// The interface cannot be opened for packets.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The interface does not say what it is.
    #[error(transparent)]
    Io(#[from] IoError),
    /// There is no thread for the heartbeats.
    #[error("a thread for heartbeats: {0}")]
    Thread(#[source] std::io::Error),
    /// The kernel's TCP cannot be kept from answering.
    #[error(transparent)]
    Guard(#[from] GuardError),
}
