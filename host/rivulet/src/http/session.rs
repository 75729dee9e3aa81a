//! One HTTP connection as a function: from state and input to new state and promised answers.
//!
//! The state is what an input continuation carries: the next output offset, and the head that is
//! being read.

use std::io::ErrorKind;
use std::net::IpAddr;

use rivulet_transport::operation_id;

use rivulet_http::{RangeSpec, Selection};

use super::answer::{Answer, conditions};
use super::codec::{Malformed, Reader};
use super::head::{Fed, Head};
use super::lookup::Lookup;
use super::objects::Objects;
use super::upload::{Upload, Uploads, Written};
use super::{BodyKind, MAX_ANSWER, Method, Request, Status};

/// Version of the encoding; others are refused.
const VERSION: u8 = 4;

/// The files and uploads from which answers are made.
#[derive(Clone, Debug)]
pub struct Site {
    /// The served files.
    pub objects: Objects,
    /// Store of uploads; without it PUT and POST are refused.
    pub uploads: Option<Uploads>,
}

impl Site {
    /// A handle for a separate thread ([`Objects::for_thread`]).
    #[must_use]
    pub fn for_thread(&self) -> Site {
        let uploads = self.uploads.as_ref().map(|uploads| uploads.behind(self.objects.desk()));
        Site { objects: self.objects.for_thread(), uploads }
    }

    /// A handle for a caller with other work ([`Objects::patient_for`]).
    #[must_use]
    pub fn patient_for(&self, patience: std::time::Duration) -> Site {
        Site { objects: self.objects.patient_for(patience), uploads: self.uploads.clone() }
    }
}

/// Input of a stream, and its position.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Number of the connection.
    pub connection: u64,
    /// The client's address, for marks in pictures.
    pub client: IpAddr,
    /// Number of the stream in the connection.
    pub stream: u16,
    /// Offset of the first byte in the stream's input.
    pub offset: u64,
    /// The bytes of the input.
    pub data: &'a [u8],
    /// The client closes the stream after them.
    pub fin: bool,
}

/// The state of a connection between two inputs, which the client carries in its continuation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Output offset at which the next answer begins.
    pub next: u64,
    /// No further request is read.
    pub closed: bool,
    head: Head,
    /// Bytes of an ignored body that still have to be read.
    unread: u64,
    /// The body that is being received; its packets may arrive in any order.
    body: Option<Upload>,
}

/// An answer promised to the client, in the form that an output continuation carries.
#[derive(Debug, PartialEq, Eq)]
pub struct Promise {
    /// Output offset of its first byte.
    pub start: u64,
    /// Output offset after its last byte.
    pub end: u64,
    /// [`Answer::encode`], at most [`MAX_ANSWER`] bytes.
    pub answer: Vec<u8>,
}

/// What part of a request the session reads next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Between two requests.
    Nothing,
    /// A request's head.
    Head,
    /// A request's body.
    Body,
}

/// The result of an input.
#[derive(Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input that were consumed; the caller must pass the others again.
    pub consumed: usize,
    /// Input offset at which this session continues: after the consumed bytes, or after a body of
    /// which the input was another piece.
    pub goes_on: u64,
    /// The session is unchanged, so the client's continuation stays valid for the missing input.
    pub unchanged: bool,
    /// A request waits for content that is being read, or a body for the disk: the rest of the
    /// input must be passed again soon.
    pub waiting: bool,
}

impl Session {
    /// The state before the first byte of a connection; its output begins at `start`.
    #[must_use]
    pub fn new(start: u64) -> Session {
        Session { next: start, ..Session::default() }
    }

    /// The part of a request that is being read.
    #[must_use]
    pub fn reads(&self) -> Reads {
        if self.body.is_some() || self.unread > 0 {
            Reads::Body
        } else if self.head == Head::default() {
            Reads::Nothing
        } else {
            Reads::Head
        }
    }

    /// The input offsets for which this state is valid, both included: a single one between
    /// requests, all of a body within one. `at` is the offset at which the state was made.
    #[must_use]
    pub fn good_for(&self, at: u64) -> (u64, u64) {
        match &self.body {
            Some(body) => (body.start, body.start + body.length.max(1) - 1),
            None => (at, at),
        }
    }

    /// Parses requests from `input` and appends the promised answers to `promises`, up to `limit`
    /// in total. `date` is in seconds since 1970.
    pub fn feed(
        &mut self,
        input: &Input<'_>,
        site: &Site,
        date: u32,
        limit: usize,
        promises: &mut Vec<Promise>,
    ) -> Progress {
        let data = input.data;
        let mut progress = Progress { consumed: 0, goes_on: input.offset, unchanged: false, waiting: false };
        while !self.closed && promises.len() < limit {
            let rest = &data[progress.consumed..];
            if let Some(body) = self.body.take() {
                if !self.receive(body, rest, input.offset, site, &mut progress, promises) {
                    return progress;
                }
                continue;
            }
            if rest.is_empty() {
                break;
            }
            if self.unread > 0 {
                let most = self.unread.min(rest.len() as u64);
                self.unread -= most;
                progress.consumed += most as usize;
                continue;
            }
            let before = self.head.clone();
            match self.head.feed(rest) {
                Fed::More(n) => {
                    progress.consumed += n;
                    break;
                }
                Fed::Done(n, request) => {
                    let start = input.offset + (progress.consumed + n) as u64;
                    let id = operation_id(input.connection, input.stream, start);
                    let begun = self.begin(&request, site, id, start, date, promises);
                    if let Ok(Some(begun)) = begun {
                        self.body = begun;
                        progress.consumed += n;
                    } else if begun.is_err() {
                        self.head = before;
                        progress.waiting = true;
                        break;
                    } else if let Ok(answer) = Answer::new(&request, &site.objects, input.client, date) {
                        progress.consumed += n;
                        self.closed = answer.closes();
                        if !self.closed {
                            self.unread = request.body_length();
                            self.expected(&request, date, promises);
                        }
                        self.tell(answer, promises);
                    } else {
                        self.head = before;
                        progress.waiting = true;
                        break;
                    }
                }
            }
        }
        let all = progress.consumed == data.len();
        if self.closed {
            // Input after the last request is read and discarded (RFC 9112 section 9.6).
            progress.consumed = data.len();
        } else if input.fin && !progress.waiting && (all || promises.len() < limit) {
            self.closed = true;
            progress.consumed = data.len();
        }
        progress.goes_on = input.offset + progress.consumed as u64;
        progress
    }

    /// Begins a request with a body to store. `Some(None)`: it is refused; `None`: the request has
    /// no body to store. Promises an interim answer if the client asks for it.
    fn begin(
        &mut self,
        request: &Request,
        site: &Site,
        id: [u8; 16],
        start: u64,
        date: u32,
        promises: &mut Vec<Promise>,
    ) -> Result<Option<Option<Upload>>, NotYet> {
        let Some(uploads) = &site.uploads else { return Ok(None) };
        let Some(length) = request.content_length else { return Ok(None) };
        if request.refuse.is_some() || !matches!(request.method, Method::Put | Method::Post) {
            return Ok(None);
        }
        let path = String::from_utf8(request.path.clone());
        let refused = match &path {
            // The server could not create a file with this name on every system.
            Err(_) => Some(400),
            // A part of a file would replace the whole file (RFC 9110 section 14.5), and a coded
            // body is not the file (section 8.4).
            Ok(_) if request.body == BodyKind::Part => Some(400),
            Ok(_) if request.body == BodyKind::Coded => Some(415),
            Ok(path) => match uploads.refuses(path, length) {
                Some(status) => Some(status),
                None => (!holds(request, path, site, uploads)?).then_some(412),
            },
        };
        let path = match (refused, path) {
            (None, Ok(path)) => path,
            (refused, _) => {
                // The body is not read, so no request can follow it.
                self.tell(Answer::plain(Status(refused.unwrap_or(400)), true, date), promises);
                self.closed = true;
                return Ok(Some(None));
            }
        };
        self.expected(request, date, promises);
        let create = request.if_none_match.is_any();
        Ok(Some(Some(Upload { id, path, length, start, date, close: request.close, create })))
    }

    /// Stores a piece of a body. Returns `false` if nothing more can be done with this input.
    fn receive(
        &mut self,
        body: Upload,
        rest: &[u8],
        offset: u64,
        site: &Site,
        progress: &mut Progress,
        promises: &mut Vec<Promise>,
    ) -> bool {
        let Some(uploads) = &site.uploads else {
            self.tell(Answer::plain(Status(405), true, body.date), promises);
            self.closed = true;
            return true;
        };
        let at = (offset + progress.consumed as u64).saturating_sub(body.start);
        let most = body.length.saturating_sub(at).min(rest.len() as u64) as usize;
        if most == 0 && body.length > 0 {
            // The input had only the head.
            progress.goes_on = body.start;
            self.body = Some(body);
            return false;
        }
        match uploads.write(&body, at, &rest[..most]) {
            Ok(None) => {
                progress.waiting = true;
                progress.goes_on = body.start;
                progress.unchanged = at > 0;
                self.body = Some(body);
                false
            }
            Ok(Some(Written::Partly)) => {
                progress.consumed += most;
                progress.goes_on = body.start;
                progress.unchanged = at > 0;
                self.body = Some(body);
                false
            }
            Ok(Some(Written::Completely { replaced })) => {
                progress.consumed += most;
                // Statuses of RFC 9110 section 9.3.4.
                let status = Status(if replaced { 204 } else { 201 });
                self.tell(Answer::plain(status, body.close, body.date), promises);
                self.closed = body.close;
                progress.goes_on = body.start + body.length;
                // The missing piece arrived after the ones that follow it.
                at + most as u64 == body.length
            }
            Err(e) => {
                tracing::warn!(path = body.path, error = %e, "upload");
                let status = match e.kind() {
                    ErrorKind::PermissionDenied => 403,
                    ErrorKind::AlreadyExists if body.create => 412,
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => 507,
                    _ => 500,
                };
                self.tell(Answer::plain(Status(status), true, body.date), promises);
                self.closed = true;
                true
            }
        }
    }

    /// Promises `100 Continue` to a client that waits for it.
    fn expected(&mut self, request: &Request, date: u32, promises: &mut Vec<Promise>) {
        if request.expect_continue && request.body_length() > 0 {
            self.tell(Answer::plain(Status(100), false, date), promises);
        }
    }

    /// Appends an answer to the output.
    fn tell(&mut self, answer: Answer<'_>, promises: &mut Vec<Promise>) {
        let start = self.next;
        let end = start.saturating_add(answer.len());
        let mut encoded = Vec::with_capacity(MAX_ANSWER);
        answer.encode(&mut encoded);
        self.next = end;
        promises.push(Promise { start, end, answer: encoded });
    }

    /// Appends the encoding that [`Session::decode`] reads.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.push(u8::from(self.closed) | u8::from(self.body.is_some()) << 1);
        out.extend_from_slice(&self.next.to_be_bytes());
        out.extend_from_slice(&self.unread.to_be_bytes());
        match &self.body {
            Some(body) => body.encode(out),
            None => self.head.encode(out),
        }
    }

    /// Decodes the result of [`Session::encode`], which must be all of `input`.
    pub fn decode(input: &[u8]) -> Result<Session, Malformed> {
        let mut r = Reader(input);
        if r.u8()? != VERSION {
            return Err(Malformed);
        }
        let (bits, next, unread) = (r.u8()?, r.u64()?, r.u64()?);
        let mut session = Session { next, unread, closed: bits & 1 != 0, ..Session::default() };
        if bits & 2 == 0 {
            session.head = Head::decode(r.0)?;
        } else {
            session.body = Some(Upload::decode(&mut r)?);
            r.end()?;
        }
        Ok(session)
    }
}

/// The content must be read before a request's conditions can be evaluated.
struct NotYet;

/// Whether an upload's preconditions hold for the present content of its path.
fn holds(request: &Request, path: &str, site: &Site, uploads: &Uploads) -> Result<bool, NotYet> {
    if !request.if_match.present && !request.if_none_match.present {
        return Ok(true);
    }
    let (there, size) = match site.objects.lookup(path.as_bytes()) {
        Lookup::Found(object) => (Some(object.identity().hash), object.identity().size),
        Lookup::Pending => return Err(NotYet),
        // The path has something that is not served, so no entity tag matches it.
        _ => (uploads.exists(path).then_some([0; 16]), 0),
    };
    let selection = conditions(request, there.as_ref()).select(request.method, RangeSpec::All, size);
    Ok(selection != Selection::PreconditionFailed)
}

#[cfg(test)]
mod tests;
