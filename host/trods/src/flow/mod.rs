//! One connection, as the replica's interface sees it: which bytes may pass, and what has to be
//! stored before.
//!
//! The rule: no byte of the client's is acknowledged, and no byte of the server's passes, before
//! its meaning is stored. Requests are stored with the response that answers them, or alone if the
//! response is late. A response is stored when its head is there, because the rest can be requested
//! again; if it can only be generated again, it is stored as far as it has come. The data after a
//! response is held again, so a connection may last forever.

mod action;
mod stream;
mod watched;

use rivulet_plain::Options;

use self::watched::Watched;
use crate::record::{Age, Handshake, Record, Tuple};

pub use action::{Action, AdoptAs, Limits, Reason, Settings, Unknown, Wake};
pub use watched::{FLIGHT_PATIENCE, GATE, HANDSHAKE_PATIENCE, REQUEST_PATIENCE, RESPONSE_PATIENCE};

/// RFC 9293 section 3.7.1.
const DEFAULT_MSS: u16 = 536;

/// One client connection as the replica's interface sees it; sequence numbers are absolute (u32, wrapping).
#[derive(Debug)]
pub struct Flow {
    tuple: Tuple,
    settings: Settings,
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
    /// The connection has no limits any more, or is closed.
    Over,
}

impl Flow {
    /// A connection before its SYN.
    #[must_use]
    pub fn new(tuple: Tuple, settings: &Settings) -> Flow {
        Flow { tuple, settings: *settings, now: 0, syn: None, state: State::Opening }
    }

    /// A connection that this replica adopts at this time, from a record that is not unprotected.
    /// The first action in `out`, behind [`Action::Blank`], stores the record under this replica's
    /// name; nothing of a response may pass before ([`Flow::limits`] has that).
    #[must_use]
    pub fn resume(record: Record, settings: &Settings, now_ms: u64, out: &mut Vec<Action>) -> Flow {
        let (tuple, mut watched) = (record.tuple, Box::new(Watched::resume(record, settings)));
        let over = watched.begin(now_ms, out);
        let state = if over { State::Over } else { State::Watched(watched) };
        Flow { tuple, settings: *settings, now: now_ms, syn: None, state }
    }

    /// The client's SYN (the TCP header with its options).
    pub fn syn(&mut self, tcp: &[u8]) {
        if let (State::Opening, Some(syn)) = (&self.state, opening(tcp)) {
            self.syn = Some(syn);
        }
    }

    /// The kernel's SYN-ACK. Without a SYN before it the connection is not known.
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
        let watched = Watched::new(self.tuple, handshake, client, service, &self.settings);
        self.state = State::Watched(Box::new(watched));
    }

    /// A connection whose client and server continue at these sequence numbers, and have everything before them.
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
        Flow { tuple, settings: *settings, now: handshake.at_ms, syn: None, state }
    }

    /// The current limits: at first the end of the handshake, as the BPF program sets them by itself.
    #[must_use]
    pub fn limits(&self) -> Limits {
        match &self.state {
            State::Watched(watched) => watched.limits(),
            State::Opening | State::Over => Limits { ack: 0, data: 0, fin_at: None },
        }
    }

    /// The client has everything below `ack`. To be called for each segment of the client's that is copied up, before
    /// [`Flow::request`], and with the last one the BPF program saw before [`Flow::response`] and while
    /// [`Flow::wants_acknowledgement`].
    pub fn acknowledged(&mut self, ack: u32) {
        if let State::Watched(watched) = &mut self.state {
            watched.acknowledged(ack);
        }
    }

    /// Whether the next response waits until the client has more of those before, which the record must hold until then.
    #[must_use]
    pub fn wants_acknowledgement(&self) -> bool {
        matches!(&self.state, State::Watched(watched) if watched.is_full)
    }

    /// Whether the rest of an object's first flight is awaited, for [`FLIGHT_PATIENCE`].
    #[must_use]
    pub fn awaits_flight(&self) -> bool {
        matches!(&self.state, State::Watched(watched) if watched.awaits_flight)
    }

    /// Whether no record of the connection was made yet ([`HANDSHAKE_PATIENCE`]).
    #[must_use]
    pub fn is_new(&self) -> bool {
        matches!(&self.state, State::Watched(watched) if !watched.is_known_to_store())
    }

    /// Sequence number from which the server's bytes are read; at most as many are kept as are
    /// stored of one response. When it advances, later bytes have to be passed in again.
    #[must_use]
    pub fn reads(&self) -> u32 {
        match &self.state {
            State::Watched(watched) => watched.reads(),
            State::Opening | State::Over => 0,
        }
    }

    /// Bytes of the client at `seq`, in any order, with repetitions and overlaps; `fin` follows
    /// them. The segment's checksum has been verified.
    pub fn request(&mut self, seq: u32, octets: &[u8], fin: bool, out: &mut Vec<Action>) {
        self.is_seen(out);
        self.drive(out, |watched| watched.request(seq, octets, fin));
    }

    /// Bytes of the server at `seq`, held until released; `fin` follows them.
    pub fn response(&mut self, seq: u32, octets: &[u8], fin: bool, out: &mut Vec<Action>) {
        self.is_seen(out);
        self.drive(out, |watched| watched.response(seq, octets, fin));
    }

    /// The store kept the record of this ticket, or failed to.
    pub fn stored(&mut self, ticket: u64, kept: bool, out: &mut Vec<Action>) {
        if let State::Watched(watched) = &mut self.state
            && (watched.stored(ticket, kept, out) || watched.settle(out))
        {
            self.state = State::Over;
        }
    }

    /// The time, milliseconds of Unix time: call it once after [`Flow::new`] and every few
    /// milliseconds from then on. A request without a response for 50 ms is stored alone and
    /// acknowledged.
    pub fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.now = now_ms;
        self.drive(out, |watched| watched.tick());
    }

    /// Stores the record again, because its server died or its lifetime ends. If that fails, the
    /// former record stays.
    pub fn renew(&mut self, out: &mut Vec<Action>) {
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
            State::Over => true,
        }
    }

    /// Whether the server said that it ends the connection behind the last response, or the client ended its half.
    #[must_use]
    pub fn closes(&self) -> bool {
        matches!(&self.state, State::Watched(watched) if watched.closes())
    }

    /// The record with which this host can resume the connection: the last one stored. None while a
    /// store is in progress.
    #[must_use]
    pub fn settled(&self) -> Option<Record> {
        match &self.state {
            State::Watched(watched) => watched.settled(),
            State::Opening | State::Over => None,
        }
    }

    /// The record with which another host can resume the connection now, if it has all data of the
    /// client.
    #[must_use]
    pub fn movable(&self) -> Option<Record> {
        match &self.state {
            State::Watched(watched) => watched.movable(),
            State::Opening | State::Over => None,
        }
    }

    /// The server's FIN waits at a place where it may not pass. If the server's process is gone, it is a crash; else
    /// [`Flow::let_go`] is to be called.
    #[must_use]
    pub fn ends_early(&self) -> bool {
        matches!(&self.state, State::Watched(watched) if watched.ends_early())
    }

    /// Gives the connection up: stores it as unprotected, then lifts the limits.
    pub fn let_go(&mut self, reason: Reason, out: &mut Vec<Action>) {
        self.drive(out, |_| Err(reason));
    }

    /// The client closed (FIN acknowledged or RST).
    pub fn closed(&mut self, out: &mut Vec<Action>) {
        if let State::Watched(watched) = &self.state
            && watched.is_known_to_store()
        {
            out.push(Action::Forget);
        }
        self.state = State::Over;
    }

    /// A connection with a handshake that was not seen is not protected.
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
