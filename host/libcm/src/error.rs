//! Errors of the client's calls.

use std::io;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manager refused the call.
    #[error(transparent)]
    Refused(#[from] rivulet_cm::Error),
    /// The operating system or the daemon failed.
    #[error("{operation}: {error}")]
    Os {
        /// The operation.
        operation: &'static str,
        /// Its error. Part of the message already, so it is not a `source`.
        error: io::Error,
    },
}

impl Error {
    /// Wraps an error with its operation, for `map_err`.
    pub(crate) fn of<E: Into<io::Error>>(operation: &'static str) -> impl Fn(E) -> Error {
        move |e| Error::Os { operation, error: e.into() }
    }

    /// Converts the result that a kernel program returned.
    pub(crate) fn check(operation: &'static str, result: i32) -> Result<(), Error> {
        if result == 0 {
            return Ok(());
        }
        Err(match -result {
            libc::ENOENT => rivulet_cm::Error::NoFlow.into(),
            libc::ESRCH => rivulet_cm::Error::NoMacroflow.into(),
            libc::EEXIST => rivulet_cm::Error::Open.into(),
            libc::EMFILE | libc::ENOSPC => rivulet_cm::Error::Full.into(),
            errno => Error::Os { operation, error: io::Error::from_raw_os_error(errno) },
        })
    }
}
