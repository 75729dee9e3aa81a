//! Parses the head of a response, and finds where its body ends.

use std::io::{self, Read};

use anyhow::{Context, bail};

/// Longest accepted head, bytes.
const MAX_HEAD: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

/// The head of an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Status code.
    pub status: u16,
    /// Reason phrase.
    pub reason: String,
    /// Length of the body; `None` if the connection's end ends it.
    pub length: Option<u64>,
    /// Entity tag, as the server sent it.
    pub etag: Option<String>,
    /// First byte and whole size of a partial content.
    pub range: Option<(u64, u64)>,
    /// The server closes the connection after this response.
    pub close: bool,
}

/// Bytes of a connection that were read beyond the wanted ones.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    at: usize,
}

impl Buffer {
    /// Reads bytes: buffered ones first.
    pub fn read(&mut self, from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
        let held = &self.bytes[self.at..];
        if held.is_empty() {
            return from.read(into);
        }
        let n = held.len().min(into.len());
        into[..n].copy_from_slice(&held[..n]);
        self.at += n;
        Ok(n)
    }

    /// Reads a head; skips interim responses (1xx).
    pub fn head(&mut self, from: &mut impl Read) -> anyhow::Result<Head> {
        self.bytes.drain(..self.at);
        self.at = 0;
        loop {
            if let Some((head, used)) = parse(&self.bytes)? {
                self.bytes.drain(..used);
                if head.status >= 200 {
                    return Ok(head);
                }
                continue;
            }
            if self.bytes.len() > MAX_HEAD {
                bail!("the response head is longer than {MAX_HEAD} octets");
            }
            let mut block = [0; 4096];
            let n = from.read(&mut block).context("reading the response")?;
            if n == 0 {
                bail!("the connection ended before the response");
            }
            self.bytes.extend_from_slice(&block[..n]);
        }
    }
}

fn parse(bytes: &[u8]) -> anyhow::Result<Option<(Head, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let used = match response.parse(bytes).context("the response head")? {
        httparse::Status::Complete(used) => used,
        httparse::Status::Partial => return Ok(None),
    };
    let mut head = Head {
        status: response.code.unwrap_or_default(),
        reason: response.reason.unwrap_or_default().to_owned(),
        length: None,
        etag: None,
        range: None,
        close: response.version == Some(0),
    };
    for header in response.headers.iter() {
        let value = std::str::from_utf8(header.value).unwrap_or_default().trim();
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => head.length = Some(value.parse().context("Content-Length")?),
            "etag" => head.etag = Some(value.to_owned()),
            "connection" if value.eq_ignore_ascii_case("close") => head.close = true,
            "transfer-encoding" => bail!("transfer encoding {value} is not supported"),
            "content-range" => {
                let parts = value.strip_prefix("bytes ").and_then(|v| v.split_once('/'));
                head.range = parts.and_then(|(range, size)| {
                    Some((range.split_once('-')?.0.parse().ok()?, size.parse().ok()?))
                });
            }
            _ => {}
        }
    }
    if matches!(head.status, 204 | 304) {
        head.length = Some(0);
    }
    Ok(Some((head, used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_parsed_and_bodies_follow() {
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\n\
            ETag: \"x\"\r\nContent-Range: bytes 5-7/10\r\n\r\nabcHTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        let (mut buffer, mut from) = (Buffer::default(), &text[..]);
        let head = buffer.head(&mut from).unwrap();
        assert_eq!((head.status, head.length, head.range, head.close), (206, Some(3), Some((5, 10)), false));
        let mut body = [0; 3];
        assert_eq!(buffer.read(&mut from, &mut body).unwrap(), 3);
        assert_eq!(&body, b"abc");
        let head = buffer.head(&mut from).unwrap();
        assert_eq!((head.status, head.length, head.close), (204, Some(0), true));
        assert!(buffer.head(&mut from).unwrap_err().to_string().contains("ended"));
    }

    #[test]
    fn malformed_head_is_an_error() {
        for text in [
            "nonsense\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(Buffer::default().head(&mut text.as_bytes()).is_err(), "{text}");
        }
        let endless = "HTTP/1.1 200 OK\r\nX: ".to_owned() + &"y".repeat(MAX_HEAD + 5000);
        assert!(Buffer::default().head(&mut endless.as_bytes()).is_err());
    }
}
