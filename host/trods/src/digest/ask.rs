//! The own server asked for all of an object.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Content, Digest, Wanted, shorten};
use crate::head::{self, MAX_HEAD, Method};
use crate::record::MAX_CHECK;

/// How long the server may take for the next bytes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;
/// Without a client that waits the thread rests so many times as long as it worked: a quarter of a processor.
const REST: u32 = 3;

/// What the bytes of an object come to as the own server has it, asked for from this host's address. `goes_on` is asked between the parts.
///
/// # Errors
/// The server brings something else, or ends early; `Interrupted`: it is not to go on.
pub(super) fn content(
    wanted: &Wanted,
    is_urgent: bool,
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<Content> {
    let stream = TcpStream::connect_timeout(&wanted.service, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
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
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let room = (MAX_HEAD - head.len()) as u64;
        if server.by_ref().take(room).read_until(b'\n', &mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
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
        let bytes = server.fill_buf()?;
        let count = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hash.update(&bytes[..count]);
        let first = count.min(MAX_CHECK - check.0 as usize);
        check = (check.0 + first as u32, crc32c::crc32c_append(check.1, &bytes[..first]));
        server.consume(count);
        left -= count as u64;
        if !goes_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if !is_urgent {
            // At most: a processor that was taken away counts as work.
            std::thread::sleep((began.elapsed() * REST).min(Duration::from_millis(20)));
            began = Instant::now();
        }
    }
    Ok(Content { digest: Digest(shorten(&hash)), check })
}
