//! Plain TCP clients: the kernel's sockets before the same HTTP functions.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_server::{Adopted, Doorway};

use super::adopted;
use super::connections::{Connections, Guest, Phase};
use crate::http::{Answer, Input, Objects, Promise, ReadError, Reads, Session, Site};

/// Maximum time that a request waits for its content to be hashed.
const HASHING: Duration = Duration::from_secs(120);
/// Interval of checks of content that is being read.
const LOOK: Duration = Duration::from_millis(10);
/// How long content is waited for without a look at whether the connection has given way to another.
const PATIENCE: Duration = Duration::from_millis(100);
const BLOCK: usize = 64 << 10;
/// Requests answered from one read.
const PIPELINE: usize = 16;

/// Seconds since 1970 for the `Date` header.
#[must_use]
pub fn date() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(now.as_secs()).unwrap_or(u32::MAX)
}

/// Listens on `address` and serves on separate threads from then on.
///
/// # Errors
/// The system's, where nothing can listen there.
pub fn listen(address: SocketAddr, site: Site) -> io::Result<SocketAddr> {
    listen_among(address, site, Connections::default())
}

/// The same for a listener with connections that are counted together with others'.
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

/// The doorway for connections that began without state and pass to the kernel.
pub(super) fn doorway(site: &Site, connections: Connections) -> io::Result<Doorway> {
    let site = site.patient_for(PATIENCE);
    adopted::doorway("tcp", connections, move |mut client, guest| {
        converse(&mut client, &site, guest)?;
        linger(&mut client, guest)?;
        client.finish(taking(guest));
        Ok(())
    })
}

/// A connection of the kernel's TCP: a listener's, or one that was adopted.
trait Line: Read + Write {
    /// Sets the timeout of reads and writes.
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

/// Serves one connection of a listener from its first to its last byte.
fn serve(mut stream: TcpStream, site: &Site, guest: &Guest) -> io::Result<()> {
    stream.set_nodelay(true)?;
    converse(&mut stream, site, guest)?;
    linger(&mut stream, guest)
}

/// Current activity of a client, its start, and the bytes transferred in it.
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

    /// For how long it may pause now; an error if it has been too slow.
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

    /// The end of a client that is too slow. One that has asked for nothing is not.
    fn late(&self) -> io::Error {
        if !matches!(self.doing, Doing::Reads(Reads::Nothing) | Doing::Ends) {
            self.guest.count_late();
        }
        io::ErrorKind::TimedOut.into()
    }

    /// One call that reads or writes, until it is done or the client was too slow.
    ///
    /// A socket with a timeout also reports `Interrupted` when the process was frozen or stopped in
    /// the call (signal(7)). That is not an error of the connection, and the call is repeated with
    /// the remaining time.
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

/// Since when content is waited for that is being read. The connection ends if that takes too long, or it has given way to another.
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

/// Requests and answers, until one side wants no more.
fn converse(stream: &mut impl Line, site: &Site, guest: &Guest) -> io::Result<()> {
    let mut session = Session::new(0);
    // Its number, for the ids of its uploads: not one that another replica gives.
    let (connection, mut offset) = (getrandom::u64().map_err(io::Error::other)?, 0);
    let mut input: Vec<u8> = Vec::new();
    let mut block = vec![0; BLOCK];
    let mut fin = false;
    let mut promises = Vec::new();
    let mut hashing = Hashing::default();
    let mut pace = Pace::new(Doing::Reads(Reads::Nothing), guest);
    while !session.closed {
        let now = Input { connection, stream: 0, offset, data: &input, fin };
        let progress = session.feed(&now, site, date(), PIPELINE, &mut promises);
        input.drain(..progress.consumed);
        offset += progress.consumed as u64;
        let answered = !promises.is_empty();
        for promise in promises.drain(..) {
            send(stream, &promise, &site.objects, &mut block, guest)?;
        }
        if progress.waiting {
            hashing.wait(guest)?;
            // That is not the client's time.
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
            // Too late for another status: the client sees the connection end early.
            Err(e) => return Err(io::Error::other(e)),
        }
        if let Some(since) = hashing.0.take() {
            // That was not the client's time.
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

/// Ends our direction and reads what still comes for a while, so that the kernel sends no reset over our last answer (RFC 9112
/// section 9.6).
fn linger(stream: &mut impl Line, guest: &Guest) -> io::Result<()> {
    let mut block = [0; 4096];
    stream.shut()?;
    let mut pace = Pace::new(Doing::Ends, guest);
    loop {
        match pace.transfer(stream, |stream| stream.read(&mut block)) {
            // A client that sends no more still gets the data on its way.
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Ok(()),
            Ok(0) => return Ok(()),
            other => drop(other?),
        }
    }
}

/// Decides whether to wait for a client; the argument of the closure: bytes of its last answers that
/// it has not read. Waits as long as the client reads some and has not been evicted for another.
pub(super) fn taking(guest: &Guest) -> impl FnMut(u32) -> bool {
    let mut pace: Option<(Pace<'_>, u32)> = None;
    move |left| {
        let (pace, first) = pace.get_or_insert_with(|| {
            let pace = Pace::new(Doing::Takes, guest);
            // As of an answer that our kernel has whole.
            guest.count(left as usize);
            (pace, left)
        });
        pace.bytes = first.saturating_sub(left).into();
        !guest.is_displaced() && pace.patience().is_ok()
    }
}

#[cfg(test)]
mod tests;
