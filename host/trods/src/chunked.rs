//! Incremental parser that finds the end of a chunked body (RFC 9112 section 7.1).

use crate::flow::Reason;

/// Limit on the digits of a chunk's size, leading zeros included; other parsers accept as many. The
/// value must fit into 32 bits.
const MAX_DIGITS: u8 = 16;

/// Position of a reader in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunked {
    /// Within a chunk's size line, before any extension.
    Size {
        /// Digits of the size read so far.
        digits: u8,
        /// Value of these digits.
        size: u32,
    },
    /// After the size (its value), before an extension or the end of the line.
    Behind(u32),
    /// Within a chunk extension.
    Extension(u32),
    /// After the CR of a size line; its LF follows.
    SizeEnd(u32),
    /// Within a chunk's data, of which this many bytes are left, at least one.
    Data(u32),
    /// After the data of a chunk, before its CR.
    DataReturn,
    /// After the CR that follows a chunk's data; its LF follows.
    DataEnd,
    /// At the start of a trailer field or of the empty line that ends the body.
    Trailer,
    /// Within a trailer field.
    Field,
    /// After the CR of a trailer field; its LF follows.
    FieldEnd,
    /// After the CR of the last, empty line; its LF ends the body.
    LastEnd,
    /// After the end of the body.
    Over,
}

impl Default for Chunked {
    fn default() -> Chunked {
        Chunked::Size { digits: 0, size: 0 }
    }
}

impl Chunked {
    /// Parses further bytes and returns how many belong to the body, trailers included: all of
    /// them, unless the body ends within them.
    ///
    /// # Errors
    /// [`Reason::Malformed`].
    pub fn read(&mut self, octets: &[u8]) -> Result<usize, Reason> {
        let mut at = 0;
        while at < octets.len() && *self != Chunked::Over {
            if let Chunked::Data(left) = self {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(octets.len() - at);
                at += count;
                *self = match *left - count as u32 {
                    0 => Chunked::DataReturn,
                    left => Chunked::Data(left),
                };
            } else {
                *self = self.after(octets[at]).ok_or(Reason::Malformed)?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// The state after one byte that is not chunk data.
    fn after(self, octet: u8) -> Option<Chunked> {
        Some(match (self, octet) {
            (Chunked::Size { digits, size }, _) if octet.is_ascii_hexdigit() && digits < MAX_DIGITS => {
                let digit = char::from(octet).to_digit(16)?;
                Chunked::Size { digits: digits + 1, size: size.checked_mul(16)? | digit }
            }
            (Chunked::Size { digits: 1.., size } | Chunked::Behind(size), b' ' | b'\t') => {
                Chunked::Behind(size)
            }
            (Chunked::Size { digits: 1.., size } | Chunked::Behind(size), b';') => Chunked::Extension(size),
            (
                Chunked::Size { digits: 1.., size } | Chunked::Behind(size) | Chunked::Extension(size),
                b'\r',
            ) => Chunked::SizeEnd(size),
            (Chunked::Extension(size), _) if octet != b'\n' => Chunked::Extension(size),
            (Chunked::SizeEnd(0), b'\n') => Chunked::Trailer,
            (Chunked::SizeEnd(size), b'\n') => Chunked::Data(size),
            (Chunked::DataReturn, b'\r') => Chunked::DataEnd,
            (Chunked::DataEnd, b'\n') => Chunked::default(),
            (Chunked::Trailer, b'\r') => Chunked::LastEnd,
            (Chunked::Field, b'\r') => Chunked::FieldEnd,
            (Chunked::Trailer | Chunked::Field, _) if octet != b'\n' => Chunked::Field,
            (Chunked::FieldEnd, b'\n') => Chunked::Trailer,
            (Chunked::LastEnd, b'\n') => Chunked::Over,
            _ => return None,
        })
    }

    /// Encodes the state as three numbers: its kind, the digits of the size, the size.
    #[must_use]
    pub fn encode(self) -> (u8, u8, u32) {
        match self {
            Chunked::Size { digits, size } => (0, digits, size),
            Chunked::Behind(size) => (1, 0, size),
            Chunked::Extension(size) => (2, 0, size),
            Chunked::SizeEnd(size) => (3, 0, size),
            Chunked::Data(left) => (4, 0, left),
            Chunked::DataReturn => (5, 0, 0),
            Chunked::DataEnd => (6, 0, 0),
            Chunked::Trailer => (7, 0, 0),
            Chunked::Field => (8, 0, 0),
            Chunked::FieldEnd => (9, 0, 0),
            Chunked::LastEnd => (10, 0, 0),
            Chunked::Over => (11, 0, 0),
        }
    }

    /// Decodes exactly the results of [`encode`](Self::encode).
    #[must_use]
    pub fn decode(place: u8, digits: u8, size: u32) -> Option<Chunked> {
        let read = match place {
            // Unused digits must be zero.
            0 if digits <= MAX_DIGITS && u64::from(size) < 1 << (4 * u64::from(digits.min(8))) => {
                Chunked::Size { digits, size }
            }
            1 => Chunked::Behind(size),
            2 => Chunked::Extension(size),
            3 => Chunked::SizeEnd(size),
            4 if size > 0 => Chunked::Data(size),
            5 => Chunked::DataReturn,
            6 => Chunked::DataEnd,
            7 => Chunked::Trailer,
            8 => Chunked::Field,
            9 => Chunked::FieldEnd,
            10 => Chunked::LastEnd,
            11 => Chunked::Over,
            _ => return None,
        };
        Some(read).filter(|read| read.encode() == (place, digits, size))
    }
}

/// Length of the whole body at the start of `octets`, trailers included; `None` if it is
/// incomplete.
///
/// # Errors
/// [`Reason::Malformed`].
pub fn end(octets: &[u8]) -> Result<Option<usize>, Reason> {
    let mut reader = Chunked::default();
    let end = reader.read(octets)?;
    Ok((reader == Chunked::Over).then_some(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunked_body_end_is_found_at_its_last_byte() {
        for body in [
            "0\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "A;x=y\r\n0123456789\r\n1 \r\n\n\r\n00\r\nT: t\r\n\r\n",
            "1\t;a\r\nx\r\n0\r\nA: b\r\nC: d\r\n\r\n",
            "0000000000000003\r\nabc\r\n0000000000\r\n\r\n",
        ] {
            for n in 0..body.len() {
                assert_eq!(end(&body.as_bytes()[..n]), Ok(None), "{body} {n}");
            }
            let more = format!("{body}HTTP");
            assert_eq!(end(more.as_bytes()), Ok(Some(body.len())));
            // Each body is read in two pieces, with the state between them encoded and decoded.
            for n in 0..body.len() {
                let (one, two) = more.as_bytes().split_at(n);
                let mut first = Chunked::default();
                assert_eq!(first.read(one), Ok(n));
                let (place, digits, size) = first.encode();
                let mut second = Chunked::decode(place, digits, size).unwrap();
                assert_eq!((second, second.read(two)), (first, Ok(body.len() - n)), "{body} {n}");
                assert_eq!((second, second.read(b"x")), (Chunked::Over, Ok(0)));
            }
        }
    }

    #[test]
    fn malformed_chunks_are_refused() {
        for body in [
            "\r\n",
            "x\r\n",
            "3\r\nabcd\r\n",
            "3\nabc",
            "123456789\r\n",
            "00000000000000003\r\nabc\r\n",
            "3 4\r\n",
            "-1\r\n",
            "0\r\nT: t\n\r\n",
            "3;a\rb\r\n",
            "0\r\n\n",
        ] {
            assert_eq!(end(body.as_bytes()), Err(Reason::Malformed), "{body}");
        }
    }

    #[test]
    fn impossible_states_are_not_decoded() {
        for (place, digits, size) in
            [(0, 17, 0), (0, 0, 1), (0, 2, 256), (1, 1, 5), (4, 0, 0), (5, 0, 1), (11, 1, 0), (12, 0, 0)]
        {
            assert_eq!(Chunked::decode(place, digits, size), None, "{place} {digits} {size}");
        }
        assert!(Chunked::decode(0, 8, u32::MAX).is_some());
    }
}
