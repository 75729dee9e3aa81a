//! Just enough of HTTP/1.1 to read an answer with a known length, to its last byte.

use std::io::{Read, Write};

use anyhow::{Context, bail};

/// Octets that a head may have.
const MAX_HEAD: usize = 16 * 1024;

/// Reads one response; gives status and bytes of the body. The body must have a Content-Length.
pub fn read_response<C: Read + Write + ?Sized>(
    connection: &mut C,
    buffer: &mut [u8],
) -> anyhow::Result<(u16, u64)> {
    let mut head = Vec::with_capacity(512);
    let body_start = loop {
        let n = connection.read(buffer)?;
        if n == 0 {
            bail!("the connection ended within the head");
        }
        head.extend_from_slice(&buffer[..n]);
        if let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4;
        }
        if head.len() > MAX_HEAD {
            bail!("a head of more than {MAX_HEAD} bytes");
        }
    };
    let text = std::str::from_utf8(&head[..body_start]).context("a head that is not text")?;
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).context("no status")?;
    let length: u64 = text
        .lines()
        .find_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("content-length")))
        .and_then(|(_, value)| value.trim().parse().ok())
        .context("no Content-Length")?;
    let mut got = (head.len() - body_start) as u64;
    while got < length {
        let n = connection.read(buffer)?;
        if n == 0 {
            bail!("the connection ended after {got} of {length} bytes");
        }
        got += n as u64;
    }
    if got > length {
        bail!("{} bytes behind the answer", got - length);
    }
    Ok((status, length))
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
    }
}
