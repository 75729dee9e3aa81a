//! Builds requests from one that a client sent: for another part of the same object, or for the
//! same response once more.

use super::{INPUTS, fields, request, target, values};

/// Fields that a request for another part must not repeat: ranges, conditions, and `Connection`,
/// since that request uses a separate connection.
const REPLACED: [&str; 7] = [
    "connection",
    "range",
    "if-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
];

/// The request for bytes `first` to `last`, inclusive, of the object that the server sent in
/// response to `head`, which [`request`] has parsed.
#[must_use]
pub fn range_request(head: &[u8], etag: &[u8], first: u64, last: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(head.len() + etag.len() + 100);
    lines(
        head,
        |name| !REPLACED.iter().any(|replaced| name.eq_ignore_ascii_case(replaced.as_bytes())),
        &mut out,
    );
    out.extend_from_slice(
        format!("Connection: keep-alive\r\nRange: bytes={first}-{last}\r\nIf-Range: ").as_bytes(),
    );
    out.extend_from_slice(etag);
    out.extend_from_slice(b"\r\n\r\n");
    out
}

/// Whether the request has a signature, checked by the server, that covers a field which a request
/// for another range must change (AWS Signature Version 4: `SignedHeaders` in `Authorization`, or
/// in the target). Such a request can only be repeated as it is.
#[must_use]
pub fn is_bound(head: &[u8]) -> bool {
    let in_target = target(head).and_then(|target| behind(target, b"X-Amz-SignedHeaders="));
    let in_field = values(head, "authorization").filter_map(|value| behind(value, b"SignedHeaders="));
    in_field.chain(in_target).any(|list| {
        let end = list.iter().position(|b| b", &\t".contains(b)).unwrap_or(list.len());
        // In a target the semicolons are percent-encoded.
        let text = list[..end].to_ascii_lowercase();
        let names = text.split(|&b| b == b';' || b == b'%');
        names
            .map(|name| name.strip_prefix(b"3b").unwrap_or(name))
            .any(|name| REPLACED.iter().any(|replaced| name == replaced.as_bytes()))
    })
}

/// The text after the first occurrence of `marker`.
fn behind<'a>(text: &'a [u8], marker: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(marker.len()).position(|window| window == marker)?;
    Some(&text[at + marker.len()..])
}

/// The request that makes the server generate `response` again: `head`, with the inputs that the
/// response lists in place of those that the client sent.
#[must_use]
pub fn repeated_request(head: &[u8], response: &[u8]) -> Vec<u8> {
    let is_input = |name: &[u8]| name.eq_ignore_ascii_case(INPUTS.as_bytes());
    let mut inputs = Vec::new();
    lines(response, is_input, &mut inputs);
    let mut out = Vec::with_capacity(head.len() + inputs.len());
    lines(head, |name| inputs.is_empty() || !is_input(name), &mut out);
    out.extend_from_slice(&inputs);
    out.extend_from_slice(b"\r\n");
    out
}

/// Length of the request at the beginning of `octets`, if it asks for the same as the request with
/// `head`. Another request may follow, because TCP joins segments that it retransmits.
#[must_use]
pub fn same_request(octets: &[u8], head: &[u8]) -> Option<usize> {
    let length = request(octets).ok()??.length;
    let octets = &octets[..length];
    let is_same_line = octets.split(|&b| b == b'\r').next() == head.split(|&b| b == b'\r').next();
    let host = |octets| values(octets, "host").map(<[u8]>::to_ascii_lowercase);
    (is_same_line && host(octets).eq(host(head))).then_some(length)
}

/// Appends those lines of a head for which `is_wanted` accepts the field name. The first line has
/// an empty name.
fn lines(head: &[u8], is_wanted: impl Fn(&[u8]) -> bool, out: &mut Vec<u8>) {
    for (name, line) in fields(head) {
        if is_wanted(name) {
            out.extend_from_slice(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_range_cannot_be_replaced() {
        let v4 = "Authorization: AWS4-HMAC-SHA256 Credential=k/20260101/r/s3/aws4_request, SignedHeaders";
        let in_target = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-SignedHeaders";
        for (target, fields, want) in [
            ("/a", format!("{v4}=host;range;x-amz-date, Signature=0"), true),
            ("/a", format!("{v4}=host;if-match;x-amz-date,Signature=0"), true),
            ("/a", format!("{v4}=host;x-amz-date, Signature=0\r\nRange: bytes=0-9"), false),
            ("/a", format!("{v4}=host;x-range, Signature=range"), false),
            ("/a", "Authorization: Basic range\r\nRange: bytes=0-9".into(), false),
            (&*format!("/a?{in_target}=host%3Brange&X-Amz-Signature=0"), "Range: bytes=0-9".into(), true),
            (&*format!("/a?{in_target}=host%3brange"), "Range: bytes=0-9".into(), true),
            (&*format!("/a?{in_target}=host&range=1"), "Range: bytes=0-9".into(), false),
        ] {
            let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n");
            assert_eq!(is_bound(head.as_bytes()), want, "{head}");
        }
    }

    #[test]
    fn range_request_drops_conditions() {
        let head = "\r\nGET /a:b HTTP/1.1\r\nHost: h\r\nrange: bytes=1-\r\nIf-Range: \"y\"\r\n\
                    If-None-Match: \"z\"\r\nCookie: c\r\nConnection: close\r\n\r\n";
        let want = "GET /a:b HTTP/1.1\r\nHost: h\r\nCookie: c\r\nConnection: keep-alive\r\nRange: bytes=5-9\r\nIf-Range: \"x\"\r\n\r\n";
        assert_eq!(String::from_utf8(range_request(head.as_bytes(), b"\"x\"", 5, 9)).unwrap(), want);
    }
}
