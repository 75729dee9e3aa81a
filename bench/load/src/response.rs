//! Parses HTTP/1.1 answers of known length, and answers of DNS over TCP.

use std::io::Read;
use std::sync::Arc;

use anyhow::{Context, bail};

use crate::target::Ask;

/// Most bytes of a head.
const MAX_HEAD: usize = 16 * 1024;

/// A byte of the body differs from the served object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body differs from the served object at byte {0}")]
pub struct WrongBody(pub u64);

/// Reads one answer, from pieces of any size.
#[derive(Debug, Default)]
pub struct Parser {
    head: Vec<u8>,
    /// Status, length of the body, and received bytes of it; after the head is complete.
    body: Option<(u16, u64, u64)>,
    /// The expected body.
    expected: Option<Arc<[u8]>>,
    ask: Ask,
}

impl Parser {
    /// Parser of answers to this request, with this body; `None`: any body.
    #[must_use]
    pub fn expecting(ask: Ask, expected: Option<Arc<[u8]>>) -> Parser {
        Parser { expected, ask, ..Parser::default() }
    }

    /// Parses bytes; returns status and bytes of the body once the answer is complete. It must have a
    /// Content-Length.
    ///
    /// # Errors
    /// If the bytes are not such an answer, or continue after it; [`WrongBody`].
    pub fn feed(&mut self, bytes: &[u8]) -> anyhow::Result<Option<(u16, u64)>> {
        if let Ask::Name { id } = self.ask {
            return self.message(bytes, id);
        }
        let (status, length, got) = match self.body {
            Some((status, length, got)) => {
                self.compare(status, got, bytes)?;
                (status, length, got + bytes.len() as u64)
            }
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
                self.compare(status, 0, &self.head[body..])?;
                (status, length, (self.head.len() - body) as u64)
            }
        };
        self.body = Some((status, length, got));
        if got > length {
            bail!("{} bytes behind the answer", got - length);
        }
        Ok((got == length).then_some((status, length)))
    }

    /// A message of DNS behind its length (RFC 7766); one without an error counts as status 200.
    fn message(&mut self, bytes: &[u8], id: u16) -> anyhow::Result<Option<(u16, u64)>> {
        self.head.extend_from_slice(bytes);
        let Some((length, message)) = self.head.split_first_chunk() else { return Ok(None) };
        let (length, got) = (u64::from(u16::from_be_bytes(*length)), message.len() as u64);
        if got > length {
            bail!("{} bytes behind the answer", got - length);
        }
        let status = match message {
            // An answer to this query, with response code 0 and a record.
            [a, b, flags, code, _, _, 0, 1..=255, ..]
                if [*a, *b] == id.to_be_bytes() && flags >> 7 == 1 && code & 15 == 0 =>
            {
                200
            }
            _ => 500,
        };
        self.body = Some((status, length, got));
        Ok(self.whole())
    }

    /// Whether these are the bytes of the body from `at` on. The body of another status is not compared.
    fn compare(&self, status: u16, at: u64, bytes: &[u8]) -> Result<(), WrongBody> {
        let Some(expected) = self.expected.as_ref().filter(|_| status == 200) else { return Ok(()) };
        let right = expected.get(at as usize..).unwrap_or_default();
        let same = right.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        if same < bytes.len() { Err(WrongBody(at + same as u64)) } else { Ok(()) }
    }

    /// Status and bytes of the body, once the answer is complete.
    #[must_use]
    pub fn whole(&self) -> Option<(u16, u64)> {
        self.body.filter(|(_, length, got)| got == length).map(|(status, length, _)| (status, length))
    }

    /// Status and received bytes of the body, once the head is complete.
    #[must_use]
    pub fn so_far(&self) -> Option<(u16, u64)> {
        self.body.map(|(status, _, got)| (status, got))
    }

    /// Progress, for an error message.
    #[must_use]
    pub fn progress(&self) -> String {
        match self.body {
            Some((_, length, got)) => format!("after {got} of {length} bytes"),
            None => "within the head".into(),
        }
    }

    /// Resets the parser for the next answer.
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

/// Reads one response from a blocking connection; returns status and bytes of the body.
///
/// # Errors
/// Errors of the connection, and of [`Parser::feed`].
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
    fn dns_answer_must_match_query() {
        let answer = |id: u16, flags: u8, code: u8, records: u8| {
            let mut message = vec![0, 14];
            message.extend(id.to_be_bytes());
            message.extend([flags, code, 0, 1, 0, records, 0, 0, 0, 0, 7, 7]);
            message
        };
        for (id, flags, code, records, status) in [
            (5, 0x84, 0, 1, 200),
            (6, 0x84, 0, 1, 500),
            (5, 0x04, 0, 1, 500),
            (5, 0x84, 3, 1, 500),
            (5, 0x84, 0, 0, 500),
        ] {
            for size in [1, 5, 100] {
                let mut parser = Parser::expecting(Ask::Name { id: 5 }, None);
                let message = answer(id, flags, code, records);
                let told: Vec<_> =
                    message.chunks(size).filter_map(|piece| parser.feed(piece).unwrap()).collect();
                assert_eq!(told, [(status, 14)], "{id} {flags} {code} {records}");
                assert!(parser.feed(b"x").is_err());
            }
        }
    }

    #[test]
    fn wrong_body_is_reported_with_its_offset() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd";
        for (body, wrong) in [("abcd", None), ("abxd", Some(2)), ("abc", Some(3)), ("", Some(0))] {
            for size in [1, 3, 100] {
                let mut parser = Parser::expecting(Ask::Path, Some(body.as_bytes().into()));
                let told = text.chunks(size).find_map(|piece| parser.feed(piece).err());
                let told = told.map(|error| error.downcast::<WrongBody>().unwrap());
                assert_eq!(told, wrong.map(WrongBody), "{body}, pieces of {size}");
            }
        }
    }

    #[test]
    fn answer_is_parsed_in_any_pieces() {
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
