//! Errors of loading and using BPF programs.

use std::io;

use crate::kernel::Missing;

/// Why a program, a map or a link cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel lacks a feature, or the process a privilege.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The kernel refused a program.
    #[error("{program}: {source}; the verifier reports: {why}")]
    Refused {
        /// Name of the object file.
        program: &'static str,
        /// The error of the system call.
        source: io::Error,
        /// Last lines of the verifier's log.
        why: String,
    },
    /// Another operation failed.
    #[error("{operation}: {source}")]
    Os {
        /// The operation that failed.
        operation: &'static str,
        /// The error that it returned.
        source: io::Error,
    },
}

impl Error {
    /// Makes the error of an operation, for `map_err`.
    pub(crate) fn of(operation: &'static str) -> impl Fn(libbpf_rs::Error) -> Error {
        move |e| Error::Os { operation, source: to_io(&e) }
    }

    /// The operating system's error number, if there is one.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Error::Missing(_) => io::ErrorKind::Unsupported,
            Error::Refused { source, .. } | Error::Os { source, .. } => source.kind(),
        }
    }
}

/// libbpf's error with its whole message, and the nearest error kind of the standard library.
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
