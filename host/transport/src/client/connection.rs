//! A connection: its state, and its interface for the application.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::ops::Range;

use super::generation::Generation;
use super::input::Input;
use super::output::Output;
use super::rtt::Rtt;
pub use super::types::{
    Config, ConnectionError, Event, InputError, MAX_REQUESTS, Read, RequestError, Statistics, TcpHandshake,
};
use crate::time::{MILLISECOND, Micros, Time};
use crate::verdict::Numbers;

/// Phase of a connection.
#[derive(Debug)]
pub(super) enum Phase {
    /// Nothing was sent.
    Idle,
    /// SYNs were sent.
    Opening {
        /// Number of SYNs sent.
        attempts: u32,
        /// When the next one is due.
        due: Time,
        /// The last one had no data.
        bare: bool,
        /// The next one is to be sent now.
        send: bool,
    },
    /// A bare SYN was answered; its cookie is to be completed.
    Completing {
        /// Server ISN.
        cookie: u32,
        /// When to send the completion again, or to start over.
        due: Time,
        /// The completion is to be sent now.
        send: bool,
        /// Number of completions sent.
        attempts: u32,
    },
    /// Open.
    Open,
    /// CLOSE is to be sent, or was sent.
    Closing {
        /// Number of CLOSEs sent.
        attempts: u32,
        /// When to send the next one.
        due: Time,
        /// What happens to the window.
        window: Window,
    },
    /// Over.
    Over,
}

/// What happens to the window of a closing connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// It ends with the connection, or was returned.
    Gone,
    /// To be returned once all of its responses have been received.
    Kept,
    /// A REKEY that returns it was sent; a token may arrive.
    Offered,
}

/// How an unresponsive connection is revived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Revival {
    /// No revival in progress.
    None,
    /// The client sends TIMEOUT requests: `attempts` were sent, the next one is due at `due`.
    Timeout {
        /// Number sent so far.
        attempts: u8,
        /// When the next one, or a RESTART, is due.
        due: Time,
    },
    /// The client repeats a REKEY request until the window that it opens arrives.
    Rekey {
        /// Number sent so far.
        attempts: u8,
        /// When the next one, or a RESTART, is due.
        due: Time,
    },
    /// The client repeats a RESTART request.
    Restart {
        /// Number sent so far.
        attempts: u32,
        /// When the next one is due.
        due: Time,
    },
}

/// Data requested again under K', without a continuation in the response.
#[derive(Debug)]
pub(super) struct Retransmission {
    pub number: u32,
    pub want: Range<u64>,
    pub sent_at: Time,
    pub due: Time,
}

/// Pacing of requests that were released by a decided gap, or that follow a pause.
#[derive(Debug, Default)]
pub(super) struct Pace {
    pub next: Option<Time>,
    pub interval: Micros,
    pub left: usize,
    /// How many of them leave at once.
    pub at_once: usize,
}

/// One stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub input: Input,
    pub output: Output,
    /// `Readable` was reported, and the application has not read to the end since.
    pub reported_readable: bool,
    pub blocked_writer: bool,
    pub reported_consumed: bool,
}

/// The client's side of one connection.
///
/// Sans-I/O: it opens no socket and reads no clock. [`Connection::handle_input`] takes whole IP
/// packets, [`Connection::poll_transmit`] returns them, and [`Connection::poll_timeout`] returns
/// the time for [`Connection::handle_timeout`]. After each call that changes something (these two,
/// `write`, `read`, `finish`, `request`, `close`, `connect`), call `poll_transmit` until `None`,
/// `poll` until `None`, then `poll_timeout`.
#[derive(Debug)]
pub struct Connection {
    pub(super) config: Config,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) phase: Phase,
    pub(super) isn: u32,
    pub(super) seq: u32,
    /// Highest sequence end received from the server.
    pub(super) ack: u32,
    /// The only continuation left is valid for nothing but a RESTART.
    pub(super) must_restart: bool,
    pub(super) generation: Option<Generation>,
    /// The previous generation; its late data is still accepted.
    pub(super) former: Option<Generation>,
    /// The address for which the stored continuations are sealed.
    pub(super) sealed_for: SocketAddr,
    pub(super) challenge: Option<Vec<u8>>,
    pub(super) revival: Revival,
    pub(super) wanted_in_revival: Vec<Range<u64>>,
    pub(super) streams: BTreeMap<u16, Stream>,
    pub(super) next_stream: u16,
    /// Round robin: the stream whose output was requested last, and the stream whose input was sent
    /// last.
    pub(super) last_output_stream: u16,
    pub(super) last_input_stream: u16,
    pub(super) rtt: Rtt,
    pub(super) retransmissions: Vec<Retransmission>,
    /// Recently abandoned retransmissions, by number and time of the request. Their data is still
    /// accepted, and shows how slow a replica is.
    pub(super) given_up: VecDeque<(u32, Time)>,
    /// Numbers regenerated by requests in flight, and how long to wait for each.
    pub(super) regenerating: Vec<(Numbers, Time)>,
    /// When the next loss is to be declared.
    pub(super) detection: Option<Time>,
    /// Probes sent for the current tail.
    pub(super) probes: u8,
    /// Maximum number of probes for this tail.
    pub(super) most_probes: u8,
    /// Originals received since the last probe.
    pub(super) calm: u32,
    pub(super) probe_now: bool,
    /// An acknowledgement is delayed until then.
    pub(super) delay_until: Option<Time>,
    /// Pacing of held requests: when the next one may leave, the interval, and how many are left.
    pub(super) pace: Pace,
    /// The latest time passed in.
    pub(super) clock: Time,
    /// A newer nonce epoch is usable: from this time on, the window drains so that a REKEY can move
    /// it.
    pub(super) drain_from: Option<Time>,
    /// When the connection last sent a normal request or received a response to one.
    pub(super) last_progress: Time,
    pub(super) last_sent: Time,
    pub(super) last_received: Time,
    /// When the oldest request without any response since was sent.
    pub(super) first_unanswered: Time,
    pub(super) events: VecDeque<Event>,
    pub(super) statistics: Statistics,
    pub(super) scratch: Vec<u8>,
    pub(super) syn_input: Option<(u16, Range<u64>, bool)>,
    pub(super) recovering_until: u32,
    /// The server sends whole continuations where it could send differences, so less room is left
    /// for data.
    pub(super) whole: bool,
}

impl Connection {
    /// Makes a connection from `local` to `remote`. It sends nothing before the first
    /// [`Connection::write`] or [`Connection::connect`], so that the SYN can carry the request.
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
            last_output_stream: u16::MAX,
            last_input_stream: u16::MAX,
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
            last_received: now,
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
            reported_readable: false,
            blocked_writer: false,
            reported_consumed: true,
        };
        self.streams.insert(id, stream);
    }

    /// Sends the SYN even without input.
    pub fn connect(&mut self, now: Time) {
        if matches!(self.phase, Phase::Idle) {
            self.last_received = now;
            let bare = self.config.bare_syn;
            self.phase = Phase::Opening { attempts: 0, due: now, bare, send: true };
        }
    }

    /// Writes input to a stream and returns how many bytes were accepted. [`Event::Writable`]
    /// reports that there is room again. Sends the SYN if nothing was sent yet.
    pub fn write(&mut self, stream: u16, data: &[u8], now: Time) -> usize {
        let Some(s) = self.streams.get_mut(&stream) else { return 0 };
        let taken = s.input.write(data);
        s.blocked_writer = taken < data.len();
        s.reported_consumed &= taken == 0;
        if taken > 0 {
            self.connect(now);
        }
        taken
    }

    /// Ends a stream's input.
    pub fn finish(&mut self, stream: u16) {
        if let Some(s) = self.streams.get_mut(&stream) {
            s.input.finish();
            s.reported_consumed = false;
        }
    }

    /// Bytes of a stream's input that the server has not consumed yet, plus one for an end that it
    /// has not consumed.
    pub fn unconsumed(&self, stream: u16) -> usize {
        self.streams.get(&stream).map_or(0, |s| s.input.unconsumed())
    }

    /// A parallel request (section 5.2): opens a new stream with this input.
    pub fn request(&mut self, data: &[u8], now: Time) -> Result<u16, RequestError> {
        if data.len() > self.config.send_buffer {
            return Err(RequestError::TooLong(self.config.send_buffer));
        }
        let id = self.stream()?;
        self.write(id, data, now);
        self.finish(id);
        Ok(id)
    }

    /// Opens a further stream in both directions. All streams share the window, round robin.
    /// Nothing is sent for the new one before the first write.
    ///
    /// # Errors
    /// [`RequestError::TooMany`], [`RequestError::UsedUp`].
    pub fn stream(&mut self) -> Result<u16, RequestError> {
        // Stream 0 exists from the beginning.
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

    /// Forgets a stream: nothing more is requested for it. Its number is not reused.
    pub fn forget(&mut self, stream: u16) {
        self.streams.remove(&stream);
    }

    /// Reads output of a stream in order.
    pub fn read(&mut self, stream: u16, buf: &mut [u8]) -> Read {
        let Some(s) = self.streams.get_mut(&stream) else { return Read::End };
        match s.output.read(buf) {
            0 if s.output.is_finished() => Read::End,
            0 => {
                s.reported_readable = false;
                Read::Blocked
            }
            n => Read::Bytes(n),
        }
    }

    /// Bytes that can be read now.
    pub fn readable(&self, stream: u16) -> usize {
        self.streams.get(&stream).map_or(0, |s| s.output.readable())
    }

    /// Whether the server ended the stream and all of it was received, read or not.
    pub fn is_complete(&self, stream: u16) -> bool {
        self.streams.get(&stream).is_none_or(|s| s.output.is_complete())
    }

    /// Closes the connection. The server has no state to free, so this is for middleboxes;
    /// [`Event::Closed`] follows. A window that is worth it is returned first: an [`Event::Token`]
    /// with it may precede.
    pub fn close(&mut self, now: Time) {
        match self.phase {
            Phase::Over | Phase::Closing { .. } => {}
            Phase::Open => self.phase = self.closing(now),
            _ => self.end(Event::Closed),
        }
    }

    /// Whether a closed connection still expects a token.
    pub fn awaits_token(&self) -> bool {
        matches!(self.phase, Phase::Closing { window: Window::Kept | Window::Offered, .. })
    }

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the connection is over and neither sends nor receives.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Counts so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Smoothed round-trip time, if there is a sample.
    pub fn smoothed_rtt(&self) -> Option<Micros> {
        self.rtt.smoothed()
    }

    /// The current window: trickles in flight and held.
    pub fn window(&self) -> usize {
        self.generation.as_ref().map_or(0, Generation::population)
    }

    /// Whether a further stream is better off here than on a new connection. It is while this one
    /// is being opened, or while responses arrive and no RESTART is needed. A RESTART is slower
    /// than an opening, and knows no more about the path.
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

    /// How long the window stays usable if nothing more is sent. `None`: there is no window.
    pub fn window_lasts(&self) -> Option<Time> {
        let open = matches!(self.phase, Phase::Open) && self.revival == Revival::None;
        open.then(|| self.last_sent.max(self.last_received) + self.rtt.idle())
    }

    /// Received bytes not read yet, over all streams.
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

    /// Fails one stream while the others continue. If it is the only one, the connection fails.
    pub(super) fn fail_stream(&mut self, stream: u16, error: ConnectionError) {
        // The application is not interested in a stream that it forgot meanwhile.
        if !self.streams.contains_key(&stream) {
            return;
        }
        if self.streams.len() == 1 {
            return self.fail(error);
        }
        self.streams.remove(&stream);
        self.events.push_back(Event::StreamFailed(stream, error));
    }

    /// Maximum TCP payload of a request.
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

/// A 64-bit mix (the finalizer of MurmurHash3). It spreads a seed and is not cryptographic.
pub(super) fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// Number of abandoned retransmissions that are remembered.
pub(super) const GIVEN_UP: usize = 64;

/// Minimum pause before a retransmission, without an estimate.
pub(super) const LEAST_PAUSE: Micros = 10 * MILLISECOND;
