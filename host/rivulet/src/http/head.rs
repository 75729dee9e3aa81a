//! Reads a request head line by line, by the rules of [`rivulet_http`].
//!
//! Between two lines the whole state is a [`Head`], which encodes to a few dozen bytes. So a head
//! may be spread over any number of packets, and each may reach another replica. A line is consumed
//! when it is complete; only the rest of a long header that the server ignores (a cookie) is
//! skipped before its end arrives.

use rivulet_http::{Field, Framing, RangeSpec, Refused, RequestLine, Target};

use super::codec::{Malformed, Reader, put_bytes};
use super::tags::Tags;
use super::{MAX_NAME, Status};

pub use rivulet_http::Method;

/// Limit on a line that must be complete: the request line, or a header that the server evaluates.
/// It has to fit into one packet with its continuation, even at IPv6's minimum MTU.
pub const MAX_LINE: usize = 900;
/// An incomplete line of this length is examined, and skipped if the server ignores its header.
const SKIP_AT: usize = 256;
/// Limit on the length of a head, bytes; a longer one is refused with 431.
const MAX_HEAD: u32 = 64 << 10;

/// State of a head that is being read. [`Head::default`] is the state before the first byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The request line has been read.
    started: bool,
    /// The rest of a skipped line follows.
    skipping: bool,
    octets: u32,
    framing: Framing,
    request: Request,
}

/// A complete request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Path, percent-decoded, without the query; begins with `/` and has no empty parts.
    pub path: Vec<u8>,
    /// The query after `?`, as it was sent.
    pub query: Query,
    /// The `Range` header.
    pub range: RangeSpec,
    /// The `If-Match` header.
    pub if_match: Tags,
    /// The `If-None-Match` header.
    pub if_none_match: Tags,
    /// The `If-Range` header.
    pub if_range: Tags,
    /// Length of the body that follows.
    pub content_length: Option<u64>,
    /// The client sent `Expect: 100-continue`.
    pub expect_continue: bool,
    /// Whether the body is a part of a file (`Content-Range`) or coded (`Content-Encoding`):
    /// neither can be stored as a file.
    pub body: BodyKind,
    /// The connection ends after this answer.
    pub close: bool,
    /// Refuse the request with this status.
    pub refuse: Option<Status>,
}

/// The query of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Query {
    /// The target has no query.
    #[default]
    None,
    /// The query.
    Is(Vec<u8>),
    /// The query is too long for a continuation.
    Long,
}

/// The fields of a request that concern its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyKind {
    /// The body is a whole content.
    #[default]
    Whole,
    /// A part of a content (`Content-Range`).
    Part,
    /// A content with a coding (`Content-Encoding`).
    Coded,
}

impl Request {
    /// Bytes of the body that follows.
    #[must_use]
    pub fn body_length(&self) -> u64 {
        self.content_length.unwrap_or(0)
    }
}

/// The result of feeding bytes to a [`Head`].
#[derive(Debug, PartialEq, Eq)]
pub enum Fed {
    /// The head is incomplete; this many bytes were consumed, the others must be passed again.
    More(usize),
    /// The head is complete (or refused) after this many bytes.
    Done(usize, Request),
}

impl Head {
    /// Consumes as much of `input` as possible.
    pub fn feed(&mut self, input: &[u8]) -> Fed {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let Some(end) = rest.iter().position(|&b| b == b'\n') else { return self.unfinished(used, rest) };
            used += end + 1;
            self.octets = self.octets.saturating_add(end as u32 + 1);
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.octets > MAX_HEAD {
                return self.refused(431, input.len());
            }
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            match self.line(line) {
                Ok(false) => {}
                Ok(true) => return Fed::Done(used, std::mem::take(self).request),
                Err(Refused(status)) => return self.refused(status, input.len()),
            }
        }
    }

    /// True before the first byte of a request.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        !self.started && !self.skipping
    }

    fn unfinished(&mut self, used: usize, rest: &[u8]) -> Fed {
        let all = used + rest.len();
        if self.octets.saturating_add(rest.len() as u32) > MAX_HEAD {
            return self.refused(431, all);
        }
        let skippable = self.started && !rest.starts_with(b" ") && !rest.starts_with(b"\t");
        let colon = rest.iter().position(|&b| b == b':');
        if self.skipping || rest.len() >= SKIP_AT && skippable && colon.is_some_and(|c| !matters(&rest[..c]))
        {
            self.skipping = true;
            self.octets += rest.len() as u32;
            return Fed::More(all);
        }
        if rest.len() > MAX_LINE {
            return self.refused(if self.started { 431 } else { 414 }, all);
        }
        Fed::More(used)
    }

    /// A refusal ends the connection, because it is unknown where the next request would begin.
    fn refused(&mut self, status: u16, used: usize) -> Fed {
        let mut request = std::mem::take(self).request;
        request.refuse = Some(Status(status));
        request.close = true;
        Fed::Done(used, request)
    }

    /// Reads one line without its end; returns whether it was the head's last.
    fn line(&mut self, line: &[u8]) -> Result<bool, Refused> {
        if !self.started {
            // Empty lines before a request are ignored (RFC 9112 section 2.2).
            if !line.is_empty() {
                if line.len() > MAX_LINE {
                    return Err(Refused(414));
                }
                self.request_line(line)?;
                self.started = true;
            }
            return Ok(false);
        }
        if line.is_empty() {
            return self.complete().map(|()| true);
        }
        let field = Field::parse(line)?;
        if !matters(field.name) {
            return Ok(false);
        }
        if line.len() > MAX_LINE {
            return Err(Refused(431));
        }
        self.header(&field)?;
        Ok(false)
    }

    fn request_line(&mut self, line: &[u8]) -> Result<(), Refused> {
        let line = RequestLine::parse(line)?;
        self.framing = Framing::new(line.old);
        let request = &mut self.request;
        (request.method, request.close) = (line.method, line.old);
        let target = Target::parse(line.target, line.method)?;
        request.path = target.path.to_vec();
        request.query = match target.query {
            None => Query::None,
            Some(query) if request.path.len() + query.len() < MAX_NAME => Query::Is(query.to_vec()),
            Some(_) => Query::Long,
        };
        Ok(())
    }

    fn header(&mut self, field: &Field<'_>) -> Result<(), Refused> {
        self.framing.take(field)?;
        let request = &mut self.request;
        if field.is("range") {
            request.range = RangeSpec::parse(field.value);
        } else if field.is("if-match") {
            request.if_match.add_list(field.value, true)?;
        } else if field.is("if-none-match") {
            request.if_none_match.add_list(field.value, false)?;
        } else if field.is("if-range") {
            request.if_range.add_if_range(field.value);
        } else if field.is("content-range") {
            request.body = BodyKind::Part;
        } else if field.is("content-encoding")
            && request.body == BodyKind::Whole
            && !field.value.eq_ignore_ascii_case(b"identity")
        {
            request.body = BodyKind::Coded;
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Refused> {
        let (framing, request) = (&self.framing, &mut self.request);
        request.content_length = framing.length;
        request.expect_continue = framing.expect_continue;
        request.close = framing.closes();
        framing.complete(request.method)
    }

    /// Appends the encoding that [`Head::decode`] reads.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (r, f) = (&self.request, &self.framing);
        let bits = [
            self.started,
            self.skipping,
            f.host,
            f.close,
            f.expect_continue,
            f.length.is_some(),
            f.old,
            f.coded,
            f.keep_alive,
            r.body == BodyKind::Part,
            r.body == BodyKind::Coded,
            matches!(r.query, Query::Is(_)),
            r.query == Query::Long,
        ];
        out.extend_from_slice(
            &bits.iter().rev().fold(0, |all, &bit| all << 1 | u16::from(bit)).to_be_bytes(),
        );
        out.extend_from_slice(&self.octets.to_be_bytes());
        if !self.started {
            return;
        }
        out.push(r.method as u8);
        if let Some(length) = f.length {
            out.extend_from_slice(&length.to_be_bytes());
        }
        put_range(r.range, out);
        for tags in [&r.if_match, &r.if_none_match, &r.if_range] {
            tags.encode(out);
        }
        put_bytes(out, &r.path);
        if let Query::Is(query) = &r.query {
            put_bytes(out, query);
        }
    }

    /// Decodes the result of [`Head::encode`], which must be all of `input`.
    pub fn decode(input: &[u8]) -> Result<Head, Malformed> {
        let mut r = Reader(input);
        let bits = r.u16()?;
        let bit = |n: u8| bits >> n & 1 != 0;
        let mut head = Head { started: bit(0), skipping: bit(1), octets: r.u32()?, ..Head::default() };
        if head.started {
            let methods =
                [Method::Get, Method::Head, Method::Put, Method::Post, Method::Options, Method::Other];
            let method = *methods.get(usize::from(r.u8()?)).ok_or(Malformed)?;
            head.framing = Framing {
                host: bit(2),
                close: bit(3),
                expect_continue: bit(4),
                length: if bit(5) { Some(r.u64()?) } else { None },
                old: bit(6),
                coded: bit(7),
                keep_alive: bit(8),
            };
            head.request = Request {
                method,
                range: read_range(&mut r)?,
                if_match: Tags::decode(&mut r)?,
                if_none_match: Tags::decode(&mut r)?,
                if_range: Tags::decode(&mut r)?,
                path: r.text()?.to_vec(),
                close: head.framing.old,
                body: match (bit(9), bit(10)) {
                    (true, _) => BodyKind::Part,
                    (_, true) => BodyKind::Coded,
                    _ => BodyKind::Whole,
                },
                ..Request::default()
            };
            head.request.query = match (bit(11), bit(12)) {
                (true, _) => Query::Is(r.text()?.to_vec()),
                (_, true) => Query::Long,
                _ => Query::None,
            };
        }
        r.end()?;
        Ok(head)
    }
}

fn put_range(range: RangeSpec, out: &mut Vec<u8>) {
    let (kind, a, b) = match range {
        RangeSpec::All => (0, 0, 0),
        RangeSpec::Span(a, b) => (1, a, b),
        RangeSpec::Suffix(n) => (2, n, 0),
    };
    out.push(kind);
    out.extend_from_slice(&u64::to_be_bytes(a));
    out.extend_from_slice(&u64::to_be_bytes(b));
}

fn read_range(r: &mut Reader<'_>) -> Result<RangeSpec, Malformed> {
    let (kind, a, b) = (r.u8()?, r.u64()?, r.u64()?);
    match kind {
        0 => Ok(RangeSpec::All),
        1 if a <= b => Ok(RangeSpec::Span(a, b)),
        2 => Ok(RangeSpec::Suffix(a)),
        _ => Err(Malformed),
    }
}

/// Whether the server evaluates this header; it ignores all others.
fn matters(name: &[u8]) -> bool {
    const READ: [&str; 6] =
        ["range", "if-match", "if-none-match", "if-range", "content-range", "content-encoding"];
    Framing::reads(name) || READ.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &str) -> Request {
        match Head::default().feed(text.as_bytes()) {
            Fed::Done(_, request) => request,
            more => panic!("expected a whole request, got {more:?}"),
        }
    }

    #[test]
    fn path_query_and_range_are_parsed() {
        let request = whole("GET /a%20b?x=1 HTTP/1.1\r\nHost: h\r\nRange: bytes=5-9\r\n\r\n");
        assert_eq!((&request.path[..], request.query), (&b"/a b"[..], Query::Is(b"x=1".to_vec())));
        assert_eq!(request.range, RangeSpec::Span(5, 9));
        assert!(!request.close && request.refuse.is_none());
    }

    #[test]
    fn persistence_follows_version_and_header() {
        assert!(whole("GET / HTTP/1.0\r\n\r\n").close);
        // `Connection` before and after Host, as `ab -k` and other clients send it.
        for fields in ["Connection: Keep-Alive\r\nHost: h\r\n", "Host: h\r\nConnection: keep-alive\r\n"] {
            let request = whole(&format!("GET / HTTP/1.0\r\n{fields}\r\n"));
            assert_eq!((request.refuse, request.close), (None, false), "{fields}");
        }
        assert_eq!(whole("GET / HTTP/1.9\r\nHost: h\r\n\r\n").refuse, None);
        assert!(whole("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n").close);
    }

    #[test]
    fn absolute_targets_give_their_path() {
        for (target, path) in
            [("http://h/a?b", "/a"), ("HTTP://h:80/a", "/a"), ("http://h", "/"), ("http://h?x=/secret", "/")]
        {
            let request = whole(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
            assert_eq!((request.refuse, &request.path[..]), (None, path.as_bytes()), "{target}");
        }
    }

    #[test]
    fn malformed_heads_are_refused_with_their_status() {
        let long = "x".repeat(MAX_LINE + 1);
        let cases = [
            ("GET /\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/2.0\r\n\r\n".to_owned(), 505),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: h\r\n folded: x\r\n\r\n".to_owned(), 400),
            ("GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), 411),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1048577\r\n\r\n".to_owned(), 413),
            ("GET / HTTP/1.0\r\nHost: h\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), 400),
            ("PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n".to_owned(), 501),
            ("GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n".to_owned(), 400),
            ("GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 400),
            ("POST / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 411),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -3\r\n\r\n".to_owned(), 400),
            (format!("GET /{long}"), 414),
            (format!("GET /{long} HTTP/1.1\r\n"), 414),
            (format!("GET / HTTP/1.1\r\nRange: {long}"), 431),
            (format!("GET / HTTP/1.1\r\n{}", "Cookie: a\r\n".repeat(7000)), 431),
            ("\u{0}\u{1}garbage\r\n\r\n".to_owned(), 400),
        ];
        for (text, want) in cases {
            let request = whole(&text);
            assert_eq!(request.refuse, Some(Status(want)), "{}", &text[..text.len().min(60)]);
            assert!(request.close);
        }
    }

    #[test]
    fn long_cookie_is_skipped_before_its_end() {
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: {}", "c".repeat(SKIP_AT));
        let mut head = Head::default();
        assert_eq!(head.feed(text.as_bytes()), Fed::More(text.len()));
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        let mut head = Head::decode(&bytes).unwrap();
        assert_eq!(head.feed(b"more of it"), Fed::More(10));
        assert!(matches!(head.feed(b"end\r\n\r\n"), Fed::Done(7, r) if r.path == b"/" && r.refuse.is_none()));
    }

    proptest! {
        /// A head that is cut into packets anywhere, with the state encoded between any two, gives
        /// the same request as in one piece.
        #[test]
        fn head_in_any_pieces_gives_the_same_request(cuts in prop::collection::vec(1usize..60, 0..40)) {
            let text = b"\r\nGET /dir/file?q HTTP/1.1\r\nHost: example\r\nCookie: abc\r\nConnection: close\r\n\
                If-Match: *\r\nIf-None-Match: \"000102030405060708090a0b0c0d0e0f\"\r\nRange: bytes=10-19\r\n\r\nGET";
            let Fed::Done(length, want) = Head::default().feed(text) else { panic!("not whole") };
            prop_assert_eq!(&text[length..], b"GET");
            let (mut head, mut from, mut to) = (Head::default(), 0, 0);
            let mut cuts = cuts.into_iter();
            loop {
                to = (to + cuts.next().unwrap_or(60)).min(text.len());
                match head.feed(&text[from..to]) {
                    Fed::More(n) => {
                        from += n;
                        let mut bytes = Vec::new();
                        head.encode(&mut bytes);
                        prop_assert_eq!(Head::decode(&bytes), Ok(head.clone()));
                    }
                    Fed::Done(n, request) => {
                        prop_assert_eq!(from + n, length);
                        prop_assert_eq!(request, want);
                        break;
                    }
                }
            }
        }

        /// Arbitrary bytes give an answer or a wait, never a panic, and at most all of them are
        /// consumed.
        #[test]
        fn arbitrary_head_bytes_do_not_panic(input in prop::collection::vec(any::<u8>(), 0..2000)) {
            match Head::default().feed(&input) {
                Fed::More(n) | Fed::Done(n, _) => prop_assert!(n <= input.len()),
            }
            let _ = Head::decode(&input);
        }
    }
}
