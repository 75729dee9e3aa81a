//! Where a chunked body ends (RFC 9112 section 7.1).

use crate::flow::Reason;

/// Octets of the whole body, trailers included; `None` if more are needed.
///
/// # Errors
/// [`Reason::Malformed`].
pub fn end(octets: &[u8]) -> Result<Option<usize>, Reason> {
    let mut at = 0;
    loop {
        let Some(line) = line(octets, at)? else { return Ok(None) };
        at += line.len() + 2;
        let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        // Behind the size stands nothing or an extension.
        if !(1..=8).contains(&digits)
            || !matches!(line[digits..].trim_ascii_start().first(), None | Some(b';'))
        {
            return Err(Reason::Malformed);
        }
        let size =
            std::str::from_utf8(&line[..digits]).ok().and_then(|hex| usize::from_str_radix(hex, 16).ok());
        let size = size.ok_or(Reason::Malformed)?;
        if size == 0 {
            break;
        }
        at += size;
        match octets.get(at..) {
            Some([b'\r', b'\n', ..]) => at += 2,
            None | Some([] | [b'\r']) => return Ok(None),
            Some(_) => return Err(Reason::Malformed),
        }
    }
    loop {
        let Some(line) = line(octets, at)? else { return Ok(None) };
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Some(at));
        }
    }
}

/// The line at `at`, without its end, which must be CRLF.
fn line(octets: &[u8], at: usize) -> Result<Option<&[u8]>, Reason> {
    let rest = octets.get(at..).unwrap_or_default();
    let Some(end) = rest.iter().position(|&b| b == b'\n') else { return Ok(None) };
    rest[..end].strip_suffix(b"\r").map(Some).ok_or(Reason::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_found_as_soon_as_it_is_there() {
        for body in
            ["0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "A;x=y\r\n0123456789\r\n1 \r\n\n\r\n00\r\nT: t\r\n\r\n"]
        {
            for n in 0..body.len() {
                assert_eq!(end(&body.as_bytes()[..n]), Ok(None), "{body} {n}");
            }
            assert_eq!(end(format!("{body}HTTP").as_bytes()), Ok(Some(body.len())));
        }
    }

    #[test]
    fn what_is_not_chunked_is_refused() {
        for body in [
            "\r\n",
            "x\r\n",
            "3\r\nabcd\r\n",
            "3\nabc",
            "123456789\r\n",
            "3 4\r\n",
            "-1\r\n",
            "0\r\nT: t\n\r\n",
        ] {
            assert_eq!(end(body.as_bytes()), Err(Reason::Malformed), "{body}");
        }
    }
}
