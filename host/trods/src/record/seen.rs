//! Checksum of a body, and a parser that finds its end, both fed as the bytes pass.

use crate::chunked::Chunked;
use crate::flow::Reason;
use crate::head::Framing;

/// The part of a body that was not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// A known number of bytes.
    Octets(u64),
    /// Chunks; the state of the parser.
    Chunks(Chunked),
}

/// State of a body after the bytes that were read, framing included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// CRC-32C of these bytes.
    pub sum: u32,
    /// The part that was not read yet.
    pub rest: Rest,
}

impl Seen {
    /// The state before the first byte; `None` if only the connection's end marks the body's.
    #[must_use]
    pub fn nothing(framing: Framing) -> Option<Seen> {
        let rest = match framing {
            Framing::Length(length) => Rest::Octets(length),
            Framing::Chunked => Rest::Chunks(Chunked::default()),
            Framing::Close => return None,
        };
        Some(Seen { sum: 0, rest })
    }

    /// Reads bytes and returns how many belong to the body: all, unless the body ends within them.
    ///
    /// # Errors
    /// [`Reason::Malformed`]: the bytes are not chunks.
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

    /// Whether the body was read to its end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.rest, Rest::Octets(0) | Rest::Chunks(Chunked::Over))
    }
}
