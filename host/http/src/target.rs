//! The target of a request as a path (RFC 9112 section 3.2, RFC 3986 sections 2.1 and 5.2.4).

use core::fmt;

use arrayvec::ArrayVec;

use crate::framing::is_host;
use crate::{BAD_REQUEST, Method, Refused};

/// Longest path, bytes: with it a continuation or an answer fits into a packet. Longer ones are refused with 414.
pub const MAX_PATH: usize = 700;

/// A decoded path: percent-escapes resolved, without empty segments and without `.` and `..`.
pub type Path = ArrayVec<u8, MAX_PATH>;

/// A target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Begins with `/`. Its bytes need not be UTF-8.
    pub path: Path,
    /// What stands behind `?`, as it was sent.
    pub query: Option<&'a [u8]>,
}

impl Target<'_> {
    /// Reads a target. Absolute form is accepted, its authority ignored (RFC 9112 section 3.2.2).
    ///
    /// # Errors
    /// 400, or 414 for a path of more than [`MAX_PATH`] bytes.
    pub fn parse(target: &[u8], method: Method) -> Result<Target<'_>, Refused> {
        // Controls and white space have to be encoded.
        if target.iter().any(|&b| b <= b' ' || b == 0x7f) {
            return Err(BAD_REQUEST);
        }
        if target == b"*" && method == Method::Options {
            return Ok(Target { path: Path::from_iter([b'/']), query: None });
        }
        let end = target.iter().position(|&b| b == b'#').unwrap_or(target.len());
        let target = &target[..end];
        let question = target.iter().position(|&b| b == b'?');
        let query = question.map(|at| &target[at + 1..]);
        let raw = path_of(&target[..question.unwrap_or(target.len())])?;
        let mut path = Path::new();
        for part in Decoded(raw).chain([None]) {
            // A path that ends at a part of dots means the folder.
            let (ends, last) = match part {
                Some(Ok(b'/')) => (true, false),
                Some(Ok(b)) => {
                    path.try_push(b).map_err(|_| Refused(414))?;
                    (false, false)
                }
                Some(Err(refused)) => return Err(refused),
                None => (true, true),
            };
            if ends {
                end_part(&mut path, last)?;
            }
        }
        Ok(Target { path, query })
    }
}

/// The part of a path that ends here is checked, and a slash put behind it unless it is the last.
fn end_part(path: &mut Path, last: bool) -> Result<(), Refused> {
    let start = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    match &path[start..] {
        b"" | b"." => path.truncate(start),
        b".." => {
            // Above the root there is nothing.
            let parent =
                path[..start].strip_suffix(b"/").filter(|above| !above.is_empty()).ok_or(BAD_REQUEST)?;
            let above = parent.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
            path.truncate(above);
        }
        _ if last => return Ok(()),
        _ => return path.try_push(b'/').map_err(|_| Refused(414)),
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Ok(())
}

/// The path of a target in origin form or absolute form.
fn path_of(target: &[u8]) -> Result<&[u8], Refused> {
    if target.starts_with(b"/") {
        return Ok(target);
    }
    let colon = target.iter().position(|&b| b == b':').ok_or(BAD_REQUEST)?;
    let scheme = &target[..colon];
    if !scheme.eq_ignore_ascii_case(b"http") && !scheme.eq_ignore_ascii_case(b"https") {
        return Err(BAD_REQUEST);
    }
    let rest = target[colon + 1..].strip_prefix(b"//").ok_or(BAD_REQUEST)?;
    let (authority, path) = rest.split_at(rest.iter().position(|&b| b == b'/').unwrap_or(rest.len()));
    if authority.is_empty() || !is_host(authority) {
        return Err(BAD_REQUEST);
    }
    Ok(if path.is_empty() { b"/" } else { path })
}

/// The bytes of a path, percent-decoded.
struct Decoded<'a>(&'a [u8]);

impl Iterator for Decoded<'_> {
    type Item = Option<Result<u8, Refused>>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        if first != b'%' {
            return Some(Some(Ok(first)));
        }
        let digit = |b: &u8| char::from(*b).to_digit(16);
        let decoded = match rest {
            [high, low, behind @ ..] => {
                self.0 = behind;
                digit(high).zip(digit(low)).map(|(high, low)| (high << 4 | low) as u8).filter(|b| *b != 0)
            }
            _ => None,
        };
        Some(Some(decoded.ok_or(BAD_REQUEST)))
    }
}

/// Displays a decoded path percent-encoded, for a `Location` field. Characters that RFC 3986 allows in a
/// path are not encoded, because a reserved character and its encoding are different URIs
/// (sections 2.2 and 3.3).
#[derive(Clone, Copy, Debug)]
pub struct EscapedPath<'a>(pub &'a [u8]);

impl fmt::Display for EscapedPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &b in self.0 {
            // pchar of RFC 3986 section 3.3, and the slash between parts.
            if b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&b) {
                write!(f, "{}", char::from(b))?;
            } else {
                write!(f, "%{b:02X}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(target: &[u8]) -> Result<Vec<u8>, u16> {
        Target::parse(target, Method::Get).map(|t| t.path.to_vec()).map_err(|e| e.0)
    }

    #[test]
    fn paths() {
        for (target, want) in [
            ("/", "/"),
            ("/a/", "/a/"),
            ("//a/./b", "/a/b"),
            ("//folder", "/folder"),
            ("/a%20b?q", "/a b"),
            ("/a#f?q", "/a"),
            ("http://h:80/a", "/a"),
            ("HTTPS://h", "/"),
            ("http://h?x=/secret", "/"),
            ("/a/../b", "/b"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/../../c", "/c"),
            ("/a%2fb", "/a/b"),
            ("/a%2f..%2fb", "/b"),
            ("/...", "/..."),
            ("/a//", "/a/"),
        ] {
            assert_eq!(path(target.as_bytes()), Ok(want.as_bytes().to_vec()), "{target}");
        }
        assert_eq!(path(b"/caf%e9\xe8"), Ok(b"/caf\xe9\xe8".to_vec()));
        for target in [
            "",
            "*",
            "a",
            "http:///a",
            "http://",
            "ftp://h/a",
            "http://a b/",
            "http://u@h/",
            "http:/a",
            "/..",
            "/../a",
            "/a/../../b",
            "/%2e%2e/a",
            "/%00",
            "/%zz",
            "/%+1",
            "/100%",
            "/%a",
            "/a b",
            "/a\u{7f}",
            "/a\t",
        ] {
            assert_eq!(path(target.as_bytes()), Err(400), "{target}");
        }
        let target = Target::parse(b"/a?b?c#d", Method::Get).unwrap();
        assert_eq!((&target.path[..], target.query), (&b"/a"[..], Some(&b"b?c"[..])));
        assert!(Target::parse(b"*", Method::Options).is_ok());
        let name = |n: usize| format!("/{}", "a".repeat(n));
        assert!(path(name(MAX_PATH - 1).as_bytes()).is_ok());
        assert_eq!(path(name(MAX_PATH).as_bytes()), Err(414));
    }

    #[test]
    fn escaped_path_parses_to_the_same_path() {
        let path = b"/a b/-._~!$&'()*+,;=:@/%?#[]\"<>\\^`{|}\x7f\xe9\n";
        let want = "/a%20b/-._~!$&'()*+,;=:@/%25%3F%23%5B%5D%22%3C%3E%5C%5E%60%7B%7C%7D%7F%E9%0A";
        assert_eq!(EscapedPath(path).to_string(), want);
        assert_eq!(Target::parse(want.as_bytes(), Method::Get).unwrap().path[..], path[..]);
    }

    proptest! {
        /// Whatever the target, a path leads nowhere else: it begins with a slash and has no part of dots or nothing.
        #[test]
        fn no_path_leads_out(target in prop::collection::vec(prop::sample::select(b"/.%2eEfFa?#\xe9h:t".to_vec()), 0..60)) {
            let mut text = b"/".to_vec();
            text.extend(target);
            if let Ok(path) = path(&text) {
                prop_assert_eq!(path[0], b'/');
                let parts: Vec<_> = path[1..].split(|&b| b == b'/').collect();
                let (last, inner) = parts.split_last().unwrap();
                prop_assert!(inner.iter().all(|p| !matches!(p[..], [] | [b'.'] | [b'.', b'.'])));
                prop_assert!(!matches!(last[..], [b'.'] | [b'.', b'.']));
            }
        }
    }
}
