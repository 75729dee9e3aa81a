//! The bytes of an answer.

use arrayvec::ArrayString;

use crate::head::MAX_NAME;

/// Longest head of a response: a location with every byte escaped, and the other fields.
pub(crate) const MAX_HEAD: usize = 3 * MAX_NAME + 600;

/// The bytes of an answer: a head and a part of an object.
#[derive(Clone, Debug)]
pub struct AnswerBytes<'t> {
    pub(crate) head: ArrayString<MAX_HEAD>,
    pub(crate) body: &'t [u8],
}

impl<'t> AnswerBytes<'t> {
    /// An answer that consists of `body` alone.
    pub(crate) fn of(body: &'t [u8]) -> AnswerBytes<'t> {
        AnswerBytes { head: ArrayString::new(), body }
    }
}

impl AnswerBytes<'_> {
    /// Number of bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a response is never empty")]
    pub fn len(&self) -> u32 {
        (self.head.len() + self.body.len()) as u32
    }

    /// Fills `out` with the bytes from `from` on; returns `false` if there are fewer.
    #[must_use]
    pub fn copy(&self, from: u32, out: &mut [u8]) -> bool {
        let head = self.head.as_bytes();
        let from = from as usize;
        if from + out.len() > head.len() + self.body.len() {
            return false;
        }
        let of_head = head.get(from..).unwrap_or_default();
        let (first, rest) = out.split_at_mut(of_head.len().min(out.len()));
        first.copy_from_slice(&of_head[..first.len()]);
        let at = (from + first.len()).saturating_sub(head.len());
        let rest_length = rest.len();
        rest.copy_from_slice(&self.body[at..at + rest_length]);
        true
    }
}
