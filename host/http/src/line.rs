//! The lines of a request head (RFC 9112 sections 3 and 5), without their ends.

use crate::{BAD_REQUEST, Refused};

/// The method of a request.
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
    /// A method that no server here knows.
    Other,
}

/// The first line of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLine<'a> {
    /// The method.
    pub method: Method,
    /// The target as it stands there.
    pub target: &'a [u8],
    /// HTTP/1.0.
    pub old: bool,
}

impl<'a> RequestLine<'a> {
    /// Reads a request line.
    ///
    /// # Errors
    /// 400, or 505 for another major version (RFC 9110 section 15.6.6).
    pub fn parse(line: &'a [u8]) -> Result<RequestLine<'a>, Refused> {
        let mut words = line.split(|&b| b == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(BAD_REQUEST);
        };
        if method.is_empty() || !method.iter().copied().all(is_token) {
            return Err(BAD_REQUEST);
        }
        // A higher minor version is answered as ours is (RFC 9110 section 2.5).
        let old = match version.strip_prefix(b"HTTP/") {
            Some(b"1.0") => true,
            Some([b'1', b'.', b'1'..=b'9']) => false,
            Some([b'0'..=b'9', b'.', b'0'..=b'9']) => return Err(Refused(505)),
            _ => return Err(BAD_REQUEST),
        };
        let method = match method {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"PUT" => Method::Put,
            b"POST" => Method::Post,
            b"OPTIONS" => Method::Options,
            _ => Method::Other,
        };
        Ok(RequestLine { method, target, old })
    }
}

/// The first line of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusLine {
    /// The status code.
    pub status: u16,
    /// HTTP/1.0.
    pub old: bool,
}

impl StatusLine {
    /// Reads the status line of an HTTP/1.0 or HTTP/1.1 response (RFC 9112 section 4). The space behind the status code may be
    /// missing where no reason follows.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<StatusLine> {
        let old = line.starts_with(b"HTTP/1.0 ");
        if !old && !line.starts_with(b"HTTP/1.1 ") {
            return None;
        }
        let (digits, reason) = line[9..].split_at_checked(3)?;
        let status =
            digits.iter().try_fold(0, |sum, b| b.is_ascii_digit().then(|| sum * 10 + u16::from(b - b'0')))?;
        let is_text = |b: &u8| matches!(b, b'\t' | b' '..=0x7e | 0x80..);
        (reason.is_empty() || reason.starts_with(b" ") && reason.iter().all(is_text))
            .then_some(StatusLine { status, old })
    }
}

/// A field of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name; case does not matter.
    pub name: &'a [u8],
    /// Its value, without white space around it.
    pub value: &'a [u8],
}

impl<'a> Field<'a> {
    /// Reads a field line. A folded line, white space in front of the colon, a bare CR and NUL are refused: two readers may
    /// take them for different things (RFC 9112 sections 5.1, 5.2 and 2.2, RFC 9110 section 5.5).
    ///
    /// # Errors
    /// 400.
    pub fn parse(line: &'a [u8]) -> Result<Field<'a>, Refused> {
        let colon = line.iter().position(|&b| b == b':').ok_or(BAD_REQUEST)?;
        let (name, behind) = (&line[..colon], &line[colon + 1..]);
        // Without a way out of the loops they take many bytes at a time.
        let is_name = name.iter().fold(true, |good, &b| good & is_token(b));
        let is_bad = behind.iter().fold(false, |bad, &b| bad | matches!(b, b'\r' | b'\n' | 0));
        if name.is_empty() || !is_name || is_bad {
            return Err(BAD_REQUEST);
        }
        Ok(Field { name, value: behind.trim_ascii() })
    }

    /// Whether this is its name.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
    }
}

/// tchar of RFC 9110 section 5.6.2.
#[must_use]
pub fn is_token(b: u8) -> bool {
    /// Names of fields are looked at byte by byte.
    const TOKEN: [bool; 256] = {
        let (mut table, mut b) = ([false; 256], 0);
        while b < 256 {
            table[b] = (b as u8).is_ascii_alphanumeric();
            b += 1;
        }
        let (marks, mut n) = (b"!#$%&'*+-.^_`|~", 0);
        while n < marks.len() {
            table[marks[n] as usize] = true;
            n += 1;
        }
        table
    };
    TOKEN[usize::from(b)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_lines() {
        let line = RequestLine::parse(b"GET /a?b HTTP/1.1").unwrap();
        assert_eq!(line, RequestLine { method: Method::Get, target: b"/a?b", old: false });
        assert!(RequestLine::parse(b"HEAD / HTTP/1.0").unwrap().old);
        assert_eq!(RequestLine::parse(b"BREW / HTTP/1.9").unwrap().method, Method::Other);
        for (line, code) in [
            ("GET / HTTP/2.0", 505),
            ("GET / HTTP/0.9", 505),
            ("GET / HTTP/1.10", 400),
            ("GET / http/1.1", 400),
            ("GET /", 400),
            ("GET  / HTTP/1.1", 400),
            ("GET / HTTP/1.1 ", 400),
            ("G@T / HTTP/1.1", 400),
            (" / HTTP/1.1", 400),
            ("", 400),
        ] {
            assert_eq!(RequestLine::parse(line.as_bytes()), Err(Refused(code)), "{line}");
        }
    }

    #[test]
    fn status_lines() {
        for (line, want) in [
            ("HTTP/1.1 200 OK", Some((200, false))),
            ("HTTP/1.0 404", Some((404, true))),
            ("HTTP/1.1 206 ", Some((206, false))),
            ("HTTP/1.1 200 caf\u{e9}\t", Some((200, false))),
            ("HTTP/1.2 200 OK", None),
            ("HTTP/2 200", None),
            ("HTTP/1.1  200 OK", None),
            ("HTTP/1.1 20 OK", None),
            ("HTTP/1.1 2000 OK", None),
            ("HTTP/1.1 200 a\rb", None),
            ("HTTP/1.1 ", None),
            ("SSH-2.0", None),
        ] {
            let got = StatusLine::parse(line.as_bytes()).map(|line| (line.status, line.old));
            assert_eq!(got, want, "{line}");
        }
    }

    #[test]
    fn fields() {
        let field = Field::parse(b"Range:\t bytes=0-1 ").unwrap();
        assert_eq!((field.name, field.value), (&b"Range"[..], &b"bytes=0-1"[..]));
        assert!(field.is("range") && !field.is("rang"));
        assert_eq!(Field::parse(b"X:").unwrap().value, b"");
        for line in ["no colon", ": x", "Host : h", " folded: x", "a: b\rc", "a: b\r", "a: \0"] {
            assert_eq!(Field::parse(line.as_bytes()), Err(BAD_REQUEST), "{line:?}");
        }
    }
}
