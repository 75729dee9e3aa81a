//! A body that is read to its end as it passes.

use crate::chunked::Chunked;
use crate::flow::Reason;
use crate::head::Framing;

/// What is to come of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// So many octets.
    Octets(u64),
    /// Chunks, of which this is the place in them.
    Chunks(Chunked),
}

/// A body as far as it was seen, its framing included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// CRC-32C of its octets.
    pub sum: u32,
    /// What is to come.
    pub rest: Rest,
}

impl Seen {
    /// Nothing of it; `None` if it does not say where it ends.
    #[must_use]
    pub fn nothing(framing: Framing) -> Option<Seen> {
        let rest = match framing {
            Framing::Length(length) => Rest::Octets(length),
            Framing::Chunked => Rest::Chunks(Chunked::default()),
            Framing::Close => return None,
        };
        Some(Seen { sum: 0, rest })
    }

    /// Takes octets in, and says how many of them are the body's: all, unless it is over.
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
