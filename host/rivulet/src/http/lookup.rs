//! The result of looking up a name in the served folder.

use std::io;
use std::sync::Arc;

use super::object::Object;

/// The result of looking up a name.
#[derive(Debug)]
pub enum Lookup {
    /// A file, with its content.
    Found(Arc<Object>),
    /// A directory: a request with a slash at the end is served.
    Directory,
    /// The folder does not serve the name.
    Missing,
    /// The file's permissions forbid reading it.
    Forbidden,
    /// The hash of the content is being computed; look up again shortly.
    Pending,
    /// There is no memory or descriptor for it now.
    Exhausted,
}

pub(super) fn refusal(error: &io::Error) -> Lookup {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Lookup::Forbidden,
        io::ErrorKind::QuotaExceeded | io::ErrorKind::OutOfMemory | io::ErrorKind::FileTooLarge => {
            Lookup::Exhausted
        }
        _ => match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Lookup::Exhausted,
            _ => Lookup::Missing,
        },
    }
}
