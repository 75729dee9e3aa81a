//! What can go wrong with a program.

use std::io;

use crate::kernel::Missing;

/// Why a program, a map or a link could not be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel, or a right, is missing.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The kernel refused a program; the last lines of what its verifier said.
    #[error("{program}: {source}; the verifier: {why}")]
    Refused {
        /// The object's name.
        program: &'static str,
        /// The error.
        source: io::Error,
        /// The verifier's last lines.
        why: String,
    },
    /// Another step failed.
    #[error("{operation}: {source}")]
    Os {
        /// The operation that failed.
        operation: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`.
    pub(crate) fn of(operation: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
        move |e| Error::Os { operation, source: to_io(&e) }
    }

    /// What the operating system said, if it was that.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Error::Missing(_) => io::ErrorKind::Unsupported,
            Error::Refused { source, .. } | Error::Os { source, .. } => source.kind(),
        }
    }
}

/// libbpf's error with its whole message, and the nearest kind.
pub(crate) fn to_io(error: &libbpf_rs::Error) -> io::Error {
    use libbpf_rs::ErrorKind;
    let kind = match error.kind() {
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
        ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
        ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
        ErrorKind::TooBig => io::ErrorKind::ArgumentListTooLong,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{error:#}"))
}
