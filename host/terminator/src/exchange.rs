//! The HTTP/1.1 of one connection: parses the client's bytes into requests to the server, and the
//! server's bytes into responses.
//!
//! The server gets one request at a time. The next request of a pipeline waits until the response
//! before it has ended, so each response belongs to a known request. This module does not read or
//! write sockets.

use std::net::SocketAddr;

use rivulet_http::Chunks;
use rivulet_tls::Response;

use crate::buffer::{Input, Output};
use crate::channel::Channel;
use crate::head::{Body, Forwarded, MAX_HEAD_BYTES, find_end, forward_request, parse_reply, without_inputs};

/// Ciphertext for the client that may wait to be written, bytes.
pub(crate) const MAX_OUTPUT_BYTES: usize = 128 << 10;
/// Bytes for the server that may wait to be written.
const MAX_UPLOAD_BYTES: usize = 64 << 10;

/// Events since the last call, for the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    pub(crate) requests: u64,
    /// Responses in records that another replica can make again, too.
    pub(crate) repeatable_responses: u64,
    /// Responses of unknown length, and responses over TLS 1.2.
    pub(crate) other_responses: u64,
    pub(crate) tunnels: u64,
    pub(crate) refused_requests: u64,
    pub(crate) bad_responses: u64,
}

/// Which part of a request the client's next bytes belong to.
#[derive(Debug)]
enum RequestPhase {
    /// A head is expected. The number counts its bytes that were already searched for its end.
    Head(usize),
    Body(Body),
    /// The request is complete, and its response is still incomplete.
    Complete,
    Tunnel,
}

/// Progress of the response.
#[derive(Debug)]
enum ReplyPhase {
    /// The server owes no response.
    Nothing,
    Head {
        is_head: bool,
        upgrade: bool,
        /// Number of bytes that were searched for the head's end.
        scanned: usize,
    },
    /// The rest of a response of known length, from this offset of its ciphertext on.
    Records {
        response: Response,
        offset: u64,
    },
    /// A body in records that end where the server's bytes end.
    Body(Body),
    Tunnel,
}

/// How the connection continues after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The connection continues with the next bytes.
    Open,
    /// The last response has ended: `close_notify`.
    Close,
    /// A response was cut. The connection ends without `close_notify`, so that the client does not
    /// take the response for complete.
    Abort,
    /// The server closed an idle connection just before the request, which must be sent on another
    /// connection.
    Repeat,
}

/// The requests and responses of one connection.
#[derive(Debug)]
pub(crate) struct Exchange {
    peer: SocketAddr,
    forwarded: Forwarded,
    /// Name in the client's certificate.
    pub(crate) client_name: Option<String>,
    request: RequestPhase,
    reply: ReplyPhase,
    /// The connection ends after this response.
    close: bool,
    /// Head of the request, while it may be sent again on another connection.
    repeatable: Vec<u8>,
    pub(crate) events: Events,
}

impl Exchange {
    pub(crate) fn new(peer: SocketAddr, forwarded: Forwarded) -> Self {
        Self {
            peer,
            forwarded,
            client_name: None,
            request: RequestPhase::Head(0),
            reply: ReplyPhase::Nothing,
            close: false,
            repeatable: Vec::new(),
            events: Events::default(),
        }
    }

    /// Whether a connection to the server is needed.
    pub(crate) fn needs_server(&self) -> bool {
        !matches!(self.reply, ReplyPhase::Nothing)
    }

    /// Whether no request has begun.
    pub(crate) fn is_idle(&self) -> bool {
        matches!((&self.request, &self.reply), (RequestPhase::Head(_), ReplyPhase::Nothing))
    }

    pub(crate) fn is_tunnel(&self) -> bool {
        matches!(self.reply, ReplyPhase::Tunnel)
    }

    /// Whether a response of known length is in progress.
    pub(crate) fn is_in_records(&self) -> bool {
        matches!(self.reply, ReplyPhase::Records { .. })
    }

    /// Whether no byte of the response was sent to the client, so that an error response is still
    /// possible.
    pub(crate) fn awaits_head(&self) -> bool {
        matches!(self.reply, ReplyPhase::Head { .. })
    }

    /// Whether the rest of a request's body is still to come.
    pub(crate) fn awaits_request(&self) -> bool {
        matches!(self.request, RequestPhase::Body(_))
    }

    /// Whether the request may be sent again on another connection to the server.
    pub(crate) fn is_repeatable(&self) -> bool {
        !self.repeatable.is_empty() && self.awaits_head()
    }

    /// Whether to read more of the client's data.
    pub(crate) fn wants_client(&self, waiting: usize) -> bool {
        match self.request {
            RequestPhase::Head(_) => waiting <= MAX_HEAD_BYTES,
            RequestPhase::Body(_) | RequestPhase::Tunnel => waiting < MAX_UPLOAD_BYTES,
            // Reads on, to notice the end of the client's data, but keeps at most one record of a
            // pipeline.
            RequestPhase::Complete => waiting == 0,
        }
    }

    /// Passes as much as possible of the client's data to the server.
    pub(crate) fn take_request(&mut self, data: &mut Vec<u8>, server: &mut Output) -> Result<(), u16> {
        let mut used = 0;
        let result = self.take(data, &mut used, server);
        data.drain(..used);
        result
    }

    fn take(&mut self, data: &[u8], used: &mut usize, server: &mut Output) -> Result<(), u16> {
        loop {
            let rest = &data[*used..];
            match &mut self.request {
                RequestPhase::Head(scanned) => {
                    if self.close || !matches!(self.reply, ReplyPhase::Nothing) {
                        return Ok(());
                    }
                    let Some(length) = find_end(rest, scanned) else {
                        return if rest.len() > MAX_HEAD_BYTES { Err(431) } else { Ok(()) };
                    };
                    if length > MAX_HEAD_BYTES {
                        return Err(431);
                    }
                    let start = server.bytes().len();
                    let request = forward_request(
                        &rest[..length],
                        self.peer,
                        (self.forwarded, self.client_name.as_deref()),
                        server.bytes(),
                    )
                    .map_err(|refused| refused.0)?;
                    self.repeatable.clear();
                    if request.is_repeatable {
                        self.repeatable.extend_from_slice(&server.bytes()[start..]);
                    }
                    *used += length;
                    self.close = request.close;
                    self.events.requests += 1;
                    self.reply =
                        ReplyPhase::Head { is_head: request.is_head, upgrade: request.upgrade, scanned: 0 };
                    self.request = match request.body {
                        Body::Length(0) => RequestPhase::Complete,
                        body => RequestPhase::Body(body),
                    };
                }
                RequestPhase::Body(body) => {
                    if rest.is_empty() || server.len() >= MAX_UPLOAD_BYTES {
                        return Ok(());
                    }
                    let rest = &rest[..rest.len().min(MAX_UPLOAD_BYTES)];
                    let count = read_body(body, rest).ok_or(400_u16)?;
                    server.bytes().extend_from_slice(&rest[..count]);
                    *used += count;
                    if is_ended(body) {
                        self.request = RequestPhase::Complete;
                    }
                }
                RequestPhase::Tunnel => {
                    if server.len() < MAX_UPLOAD_BYTES {
                        server.bytes().extend_from_slice(rest);
                        *used += rest.len();
                    }
                    return Ok(());
                }
                RequestPhase::Complete => return Ok(()),
            }
        }
    }

    /// Appends the head that must be sent again on a new connection to the server.
    pub(crate) fn put_request(&mut self, server: &mut Output) {
        server.bytes().extend_from_slice(&self.repeatable);
        if let ReplyPhase::Head { scanned, .. } = &mut self.reply {
            // Of the former connection's bytes.
            *scanned = 0;
        }
    }

    /// As [`put_request`](Self::put_request), for the last time.
    pub(crate) fn repeat_request(&mut self, server: &mut Output) {
        self.put_request(server);
        // Only one repetition: a second failure is not caused by an old connection.
        self.repeatable.clear();
    }

    /// Passes as much as possible of the server's bytes to the client.
    pub(crate) fn take_reply(
        &mut self,
        server: &mut Input,
        channel: &mut Channel,
        client: &mut Output,
    ) -> Progress {
        while client.len() < MAX_OUTPUT_BYTES {
            match &mut self.reply {
                ReplyPhase::Nothing => {
                    // Bytes without a request would become the response to the next one.
                    return if server.is_empty() { Progress::Open } else { Progress::Abort };
                }
                ReplyPhase::Head { scanned, .. } => {
                    let Some(length) = find_end(server.data(), scanned) else {
                        return if server.len() > MAX_HEAD_BYTES {
                            self.replace_reply(502, channel, client)
                        } else {
                            Progress::Open
                        };
                    };
                    if let Some(progress) = self.begin_reply(length, server, channel, client) {
                        return progress;
                    }
                }
                ReplyPhase::Records { response, offset } => {
                    while let Some(record) = response.record_at(*offset) {
                        // The head was sent already; the server's bytes are the body.
                        let length = (record.plaintext.end - record.plaintext.start) as usize;
                        let Some(plaintext) = server.data().get(..length) else { return Progress::Open };
                        channel.send_record(record.number, plaintext, client.bytes());
                        server.consume(length);
                        *offset = record.end();
                        if client.len() >= MAX_OUTPUT_BYTES {
                            break;
                        }
                    }
                    if response.record_at(*offset).is_some() {
                        return Progress::Open;
                    }
                    if let Some(progress) = self.end_reply() {
                        return progress;
                    }
                }
                ReplyPhase::Body(body) => {
                    let data = server.data();
                    if data.is_empty() {
                        return Progress::Open;
                    }
                    let Some(count) = read_body(body, data) else {
                        self.events.bad_responses += 1;
                        return Progress::Abort;
                    };
                    channel.send(&data[..count], client.bytes());
                    server.consume(count);
                    if is_ended(body)
                        && let Some(progress) = self.end_reply()
                    {
                        return progress;
                    }
                }
                ReplyPhase::Tunnel => {
                    let count = server.len();
                    channel.send(server.data(), client.bytes());
                    server.consume(count);
                    return Progress::Open;
                }
            }
        }
        Progress::Open
    }

    fn begin_reply(
        &mut self,
        length: usize,
        server: &mut Input,
        channel: &mut Channel,
        client: &mut Output,
    ) -> Option<Progress> {
        let ReplyPhase::Head { is_head, upgrade, scanned: _ } = self.reply else { return None };
        let head = without_inputs(&server.data()[..length]);
        let head = head.as_ref();
        let reply = parse_reply(head, is_head)
            .filter(|reply| length <= MAX_HEAD_BYTES && (reply.status != 101 || upgrade));
        let Some(reply) = reply else {
            self.events.bad_responses += 1;
            return Some(self.replace_reply(502, channel, client));
        };
        let known = match reply.body {
            Body::Length(body) => Some(body),
            _ => None,
        };
        let place = known.and_then(|body| channel.begin_response(head, body, client.bytes()));
        if let Some(response) = place {
            let offset = send_head(response, head, channel, client);
            self.reply = ReplyPhase::Records { response, offset };
        } else {
            channel.send(head, client.bytes());
            self.reply = ReplyPhase::Body(reply.body);
        }
        let is_placed = place.is_some();
        server.consume(length);
        match reply.status {
            101 => {
                (self.request, self.reply) = (RequestPhase::Tunnel, ReplyPhase::Tunnel);
                self.events.tunnels += 1;
                return None;
            }
            // Interim: the response is still to come.
            ..200 => {
                self.reply = ReplyPhase::Head { is_head, upgrade, scanned: 0 };
                return None;
            }
            _ if is_placed => self.events.repeatable_responses += 1,
            _ => self.events.other_responses += 1,
        }
        self.repeatable.clear();
        self.close |= reply.close;
        let is_ended = match &self.reply {
            ReplyPhase::Records { response, offset } => response.record_at(*offset).is_none(),
            ReplyPhase::Body(body) => is_ended(body),
            _ => false,
        };
        if is_ended { self.end_reply() } else { None }
    }

    fn end_reply(&mut self) -> Option<Progress> {
        self.reply = ReplyPhase::Nothing;
        // The client has not sent the whole body of an answered request, perhaps because it waits
        // for a 100. The connection cannot be kept, because the start of its next request is
        // unknown.
        if self.close || !matches!(self.request, RequestPhase::Complete) {
            self.close = true;
            return Some(Progress::Close);
        }
        self.request = RequestPhase::Head(0);
        None
    }

    /// Handles the end of the server's connection, after all of its bytes were taken.
    pub(crate) fn end_of_server(
        &mut self,
        is_reused: bool,
        server: &Input,
        channel: &mut Channel,
        client: &mut Output,
    ) -> Progress {
        match &self.reply {
            ReplyPhase::Nothing => Progress::Open,
            ReplyPhase::Head { .. } if is_reused && server.is_empty() && self.is_repeatable() => {
                Progress::Repeat
            }
            ReplyPhase::Head { .. } => {
                self.events.bad_responses += 1;
                self.replace_reply(502, channel, client)
            }
            ReplyPhase::Body(Body::Close) => self.end_reply().unwrap_or(Progress::Close),
            ReplyPhase::Tunnel => Progress::Close,
            ReplyPhase::Records { .. } | ReplyPhase::Body(_) => {
                self.events.bad_responses += 1;
                Progress::Abort
            }
        }
    }

    /// Sends an error response in place of the server's, and ends the connection. Sends nothing if
    /// a response has begun.
    pub(crate) fn replace_reply(
        &mut self,
        status: u16,
        channel: &mut Channel,
        client: &mut Output,
    ) -> Progress {
        if !matches!(self.reply, ReplyPhase::Nothing | ReplyPhase::Head { .. }) {
            return Progress::Abort;
        }
        let is_head = matches!(self.reply, ReplyPhase::Head { is_head: true, .. });
        let (head, body) = error_page(status);
        let shown = if is_head { "" } else { body.as_str() };
        match channel.begin_response(head.as_bytes(), shown.len() as u64, client.bytes()) {
            Some(response) => {
                let offset = send_head(response, head.as_bytes(), channel, client);
                if let Some(record) = response.record_at(offset) {
                    channel.send_record(record.number, shown.as_bytes(), client.bytes());
                }
            }
            None => channel.send(format!("{head}{shown}").as_bytes(), client.bytes()),
        }
        self.close = true;
        self.reply = ReplyPhase::Nothing;
        Progress::Close
    }
}

/// Seals the records of the head. Returns the offset of the ciphertext after them.
fn send_head(response: Response, head: &[u8], channel: &mut Channel, client: &mut Output) -> u64 {
    let mut offset = 0;
    while let Some(record) = response.record_at(offset)
        && record.plaintext.start < head.len() as u64
    {
        let plaintext = &head[record.plaintext.start as usize..record.plaintext.end as usize];
        channel.send_record(record.number, plaintext, client.bytes());
        offset = record.end();
    }
    offset
}

/// How many of these bytes belong to the body; `None` if they violate its transfer coding.
fn read_body(body: &mut Body, data: &[u8]) -> Option<usize> {
    match body {
        Body::Length(left) => {
            let count = data.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= count as u64;
            Some(count)
        }
        Body::Chunked(chunks) => chunks.read(data).ok(),
        Body::Close => Some(data.len()),
    }
}

fn is_ended(body: &Body) -> bool {
    match body {
        Body::Length(left) => *left == 0,
        Body::Chunked(chunks) => Chunks::is_done(chunks),
        Body::Close => false,
    }
}

fn error_page(status: u16) -> (String, String) {
    let reason = match status {
        400 => "Bad Request",
        408 => "Request Timeout",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    };
    let body = format!("{status} {reason}\n");
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head, body)
}
