//! Builds the table of the local server's objects: requests the list of targets, and the head of
//! each target.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::table::{MAX_TARGET, MAX_TARGETS, Row, Table};
use crate::digest::{Digests, Knowledge, Wanted};

/// Time limit for an answer of the server.
const PATIENCE: Duration = Duration::from_secs(2);
/// Limit on the length of the list, bytes.
const MAX_LIST: u64 = 64 << 20;
/// Limit on the length of a host name, bytes.
const MAX_HOST: usize = 255;
/// Limit on the length of a head, bytes.
const MAX_HEAD: u64 = 8192;

/// Interval at which missing digests are looked up.
const LOOK: Duration = Duration::from_millis(20);

/// Requests the list and the heads from the server at a service's addresses, in the calling
/// thread's network namespace. Objects without a digest are left out.
///
/// # Errors
/// The server cannot be reached, or its answers are unusable; `Interrupted`: `stop` was set.
pub fn table(sockets: &[SocketAddr], list: &str, digests: &Digests, stop: &AtomicBool) -> io::Result<Table> {
    let Some(&first) = sockets.first() else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut server = connect(first)?;
    ask(&mut server, "GET", list.as_bytes(), &host_of(first), true)?;
    let head = head(&mut server)?;
    if !head.starts_with(b"HTTP/1.1 200 ") {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no list at {list}")));
    }
    let mut text = Vec::new();
    server.take(MAX_LIST).read_to_end(&mut text)?;
    let lines = text.split(|&b| b == b'\n').map(<[u8]>::trim_ascii);
    let places: Vec<Place<'_>> = lines.flat_map(|line| places(line, sockets)).take(MAX_TARGETS).collect();
    let mut rows = Vec::with_capacity(places.len());
    for socket in sockets {
        let there: Vec<_> = places.iter().filter(|place| place.socket == *socket).collect();
        if !there.is_empty() {
            rows_of(*socket, &there, &mut rows)?;
        }
    }
    let wanted = |(socket, row): (SocketAddr, Row)| {
        let encoding = row.encoding.as_deref();
        Some((Wanted::new(socket, &row.request(), &row.etag, encoding, row.length)?, row))
    };
    let rows: Vec<(Wanted, Row)> = rows.into_iter().filter_map(wanted).collect();
    let mut pending: Vec<&Wanted> = rows.iter().map(|(wanted, _)| wanted).collect();
    loop {
        pending.retain(|wanted| digests.look_for(wanted) == Knowledge::Asked);
        if pending.is_empty() {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        std::thread::sleep(LOOK);
    }
    let compared = rows.into_iter().filter_map(|(wanted, mut row)| {
        row.content = digests.content(&wanted)?;
        Some(row)
    });
    Ok(Table::new(compared.collect()))
}

/// A target with the host name for its requests, and the address to which these are sent.
struct Place<'l> {
    socket: SocketAddr,
    host: String,
    target: &'l [u8],
}

/// The targets of a line: `http://HOST/PATH` belongs to that host, a path alone to each of the
/// service's addresses.
fn places<'l>(line: &'l [u8], sockets: &[SocketAddr]) -> Vec<Place<'l>> {
    let is_plain = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_graphic);
    let is_target = |target: &[u8]| target.len() <= MAX_TARGET && is_plain(target);
    if let Some(rest) = line.strip_prefix(b"http://") {
        let Some(slash) = rest.iter().position(|&b| b == b'/') else { return Vec::new() };
        let (host, target) = rest.split_at(slash);
        let is_host = (1..=MAX_HOST).contains(&host.len()) && is_plain(host);
        return match (sockets.first(), std::str::from_utf8(host)) {
            (Some(&socket), Ok(host)) if is_host && is_target(target) => {
                vec![Place { socket, host: host.to_ascii_lowercase(), target }]
            }
            _ => Vec::new(),
        };
    }
    if line.first() != Some(&b'/') || !is_target(line) {
        return Vec::new();
    }
    sockets.iter().map(|&socket| Place { socket, host: host_of(socket), target: line }).collect()
}

/// `Host` as clients send it for an address: without port 80 (RFC 9110 section 4.2.3).
fn host_of(socket: SocketAddr) -> String {
    match (socket.port(), socket) {
        (80, SocketAddr::V4(socket)) => socket.ip().to_string(),
        (80, SocketAddr::V6(socket)) => format!("[{}]", socket.ip()),
        _ => socket.to_string(),
    }
}

/// Appends the rows of the objects that are requested at one address.
fn rows_of(origin: SocketAddr, places: &[&Place<'_>], rows: &mut Vec<(SocketAddr, Row)>) -> io::Result<()> {
    let mut server = connect(origin)?;
    let mut closing = None;
    for Place { host, target, .. } in places {
        if ask(&mut server, "HEAD", target, host, false).is_err() {
            server = connect(origin)?;
            ask(&mut server, "HEAD", target, host, false)?;
        }
        let keep = self::head(&mut server)?;
        // The head for `Connection: close` is requested for the first object only; the others' are
        // derived by the same change.
        let close = match closing {
            Some(closes) => Some(closed(&keep)).filter(|_| closes),
            None => {
                let mut server = connect(origin)?;
                ask(&mut server, "HEAD", target, host, true)?;
                let close = self::head(&mut server)?;
                let both = |head: &[u8]| {
                    Row::new(host, target, [Some(head), None]).and_then(|row| row.known[0].clone())
                };
                let concluded = closed(&keep);
                let agrees = both(&close).is_some_and(|known| both(&concluded) == Some(known));
                if both(&keep).is_some() {
                    closing = Some(agrees);
                }
                Some(close)
            }
        };
        rows.extend(Row::new(host, target, [Some(&keep), close.as_deref()]).map(|row| (origin, row)));
    }
    Ok(())
}

/// Derives the head of a response after which the server closes, from that of a keep-alive
/// response.
fn closed(head: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.len());
    for line in head.split_inclusive(|&b| b == b'\n') {
        let is_it = line.eq_ignore_ascii_case(b"connection: keep-alive\r\n");
        out.extend_from_slice(if is_it { b"Connection: close\r\n" } else { line });
    }
    out
}

fn connect(origin: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&origin, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

fn ask(
    to: &mut BufReader<TcpStream>,
    method: &str,
    target: &[u8],
    host: &str,
    close: bool,
) -> io::Result<()> {
    let close = if close { "Connection: close\r\n" } else { "" };
    let rest = format!(" HTTP/1.1\r\nHost: {host}\r\n{close}\r\n");
    to.get_mut().write_all(&[method.as_bytes(), b" ", target, rest.as_bytes()].concat())
}

/// Reads a head, including its empty line.
fn head(from: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let before = head.len();
        let count = from.by_ref().take(MAX_HEAD - before as u64).read_until(b'\n', &mut head)?;
        match &head[before..] {
            b"\r\n" | b"\n" => return Ok(head),
            _ if count == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_line_is_path_or_host_url() {
        let sockets = ["10.9.0.1:80", "[fd00:9::1]:8080"].map(|socket| socket.parse().unwrap());
        let read = |line: &[u8]| {
            let places = places(line, &sockets).into_iter();
            places
                .map(|place| (place.socket == sockets[0], place.host, place.target.to_vec()))
                .collect::<Vec<_>>()
        };
        let both = [
            (true, "10.9.0.1".to_owned(), b"/a".to_vec()),
            (false, "[fd00:9::1]:8080".to_owned(), b"/a".to_vec()),
        ];
        assert_eq!(read(b"/a"), both);
        assert_eq!(read(b"http://One.example/a"), [(true, "one.example".to_owned(), b"/a".to_vec())]);
        for line in [
            &b""[..],
            b"a",
            b"http://",
            b"http://one.example",
            b"http:///a",
            b"/a b",
            b"https://one.example/a",
        ] {
            assert_eq!(read(line), []);
        }
    }
}
