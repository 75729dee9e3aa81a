//! The machine behind a [`Flow`](super::Flow) whose handshake is over.

use std::collections::VecDeque;

use super::action::{Action, Limits, Reason, Settings};
use super::stream::Stream;
use crate::chunked;
use crate::head::{self, Framing, RequestHead};
use crate::record::{
    Body, Handshake, MAX_RECORD, MAX_REQUESTS, MAX_RESPONSES, MAX_WHOLE, Record, Response, Tuple,
};

/// Octets of a response that are let pass at a time: an acknowledgement says which of them the client has, and the program
/// that compares sequence numbers has half of them to each side.
pub const GATE: u64 = 1 << 30;
/// Milliseconds after which a request is stored without its response.
pub const REQUEST_PATIENCE: u64 = 50;
/// Milliseconds after which the rest of a head, or of a response that could be stored whole, is not awaited any more.
pub const RESPONSE_PATIENCE: u64 = 250;
/// Milliseconds between attempts to store (`failure: closed`).
const RETRY: u64 = 100;

/// What was handed to the store.
#[derive(Debug)]
struct Storing {
    ticket: u64,
    /// What holds as soon as it is kept.
    limits: Limits,
    unprotected: bool,
}

#[derive(Debug)]
pub(super) struct Watched {
    pub now: u64,
    /// There is no room for another response in the record.
    pub is_full: bool,
    /// As it was handed out last, but for `responses` and `response_at`, which are as they are now.
    record: Record,
    /// From the first request that is not answered.
    client: Stream,
    /// From the first octet that may not pass.
    server: Stream,
    /// Whole heads of requests in `client`, and how many octets they are.
    asked: VecDeque<RequestHead>,
    parsed: usize,
    /// The last response said that the server closes.
    closing: bool,
    limits: Limits,
    storing: Option<Storing>,
    tickets: u64,
    /// Something waits to be stored.
    changed: bool,
    /// Up to here the client's octets, FIN among them, were handed to the store.
    covered: u32,
    /// Since when there are octets beyond.
    uncovered: Option<u64>,
    /// Since when the server's octets wait for more of them, or for a request.
    incomplete: Option<u64>,
    /// Not before this.
    retry_at: u64,
    giving_up: Option<Reason>,
    /// Where the server's FIN was.
    server_fin: Option<u32>,
}

impl Watched {
    pub fn new(tuple: Tuple, handshake: Handshake) -> Watched {
        let (client, service) = (handshake.client_isn.wrapping_add(1), handshake.service_isn.wrapping_add(1));
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
        };
        Watched::of(record, Limits { ack: client, data: service, fin_at: Some(service) })
    }

    pub fn resume(record: Record) -> Watched {
        let limits = Limits { ack: record.acknowledged(), data: record.response_at, fin_at: None };
        let mut watched = Watched::of(record, limits);
        let (at, fin) = (watched.record.request_at, watched.record.client_fin);
        watched.client.insert(at, &watched.record.requests, fin);
        watched.covered = watched.record.acknowledged();
        watched.closing = watched.record.responses.last().is_some_and(|response| response.close);
        watched.changed = true;
        watched
    }

    /// The first steps of a connection that was taken over.
    pub fn begin(&mut self, now: u64, out: &mut Vec<Action>) -> bool {
        self.now = now;
        if let Err(reason) = self.read_requests() {
            self.give_up(reason);
        }
        self.settle(out)
    }

    fn of(record: Record, limits: Limits) -> Watched {
        Watched {
            now: 0,
            is_full: false,
            client: Stream::new(record.request_at, MAX_REQUESTS),
            server: Stream::new(record.passed(), MAX_WHOLE),
            covered: record.request_at,
            record,
            asked: VecDeque::new(),
            parsed: 0,
            closing: false,
            limits,
            storing: None,
            tickets: 0,
            changed: false,
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

    pub fn is_known_to_store(&self) -> bool {
        self.record.version > 0
    }

    pub fn ends_early(&self) -> bool {
        let is_early = self.server_fin.is_some_and(|fin| self.limits.fin_at != Some(fin));
        is_early && self.storing.is_none() && !self.changed && self.giving_up.is_none()
    }

    pub fn acknowledged(&mut self, ack: u32) {
        self.record.drop_acknowledged(ack);
    }

    pub fn renew(&mut self) {
        self.changed |= self.is_known_to_store();
    }

    pub fn request(&mut self, seq: u32, octets: &[u8], fin: bool) -> Result<(), Reason> {
        self.client.insert(seq, octets, fin);
        self.read_requests()?;
        if self.client.is_full() {
            return Err(Reason::TooLong);
        }
        if self.arrived() != self.covered && self.uncovered.is_none() {
            self.uncovered = Some(self.now);
        }
        // Nothing will answer it.
        self.changed |= self.client.is_ended() && self.asked.is_empty() && self.arrived() != self.covered;
        // What was held may answer this.
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
            // Behind what is understood now there may be more of them.
            if self.server.start() == start {
                return Ok(());
            }
        }
    }

    pub fn tick(&mut self) -> Result<(), Reason> {
        self.read_responses()?;
        if self.incomplete.is_some_and(|since| self.now.saturating_sub(since) >= RESPONSE_PATIENCE) {
            return Err(if self.asked.is_empty() { Reason::Unasked } else { Reason::Dynamic });
        }
        Ok(())
    }

    pub fn give_up(&mut self, reason: Reason) {
        self.giving_up.get_or_insert(reason);
    }

    /// True if it is over.
    pub fn stored(&mut self, ticket: u64, kept: bool, settings: &Settings, out: &mut Vec<Action>) -> bool {
        let Some(storing) = self.storing.take_if(|storing| storing.ticket == ticket) else { return false };
        if !kept && settings.closed {
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

    /// Says what follows from what was learnt. True if it is over.
    pub fn settle(&mut self, out: &mut Vec<Action>) -> bool {
        if let Some(reason) = self.giving_up
            && !self.is_known_to_store()
        {
            out.push(Action::Unprotected(reason));
            return true;
        }
        if !self.may_end() {
            self.limit(Limits { fin_at: None, ..self.limits }, out);
        }
        let is_late = self.uncovered.is_some_and(|since| self.now.saturating_sub(since) >= REQUEST_PATIENCE);
        if self.storing.is_none()
            && (self.giving_up.is_some() || self.changed || is_late)
            && self.now >= self.retry_at
        {
            self.store(out);
        }
        false
    }

    fn store(&mut self, out: &mut Vec<Action>) {
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
        self.record.version += 1;
        self.tickets += 1;
        self.changed = false;
        self.uncovered = None;
        self.covered = self.record.acknowledged();
        let whole = self.record.responses.last().is_none_or(|last| last.passed == last.length);
        let passed = self.record.passed();
        let limits = Limits {
            ack: self.covered,
            data: passed,
            fin_at: Some(passed).filter(|_| whole && self.may_end()),
        };
        self.storing = Some(Storing { ticket: self.tickets, limits, unprotected: self.record.unprotected });
        out.push(Action::Store { ticket: self.tickets, record: Box::new(self.record.clone()) });
    }

    /// Whether the server may end the connection behind its last response.
    fn may_end(&self) -> bool {
        self.closing || self.client.octets().is_empty()
    }

    /// Behind what the client sent without a hole, FIN counted.
    fn arrived(&self) -> u32 {
        self.client.end().wrapping_add(u32::from(self.client.is_ended()))
    }

    fn limit(&mut self, limits: Limits, out: &mut Vec<Action>) {
        if limits != self.limits {
            self.limits = limits;
            out.push(Action::Limits(limits));
        }
    }

    fn read_requests(&mut self) -> Result<(), Reason> {
        while let Some(rest) = self.client.octets().get(self.parsed..).filter(|rest| !rest.is_empty()) {
            let Some(head) = head::request(rest)? else { break };
            self.parsed += head.length;
            self.asked.push_back(head);
        }
        Ok(())
    }

    fn read_responses(&mut self) -> Result<(), Reason> {
        self.is_full = false;
        while !self.server.octets().is_empty() {
            if let Some(last) = self.record.responses.last_mut().filter(|last| last.passed < last.length) {
                let next = GATE.min(last.length - last.passed);
                last.passed += next;
                self.server.advance(next);
            } else if !self.read_response()? {
                // A full record waits for the client, not for the server.
                if !self.is_full && self.incomplete.is_none() {
                    self.incomplete = Some(self.now);
                }
                return Ok(());
            }
            self.changed = true;
        }
        self.incomplete = None;
        Ok(())
    }

    /// Takes up one response. False if that has to wait.
    fn read_response(&mut self) -> Result<bool, Reason> {
        let octets = self.server.octets();
        let Some(asked) = self.asked.front() else { return Ok(false) };
        let Some(head) = head::response(octets, asked.method)? else { return Ok(false) };
        let rest = &octets[head.length..];
        let request = self.client.octets().get(..asked.length).unwrap_or_default();
        let (length, body) = if let Some(object) = head.object {
            let seen = &rest[..rest.len().min(usize::try_from(object.length).unwrap_or(usize::MAX))];
            let check = (seen.len() as u32, crc32c::crc32c(seen));
            let body =
                Body::Object { request: request.to_vec(), head: octets[..head.length].to_vec(), check };
            (head.length as u64 + object.length, body)
        } else {
            let end = match head.framing {
                Framing::Length(length) => Some(length),
                Framing::Chunked => chunked::end(rest)?.map(|end| end as u64),
                Framing::Close => self.server.is_ended().then_some(rest.len() as u64),
            };
            let room = (MAX_WHOLE - head.length.min(MAX_WHOLE)) as u64;
            match end {
                Some(end) if end > room => return Err(Reason::Dynamic),
                None if self.server.is_full() => return Err(Reason::Dynamic),
                Some(end) if end <= rest.len() as u64 => {
                    let whole = octets[..head.length + end as usize].to_vec();
                    (whole.len() as u64, Body::Whole(whole))
                }
                _ => return Ok(false),
            }
        };
        let response = Response { length, passed: length.min(GATE), close: head.close || asked.close, body };
        let (passed, close, answered) = (response.passed, response.close, asked.length);
        // Its request leaves the queue, so the record grows by less than this.
        let size = self.record.size() - self.record.requests.len() + self.client.octets().len() - answered
            + response.size();
        if self.record.responses.len() >= MAX_RESPONSES
            || size > MAX_RECORD && !self.record.responses.is_empty()
        {
            self.is_full = true;
            return Ok(false);
        }
        self.record.responses.push(response);
        self.closing = close;
        self.server.advance(passed);
        self.asked.pop_front();
        self.client.advance(answered as u64);
        self.parsed -= answered;
        Ok(true)
    }
}
