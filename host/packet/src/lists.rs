//! Elements shared by requests and responses: lists of user continuations, and tokens.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::error::{BuildError, WireError};

/// Most user continuations of one packet.
pub const MAX_UCONTS: usize = 16;

/// A sealed user continuation: opaque bytes.
pub type Ucont<'a> = &'a [u8];

/// Sealed user continuations, up to [`MAX_UCONTS`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Uconts<'a> {
    count: u8,
    bytes: &'a [u8],
}

impl<'a> Uconts<'a> {
    /// Reads `count` user continuations, each with a 16-bit length (at least 1).
    pub(crate) fn read(r: &mut Reader<'a>, count: u8) -> Result<Self, WireError> {
        r.section(WireError::UcontTruncated);
        let mut look = r.clone();
        for _ in 0..count {
            let at = look.pos();
            let length = look.u16()?;
            if length == 0 {
                return Err(WireError::UcontEmpty(at));
            }
            look.bytes(usize::from(length))?;
        }
        Ok(Self { count, bytes: r.bytes(look.pos() - r.pos())? })
    }

    /// Writes user continuations into the caller's buffer (2 bytes more than each one) and returns
    /// the list for a response.
    ///
    /// # Errors
    /// [`BuildError`]: too many, an empty or an overlong one, a buffer that is too small.
    pub fn encode(list: &[Ucont<'_>], buf: &'a mut [u8]) -> Result<Self, BuildError> {
        check(list)?;
        let mut w = Writer::new(buf);
        write(&mut w, list);
        let length = w.finish()?;
        Ok(Self { count: list.len() as u8, bytes: &buf[..length] })
    }

    /// Number of user continuations.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The user continuations in order.
    pub fn iter(&self) -> impl Iterator<Item = Ucont<'a>> + Clone + use<'a> {
        let mut r = Reader::new(self.bytes, WireError::UcontTruncated);
        core::iter::from_fn(move || {
            if r.remaining() == 0 {
                return None;
            }
            let length = r.u16().ok()?;
            r.bytes(usize::from(length)).ok()
        })
    }

    /// Lengths and bytes, without the count.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl fmt::Debug for Uconts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Refuses too many user continuations, an empty one, or one too long for its length field.
pub(crate) fn check(list: &[Ucont<'_>]) -> Result<(), BuildError> {
    if list.len() > MAX_UCONTS {
        return Err(BuildError::TooMany { what: "user continuations", have: list.len(), most: MAX_UCONTS });
    }
    for ucont in list {
        if ucont.is_empty() {
            return Err(BuildError::Inconsistent { what: "a user continuation of no bytes" });
        }
        let (have, most) = (ucont.len(), usize::from(u16::MAX));
        if have > most {
            return Err(BuildError::TooMany { what: "bytes of user continuation", have, most });
        }
    }
    Ok(())
}

/// Lengths and bytes, without the count.
pub(crate) fn write(w: &mut Writer<'_>, list: &[Ucont<'_>]) {
    for ucont in list {
        w.u16(ucont.len() as u16);
        w.bytes(ucont);
    }
}

/// Reads a token: an 8-bit length (at least 1) and its bytes.
pub(crate) fn read_token<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    r.section(WireError::TokenTruncated);
    let at = r.pos();
    let length = r.u8()?;
    if length == 0 {
        return Err(WireError::TokenEmpty(at));
    }
    r.bytes(usize::from(length))
}
