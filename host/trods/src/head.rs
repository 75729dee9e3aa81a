//! Parser for HTTP/1 heads (RFC 9112), as far as needed to find where messages end and whether a
//! response can be requested again.
//!
//! [`rivulet_http`] reads the lines. Heads that another parser might understand differently are
//! refused here: the server must see the same requests as this agent.

use std::ops::Range;

use rivulet_http::{Field, RequestLine, StatusLine};

use crate::flow::Reason;

#[cfg(test)]
mod beside;
mod inputs;
mod repeat;

pub use inputs::INPUTS;
use inputs::is_inputs;
pub(crate) use repeat::same_request;
pub use repeat::{is_bound, range_request, repeated_request};

/// Limit on the length of a head, bytes.
pub const MAX_HEAD: usize = 2048;
/// Limit on the fields of a head.
const MAX_FIELDS: usize = 64;

/// Method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
}

/// The head of a request without a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Length in bytes, including empty lines before the head.
    pub length: usize,
    /// Its method.
    pub method: Method,
    /// The connection closes after the response.
    pub close: bool,
    /// The head has fields with inputs ([`INPUTS`]), which only an adopting agent may send.
    pub inputs: bool,
}

/// Where the body of a response ends (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// A fixed number of bytes.
    Length(u64),
    /// Chunked coding.
    Chunked,
    /// The body ends when the server closes the connection.
    Close,
}

/// The part of an object that a response carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object<'a> {
    /// The strong entity tag, quotes included.
    pub etag: &'a [u8],
    /// `Content-Encoding`.
    pub encoding: Option<&'a [u8]>,
    /// Offset of the part's first byte in the object.
    pub first: u64,
    /// Length of the part, bytes.
    pub length: u64,
    /// Length of the whole object, bytes.
    pub total: u64,
}

/// The head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead<'a> {
    /// Length of the head, bytes.
    pub length: usize,
    /// The status code, 200 or above.
    pub status: u16,
    /// How the end of the body is found.
    pub framing: Framing,
    /// The object and part that the body carries; `None` if the head does not name both.
    pub object: Option<Object<'a>>,
    /// Whether the head lists the inputs from which the response was generated ([`INPUTS`]).
    pub inputs: bool,
    /// The server closes the connection after the response.
    pub close: bool,
}

/// Parses the head at the beginning of a client's bytes; `None` if it is incomplete.
///
/// # Errors
/// Why such a request cannot be protected.
pub fn request(octets: &[u8]) -> Result<Option<RequestHead>, Reason> {
    // Empty lines before a request are ignored (RFC 9112 section 2.2).
    let lead = octets.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
    let rest = &octets[lead..];
    if rest.first() == Some(&22) {
        return Err(Reason::Tls);
    }
    let begins = |with: &[u8]| rest.starts_with(with) || with.starts_with(rest);
    let method = match rest {
        _ if begins(b"GET ") => Method::Get,
        _ if begins(b"HEAD ") => Method::Head,
        _ if rest.starts_with(b"PRI * HTTP/2") => return Err(Reason::Http2),
        _ if begins(b"PRI * HTTP/2") => return waits(octets),
        // An HTTP method begins with a letter; data that begins otherwise is not HTTP.
        [b, ..] if b.is_ascii_alphabetic() => return Err(Reason::Method),
        _ => return Err(Reason::Malformed),
    };
    let mut lines = Lines::of(octets);
    let Some(line) = lines.first() else { return waits(octets) };
    let first = RequestLine::parse(line).map_err(|_| Reason::Malformed)?;
    let is_known = first.old || line.ends_with(b"HTTP/1.1");
    if !is_known || first.target.is_empty() || first.target.contains(&b'\t') {
        return Err(Reason::Malformed);
    }
    let (mut close, mut inputs) = (first.old, false);
    while let Some(line) = lines.next() {
        if line.is_empty() {
            return lines.end().map(|length| Some(RequestHead { length, method, close, inputs }));
        }
        let field = lines.field(line)?;
        inputs |= is_inputs(field.name);
        if field.is("content-length") && field.value != b"0" || field.is("transfer-encoding") {
            return Err(Reason::Body);
        }
        if field.is("connection") {
            connection(field.value, &mut close);
        }
    }
    waits(octets)
}

/// Parses the head at the beginning of a server's bytes, in response to a request with `method`;
/// `None` if it is incomplete.
///
/// # Errors
/// Why such a response cannot be protected.
pub fn response(octets: &[u8], method: Method) -> Result<Option<ResponseHead<'_>>, Reason> {
    let mut lines = Lines::of(octets);
    let Some(line) = lines.first() else {
        // Data that is not HTTP may never have a line end, so its first bytes are checked now.
        let rest = &octets[lines.at..];
        let begins = VERSION.starts_with(rest) || rest.starts_with(VERSION) || rest == b"\r";
        return if begins { waits(octets) } else { Err(Reason::Malformed) };
    };
    let first = StatusLine::parse(line).ok_or(Reason::Malformed)?;
    if first.status < 200 {
        return Err(Reason::Interim);
    }
    let status = first.status;
    let mut close = first.old;
    let (mut size, mut chunked, mut ranges, mut inputs) = (None, false, true, false);
    let (mut etag, mut encoding, mut range) = (Once::default(), Once::default(), Once::default());
    let length = loop {
        let Some(line) = lines.next() else { return waits(octets) };
        if line.is_empty() {
            break lines.end()?;
        }
        let field = lines.field(line)?;
        let value = field.value;
        if field.is("content-length") {
            let said = number(value).ok_or(Reason::Malformed)?;
            if size.replace(said).is_some_and(|before| before != said) {
                return Err(Reason::Malformed);
            }
        } else if field.is("transfer-encoding") {
            // Codings applied before chunked concern only the client. Chunked twice is an error.
            if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Reason::Dynamic);
            }
            chunked = true;
        } else if field.is("connection") {
            connection(value, &mut close);
        } else if field.is("etag") {
            etag.put(value);
        } else if field.is("content-encoding") {
            encoding.put(value);
        } else if field.is("content-range") {
            range.put(value);
        } else if field.is("accept-ranges") {
            ranges &= !value.eq_ignore_ascii_case(b"none");
        }
        inputs |= field.is(INPUTS);
    };
    if chunked && size.is_some() {
        return Err(Reason::Malformed);
    }
    let framing = match size {
        _ if method == Method::Head || matches!(status, 204 | 304) => Framing::Length(0),
        _ if chunked => Framing::Chunked,
        Some(size) => Framing::Length(size),
        None => Framing::Close,
    };
    close |= framing == Framing::Close;
    let span = match (status, framing, range) {
        (200, Framing::Length(size), Once::None) => Some((0, size, size)),
        (206, Framing::Length(size), Once::One(text)) => content_range(text)
            .filter(|(first, last, _)| last - first + 1 == size)
            .map(|(f, _, t)| (f, size, t)),
        _ => None,
    };
    let encoding = match encoding {
        Once::None => Some(None),
        Once::One(value) => Some(Some(value)),
        Once::More => None,
    };
    let object = match (span, etag, encoding) {
        (Some((first, length, total)), Once::One(etag), Some(encoding))
            if ranges && method == Method::Get && is_strong(etag) =>
        {
            Some(Object { etag, encoding, first, length, total })
        }
        _ => None,
    };
    Ok(Some(ResponseHead { length, status, framing, object, inputs, close }))
}

/// Ranges of the [`INPUTS`] lines, without line ends, in a response that begins with a parsed head.
pub(crate) fn inputs_of(octets: &[u8]) -> impl Iterator<Item = Range<usize>> {
    fields(octets).filter(|(name, _)| name.eq_ignore_ascii_case(INPUTS.as_bytes())).map(|(_, line)| {
        let from = line.as_ptr().addr() - octets.as_ptr().addr();
        from..from + line.trim_ascii_end().len()
    })
}

/// The target of a request with a parsed head.
pub(crate) fn target(head: &[u8]) -> Option<&[u8]> {
    let (_, line) = fields(head).next()?;
    line.split(|&b| b == b' ').nth(1)
}

/// The values of all fields with this name in a parsed head.
pub(crate) fn values<'a>(head: &'a [u8], name: &str) -> impl Iterator<Item = &'a [u8]> {
    fields(head)
        .filter(move |(field, _)| field.eq_ignore_ascii_case(name.as_bytes()))
        .map(|(field, line)| line[field.len() + 1..].trim_ascii())
}

/// The lines of a head, the first one included, each with the name of its field.
pub(crate) fn fields(head: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let lead = head.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
    let lines = head[lead..].split_inclusive(|&b| b == b'\n').enumerate();
    lines.take_while(|(_, line)| !matches!(*line, b"\r\n" | b"\n")).map(|(n, line)| {
        let colon = line.iter().position(|&b| b == b':').filter(|_| n > 0);
        (colon.map_or(&b""[..], |colon| &line[..colon]), line)
    })
}

/// A header field that may occur only once.
#[derive(Clone, Copy, Default)]
enum Once<'a> {
    #[default]
    None,
    One(&'a [u8]),
    More,
}

impl<'a> Once<'a> {
    fn put(&mut self, value: &'a [u8]) {
        *self = if matches!(self, Once::None) { Once::One(value) } else { Once::More };
    }
}

/// The version prefix of every HTTP/1 response.
const VERSION: &[u8] = b"HTTP/1.";

/// Iterates over the lines of a possibly incomplete head, without their line ends.
struct Lines<'a> {
    octets: &'a [u8],
    /// Offset after the last line that was read.
    at: usize,
    /// Number of fields read so far.
    fields: usize,
}

impl<'a> Lines<'a> {
    fn of(octets: &'a [u8]) -> Lines<'a> {
        Lines { octets: &octets[..octets.len().min(MAX_HEAD)], at: 0, fields: 0 }
    }

    /// The next complete line.
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = &self.octets[self.at..];
        let end = memchr::memchr(b'\n', rest)?;
        self.at += end + 1;
        Some(rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]))
    }

    /// The first line that is not empty.
    fn first(&mut self) -> Option<&'a [u8]> {
        loop {
            let line = self.next()?;
            if !line.is_empty() {
                return Some(line);
            }
        }
    }

    fn field(&mut self, line: &'a [u8]) -> Result<Field<'a>, Reason> {
        self.fields += 1;
        if self.fields > MAX_FIELDS {
            return Err(Reason::TooLong);
        }
        Field::parse(line).map_err(|_| Reason::Malformed)
    }

    /// The length of the head, once its last line was read.
    fn end(&self) -> Result<usize, Reason> {
        // Parsers disagree about control characters, so these are refused. CR and LF were checked
        // line by line.
        let is_bad = |b: u8| (b < b' ') & !matches!(b, b'\t' | b'\r' | b'\n') | (b == 0x7f);
        let bad = self.octets[..self.at].iter().fold(false, |bad, &b| bad | is_bad(b));
        if bad { Err(Reason::Malformed) } else { Ok(self.at) }
    }
}

fn waits<T>(octets: &[u8]) -> Result<Option<T>, Reason> {
    if octets.len() < MAX_HEAD { Ok(None) } else { Err(Reason::TooLong) }
}

fn connection(value: &[u8], close: &mut bool) {
    for option in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
        if option.eq_ignore_ascii_case(b"close") {
            *close = true;
        } else if option.eq_ignore_ascii_case(b"keep-alive") {
            *close = false;
        }
    }
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    // Limited to the range of file sizes, so that no sum of them overflows.
    std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok().filter(|n| *n <= i64::MAX as u64)
}

/// Parses `bytes first-last/total` (RFC 9110 section 14.4).
fn content_range(text: &[u8]) -> Option<(u64, u64, u64)> {
    let (unit, rest) = text.split_at_checked(6)?;
    let dash = rest.iter().position(|&b| b == b'-')?;
    let slash = rest.iter().position(|&b| b == b'/')?;
    let (first, last) = (number(&rest[..dash])?, number(rest.get(dash + 1..slash)?)?);
    let total = number(&rest[slash + 1..])?;
    (unit.eq_ignore_ascii_case(b"bytes ") && first <= last && last < total).then_some((first, last, total))
}

/// Whether this is a strong entity tag (RFC 9110 section 8.8.3).
fn is_strong(tag: &[u8]) -> bool {
    let inner = tag.strip_prefix(b"\"").and_then(|tag| tag.strip_suffix(b"\""));
    inner.is_some_and(|inner| inner.iter().all(|b| matches!(b, 0x21 | 0x23..=0x7e | 0x80..)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &str = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

    fn answer(fields: &str) -> String {
        format!("HTTP/1.1 200 OK\r\n{fields}\r\n")
    }

    #[test]
    fn request_heads_are_parsed_or_refused() {
        let head = |text: &str| request(text.as_bytes()).unwrap().unwrap();
        let whole = RequestHead { length: GET.len(), method: Method::Get, close: false, inputs: false };
        assert_eq!(head(GET), whole);
        assert_eq!(head(&format!("{GET}GET /b")), whole);
        assert_eq!(head(&format!("\r\n{GET}")).length, GET.len() + 2);
        assert!(head("HEAD / HTTP/1.0\r\n\r\n").close);
        assert!(!head("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").close);
        assert!(head("GET / HTTP/1.1\r\nConnection: x, CLOSE\r\n\r\n").close);
        for (name, want) in [("x-trods", true), ("X_TRODS", true), ("X.Trods", true), ("XXTRODS", false)] {
            assert_eq!(head(&format!("GET / HTTP/1.1\r\n{name}: 5\r\n\r\n")).inputs, want, "{name}");
        }
        for n in 0..GET.len() {
            assert_eq!(request(&GET.as_bytes()[..n]), Ok(None), "{n}");
        }
        assert_eq!(request(b"PRI * "), Ok(None));
    }

    #[test]
    fn malformed_request_gives_reason() {
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_HEAD));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        for (text, want) in [
            ("\u{16}\u{3}\u{1}", Reason::Tls),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Reason::Http2),
            ("POST / HTTP/1.1\r\n", Reason::Method),
            ("PO", Reason::Method),
            ("{}", Reason::Malformed),
            ("get / HTTP/1.1\r\n", Reason::Method),
            ("GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", Reason::Body),
            ("GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", Reason::Body),
            ("GET / HTTP/2.0\r\n\r\n", Reason::Malformed),
            ("GET / HTTP/1.1\r\na: b\r\n c: d\r\n\r\n", Reason::Malformed),
            ("GET / HTTP/1.1\r\na : b\r\n\r\n", Reason::Malformed),
            ("GET /\r\n", Reason::Malformed),
            ("GET / HTTP/1.1\r\na: b\r\r\n\r\n", Reason::Malformed),
            ("GET / HTTP/1.1\r\na: b\u{c}\r\n\r\n", Reason::Malformed),
            ("GET /\t HTTP/1.1\r\n\r\n", Reason::Malformed),
            ("GET / HTTP/1.2\r\n\r\n", Reason::Malformed),
            (&long, Reason::TooLong),
            (&many, Reason::TooLong),
        ] {
            assert_eq!(request(text.as_bytes()), Err(want), "{text}");
        }
    }

    #[test]
    fn request_target_may_be_invalid_utf8() {
        let head = b"GET /caf\xe9 HTTP/1.1\r\nHost: h\r\n\r\n";
        assert_eq!(
            request(head),
            Ok(Some(RequestHead { length: head.len(), method: Method::Get, close: false, inputs: false }))
        );
    }

    #[test]
    fn response_heads_are_parsed_or_refused() {
        let text = answer("ETag: \"x\"\r\nContent-Length: 10\r\nConnection: close\r\n");
        let head = response(text.as_bytes(), Method::Get).unwrap().unwrap();
        let object = Object { etag: b"\"x\"", encoding: None, first: 0, length: 10, total: 10 };
        assert_eq!((head.length, head.framing, head.close), (text.len(), Framing::Length(10), true));
        assert_eq!(head.object, Some(object));
        let head = response(text.as_bytes(), Method::Head).unwrap().unwrap();
        assert_eq!((head.framing, head.object), (Framing::Length(0), None));
        let part =
            "HTTP/1.1 206 P\r\netag: \"x\"\r\ncontent-length: 4\r\ncontent-range: bytes 3-6/10\r\n\r\n";
        let head = response(part.as_bytes(), Method::Get).unwrap().unwrap();
        assert_eq!(head.object, Some(Object { first: 3, length: 4, ..object }));
        for n in 0..part.len() {
            assert_eq!(response(&part.as_bytes()[..n], Method::Get), Ok(None), "{n}");
        }
        let none = "HTTP/1.0 304 N\r\nContent-Length: 10\r\n\r\n";
        let head = response(none.as_bytes(), Method::Get).unwrap().unwrap();
        assert_eq!((head.framing, head.close), (Framing::Length(0), true));
    }

    #[test]
    fn inputs_in_the_body_are_ignored() {
        let text =
            "HTTP/1.1 200 OK\r\nx-trods: a \r\nA: X-TRODS\r\nX-TRODS:\nX-TRODS-B: b\r\n\r\nX-TRODS: body\r\n";
        let found: Vec<&str> = inputs_of(text.as_bytes()).map(|at| &text[at]).collect();
        assert_eq!(found, ["x-trods: a", "X-TRODS:"]);
    }

    #[test]
    fn response_without_validator_is_no_object() {
        for fields in [
            "Content-Length: 10\r\n",
            "ETag: W/\"x\"\r\nContent-Length: 10\r\n",
            "ETag: x\r\nContent-Length: 10\r\n",
            "ETag: \"x\"y\"\r\nContent-Length: 10\r\n",
            "ETag: \"x\"\r\nETag: \"x\"\r\nContent-Length: 10\r\n",
            "ETag: \"x\"\r\nContent-Length: 10\r\nAccept-Ranges: none\r\n",
            "ETag: \"x\"\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/10\r\n",
            "ETag: \"x\"\r\nContent-Length: 10\r\nContent-Encoding: br\r\nContent-Encoding: gzip\r\n",
            "ETag: \"x\"\r\nTransfer-Encoding: chunked\r\n",
            "ETag: \"x\"\r\n",
        ] {
            let text = answer(fields);
            assert_eq!(response(text.as_bytes(), Method::Get).unwrap().unwrap().object, None, "{fields}");
        }
        for range in
            ["bytes 3-6/*", "bytes 3-7/10", "bytes 6-3/10", "bytes 7-10/10", "lines 3-6/10", "bytes", ""]
        {
            let text = format!(
                "HTTP/1.1 206 P\r\nETag: \"x\"\r\nContent-Length: 4\r\nContent-Range: {range}\r\n\r\n"
            );
            assert_eq!(response(text.as_bytes(), Method::Get).unwrap().unwrap().object, None, "{range}");
        }
    }

    #[test]
    fn malformed_response_gives_reason() {
        for (text, want) in [
            ("HTTP/1.1 100 Continue\r\n\r\n".to_owned(), Reason::Interim),
            ("HTTP/1.1 101 Switching\r\n\r\n".to_owned(), Reason::Interim),
            ("SSH-2.0-x\r\n".to_owned(), Reason::Malformed),
            (answer("Content-Length: 1\r\nContent-Length: 2\r\n"), Reason::Malformed),
            (answer("Content-Length: 1, 1\r\n"), Reason::Malformed),
            (answer("Content-Length: +1\r\n"), Reason::Malformed),
            (answer("Content-Length: 99999999999999999999\r\n"), Reason::Malformed),
            (answer("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n"), Reason::Malformed),
            (answer("Transfer-Encoding: gzip, chunked\r\n"), Reason::Dynamic),
            (answer(&format!("a: {}\r\n", "b".repeat(MAX_HEAD))), Reason::TooLong),
        ] {
            assert_eq!(response(text.as_bytes(), Method::Get), Err(want), "{text}");
        }
    }
}
