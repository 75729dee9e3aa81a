//! Errors of an interface, classified by what the caller can do.

use std::io;

/// Failure of an operation on an open interface.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// The interface is administratively down or has no carrier; it works again once it is up.
    #[error("{0}: interface is down")]
    Down(String),
    /// The interface was deleted or moved to another namespace; the caller must `reopen`.
    #[error("{0}: interface is gone")]
    Gone(String),
    /// The operating system refused the operation; unexpected in normal operation.
    #[error("{interface}: {operation}: {source}")]
    Os {
        /// The interface as it was given.
        interface: String,
        /// The system call or option.
        operation: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl IoError {
    /// Classifies an error of the operating system.
    pub(crate) fn from_os(interface: &str, operation: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENETDOWN) => IoError::Down(interface.into()),
            Some(libc::ENODEV | libc::ENXIO) => IoError::Gone(interface.into()),
            _ => IoError::Os { interface: interface.into(), operation, source },
        }
    }
}

/// Why an interface could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Not a usable interface or namespace name.
    #[error("{0:?} is not an interface name: {1}")]
    Name(String, &'static str),
    /// There is no such interface in that namespace.
    #[error("{0}: no such interface")]
    NoSuchInterface(String),
    /// The namespace cannot be entered.
    #[error("network namespace {name:?}: {source}")]
    Netns {
        /// The namespace's name or path.
        name: String,
        /// The reason.
        source: io::Error,
    },
    /// A setting out of its range.
    #[error("{0}")]
    Config(String),
    /// The interface does not support this use; the message contains the remedy.
    #[error("{0}: {1}")]
    Unsupported(String, String),
    /// The operating system refused (permission, memory).
    #[error("{interface}: {operation}: {source}")]
    Os {
        /// The interface as it was given.
        interface: String,
        /// The system call or option.
        operation: &'static str,
        /// Its error.
        source: io::Error,
    },
}
