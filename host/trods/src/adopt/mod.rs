//! A connection of a replica that is gone, gone on with: a socket of the kernel's where the client is, and an unmodified server
//! beside it that is asked, over loopback, for what the client lacks.
//!
//! What the record has as octets comes from there. The rest of an object is asked for by `Range`, and none of it is sent before
//! the answer says that it is the same: strong entity tag, length, coding, place, and the checksum of what was seen of it.
//! What can only be generated again is asked for as it was, and all that the client may have of it is compared.
//! Behind the responses of the record client and server speak with each other.

mod again;
mod engine;
mod identity;
mod origin;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rivulet_pktio::repair::{Connection, RepairError, restore};
use rustix::net::sockopt;

use self::again::Again;
use self::identity::same;
use self::origin::{Origin, Pipe};
use crate::head::{self, MAX_HEAD};
use crate::record::{Body, MAX_WHOLE, Record, Tuple};

pub use engine::{Adopters, Counts, Outcome};
pub use identity::Refusal;

/// Octets that wait to be sent on, in either direction.
const MAX_WAITING: usize = 16_384;
/// Pieces of a body, a pipe's worth each, that one connection moves before others have their turn.
const MAX_PIECES: usize = 16;
/// After an attempt that did not reach the server the next one waits so long.
const RETRY: Duration = Duration::from_millis(50);

/// How connections are gone on with.
#[derive(Clone, Debug)]
pub struct AdoptConfig {
    /// The server of this replica.
    pub origin: SocketAddr,
    /// For how long a server that does not answer, or ends early, is asked again.
    pub patience: Duration,
    /// After this a connection on which nothing happens is closed, as servers do.
    pub idle: Duration,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits for descriptors or its deadline.
    Waits,
    /// Client and server are done with it, or the client is gone.
    Over,
    /// Nothing was said on it for too long, and it was closed.
    Idle,
    /// The client was reset.
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next response of the record.
    Next,
    /// The server's answer to the request for what was seen of the body before.
    Check,
    /// The head of the server's answer to the request for the rest.
    Head,
    /// The rest; so many octets were not read yet.
    Body(u64),
    /// The whole response, generated again.
    Again,
    /// Whatever client and server say.
    Relay,
    /// All is said, the client's FIN is awaited.
    Drain,
}

/// One connection that was taken over.
#[derive(Debug)]
pub(crate) struct Adoption {
    record: Record,
    /// The response that is being sent, and octets of it that were.
    at: usize,
    offset: u64,
    client: TcpStream,
    origin: Option<Origin>,
    /// Connections to the server so far.
    origins: u32,
    pipe: Pipe,
    step: Step,
    /// What comes of [`Step::Again`], once its head was there.
    again: Option<Again>,
    /// Octets to the client that go before those of the pipe.
    out: Vec<u8>,
    to_origin: Vec<u8>,
    client_ended: bool,
    /// When something happened last, and when the server is asked again.
    active: Instant,
    retry_at: Option<Instant>,
    failing_since: Option<Instant>,
}

/// Why a step cannot be taken now.
enum Stop {
    Waits,
    Origin,
    Client,
    Refused(Refusal),
}

impl Adoption {
    /// Has the kernel take the connection over in the calling thread's network namespace. The service's address must stand
    /// there, and the record must not be unprotected.
    pub fn begin(record: Record, connection: &Connection, now: Instant) -> Result<Adoption, RepairError> {
        let client = restore(connection, None)?;
        let of = |step| move |source| RepairError { step, source };
        client.set_nonblocking(true).map_err(of("O_NONBLOCK"))?;
        client.set_nodelay(true).map_err(of("TCP_NODELAY"))?;
        // From the last octet that was let pass, since a response may be longer than the numbers are.
        let mut left = u64::from(record.passed().wrapping_sub(connection.send_next));
        let (mut at, mut offset) = (record.responses.len(), 0);
        for (n, response) in record.responses.iter().enumerate().rev() {
            if left == 0 && response.passed == response.length && !response.close {
                break;
            }
            (at, offset) = (n, response.passed.saturating_sub(left));
            left = left.saturating_sub(response.passed);
            if left == 0 {
                break;
            }
        }
        Ok(Adoption {
            client_ended: record.client_fin,
            record,
            at,
            offset,
            client,
            origin: None,
            origins: 0,
            pipe: Pipe::default(),
            step: Step::Next,
            again: None,
            out: Vec::new(),
            to_origin: Vec::new(),
            active: now,
            retry_at: None,
            failing_since: None,
        })
    }

    pub fn tuple(&self) -> Tuple {
        self.record.tuple
    }

    /// How many connections to the server there were.
    pub fn origins(&self) -> u32 {
        self.origins
    }

    /// Goes as far as it can.
    pub fn turn(&mut self, config: &AdoptConfig, now: Instant) -> Turn {
        if self.retry_at.is_some_and(|at| now < at) {
            return Turn::Waits;
        }
        self.retry_at = None;
        let mut pieces = 0;
        loop {
            // Others have their turn too; the server's descriptor says at once that there is more.
            let is_all_read = self.origin.as_ref().is_none_or(|origin| origin.input().is_empty());
            if matches!(self.step, Step::Body(1..)) && self.pipe.filled() == 0
                || self.step == Step::Again && is_all_read
            {
                pieces += 1;
                if pieces > MAX_PIECES {
                    return Turn::Waits;
                }
            }
            let stop = match self.step(config, now) {
                Ok(()) => continue,
                Err(stop) => stop,
            };
            return match stop {
                Stop::Waits if now.saturating_duration_since(self.active) >= config.idle => {
                    // As a server does to a client that says nothing; one that reads nothing has been kept long enough.
                    Turn::Idle
                }
                Stop::Waits => Turn::Waits,
                Stop::Client => Turn::Over,
                Stop::Refused(refusal) => self.refuse(refusal),
                Stop::Origin => {
                    self.origin = None;
                    let since = *self.failing_since.get_or_insert(now);
                    if now.saturating_duration_since(since) >= config.patience {
                        return self.refuse(Refusal::Unreachable);
                    }
                    if let Step::Body(unread) = self.step {
                        self.offset = self.record.responses[self.at].length - unread;
                    }
                    if self.step != Step::Relay {
                        self.step = Step::Next;
                        self.to_origin.clear();
                    }
                    self.retry_at = Some(now + RETRY);
                    Turn::Waits
                }
            };
        }
    }

    /// Descriptors with what they are waited for: readable, writable.
    pub fn interests(&self) -> [Option<(BorrowedFd<'_>, bool, bool)>; 2] {
        if self.retry_at.is_some() {
            return [Some((self.client.as_fd(), false, false)), None];
        }
        let blocked = !self.out.is_empty() || self.pipe.filled() > 0;
        let listens =
            matches!(self.step, Step::Relay) && !self.client_ended && self.to_origin.len() < MAX_WAITING;
        let listens = listens || self.step == Step::Drain;
        let client = Some((self.client.as_fd(), listens, blocked));
        let origin =
            self.origin.as_ref().map(|origin| (origin.as_fd(), !blocked, !self.to_origin.is_empty()));
        [client, origin]
    }

    /// When a turn is due though nothing is ready.
    pub fn deadline(&self, config: &AdoptConfig) -> Instant {
        self.retry_at.unwrap_or(self.active + config.idle)
    }

    /// Takes one step, or says why that cannot be.
    fn step(&mut self, config: &AdoptConfig, now: Instant) -> Result<(), Stop> {
        self.flush_client(now)?;
        match self.step {
            Step::Next => self.next(config),
            Step::Check | Step::Head => {
                self.write_origin(now)?;
                let origin = self.origin.as_mut().ok_or(Stop::Origin)?;
                origin.fill(MAX_HEAD + MAX_WHOLE).map_err(|_| Stop::Origin)?;
                let progress = if self.step == Step::Check { self.check() } else { self.head() };
                let is_ended = self.origin.as_ref().is_some_and(Origin::is_ended);
                match progress {
                    // Half a head, and then nothing.
                    Err(Stop::Waits) if is_ended => Err(Stop::Origin),
                    progress => progress,
                }
            }
            Step::Body(0) => {
                (self.offset, self.step) = (self.record.responses[self.at].length, Step::Next);
                Ok(())
            }
            Step::Body(unread) => {
                let origin = self.origin.as_mut().ok_or(Stop::Origin)?;
                let count = self.pipe.read(origin, unread).map_err(stop_origin)?;
                self.failing_since = None;
                self.active = now;
                self.step = Step::Body(unread - count);
                Ok(())
            }
            Step::Again => self.go_on_again(now),
            Step::Relay => self.relay(config, now),
            Step::Drain => match self.client.read(&mut [0; 1024]) {
                Ok(0) => Err(Stop::Client),
                Ok(_) => Ok(()),
                Err(e) => Err(stop_client(&e)),
            },
        }
    }

    /// The next response, or what comes behind all of them.
    fn next(&mut self, config: &AdoptConfig) -> Result<(), Stop> {
        let Some(response) = self.record.responses.get(self.at) else {
            self.to_origin.extend_from_slice(&self.record.requests);
            self.origin = None;
            self.step = Step::Relay;
            return Ok(());
        };
        if self.offset >= response.length {
            if response.close {
                return self.say_all();
            }
            (self.at, self.offset) = (self.at + 1, 0);
            return Ok(());
        }
        match (&response.body, response.object()) {
            (Body::Whole(octets), _) => {
                // Shorter than any number.
                self.out.extend_from_slice(octets.get(self.offset as usize..).unwrap_or_default());
                self.offset = response.length;
            }
            (Body::Generated { request, head, .. }, _) => {
                let (request, head) = (request.clone(), head.clone());
                self.ask_again(&request, &head);
                return self.connect(config);
            }
            (Body::Object { head, .. }, Some(object)) if object.length == 0 => {
                self.out.extend_from_slice(head.get(self.offset as usize..).unwrap_or_default());
                self.offset = response.length;
            }
            (Body::Object { request, head, check }, Some(object)) => {
                let mut ask = |from: u64, count: u64| {
                    let first = object.first + from;
                    let ask = head::range_request(request, object.etag, first, first + count - 1);
                    self.to_origin.extend_from_slice(&ask);
                };
                let from = self.offset.saturating_sub(head.len() as u64);
                let seen = u64::from(check.0);
                if seen > 0 {
                    ask(0, seen);
                }
                ask(from, object.length - from);
                self.step = if seen > 0 { Step::Check } else { Step::Head };
                return self.connect(config);
            }
            // No record that was read from a store is like this.
            (Body::Object { .. }, None) => return Err(Stop::Refused(Refusal::Malformed)),
        }
        Ok(())
    }

    /// A fresh connection to the server: one that was used may be about to be closed.
    fn connect(&mut self, config: &AdoptConfig) -> Result<(), Stop> {
        self.origin = Some(Origin::connect(config.origin).map_err(|_| Stop::Origin)?);
        self.origins = self.origins.wrapping_add(1);
        Ok(())
    }

    /// Compares what was seen of the body before with what the server has.
    fn check(&mut self) -> Result<(), Stop> {
        let (Body::Object { check: (count, sum), .. }, Some(origin)) =
            (&self.record.responses[self.at].body, &mut self.origin)
        else {
            return Err(Stop::Refused(Refusal::Malformed));
        };
        let length = same(&self.record.responses[self.at], origin.input(), 0, u64::from(*count))?;
        let body = origin.input().get(length..length + *count as usize).ok_or(Stop::Waits)?;
        if crc32c::crc32c(body) != *sum {
            return Err(Stop::Refused(Refusal::Content));
        }
        origin.consume(length + *count as usize);
        self.step = Step::Head;
        Ok(())
    }

    /// Looks at the head of the answer with the rest of the body, and sends what the client lacks of the stored one.
    fn head(&mut self) -> Result<(), Stop> {
        let response = &self.record.responses[self.at];
        let (Body::Object { head, .. }, Some(origin)) = (&response.body, &mut self.origin) else {
            return Err(Stop::Refused(Refusal::Malformed));
        };
        let from = self.offset.saturating_sub(head.len() as u64);
        let left = response.length - head.len() as u64 - from;
        let length = same(response, origin.input(), from, left)?;
        origin.consume(length);
        self.out.extend_from_slice(
            head.get(usize::try_from(self.offset).unwrap_or(usize::MAX)..).unwrap_or_default(),
        );
        let count = origin.input().len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.out.extend_from_slice(&origin.input()[..count]);
        origin.consume(count);
        self.step = Step::Body(left - count as u64);
        Ok(())
    }

    fn relay(&mut self, config: &AdoptConfig, now: Instant) -> Result<(), Stop> {
        let mut progress = false;
        if !self.client_ended && self.to_origin.len() < MAX_WAITING {
            let mut chunk = [0; 4096];
            match self.client.read(&mut chunk) {
                Ok(0) => (self.client_ended, progress) = (true, true),
                Ok(count) => {
                    self.to_origin.extend_from_slice(&chunk[..count]);
                    progress = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(stop_client(&e)),
            }
        }
        if self.origin.is_none() {
            if self.to_origin.is_empty() {
                // Nothing was asked that is not answered.
                return if self.client_ended { self.say_all() } else { waits(progress) };
            }
            self.connect(config)?;
        }
        let before = self.to_origin.len();
        self.write_origin(now)?;
        progress |= self.to_origin.len() != before;
        let Some(origin) = &mut self.origin else { return Err(Stop::Origin) };
        if self.client_ended && self.to_origin.is_empty() {
            origin.end();
        }
        match self.pipe.read(origin, u64::MAX) {
            Ok(_) => progress = true,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // It never said anything to this: somebody else may.
            Err(_) if !origin.has_spoken() && !self.to_origin.is_empty() => return Err(Stop::Origin),
            Err(_) => return self.say_all(),
        }
        if progress {
            self.active = now;
            self.failing_since = None;
        }
        waits(progress)
    }

    /// Ends our half of the connection.
    fn say_all(&mut self) -> Result<(), Stop> {
        self.origin = None;
        if self.client.shutdown(Shutdown::Write).is_err() {
            return Err(Stop::Client);
        }
        self.step = Step::Drain;
        if self.client_ended { Err(Stop::Client) } else { Ok(()) }
    }

    /// Writes what waits for the client, all of it.
    fn flush_client(&mut self, now: Instant) -> Result<(), Stop> {
        while !self.out.is_empty() {
            let count = self.client.write(&self.out).map_err(|e| stop_client(&e))?;
            self.out.drain(..count);
            self.active = now;
        }
        while self.pipe.filled() > 0 {
            self.pipe.write(&self.client).map_err(|e| stop_client(&e))?;
            self.active = now;
        }
        Ok(())
    }

    /// Writes what waits for the server, as much as it takes.
    fn write_origin(&mut self, now: Instant) -> Result<(), Stop> {
        let Some(origin) = &mut self.origin else { return Err(Stop::Origin) };
        while !self.to_origin.is_empty() {
            match origin.write(&self.to_origin) {
                Ok(count) => {
                    self.to_origin.drain(..count);
                    self.active = now;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return Err(Stop::Origin),
            }
        }
        Ok(())
    }

    fn refuse(&mut self, refusal: Refusal) -> Turn {
        // The kernel says it, where the client is, when the socket is closed.
        if let Err(e) = sockopt::set_socket_linger(&self.client, Some(Duration::ZERO)) {
            tracing::debug!("a client that is to be reset: {e}");
        }
        Turn::Refused(refusal)
    }
}

fn waits(progress: bool) -> Result<(), Stop> {
    if progress { Ok(()) } else { Err(Stop::Waits) }
}

fn stop_client(e: &io::Error) -> Stop {
    if e.kind() == io::ErrorKind::WouldBlock { Stop::Waits } else { Stop::Client }
}

fn stop_origin(e: io::Error) -> Stop {
    if e.kind() == io::ErrorKind::WouldBlock { Stop::Waits } else { Stop::Origin }
}
