//! The body of a GROUP: continuations of lost packets, regenerated (condition (b) of section 2.5 of the paper).

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::continuation::{SealedContinuation, check_time};
use crate::error::{BuildError, WireError};

/// Most continuations of one GROUP.
pub const MAX_GROUP: usize = 16;
/// Bytes of a GROUP member: a nonce and a sealed continuation.
pub const GROUP_MEMBER: usize = 4 + SealedContinuation::LENGTH;

/// One continuation of a GROUP, for the number of a lost response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GroupMember {
    /// Nonce of the lost number, under K'.
    pub nonce: u32,
    /// The regenerated continuation; its number is the lost one.
    pub continuation: SealedContinuation,
}

/// The members of a GROUP: 1 to [`MAX_GROUP`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Group<'a> {
    bytes: &'a [u8],
}

impl<'a> Group<'a> {
    /// A view of members that were written by [`Group::encode`].
    pub(crate) fn read(r: &mut Reader<'a>) -> Result<Self, WireError> {
        r.section(WireError::GroupTruncated);
        let at = r.pos();
        let count = usize::from(r.u8()?);
        if count == 0 || count > MAX_GROUP {
            return Err(WireError::GroupCount(at));
        }
        let mut look = r.clone();
        for _ in 0..count {
            look.u32()?;
            SealedContinuation::read(&mut look)?;
        }
        Ok(Self { bytes: r.bytes(count * GROUP_MEMBER)? })
    }

    /// Writes members into the caller's buffer and returns the group for a response.
    ///
    /// # Errors
    /// [`BuildError`]: none or too many members, times beyond 48 bits, a buffer that is too small
    /// ([`GROUP_MEMBER`] bytes a member).
    pub fn encode(members: &[GroupMember], buf: &'a mut [u8]) -> Result<Self, BuildError> {
        if members.is_empty() {
            return Err(BuildError::Inconsistent { what: "a group of no continuations" });
        }
        if members.len() > MAX_GROUP {
            return Err(BuildError::TooMany { what: "continuations", have: members.len(), most: MAX_GROUP });
        }
        let mut w = Writer::new(buf);
        for m in members {
            check_time(m.continuation.fields.time)?;
            w.u32(m.nonce);
            m.continuation.write(&mut w);
        }
        let length = w.finish()?;
        Ok(Self { bytes: &buf[..length] })
    }

    /// The members' bytes on the wire.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.bytes.len() / GROUP_MEMBER
    }

    /// Always false: a group has at least one member.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The members in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = GroupMember> + use<'a> {
        self.bytes.chunks_exact(GROUP_MEMBER).map(|b| {
            let mut r = Reader::new(b, WireError::GroupTruncated);
            // `read` or `encode` has validated every member, so the default is never used.
            let nonce = r.u32().unwrap_or_default();
            GroupMember { nonce, continuation: SealedContinuation::read(&mut r).unwrap_or_default() }
        })
    }
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
