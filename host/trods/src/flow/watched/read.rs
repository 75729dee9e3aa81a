//! Parses requests and responses, and computes how far a response may pass.

use rivulet_bpf::trods::MAX_FIELDS;

use super::{FLIGHT, FLIGHT_PATIENCE, GATE, OPTIONS, REQUEST_PATIENCE, Watched, blanks};
use crate::chunked;
use crate::flow::action::Reason;
use crate::head::{self, Framing, Method, RequestHead, ResponseHead};
use crate::record::{Body, MAX_CHECK, MAX_RECORD, MAX_RESPONSES, MAX_WHOLE, Response, Seen, UNKNOWN};

impl Watched {
    pub(super) fn read_requests(&mut self) -> Result<(), Reason> {
        while let Some(rest) = self.client.octets().get(self.parsed..).filter(|rest| !rest.is_empty()) {
            let Some(head) = head::request(rest)? else { break };
            if head.inputs {
                return Err(Reason::Inputs);
            }
            self.parsed += head.length;
            self.asked.push_back(head);
        }
        Ok(())
    }

    pub(super) fn read_responses(&mut self) -> Result<(), Reason> {
        (self.is_full, self.awaits_flight) = (false, false);
        while !self.server.octets().is_empty() {
            if let Some(last) = self.record.responses.last_mut().filter(|last| last.passed < last.length) {
                let next = pass(last, self.server.octets())?;
                self.server.advance(next);
            } else if !self.read_response()? {
                // A full record waits for the client's acknowledgement, not for the server.
                if !self.is_full && self.incomplete.is_none() {
                    self.incomplete = Some(self.now);
                }
                return Ok(());
            }
            self.changed = true;
            self.incomplete = None;
        }
        self.incomplete = None;
        Ok(())
    }

    /// Adds the next response to the record. Returns `false` if that has to wait.
    fn read_response(&mut self) -> Result<bool, Reason> {
        let octets = self.server.octets();
        let Some(asked) = self.asked.front() else { return Ok(false) };
        if self.record.responses.len() >= MAX_RESPONSES {
            self.is_full = true;
            return Ok(false);
        }
        let Some(head) = head::response(octets, asked.method)? else { return Ok(false) };
        if head.inputs
            && self.blanks.last().is_none_or(|(_, to)| to.wrapping_sub(self.server.start()) as i32 <= 0)
        {
            let found: Vec<_> = blanks(self.server.start(), octets).collect();
            if self.blanks.len() + found.len() > MAX_FIELDS {
                if self.record.responses.is_empty() {
                    return Err(Reason::TooLong);
                }
                self.is_full = true;
                return Ok(false);
            }
            self.blanks.extend(found);
            self.blanks_changed = true;
        }
        let rest = &octets[head.length..];
        let request = self.client.octets().get(..asked.length).unwrap_or_default();
        let close = head.close || asked.close;
        let (length, body) = if let Some(object) = head.object {
            let body = usize::try_from(object.length).unwrap_or(usize::MAX);
            let flight = FLIGHT * usize::from(self.record.handshake.mss.saturating_sub(OPTIONS));
            let wanted = body.saturating_add(head.length).min(flight).min(MAX_CHECK);
            let is_late = self.has_waited(FLIGHT_PATIENCE) || self.server.is_ended();
            if octets.len() < wanted && !is_late {
                self.awaits_flight = true;
                return Ok(false);
            }
            let seen = &rest[..rest.len().min(body)];
            let check = (seen.len() as u32, crc32c::crc32c(seen));
            let (request, head) = (request.to_vec(), octets[..head.length].to_vec());
            let length = head.len() as u64 + object.length;
            (length, Body::Object { request, head, check, digest: None })
        } else {
            let end = match head.framing {
                Framing::Length(length) => Some(length),
                Framing::Chunked => chunked::end(rest)?.map(|end| end as u64),
                Framing::Close => self.server.is_ended().then_some(rest.len() as u64),
            };
            let room = (MAX_WHOLE - head.length.min(MAX_WHOLE)) as u64;
            let is_short = end.map_or(octets.len() < MAX_WHOLE, |end| end <= room);
            if is_short && end.is_some_and(|end| end <= rest.len() as u64) {
                let whole = octets[..head.length + rest.len().min(end.unwrap_or(0) as usize)].to_vec();
                (whole.len() as u64, Body::Whole(whole))
            } else {
                let seen = self.generated(asked, &head);
                let is_late = seen.is_some() && self.has_waited(REQUEST_PATIENCE);
                if is_short && !is_late {
                    return Ok(false);
                }
                let seen = seen.ok_or(Reason::Dynamic)?;
                let length = end.filter(|_| head.framing != Framing::Chunked);
                let length = length.map_or(UNKNOWN, |length| head.length as u64 + length);
                let head = octets[..head.length].to_vec();
                (length, Body::Generated { request: request.to_vec(), head, seen })
            }
        };
        let passed = match &body {
            Body::Generated { head, .. } => head.len() as u64,
            Body::Object { .. } | Body::Whole(_) => length.min(GATE),
        };
        let response = Response { length, passed, close, body };
        let (passed, close, answered) = (response.passed, response.close, asked.length);
        // An upper bound: the response's request leaves the queue, so the record grows by less.
        let size = self.record.size() - self.record.requests.len() + self.client.octets().len() - answered
            + response.size();
        if size > MAX_RECORD && !self.record.responses.is_empty() {
            self.is_full = true;
            return Ok(false);
        }
        self.record.responses.push(response);
        self.closing = close;
        self.server.advance(passed);
        self.asked.pop_front();
        self.begun.push_back(self.client.start());
        self.client.advance(answered as u64);
        self.parsed -= answered;
        Ok(true)
    }

    /// The initial checksum state of a body that can be generated again; `None` for other bodies.
    fn generated(&self, asked: &RequestHead, head: &ResponseHead<'_>) -> Option<Seen> {
        let may = self.settings.deterministic || head.inputs;
        Seen::nothing(head.framing).filter(|_| may && asked.method == Method::Get)
    }
}

/// Releases further bytes of a response: all of `octets`, or as many as the flow has parsed where
/// it must find the body's end.
fn pass(response: &mut Response, octets: &[u8]) -> Result<u64, Reason> {
    let next = if let Body::Generated { seen, .. } = &mut response.body {
        let count = seen.read(octets)? as u64;
        if seen.is_over() {
            response.length = response.passed + count;
        }
        count
    } else {
        GATE.min(response.length - response.passed)
    };
    response.passed += next;
    Ok(next)
}
