//! A dead replica's connection that this replica resumes: a kernel socket towards the client, and
//! an unmodified local server that supplies over loopback the bytes that the client lacks.
//!
//! Bytes that the record holds are sent from it. The rest of an object is requested by `Range`, and
//! none of it is sent before the answer is known to be of the same object: strong entity tag,
//! length, coding, place, and the checksum of the body's first bytes. A response that can only be
//! generated again is requested with the original request, and all bytes that the client may have
//! are compared. After the responses of the record this process relays between client and server.

mod again;
mod earlier;
mod engine;
mod identity;
mod object;
mod origin;
mod relay;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rivulet_pktio::repair::{Connection, RepairError, restore, unacknowledged};
use rustix::net::sockopt;

use self::again::Again;
use self::earlier::EarlierData;
use self::object::Part;
use self::origin::{Origin, Pipe};
use self::relay::Unanswered;
use crate::digest::Digests;
use crate::flow::{AdoptAs, Unknown};
use crate::record::{Body, Record, Tuple};

pub use engine::{Adopters, Counts, Outcome};
pub use identity::{Answer, Refusal, object_requests, same_object};

/// Limit on the bytes that wait to be sent, in each direction.
const MAX_WAITING: usize = 16_384;
/// Pieces of a body, a pipe's worth each, that one connection moves before the thread serves the
/// next one.
const MAX_PIECES: usize = 16;
/// Pause after an attempt that did not reach the server.
const RETRY: Duration = Duration::from_millis(50);

/// Settings for all adopted connections of a service.
#[derive(Clone, Debug)]
pub struct AdoptConfig {
    /// The server of this replica.
    pub origin: SocketAddr,
    /// For how long requests to a server that does not answer, or closes in an answer, are
    /// repeated.
    pub patience: Duration,
    /// A connection without any event for this long is closed, or reset if an answer is incomplete.
    pub idle: Duration,
    /// The client address that the server sees.
    pub adopt_as: AdoptAs,
    /// Whether this host can connect to the server from the client's address, as far as is known.
    pub carries: bool,
    /// Digests of the local server's objects.
    pub digests: Digests,
    /// Whether to resume a connection in the middle of an object of unknown digest, or to reset it.
    pub unknown: Unknown,
}

/// Result of one turn of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The connection waits for its descriptors or its deadline.
    Waits,
    /// Client and server are done with it, or the client is gone.
    Over,
    /// The connection was idle for too long and was closed.
    Idle,
    /// The client was reset.
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Start the next response of the record.
    Next,
    /// Read the head of the server's answer to the request for the body's known beginning.
    Check,
    /// Read the head of the server's answer to the request for the rest of the body.
    Head,
    /// Read and drop this many bytes of the server's answer, which precede the wanted ones.
    Through(u64, Part),
    /// Compare the body's known beginning; `is_whole`: the answer has the whole object.
    Compare { is_whole: bool },
    /// Forward the rest of the body; this many bytes have not been read from the server.
    Body(u64),
    /// Receive the whole response, which the server generates a second time, and compare it.
    Again,
    /// Relay between client and server.
    Relay,
    /// Everything is sent: wait for the client's FIN.
    Drain,
    /// The server reset its connection in an answer: reset the client once it has acknowledged all
    /// earlier bytes.
    Cut,
}

/// One adopted connection.
#[derive(Debug)]
pub(crate) struct Adoption {
    record: Record,
    /// Index of the response that is being sent, and how many of its bytes were sent.
    at: usize,
    offset: u64,
    client: TcpStream,
    origin: Option<Origin>,
    /// Connections to the server so far.
    origins: u32,
    pipe: Pipe,
    step: Step,
    /// Index of the response with an object that the local server has as well (by digest, or by
    /// `unknown: trust`), and the time at which the comparison began.
    compared: Option<usize>,
    comparing_since: Option<Instant>,
    is_trusted: bool,
    /// Set when the server answered with the whole object: bytes before the client's place.
    read_through: Option<u64>,
    /// State of [`Step::Again`] after its head.
    again: Option<Again>,
    /// Bytes for the client that must be sent before those in the pipe.
    out: Vec<u8>,
    to_origin: Vec<u8>,
    /// Limits what of `to_origin` is sent in [`Step::Relay`]: of the requests that the former
    /// replica's server may have executed, only GET and HEAD are repeated.
    earlier: EarlierData,
    /// Requests in [`Step::Relay`] that were sent to this server and have no answer.
    unanswered: Unanswered,
    client_ended: bool,
    /// Time of the last event, and the earliest time of the next request to the server.
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
    /// Makes the kernel take the connection over in the calling thread's network namespace. The
    /// service's address must be configured there, and the record must not be unprotected. `sent`
    /// as in [`Adopters::adopt`].
    pub fn begin(
        record: Record,
        connection: &Connection,
        sent: Option<u32>,
        now: Instant,
    ) -> Result<Adoption, RepairError> {
        let client = restore(connection, None)?;
        let of = |step| move |source| RepairError { step, source };
        client.set_nonblocking(true).map_err(of("O_NONBLOCK"))?;
        client.set_nodelay(true).map_err(of("TCP_NODELAY"))?;
        // Counted backwards from the last byte that the record releases, because a response may be
        // longer than the sequence space.
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
            earlier: EarlierData::new(record.request_at, sent),
            record,
            at,
            offset,
            client,
            origin: None,
            origins: 0,
            pipe: Pipe::default(),
            step: Step::Next,
            compared: None,
            comparing_since: None,
            is_trusted: false,
            read_through: None,
            again: None,
            out: Vec::new(),
            to_origin: Vec::new(),
            unanswered: Unanswered::default(),
            active: now,
            retry_at: None,
            failing_since: None,
        })
    }

    pub fn tuple(&self) -> Tuple {
        self.record.tuple
    }

    /// Number of connections to the server so far.
    pub fn origins(&self) -> u32 {
        self.origins
    }

    /// Takes steps until the connection has to wait or ends.
    pub fn turn(&mut self, config: &AdoptConfig, now: Instant) -> Turn {
        if self.retry_at.is_some_and(|at| now < at) {
            return Turn::Waits;
        }
        self.retry_at = None;
        let mut pieces = 0;
        loop {
            // Other connections get their turn; epoll reports the server's descriptor again because
            // it is still readable.
            let is_all_read = self.origin.as_ref().is_none_or(|origin| origin.input().is_empty());
            if matches!(self.step, Step::Through(1.., _))
                || matches!(self.step, Step::Body(1..)) && self.pipe.filled() == 0
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
                // A connection attempt within this host takes far less time than this, unless
                // routing takes the server's SYN-ACK out of the host.
                Stop::Waits if self.is_connecting() && self.waited(now) >= config.patience => {
                    self.refuse(Refusal::Unreachable)
                }
                // Closes an idle connection as servers do. A client that reads nothing for `idle`
                // is closed too.
                Stop::Waits if self.waited(now) >= config.idle => match self.step {
                    Step::Cut => self.refuse(Refusal::Cut),
                    _ if self.is_answering() => self.refuse(Refusal::Idle),
                    _ => Turn::Idle,
                },
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

    /// The descriptors of the client and of the server, each with two flags: wait until readable,
    /// wait until writable.
    pub fn interests(&self) -> [Option<(BorrowedFd<'_>, bool, bool)>; 2] {
        if self.retry_at.is_some() {
            return [Some((self.client.as_fd(), false, false)), None];
        }
        let blocked = !self.out.is_empty() || self.pipe.filled() > 0;
        let is_relay = self.step == Step::Relay;
        let listens = is_relay && !self.client_ended && self.to_origin.len() < MAX_WAITING;
        let listens = listens || self.step == Step::Drain;
        let client = Some((self.client.as_fd(), listens, blocked));
        let writes = if is_relay { self.earlier.has_ready() } else { !self.to_origin.is_empty() };
        let origin = self.origin.as_ref().map(|origin| (origin.as_fd(), !blocked, writes));
        [client, origin]
    }

    /// The time of the next turn if no descriptor becomes ready.
    pub fn deadline(&self, config: &AdoptConfig) -> Instant {
        let patience = if self.is_connecting() { config.patience.min(config.idle) } else { config.idle };
        self.retry_at.unwrap_or(self.active + patience)
    }

    fn is_connecting(&self) -> bool {
        self.origin.as_ref().is_some_and(|origin| !origin.is_connected())
    }

    /// Whether an answer may be incomplete: the client would then take a FIN for the answer's end.
    fn is_answering(&self) -> bool {
        let is_answered = match self.step {
            Step::Drain => true,
            // The relay does not parse the server's answers, so an open connection to the server
            // counts as an answer under way.
            Step::Relay => self.origin.is_none() && self.to_origin.is_empty(),
            _ => false,
        };
        !is_answered || !self.out.is_empty() || self.pipe.filled() > 0
    }

    fn waited(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.active)
    }

    /// Takes one step, or returns why it cannot.
    fn step(&mut self, config: &AdoptConfig, now: Instant) -> Result<(), Stop> {
        self.flush_client(now)?;
        match self.step {
            Step::Next => self.next(config),
            Step::Check | Step::Head | Step::Compare { .. } => self.read_object(now),
            Step::Through(left, wanted) => self.read_through(left, wanted, now),
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
            Step::Again => self.continue_again(now),
            Step::Relay => self.relay(config, now),
            Step::Drain => match self.client.read(&mut [0; 1024]) {
                Ok(0) => Err(Stop::Client),
                Ok(_) => Ok(()),
                Err(e) => Err(stop_client(&e)),
            },
            Step::Cut => match unacknowledged(&self.client) {
                Ok(0) => Err(Stop::Refused(Refusal::Cut)),
                Ok(_) => {
                    self.retry_at = Some(now + RETRY);
                    Err(Stop::Waits)
                }
                Err(_) => Err(Stop::Client),
            },
        }
    }

    /// Starts the next response, or the relay after all of them.
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
                // The offset is below the length of a stored response, which fits into a `usize`.
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
            (Body::Object { .. }, Some(_)) => return self.ask_object(config),
            // The decoder refuses such records, so none comes from a store.
            (Body::Object { .. }, None) => return Err(Stop::Refused(Refusal::Malformed)),
        }
        Ok(())
    }

    /// Opens a new connection to the server: a used one may be about to be closed.
    fn connect(&mut self, config: &AdoptConfig) -> Result<(), Stop> {
        let client = match config.adopt_as {
            AdoptAs::Client if !config.carries => return Err(Stop::Refused(Refusal::Address)),
            AdoptAs::Client => Some(self.record.tuple.client.ip()),
            AdoptAs::Server => None,
        };
        let origin = Origin::connect(config.origin, client);
        self.origin = Some(origin.map_err(|e| match (e.raw_os_error(), client) {
            // A connection from the client's address that is forbidden now stays forbidden.
            (Some(libc::EPERM | libc::EACCES | libc::EINVAL | libc::EADDRNOTAVAIL), Some(_)) => {
                Stop::Refused(Refusal::Address)
            }
            _ => Stop::Origin,
        })?);
        self.origins = self.origins.wrapping_add(1);
        self.active = Instant::now();
        Ok(())
    }

    /// Sends the client a FIN.
    fn say_all(&mut self) -> Result<(), Stop> {
        self.origin = None;
        if self.client.shutdown(Shutdown::Write).is_err() {
            return Err(Stop::Client);
        }
        self.step = Step::Drain;
        if self.client_ended { Err(Stop::Client) } else { Ok(()) }
    }

    /// Resets the client because the server reset its connection in an answer.
    fn cut(&mut self) -> Result<(), Stop> {
        self.origin = None;
        self.step = Step::Cut;
        Ok(())
    }

    /// Writes all bytes that wait for the client; fails with `Waits` if some are left.
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

    /// Writes as many of the bytes that wait for the server as it accepts.
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
        // With `SO_LINGER` 0 the kernel sends a RST with the right sequence number when the socket
        // is closed.
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
