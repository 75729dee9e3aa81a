//! The content of a file at one time, under an identity that is the same on every replica.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::guard::Mapping;
use super::stamp::Stamp;

/// Identity of the content from which an answer is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Size in bytes.
    pub size: u64,
    /// First 16 bytes of the content's BLAKE3 hash; they are the entity tag.
    pub hash: [u8; 16],
}

/// Where its bytes are.
#[derive(Debug)]
pub(super) enum Content {
    Memory(Box<[u8]>),
    Mapped(Mapping),
}

/// The content of a file at one time.
#[derive(Debug)]
pub struct Object {
    pub(super) identity: Identity,
    pub(super) stamp: Stamp,
    pub(super) content: Content,
    /// When the stamp was last compared, microseconds of the store's clock.
    pub(super) checked: AtomicU64,
    /// The file has another content by now.
    pub(super) gone: AtomicBool,
}

impl Object {
    /// Size and hash.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Fills `out` with the bytes from `offset` on; returns `false` if the file no longer has them.
    #[must_use]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        let Ok(offset) = usize::try_from(offset) else { return false };
        match &self.content {
            Content::Mapped(mapping) => mapping.copy(offset, out),
            Content::Memory(bytes) => match bytes.get(offset..).and_then(|b| b.get(..out.len())) {
                Some(bytes) => {
                    out.copy_from_slice(bytes);
                    true
                }
                None => false,
            },
        }
    }
}
