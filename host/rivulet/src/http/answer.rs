//! An answer: the inputs that determine every byte of one response.

use std::ffi::OsStr;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, UNIX_EPOCH};

use rivulet_http::{Conditions, EscapedPath, Selection};

use super::codec::{Malformed, Reader, put_bytes};
use super::lookup::Lookup;
use super::marks::{Kind, Mark};
use super::object::Identity;
use super::objects::{MAX_NAME, Objects};
use super::read_error::ReadError;
use super::{Method, Query, Request, Status};

/// Version of the encoding; others are refused.
const VERSION: u8 = 2;
/// Version of answers with a mark. Others keep [`VERSION`], so that replicas without marks can continue them.
const VERSION_MARKED: u8 = 3;
/// Longest encoding, bytes.
pub const MAX_ANSWER: usize = 64 + MAX_NAME + 25 + rivulet_watermark::MAX_PLACES;

const HEAD_ONLY: u8 = 1;
const CLOSE: u8 = 2;
const FILE: u8 = 4;
const QUERIED: u8 = 8;
const MARKED: u8 = 16;

/// A response not yet produced. Its encoding is what an output continuation carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    status: Status,
    head_only: bool,
    close: bool,
    /// Seconds since 1970 when the request was answered, for `Date`: fixed by the first replica, so
    /// that all produce the same head.
    date: u32,
    head_len: u16,
    /// The path of the request.
    name: &'a [u8],
    /// The target's query, for the location of a 301.
    query: Option<&'a [u8]>,
    file: Option<Part>,
    /// The mark of a picture; the file is the marked one then.
    mark: Option<Mark>,
}

/// A range of a content to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    identity: Identity,
    first: u64,
    len: u64,
}

impl<'a> Answer<'a> {
    /// Decides the answer to `request` of `client` at the time `date` (seconds since 1970). `Err` if the
    /// content is not hashed yet.
    pub fn new(
        request: &'a Request,
        objects: &Objects,
        client: IpAddr,
        date: u32,
    ) -> Result<Answer<'a>, ReadError> {
        let mut answer = Answer {
            status: Status(200),
            head_only: request.method == Method::Head,
            close: request.close,
            date,
            head_len: 0,
            name: b"",
            query: None,
            file: None,
            mark: None,
        };
        match (request.refuse, request.method) {
            (Some(status), _) => answer.status = status,
            (None, Method::Get | Method::Head) => answer.find(request, objects, client)?,
            (None, Method::Options) => answer.status = Status(204),
            (None, Method::Put | Method::Post) => {
                // The server does not read the body, so no request can follow it.
                answer.close = true;
                answer.status = Status(405);
            }
            (None, Method::Other) => {
                answer.close = true;
                answer.status = Status(501);
            }
        }
        let mut head = Vec::new();
        answer.write_head(&mut head);
        answer.head_len = head.len() as u16;
        Ok(answer)
    }

    /// An answer that consists of a status only.
    #[must_use]
    pub fn plain(status: Status, close: bool, date: u32) -> Answer<'static> {
        let mut answer = Answer {
            status,
            head_only: false,
            close,
            date,
            head_len: 0,
            name: b"",
            query: None,
            file: None,
            mark: None,
        };
        let mut head = Vec::new();
        answer.write_head(&mut head);
        answer.head_len = head.len() as u16;
        answer
    }

    fn find(&mut self, request: &'a Request, objects: &Objects, client: IpAddr) -> Result<(), ReadError> {
        self.name = &request.path;
        let object = match objects.lookup(&request.path) {
            Lookup::Found(object) => object,
            Lookup::Pending => return Err(ReadError::NotYet),
            Lookup::Directory => {
                self.status = Status(301);
                match &request.query {
                    Query::None => {}
                    Query::Is(query) => self.query = Some(query),
                    // A continuation cannot carry such a long query, and without it the location
                    // would differ.
                    Query::Long => self.status = Status(414),
                }
                return Ok(());
            }
            Lookup::Missing => {
                self.status = Status(404);
                return Ok(());
            }
            Lookup::Forbidden => {
                self.status = Status(403);
                return Ok(());
            }
            Lookup::Exhausted => {
                self.status = Status(503);
                return Ok(());
            }
        };
        let identity = match objects.kind(&request.path, &object, client)? {
            Kind::Plain => object.identity(),
            Kind::Marked(mark, identity) => {
                self.mark = Some(mark);
                identity
            }
            Kind::Unfit => {
                self.status = Status(500);
                return Ok(());
            }
        };
        let mut part = Part { identity, first: 0, len: identity.size };
        match conditions(request, Some(&identity.hash)).select(request.method, request.range, identity.size) {
            Selection::Whole => {}
            Selection::Part(first, len) => {
                self.status = Status(206);
                (part.first, part.len) = (first, len);
            }
            Selection::NotModified => self.status = Status(304),
            Selection::PreconditionFailed => self.status = Status(412),
            Selection::Unsatisfiable => self.status = Status(416),
        }
        self.file = Some(part);
        Ok(())
    }

    /// The status that the answer carries.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// The hash of the content to send; zero for answers without content.
    #[must_use]
    pub fn identity(&self) -> [u8; 16] {
        self.file.map_or([0; 16], |part| part.identity.hash)
    }

    /// Whether the connection ends after this answer.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.close
    }

    /// Bytes of the body, as in `Content-Length`.
    fn content_len(&self) -> u64 {
        match (self.status.0, &self.file) {
            (200 | 206, Some(part)) => part.len,
            _ => self.status.page().len() as u64,
        }
    }

    /// Bytes of the whole response, head and body.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a response is never empty")]
    pub fn len(&self) -> u64 {
        let body =
            if self.head_only || matches!(self.status.0, 100 | 204 | 304) { 0 } else { self.content_len() };
        u64::from(self.head_len).saturating_add(body)
    }

    /// Fills `out` with the bytes of the response from `offset` on.
    pub fn read(&self, offset: u64, out: &mut [u8], objects: &Objects) -> Result<(), ReadError> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len()) {
            return Err(ReadError::Beyond);
        }
        let head_len = u64::from(self.head_len);
        let mut out = out;
        let mut offset = offset;
        if offset < head_len && !out.is_empty() {
            let mut head = Vec::with_capacity(usize::from(self.head_len));
            self.write_head(&mut head);
            let rest = head.get(offset as usize..usize::from(self.head_len)).ok_or(ReadError::NotMine)?;
            let n = rest.len().min(out.len());
            let (now, later) = out.split_at_mut(n);
            now.copy_from_slice(&rest[..n]);
            out = later;
            offset += n as u64;
        }
        if out.is_empty() {
            return Ok(());
        }
        let at = offset - head_len;
        let Some(part) = self.file.filter(|_| matches!(self.status.0, 200 | 206)) else {
            let page = self.status.page().as_bytes();
            out.copy_from_slice(page.get(at as usize..at as usize + out.len()).ok_or(ReadError::Beyond)?);
            return Ok(());
        };
        let original = self.mark.map_or(part.identity, |mark| mark.original);
        let object = match objects.lookup_content(self.name, original) {
            Lookup::Found(object) if object.identity() == original => object,
            Lookup::Pending => return Err(ReadError::NotYet),
            _ => return Err(ReadError::NotMine),
        };
        let at = part.first.checked_add(at).ok_or(ReadError::Beyond)?;
        match &self.mark {
            Some(mark) => objects.read_marked(&object, self.name, mark, at, out),
            None => objects.read(&object, at, out),
        }
    }

    /// Writes the response head, which depends on the fields of `self` alone.
    fn write_head(&self, out: &mut Vec<u8>) {
        if self.status.0 == 100 {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            return;
        }
        let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(u64::from(self.date)));
        let status = self.status;
        // Writing to a Vec does not fail.
        let _ =
            write!(out, "HTTP/1.1 {} {}\r\nServer: rivulet\r\nDate: {date}\r\n", status.0, status.reason());
        if !matches!(status.0, 204 | 304) {
            let _ = write!(out, "Content-Length: {}\r\n", self.content_len());
        }
        match &self.file {
            Some(part) => {
                if matches!(status.0, 200 | 206) {
                    let _ = write!(out, "Content-Type: {}\r\n", content_type(self.name));
                }
                let _ = write!(
                    out,
                    "Accept-Ranges: bytes\r\nETag: \"{:032x}\"\r\n",
                    u128::from_be_bytes(part.identity.hash)
                );
                let size = part.identity.size;
                if status.0 == 206 {
                    let last = part.first + part.len.max(1) - 1;
                    let _ = write!(out, "Content-Range: bytes {}-{last}/{size}\r\n", part.first);
                } else if status.0 == 416 {
                    let _ = write!(out, "Content-Range: bytes */{size}\r\n");
                }
                if matches!(status.0, 412 | 416) {
                    let _ = write!(out, "Content-Type: text/plain\r\n");
                }
            }
            None => {
                match status.0 {
                    301 => {
                        let path = EscapedPath(self.name);
                        // A path with a final slash has its `index.html`, which is a folder itself
                        // here.
                        let index = if self.name.ends_with(b"/") { "index.html" } else { "" };
                        let _ = write!(out, "Location: {path}{index}/");
                        if let Some(query) = self.query {
                            let _ = write!(out, "?{}", percent_encoding::percent_encode(query, QUERY));
                        }
                        let _ = write!(out, "\r\n");
                    }
                    204 | 405 => {
                        let _ = write!(out, "Allow: GET, HEAD, OPTIONS\r\n");
                    }
                    _ => {}
                }
                if !status.page().is_empty() {
                    let _ = write!(out, "Content-Type: text/plain\r\n");
                }
            }
        }
        if self.mark.is_some() {
            // A shared cache must not send one client's mark to another client.
            let _ = write!(out, "Cache-Control: private\r\n");
        }
        let _ = write!(out, "Connection: {}\r\n\r\n", if self.close { "close" } else { "keep-alive" });
    }

    /// Appends the encoding for [`Answer::decode`], at most [`MAX_ANSWER`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.mark.is_some() { VERSION_MARKED } else { VERSION });
        let flag = |on, bit| if on { bit } else { 0 };
        out.push(
            flag(self.head_only, HEAD_ONLY)
                | flag(self.close, CLOSE)
                | flag(self.file.is_some(), FILE)
                | flag(self.query.is_some(), QUERIED)
                | flag(self.mark.is_some(), MARKED),
        );
        out.extend_from_slice(&self.status.0.to_be_bytes());
        out.extend_from_slice(&self.date.to_be_bytes());
        out.extend_from_slice(&self.head_len.to_be_bytes());
        if let Some(part) = &self.file {
            for field in [part.identity.size, part.first, part.len] {
                out.extend_from_slice(&field.to_be_bytes());
            }
            out.extend_from_slice(&part.identity.hash);
        }
        if let Some(mark) = &self.mark {
            mark.encode(out);
        }
        put_bytes(out, self.name);
        if let Some(query) = self.query {
            put_bytes(out, query);
        }
    }

    /// Decodes the result of [`Answer::encode`], which must be all of `input`.
    pub fn decode(input: &'a [u8]) -> Result<Answer<'a>, Malformed> {
        let mut r = Reader(input);
        let (version, flags) = (r.u8()?, r.u8()?);
        if version != if flags & MARKED != 0 { VERSION_MARKED } else { VERSION } {
            return Err(Malformed);
        }
        let (status, date, head_len) = (Status(r.u16()?), r.u32()?, r.u16()?);
        let file = if flags & FILE != 0 {
            let (size, first, len, hash) = (r.u64()?, r.u64()?, r.u64()?, r.array()?);
            if first.checked_add(len).is_none_or(|end| end > size) {
                return Err(Malformed);
            }
            Some(Part { identity: Identity { size, hash }, first, len })
        } else {
            None
        };
        let mark = if flags & MARKED != 0 { Some(Mark::decode(&mut r)?) } else { None };
        let name = r.text()?;
        let query = if flags & QUERIED != 0 { Some(r.text()?) } else { None };
        r.end()?;
        let (head_only, close) = (flags & HEAD_ONLY != 0, flags & CLOSE != 0);
        Ok(Answer { status, head_only, close, date, head_len, name, query, file, mark })
    }
}

/// The conditions of a request, evaluated for the content with this hash (`None`: no content).
pub(super) fn conditions(request: &Request, content: Option<&[u8; 16]>) -> Conditions {
    Conditions {
        if_match: request.if_match.names(content),
        if_none_match: request.if_none_match.names(content),
        if_range: request.if_range.names(content),
    }
}

/// Bytes of a query that must be escaped in a `Location`: those that a request line cannot have.
const QUERY: &percent_encoding::AsciiSet =
    &percent_encoding::CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>');

/// The media type for this name.
pub(crate) fn content_type(name: &[u8]) -> &'static str {
    let name = if name.ends_with(b"/") { b"index.html" } else { name };
    match mime_guess::from_path(OsStr::from_bytes(name)).first_raw() {
        Some("text/html") => "text/html; charset=utf-8",
        Some("text/plain") => "text/plain; charset=utf-8",
        Some(other) => other,
        None => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests;
