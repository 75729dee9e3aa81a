//! The state machine of a [`Flow`](super::Flow) after the handshake.

mod read;

use std::collections::VecDeque;

use rivulet_bpf::trods::MAX_FIELDS;

use super::action::{Action, Limits, Reason, Settings, Wake};
use super::stream::Stream;
use crate::head::{self, RequestHead};
use crate::record::{Age, Body, Handshake, MAX_CHECK, MAX_RECORD, MAX_REQUESTS, Record, Tuple};

/// Limit on the bytes of a response that may pass ahead of the client's acknowledgement: the BPF
/// program compares sequence numbers, which works only within half of their range.
pub const GATE: u64 = 1 << 30;
/// Milliseconds after which a request is stored without its response, and a response that can be
/// generated again with the bytes that have arrived.
pub const REQUEST_PATIENCE: u64 = 50;
/// Milliseconds after which a connection is first stored, with or without a request. A response
/// that is stored earlier saves this write. If the replica dies earlier, the client is reset.
pub const HANDSHAKE_PATIENCE: u64 = 5;
/// Milliseconds for which the flow waits for the rest of a head, or of a response that is to be
/// stored whole.
pub const RESPONSE_PATIENCE: u64 = 250;
/// Milliseconds for which the flow waits for the rest of an object's first flight: it comes with
/// the head, unless the server is slow or the client's window small.
pub const FLIGHT_PATIENCE: u64 = 10;
/// Segments of a first flight to wait for: a server that sends the head in a separate segment has
/// fewer than ten for the body.
const FLIGHT: usize = 8;
/// TCP options in each data segment (timestamps), bytes.
const OPTIONS: u16 = 12;
/// Milliseconds between attempts to store while the store fails (`failure: closed`).
const RETRY: u64 = 100;

/// A record that was sent to the store and is not confirmed yet.
#[derive(Debug)]
struct Storing {
    ticket: u64,
    /// The limits that apply once the store has confirmed the record.
    limits: Limits,
    unprotected: bool,
    /// The state was stored before and is only refreshed, so no data waits for it.
    renewal: bool,
}

#[derive(Debug)]
pub(super) struct Watched {
    pub now: u64,
    settings: Settings,
    /// The record has no room for another response.
    pub is_full: bool,
    /// The head of an object has arrived, and its first flight is incomplete.
    pub awaits_flight: bool,
    /// The record as last sent to the store, but for `responses` and `response_at`, which are
    /// current.
    record: Record,
    /// Header fields with inputs in responses that the client may not have yet, and whether
    /// [`Action::Blank`] must be emitted.
    blanks: Vec<(u32, u32)>,
    blanks_changed: bool,
    /// The client's bytes from the first unanswered request on.
    client: Stream,
    /// The server's bytes from the first withheld byte on.
    server: Stream,
    /// Heads of complete requests in `client`, with their lengths.
    asked: VecDeque<RequestHead>,
    parsed: usize,
    /// Sequence numbers at which the requests of the stored responses begin ([`Wake::Client`]).
    begun: VecDeque<u32>,
    /// The last response announced that the server will close (`Connection: close`).
    closing: bool,
    limits: Limits,
    storing: Option<Storing>,
    tickets: u64,
    /// There is new state to store.
    changed: bool,
    /// The record is due to be stored again.
    renews: bool,
    /// End of the client's bytes (FIN included) that are in the stored record or in the one being
    /// stored.
    covered: u32,
    /// Since when the client's data is ahead of `covered`, Unix milliseconds.
    uncovered: Option<u64>,
    /// Since when bytes of the server wait for further ones, or for a request, Unix milliseconds.
    incomplete: Option<u64>,
    /// Earliest time of the next attempt to store, Unix milliseconds.
    retry_at: u64,
    giving_up: Option<Reason>,
    /// Sequence number of the server's FIN.
    server_fin: Option<u32>,
}

impl Watched {
    pub fn new(
        tuple: Tuple,
        handshake: Handshake,
        client: u32,
        service: u32,
        settings: &Settings,
    ) -> Watched {
        let record = Record {
            tuple,
            handshake,
            version: 0,
            unprotected: false,
            response_at: service,
            responses: Vec::new(),
            request_at: client,
            requests: Vec::new(),
            client_fin: false,
            tls: None,
        };
        let begun = record.handshake.at_ms;
        let limits = Limits { ack: client, data: service, fin_at: Some(service) };
        // Stored early, because an idle client's next segment may reach another replica, which then
        // needs the state.
        Watched { uncovered: Some(begun), ..Watched::of(record, settings, limits) }
    }

    pub fn resume(record: Record, settings: &Settings) -> Watched {
        let limits = Limits { ack: record.acknowledged(), data: record.response_at, fin_at: None };
        let mut watched = Watched::of(record, settings, limits);
        let (at, fin) = (watched.record.request_at, watched.record.client_fin);
        watched.client.insert(at, &watched.record.requests, fin);
        watched.covered = watched.record.acknowledged();
        watched.closing = watched.record.responses.last().is_some_and(|response| response.close);
        watched.changed = true;
        let mut at = watched.record.response_at;
        for response in &watched.record.responses {
            let (Body::Object { head, .. } | Body::Generated { head, .. } | Body::Whole(head)) =
                &response.body;
            watched.blanks.extend(blanks(at, head));
            at = at.wrapping_add(response.passed as u32);
        }
        // The BPF program has room for this many per connection; only another version of this
        // program stores more.
        watched.blanks.truncate(MAX_FIELDS);
        watched.blanks_changed = !watched.blanks.is_empty();
        watched
    }

    /// Emits the first actions of an adopted connection.
    pub fn begin(&mut self, now: u64, out: &mut Vec<Action>) -> bool {
        self.now = now;
        if let Err(reason) = self.read_requests() {
            self.give_up(reason);
        }
        self.settle(out)
    }

    fn of(record: Record, settings: &Settings, limits: Limits) -> Watched {
        Watched {
            now: 0,
            settings: *settings,
            is_full: false,
            awaits_flight: false,
            client: Stream::new(record.request_at, MAX_REQUESTS),
            server: Stream::new(record.passed(), MAX_CHECK),
            covered: record.request_at,
            record,
            blanks: Vec::new(),
            blanks_changed: false,
            asked: VecDeque::new(),
            parsed: 0,
            begun: VecDeque::new(),
            closing: false,
            limits,
            storing: None,
            tickets: 0,
            changed: false,
            renews: false,
            uncovered: None,
            incomplete: None,
            retry_at: 0,
            giving_up: None,
            server_fin: None,
        }
    }

    pub fn limits(&self) -> Limits {
        self.limits
    }

    pub fn age(&self) -> Age {
        self.record.age()
    }

    pub fn reads(&self) -> u32 {
        self.server.start()
    }

    pub fn closes(&self) -> bool {
        self.closing || self.client.is_ended()
    }

    pub fn settled(&self) -> Option<Record> {
        let settled = self.storing.is_none() && !self.changed && self.giving_up.is_none();
        settled.then(|| self.record.clone())
    }

    /// `None` while data has arrived that is not stored: it is unacknowledged, so the client would
    /// notice the move only by its retransmission timer. `None` also for a connection that is about
    /// to end.
    pub fn movable(&self) -> Option<Record> {
        let ends = self.client.is_ended() || self.server_fin.is_some();
        let is_whole = self.arrived() == self.covered && self.is_known_to_store();
        self.settled().filter(|_| is_whole && !ends)
    }

    pub fn is_known_to_store(&self) -> bool {
        self.record.version > 0
    }

    pub fn ends_early(&self) -> bool {
        let is_early = self.server_fin.is_some_and(|fin| self.limits.fin_at != Some(fin));
        is_early && self.storing.is_none() && !self.changed && self.giving_up.is_none()
    }

    pub fn acknowledged(&mut self, ack: u32) {
        self.record.drop_acknowledged(ack);
        let count = self.blanks.len();
        self.blanks.retain(|(_, to)| ack.wrapping_sub(*to) as i32 <= 0);
        self.blanks_changed |= count != self.blanks.len();
    }

    pub fn set_closed(&mut self, closed: bool) {
        self.settings.closed = closed;
    }

    pub fn renew(&mut self) {
        self.renews = self.is_known_to_store();
    }

    pub fn request(&mut self, seq: u32, octets: &[u8], fin: bool) -> Result<(), Reason> {
        let was_covered = self.arrived() == self.covered;
        self.client.insert(seq, octets, fin);
        self.read_requests()?;
        if self.client.is_full() {
            return Err(Reason::TooLong);
        }
        if self.arrived() != self.covered && (self.uncovered.is_none() || was_covered) {
            self.uncovered = Some(self.now);
        }
        // Every request is answered, so no response will store the rest of the client's data with
        // it.
        self.changed |= self.client.is_ended() && self.asked.is_empty() && self.arrived() != self.covered;
        // The server's bytes that are held may answer this request.
        self.read_responses()
    }

    pub fn response(&mut self, seq: u32, octets: &[u8], fin: bool) -> Result<(), Reason> {
        if fin {
            self.server_fin = Some(seq.wrapping_add(octets.len() as u32));
        }
        loop {
            let start = self.server.start();
            self.server.insert(seq, octets, fin);
            self.read_responses()?;
            // Parsing went on, so there may be a further response.
            if self.server.start() == start {
                return Ok(());
            }
        }
    }

    /// Whether bytes of the server have waited for the rest of a head or response for `patience`
    /// milliseconds.
    fn has_waited(&self, patience: u64) -> bool {
        self.incomplete.is_some_and(|since| self.now.saturating_sub(since) >= patience)
    }

    pub fn tick(&mut self) -> Result<(), Reason> {
        self.read_responses()?;
        let is_late = self.has_waited(RESPONSE_PATIENCE);
        // A full record waits for the client's acknowledgement, not for the server.
        if is_late && !self.is_full {
            return Err(if self.asked.is_empty() { Reason::Unasked } else { Reason::Dynamic });
        }
        Ok(())
    }

    pub fn give_up(&mut self, reason: Reason) {
        self.giving_up.get_or_insert(reason);
    }

    /// Returns whether the connection is over.
    pub fn stored(&mut self, ticket: u64, kept: bool, out: &mut Vec<Action>) -> bool {
        let Some(storing) = self.storing.take_if(|storing| storing.ticket == ticket) else { return false };
        if !kept && storing.renewal {
            // The caller's check for stale records will renew it again.
            return false;
        }
        if !kept && self.settings.closed {
            self.changed = true;
            self.retry_at = self.now + RETRY;
            return false;
        }
        let reason = if kept { None } else { Some(Reason::Store) };
        if storing.unprotected || !kept {
            out.push(Action::Unprotected(self.giving_up.or(reason).unwrap_or(Reason::Store)));
            out.push(Action::Forget);
            return true;
        }
        let fin_at = storing.limits.fin_at.filter(|_| self.may_end());
        self.limit(Limits { fin_at, ..storing.limits }, out);
        false
    }

    /// Emits the actions that follow from new input. Returns whether the connection is over.
    pub fn settle(&mut self, out: &mut Vec<Action>) -> bool {
        if std::mem::take(&mut self.blanks_changed) {
            out.push(Action::Blank(self.blanks.clone()));
        }
        if let Some(reason) = self.giving_up
            && !self.is_known_to_store()
        {
            out.push(Action::Unprotected(reason));
            return true;
        }
        if !self.may_end() {
            self.limit(Limits { fin_at: None, ..self.limits }, out);
        }
        if self.settings.wake == Wake::Client && self.storing.is_none() {
            let ack = self.acknowledges();
            self.limit(Limits { ack, ..self.limits }, out);
        }
        let patience = if self.is_known_to_store() { REQUEST_PATIENCE } else { HANDSHAKE_PATIENCE };
        let is_late = self.uncovered.is_some_and(|since| self.now.saturating_sub(since) >= patience);
        let is_new = self.giving_up.is_some() || self.changed || is_late;
        if self.storing.is_none() && (is_new || self.renews) && self.now >= self.retry_at {
            self.store(!is_new, out);
        }
        false
    }

    fn store(&mut self, renewal: bool, out: &mut Vec<Action>) {
        self.record.request_at = self.client.start();
        self.record.requests.clear();
        self.record.requests.extend_from_slice(self.client.octets());
        self.record.client_fin = self.client.is_ended();
        if self.record.size() > MAX_RECORD {
            self.give_up(Reason::TooLong);
        }
        if self.giving_up.is_some() {
            self.record.unprotected = true;
            self.record.responses.clear();
            self.record.requests.clear();
        }
        self.record.version = self.record.version.saturating_add(1);
        self.tickets += 1;
        (self.changed, self.renews) = (false, false);
        self.uncovered = None;
        self.covered = self.record.acknowledged();
        let whole = self.record.responses.last().is_none_or(|last| last.passed == last.length);
        let passed = self.record.passed();
        let limits = Limits {
            ack: self.acknowledges(),
            data: passed,
            fin_at: Some(passed).filter(|_| whole && self.may_end()),
        };
        let unprotected = self.record.unprotected;
        // Input that arrived since the renewal was requested is stored with it.
        let renewal = renewal && !unprotected && limits == self.limits;
        self.storing = Some(Storing { ticket: self.tickets, limits, unprotected, renewal });
        out.push(Action::Store { ticket: self.tickets, record: Box::new(self.record.clone()) });
    }

    /// Highest acknowledgement number that the stored record allows.
    fn acknowledges(&mut self) -> u32 {
        if self.settings.wake == Wake::Server {
            return self.covered;
        }
        while self.begun.len() > self.record.responses.len() {
            self.begun.pop_front();
        }
        self.begun.front().copied().unwrap_or(self.client.start())
    }

    /// Whether the server may close after its last response.
    fn may_end(&self) -> bool {
        self.closing || self.client.octets().is_empty()
    }

    /// Sequence number after the client's contiguous data, FIN included.
    fn arrived(&self) -> u32 {
        self.client.end().wrapping_add(u32::from(self.client.is_ended()))
    }

    fn limit(&mut self, limits: Limits, out: &mut Vec<Action>) {
        if limits != self.limits {
            self.limits = limits;
            out.push(Action::Limits(limits));
        }
    }
}

/// Sequence numbers of the header fields with inputs in a response that begins at `at`.
fn blanks(at: u32, octets: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    head::inputs_of(octets)
        .map(move |field| (at.wrapping_add(field.start as u32), at.wrapping_add(field.end as u32)))
}
