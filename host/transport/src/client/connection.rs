//! A connection: its state, and what its user does with it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;

use super::generation::Generation;
use super::input::Input;
use super::output::Output;
use super::rtt::Rtt;
pub use super::types::{
    Config, ConnectionError, Event, InputError, MAX_REQUESTS, Read, RequestError, Statistics, TcpHandshake,
};
use crate::time::{MILLISECOND, Micros, Time};
use crate::verdict::Numbers;

/// Where a connection stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing was sent.
    Idle,
    /// SYNs were sent.
    Opening {
        /// How many.
        attempts: u32,
        /// When the next is due.
        due: Time,
        /// The last one was bare.
        bare: bool,
        /// It is to be sent now.
        send: bool,
    },
    /// A bare SYN was answered; the cookie is to be completed.
    Completing {
        /// Server ISN.
        cookie: u32,
        /// When to ask again, or to start over.
        due: Time,
        /// To be sent now.
        send: bool,
        /// How often it was sent.
        attempts: u32,
    },
    /// Open.
    Open,
    /// CLOSE is to be sent, or was.
    Closing {
        /// How often.
        attempts: u32,
        /// When to send it (again).
        due: Time,
        /// What becomes of the window.
        window: Window,
    },
    /// Over.
    Over,
}

/// What becomes of the window of a connection that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// It ends too, or was given back.
    Gone,
    /// It is to be given back, once all of it is here.
    Kept,
    /// The server was asked to take it: a token may come.
    Offered,
}

/// How the connection is being brought to life again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revival {
    /// Not needed.
    None,
    /// TIMEOUT: `attempts` were sent, the next is due.
    Timeout {
        /// Sent so far.
        attempts: u8,
        /// When the next one, or a RESTART, is due.
        due: Time,
    },
    /// REKEY was sent: the window that it opened is asked for until it answers.
    Rekey {
        /// Sent so far.
        attempts: u8,
        /// When the next one, or a RESTART, is due.
        due: Time,
    },
    /// RESTART.
    Restart {
        /// Sent so far.
        attempts: u32,
        /// When the next is due.
        due: Time,
    },
}

/// Data asked for again under K', without a continuation to answer.
#[derive(Debug)]
pub(super) struct Retransmission {
    pub number: u32,
    pub want: Range<u64>,
    pub sent_at: Time,
    pub due: Time,
}

/// Pacing of requests that were held back behind a gap, or that a pause has left.
#[derive(Debug, Default)]
pub(super) struct Pace {
    pub next: Option<Time>,
    pub interval: Micros,
    pub left: usize,
    /// So many of them leave without a pause.
    pub at_once: usize,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub input: Input,
    pub output: Output,
    /// The user was told that it may read, and has not yet read to the end.
    pub told_readable: bool,
    pub blocked_writer: bool,
    pub told_consumed: bool,
}

/// The client's side of one connection.
///
/// Sans-I/O: it opens no socket and reads no clock. [`Connection::handle_input`] takes whole IP packets,
/// [`Connection::poll_transmit`] gives them, [`Connection::poll_timeout`] says when [`Connection::handle_timeout`] wants to be called.
/// After any call that changes something (these two, `write`, `read`, `finish`, `request`, `close`, `connect`): `poll_transmit` until it
/// gives None, `poll` until it gives None, then `poll_timeout`.
#[derive(Debug)]
pub struct Connection {
    pub(super) config: Config,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) phase: Phase,
    pub(super) isn: u32,
    pub(super) seq: u32,
    /// Highest sequence end seen from the server.
    pub(super) ack: u32,
    /// The one continuation left is good for a RESTART alone.
    pub(super) must_restart: bool,
    pub(super) generation: Option<Generation>,
    /// The generation before: its late data is still welcome.
    pub(super) former: Option<Generation>,
    /// The address that the kept continuations are sealed for.
    pub(super) sealed_for: SocketAddr,
    pub(super) challenge: Option<Vec<u8>>,
    pub(super) revival: Revival,
    pub(super) wanted_in_revival: Vec<Range<u64>>,
    pub(super) streams: BTreeMap<u16, Stream>,
    pub(super) next_stream: u16,
    /// The stream that something was last asked for, and the one whose input was last sent: the next ones get their turn.
    pub(super) served: u16,
    pub(super) heard: u16,
    pub(super) rtt: Rtt,
    pub(super) retransmissions: Vec<Retransmission>,
    /// Those given up not long ago, by number and time of their request: their data is still welcome, and says how slow a replica is.
    pub(super) given_up: VecDeque<(u32, Time)>,
    /// Numbers that requests under way have regenerated, and until when they are waited for.
    pub(super) regenerating: Vec<(Numbers, Time)>,
    /// When a declaration is due.
    pub(super) detection: Option<Time>,
    /// Probes of the present tail.
    pub(super) probes: u8,
    /// Probes that it may have.
    pub(super) most_probes: u8,
    /// Originals that came since the last probe.
    pub(super) calm: u32,
    pub(super) probe_now: bool,
    /// An acknowledgement is delayed until then.
    pub(super) delay_until: Option<Time>,
    /// Requests held back leave paced: when the next may, how far apart, and how many are left.
    pub(super) pace: Pace,
    /// The latest time that was told.
    pub(super) clock: Time,
    /// A newer nonce epoch is usable: from this time on the window is drained, to be handed over in a REKEY.
    pub(super) drain_from: Option<Time>,
    /// When the connection last sent a normal request or heard of one.
    pub(super) last_progress: Time,
    pub(super) last_sent: Time,
    pub(super) last_heard: Time,
    /// When the oldest request that nothing was heard since was sent.
    pub(super) first_unanswered: Time,
    pub(super) events: VecDeque<Event>,
    pub(super) statistics: Statistics,
    pub(super) scratch: Vec<u8>,
    pub(super) syn_input: Option<(u16, Range<u64>, bool)>,
    pub(super) recovering_until: u32,
    /// The server sends continuations whole where it could send differences: they leave less room for data.
    pub(super) whole: bool,
}

impl Connection {
    /// A connection from `local` to `remote`. Nothing is sent before the first [`Connection::write`] or [`Connection::connect`], so
    /// that the SYN can carry the request.
    pub fn open(config: Config, local: SocketAddr, remote: SocketAddr, now: Time) -> Self {
        let isn = mix(config.seed ^ 0x7269_7675_6c65_7431) as u32;
        let mut connection = Self {
            local,
            remote,
            phase: Phase::Idle,
            isn,
            seq: isn,
            ack: 0,
            must_restart: false,
            generation: None,
            former: None,
            sealed_for: local,
            challenge: None,
            revival: Revival::None,
            wanted_in_revival: Vec::new(),
            streams: BTreeMap::new(),
            next_stream: 1,
            served: u16::MAX,
            heard: u16::MAX,
            rtt: Rtt::new(config.max_backoff),
            retransmissions: Vec::new(),
            given_up: VecDeque::new(),
            regenerating: Vec::new(),
            detection: None,
            probes: 0,
            most_probes: 0,
            calm: u32::MAX,
            probe_now: false,
            delay_until: None,
            pace: Pace::default(),
            clock: now,
            drain_from: None,
            last_progress: now,
            last_sent: now,
            last_heard: now,
            first_unanswered: now,
            events: VecDeque::new(),
            statistics: Statistics::default(),
            scratch: Vec::new(),
            syn_input: None,
            recovering_until: 0,
            whole: false,
            config,
        };
        connection.open_stream(0);
        connection
    }

    pub(super) fn open_stream(&mut self, id: u16) {
        let stream = Stream {
            input: Input::new(self.config.send_buffer),
            output: Output::new(id, self.config.receive_buffer),
            told_readable: false,
            blocked_writer: false,
            told_consumed: true,
        };
        self.streams.insert(id, stream);
    }

    /// Sends the SYN even without input.
    pub fn connect(&mut self, now: Time) {
        if matches!(self.phase, Phase::Idle) {
            self.last_heard = now;
            let bare = self.config.bare_syn;
            self.phase = Phase::Opening { attempts: 0, due: now, bare, send: true };
        }
    }

    /// Writes input to a stream and gives how much was taken. [`Event::Writable`] says when there is room again. Sends the
    /// SYN if nothing was sent yet.
    pub fn write(&mut self, stream: u16, data: &[u8], now: Time) -> usize {
        let Some(s) = self.streams.get_mut(&stream) else { return 0 };
        let taken = s.input.write(data);
        s.blocked_writer = taken < data.len();
        s.told_consumed &= taken == 0;
        if taken > 0 {
            self.connect(now);
        }
        taken
    }

    /// Ends a stream's input.
    pub fn finish(&mut self, stream: u16) {
        if let Some(s) = self.streams.get_mut(&stream) {
            s.input.finish();
            s.told_consumed = false;
        }
    }

    /// Bytes of a stream's input that the server has not taken yet; one more while it has not taken the end of an input that was
    /// finished.
    pub fn unconsumed(&self, stream: u16) -> usize {
        self.streams.get(&stream).map_or(0, |s| s.input.unconsumed())
    }

    /// A parallel request (section 5.2): a new stream with this input.
    pub fn request(&mut self, data: &[u8], now: Time) -> Result<u16, RequestError> {
        if data.len() > self.config.send_buffer {
            return Err(RequestError::TooLong(self.config.send_buffer));
        }
        let id = self.stream()?;
        self.write(id, data, now);
        self.finish(id);
        Ok(id)
    }

    /// A new stream, both ways, beside those that there are: all share the window, in turn. Nothing is sent for it before something
    /// is written.
    ///
    /// # Errors
    /// [`RequestError::TooMany`], [`RequestError::UsedUp`].
    pub fn stream(&mut self) -> Result<u16, RequestError> {
        // Stream 0 is there from the beginning.
        if self.streams.range(1..).count() >= MAX_REQUESTS {
            return Err(RequestError::TooMany);
        }
        if self.next_stream == u16::MAX {
            return Err(RequestError::UsedUp);
        }
        let id = self.next_stream;
        self.next_stream += 1;
        self.open_stream(id);
        Ok(id)
    }

    /// Forgets a stream: nothing more is asked for it. Its number is not used again.
    pub fn forget(&mut self, stream: u16) {
        self.streams.remove(&stream);
    }

    /// Reads output of a stream in order.
    pub fn read(&mut self, stream: u16, buf: &mut [u8]) -> Read {
        let Some(s) = self.streams.get_mut(&stream) else { return Read::End };
        match s.output.read(buf) {
            0 if s.output.is_finished() => Read::End,
            0 => {
                s.told_readable = false;
                Read::Blocked
            }
            n => Read::Bytes(n),
        }
    }

    /// Bytes that can be read at once.
    pub fn readable(&self, stream: u16) -> usize {
        self.streams.get(&stream).map_or(0, |s| s.output.readable())
    }

    /// Whether the server ended the stream and all of it came, read or not.
    pub fn is_complete(&self, stream: u16) -> bool {
        self.streams.get(&stream).is_none_or(|s| s.output.is_complete())
    }

    /// Ends the connection. The server keeps nothing, so this is courtesy towards middleboxes; [`Event::Closed`] follows. A window that
    /// is worth it is given back first: an [`Event::Token`] with it may come before.
    pub fn close(&mut self, now: Time) {
        match self.phase {
            Phase::Over | Phase::Closing { .. } => {}
            Phase::Open => self.phase = self.closing(now),
            _ => self.end(Event::Closed),
        }
    }

    /// Whether a token is still expected of a connection that was closed.
    pub fn awaits_token(&self) -> bool {
        matches!(self.phase, Phase::Closing { window: Window::Kept | Window::Offered, .. })
    }

    /// What happened since the last call.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the connection is over: it sends and takes nothing more.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Counts so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Smoothed round trip time, if there is a sample.
    pub fn smoothed_rtt(&self) -> Option<Micros> {
        self.rtt.smoothed()
    }

    /// The present window: trickles in flight and held.
    pub fn window(&self) -> usize {
        self.generation.as_ref().map_or(0, Generation::population)
    }

    /// Whether a further stream does better here than on a connection of its own: this one is being opened, or answers come and no
    /// RESTART would be needed, which is slower than an opening and knows as little of the path.
    pub fn is_lively(&self, now: Time) -> bool {
        match self.phase {
            Phase::Idle | Phase::Opening { .. } | Phase::Completing { .. } => true,
            Phase::Closing { .. } | Phase::Over => false,
            Phase::Open => {
                let unanswered = match self.revival {
                    Revival::None => 0,
                    Revival::Timeout { attempts, .. } | Revival::Rekey { attempts, .. } => attempts,
                    Revival::Restart { .. } => return false,
                };
                unanswered <= 1 && self.has_fresh_continuation(now)
            }
        }
    }

    /// Until when the window can be used as it is, if nothing is sent any more. None: there is none.
    pub fn window_lasts(&self) -> Option<Time> {
        let open = matches!(self.phase, Phase::Open) && self.revival == Revival::None;
        open.then(|| self.last_sent.max(self.last_heard) + self.rtt.idle())
    }

    /// Bytes that responses brought and nobody read yet, over all streams.
    pub fn buffered(&self) -> usize {
        self.streams.values().map(|s| s.output.buffered()).sum()
    }

    /// Local address and port.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Address and port of the service.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(super) fn end(&mut self, event: Event) {
        if !self.is_over() {
            self.phase = Phase::Over;
            self.events.push_back(event);
        }
    }

    pub(super) fn fail(&mut self, error: ConnectionError) {
        self.end(Event::Failed(error));
    }

    /// A stream cannot go on. The others do; without others the connection has failed.
    pub(super) fn fail_stream(&mut self, stream: u16, error: ConnectionError) {
        // Of one that was forgotten meanwhile nobody wants to know.
        if !self.streams.contains_key(&stream) {
            return;
        }
        if self.streams.len() == 1 {
            return self.fail(error);
        }
        self.streams.remove(&stream);
        self.events.push_back(Event::StreamFailed(stream, error));
    }

    /// Largest TCP payload of a request.
    pub(super) fn largest_payload(&self) -> usize {
        let ip = if self.local.is_ipv4() { 20 } else { 40 };
        usize::from(self.config.mtu).saturating_sub(ip + 28)
    }

    /// MSS option of our SYN.
    pub(super) fn mss_option(&self) -> u16 {
        let ip = if self.local.is_ipv4() { 20 } else { 40 };
        self.config.mtu.saturating_sub(ip + 20)
    }
}

/// A 64-bit mix (the finalizer of MurmurHash3): spreads a seed, no secret.
pub(super) fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// Retransmissions given up that are remembered.
pub(super) const GIVEN_UP: usize = 64;

/// Least pause before something is sent again without an estimate.
pub(super) const LEAST_PAUSE: Micros = 10 * MILLISECOND;
