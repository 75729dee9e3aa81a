//! Heads of requests and responses: finds the ends of their bodies, and makes the request head that
//! the server gets.
//!
//! [`rivulet_http`] parses the lines. Heads that two parsers could understand differently are
//! refused. The head for the server is written from the parsed lines, so that the server sees
//! exactly the request that was checked.

use std::borrow::Cow;
use std::net::SocketAddr;

use rivulet_http::{Chunks, Field, Framing, Method, Refused, RequestLine, StatusLine};

/// Longest head, bytes.
pub(crate) const MAX_HEAD_BYTES: usize = 32 << 10;

const BAD_REQUEST: Refused = Refused(400);

/// Fields from which a server learns the client's address. A client's own fields of these names are
/// removed.
const FORWARDED: [&[u8]; 5] =
    [b"forwarded", b"x-real-ip", b"client-cert", b"client-cert-chain", b"proxy-connection"];
const FORWARDED_PREFIX: &[u8] = b"x-forwarded-";
/// Field with the inputs of a generated response (`docs/trods.md`): a client must not choose them,
/// and must not read them.
const INPUTS: &[u8] = b"x-trods";

/// How the server learns the client's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// By the fields `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host`.
    #[default]
    Fields,
    /// By a header of the PROXY protocol, version 2, before the first request of a connection.
    ProxyProtocol,
    /// Not at all.
    Nothing,
}

/// The body of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A body of known length; this many bytes are left.
    Length(u64),
    /// In the chunked coding.
    Chunked(Chunks),
    /// A body that ends with the connection.
    Close,
}

/// A parsed head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) body: Body,
    pub(crate) is_head: bool,
    /// The request may be sent to the server twice (RFC 9110 section 9.2.2), and has no body.
    pub(crate) is_repeatable: bool,
    /// The request asks for a change of protocol.
    pub(crate) upgrade: bool,
    /// The client wants the connection to end with the response.
    pub(crate) close: bool,
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Body,
    /// Whether the server closes the connection after the response.
    pub(crate) close: bool,
}

/// Finds the end of the head at the beginning of `data`, including the empty line. `scanned` counts
/// the bytes that were already searched, and is updated.
pub(crate) fn find_end(data: &[u8], scanned: &mut usize) -> Option<usize> {
    // Empty lines before the first line are allowed (RFC 9112 section 2.2). They are skipped at
    // once, because a head of empty lines only would otherwise be searched again at each line.
    let start = data.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(data.len());
    // The last bytes before the new ones may begin the final line end.
    let mut at = scanned.saturating_sub(3).max(start);
    while let Some(n) = data[at..].iter().position(|&b| b == b'\n') {
        let line_end = at + n;
        let before = data[..line_end].strip_suffix(b"\r").unwrap_or(&data[..line_end]);
        if before.ends_with(b"\n") {
            *scanned = 0;
            return Some(line_end + 1);
        }
        at = line_end + 1;
    }
    *scanned = data.len();
    None
}

/// The lines of a head, without their line ends and without empty lines.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|&b| b == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line)).filter(|l| !l.is_empty())
}

/// Parses a request's head, and appends the head for the server to `out`. `client_name`: the name
/// in the client's certificate.
///
/// # Errors
/// The status with which the request is refused; `out` is unchanged.
pub(crate) fn forward_request(
    head: &[u8],
    peer: SocketAddr,
    (forwarded, client_name): (Forwarded, Option<&str>),
    out: &mut Vec<u8>,
) -> Result<Request, Refused> {
    let start = out.len();
    rewrite(head, peer, (forwarded, client_name), out).inspect_err(|_| out.truncate(start))
}

fn rewrite(
    head: &[u8],
    peer: SocketAddr,
    (forwarded, client_name): (Forwarded, Option<&str>),
    out: &mut Vec<u8>,
) -> Result<Request, Refused> {
    let mut lines = lines(head);
    let first = lines.next().ok_or(BAD_REQUEST)?;
    let line = RequestLine::parse(first)?;
    if line.target.is_empty() || line.target.iter().any(|b| *b <= b' ' || *b == 0x7f) {
        return Err(BAD_REQUEST);
    }
    // CONNECT is refused, because this port gives access to one server only.
    if first.starts_with(b"CONNECT ") {
        return Err(Refused(501));
    }
    let is_known = matches!(line.method, Method::Get | Method::Head | Method::Options);
    out.extend_from_slice(&first[..first.len() - b"HTTP/1.1".len()]);
    out.extend_from_slice(if line.old { b"HTTP/1.0\r\n" } else { b"HTTP/1.1\r\n" });
    let mut framing = Framing::new(line.old);
    let (mut host, mut protocol, mut wants_upgrade) = (None, None, false);
    for line in lines {
        let field = Field::parse(line)?;
        if field.value.iter().any(|b| *b < b' ' && *b != b'\t' || *b == 0x7f) {
            return Err(BAD_REQUEST);
        }
        framing.take(&field)?;
        if field.is("connection") {
            wants_upgrade |= field.value.split(|&b| b == b',').any(|o| is_name(o.trim_ascii(), b"upgrade"));
            continue;
        }
        if field.is("upgrade") {
            if protocol.replace(field.value).is_some() {
                return Err(BAD_REQUEST);
            }
            continue;
        }
        if is_removed(field.name) {
            continue;
        }
        if field.is("host") {
            host = Some(field.value);
        }
        push_field(out, field.name, field.value);
    }
    if framing.coded && framing.length.is_some() || !framing.host && !line.old {
        return Err(BAD_REQUEST);
    }
    // The server may take its name from either (RFC 9112 section 3.2.2), and `X-Forwarded-Host` has
    // one of them.
    if let (Some((scheme, authority)), Some(host)) = (scheme_and_authority(line.target), host)
        && without_default_port(scheme, authority) != without_default_port(scheme, host)
    {
        return Err(BAD_REQUEST);
    }
    // HTTP/2 in a tunnel would carry requests to the server that are not checked here.
    let protocol = protocol.filter(|p| wants_upgrade && !line.old && !names_http2(p));
    if let Some(protocol) = protocol {
        push_field(out, b"Upgrade", protocol);
        push_field(out, b"Connection", b"upgrade");
    } else if framing.closes() {
        push_field(out, b"Connection", b"close");
    } else if line.old {
        push_field(out, b"Connection", b"keep-alive");
    }
    if forwarded == Forwarded::Fields {
        push_field(out, b"X-Forwarded-For", peer.ip().to_canonical().to_string().as_bytes());
        push_field(out, b"X-Forwarded-Proto", b"https");
        if let Some(host) = host {
            push_field(out, b"X-Forwarded-Host", host);
        }
    }
    if let Some(name) = client_name {
        push_field(out, b"X-Forwarded-Client-Name", name.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    let body = if framing.coded {
        Body::Chunked(Chunks::default())
    } else {
        Body::Length(framing.length.unwrap_or(0))
    };
    Ok(Request {
        is_head: line.method == Method::Head,
        is_repeatable: is_known && body == Body::Length(0) && protocol.is_none(),
        body,
        upgrade: protocol.is_some(),
        close: framing.closes(),
    })
}

/// Scheme and authority of a target in absolute form; `None` for other forms.
fn scheme_and_authority(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = target.windows(3).position(|w| w == b"://")?;
    let (scheme, rest) = (&target[..at], &target[at + 3..]);
    if target.starts_with(b"/") || !scheme.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#')).unwrap_or(rest.len());
    Some((scheme, &rest[..end]))
}

/// A host and port in lower case, without the port that the scheme has by default.
fn without_default_port(scheme: &[u8], authority: &[u8]) -> Vec<u8> {
    let default: &[u8] = if scheme.eq_ignore_ascii_case(b"https") { b":443" } else { b":80" };
    authority.strip_suffix(default).unwrap_or(authority).to_ascii_lowercase()
}

/// The head of a response without the inputs from which the server generated it.
pub(crate) fn without_inputs(head: &[u8]) -> Cow<'_, [u8]> {
    let is_inputs = |line: &&[u8]| {
        line.iter().position(|&b| b == b':').is_some_and(|colon| is_name(line[..colon].trim_ascii(), INPUTS))
    };
    let lines = || head.split_inclusive(|&b| b == b'\n');
    if !lines().any(|line| is_inputs(&line)) {
        return Cow::Borrowed(head);
    }
    Cow::Owned(lines().filter(|line| !is_inputs(line)).flatten().copied().collect())
}

fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// Whether two field names are equal apart from case and apart from other characters in place of
/// `-`. CGI and WSGI map `-` and `_` to the same name, and lighttpd's CGI maps every character that
/// is neither letter nor digit.
fn is_name(name: &[u8], other: &[u8]) -> bool {
    name.len() == other.len() && name.iter().zip(other).all(|(a, b)| is_same(*a, *b))
}

fn is_same(a: u8, lower: u8) -> bool {
    a.eq_ignore_ascii_case(&lower) || lower == b'-' && !a.is_ascii_alphanumeric()
}

fn is_removed(name: &[u8]) -> bool {
    let is_forwarded =
        name.get(..FORWARDED_PREFIX.len()).is_some_and(|start| is_name(start, FORWARDED_PREFIX));
    // The next two fields concern only the connection between the client and this terminator.
    is_forwarded
        || FORWARDED.iter().any(|known| is_name(name, known))
        || is_name(name, b"keep-alive")
        || is_name(name, b"http2-settings")
        || is_name(name, INPUTS)
}

fn names_http2(protocols: &[u8]) -> bool {
    protocols
        .split(|&b| b == b',')
        .any(|p| p.trim_ascii().get(..2).is_some_and(|p| p.eq_ignore_ascii_case(b"h2")))
}

/// Parses the head of a response. `is_head`: as in [`Request::is_head`] of its request.
///
/// Returns `None` if a client could understand the head differently.
pub(crate) fn parse_reply(head: &[u8], is_head: bool) -> Option<Reply> {
    let mut lines = lines(head);
    let StatusLine { status, old } = StatusLine::parse(lines.next()?)?;
    let mut framing = Framing::new(old);
    for line in lines {
        let field = Field::parse(line).ok()?;
        // A `Host` field in a response does not affect its length.
        if !field.is("host") {
            framing.take(&field).ok()?;
        }
    }
    // Larger lengths could overflow sums; no file is that long.
    if framing.length.is_some_and(|length| framing.coded || length > i64::MAX as u64) {
        return None;
    }
    let body = match framing.length {
        _ if is_head || status < 200 || matches!(status, 204 | 304) => Body::Length(0),
        _ if framing.coded => Body::Chunked(Chunks::default()),
        Some(length) => Body::Length(length),
        None => Body::Close,
    };
    let close = framing.closes() || body == Body::Close;
    Some(Reply { status, body, close })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(text: &str) -> Result<(String, Request), u16> {
        let peer = "[::ffff:192.0.2.7]:1234".parse().unwrap();
        let mut out = Vec::new();
        let request =
            forward_request(text.as_bytes(), peer, (Forwarded::Fields, None), &mut out).map_err(|e| e.0)?;
        Ok((String::from_utf8(out).unwrap(), request))
    }

    fn fields(fields: &str) -> Result<(String, Request), u16> {
        forward(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"))
    }

    #[test]
    fn server_gets_the_request_and_the_clients_address() {
        let (head, request) =
            forward("\r\nGET /a?b HTTP/1.2\nHost: h:1\nCookie:  c\r\nRange: bytes=1-2\r\n\r\n").unwrap();
        assert_eq!(
            head,
            "GET /a?b HTTP/1.1\r\nHost: h:1\r\nCookie: c\r\nRange: bytes=1-2\r\nX-Forwarded-For: 192.0.2.7\r\n\
             X-Forwarded-Proto: https\r\nX-Forwarded-Host: h:1\r\n\r\n"
        );
        let expected = Request {
            body: Body::Length(0),
            is_head: false,
            is_repeatable: true,
            upgrade: false,
            close: false,
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn clients_own_forwarding_fields_are_removed() {
        let plain = fields("").unwrap().0;
        for field in [
            "X-Forwarded-For: 1.1.1.1",
            "x-forwarded-FOR: 1.1.1.1",
            "X_Forwarded_For: 1.1.1.1",
            "X.Forwarded.For: 1.1.1.1",
            "X!Real~IP: 1.1.1.1",
            "X-Forwarded-Anything: x",
            "X-Forwarded-Client-Name: CN=x",
            "Client-Cert: :eA==:",
            "Client_Cert_Chain: :eA==:",
            "Forwarded: for=1.1.1.1",
            "X-Real-IP: 1.1.1.1",
            "X-TRODS: 7",
            "x_trods: 7",
            "Proxy-Connection: close",
            "Keep-Alive: 5",
            // The next proxy would remove the field that we set.
            "Connection: X-Forwarded-For",
            "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQ",
            "Upgrade: websocket",
        ] {
            assert_eq!(fields(&format!("{field}\r\n")).unwrap().0, plain, "{field}");
        }
    }

    #[test]
    fn target_of_another_host_is_refused() {
        let forward = |target: &str, host: &str| {
            forward(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")).map(|(head, _)| head)
        };
        for (target, host) in [
            ("http://a/x", "a"),
            ("HTTPS://A.example:443/x?y", "a.EXAMPLE"),
            ("http://a", "a:80"),
            ("http://[fd00::1]:81/", "[fd00::1]:81"),
            ("/http://b/x", "a"),
            ("/x?u=http://b/", "a"),
        ] {
            let head = forward(target, host).unwrap();
            assert!(head.starts_with(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n")), "{head}");
        }
        for (target, host) in [
            ("http://b/x", "a"),
            ("http://a:81/x", "a"),
            ("https://a:80/x", "a"),
            ("http://user@a/x", "a"),
            ("http://b?/a", "a"),
            ("http:///a", "a"),
            ("http://b#@a/", "a"),
        ] {
            assert_eq!(forward(target, host), Err(400), "{target} {host}");
        }
    }

    #[test]
    fn inputs_are_removed_from_responses() {
        let head =
            "HTTP/1.1 200 OK\r\nx-trods: a \r\nA: X-TRODS\r\nX-TRODS:\nX_TRODS: b\r\nX-TRODS-B: b\r\n\r\n";
        let expected = "HTTP/1.1 200 OK\r\nA: X-TRODS\r\nX-TRODS-B: b\r\n\r\n";
        assert_eq!(without_inputs(head.as_bytes()), expected.as_bytes());
        assert!(matches!(without_inputs(expected.as_bytes()), Cow::Borrowed(_)));
    }

    #[test]
    fn connection_options_are_forwarded() {
        for (text, line) in [
            ("Connection: Close\r\n", "Connection: close\r\n"),
            (
                "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n",
                "Upgrade: websocket\r\nConnection: upgrade\r\n",
            ),
        ] {
            assert!(fields(text).unwrap().0.contains(line), "{text}");
        }
        let old = forward("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").unwrap();
        assert!(old.0.starts_with("GET / HTTP/1.0\r\nConnection: keep-alive\r\n") && !old.1.close);
        assert!(forward("GET / HTTP/1.0\r\n\r\n").unwrap().1.close);
    }

    #[test]
    fn ambiguous_requests_are_refused() {
        for (text, code) in [
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET /\tx HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET /\rx HTTP/1.1\r\nHost: h\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
            ("CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", 501),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
            ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\n folded: b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nA: b\u{1}\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n", 400),
        ] {
            assert_eq!(forward(text).map(|_| ()), Err(code), "{text:?}");
        }
    }

    #[test]
    fn end_of_head_is_found_in_any_parts() {
        for text in ["\r\n\r\nGET / HTTP/1.1\r\nA: b\r\n\r\n", "GET / HTTP/1.1\n\n", "HTTP/1.1 200 OK\r\n\n"]
        {
            let data = [text.as_bytes(), b"\r\n\r\nmore"].concat();
            for cut in 0..text.len() {
                let mut scanned = 0;
                assert_eq!(find_end(&data[..cut], &mut scanned), None, "{text:?} {cut}");
                assert_eq!(find_end(&data, &mut scanned), Some(text.len()), "{text:?} {cut}");
            }
        }
    }

    /// A search from the beginning at each line took minutes for these bytes.
    #[test]
    fn head_of_empty_lines_is_searched_once() {
        let (lines, mut scanned) = (vec![b'\n'; 4 << 20], 0);
        assert_eq!(find_end(&lines, &mut scanned), None);
        let data = [lines.as_slice(), b"GET / HTTP/1.1\r\n\r\n"].concat();
        assert_eq!(find_end(&data, &mut scanned), Some(data.len()));
    }

    #[test]
    fn reply_length_follows_rfc_9112() {
        let parse = |text: &str, is_head| parse_reply(format!("HTTP/1.1 {text}\r\n\r\n").as_bytes(), is_head);
        let body = |text: &str, is_head| parse(text, is_head).map(|reply| reply.body);
        assert_eq!(body("200 OK\r\nContent-Length: 5000000000", false), Some(Body::Length(5_000_000_000)));
        assert_eq!(body("200 OK\r\nContent-Length: 5", true), Some(Body::Length(0)));
        assert_eq!(body("304 N\r\nContent-Length: 5", false), Some(Body::Length(0)));
        assert_eq!(body("204 N", false), Some(Body::Length(0)));
        assert_eq!(body("101 S", false), Some(Body::Length(0)));
        assert_eq!(body("200 OK", false), Some(Body::Close));
        assert_eq!(
            body("200 OK\r\nTransfer-Encoding: chunked", false),
            Some(Body::Chunked(Chunks::default()))
        );
        for bad in [
            "200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
            "200 OK\r\nContent-Length: 5\r\nContent-Length: 6",
            "200 OK\r\nContent-Length: +5",
            "200 OK\r\nContent-Length: ",
            "200 OK\r\nContent-Length: 18446744073709551615",
            "200 OK\r\nTransfer-Encoding: gzip",
            "20 OK",
        ] {
            assert_eq!(parse(bad, false), None, "{bad}");
        }
        assert!(parse("200 OK\r\nConnection: close\r\nContent-Length: 1", false).unwrap().close);
        assert!(!parse("200 OK\r\nContent-Length: 1", false).unwrap().close);
    }
}
