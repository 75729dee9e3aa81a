//! A body that is read to its end as it passes.

use crate::chunked::Chunked;
use crate::flow::Reason;
use crate::head::Framing;

/// The part of a body that is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// A number of bytes.
    Octets(u64),
    /// Chunks, of which this is the place in them.
    Chunks(Chunked),
}

/// A body as far as it was seen, its framing included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// CRC-32C of its bytes.
    pub sum: u32,
    /// The part still to come.
    pub rest: Rest,
}

impl Seen {
    /// The state before the first byte; `None` if the body has no known end.
    #[must_use]
    pub fn nothing(framing: Framing) -> Option<Seen> {
        let rest = match framing {
            Framing::Length(length) => Rest::Octets(length),
            Framing::Chunked => Rest::Chunks(Chunked::default()),
            Framing::Close => return None,
        };
        Some(Seen { sum: 0, rest })
    }

    /// Takes in bytes and returns how many belong to the body: all, unless it ends.
    ///
    /// # Errors
    /// [`Reason::Malformed`]: they are no chunks.
    pub fn read(&mut self, octets: &[u8]) -> Result<usize, Reason> {
        let count = match &mut self.rest {
            Rest::Octets(left) => {
                let count = octets.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                count
            }
            Rest::Chunks(reader) => reader.read(octets)?,
        };
        self.sum = crc32c::crc32c_append(self.sum, &octets[..count]);
        Ok(count)
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.rest, Rest::Octets(0) | Rest::Chunks(Chunked::Over))
    }
}
