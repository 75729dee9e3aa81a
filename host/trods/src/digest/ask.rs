//! Requests a whole object from the local server, to compute its digest.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Content, Digest, Wanted, shorten};
use crate::head::{self, MAX_HEAD, Method};
use crate::record::MAX_CHECK;

/// Limit on the time until the server's first bytes, and then until each further [`LEAST`] bytes:
/// other objects wait in the queue meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
const LEAST: u64 = 2 << 20;
/// Longest time between two checks of the queue of urgent objects while a slow object is being
/// read.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes per read.
const CHUNK: usize = 256 << 10;
/// While no client waits, the thread pauses for this multiple of the time that it worked, and so uses
/// at most a quarter of a processor.
const REST: u32 = 3;

/// Time spent waiting for the server, to enforce [`PATIENCE`] and [`LEAST`].
struct Pace {
    waited: Duration,
    /// Bytes received since `waited` was last reset to 0.
    bytes: u64,
}

impl Pace {
    /// Waits for the next bytes; calls `goes_on` every [`LOOK`] meanwhile.
    fn fill<'s>(
        &mut self,
        server: &'s mut BufReader<TcpStream>,
        goes_on: &mut impl FnMut() -> bool,
    ) -> io::Result<&'s [u8]> {
        while server.buffer().is_empty() {
            let asked = Instant::now();
            let came = server.fill_buf().map(|_| ());
            self.waited += asked.elapsed();
            match came {
                Ok(()) => break,
                // A signal, or a freeze of the process, interrupted the call (signal(7)).
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                    ) =>
                {
                    if self.waited >= PATIENCE {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    if !goes_on() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
                Err(e) => return Err(e),
            }
        }
        Ok(server.buffer())
    }

    /// Counts `count` received bytes.
    fn take(&mut self, count: usize) -> io::Result<()> {
        self.bytes += count as u64;
        if self.bytes >= LEAST {
            (self.waited, self.bytes) = (Duration::ZERO, 0);
        }
        if self.waited >= PATIENCE { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

/// Computes the digest of an object as the local server sends it to a request from this host's
/// address. `goes_on` is called between the parts; `false` stops the transfer.
///
/// # Errors
/// The server sends something else or closes early; `TimedOut`: it takes too long; `Interrupted`:
/// `goes_on` returned `false`.
pub(super) fn content(
    wanted: &Wanted,
    is_urgent: bool,
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<Content> {
    let stream = TcpStream::connect_timeout(&wanted.service, PATIENCE)?;
    stream.set_read_timeout(Some(LOOK))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut hash = blake3::Hasher::new();
    let (first, length) = wanted.part.unwrap_or((0, wanted.total));
    let Some(last) = (first + length).checked_sub(1) else { return Ok(Content::default()) };
    let mut check = (0, 0);
    let ask = match wanted.part {
        Some(_) => wanted.request.clone(),
        None => head::range_request(&wanted.request, &wanted.etag, first, last),
    };
    let mut server = BufReader::with_capacity(CHUNK, stream);
    server.get_mut().write_all(&ask)?;
    let mut pace = Pace { waited: Duration::ZERO, bytes: 0 };
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let bytes = pace.fill(&mut server, &mut goes_on)?;
        let line = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |at| at + 1);
        let count = line.min(MAX_HEAD - head.len());
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&bytes[..count]);
        server.consume(count);
        pace.take(0)?;
    }
    let other = |what: String| io::Error::new(io::ErrorKind::NotFound, what);
    let answer = head::response(&head, Method::Get).ok().flatten().ok_or(io::ErrorKind::InvalidData)?;
    let object = answer.object.ok_or_else(|| other(format!("status {}", answer.status)))?;
    let is_it = object.etag == wanted.etag && object.encoding == wanted.encoding.as_deref();
    if !is_it || (object.first, object.length, object.total) != (first, length, wanted.total) {
        return Err(other("another entity tag, coding or length".into()));
    }
    let mut left = length;
    let mut began = Instant::now();
    while left > 0 {
        let bytes = pace.fill(&mut server, &mut goes_on)?;
        let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hash.update(&bytes[..count]);
        let first = count.min(MAX_CHECK - check.0 as usize);
        check = (check.0 + first as u32, crc32c::crc32c_append(check.1, &bytes[..first]));
        server.consume(count);
        pace.take(count)?;
        left -= count as u64;
        if !goes_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if !is_urgent {
            // Limits the pause: after the process was suspended, the elapsed time is no measure of
            // work.
            std::thread::sleep((began.elapsed() * REST).min(Duration::from_millis(20)));
            began = Instant::now();
        }
    }
    Ok(Content { digest: Digest(shorten(&hash)), check })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rivulet_pktio::testing::under_signals;

    use super::*;

    #[test]
    fn interrupted_calls_do_not_stop_object_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let service = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).unwrap();
            }
            let head = "HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Length: 20000\r\n\
                        Content-Range: bytes 0-19999/20000\r\n\r\n";
            stream.get_mut().write_all(head.as_bytes()).unwrap();
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(5));
                stream.get_mut().write_all(&[7; 1000]).unwrap();
            }
        });
        let request = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
        let wanted = Wanted::new(service, request, b"\"a\"", None, 20_000).unwrap();
        let content = under_signals(|| content(&wanted, true, || true)).unwrap();
        assert_eq!(content.digest, Digest(shorten(blake3::Hasher::new().update(&[7; 20_000]))));
        server.join().unwrap();
    }
}
