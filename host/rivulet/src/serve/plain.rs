//! Serves plain TCP clients through the kernel's sockets, with the same HTTP functions as the
//! packet path.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_server::{Adopted, Doorway};

use super::adopted;
use super::connections::{Connections, Guest, Phase};
use crate::http::{Answer, Input, Objects, Promise, ReadError, Reads, Session, Site};

/// Limit on the time that a request waits for its content to be hashed.
const HASHING: Duration = Duration::from_secs(120);
/// Interval at which content that is being read is looked up again.
const LOOK: Duration = Duration::from_millis(10);
/// Longest wait for content before the thread checks whether its connection was displaced.
const PATIENCE: Duration = Duration::from_millis(100);
const BLOCK: usize = 64 << 10;
/// Limit on the requests that are answered from one read.
const PIPELINE: usize = 16;

/// Seconds since 1970 for the `Date` header.
#[must_use]
pub fn date() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(now.as_secs()).unwrap_or(u32::MAX)
}

/// Listens on `address` and serves on separate threads.
///
/// # Errors
/// The address cannot be used.
pub fn listen(address: SocketAddr, site: Site) -> io::Result<SocketAddr> {
    listen_among(address, site, Connections::default())
}

/// Like [`listen`], with `connections` as the table in which the listener's connections count.
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
    let site = site.patient_for(PATIENCE);
    loop {
        let admitted = listener.accept().and_then(|(stream, client)| {
            let other = stream.try_clone()?;
            Ok((stream, connections.admit(client, other)))
        });
        let (stream, guest) = match admitted {
            Ok((stream, Some(guest))) => (stream, guest),
            Ok((_, None)) => continue,
            Err(e) => {
                // Probably out of descriptors: the next attempt would fail at once too.
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

/// The channel for connections that began without state and are passed to the kernel.
pub(super) fn doorway(site: &Site, connections: Connections) -> io::Result<Doorway> {
    let site = site.patient_for(PATIENCE);
    adopted::doorway("tcp", connections, move |mut client, guest| {
        converse(&mut client, &site, guest)?;
        linger(&mut client, guest)?;
        client.finish(taking(guest));
        Ok(())
    })
}

/// A connection of the kernel's TCP: a listener's, or an adopted one.
trait Line: Read + Write {
    /// Sets the timeout of reads and writes.
    fn set_patience(&self, longest: Duration) -> io::Result<()>;

    /// Closes the sending direction.
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

/// Serves one connection of a listener.
fn serve(mut stream: TcpStream, site: &Site, guest: &Guest) -> io::Result<()> {
    stream.set_nodelay(true)?;
    converse(&mut stream, site, guest)?;
    linger(&mut stream, guest)
}

/// What a client is doing, since when, and the bytes transferred since then.
struct Pace<'a> {
    doing: Doing,
    since: Instant,
    bytes: u64,
    guest: &'a Guest,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Reads(Reads),
    /// The client receives an answer.
    Takes,
    /// The client may still send bytes after its last answer.
    Ends,
}

impl<'a> Pace<'a> {
    fn new(doing: Doing, guest: &'a Guest) -> Pace<'a> {
        guest.enter(match doing {
            Doing::Reads(Reads::Body) => Phase::Body,
            Doing::Takes => Phase::Answer,
            Doing::Reads(_) | Doing::Ends => Phase::Waiting,
        });
        Pace { doing, since: Instant::now(), bytes: 0, guest }
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.guest.count(bytes);
    }

    /// How long the client may pause now; an error if it has been too slow.
    fn patience(&self) -> io::Result<Duration> {
        let limits = self.guest.limits();
        let moving = |begin: Duration| begin + Duration::from_secs(self.bytes / limits.least_rate);
        let whole = match self.doing {
            Doing::Reads(Reads::Nothing) => limits.idle,
            Doing::Reads(Reads::Head) => limits.head,
            Doing::Reads(Reads::Body) => moving(limits.head),
            Doing::Takes => moving(limits.idle),
            Doing::Ends => limits.linger,
        };
        let left = whole.checked_sub(self.since.elapsed()).filter(|left| !left.is_zero());
        left.map(|left| left.min(limits.idle)).ok_or_else(|| self.late())
    }

    /// The error for a client that is too slow. Not counted if it has requested nothing.
    fn late(&self) -> io::Error {
        if !matches!(self.doing, Doing::Reads(Reads::Nothing) | Doing::Ends) {
            self.guest.count_late();
        }
        io::ErrorKind::TimedOut.into()
    }

    /// Repeats a call that reads or writes until it completes or the client was too slow.
    ///
    /// A socket with a timeout also returns `Interrupted` when the process was frozen or stopped in
    /// the call (signal(7)). That is no error of the connection, and the call is repeated with the
    /// remaining time.
    fn transfer<L: Line>(
        &mut self,
        stream: &mut L,
        mut call: impl FnMut(&mut L) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            stream.set_patience(self.patience()?)?;
            let done = call(stream);
            if self.guest.is_displaced() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            match done {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(self.late());
                }
                Err(e) => return Err(e),
                Ok(bytes) => {
                    self.count(bytes);
                    return Ok(bytes);
                }
            }
        }
    }
}

/// Since when a request waits for content that is being read. The connection ends if that takes too
/// long, or if it was displaced.
#[derive(Default)]
struct Hashing(Option<Instant>);

impl Hashing {
    fn wait(&mut self, guest: &Guest) -> io::Result<()> {
        if guest.is_displaced() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if self.0.get_or_insert_with(Instant::now).elapsed() > HASHING {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK);
        Ok(())
    }
}

/// Reads requests and sends answers until one side closes.
fn converse(stream: &mut impl Line, site: &Site, guest: &Guest) -> io::Result<()> {
    let mut session = Session::new(0);
    // A random number for the ids of the connection's uploads, which no other replica uses.
    let (connection, mut offset) = (getrandom::u64().map_err(io::Error::other)?, 0);
    let mut input: Vec<u8> = Vec::new();
    let mut block = vec![0; BLOCK];
    let mut fin = false;
    let mut promises = Vec::new();
    let mut hashing = Hashing::default();
    let mut pace = Pace::new(Doing::Reads(Reads::Nothing), guest);
    while !session.closed {
        let now = Input { connection, client: guest.client(), stream: 0, offset, data: &input, fin };
        let progress = session.feed(&now, site, date(), PIPELINE, &mut promises);
        input.drain(..progress.consumed);
        offset += progress.consumed as u64;
        let answered = !promises.is_empty();
        for promise in promises.drain(..) {
            send(stream, &promise, &site.objects, &mut block, guest)?;
        }
        if progress.waiting {
            hashing.wait(guest)?;
            // The time until the content was read does not count against the client.
            pace.since = Instant::now();
            continue;
        }
        hashing = Hashing::default();
        if !session.closed && (!answered || input.is_empty()) {
            let doing = Doing::Reads(session.reads());
            if doing != pace.doing || answered {
                pace = Pace::new(doing, guest);
            }
            let n = pace.transfer(stream, |stream| stream.read(&mut block))?;
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
    let mut pace = Pace::new(Doing::Takes, guest);
    let mut hashing = Hashing::default();
    let mut offset = 0;
    while offset < answer.len() {
        let n = (answer.len() - offset).min(block.len() as u64) as usize;
        match answer.read(offset, &mut block[..n], objects) {
            Ok(()) => {}
            Err(ReadError::NotYet) => {
                hashing.wait(guest)?;
                continue;
            }
            // The head with another status was sent already, so the client sees the connection end
            // early.
            Err(e) => return Err(io::Error::other(e)),
        }
        if let Some(since) = hashing.0.take() {
            // This wait does not count against the client.
            pace.since += since.elapsed();
        }
        let mut rest = &block[..n];
        while !rest.is_empty() {
            let taken = pace.transfer(stream, |stream| stream.write(rest))?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = &rest[taken..];
        }
        offset += n as u64;
    }
    Ok(())
}

/// Closes the sending direction and reads for a while, because the kernel would otherwise send a
/// RST that can destroy the last answer (RFC 9112 section 9.6).
fn linger(stream: &mut impl Line, guest: &Guest) -> io::Result<()> {
    let mut block = [0; 4096];
    stream.shut()?;
    let mut pace = Pace::new(Doing::Ends, guest);
    loop {
        match pace.transfer(stream, |stream| stream.read(&mut block)) {
            // A client that sends nothing more still gets the data on its way.
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Ok(()),
            Ok(0) => return Ok(()),
            other => drop(other?),
        }
    }
}

/// Returns a function that decides whether to wait for a client, given the bytes of its last
/// answers that it has not read. It waits as long as the client reads some and its connection was
/// not displaced.
pub(super) fn taking(guest: &Guest) -> impl FnMut(u32) -> bool {
    let mut pace: Option<(Pace<'_>, u32)> = None;
    move |left| {
        let (pace, first) = pace.get_or_insert_with(|| {
            let pace = Pace::new(Doing::Takes, guest);
            // The kernel's send queue has the rest of the answer, so all of it counts as written.
            guest.count(left as usize);
            (pace, left)
        });
        pace.bytes = first.saturating_sub(left).into();
        !guest.is_displaced() && pace.patience().is_ok()
    }
}

#[cfg(test)]
mod tests;
