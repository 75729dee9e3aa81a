//! A client's connection after its handshake and the connection to the server: moves bytes between
//! the sockets and the exchange.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rivulet_pktio::begin_connection;
use rustix::event::epoll::{self, EventData};

use crate::buffer::{Input, Output};
use crate::channel::{Broken, Channel, Received};
use crate::counters::Counters;
use crate::exchange::{Exchange, MAX_OUTPUT_BYTES, Progress};
use crate::head::Forwarded;
use crate::link::Link;
use crate::proxy_header::proxy_header;
use crate::socket::{EVENTS, Socket};
use crate::state::Observer;

/// Bytes that are read from the client at a time; any record fits.
pub(crate) const CLIENT_INPUT_BYTES: usize = 32 << 10;
/// Bytes that are read from the server at a time.
const SERVER_INPUT_BYTES: usize = 64 << 10;
/// Shortest pause after an attempt that did not reach the server.
pub(crate) const RETRY: Duration = Duration::from_millis(50);
/// For how long requests of protected connections are repeated: the time in which a server is restarted, or the replica is
/// excluded for its lack of one and another adopts the connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// Parts of a worker that its connections use.
pub(crate) struct Context<'a> {
    pub(crate) epoll: &'a OwnedFd,
    /// Event data of the server's socket.
    pub(crate) server_token: u64,
    pub(crate) server: SocketAddr,
    pub(crate) forwarded: Forwarded,
    pub(crate) counters: &'a Counters,
    pub(crate) observer: Option<&'a dyn Observer>,
    /// The link to the agent, and the number of this connection on it.
    pub(crate) link: Option<&'a Arc<Link>>,
    pub(crate) number: u64,
}

/// How the server ended its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerEnd {
    Closed,
    Failed,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) socket: Socket,
    pub(crate) input: Input,
    end: Option<ServerEnd>,
    /// Whether a response was already received on this connection.
    is_reused: bool,
    /// Whether our direction was shut down.
    is_shut: bool,
}

/// A client's connection after its handshake, and the server's connection for it.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) channel: Channel,
    pub(crate) exchange: Exchange,
    /// The client's data that was decrypted and not consumed yet.
    pub(crate) data: Vec<u8>,
    /// Whether the client has ended its data.
    pub(crate) client_ended: bool,
    pub(crate) to_server: Output,
    pub(crate) server: Option<Server>,
    /// Whether the server cut a response whose rest can be requested again.
    pub(crate) is_interrupted: bool,
    /// The server is away while the client waits for a response.
    away: Option<Away>,
}

/// Attempts to reach a server that is away.
#[derive(Clone, Copy, Debug)]
struct Away {
    since: Instant,
    retry_at: Instant,
}

/// What a turn of an open connection may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub(crate) now: Instant,
    /// The next request may go to the server.
    pub(crate) may_take: bool,
    /// Another replica could continue the connection.
    pub(crate) is_protected: bool,
}

impl Open {
    pub(crate) fn new(channel: Channel, peer: SocketAddr, forwarded: Forwarded) -> Self {
        Self {
            channel,
            exchange: Exchange::new(peer, forwarded),
            data: Vec::new(),
            client_ended: false,
            to_server: Output::default(),
            server: None,
            is_interrupted: false,
            away: None,
        }
    }

    /// The time of the next attempt to reach the server.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.away.filter(|_| self.server.is_none()).map(|away| away.retry_at)
    }

    /// Puts the request off until the next attempt. False if it cannot be repeated, or was for too long.
    fn put_off(&mut self, round: Round) -> bool {
        let since = self.away.map_or(round.now, |away| away.since);
        let waited = round.now.saturating_duration_since(since);
        // The first failure may be that of a connection which the server has closed meanwhile. A server that ends at this
        // request must not get it twenty times a second.
        let pause = if self.away.is_none() { Duration::ZERO } else { RETRY.max(waited / 4) };
        if !round.is_protected || waited > PATIENCE || !self.exchange.is_repeatable() {
            self.away = None;
            return false;
        }
        self.away = Some(Away { since, retry_at: round.now + pause });
        (self.server, self.to_server) = (None, Output::default());
        self.exchange.put_request(&mut self.to_server);
        true
    }

    /// Decrypts the client's records. Returns whether the client has closed its direction.
    pub(crate) fn receive(&mut self, input: &mut Input, output: &mut Output) -> Result<bool, Broken> {
        let limit = self.data.len() + CLIENT_INPUT_BYTES;
        Ok(self.channel.receive(input, &mut self.data, limit, output.bytes())? == Received::Closed)
    }

    /// Sends requests to the server and reads its responses. Returns whether anything changed.
    pub(crate) fn step(
        &mut self,
        context: &Context<'_>,
        output: &mut Output,
        (peer, local): (SocketAddr, SocketAddr),
        round: Round,
    ) -> io::Result<(bool, Progress)> {
        let mut changed = false;
        // Between two requests, the server must not send: its bytes would become the response to
        // the next request.
        if self.exchange.is_idle()
            && !self.data.is_empty()
            && let Some(server) = &mut self.server
        {
            match server.socket.stream.peek(&mut [0]) {
                Ok(1..) => return Ok((true, Progress::Abort)),
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Ok(0) | Err(_) => self.server = None,
            }
        }
        let before = self.data.len();
        // A request that must not be executed twice waits until the protection has ended, so that
        // no other replica can continue the connection.
        if !round.may_take {
            return Ok((changed, Progress::Open));
        }
        if let Err(status) = self.exchange.take_request(&mut self.data, &mut self.to_server) {
            self.exchange.events.refused_requests += 1;
            return Ok((true, self.exchange.replace_reply(status, &mut self.channel, output)));
        }
        changed |= self.data.len() != before;
        if self.client_ended && !self.exchange.is_tunnel() {
            if self.exchange.is_idle() {
                return Ok((true, Progress::Close));
            }
            if self.exchange.awaits_request() && self.data.is_empty() {
                return Ok((true, Progress::Abort));
            }
        }
        if self.exchange.needs_server() && self.server.is_none() {
            if self.retry_at().is_some_and(|at| round.now < at) {
                return Ok((changed, Progress::Open));
            }
            match connect_server(context, peer, local, self.to_server.bytes()) {
                Ok(server) => self.server = Some(server),
                Err(error) => {
                    if self.put_off(round) {
                        return Ok((true, Progress::Open));
                    }
                    tracing::warn!(%error, server = %context.server, "the server cannot be reached");
                    self.exchange.events.bad_responses += 1;
                    return Ok((true, self.exchange.replace_reply(502, &mut self.channel, output)));
                }
            }
            changed = true;
        }
        let Some(server) = &mut self.server else { return Ok((changed, Progress::Open)) };
        match server.socket.write(&mut self.to_server) {
            Ok(count) => changed |= count > 0,
            // Data that the server sent before the error is still read, because it may explain it.
            Err(_) => {
                self.to_server = Output::default();
                server.socket.writable = false;
                server.socket.readable = true;
                changed = true;
            }
        }
        if self.client_ended && self.exchange.is_tunnel() && self.to_server.is_empty() && !server.is_shut {
            server.is_shut = true;
            let _ = server.socket.stream.shutdown(Shutdown::Write);
        }
        if server.end.is_none() && output.len() < MAX_OUTPUT_BYTES {
            match server.socket.read(&mut server.input) {
                Ok(None) => {}
                Ok(Some(0)) => server.end = Some(ServerEnd::Closed),
                Ok(Some(_)) => changed = true,
                Err(_) => server.end = Some(ServerEnd::Failed),
            }
            changed |= server.end.is_some();
        }
        let (before, sealed) = (server.input.len(), output.len());
        let mut progress = self.exchange.take_reply(&mut server.input, &mut self.channel, output);
        changed |= server.input.len() != before || output.len() != sealed;
        server.is_reused |= self.exchange.is_idle();
        if !self.exchange.awaits_head() {
            self.away = None;
        }
        let Some(end) = server.end else { return Ok((changed, progress)) };
        if progress == Progress::Open && output.len() < MAX_OUTPUT_BYTES {
            let is_reused = server.is_reused;
            if self.put_off(round) {
                return Ok((true, Progress::Open));
            }
            let Some(server) = &mut self.server else { return Ok((true, Progress::Open)) };
            progress = match end {
                // A reset in the middle of a response is not the response's end.
                ServerEnd::Failed if !self.exchange.awaits_head() && self.exchange.needs_server() => {
                    Progress::Abort
                }
                _ => self.exchange.end_of_server(is_reused, &server.input, &mut self.channel, output),
            };
            self.is_interrupted = progress == Progress::Abort && self.exchange.is_in_records();
            self.server = None;
            self.to_server = Output::default();
            if progress == Progress::Repeat {
                self.exchange.repeat_request(&mut self.to_server);
            }
            changed = true;
        }
        Ok((changed, progress))
    }

    pub(crate) fn count_events(&mut self, counters: &Counters) {
        counters.add(&std::mem::take(&mut self.exchange.events));
    }
}

/// Connects to the server, without waiting for the connection. Puts the PROXY protocol's header, if
/// any, before the bytes for the server.
pub(crate) fn connect_server(
    context: &Context<'_>,
    peer: SocketAddr,
    local: SocketAddr,
    to_server: &mut Vec<u8>,
) -> io::Result<Server> {
    let stream = begin_connection(context.server)?;
    epoll::add(context.epoll, &stream, EventData::new_u64(context.server_token), EVENTS)?;
    if context.forwarded == Forwarded::ProxyProtocol {
        to_server.splice(0..0, proxy_header(peer, local));
    }
    Ok(Server {
        socket: Socket::new(stream),
        input: Input::new(SERVER_INPUT_BYTES),
        end: None,
        is_reused: false,
        is_shut: false,
    })
}
