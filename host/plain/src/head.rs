//! The head of a request (RFC 9112), read from one segment: what is not in it is not waited for.

use arrayvec::ArrayVec;

use crate::objects::MAX_NAME;

/// What is asked of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
}

/// What a `Range` header asks for. Several ranges are answered as if there were none, which RFC 9110 section 14.2 allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// `first-last`, both included; `u64::MAX` for an open end.
    Span(u64, u64),
    /// The last so many octets.
    Suffix(u64),
}

/// A request whose head is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// The target as it stands in the request line.
    pub target: &'a [u8],
    /// The connection ends with the answer.
    pub close: bool,
    /// `Range`.
    pub range: Option<Range>,
    /// The value of `If-None-Match`.
    pub if_none_match: Option<&'a [u8]>,
    /// The value of `If-Range`.
    pub if_range: Option<&'a [u8]>,
    /// Octets of the head; a body is never part of it.
    pub length: usize,
}

/// What the data of a segment begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole head.
    Whole(Request<'a>),
    /// A head whose request line is whole and whose end is not there; the other lines are not looked at, and the
    /// connection ends with the answer.
    Line(Request<'a>),
    /// A GET or HEAD whose request line is not whole.
    Split,
    /// A request with a body.
    Body,
    /// No GET and no HEAD.
    Other,
    /// A GET or HEAD that breaks a rule; the connection ends with a 400.
    Bad,
}

/// Reads what a segment begins with.
#[must_use]
pub fn parse(data: &[u8]) -> Parsed<'_> {
    // Empty lines in front of a request are forgiven (RFC 9112 section 2.2).
    let lead = data.iter().take_while(|b| matches!(b, b'\r' | b'\n')).take(4).count();
    let rest = &data[lead..];
    let method = match rest {
        _ if rest.starts_with(b"GET ") => Method::Get,
        _ if rest.starts_with(b"HEAD ") => Method::Head,
        _ if b"GET ".starts_with(rest) || b"HEAD ".starts_with(rest) => return Parsed::Split,
        _ => return Parsed::Other,
    };
    let Some((line, mut at)) = line(data, lead) else { return Parsed::Split };
    let mut request = Request {
        method,
        target: b"",
        close: false,
        range: None,
        if_none_match: None,
        if_range: None,
        length: at,
    };
    let mut words = line.split(|&b| b == b' ').skip(1);
    let (Some(target), Some(version), None) = (words.next(), words.next(), words.next()) else {
        return Parsed::Bad;
    };
    request.target = target;
    let old = match version {
        b"HTTP/1.0" => true,
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'1'..=b'9'] => false,
        _ => return Parsed::Bad,
    };
    request.close = old;
    let mut host = false;
    loop {
        let Some((field, next)) = self::line(data, at) else {
            return Parsed::Line(Request {
                close: true,
                range: None,
                if_none_match: None,
                if_range: None,
                ..request
            });
        };
        at = next;
        if field.is_empty() {
            break;
        }
        let Some(colon) = field.iter().position(|&b| b == b':') else { return Parsed::Bad };
        let (name, value) = (&field[..colon], field[colon + 1..].trim_ascii());
        if name.is_empty()
            || !name.iter().all(|b| is_token(*b))
            || value.iter().any(|b| matches!(b, b'\r' | 0))
        {
            return Parsed::Bad;
        }
        let is = |text: &str| name.eq_ignore_ascii_case(text.as_bytes());
        if is("host") {
            if std::mem::replace(&mut host, true) {
                return Parsed::Bad;
            }
        } else if is("connection") {
            for option in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
                match option {
                    _ if option.eq_ignore_ascii_case(b"close") => request.close = true,
                    _ if option.eq_ignore_ascii_case(b"keep-alive") => request.close = false,
                    _ => {}
                }
            }
        } else if is("content-length") && value != b"0" || is("transfer-encoding") {
            return Parsed::Body;
        } else if is("range") {
            request.range = range(value);
        } else if is("if-none-match") {
            request.if_none_match = Some(value);
        } else if is("if-range") {
            request.if_range = Some(value);
        }
    }
    if !host && !old {
        return Parsed::Bad;
    }
    Parsed::Whole(Request { length: at, ..request })
}

/// Whether a client's first octets can be these: a method (RFC 9110 section 9.1) or the beginning of one, or a TLS record with
/// its handshake (RFC 8446 section 5.1).
#[must_use]
pub fn begins_a_request(data: &[u8]) -> bool {
    // The longest registered one has 17.
    let method = data.iter().take(17).take_while(|b| b.is_ascii_uppercase() || **b == b'-').count();
    let ends = data.get(method).is_none_or(|b| *b == b' ');
    method > 0 && ends || data.starts_with(&[22, 3])
}

/// The line that begins at `at`, without its end, and where the next one begins.
fn line(data: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = data.get(at..)?;
    let end = rest.iter().position(|&b| b == b'\n')?;
    Some((rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]), at + end + 1))
}

/// tchar of RFC 9110 section 5.6.2.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

fn range(value: &[u8]) -> Option<Range> {
    let text = std::str::from_utf8(value).ok()?;
    let (unit, set) = text.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = set.trim().split_once('-')?;
    let number = |s: &str| -> Option<u64> {
        // Longer than any content, and so as good as its end (RFC 9110 section 14.1.2).
        (!s.is_empty() && s.bytes().all(|b| b.is_ascii_digit())).then(|| s.parse().unwrap_or(u64::MAX))
    };
    match (first.trim(), last.trim()) {
        ("", suffix) => Some(Range::Suffix(number(suffix)?)),
        (first, "") => Some(Range::Span(number(first)?, u64::MAX)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Range::Span(first, last))
        }
    }
}

impl Range {
    /// First octet and number of octets of a content of `size` octets; `None` if nothing of it is asked for (416).
    #[must_use]
    pub fn resolve(self, size: u64) -> Option<(u64, u64)> {
        match self {
            Range::Span(first, _) if first >= size => None,
            Range::Span(first, last) => Some((first, last.min(size - 1) - first + 1)),
            Range::Suffix(n) if n == 0 || size == 0 => None,
            Range::Suffix(n) => Some((size - n.min(size), n.min(size))),
        }
    }
}

/// Whether a list of entity tags names this hash; with `strong`, weak tags do not count (RFC 9110 section 13.1.5).
#[must_use]
pub fn names(tags: &[u8], hash: &[u8; 16], strong: bool) -> bool {
    if !strong && tags == b"*" {
        return true;
    }
    tags.split(|&b| b == b',').map(<[u8]>::trim_ascii).any(|tag| {
        let tag = match tag.strip_prefix(b"W/") {
            Some(_) if strong => return false,
            Some(rest) => rest,
            None => tag,
        };
        let hex = tag.strip_prefix(b"\"").and_then(|t| t.strip_suffix(b"\""));
        let digits = |hex: &[u8]| {
            hex.len() == 32
                && hex.chunks_exact(2).zip(hash).all(|(pair, byte)| {
                    let text = std::str::from_utf8(pair).unwrap_or_default();
                    pair.iter().all(u8::is_ascii_hexdigit) && u8::from_str_radix(text, 16) == Ok(*byte)
                })
        };
        hex.is_some_and(digits)
    })
}

/// A name in the table.
pub type Name = ArrayVec<u8, { MAX_NAME + 16 }>;

/// What a target means.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nothing on the way of a packet is boxed")]
pub enum Target {
    /// This name, without a slash in front.
    Name(Name),
    /// It leads out of what is served, or is longer than any name.
    Nowhere,
    /// It is no path.
    Bad,
}

/// The name that a target stands for: without scheme, authority and query, percent-decoded, without empty parts and dots. A path
/// that ends in a slash means the `index.html` there.
#[must_use]
pub fn name(target: &[u8]) -> Target {
    let end = target.iter().position(|b| matches!(b, b'?' | b'#')).unwrap_or(target.len());
    let mut path = &target[..end];
    // Absolute form, its authority ignored (RFC 9112 section 3.2.2).
    if let Some((scheme, rest)) = path.split_at_checked(7)
        && scheme.eq_ignore_ascii_case(b"http://")
    {
        path = match rest.iter().position(|&b| b == b'/') {
            Some(0) => return Target::Bad,
            Some(at) => &rest[at..],
            None if rest.is_empty() => return Target::Bad,
            None => b"/",
        };
    }
    if path.first() != Some(&b'/') {
        return Target::Bad;
    }
    let mut name = Name::new();
    let mut at = 0;
    while at < path.len() {
        // One part, with the slash in front of it.
        at += 1;
        let start = name.len();
        if !name.is_empty() && name.try_push(b'/').is_err() {
            return Target::Nowhere;
        }
        let part = name.len();
        while let Some(&b) = path.get(at).filter(|b| **b != b'/') {
            let b = if b == b'%' {
                let hex = path.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
                at += 2;
                match hex.filter(|h| !h.starts_with('+')).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    None | Some(0) => return Target::Bad,
                    Some(b) => b,
                }
            } else {
                b
            };
            at += 1;
            if name.try_push(b).is_err() {
                return Target::Nowhere;
            }
        }
        match &name[part..] {
            b".." => return Target::Nowhere,
            b"" | b"." => name.truncate(start),
            _ => {}
        }
    }
    // An encoded slash would make parts that were not looked at.
    if name.split(|&b| b == b'/').any(|part| matches!(part, b".." | b"." | b"")) && !name.is_empty() {
        return Target::Nowhere;
    }
    if path.ends_with(b"/") {
        let index: &[u8] = if name.is_empty() { b"index.html" } else { b"/index.html" };
        if name.try_extend_from_slice(index).is_err() {
            return Target::Nowhere;
        }
    }
    if std::str::from_utf8(&name).is_err() { Target::Bad } else { Target::Name(name) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(text: &str) -> Request<'_> {
        match parse(text.as_bytes()) {
            Parsed::Whole(request) => request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn heads() {
        let text =
            "\r\nGET /a?x HTTP/1.1\r\nHost: h\r\nRange: bytes=5-9\r\nIf-None-Match: \"x\"\r\n\r\nGET /b";
        let request = whole(text);
        assert_eq!((request.method, request.target, request.close), (Method::Get, &b"/a?x"[..], false));
        assert_eq!((request.range, request.length), (Some(Range::Span(5, 9)), text.len() - 6));
        assert_eq!(request.if_none_match, Some(&b"\"x\""[..]));
        assert!(whole("HEAD / HTTP/1.0\r\n\r\n").close);
        assert!(!whole("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").close);
        assert!(whole("GET / HTTP/1.1\nHost: h\nConnection: x, CLOSE\n\n").close);
    }

    #[test]
    fn what_is_not_whole_or_not_ours_is_told_apart() {
        for (text, want) in [
            ("", Parsed::Split),
            ("G", Parsed::Split),
            ("HEAD", Parsed::Split),
            ("GET /a HTTP/1.1", Parsed::Split),
            ("POST / HTTP/1.1\r\nHost: h\r\n\r\n", Parsed::Other),
            ("\u{16}\u{3}\u{1}", Parsed::Other),
            ("get / HTTP/1.1\r\n\r\n", Parsed::Other),
            ("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", Parsed::Body),
            ("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", Parsed::Body),
            ("GET / HTTP/1.1\r\n\r\n", Parsed::Bad),
            ("GET / HTTP/2.0\r\n\r\n", Parsed::Bad),
            ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", Parsed::Bad),
            ("GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", Parsed::Bad),
            ("GET / HTTP/1.1\r\nHost: h\r\n folded: x\r\n\r\n", Parsed::Bad),
            ("GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", Parsed::Bad),
        ] {
            assert_eq!(parse(text.as_bytes()), want, "{text}");
        }
        let text = "GET /a HTTP/1.1\r\nRange: bytes=1-2\r\nCookie: ccc";
        assert!(
            matches!(parse(text.as_bytes()), Parsed::Line(r) if r.range.is_none() && r.close && r.target == b"/a")
        );
    }

    #[test]
    fn what_may_be_first() {
        for text in
            ["GET / HTTP/1.1", "P", "POS", "VERSION-CONTROL /", "UPDATEREDIRECTREF /", "\u{16}\u{3}\u{1}"]
        {
            assert!(begins_a_request(text.as_bytes()), "{text}");
        }
        for text in
            ["", "get / HTTP/1.1", "{\"a\":1}", "POST\r\n", "\r\nPOST /", "ABCDEFGHIJKLMNOPQR /", "\u{16}x"]
        {
            assert!(!begins_a_request(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn ranges() {
        for (text, want) in [
            ("bytes=0-0", Some((0, 1))),
            ("bytes=5-", Some((5, 5))),
            ("bytes=-3", Some((7, 3))),
            ("bytes=-30", Some((0, 10))),
            ("bytes=2-999999999999999999999", Some((2, 8))),
            ("bytes=10-", None),
            ("bytes=-0", None),
        ] {
            assert_eq!(range(text.as_bytes()).unwrap().resolve(10), want, "{text}");
        }
        for text in ["bytes=1-2,4-5", "bytes=3-1", "lines=1-2", "bytes=", "bytes=x-", "\u{ff}"] {
            assert_eq!(range(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn entity_tags() {
        let hash = [0xab; 16];
        let tag = format!("\"{}\"", "ab".repeat(16));
        let list = format!("\"x\", W/{tag}");
        assert!(names(tag.as_bytes(), &hash, true) && names(list.as_bytes(), &hash, false));
        assert!(!names(list.as_bytes(), &hash, true) && !names(tag.as_bytes(), &[1; 16], false));
        assert!(names(b"*", &hash, false) && !names(b"*", &hash, true));
        assert!(!names(format!("\"{}\"", "+b".repeat(16)).as_bytes(), &[0xb; 16], false));
    }

    #[test]
    fn targets() {
        let named = |target: &str| match name(target.as_bytes()) {
            Target::Name(name) => String::from_utf8(name.to_vec()).unwrap(),
            other => format!("{other:?}"),
        };
        for (target, want) in [
            ("/", "index.html"),
            ("/a/", "a/index.html"),
            ("//a/./b", "a/b"),
            ("/a%20b?q", "a b"),
            ("http://h:80/a", "a"),
            ("HTTP://h", "index.html"),
            ("http:///a", "Bad"),
            ("/../a", "Nowhere"),
            ("/a/..", "Nowhere"),
            ("/a%2f..%2fb", "Nowhere"),
            ("/%2e%2e/a", "Nowhere"),
            ("/%2fa", "Nowhere"),
            ("/%00", "Bad"),
            ("/%zz", "Bad"),
            ("/%+1", "Bad"),
            ("/%ff", "Bad"),
            ("*", "Bad"),
            ("", "Bad"),
        ] {
            assert_eq!(named(target), want, "{target}");
        }
        assert_eq!(name(format!("/{}", "a/".repeat(500)).as_bytes()), Target::Nowhere);
    }

    proptest! {
        #[test]
        fn any_octets_are_survived(data in prop::collection::vec(any::<u8>(), 0..400), get: bool) {
            let mut text = if get { b"GET /".to_vec() } else { Vec::new() };
            text.extend(data);
            if let Parsed::Whole(r) | Parsed::Line(r) = parse(&text) {
                prop_assert!(r.length <= text.len());
                let _ = name(r.target);
            }
            let _ = (name(&text), names(&text, &[0; 16], get), range(&text));
        }

        /// Whatever the cut, the request line that was read is the same, and a whole head is read only from a whole one.
        #[test]
        fn a_cut_head_says_no_more_than_its_line(at in 0usize..90) {
            let text = b"GET /dir/file HTTP/1.1\r\nHost: example\r\nRange: bytes=1-2\r\nConnection: close\r\n\r\n";
            match parse(&text[..at.min(text.len())]) {
                Parsed::Whole(r) => prop_assert!(r.length == text.len() && at >= text.len()),
                Parsed::Line(r) => prop_assert!(r.target == b"/dir/file" && r.range.is_none() && at >= 24),
                Parsed::Split => prop_assert!(at < 24),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
