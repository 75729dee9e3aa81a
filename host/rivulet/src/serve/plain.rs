//! Clients that speak plain TCP: the kernel's sockets in front of the same HTTP functions.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_server::{Adopted, Door, Doorway};

use super::connections::{Connections, Guest, MAX_CONNECTIONS};
use crate::http::{Answer, Input, Objects, Promise, ReadError, Reads, Session, Site};

/// Adopted connections beside those that are open: they wait until another has given way.
const WAITING: usize = 64;
/// For how long a client may send one request's head, from its first byte to its last.
const HEAD: Duration = Duration::from_secs(20);
/// Bytes a second that a client sends of a body, and takes of an answer, at least, in the mean from [`IDLE`] after its beginning on.
const LEAST_RATE: u64 = 1024;
/// A connection without a request, or whose client takes nothing, is closed after this.
const IDLE: Duration = Duration::from_secs(60);
/// How long a request may wait for its content to be hashed.
const HASHING: Duration = Duration::from_secs(120);
const BLOCK: usize = 64 << 10;
/// Requests answered from one read.
const PIPELINE: usize = 16;

/// Seconds since 1970 for the `Date` header.
#[must_use]
pub fn date() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(now.as_secs()).unwrap_or(u32::MAX)
}

/// Listens on `address` and serves on threads of its own from then on.
///
/// # Errors
/// The system's, where nothing can listen there.
pub fn listen(address: SocketAddr, site: Site) -> io::Result<SocketAddr> {
    listen_among(address, site, Connections::default())
}

/// The same, of a listener whose connections are counted with others'.
pub(super) fn listen_among(
    address: SocketAddr,
    site: Site,
    connections: Connections,
) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    std::thread::Builder::new()
        .name("tcp-listen".into())
        .spawn(move || accept(&listener, &site, &connections))?;
    Ok(address)
}

fn accept(listener: &TcpListener, site: &Site, connections: &Connections) {
    loop {
        let admitted = listener.accept().and_then(|(stream, client)| {
            let other = stream.try_clone()?;
            Ok((stream, connections.admit(client, other)))
        });
        let (stream, guest) = match admitted {
            Ok((stream, Some(guest))) => (stream, guest),
            Ok((_, None)) => continue,
            Err(e) => {
                // Out of descriptors, most likely; the next attempt would fail at once again.
                tracing::warn!(error = %e, "accept");
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
        };
        let site = site.clone();
        let spawned = std::thread::Builder::new().name("tcp".into()).stack_size(256 << 10).spawn(move || {
            if let Err(e) = serve(stream, &site, &guest) {
                tracing::debug!(error = %e, "TCP connection");
            }
        });
        if let Err(e) = spawned {
            tracing::warn!(error = %e, "no thread for a TCP connection");
        }
    }
}

/// Where connections go that were begun without state.
pub(super) fn doorway(site: Site, connections: Connections) -> io::Result<Doorway> {
    let (sender, receiver) = sync_channel(MAX_CONNECTIONS + WAITING);
    std::thread::Builder::new()
        .name("tcp-adopt".into())
        .spawn(move || take(&receiver, &site, &connections))?;
    Ok(Doorway::new(Arc::new(Queue(sender)), MAX_CONNECTIONS + WAITING))
}

/// Connections that wait for a thread, which is not made on the packet path.
struct Queue(SyncSender<Adopted>);

impl Door for Queue {
    fn accept(&self, connection: Adopted) {
        // There is room for as many as are held. One that finds none all the same is closed.
        if self.0.try_send(connection).is_err() {
            tracing::warn!("an adopted connection found no room");
        }
    }
}

fn take(adopted: &Receiver<Adopted>, site: &Site, connections: &Connections) {
    for connection in adopted {
        let guest = connection.handle().map(|other| connections.admit(connection.peer(), other));
        let guest = match guest {
            Ok(Some(guest)) => guest,
            Ok(None) => continue,
            Err(e) => {
                tracing::warn!(error = %e, "an adopted TCP connection");
                continue;
            }
        };
        let site = site.clone();
        let spawned = std::thread::Builder::new().name("tcp".into()).stack_size(256 << 10).spawn(move || {
            let mut connection = connection;
            match converse(&mut connection, &site, &guest).and_then(|()| linger(&mut connection)) {
                Ok(()) => connection.finish(IDLE),
                Err(e) => tracing::debug!(error = %e, "adopted TCP connection"),
            }
        });
        if let Err(e) = spawned {
            tracing::warn!(error = %e, "no thread for an adopted TCP connection");
        }
    }
}

/// A connection of the kernel's TCP: a listener's, or one that was adopted.
trait Line: Read + Write {
    /// How long reading and writing wait.
    fn set_patience(&self, longest: Duration) -> io::Result<()>;

    /// Ends our direction.
    fn shut(&self) -> io::Result<()>;
}

impl Line for TcpStream {
    fn set_patience(&self, longest: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(longest))?;
        self.set_write_timeout(Some(longest))
    }

    fn shut(&self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

impl Line for Adopted {
    fn set_patience(&self, longest: Duration) -> io::Result<()> {
        Adopted::set_patience(self, longest)
    }

    fn shut(&self) -> io::Result<()> {
        Adopted::shut(self)
    }
}

/// One connection of a listener's from its first to its last octet.
fn serve(mut stream: TcpStream, site: &Site, guest: &Guest) -> io::Result<()> {
    stream.set_nodelay(true)?;
    converse(&mut stream, site, guest)?;
    linger(&mut stream)
}

/// What a client is in the middle of, since when, and how many bytes of it have passed.
struct Pace {
    reads: Reads,
    since: Instant,
    bytes: u64,
}

impl Pace {
    fn new(reads: Reads) -> Pace {
        Pace { reads, since: Instant::now(), bytes: 0 }
    }

    /// For how long it may pause now; none if it has been too slow.
    fn patience(&self) -> Option<Duration> {
        let whole = match self.reads {
            Reads::Nothing => return Some(IDLE),
            Reads::Head => HEAD,
            Reads::Body => IDLE + Duration::from_secs(self.bytes / LEAST_RATE),
        };
        let left = whole.checked_sub(self.since.elapsed()).filter(|left| !left.is_zero());
        left.map(|left| left.min(IDLE))
    }
}

/// The end of a client that is too slow.
fn late(guest: &Guest) -> io::Error {
    guest.count_late();
    io::ErrorKind::TimedOut.into()
}

/// Requests and answers, until one side wants no more.
fn converse(stream: &mut impl Line, site: &Site, guest: &Guest) -> io::Result<()> {
    stream.set_patience(IDLE)?;
    let mut session = Session::new(0);
    // Its number, for the ids of its uploads: not one that another replica gives.
    let (connection, mut offset) = (getrandom::u64().map_err(io::Error::other)?, 0);
    let mut input: Vec<u8> = Vec::new();
    let mut block = vec![0; BLOCK];
    let mut fin = false;
    let mut promises = Vec::new();
    let mut waited = Duration::ZERO;
    let mut pace = Pace::new(Reads::Nothing);
    while !session.closed {
        let now = Input { connection, stream: 0, offset, data: &input, fin };
        let progress = session.feed(&now, site, date(), PIPELINE, &mut promises);
        input.drain(..progress.consumed);
        offset += progress.consumed as u64;
        let answered = !promises.is_empty();
        if answered {
            guest.set_waiting(false);
        }
        for promise in promises.drain(..) {
            send(stream, &promise, &site.objects, &mut block, guest)?;
        }
        if progress.waiting {
            if waited > HASHING {
                return Err(io::ErrorKind::TimedOut.into());
            }
            waited += Duration::from_millis(10);
            std::thread::sleep(Duration::from_millis(10));
            // That is not the client's time.
            pace.since = Instant::now();
        } else if !session.closed && (!answered || input.is_empty()) {
            let reads = session.reads();
            if reads != pace.reads || answered {
                pace = Pace::new(reads);
            }
            guest.set_waiting(reads != Reads::Body);
            let patience = pace.patience().ok_or_else(|| late(guest))?;
            stream.set_patience(patience)?;
            let read = stream.read(&mut block);
            if guest.is_displaced() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let waits =
                |e: &io::Error| matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
            if reads != Reads::Nothing && read.as_ref().is_err_and(waits) {
                return Err(late(guest));
            }
            let n = read?;
            pace.bytes += n as u64;
            fin = n == 0;
            input.extend_from_slice(&block[..n]);
        }
    }
    Ok(())
}

fn send(
    stream: &mut impl Line,
    promise: &Promise,
    objects: &Objects,
    block: &mut [u8],
    guest: &Guest,
) -> io::Result<()> {
    let answer = Answer::decode(&promise.answer).map_err(io::Error::other)?;
    let mut pace = Pace::new(Reads::Body);
    let mut offset = 0;
    while offset < answer.len() {
        let n = (answer.len() - offset).min(block.len() as u64) as usize;
        match answer.read(offset, &mut block[..n], objects) {
            Ok(()) => {}
            Err(ReadError::NotYet) => {
                std::thread::sleep(Duration::from_millis(10));
                pace.since += Duration::from_millis(10);
                continue;
            }
            // Too late for another status: the client sees the connection end early.
            Err(e) => return Err(io::Error::other(e)),
        }
        let mut rest = &block[..n];
        while !rest.is_empty() {
            stream.set_patience(pace.patience().ok_or_else(|| late(guest))?)?;
            let taken = stream.write(rest).map_err(|e| match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(guest),
                _ => e,
            })?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            pace.bytes += taken as u64;
            rest = &rest[taken..];
        }
        offset += n as u64;
    }
    Ok(())
}

/// Ends our direction and reads what still comes, so that the kernel sends no reset over our last
/// answer (RFC 9112 section 9.6).
fn linger(stream: &mut impl Line) -> io::Result<()> {
    let mut block = [0; 4096];
    stream.shut()?;
    stream.set_patience(Duration::from_secs(1))?;
    for _ in 0..1024 {
        match stream.read(&mut block) {
            Ok(0) => break,
            // It says nothing any more; what it is still to get it gets.
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
            other => drop(other?),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn talk(address: SocketAddr, request: &str, shut: bool) -> Vec<u8> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        if shut {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let mut out = Vec::new();
        stream.read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn old_clients_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(dir.path().join("long"), &content).unwrap();
        std::fs::write(dir.path().join("a"), "aaaa").unwrap();
        let objects = Objects::open(dir.path()).unwrap();
        let uploads = Some(crate::http::Uploads::open(dir.path(), crate::http::Limits::default()).unwrap());
        let address = listen("127.0.0.1:0".parse().unwrap(), Site { objects, uploads }).unwrap();
        // Persistent, pipelined, the second one longer than any buffer.
        let request =
            "GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /long HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        for shut in [false, true] {
            let out = talk(address, request, shut);
            let text = String::from_utf8_lossy(&out[..400]).into_owned();
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("aaaaHTTP/1.1 200"), "{text}");
            assert!(out.ends_with(&content), "{} octets", out.len());
        }
        let body = "x".repeat(300_000);
        let put = format!(
            "PUT /up HTTP/1.1\r\nHost: h\r\nContent-Length: 300000\r\nConnection: close\r\n\r\n{body}"
        );
        assert!(talk(address, &put, false).starts_with(b"HTTP/1.1 201 "));
        assert_eq!(std::fs::read(dir.path().join("up")).unwrap(), body.as_bytes());
        let out = talk(address, "nonsense\r\n\r\n", false);
        assert!(out.starts_with(b"HTTP/1.1 400 "));
    }
}
