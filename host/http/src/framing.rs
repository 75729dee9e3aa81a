//! Where a request ends, and whether its connection stays open (RFC 9112 sections 3.2, 6.3 and 9.3).

use crate::{BAD_REQUEST, Field, Method, Refused};

/// Longest body of a method that has no use for one, bytes: it is read and ignored. More is refused with 413.
pub const MAX_IGNORED_BODY: u64 = 1 << 20;

/// Where a request's body ends, according to the header fields read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// The request is HTTP/1.0.
    pub old: bool,
    /// A `Host` was there.
    pub host: bool,
    /// `Connection: close`.
    pub close: bool,
    /// `Connection: keep-alive`.
    pub keep_alive: bool,
    /// A `Transfer-Encoding` was there.
    pub coded: bool,
    /// `Expect: 100-continue`.
    pub expect_continue: bool,
    /// `Content-Length`.
    pub length: Option<u64>,
}

impl Framing {
    /// Starts with the request line alone, before any header field is read.
    #[must_use]
    pub fn new(old: bool) -> Framing {
        Framing { old, ..Framing::default() }
    }

    /// Whether [`take`](Self::take) reads fields of this name.
    #[must_use]
    pub fn reads(name: &[u8]) -> bool {
        const READ: [&str; 5] = ["host", "connection", "content-length", "transfer-encoding", "expect"];
        READ.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
    }

    /// Reads a field, if it has to do with the end of the request.
    ///
    /// # Errors
    /// 400, or 501 for a coding other than chunked (RFC 9112 section 6.1).
    pub fn take(&mut self, field: &Field<'_>) -> Result<(), Refused> {
        let value = field.value;
        if field.is("host") {
            if core::mem::replace(&mut self.host, true) || !is_host(value) {
                return Err(BAD_REQUEST);
            }
        } else if field.is("connection") {
            for option in value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
                self.close |= option.eq_ignore_ascii_case(b"close");
                self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            }
        } else if field.is("content-length") {
            let text = core::str::from_utf8(value).map_err(|_| BAD_REQUEST)?;
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let length = text.parse().ok().filter(|_| digits).ok_or(BAD_REQUEST)?;
            if self.length.replace(length).is_some_and(|before| before != length) {
                return Err(BAD_REQUEST);
            }
        } else if field.is("transfer-encoding") {
            // Framed by a version that has no codings, or coded twice (RFC 9112 section 6.1).
            if self.old || self.coded {
                return Err(BAD_REQUEST);
            }
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Refused(501));
            }
            self.coded = true;
        } else if field.is("expect") {
            // HTTP/1.0 has no interim answers, and other expectations may be ignored (RFC 9110 section 10.1.1).
            self.expect_continue |= !self.old && value.eq_ignore_ascii_case(b"100-continue");
        }
        Ok(())
    }

    /// Judges the head after its last line.
    ///
    /// # Errors
    /// 400 without `Host` in HTTP/1.1 or with two lengths, 411 for chunks and for a body of unknown length, 413 for a body that
    /// is too long to be ignored.
    pub fn complete(&self, method: Method) -> Result<(), Refused> {
        if !self.host && !self.old {
            return Err(BAD_REQUEST);
        }
        if self.coded {
            // Two lengths are an attack on the reader that believes the other one (RFC 9112 section 6.3).
            return Err(if self.length.is_some() { BAD_REQUEST } else { Refused(411) });
        }
        match method {
            Method::Put | Method::Post if self.length.is_none() => Err(Refused(411)),
            Method::Get | Method::Head | Method::Options if self.length.unwrap_or(0) > MAX_IGNORED_BODY => {
                Err(Refused(413))
            }
            _ => Ok(()),
        }
    }

    /// Whether the connection ends with the answer: `close` counts more than `keep-alive` (RFC 9112 section 9.3).
    #[must_use]
    pub fn closes(&self) -> bool {
        self.close || self.old && !self.keep_alive
    }

    /// Whether a body follows the head.
    #[must_use]
    pub fn has_body(&self) -> bool {
        self.coded || self.length.unwrap_or(0) > 0
    }
}

/// Whether a `Host`, or the authority of a target, is a host with or without a port, or empty (RFC 9110 section 7.2,
/// RFC 3986 section 3.2.2).
pub(crate) fn is_host(value: &[u8]) -> bool {
    let (host, port) = match value.strip_prefix(b"[") {
        // An address of IPv6, or of a later version.
        Some(rest) => {
            let Some(end) = rest.iter().position(|&b| b == b']') else { return false };
            (&rest[..end], &rest[end + 1..])
        }
        None => value.split_at(value.iter().position(|&b| b == b':').unwrap_or(value.len())),
    };
    let literal = value.starts_with(b"[");
    let good =
        |b: &u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(b) || (literal && *b == b':');
    let port = match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    host.iter().all(good) && port && !(literal && host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framing(old: bool, fields: &[&str]) -> Result<Framing, Refused> {
        let mut framing = Framing::new(old);
        for line in fields {
            framing.take(&Field::parse(line.as_bytes()).unwrap())?;
        }
        Ok(framing)
    }

    #[test]
    fn connections_that_stay_open() {
        for (old, fields, closes) in [
            (false, &[][..], false),
            (true, &[], true),
            (true, &["Connection: Keep-Alive"], false),
            (false, &["Connection: x, Close"], true),
            (false, &["Connection: close, keep-alive"], true),
            (false, &["Connection: keep-alive", "Connection: close"], true),
            (true, &["Connection: keep-alive, close"], true),
        ] {
            assert_eq!(framing(old, fields).unwrap().closes(), closes, "{fields:?}");
        }
    }

    #[test]
    fn hosts() {
        for host in ["", "h", "h:80", "h:", "10.0.0.1:8080", "[::1]", "[::1]:80", "a_b.example", "%41"] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in ["a b", "a/b", "u@h", "h:8x", "[::1", "[]", "::1", "h:80:80", "a\\b", "\u{e4}", "a#b"] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn bodies() {
        let host = "Host: h";
        for (fields, method, want) in [
            (&[host][..], Method::Get, Ok(())),
            (&[], Method::Get, Err(400)),
            (&[host], Method::Put, Err(411)),
            (&[host, "Content-Length: 3"], Method::Put, Ok(())),
            (&[host, "Content-Length: 1048577"], Method::Get, Err(413)),
            (&[host, "Transfer-Encoding: chunked"], Method::Get, Err(411)),
            (&[host, "Transfer-Encoding: chunked", "Content-Length: 3"], Method::Get, Err(400)),
        ] {
            let framing = framing(false, fields).unwrap();
            assert_eq!(framing.complete(method).map_err(|e| e.0), want, "{fields:?}");
        }
        assert_eq!(Framing::new(true).complete(Method::Get), Ok(()));
    }

    #[test]
    fn ambiguous_framing_is_refused() {
        for (old, fields, code) in [
            (false, &["Host: h", "Host: h"][..], 400),
            (false, &["Content-Length: 3", "Content-Length: 4"], 400),
            (false, &["Content-Length: +3"], 400),
            (false, &["Content-Length: 3, 3"], 400),
            (false, &["Content-Length:"], 400),
            (false, &["Content-Length: 99999999999999999999"], 400),
            (false, &["Transfer-Encoding: gzip"], 501),
            (false, &["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 400),
            (true, &["Transfer-Encoding: chunked"], 400),
        ] {
            assert_eq!(framing(old, fields).map(|_| ()), Err(Refused(code)), "{fields:?}");
        }
    }

    #[test]
    fn expectations() {
        assert!(framing(false, &["Expect: 100-Continue"]).unwrap().expect_continue);
        for (old, line) in [(true, "Expect: 100-continue"), (false, "Expect:"), (false, "Expect: gifts")] {
            assert!(!framing(old, &[line]).unwrap().expect_continue, "{line}");
        }
    }
}
