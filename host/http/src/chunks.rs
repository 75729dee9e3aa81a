//! The chunked coding (RFC 9112 section 7.1), read as far as it takes to find its end.

use crate::{BAD_REQUEST, Field, Refused};
use alloc::vec::Vec;

/// Bytes of a line with a chunk's size and extensions.
const MAX_SIZE_LINE: usize = 256;
/// Bytes of all trailer fields.
const MAX_TRAILERS: usize = 8 << 10;

/// A body in the chunked coding, of which any number of bytes has been read.
///
/// Where two readers could see different ends, the body is refused: lines end in CR LF, a size has at most 15 digits, and
/// nothing but an extension follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    state: State,
    /// The part of a line that has been read.
    line: Vec<u8>,
    trailers: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// In the line before a chunk.
    #[default]
    Size,
    /// In a chunk of which so many bytes are left.
    Data(u64),
    /// In the line end behind a chunk's data; so many bytes of it have been read.
    DataEnd(u8),
    /// In the trailer fields.
    Trailers,
    Done,
}

impl Chunks {
    /// Reads on. Returns how many bytes of `input` belong to the body: all of them, unless it ends earlier.
    ///
    /// # Errors
    /// 400: the body breaks the coding.
    pub fn read(&mut self, input: &[u8]) -> Result<usize, Refused> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            let rest = &input[at..];
            at += match self.state {
                State::Data(left) => {
                    let count = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    let left = left - count as u64;
                    self.state = if left == 0 { State::DataEnd(0) } else { State::Data(left) };
                    count
                }
                State::DataEnd(read) => {
                    if rest[0] != b"\r\n"[usize::from(read)] {
                        return Err(BAD_REQUEST);
                    }
                    self.state = if read == 1 { State::Size } else { State::DataEnd(1) };
                    1
                }
                State::Size | State::Trailers => self.read_line(rest)?,
                State::Done => 0,
            };
        }
        Ok(at)
    }

    /// Whether the body has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    fn read_line(&mut self, input: &[u8]) -> Result<usize, Refused> {
        let end = input.iter().position(|&b| b == b'\n').map(|at| at + 1);
        let part = &input[..end.unwrap_or(input.len())];
        let most = if self.state == State::Size { MAX_SIZE_LINE } else { MAX_TRAILERS - self.trailers };
        if self.line.len() + part.len() > most {
            return Err(BAD_REQUEST);
        }
        self.line.extend_from_slice(part);
        if end.is_none() {
            return Ok(part.len());
        }
        let line = self.line.strip_suffix(b"\r\n").ok_or(BAD_REQUEST)?;
        self.state = match self.state {
            State::Size => match chunk_size(line)? {
                0 => State::Trailers,
                size => State::Data(size),
            },
            _ if line.is_empty() => State::Done,
            _ => {
                Field::parse(line)?;
                self.trailers += self.line.len();
                State::Trailers
            }
        };
        self.line.clear();
        Ok(part.len())
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, Refused> {
    let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
    let extension = line[digits..].trim_ascii_start();
    let is_text = extension.iter().all(|b| matches!(b, b'\t' | b' '..=0x7e | 0x80..));
    if !(1..=15).contains(&digits) || !is_text || !(extension.is_empty() || extension.starts_with(b";")) {
        return Err(BAD_REQUEST);
    }
    let digit = |b: &u8| u64::from(char::from(*b).to_digit(16).unwrap_or(0));
    Ok(line[..digits].iter().fold(0, |size, b| size << 4 | digit(b)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BODY: &[u8] =
        b"5\r\nhello\r\n1a;name=\"a b\"\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nDigest: x\r\n\r\n";

    #[test]
    fn body_ends_where_its_trailers_do() {
        let stream = [BODY, b"GET / HTTP/1.1\r\n"].concat();
        for first in 0..=stream.len() {
            let mut chunks = Chunks::default();
            let mut used = chunks.read(&stream[..first]).unwrap();
            assert_eq!(used, first.min(BODY.len()));
            used += chunks.read(&stream[used..]).unwrap();
            assert!(chunks.is_done() && used == BODY.len(), "{first}");
        }
    }

    #[test]
    fn ambiguous_chunks_are_refused() {
        for body in [
            "\r\n",
            "g\r\n",
            "-1\r\n",
            "+1\r\n",
            "0x1\r\n",
            "1 1\r\na\r\n",
            "1000000000000000\r\n",
            "5\nhello\r\n",
            "5\r\nhello\n",
            "5\r\nhelloo",
            "5\r\nhello\r0",
            "5;a\rb\r\n",
            "0\r\nno field\r\n",
            "0\r\n folded: x\r\n",
            "0\r\n\n",
        ] {
            assert_eq!(Chunks::default().read(body.as_bytes()), Err(BAD_REQUEST), "{body:?}");
        }
        let long = format!("1;{}", "a".repeat(MAX_SIZE_LINE));
        assert_eq!(Chunks::default().read(long.as_bytes()), Err(BAD_REQUEST));
        let trailers = format!("0\r\n{}", "a: b\r\n".repeat(MAX_TRAILERS / 6 + 1));
        assert_eq!(Chunks::default().read(trailers.as_bytes()), Err(BAD_REQUEST));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_in_any_parts(
            bytes in prop::collection::vec(prop::sample::select(b"0123af;\r\n: x".to_vec()), 0..60), cut: prop::sample::Index,
        ) {
            let mut whole = Chunks::default();
            let expected = whole.read(&bytes);
            let mut parts = Chunks::default();
            let cut = cut.index(bytes.len() + 1);
            let got = parts.read(&bytes[..cut]).and_then(|used| {
                if used < cut { Ok(used) } else { Ok(used + parts.read(&bytes[used..])?) }
            });
            prop_assert_eq!(&got, &expected);
            if got.is_ok() {
                prop_assert_eq!(parts, whole);
            }
        }
    }
}
