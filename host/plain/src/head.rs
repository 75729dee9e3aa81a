//! Parses the head of a request (RFC 9112) from one segment, without waiting for more. The rules
//! are those of [`rivulet_http`]; this file decides which requests a single segment can answer.

use arrayvec::ArrayVec;
use rivulet_http::{
    Conditions, Field, Framing, RangeSpec, RequestLine, Selection, Target, matches_any, matches_if_range,
};

pub use rivulet_http::Method;

/// A request with a parsed head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The method: GET or HEAD.
    pub method: Method,
    /// The target, as in the request line.
    pub target: &'a [u8],
    /// Whether the connection ends after the answer.
    pub close: bool,
    /// The `Range` header.
    pub range: RangeSpec,
    /// The lines of the head that contain conditions; empty if there are none.
    pub conditions: &'a [u8],
    /// Length of the head; the request has no body.
    pub length: usize,
}

/// What a segment's data begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole head.
    Whole(Request<'a>),
    /// A complete request line of an incomplete head: its other lines are ignored, and the
    /// connection ends with the answer.
    Line(Request<'a>),
    /// A GET or HEAD with an incomplete request line.
    Split,
    /// A request with a body.
    Body,
    /// A method other than GET and HEAD.
    Other,
    /// A GET or HEAD to refuse with this status; the connection ends with the answer.
    Bad(u16),
}

/// Parses the beginning of a segment's data.
#[must_use]
pub fn parse(data: &[u8]) -> Parsed<'_> {
    // Empty lines before a request are ignored (RFC 9112 section 2.2).
    let lead = data.iter().take_while(|b| matches!(b, b'\r' | b'\n')).take(4).count();
    let rest = &data[lead..];
    if b"GET ".starts_with(rest) || b"HEAD ".starts_with(rest) {
        return Parsed::Split;
    }
    if !rest.starts_with(b"GET ") && !rest.starts_with(b"HEAD ") {
        return Parsed::Other;
    }
    let Some((line, at)) = line(data, lead) else { return Parsed::Split };
    let RequestLine { method, target, old } = match RequestLine::parse(line) {
        Ok(line) => line,
        Err(refused) => return Parsed::Bad(refused.0),
    };
    let request = Request { method, target, close: old, range: RangeSpec::All, conditions: b"", length: at };
    fields(data, request, old).unwrap_or_else(|refused| Parsed::Bad(refused.0))
}

/// Parses the lines after the request line.
fn fields<'a>(
    data: &'a [u8],
    mut request: Request<'a>,
    old: bool,
) -> Result<Parsed<'a>, rivulet_http::Refused> {
    let start = request.length;
    let mut framing = Framing::new(old);
    let (mut range, mut conditional) = (RangeSpec::All, false);
    loop {
        let Some((line, next)) = line(data, request.length) else {
            return Ok(Parsed::Line(Request { close: true, length: start, ..request }));
        };
        if line.is_empty() {
            if framing.has_body() {
                return Ok(Parsed::Body);
            }
            framing.complete(request.method)?;
            let conditions = if conditional { &data[start..request.length] } else { b"" };
            let close = framing.closes();
            return Ok(Parsed::Whole(Request { close, range, conditions, length: next, ..request }));
        }
        request.length = next;
        let field = Field::parse(line)?;
        framing.take(&field)?;
        if field.is("range") {
            range = RangeSpec::parse(field.value);
        }
        conditional |= field.is("if-match") || field.is("if-none-match") || field.is("if-range");
    }
}

impl Request<'_> {
    /// What the request selects of a content with this hash and size: all, a part, or a status
    /// without content.
    pub(crate) fn select(&self, hash: &[u8; 16], size: u64) -> Selection {
        let mut conditions = Conditions::default();
        let mut at = 0;
        let tag = entity_tag(hash);
        // Several lines with one name form one list (RFC 9110 section 5.3).
        let holds = |before: Option<bool>, now| Some(before.unwrap_or(false) | now);
        while let Some((line, next)) = line(self.conditions, at) {
            at = next;
            let Ok(field) = Field::parse(line) else { continue };
            if field.is("if-match") {
                conditions.if_match = holds(conditions.if_match, matches_any(field.value, &tag, true));
            } else if field.is("if-none-match") {
                conditions.if_none_match =
                    holds(conditions.if_none_match, matches_any(field.value, &tag, false));
            } else if field.is("if-range") {
                conditions.if_range = Some(matches_if_range(field.value, &tag));
            }
        }
        conditions.select(self.method, self.range, size)
    }
}

/// The opaque part of a content's entity tag: its hash in hexadecimal digits.
fn entity_tag(hash: &[u8; 16]) -> [u8; 32] {
    let digit = |n: u8| b"0123456789abcdef"[usize::from(n & 15)];
    core::array::from_fn(|n| digit(if n % 2 == 0 { hash[n / 2] >> 4 } else { hash[n / 2] }))
}

/// Whether a client's first bytes can begin a request: a method (RFC 9110 section 9.1) or the
/// beginning of one, or a TLS handshake record (RFC 8446 section 5.1).
#[must_use]
pub fn begins_a_request(data: &[u8]) -> bool {
    // The longest registered method has 17 letters.
    let method = data.iter().take(17).take_while(|b| b.is_ascii_uppercase() || **b == b'-').count();
    let ends = data.get(method).is_none_or(|b| *b == b' ');
    method > 0 && ends || data.starts_with(&[22, 3])
}

/// The line that begins at `at`, without its end, and the offset of the next one.
fn line(data: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = data.get(at..)?;
    let end = rest.iter().position(|&b| b == b'\n')?;
    Some((rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]), at + end + 1))
}

/// Limit on a request's path, bytes; names in the table may be longer by `index.html`.
pub const MAX_NAME: usize = rivulet_http::MAX_PATH;

/// A name in the table.
pub type Name = ArrayVec<u8, { MAX_NAME + INDEX.len() }>;

/// Name appended to a path that ends in a slash.
const INDEX: &[u8] = b"index.html";

/// The name of a target, without the leading slash, and whether it has a query.
///
/// # Errors
/// The status with which the request is refused.
pub fn name(target: &[u8], method: Method) -> Result<(Name, bool), u16> {
    let target = Target::parse(target, method).map_err(|refused| refused.0)?;
    // The path begins with a slash, and the buffer has room for the appended part.
    let mut name: Name = target.path.iter().skip(1).copied().collect();
    if target.path.ends_with(b"/") {
        name.extend(INDEX.iter().copied());
    }
    Ok((name, target.query.is_some()))
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
    fn heads_are_parsed_or_refused() {
        let text =
            "\r\nGET /a?x HTTP/1.1\r\nHost: h\r\nRange: bytes=5-9\r\nIf-None-Match: \"x\"\r\n\r\nGET /b";
        let request = whole(text);
        assert_eq!((request.method, request.target, request.close), (Method::Get, &b"/a?x"[..], false));
        assert_eq!((request.range, request.length), (RangeSpec::Span(5, 9), text.len() - 6));
        assert_eq!(request.conditions, b"Host: h\r\nRange: bytes=5-9\r\nIf-None-Match: \"x\"\r\n");
        assert!(whole("HEAD / HTTP/1.0\r\n\r\n").close);
        assert!(!whole("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").close);
        assert!(whole("GET / HTTP/1.1\nHost: h\nConnection: x, CLOSE\n\n").close);
    }

    #[test]
    fn incomplete_and_foreign_heads_are_distinguished() {
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
            ("GET / HTTP/1.1\r\n\r\n", Parsed::Bad(400)),
            ("GET / HTTP/2.0\r\n\r\n", Parsed::Bad(505)),
            ("GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", Parsed::Bad(400)),
            ("GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", Parsed::Bad(400)),
            ("GET / HTTP/1.1\r\nHost: h\r\n folded: x\r\n\r\n", Parsed::Bad(400)),
            ("GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", Parsed::Bad(400)),
        ] {
            assert_eq!(parse(text.as_bytes()), want, "{text}");
        }
        let text = "GET /a HTTP/1.1\r\nRange: bytes=1-2\r\nCookie: ccc";
        assert!(
            matches!(parse(text.as_bytes()), Parsed::Line(r) if r.range == RangeSpec::All && r.close && r.target == b"/a")
        );
    }

    #[test]
    fn beginnings_of_requests_are_recognized() {
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
    fn condition_headers_of_one_name_form_one_list() {
        let hash = [0xab; 16];
        let tag = format!("\"{}\"", "ab".repeat(16));
        let select =
            |fields: &str| whole(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n")).select(&hash, 10);
        for (fields, want) in [
            (String::new(), Selection::Whole),
            (format!("If-None-Match: \"x\"\r\nif-none-match: W/{tag}\r\n"), Selection::NotModified),
            (format!("If-Match: {tag}\r\nIf-Match: \"x\"\r\n"), Selection::Whole),
            (format!("If-Match: W/{tag}\r\n"), Selection::PreconditionFailed),
            (format!("Range: bytes=2-3\r\nIf-Range: {tag}\r\n"), Selection::Part(2, 2)),
            ("Range: bytes=2-3\r\nIf-Range: *\r\n".into(), Selection::Whole),
        ] {
            assert_eq!(select(&fields), want, "{fields}");
        }
        assert_eq!(&entity_tag(&[0x1f; 16]), "1f".repeat(16).as_bytes());
    }

    #[test]
    fn targets_map_to_table_names() {
        let named = |target: &str| match name(target.as_bytes(), Method::Get) {
            Ok((name, _)) => String::from_utf8(name.to_vec()).unwrap(),
            Err(status) => status.to_string(),
        };
        for (target, want) in [
            ("/", "index.html"),
            ("/a/", "a/index.html"),
            ("/a%20b?q", "a b"),
            ("/../a", "400"),
            ("*", "400"),
        ] {
            assert_eq!(named(target), want, "{target}");
        }
        assert_eq!(named(&format!("/{}", "a".repeat(700))), "414");
        let longest = named(&format!("/{}/", "a".repeat(698)));
        assert!(longest.ends_with("a/index.html") && longest.len() == 709);
    }

    proptest! {
        #[test]
        fn any_octets_are_survived(data in prop::collection::vec(any::<u8>(), 0..400), get: bool) {
            let mut text = if get { b"GET /".to_vec() } else { Vec::new() };
            text.extend(data);
            if let Parsed::Whole(r) | Parsed::Line(r) = parse(&text) {
                prop_assert!(r.length <= text.len());
                let _ = name(r.target, r.method);
            }
            let _ = (name(&text, Method::Get), RangeSpec::parse(&text));
        }

        /// Wherever a head is cut, its request line is read as before, and a complete head is read
        /// only from a complete one.
        #[test]
        fn truncated_head_gives_only_its_line(at in 0usize..90) {
            let text = b"GET /dir/file HTTP/1.1\r\nHost: example\r\nRange: bytes=1-2\r\nConnection: close\r\n\r\n";
            match parse(&text[..at.min(text.len())]) {
                Parsed::Whole(r) => prop_assert!(r.length == text.len() && at >= text.len()),
                Parsed::Line(r) => prop_assert!(r.target == b"/dir/file" && r.range == RangeSpec::All && at >= 24),
                Parsed::Split => prop_assert!(at < 24),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
