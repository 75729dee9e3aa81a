//! What can go wrong with a call.

use std::io;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manager refused it.
    #[error(transparent)]
    Refused(#[from] rivulet_cm::Error),
    /// The operating system, or the daemon.
    #[error("{operation}: {error}")]
    Os {
        /// What was tried.
        operation: &'static str,
        /// Its error. It is told already: no `source` that would be told once more.
        error: io::Error,
    },
}

impl Error {
    /// For `map_err`.
    pub(crate) fn of<E: Into<io::Error>>(operation: &'static str) -> impl Fn(E) -> Error {
        move |e| Error::Os { operation, error: e.into() }
    }

    /// What a program said of an operation.
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
