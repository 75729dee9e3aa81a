//! State machine of one connection at the replica's network interface: which bytes may pass, and
//! what must be stored first.
//!
//! The rule: no byte of the client is acknowledged, and no byte of the server is released, before
//! the state that lets another replica continue is stored. Requests are stored with the response
//! that answers them, or alone if the response is late. A response is stored once its head is
//! complete, because the rest can be requested again; one that can only be generated again is
//! stored with the bytes that have arrived. The data after a response is held again, so a
//! connection may last forever.

mod action;
mod stream;
mod terminated;
mod watched;

use rivulet_plain::Options;

use self::terminated::Terminated;
use self::watched::Watched;
use crate::record::{Age, Handshake, Record, Tuple};

pub use action::{Action, AdoptAs, Asked, Limits, Reason, Settings, StoreOutcome, Unknown, Wake};
pub use watched::{FLIGHT_PATIENCE, GATE, HANDSHAKE_PATIENCE, REQUEST_PATIENCE, RESPONSE_PATIENCE};

/// The send MSS of a peer without the MSS option, IPv4 (RFC 9293 section 3.7.1).
const DEFAULT_MSS: u16 = 536;

/// One client connection as the replica's interface sees it; sequence numbers are absolute (u32, wrapping).
#[derive(Debug)]
pub struct Flow {
    tuple: Tuple,
    settings: Settings,
    /// A TLS terminator of this host serves it.
    terminated: bool,
    now: u64,
    /// The client's initial sequence number and options.
    syn: Option<(u32, Options)>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The handshake is in progress.
    Opening,
    Watched(Box<Watched>),
    Terminated(Box<Terminated>),
    /// The connection is closed, or its limits were lifted.
    Over,
}

impl Flow {
    /// The state before the client's SYN.
    #[must_use]
    pub fn new(tuple: Tuple, settings: &Settings) -> Flow {
        Flow { tuple, settings: *settings, terminated: false, now: 0, syn: None, state: State::Opening }
    }

    /// A connection of this host's TLS terminator, before its SYN. The terminator hands over its records ([`Flow::submit`]).
    #[must_use]
    pub fn of_terminator(tuple: Tuple, settings: &Settings) -> Flow {
        Flow { terminated: true, ..Flow::new(tuple, settings) }
    }

    /// A connection that this replica adopts at time `now_ms`, from a record that is not
    /// unprotected. The first action in `out` after [`Action::Blank`] stores the record under this
    /// replica's name; no byte of a response may pass before that ([`Flow::limits`] enforces it).
    #[must_use]
    pub fn resume(record: Record, settings: &Settings, now_ms: u64, out: &mut Vec<Action>) -> Flow {
        if record.tls.is_some() {
            let flow = Flow::of_terminator(record.tuple, settings);
            let terminated = Box::new(Terminated::resume(record, now_ms, out));
            return Flow { now: now_ms, state: State::Terminated(terminated), ..flow };
        }
        let (tuple, mut watched) = (record.tuple, Box::new(Watched::resume(record, settings)));
        let over = watched.begin(now_ms, out);
        let state = if over { State::Over } else { State::Watched(watched) };
        Flow { now: now_ms, state, ..Flow::new(tuple, settings) }
    }

    /// A connection that this host's terminator has, and that an earlier process watched. Its
    /// record counts sequence numbers as in [`submit`](Self::submit), and has the connection's
    /// handshake and a version that exceeds all that were stored. The first action in `out` stores
    /// it.
    #[must_use]
    pub fn register(
        asked: Asked,
        record: Record,
        settings: &Settings,
        now_ms: u64,
        out: &mut Vec<Action>,
    ) -> Flow {
        let flow = Flow::of_terminator(record.tuple, settings);
        let terminated = Box::new(Terminated::register(asked, record, now_ms, out));
        Flow { now: now_ms, state: State::Terminated(terminated), ..flow }
    }

    /// Handshake and version of a terminator's connection with a record.
    #[must_use]
    pub fn identity(&self) -> Option<(Handshake, u32)> {
        match &self.state {
            State::Terminated(terminated) => terminated.identity(),
            _ => None,
        }
    }

    /// Sets whether data that cannot be stored is held ([`Settings::closed`]).
    pub fn set_closed(&mut self, closed: bool) {
        self.settings.closed = closed;
        if let State::Watched(watched) = &mut self.state {
            watched.set_closed(closed);
        }
    }

    /// The client's SYN (the TCP header with its options).
    pub fn syn(&mut self, tcp: &[u8]) {
        if let (State::Opening, Some(syn)) = (&self.state, opening(tcp)) {
            self.syn = Some(syn);
        }
    }

    /// The kernel's SYN-ACK. Ignored if the SYN was not seen.
    pub fn syn_ack(&mut self, tcp: &[u8]) {
        let (State::Opening, Some((client_isn, theirs)), Some((service_isn, ours))) =
            (&self.state, &self.syn, opening(tcp))
        else {
            return;
        };
        let handshake = Handshake {
            client_isn: *client_isn,
            service_isn,
            mss: theirs.mss.unwrap_or(DEFAULT_MSS),
            scales: theirs.scale.zip(ours.scale),
            sack: theirs.sack_permitted && ours.sack_permitted,
            timestamp: theirs.stamps.and(ours.stamps).map(|stamps| stamps.value),
            first_timestamp: None,
            stamps: None,
            at_ms: self.now,
        };
        let (client, service) = (client_isn.wrapping_add(1), service_isn.wrapping_add(1));
        let (tuple, settings) = (self.tuple, &self.settings);
        self.state = match self.terminated {
            true => State::Terminated(Box::new(Terminated::new(tuple, handshake, client, service))),
            false => State::Watched(Box::new(Watched::new(tuple, handshake, client, service, settings))),
        };
    }

    /// A connection without a seen handshake. Client and server have all bytes before these
    /// sequence numbers.
    #[must_use]
    pub fn midway(
        tuple: Tuple,
        handshake: Handshake,
        client: u32,
        service: u32,
        settings: &Settings,
    ) -> Flow {
        let watched = Watched::new(tuple, handshake, client, service, settings);
        let state = State::Watched(Box::new(watched));
        Flow { now: handshake.at_ms, state, ..Flow::new(tuple, settings) }
    }

    /// The current limits. The BPF program sets the initial ones, which let only the handshake
    /// pass, by itself.
    #[must_use]
    pub fn limits(&self) -> Limits {
        match &self.state {
            State::Watched(watched) => watched.limits(),
            State::Terminated(terminated) => terminated.limits(),
            State::Opening | State::Over => Limits { ack: 0, data: 0, fin_at: None },
        }
    }

    /// The client has everything below `ack`. Call it for each copied segment of the client, before
    /// [`Flow::request`]; and with the last acknowledgement that the BPF program saw, before
    /// [`Flow::response`] and while [`Flow::wants_acknowledgement`].
    pub fn acknowledged(&mut self, ack: u32) {
        if let State::Watched(watched) = &mut self.state {
            watched.acknowledged(ack);
        }
    }

    /// Whether the next response waits until the client has acknowledged more of the earlier ones,
    /// which the record must keep until then.
    #[must_use]
    pub fn wants_acknowledgement(&self) -> bool {
        matches!(&self.state, State::Watched(watched) if watched.is_full)
    }

    /// Whether the flow waits for the rest of an object's first flight, for at most
    /// [`FLIGHT_PATIENCE`].
    #[must_use]
    pub fn awaits_flight(&self) -> bool {
        matches!(&self.state, State::Watched(watched) if watched.awaits_flight)
    }

    /// Whether the connection has no record yet ([`HANDSHAKE_PATIENCE`]).
    #[must_use]
    pub fn is_new(&self) -> bool {
        matches!(&self.state, State::Watched(watched) if !watched.is_known_to_store())
    }

    /// Sequence number from which the server's bytes are read. The flow keeps at most as many as
    /// are stored of one response; when this number advances, later bytes have to be passed in
    /// again.
    #[must_use]
    pub fn reads(&self) -> u32 {
        match &self.state {
            State::Watched(watched) => watched.reads(),
            State::Terminated(terminated) => terminated.service(),
            State::Opening | State::Over => 0,
        }
    }

    /// Bytes of the client at `seq`, in any order, with repetitions and overlaps; `fin`: a FIN
    /// follows them. The caller has verified the segment's checksum.
    pub fn request(&mut self, seq: u32, octets: &[u8], fin: bool, out: &mut Vec<Action>) {
        self.is_seen(out);
        if let State::Terminated(terminated) = &mut self.state {
            if let Err(reason) = terminated.request(seq, octets, fin, out) {
                self.let_go(reason, out);
            }
            return;
        }
        self.drive(out, |watched| watched.request(seq, octets, fin));
    }

    /// Bytes of the server at `seq`, held until released; `fin`: a FIN follows them.
    pub fn response(&mut self, seq: u32, octets: &[u8], fin: bool, out: &mut Vec<Action>) {
        self.is_seen(out);
        if let State::Terminated(terminated) = &mut self.state {
            if fin && let Err(reason) = terminated.fin(seq.wrapping_add(octets.len() as u32)) {
                self.let_go(reason, out);
            }
            return;
        }
        self.drive(out, |watched| watched.response(seq, octets, fin));
    }

    /// Result of [`Action::Store`] for this ticket: `kept` is false if the store failed.
    pub fn stored(&mut self, ticket: u64, kept: bool, out: &mut Vec<Action>) {
        if let State::Terminated(terminated) = &mut self.state {
            terminated.stored(ticket, kept, out);
        } else if let State::Watched(watched) = &mut self.state
            && (watched.stored(ticket, kept, out) || watched.settle(out))
        {
            self.state = State::Over;
        }
    }

    /// Advances the time to `now_ms` (Unix time, milliseconds): call it once after [`Flow::new`]
    /// and every few milliseconds from then on. A request without a response for 50 ms is stored
    /// alone and acknowledged.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.now = now_ms;
        if let State::Terminated(terminated) = &mut self.state {
            terminated.now = now_ms;
            terminated.tick(out);
        }
        self.drive(out, |watched| watched.tick());
    }

    /// Stores the record again, because the store's server died or the record's lifetime ends. If
    /// that fails, the former record stays.
    pub fn renew(&mut self, out: &mut Vec<Action>) {
        if let State::Terminated(terminated) = &mut self.state {
            terminated.renew();
            terminated.tick(out);
        }
        self.drive(out, |watched| {
            watched.renew();
            Ok(())
        });
    }

    /// Whether a record of another replica is newer than this flow: that replica has resumed the
    /// connection.
    #[must_use]
    pub fn is_behind(&self, other: &Age) -> bool {
        match &self.state {
            State::Opening => false,
            State::Watched(watched) => other.is_after(&watched.age()),
            State::Terminated(terminated) => terminated.age().is_some_and(|age| other.is_after(&age)),
            State::Over => true,
        }
    }

    /// Whether the server announced that it closes after the last response, or the client closed
    /// its direction.
    #[must_use]
    pub fn closes(&self) -> bool {
        match &self.state {
            State::Watched(watched) => watched.closes(),
            State::Terminated(terminated) => terminated.closes(),
            State::Opening | State::Over => false,
        }
    }

    /// Whether it is a TLS terminator's connection.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        self.terminated
    }

    /// The last stored record, with which this host can resume the connection. `None` while a store
    /// is in progress.
    #[must_use]
    pub fn settled(&self) -> Option<Record> {
        match &self.state {
            State::Watched(watched) => watched.settled(),
            State::Terminated(terminated) => terminated.settled(),
            State::Opening | State::Over => None,
        }
    }

    /// The record with which another host can resume the connection now. `None` unless it covers
    /// all data of the client.
    #[must_use]
    pub fn movable(&self) -> Option<Record> {
        match &self.state {
            State::Watched(watched) => watched.movable(),
            State::Terminated(terminated) => terminated.movable(),
            State::Opening | State::Over => None,
        }
    }

    /// Whether the server's FIN is held because it is in a place where none may pass. If the
    /// server's process is gone, it crashed; otherwise the caller has to call [`Flow::let_go`].
    #[must_use]
    pub fn ends_early(&self) -> bool {
        match &self.state {
            State::Watched(watched) => watched.ends_early(),
            State::Terminated(terminated) => terminated.ends_early(),
            State::Opening | State::Over => false,
        }
    }

    /// Ends the protection: stores the connection as unprotected, then lifts the limits.
    pub fn let_go(&mut self, reason: Reason, out: &mut Vec<Action>) {
        if let State::Terminated(terminated) = &mut self.state {
            terminated.give_up(reason, out);
            self.state = State::Over;
        }
        self.drive(out, |_| Err(reason));
    }

    /// The client closed (FIN acknowledged or RST).
    pub fn closed(&mut self, out: &mut Vec<Action>) {
        let is_known_to_store = match &self.state {
            State::Watched(watched) => watched.is_known_to_store(),
            State::Terminated(terminated) => terminated.is_known_to_store(),
            State::Opening | State::Over => false,
        };
        if is_known_to_store {
            out.push(Action::Forget);
        }
        self.state = State::Over;
    }

    /// Stores the terminator's record of a connection ([`Action::Answer`] has the result). Its sequence numbers count from the
    /// first byte of each direction; tuple, handshake and version are this flow's.
    pub fn submit(&mut self, asked: Asked, record: Record, out: &mut Vec<Action>) {
        match &mut self.state {
            State::Terminated(terminated) => terminated.submit(asked, record, out),
            _ => out.push(Action::Answer(asked, StoreOutcome::Unwatched)),
        }
    }

    /// The terminator ends the connection: its FIN stands at this number from the service's first byte, and may leave.
    pub fn end_at(&mut self, at: u32, out: &mut Vec<Action>) {
        if let State::Terminated(terminated) = &mut self.state {
            terminated.end_at(at, out);
        }
    }

    /// Ends the protection of a connection with an unseen handshake.
    fn is_seen(&mut self, out: &mut Vec<Action>) {
        if matches!(self.state, State::Opening) {
            out.push(Action::Unprotected(Reason::Unseen));
            self.state = State::Over;
        }
    }

    fn drive(&mut self, out: &mut Vec<Action>, step: impl FnOnce(&mut Watched) -> Result<(), Reason>) {
        let State::Watched(watched) = &mut self.state else { return };
        watched.now = self.now;
        if let Err(reason) = step(watched) {
            watched.give_up(reason);
        }
        if watched.settle(out) {
            self.state = State::Over;
        }
    }
}

/// Sequence number and options of a TCP header with SYN.
fn opening(tcp: &[u8]) -> Option<(u32, Options)> {
    let seq = u32::from_be_bytes(*tcp.get(4..8)?.first_chunk()?);
    let end = usize::from(tcp.get(12)? >> 4) * 4;
    Some((seq, Options::parse(tcp.get(20..end)?).ok()?))
}
