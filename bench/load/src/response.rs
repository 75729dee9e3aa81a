//! Just enough of HTTP/1.1 to read an answer with a known length, to its last byte.

use std::io::Read;

use anyhow::{Context, bail};

/// Octets that a head may have.
const MAX_HEAD: usize = 16 * 1024;

/// Reads one answer, in whatever pieces it comes.
#[derive(Debug, Default)]
pub struct Parser {
    head: Vec<u8>,
    /// Status, length of the body, and how much of it has come; once the head is whole.
    body: Option<(u16, u64, u64)>,
}

impl Parser {
    /// Takes bytes; status and bytes of the body once the answer is whole. The body must have a Content-Length.
    ///
    /// # Errors
    /// Where the bytes are not such an answer, or go on behind it.
    pub fn feed(&mut self, bytes: &[u8]) -> anyhow::Result<Option<(u16, u64)>> {
        let (status, length, got) = match self.body {
            Some((status, length, got)) => (status, length, got + bytes.len() as u64),
            None => {
                // The end of the head may lie across two pieces.
                let from = self.head.len().saturating_sub(3);
                self.head.extend_from_slice(bytes);
                let Some(end) = self.head[from..].windows(4).position(|w| w == b"\r\n\r\n") else {
                    if self.head.len() > MAX_HEAD {
                        bail!("a head of more than {MAX_HEAD} bytes");
                    }
                    return Ok(None);
                };
                let body = from + end + 4;
                let (status, length) = fields(&self.head[..body])?;
                (status, length, (self.head.len() - body) as u64)
            }
        };
        self.body = Some((status, length, got));
        if got > length {
            bail!("{} bytes behind the answer", got - length);
        }
        Ok((got == length).then_some((status, length)))
    }

    /// How far it came, for an error message.
    #[must_use]
    pub fn progress(&self) -> String {
        match self.body {
            Some((_, length, got)) => format!("after {got} of {length} bytes"),
            None => "within the head".into(),
        }
    }

    /// Ready for the next answer.
    pub fn reset(&mut self) {
        self.head.clear();
        self.body = None;
    }
}

/// Status and Content-Length of a head.
fn fields(head: &[u8]) -> anyhow::Result<(u16, u64)> {
    let text = std::str::from_utf8(head).context("a head that is not text")?;
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).context("no status")?;
    let length = text
        .lines()
        .find_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length")))
        .and_then(|(_, value)| value.trim().parse().ok())
        .context("no Content-Length")?;
    Ok((status, length))
}

/// Reads one response from a blocking connection; gives status and bytes of the body.
///
/// # Errors
/// Those of the connection, and of [`Parser::feed`].
pub fn read_response<C: Read + ?Sized>(connection: &mut C, buffer: &mut [u8]) -> anyhow::Result<(u16, u64)> {
    let mut parser = Parser::default();
    loop {
        let n = connection.read(buffer)?;
        if n == 0 {
            bail!("the connection ended {}", parser.progress());
        }
        if let Some(done) = parser.feed(&buffer[..n])? {
            return Ok(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn read(text: &str) -> anyhow::Result<(u16, u64)> {
        read_response(&mut Cursor::new(text.as_bytes().to_vec()), &mut [0; 7])
    }

    #[test]
    fn reads_to_the_last_byte_and_no_further() {
        assert_eq!(read("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").unwrap(), (200, 5));
        assert_eq!(read("HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n").unwrap(), (404, 0));
        assert!(read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell").is_err());
        assert!(read("HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(read("nonsense\r\n\r\n").is_err());
        assert!(read("").is_err());
        assert!(read(&"x".repeat(MAX_HEAD + 10)).is_err());
    }

    #[test]
    fn the_same_answer_in_any_pieces() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc";
        for size in 1..text.len() {
            let mut parser = Parser::default();
            for _ in 0..2 {
                let done: Vec<_> = text.chunks(size).filter_map(|c| parser.feed(c).unwrap()).collect();
                assert_eq!(done, [(200, 3)], "pieces of {size}");
                parser.reset();
            }
        }
        let mut parser = Parser::default();
        assert!(parser.feed(text).unwrap().is_some());
        assert!(parser.feed(b"x").is_err(), "a byte behind the answer");
    }
}
