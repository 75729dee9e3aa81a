//! What stands under a name of the served folder.

use std::io;
use std::sync::Arc;

use super::object::Object;

/// What stands under a name.
#[derive(Debug)]
pub enum Lookup {
    /// A file.
    Found(Arc<Object>),
    /// A directory; ask again with a slash at the end.
    Directory,
    /// The name is not served.
    Missing,
    /// A file that may not be read.
    Forbidden,
    /// The hash of the content is being computed; look up again shortly.
    Pending,
    /// No memory or descriptors for it now.
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
