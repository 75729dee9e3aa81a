//! The own server asked for what it has: a list of targets, which it serves itself, and the head of each.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::table::{MAX_TARGET, MAX_TARGETS, Row, Table};

/// How long the server may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Octets of the longest list.
const MAX_LIST: u64 = 64 << 20;
/// Octets of a head that is read at most.
const MAX_HEAD: u64 = 8192;

/// The table as the server at this address has it, in the calling thread's network namespace.
///
/// # Errors
/// The server is not there, or says nothing of use.
pub fn table(origin: SocketAddr, list: &str) -> io::Result<Table> {
    let host = origin.to_string();
    let mut server = connect(origin)?;
    ask(&mut server, "GET", list.as_bytes(), &host, true)?;
    let head = head(&mut server)?;
    if !head.starts_with(b"HTTP/1.1 200 ") {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no list at {list}")));
    }
    let mut text = Vec::new();
    server.take(MAX_LIST).read_to_end(&mut text)?;
    let targets = text.split(|&b| b == b'\n').map(<[u8]>::trim_ascii);
    let targets: Vec<&[u8]> = targets.filter(|t| is_target(t)).take(MAX_TARGETS).collect();
    let mut rows = Vec::with_capacity(targets.len());
    let mut server = connect(origin)?;
    let mut closing = None;
    for target in targets {
        if ask(&mut server, "HEAD", target, &host, false).is_err() {
            server = connect(origin)?;
            ask(&mut server, "HEAD", target, &host, false)?;
        }
        let keep = self::head(&mut server)?;
        // What a server says that closes is looked at once, and concluded from then on.
        let close = match closing {
            Some(closes) => Some(closed(&keep)).filter(|_| closes),
            None => {
                let mut server = connect(origin)?;
                ask(&mut server, "HEAD", target, &host, true)?;
                let close = self::head(&mut server)?;
                let both =
                    |head: &[u8]| Row::new(target, [Some(head), None]).and_then(|row| row.known[0].clone());
                let concluded = closed(&keep);
                let agrees = both(&close).is_some_and(|known| both(&concluded) == Some(known));
                if both(&keep).is_some() {
                    closing = Some(agrees);
                }
                Some(close)
            }
        };
        rows.extend(Row::new(target, [Some(&keep), close.as_deref()]));
    }
    Ok(Table::new(&host, rows))
}

/// Whether a line of the list is a target that a request line can have.
fn is_target(line: &[u8]) -> bool {
    line.first() == Some(&b'/') && line.len() <= MAX_TARGET && line.iter().all(u8::is_ascii_graphic)
}

/// The head of one that closes, of the head of one that does not.
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

/// Octets up to the empty line, which is among them.
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
