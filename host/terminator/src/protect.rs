//! The protection of one connection. TRODS's flow reads the plaintext and decides the order of
//! storing and sending. This module turns the flow's records into TLS states, and its limits into
//! the number of ciphertext bytes that may leave.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rivulet_pktio::repair::unacknowledged;
use rivulet_tls::State;
use rivulet_trods::record::{Body, Handshake};
use rivulet_trods::terminator::Request;
use rivulet_trods::{Action, Asked, Flow, Limits, Reason, Record, Settings, StoreOutcome, Tuple, flow};

use crate::channel::Records;
use crate::link::{Identity, Link};

/// Segment size from which the flow computes a first flight. The true size does not matter: the
/// flow waits at most ten milliseconds for a flight that is smaller.
const MSS: u16 = 1460;
/// Versions by which the first record at a new agent exceeds the last one at the former agent, which
/// may have stored that one again several times by itself.
const RENEWALS: u32 = 64;
/// Pause between two checks of the flow's timers.
const LOOK: Duration = Duration::from_millis(flow::REQUEST_PATIENCE + 1);
const SHORT_LOOK: Duration = Duration::from_millis(2);
const FLIGHT_LOOK: Duration = Duration::from_millis(flow::FLIGHT_PATIENCE + 1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Active,
    /// The record that ends the protection is being stored. Until it is, no further request reaches
    /// the server.
    GivingUp,
    Over,
}

/// The protection of a connection.
#[derive(Debug)]
pub(crate) struct Protection {
    link: Arc<Link>,
    connection: u64,
    tuple: Tuple,
    flow: Flow,
    actions: Vec<Action>,
    limits: Limits,
    phase: Phase,
    /// Number of the record that is being stored.
    ticket: Option<u64>,
    /// Whether the last record could not be stored.
    has_failed: bool,
    /// Bytes of the stream that may be written to the client.
    released: u64,
    /// For an adopted connection: the client's bytes before this position were available to the
    /// former replica, which may have executed requests in them. `None`: their number is unknown.
    earlier: Option<Option<u32>>,
    /// What a later process of the agent needs to watch the connection; `None` until the agent has
    /// stored a record of it.
    identity: Option<Identity>,
    /// Whether the connection is counted as one with a stored state.
    is_counted: bool,
    /// A request that must not be executed twice was received: the client must be reset.
    pub(crate) is_refused: bool,
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn settings(link: &Link) -> Settings {
    Settings { closed: link.holds(), ..Settings::default() }
}

impl Protection {
    /// Starts the protection of a connection after its handshake. The connection's state is stored
    /// at once.
    pub(crate) fn start(link: Arc<Link>, connection: u64, tuple: Tuple, records: &mut Records) -> Self {
        let now = now_ms();
        let handshake = Handshake {
            client_isn: 0,
            service_isn: 0,
            mss: MSS,
            scales: None,
            sack: false,
            timestamp: None,
            first_timestamp: None,
            stamps: None,
            at_ms: now.saturating_sub(flow::HANDSHAKE_PATIENCE),
        };
        let flow = Flow::midway(tuple, handshake, 0, 0, &settings(&link));
        records.track();
        let released = records.sent_offset();
        let mut protection = Self::of(link, connection, tuple, flow, released);
        protection.tick(now, records);
        protection
    }

    /// Starts the protection of a connection that continues from a state. `released`: bytes of the
    /// stream that may be written.
    pub(crate) fn resume(
        link: Arc<Link>,
        connection: u64,
        state: &State,
        released: u64,
        earlier: Option<Option<u32>>,
        identity: Option<Identity>,
        records: &mut Records,
    ) -> Self {
        let mut actions = Vec::new();
        let flow = Flow::resume(state.http.clone(), &settings(&link), now_ms(), &mut actions);
        let mut protection = Self::of(link, connection, state.tuple(), flow, released);
        (protection.actions, protection.earlier, protection.is_counted) = (actions, earlier, true);
        protection.identity = identity;
        if let Some(track) = records.tracked_mut() {
            track.forget_before(protection.flow.reads());
        }
        protection.act(records);
        protection
    }

    fn of(link: Arc<Link>, connection: u64, tuple: Tuple, flow: Flow, released: u64) -> Self {
        Self {
            link,
            connection,
            tuple,
            limits: flow.limits(),
            flow,
            actions: Vec::new(),
            phase: Phase::Active,
            ticket: None,
            has_failed: false,
            released,
            earlier: None,
            identity: None,
            is_counted: false,
            is_refused: false,
        }
    }

    /// Whether another replica could continue the connection.
    pub(crate) fn is_active(&self) -> bool {
        self.phase != Phase::Over
    }

    /// Whether requests have to wait until the end of the protection is stored.
    pub(crate) fn holds_requests(&self) -> bool {
        self.phase == Phase::GivingUp
    }

    /// Bytes of the stream that may be written to the client.
    pub(crate) fn released(&self) -> u64 {
        if self.is_active() { self.released } else { u64::MAX }
    }

    /// Takes bytes that the client sent. `records` has the end of their plaintext and whether more
    /// can follow.
    pub(crate) fn receive(
        &mut self,
        plaintext: &[u8],
        ended: bool,
        client: &TcpStream,
        written: u64,
        records: &Records,
    ) {
        let Some(track) = records.tracked().filter(|_| self.is_active()) else { return };
        let at = track.received.wrapping_sub(plaintext.len() as u64) as u32;
        self.acknowledge(client, written, records);
        self.flow.tick(now_ms(), &mut self.actions);
        self.flow.request(at, plaintext, ended, &mut self.actions);
        let was_active = self.phase == Phase::Active;
        self.act(records);
        if was_active && self.phase != Phase::Active {
            self.refuse_earlier(records);
        }
    }

    /// Takes the plaintext of the service that was sealed since the last call.
    pub(crate) fn send(&mut self, records: &mut Records) {
        let Some(track) = records.tracked_mut().filter(|_| self.phase != Phase::Over) else { return };
        if track.is_unplaced && self.phase == Phase::Active {
            self.give_up(Reason::Dynamic, records);
            return;
        }
        // Responses from before an adoption are stored already.
        track.forget_before(self.flow.reads());
        let (at, kept) = track.kept();
        if !kept.is_empty() {
            self.flow.tick(now_ms(), &mut self.actions);
            self.flow.response(at as u32, kept, false, &mut self.actions);
            track.forget_before(self.flow.reads());
            self.act(records);
        }
    }

    /// Handles the flow's timers that are due.
    pub(crate) fn look(&mut self, client: &TcpStream, written: u64, records: &mut Records) {
        if self.is_active() {
            if self.flow.wants_acknowledgement() {
                self.acknowledge(client, written, records);
            }
            self.tick(now_ms(), records);
            self.send(records);
            if self.has_failed && self.ticket.is_none() && self.link.is_attached() {
                // The agent had no room for the message.
                self.register(records);
            }
        }
    }

    /// Takes what the agent knows of the connection, which it has stored for the first time.
    pub(crate) fn identify(&mut self, identity: Identity) {
        self.identity.get_or_insert(identity);
    }

    /// Has an agent that has started watch the connection, and store its state.
    pub(crate) fn register(&mut self, records: &Records) {
        if self.is_active() && self.identity.is_some_and(|identity| !identity.is_known) {
            self.flow.renew(&mut self.actions);
            self.act(records);
        }
    }

    /// Whether timers must be checked even without an event.
    pub(crate) fn is_busy(&self) -> bool {
        let waits = self.flow.wants_acknowledgement() || self.flow.awaits_flight();
        self.is_active() && (waits || self.ticket.is_some() || self.has_failed || self.holds_requests())
    }

    /// When timers must be checked after an event.
    pub(crate) fn look_at(&self, now: Instant) -> Option<Instant> {
        let pause = if self.flow.wants_acknowledgement() {
            SHORT_LOOK
        } else if self.flow.awaits_flight() {
            FLIGHT_LOOK
        } else {
            LOOK
        };
        self.is_active().then(|| now + pause)
    }

    fn tick(&mut self, now: u64, records: &Records) {
        self.flow.tick(now, &mut self.actions);
        self.act(records);
    }

    /// Frees stored data that the client has acknowledged.
    fn acknowledge(&mut self, client: &TcpStream, written: u64, records: &Records) {
        let acked = unacknowledged(client).ok().and_then(|left| written.checked_sub(left.into()));
        if let Some(plaintext) = acked.and_then(|acked| records.tracked()?.plaintext_before(acked)) {
            self.flow.acknowledged(plaintext as u32);
        }
    }

    /// Takes the agent's answer to the record with this number.
    pub(crate) fn stored(&mut self, ticket: u64, outcome: StoreOutcome, records: &Records) {
        if self.ticket.take_if(|of| *of == ticket).is_none() {
            return;
        }
        match outcome {
            StoreOutcome::Unwatched => {
                self.link.counters.count_unprotected("unwatched");
                self.phase = Phase::Over;
            }
            StoreOutcome::Kept | StoreOutcome::Failed => {
                self.has_failed = outcome == StoreOutcome::Failed;
                if let Some(identity) = self.identity.as_mut().filter(|_| self.link.is_attached()) {
                    identity.is_known = true;
                }
                if !self.has_failed
                    && self.phase == Phase::Active
                    && !std::mem::replace(&mut self.is_counted, true)
                {
                    self.link.counters.count_protected();
                }
                self.flow.tick(now_ms(), &mut self.actions);
                self.settle(ticket, outcome == StoreOutcome::Kept);
                self.act(records);
            }
        }
    }

    /// Gives the flow the result of a store.
    fn settle(&mut self, ticket: u64, is_kept: bool) {
        if !is_kept {
            self.flow.set_closed(self.link.holds() || self.link.awaits_agent());
        }
        self.flow.stored(ticket, is_kept, &mut self.actions);
    }

    /// The connection to the agent is lost, and its answer will not come.
    pub(crate) fn lose_agent(&mut self, records: &Records) {
        if let Some(identity) = &mut self.identity {
            identity.is_known = false;
        }
        if let Some(ticket) = self.ticket.take() {
            self.has_failed = true;
            self.flow.tick(now_ms(), &mut self.actions);
            self.settle(ticket, false);
            self.act(records);
        }
    }

    /// Ends the protection, as soon as its end is stored.
    pub(crate) fn give_up(&mut self, reason: Reason, records: &Records) {
        if self.phase == Phase::Active {
            self.phase = Phase::GivingUp;
            self.flow.let_go(reason, &mut self.actions);
            self.act(records);
        }
    }

    /// Whether the connection may be closed after the sealed records.
    pub(crate) fn may_end(&self, records: &Records) -> bool {
        let sent = records.tracked().map(|track| track.sent as u32);
        self.phase == Phase::Active
            && self.limits.fin_at == Some(self.limits.data)
            && sent == Some(self.limits.data)
    }

    /// The connection ends after this byte of the stream.
    pub(crate) fn end(&mut self, offset: u64) {
        if self.is_active() {
            self.link.send(&Request::End(self.tuple, offset as u32));
            self.phase = Phase::Over;
        }
    }

    /// Has the agent reset the client's connection.
    pub(crate) fn reset(&mut self) {
        if self.is_active() {
            self.link.send(&Request::Reset(self.tuple));
            self.phase = Phase::Over;
        }
    }

    /// The state from which the connection continues here, once all received data is stored.
    pub(crate) fn movable(&self, records: &Records) -> Option<State> {
        records.state_of(self.flow.movable()?).filter(|_| self.phase == Phase::Active)
    }

    /// Ends this protection without a report, because another one replaces it. Returns what the
    /// agent knows of the connection.
    pub(crate) fn replace(&mut self) -> Option<Identity> {
        self.phase = Phase::Over;
        self.identity
    }

    fn act(&mut self, records: &Records) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                match action {
                    Action::Store { ticket, record } => self.store(ticket, *record, records),
                    Action::Limits(limits) => self.limit(limits, records),
                    Action::Unprotected(reason) => {
                        tracing::debug!(client = %self.tuple.client, ?reason, "unprotected");
                        self.link.send(&Request::Unprotected(self.tuple, reason));
                        self.link.counters.count_unprotected(reason.name());
                        self.phase = Phase::Over;
                    }
                    Action::Forget | Action::Blank(_) | Action::Answer(..) => {}
                }
            }
        }
    }

    /// Refuses a request that ends the protection if the former replica may have executed it.
    fn refuse_earlier(&mut self, records: &Records) {
        let Some(earlier) = self.earlier else { return };
        let begun = records.last_begun() as u32;
        self.is_refused |= earlier.is_none_or(|sent| (sent.wrapping_sub(begun) as i32) > 0);
    }

    fn store(&mut self, ticket: u64, record: Record, records: &Records) {
        if record.unprotected {
            self.phase = Phase::GivingUp;
        }
        let is_generated =
            |response: &rivulet_trods::record::Response| matches!(response.body, Body::Generated { .. });
        if record.responses.iter().any(is_generated) {
            // Not supported, because the records of such a response may end anywhere.
            self.flow.stored(ticket, false, &mut self.actions);
            self.give_up(Reason::Dynamic, records);
            return;
        }
        let Some(state) = records.state_of(record) else {
            tracing::warn!(client = %self.tuple.client, "a connection has no state");
            self.flow.stored(ticket, false, &mut self.actions);
            return;
        };
        let asked = Asked { connection: self.connection, ticket };
        let mut record = Box::new(state.stored_record());
        let request = match &mut self.identity {
            Some(identity) if !identity.is_known => {
                record.handshake = identity.handshake;
                record.version = identity.version.saturating_add(RENEWALS);
                Request::Register { asked, record, is_adopted: identity.is_adopted }
            }
            _ => Request::Store(asked, record),
        };
        if self.link.send(&request) {
            self.ticket = Some(ticket);
            if let Some(identity) = &mut self.identity {
                let renewals = if identity.is_known { 0 } else { RENEWALS };
                identity.version = identity.version.saturating_add(renewals + 1);
            }
        } else {
            self.has_failed = true;
            self.settle(ticket, false);
        }
    }

    fn limit(&mut self, limits: Limits, records: &Records) {
        self.limits = limits;
        if let Some(track) = records.tracked()
            && let Some(end) = track.stream_end(track.near_sent(limits.data))
        {
            self.released = self.released.max(end);
        }
    }
}

impl Drop for Protection {
    /// When a connection ends in another way, the agent deletes its record.
    fn drop(&mut self) {
        let is_known = self.identity.is_none_or(|identity| identity.is_known) || self.ticket.is_some();
        // An agent that does not know this connection may have given it to another worker.
        if self.is_active() && is_known {
            self.link.send(&Request::Unprotected(self.tuple, Reason::Closed));
        }
    }
}
