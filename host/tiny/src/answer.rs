//! An HTTP answer, any byte of which can be made from its output continuation and the site.

use core::fmt::Write;

use arrayvec::{ArrayString, ArrayVec};
use rivulet_http::{Method, Refused, RequestLine, Target};

use crate::site::{Site, TEXT_BYTES};

/// Version of the encoding; others are refused.
const VERSION: u8 = 1;
/// Length of an encoding without the text.
const FIXED: usize = 6;
/// Maximum length of an encoding.
pub(crate) const ENCODED: usize = FIXED + TEXT_BYTES;
/// Maximum length of an answer's head.
const HEAD: usize = 256;

/// The body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // a box would allocate
enum Body {
    /// A page of the site, by its index.
    Page(u8),
    /// A text that this answer carries.
    Text(ArrayString<TEXT_BYTES>),
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    status: u16,
    body: Body,
    /// The request was HEAD: the body is not sent.
    head_only: bool,
    /// The stream ends with this answer.
    pub closes: bool,
}

impl Answer {
    /// Answers a request for a target.
    pub fn new(
        site: &Site,
        report: impl FnOnce() -> ArrayString<TEXT_BYTES>,
        line: &RequestLine<'_>,
    ) -> Answer {
        let target = match (line.method, Target::parse(line.target, line.method)) {
            (_, Err(refused)) => return Answer::refusal(refused),
            (Method::Get | Method::Head, Ok(target)) => target,
            (Method::Other, _) => return Answer::refusal(Refused(501)),
            _ => return Answer::refusal(Refused(405)),
        };
        let is = |path: &str| path.as_bytes() == target.path.as_slice();
        let page = site.pages.iter().position(|page| is(page.path)).and_then(|i| u8::try_from(i).ok());
        let body = match page {
            Some(index) => Body::Page(index),
            None if site.report.is_some_and(|report| is(report.path)) => Body::Text(report()),
            None => return Answer { head_only: line.method == Method::Head, ..Answer::error(404) },
        };
        Answer { status: 200, body, head_only: line.method == Method::Head, closes: false }
    }

    /// The answer to a malformed request, after which the stream ends.
    pub fn refusal(refused: Refused) -> Answer {
        Answer { closes: true, ..Answer::error(refused.0) }
    }

    fn error(status: u16) -> Answer {
        let mut text = ArrayString::new();
        // The text has room for every reason.
        let _ = writeln!(text, "{status} {}", reason(status));
        Answer { status, body: Body::Text(text), head_only: false, closes: false }
    }

    /// A digest of the content; see [`crate::Page`]. A text travels with its continuation and needs none.
    pub fn identity(&self, identities: &[[u8; 16]]) -> [u8; 16] {
        match self.body {
            Body::Page(index) => identities.get(usize::from(index)).copied().unwrap_or_default(),
            Body::Text(_) => [0; 16],
        }
    }

    /// The bytes for an output continuation.
    pub fn encode(&self) -> ArrayVec<u8, ENCODED> {
        let (page, text) = match &self.body {
            Body::Page(index) => (*index, ""),
            Body::Text(text) => (u8::MAX, text.as_str()),
        };
        let [high, low] = self.status.to_be_bytes();
        let flags = [self.head_only, self.closes, matches!(self.body, Body::Page(_))];
        let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
        let fixed = [VERSION, flags, high, low, page, text.len() as u8];
        fixed.iter().chain(text.as_bytes()).copied().collect()
    }

    /// Reads the bytes of an output continuation. `None`: another server sealed them.
    pub fn decode(bytes: &[u8]) -> Option<Answer> {
        let (&[version, flags, high, low, page, _], text) = bytes.split_first_chunk::<FIXED>()?;
        if version != VERSION {
            return None;
        }
        let body = if flags & 4 != 0 {
            Body::Page(page)
        } else {
            Body::Text(ArrayString::from(core::str::from_utf8(text).ok()?).ok()?)
        };
        let status = u16::from_be_bytes([high, low]);
        Some(Answer { status, body, head_only: flags & 1 != 0, closes: flags & 2 != 0 })
    }

    /// Media type and bytes of the body. A page that the site does not have is empty.
    fn content<'a>(&'a self, site: &Site) -> (&'static str, &'a [u8]) {
        match &self.body {
            Body::Page(index) => {
                site.pages.get(usize::from(*index)).map_or(("", &[]), |page| (page.media_type, page.content))
            }
            Body::Text(text) => ("text/plain", text.as_bytes()),
        }
    }

    fn head(&self, site: &Site) -> ArrayString<HEAD> {
        let (media_type, content) = self.content(site);
        let mut head = ArrayString::new();
        let allow = if self.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let close = if self.closes { "Connection: close\r\n" } else { "" };
        let (status, reason, length) = (self.status, reason(self.status), content.len());
        // A media type that is longer than the room that is left would be the site's fault.
        let written = write!(
            head,
            "HTTP/1.1 {status} {reason}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\n{allow}{close}\r\n"
        );
        debug_assert!(written.is_ok(), "the head of {media_type} is too long");
        head
    }

    /// Length of head and body in bytes.
    pub fn len(&self, site: &Site) -> u64 {
        let body = if self.head_only { 0 } else { self.content(site).1.len() };
        (self.head(site).len() + body) as u64
    }

    /// Copies bytes of head and body from position `at` on into `out`, and returns how many.
    pub fn read(&self, site: &Site, at: u64, out: &mut [u8]) -> usize {
        let head = self.head(site);
        let body = if self.head_only { &[][..] } else { self.content(site).1 };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let mut copied = 0;
        for (part, skip) in [(head.as_bytes(), at), (body, at.saturating_sub(head.len()))] {
            let rest = part.get(skip..).unwrap_or_default();
            let length = rest.len().min(out.len() - copied);
            out[copied..copied + length].copy_from_slice(&rest[..length]);
            copied += length;
        }
        copied
    }
}

/// The reason phrase of a status code (RFC 9110 section 15).
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}
