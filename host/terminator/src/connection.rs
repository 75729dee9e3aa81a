//! One client's connection and its connection to the server: sockets, buffers, time limits. No call
//! here blocks.

mod protected;

use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rivulet_trods::Reason;
use rustls::ServerConfig;

use crate::buffer::{Input, Output};
use crate::channel::{Channel, Records};
use crate::counters::Counters;
use crate::exchange::Progress;
use crate::handshake::{Failure, Handshake};
use crate::limits::TimeLimits;
use crate::protect::Protection;
use crate::relay::{CLIENT_INPUT_BYTES, Context, Open, Round};
use crate::resume::Resume;
use crate::socket::Socket;

/// Rounds of reading and writing before other connections get their turn.
const ROUNDS: usize = 8;
/// Bytes that are read and discarded after our `close_notify`. Unread bytes would make the kernel
/// reset the connection, and the client could lose the end of the response.
const MAX_DISCARDED_BYTES: usize = 1 << 20;

/// The response to a client that sends plain HTTP.
const PLAIN_HTTP_REPLY: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 46\r\n\
    Connection: close\r\n\r\n400 Bad Request: this port takes HTTPS alone.\n";

/// The result of one turn of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The connection waits for an event.
    Wait,
    /// The connection has more to do without waiting.
    Again,
    /// The connection has ended.
    Ended,
}

fn observe(context: &Context<'_>, client: &TcpStream, channel: &Channel) {
    if let Some(observer) = context.observer
        && let Some(state) = channel.state()
    {
        observer.observe(client, &state);
    }
}

#[derive(Debug)]
enum Stage {
    Handshake(Handshake),
    Open(Box<Open>),
    /// Makes the rest of a state's responses; then the phase is `Open`.
    Resume(Box<(Resume, Records)>),
    /// Writes the rest of the output, then waits for the client to close.
    Closing {
        is_shut: bool,
        discarded: usize,
        /// The open connection, which the protection needs until it has ended.
        open: Option<Box<Open>>,
    },
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: Socket,
    peer: SocketAddr,
    local: SocketAddr,
    input: Input,
    output: Output,
    stage: Stage,
    /// When the current wait began: for the handshake, a head, or the end of the connection.
    since: Instant,
    /// When a byte last passed.
    moved: Instant,
    /// Bytes that the client has sent or accepted since `client_busy`.
    client_bytes: u64,
    /// Since when the connection waits for the client to send or accept bytes.
    client_busy: Option<Instant>,
    /// Bytes of the stream that were written.
    written: u64,
    protection: Option<Protection>,
    /// When the connection must be driven even without an event.
    pub(crate) look_at: Option<Instant>,
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        config: &ServerConfig,
        counters: &Counters,
        now: Instant,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        let handshake = Handshake::new(config, counters.in_handshake.count()).map_err(io::Error::other)?;
        Ok(Self::of(stream, (peer, local), Stage::Handshake(handshake), 0, now))
    }

    fn of(
        stream: TcpStream,
        (peer, local): (SocketAddr, SocketAddr),
        stage: Stage,
        written: u64,
        now: Instant,
    ) -> Self {
        Self {
            client: Socket::new(stream),
            peer,
            local,
            input: Input::new(CLIENT_INPUT_BYTES),
            output: Output::default(),
            stage,
            since: now,
            moved: now,
            client_bytes: 0,
            client_busy: None,
            written,
            protection: None,
            look_at: None,
        }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.client.stream
    }

    pub(crate) fn server_socket(&mut self) -> Option<&mut Socket> {
        match &mut self.stage {
            Stage::Open(open) => open.server.as_mut().map(|server| &mut server.socket),
            Stage::Resume(resume) => resume.0.server.as_mut().map(|server| &mut server.socket),
            _ => None,
        }
    }

    /// Reads and writes until the sockets would block or other connections get their turn.
    pub(crate) fn drive(&mut self, context: &Context<'_>, now: Instant) -> Turn {
        let is_look = self.look_at.take_if(|at| *at <= now).is_some();
        if is_look {
            let (stream, written) = (self.client.stream.try_clone(), self.written);
            if let Ok(stream) = stream {
                self.with_protection(|protection, records| protection.look(&stream, written, records));
            }
        }
        for _ in 0..ROUNDS {
            match self.round(context, now) {
                Ok(true) => {}
                Ok(false) => {
                    self.set_look(now, is_look);
                    self.rest();
                    return Turn::Wait;
                }
                Err(error) => {
                    tracing::debug!(%error, peer = %self.peer, "TLS connection");
                    return Turn::Ended;
                }
            }
        }
        Turn::Again
    }

    /// Frees the memory of empty buffers.
    fn rest(&mut self) {
        self.input.release();
        self.output.release();
        if let Stage::Open(open) = &mut self.stage {
            open.to_server.release();
            if open.data.is_empty() {
                open.data = Vec::new();
            }
            if let Some(server) = &mut open.server {
                server.input.release();
            }
        }
    }

    /// One round of reading and writing. Returns whether anything changed; an error ends the
    /// connection.
    fn round(&mut self, context: &Context<'_>, now: Instant) -> io::Result<bool> {
        // Notices a client that has reset its connection, even while nothing is read from it or
        // written to it.
        if self.client.failed {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let released = self.protection.as_ref().map_or(u64::MAX, Protection::released);
        let written = self.client.write_some(&mut self.output, released.saturating_sub(self.written))?;
        self.written += written as u64;
        let mut changed = self.count_client(written, now);
        match &mut self.stage {
            Stage::Handshake(_) => changed |= self.shake_hands(context, now)?,
            Stage::Open(_) => changed |= self.exchange(context, now)?,
            Stage::Resume(_) => changed |= self.resume(context, now)?,
            Stage::Closing { is_shut, discarded, open } => {
                if let (Some(open), Some(protection)) = (open, &mut self.protection)
                    && let Some(records) = open.channel.records()
                    && protection.is_active()
                    && protection.may_end(records)
                {
                    protection.end(records.sent_offset());
                    changed = true;
                }
                let is_free = self.protection.as_ref().is_none_or(|protection| !protection.is_active());
                if self.output.is_empty() && is_free && !*is_shut {
                    self.client.stream.shutdown(Shutdown::Write)?;
                    *is_shut = true;
                }
                self.input.consume(self.input.len());
                if let Some(count) = self.client.read(&mut self.input)? {
                    *discarded += count;
                    // A client that has closed its direction may still read.
                    let is_ended = count == 0 && *is_shut;
                    if is_ended || *discarded > MAX_DISCARDED_BYTES {
                        return Err(ErrorKind::ConnectionAborted.into());
                    }
                    changed |= count > 0;
                }
            }
        }
        Ok(changed)
    }

    fn count_client(&mut self, bytes: usize, now: Instant) -> bool {
        if bytes > 0 {
            self.moved = now;
            self.client_bytes += bytes as u64;
        }
        bytes > 0
    }

    fn close(&mut self, now: Instant) {
        let closing = Stage::Closing { is_shut: false, discarded: 0, open: None };
        let before = std::mem::replace(&mut self.stage, closing);
        if let (Stage::Closing { open, .. }, Stage::Open(before)) = (&mut self.stage, before) {
            *open = Some(before);
        }
        self.since = now;
    }

    fn shake_hands(&mut self, context: &Context<'_>, now: Instant) -> io::Result<bool> {
        let read = self.client.read(&mut self.input)?;
        let Stage::Handshake(handshake) = &mut self.stage else { return Ok(false) };
        match handshake.advance(&mut self.input, self.output.bytes()) {
            Ok(false) if read == Some(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(false) => Ok(read.is_some()),
            Ok(true) => {
                let resumed = handshake.is_resumed();
                let Stage::Handshake(handshake) = std::mem::replace(
                    &mut self.stage,
                    Stage::Closing { is_shut: false, discarded: 0, open: None },
                ) else {
                    return Ok(false);
                };
                let client_name = handshake.client_name().map_err(|_| ErrorKind::InvalidData)?;
                let mut channel = handshake.into_channel().map_err(|_| ErrorKind::InvalidData)?;
                if client_name.is_none() {
                    // A stored state has no place for a client's name, so a connection with one is unprotected.
                    self.protect(context, &mut channel);
                } else {
                    self.leave_unprotected(context);
                    if channel.records().is_some() {
                        context.counters.count_unprotected("client_certificate");
                    }
                }
                context.counters.count_handshake(&channel, resumed);
                observe(context, &self.client.stream, &channel);
                let mut open = Open::new(channel, self.peer, context.forwarded);
                open.exchange.client_name = client_name;
                self.stage = Stage::Open(Box::new(open));
                (self.since, self.moved) = (now, now);
                Ok(true)
            }
            Err(failure) => {
                context.counters.count_failure(failure);
                match failure {
                    Failure::PlainHttp => self.output.bytes().extend_from_slice(PLAIN_HTTP_REPLY),
                    // The output already has the alert of rustls.
                    Failure::Refused => {}
                    Failure::NotTls => return Err(ErrorKind::InvalidData.into()),
                }
                self.close(now);
                Ok(true)
            }
        }
    }

    fn exchange(&mut self, context: &Context<'_>, now: Instant) -> io::Result<bool> {
        if let Some(changed) = self.continue_response(context, now) {
            return Ok(changed);
        }
        let Stage::Open(open) = &mut self.stage else { return Ok(false) };
        let was_empty = open.data.is_empty();
        let (data_before, had_ended) = (open.data.len(), open.client_ended);
        let mut client_bytes = 0;
        let result = (|| -> io::Result<(bool, Progress)> {
            let mut changed = false;
            // A client that pipelines could fill the memory without this limit.
            if !open.client_ended && open.exchange.wants_client(open.data.len()) {
                let read = self.client.read(&mut self.input)?;
                client_bytes = read.unwrap_or(0);
                changed |= read.is_some();
                let before = self.input.len();
                match open.receive(&mut self.input, &mut self.output) {
                    Ok(ended) => open.client_ended = ended,
                    Err(broken) => {
                        context.counters.count_broken();
                        open.channel.send_alert(broken, self.output.bytes());
                        return Ok((true, Progress::Abort));
                    }
                }
                changed |= self.input.len() != before;
                // The client closed TCP without close_notify. It sends no more, and the length of a
                // request shows whether it was cut.
                open.client_ended |= read == Some(0);
            }
            let mut may_take = true;
            if let (Some(protection), Some(records)) = (&mut self.protection, open.channel.records()) {
                let new = &open.data[data_before..];
                // An idle client that has closed its direction waits for no response.
                let ended =
                    open.client_ended && !had_ended && !(open.exchange.is_idle() && open.data.is_empty());
                if !new.is_empty() || ended {
                    protection.receive(new, ended, &self.client.stream, self.written, records);
                }
                may_take = !protection.holds_requests();
                if protection.is_refused {
                    protection.reset();
                    return Err(ErrorKind::ConnectionAborted.into());
                }
            }
            let is_protected = self.protection.as_ref().is_some_and(Protection::is_active);
            let round = Round { now, may_take, is_protected };
            let step = open.step(context, &mut self.output, (self.peer, self.local), round)?;
            if let (Some(protection), Some(records)) = (&mut self.protection, open.channel.records_mut()) {
                protection.send(records);
            }
            Ok((changed | step.0, step.1))
        })();
        // Reported before any byte of the response leaves.
        if open.exchange.events.repeatable_responses > 0 {
            observe(context, &self.client.stream, &open.channel);
        }
        open.count_events(context.counters);
        let (mut changed, progress) = result?;
        if changed {
            self.moved = now;
        }
        if was_empty && !open.data.is_empty() {
            self.since = now;
        }
        // The connection waits for the client while it has bytes to send to it, or a request has
        // begun and not ended.
        let is_waited_for = !self.output.is_empty() || open.exchange.awaits_request();
        match (is_waited_for, self.client_busy) {
            (true, None) => (self.client_busy, self.client_bytes) = (Some(now), 0),
            (false, Some(_)) => self.client_busy = None,
            _ => {}
        }
        match progress {
            Progress::Open | Progress::Repeat => {}
            Progress::Close => {
                open.channel.close(self.output.bytes());
                self.close(now);
                changed = true;
            }
            Progress::Abort => {
                if !open.is_interrupted {
                    self.abort(now);
                }
                changed = true;
            }
        }
        self.count_client(client_bytes, now);
        Ok(changed)
    }

    /// Ends the connection without `close_notify` after the sealed records, because the response is
    /// incomplete.
    fn abort(&mut self, now: Instant) {
        self.with_protection(|protection, records| protection.give_up(Reason::Closed, records));
        self.close(now);
    }

    /// Ends a connection that has exceeded a time limit.
    pub(crate) fn expire(&mut self, limits: &TimeLimits, now: Instant, counters: &Counters) -> Turn {
        let waits = |since: Instant, limit: Duration| now.saturating_duration_since(since) > limit;
        let is_slow = self.client_busy.is_some_and(|since| {
            waits(since, limits.idle + Duration::from_secs(self.client_bytes / limits.least_rate))
        });
        let open = match &mut self.stage {
            Stage::Handshake(_) => {
                if !waits(self.since, limits.handshake) {
                    return Turn::Wait;
                }
                counters.count_late_handshake();
                return Turn::Ended;
            }
            Stage::Closing { .. } => {
                return if waits(self.since, limits.linger) && waits(self.moved, limits.linger) {
                    Turn::Ended
                } else {
                    Turn::Wait
                };
            }
            Stage::Resume(_) => {
                return if waits(self.moved, limits.idle) || is_slow { Turn::Ended } else { Turn::Wait };
            }
            Stage::Open(open) => open,
        };
        if open.exchange.is_idle() && self.output.is_empty() {
            let is_late = if open.data.is_empty() {
                waits(self.moved, limits.idle)
            } else {
                waits(self.since, limits.head)
            };
            if !is_late {
                return Turn::Wait;
            }
            if !open.data.is_empty() {
                open.exchange.replace_reply(408, &mut open.channel, &mut self.output);
            }
        } else {
            let limit = if open.exchange.is_tunnel() { limits.tunnel } else { limits.idle };
            if !waits(self.moved, limit) && (!is_slow || open.exchange.is_tunnel()) {
                return Turn::Wait;
            }
            counters.count_late();
            let is_server_late = open.exchange.awaits_head() && !open.exchange.awaits_request();
            if !is_server_late {
                return Turn::Ended;
            }
            open.exchange.replace_reply(504, &mut open.channel, &mut self.output);
        }
        open.channel.close(self.output.bytes());
        self.close(now);
        Turn::Again
    }

    /// Ends the connection if it is idle, because the process is stopping.
    pub(crate) fn end_if_idle(&mut self, now: Instant) -> Turn {
        match &mut self.stage {
            Stage::Open(open) if open.exchange.is_idle() && self.output.is_empty() => {
                open.channel.close(self.output.bytes());
                self.close(now);
                Turn::Again
            }
            _ => Turn::Wait,
        }
    }
}
