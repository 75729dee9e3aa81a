//! Why a connection cannot be opened.

use std::io;
use std::net::IpAddr;

use rivulet_pktio::{IoError, OpenError};

use crate::next_hop::ResolveError;

/// Connections that one stack carries at the same time.
pub const MAX_CONNECTIONS: usize = 16_384;

/// Why a connection cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no way to the destination.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The destination is an address of this machine; there is no link between it and itself.
    #[error("{0} is an address of this machine: use another network namespace, or plain TCP")]
    Local(IpAddr),
    /// No local port is free, or the kernel's TCP cannot be kept from answering for it.
    #[error("no local port on {0}: {1}")]
    Port(IpAddr, #[source] io::Error),
    /// The interface cannot be opened for packets.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// MTU and address of the interface cannot be read.
    #[error(transparent)]
    Link(#[from] IoError),
    /// The stack carries the maximum number of connections.
    #[error("the stack carries {MAX_CONNECTIONS} connections already")]
    TooMany,
    /// No file descriptor is left.
    #[error("no descriptor: {0}")]
    Descriptor(#[source] io::Error),
    /// The stack thread has ended.
    #[error("the stack thread has ended")]
    Ended,
}

impl ConnectError {
    /// The errno that connect(2) gives for it.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            ConnectError::Resolve(ResolveError::NoRoute(..)) => libc::ENETUNREACH,
            ConnectError::Resolve(_) => libc::EHOSTUNREACH,
            ConnectError::Local(_) => libc::EADDRNOTAVAIL,
            ConnectError::Port(_, e) => e.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL),
            ConnectError::Open(_) => libc::EPERM,
            ConnectError::Link(_) => libc::ENETDOWN,
            ConnectError::Descriptor(e) => e.raw_os_error().unwrap_or(libc::EMFILE),
            ConnectError::TooMany | ConnectError::Ended => libc::ENOBUFS,
        }
    }
}
