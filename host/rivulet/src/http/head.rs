//! The request head, read line by line (RFC 9112 sections 2 to 5).
//!
//! Between two lines the whole state is a [`Head`], which encodes to a few dozen octets, so that a
//! head may be spread over any number of packets and each may reach another replica. A line is
//! consumed when it is complete; only the rest of a long header that means nothing here (a cookie) is
//! skipped before its end is seen.

use super::Status;
use super::codec::{Malformed, Reader, put_text};
use super::ranges::{RangeSpec, Tags};

/// Longest line that must be seen whole: the request line, or a header that means something here.
/// It has to fit into one packet beside its continuation, also at IPv6's minimum MTU.
pub const MAX_LINE: usize = 900;
/// An unfinished line of this length is looked at: skipped if it means nothing.
const SKIP_AT: usize = 256;
/// Octets of a whole head; more is refused with 431.
const MAX_HEAD: u32 = 64 << 10;

/// Longest body that is read and forgotten, where the method has no use for one; more is refused with 413.
const MAX_UNREAD: u64 = 1 << 20;

/// What is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// GET
    #[default]
    Get,
    /// HEAD
    Head,
    /// PUT
    Put,
    /// POST
    Post,
    /// OPTIONS
    Options,
    /// A method that this server does not know.
    Other,
}

/// A head being read. [`Head::default`] is the state before the first octet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The request line has been read.
    started: bool,
    /// The rest of a line that means nothing follows.
    skipping: bool,
    octets: u32,
    /// A `Host` has been read.
    host: bool,
    /// The request is of HTTP/1.0.
    old: bool,
    /// A `Transfer-Encoding` has been read.
    coded: bool,
    request: Request,
}

/// A complete request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub method: Method,
    /// Path, percent-decoded, without the query; begins with `/`.
    pub path: String,
    /// `Range`
    pub range: RangeSpec,
    /// `If-None-Match`
    pub if_none_match: Tags,
    /// `If-Range`; only entity tags match.
    pub if_range: Tags,
    /// Length of the body that follows.
    pub content_length: Option<u64>,
    /// `Expect: 100-continue`
    pub expect_continue: bool,
    /// The connection ends with this answer.
    pub close: bool,
    /// The request is to be refused with this status.
    pub refuse: Option<Status>,
}

impl Request {
    /// Octets of the body that follows.
    #[must_use]
    pub fn body(&self) -> u64 {
        self.content_length.unwrap_or(0)
    }
}

/// What came of feeding octets to a [`Head`].
#[derive(Debug, PartialEq, Eq)]
pub enum Fed {
    /// The head goes on; so many octets were consumed, the others must come again.
    More(usize),
    /// The head is complete (or refused) after so many octets.
    Done(usize, Request),
}

impl Head {
    /// Consumes what can be consumed of `input`.
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
                Err(status) => return self.refused(status, input.len()),
            }
        }
    }

    /// True before the first octet of a request.
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

    /// A refusal ends the connection: where the next request would begin is not known.
    fn refused(&mut self, status: u16, used: usize) -> Fed {
        let mut request = std::mem::take(self).request;
        request.refuse = Some(Status(status));
        request.close = true;
        Fed::Done(used, request)
    }

    /// Reads one line without its end; true if it was the head's last.
    fn line(&mut self, line: &[u8]) -> Result<bool, u16> {
        if !self.started {
            // An empty line or so before the request is forgiven (RFC 9112 section 2.2).
            if !line.is_empty() {
                if line.len() > MAX_LINE {
                    return Err(414);
                }
                self.request_line(line)?;
                self.started = true;
            }
            return Ok(false);
        }
        if line.is_empty() {
            return self.complete().map(|()| true);
        }
        let colon = line.iter().position(|&b| b == b':').ok_or(400u16)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || !name.iter().all(|&b| is_token(b)) {
            return Err(400);
        }
        if !matters(name) {
            return Ok(false);
        }
        if line.len() > MAX_LINE {
            return Err(431);
        }
        // A bare CR or a NUL (RFC 9112 section 2.2, RFC 9110 section 5.5).
        if value.iter().any(|b| matches!(b, b'\r' | b'\0')) {
            return Err(400);
        }
        self.header(name, std::str::from_utf8(value).map_err(|_| 400u16)?.trim_matches([' ', '\t']))?;
        Ok(false)
    }

    fn request_line(&mut self, line: &[u8]) -> Result<(), u16> {
        let text = std::str::from_utf8(line).map_err(|_| 400u16)?;
        let mut words = text.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(400);
        };
        if method.is_empty() || !method.bytes().all(is_token) {
            return Err(400);
        }
        let request = &mut self.request;
        // A higher minor version is answered as ours is (RFC 9110 section 2.5).
        (self.old, request.close) = match version.strip_prefix("HTTP/").map(str::as_bytes) {
            Some(b"1.0") => (true, true),
            Some([b'1', b'.', b'1'..=b'9']) => (false, false),
            Some([b'0'..=b'9', b'.', b'0'..=b'9']) => return Err(505),
            _ => return Err(400),
        };
        request.method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "PUT" => Method::Put,
            "POST" => Method::Post,
            "OPTIONS" => Method::Options,
            _ => Method::Other,
        };
        let path = target.split(['?', '#']).next().unwrap_or_default();
        // Absolute form (a proxy's) is accepted, its authority ignored (RFC 9112 section 3.2.2); schemes know no case.
        let path = match path.split_at_checked("http://".len()) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http://") => match rest.find('/') {
                _ if rest.starts_with('/') || rest.is_empty() => return Err(400),
                Some(at) => &rest[at..],
                None => "/",
            },
            _ if target == "*" && request.method == Method::Options => "/",
            _ => path,
        };
        if !path.starts_with('/') {
            return Err(400);
        }
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8().map_err(|_| 400u16)?;
        if decoded.contains('\0') {
            return Err(400);
        }
        request.path = decoded.into_owned();
        Ok(())
    }

    fn header(&mut self, name: &[u8], value: &str) -> Result<(), u16> {
        let request = &mut self.request;
        let is = |text: &str| name.eq_ignore_ascii_case(text.as_bytes());
        if is("host") {
            // RFC 9112 section 3.2
            if std::mem::replace(&mut self.host, true) {
                return Err(400);
            }
        } else if is("connection") {
            for option in value.split(',').map(str::trim) {
                if option.eq_ignore_ascii_case("close") {
                    request.close = true;
                } else if option.eq_ignore_ascii_case("keep-alive") {
                    request.close = false;
                }
            }
        } else if is("content-length") {
            let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
            let length = value.parse().ok().filter(|_| digits).ok_or(400u16)?;
            if request.content_length.replace(length).is_some_and(|before| before != length) {
                return Err(400);
            }
        } else if is("transfer-encoding") {
            // Coded by who knows what, or framed by a version that has no codings (RFC 9112 section 6.1).
            if self.old {
                return Err(400);
            }
            if !value.eq_ignore_ascii_case("chunked") {
                return Err(501);
            }
            self.coded = true;
        } else if is("expect") && !self.old {
            // HTTP/1.0 has no interim answers (RFC 9110 section 10.1.1).
            if !value.eq_ignore_ascii_case("100-continue") {
                return Err(417);
            }
            request.expect_continue = true;
        } else if is("range") {
            request.range = RangeSpec::parse(value);
        } else if is("if-none-match") {
            request.if_none_match = Tags::parse(value, false);
        } else if is("if-range") {
            request.if_range = Tags::parse(value, true);
        }
        Ok(())
    }

    fn complete(&mut self) -> Result<(), u16> {
        // HTTP/1.1 without Host (RFC 9112 section 3.2).
        if !self.host && !self.old {
            return Err(400);
        }
        let request = &self.request;
        if self.coded {
            // Two lengths are an attack on whoever believes the other one (RFC 9112 section 6.3). Chunks could be
            // counted in a continuation; nobody who uploads files needs them.
            return Err(if request.content_length.is_some() { 400 } else { 411 });
        }
        match request.method {
            Method::Put | Method::Post if request.content_length.is_none() => Err(411),
            Method::Get | Method::Head | Method::Options if request.body() > MAX_UNREAD => Err(413),
            _ => Ok(()),
        }
    }

    /// Appends the encoding that [`Head::decode`] reads.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let r = &self.request;
        let bits = [
            self.started,
            self.skipping,
            self.host,
            r.close,
            r.expect_continue,
            r.content_length.is_some(),
            self.old,
            self.coded,
        ];
        out.push(bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit)));
        out.extend_from_slice(&self.octets.to_be_bytes());
        if !self.started {
            return;
        }
        out.push(r.method as u8);
        if let Some(length) = r.content_length {
            out.extend_from_slice(&length.to_be_bytes());
        }
        r.range.encode(out);
        r.if_none_match.encode(out);
        r.if_range.encode(out);
        put_text(out, &r.path);
    }

    /// Reads what [`Head::encode`] wrote; `input` holds nothing else.
    pub fn decode(input: &[u8]) -> Result<Head, Malformed> {
        let mut r = Reader(input);
        let bits = r.u8()?;
        let bit = |n: u8| bits >> n & 1 != 0;
        let mut head = Head {
            started: bit(0),
            skipping: bit(1),
            host: bit(2),
            old: bit(6),
            coded: bit(7),
            octets: r.u32()?,
            ..Head::default()
        };
        if head.started {
            let methods =
                [Method::Get, Method::Head, Method::Put, Method::Post, Method::Options, Method::Other];
            head.request = Request {
                method: *methods.get(usize::from(r.u8()?)).ok_or(Malformed)?,
                content_length: if bit(5) { Some(r.u64()?) } else { None },
                range: RangeSpec::decode(&mut r)?,
                if_none_match: Tags::decode(&mut r)?,
                if_range: Tags::decode(&mut r)?,
                path: r.text()?.to_owned(),
                close: bit(3),
                expect_continue: bit(4),
                refuse: None,
            };
        }
        r.end()?;
        Ok(head)
    }
}

/// Headers that are read; all others are passed over.
fn matters(name: &[u8]) -> bool {
    const READ: [&str; 8] = [
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "expect",
        "range",
        "if-none-match",
        "if-range",
    ];
    READ.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// tchar of RFC 9110 section 5.6.2.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
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
    fn a_plain_get() {
        let request = whole("GET /a%20b?x=1 HTTP/1.1\r\nHost: h\r\nRange: bytes=5-9\r\n\r\n");
        assert_eq!(request.path, "/a b");
        assert_eq!(request.range, RangeSpec::Span(5, 9));
        assert!(!request.close && request.refuse.is_none());
    }

    #[test]
    fn persistence_follows_version_and_header() {
        assert!(whole("GET / HTTP/1.0\r\n\r\n").close);
        // Before and behind Host, as `ab -k` and others have it.
        for fields in ["Connection: Keep-Alive\r\nHost: h\r\n", "Host: h\r\nConnection: keep-alive\r\n"] {
            let request = whole(&format!("GET / HTTP/1.0\r\n{fields}\r\n"));
            assert_eq!((request.refuse, request.close), (None, false), "{fields}");
        }
        assert_eq!(whole("GET / HTTP/1.9\r\nHost: h\r\n\r\n").refuse, None);
        assert!(whole("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n").close);
    }

    #[test]
    fn absolute_targets() {
        for (target, path) in
            [("http://h/a?b", "/a"), ("HTTP://h:80/a", "/a"), ("http://h", "/"), ("http://h?x=/secret", "/")]
        {
            let request = whole(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
            assert_eq!((request.refuse, request.path.as_str()), (None, path), "{target}");
        }
    }

    #[test]
    fn refusals() {
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
    fn a_long_cookie_is_skipped_before_its_end() {
        let text = format!("GET / HTTP/1.1\r\nHost: h\r\nCookie: {}", "c".repeat(SKIP_AT));
        let mut head = Head::default();
        assert_eq!(head.feed(text.as_bytes()), Fed::More(text.len()));
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        let mut head = Head::decode(&bytes).unwrap();
        assert_eq!(head.feed(b"more of it"), Fed::More(10));
        assert!(matches!(head.feed(b"end\r\n\r\n"), Fed::Done(7, r) if r.path == "/" && r.refuse.is_none()));
    }

    proptest! {
        /// However a head is cut into packets, and with the state encoded between any two of them,
        /// the request is the same as in one piece.
        #[test]
        fn cutting_changes_nothing(cuts in prop::collection::vec(1usize..60, 0..40)) {
            let text = b"\r\nGET /dir/file HTTP/1.1\r\nHost: example\r\nCookie: abc\r\nConnection: close\r\n\
                If-None-Match: \"000102030405060708090a0b0c0d0e0f\"\r\nRange: bytes=10-19\r\n\r\nGET";
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

        /// Octets of any kind give an answer or a wait, never a panic, and consume no more than there is.
        #[test]
        fn any_octets_are_survived(input in prop::collection::vec(any::<u8>(), 0..2000)) {
            match Head::default().feed(&input) {
                Fed::More(n) | Fed::Done(n, _) => prop_assert!(n <= input.len()),
            }
            let _ = Head::decode(&input);
        }
    }
}
