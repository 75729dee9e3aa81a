//! Decides whether a server's answer has the object that the client was receiving: equal strong
//! entity tag, coding, length and place. For a generated response, all header fields that describe
//! the body must be equal.

use super::Stop;
use crate::head::{self, Method};
use crate::record::{Body, Response, Seen};

/// Why a connection was not resumed; its client gets a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The server's status shows that it lacks the object, or does not send ranges of it.
    #[error("the server says {0}")]
    Status(u16),
    /// The entity tag differs or is not strong; for a generated response also: `Last-Modified`
    /// differs.
    #[error("another entity tag or date of change")]
    Tag,
    /// The length differs, or the server sent another part than the requested one.
    #[error("another length")]
    Length,
    /// The content coding differs; for a generated response also: the media type differs.
    #[error("another coding or type")]
    Coding,
    /// The heads are equal, but the bytes differ.
    #[error("other octets")]
    Content,
    /// No digest shows whether the server has the same bytes, and the service is not configured to
    /// trust the entity tag.
    #[error("nobody has compared the bytes")]
    Unknown,
    /// The server does not support ranges, and the client's place is too far from the object's
    /// beginning to read up to it.
    #[error("no ranges, and too far to read through")]
    Far,
    /// The server cannot be asked from the client's address, and the service forbids another one.
    #[error("the client's address cannot be carried to the server")]
    Address,
    /// The former replica's server may have executed a request that must not be executed twice.
    #[error("a request that the former replica's server may have executed")]
    Repeated,
    /// The server died while it received a request that must not be sent twice.
    #[error("a request was cut")]
    Interrupted,
    /// The server reset its connection in the middle of an answer.
    #[error("an answer was cut")]
    Cut,
    /// The connection was idle for too long, perhaps in the middle of an answer.
    #[error("idle, perhaps in the middle of an answer")]
    Idle,
    /// The server's answer is not HTTP.
    #[error("no HTTP")]
    Malformed,
    /// The server refused the connection or did not answer.
    #[error("no server")]
    Unreachable,
}

/// Limit on the bytes of an answer that are read and dropped before the client's place. At a
/// gigabyte a second, which loopback reaches, this bounds the client's stall to a second.
const MAX_THROUGH: u64 = 1 << 30;

/// The head of an answer that contains the requested bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Length of the head, bytes.
    pub head: usize,
    /// Bytes of the answer's body before the requested ones.
    pub before: u64,
    /// Whether the answer has all bytes that the client requested, so that no further answer is needed.
    pub is_whole: bool,
}

/// The requests that fetch an object's bytes from offset `from` of its body, preceded by a request
/// for its known beginning. `None` for a response that is not an object.
#[must_use]
pub fn object_requests(response: &Response, from: u64) -> Option<Vec<u8>> {
    let (Body::Object { request, check, .. }, Some(object)) = (&response.body, response.object()) else {
        return None;
    };
    if head::is_bound(request) {
        // A signed request with another range would be refused, so the answer to the client's own
        // request is read up to the place.
        return Some(request.clone());
    }
    let ask = |from: u64, count: u64| {
        let first = object.first + from;
        head::range_request(request, object.etag, first, first + count - 1)
    };
    let mut requests = Vec::new();
    if check.0 > 0 {
        requests.extend_from_slice(&ask(0, check.0.into()));
    }
    requests.extend_from_slice(&ask(from, object.length - from));
    Some(requests)
}

/// [`same_object`] for a step of an adoption.
pub(super) fn same(response: &Response, octets: &[u8], from: u64, length: u64) -> Result<Answer, Stop> {
    same_object(response, octets, from, length).map_err(Stop::Refused)?.ok_or(Stop::Waits)
}

/// Whether the head at the beginning of `octets` announces `length` bytes of the same body from
/// offset `from`: alone, within the whole object (servers without range support), or within the
/// part for which the client [signed](head::is_bound) its request. `None` while the head is
/// incomplete.
///
/// # Errors
/// Why the answer is not of the object that the client was receiving.
pub fn same_object(
    response: &Response,
    octets: &[u8],
    from: u64,
    length: u64,
) -> Result<Option<Answer>, Refusal> {
    let head = match head::response(octets, Method::Get) {
        Ok(Some(head)) => head,
        Ok(None) => return Ok(None),
        Err(_) => return Err(Refusal::Malformed),
    };
    let want = response.object().ok_or(Refusal::Malformed)?;
    let first = want.first + from;
    let is_bound = matches!(&response.body, Body::Object { request, .. } if head::is_bound(request));
    let is_whole = head.status == 200;
    if !is_whole && head.status != 206 {
        return Err(Refusal::Status(head.status));
    }
    let refusal = match head.object {
        None => Refusal::Tag,
        Some(got) if got.etag != want.etag => Refusal::Tag,
        Some(got) if got.encoding != want.encoding => Refusal::Coding,
        Some(got) if got.total != want.total => Refusal::Length,
        Some(_) if is_whole && first > MAX_THROUGH => Refusal::Far,
        Some(_) if is_whole => return Ok(Some(Answer { head: head.length, before: first, is_whole })),
        Some(got) if is_bound && (got.first, got.length) == (want.first, want.length) => {
            return Ok(Some(Answer { head: head.length, before: from, is_whole: true }));
        }
        Some(got) if (got.first, got.length) != (first, length) => Refusal::Length,
        Some(_) => return Ok(Some(Answer { head: head.length, before: 0, is_whole })),
    };
    Err(refusal)
}

impl Refusal {
    /// The name in metrics and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Status(_) => "status",
            Refusal::Tag => "tag",
            Refusal::Length => "length",
            Refusal::Coding => "coding",
            Refusal::Content => "content",
            Refusal::Unknown => "unknown",
            Refusal::Far => "far",
            Refusal::Address => "address",
            Refusal::Repeated => "repeated",
            Refusal::Interrupted => "interrupted",
            Refusal::Cut => "cut",
            Refusal::Idle => "idle",
            Refusal::Malformed => "malformed",
            Refusal::Unreachable => "unreachable",
        }
    }
}

/// Header fields that describe a body and must be equal in both heads, each with the refusal for a
/// difference.
const SAID: [(&str, Refusal); 7] = [
    ("content-length", Refusal::Length),
    ("transfer-encoding", Refusal::Length),
    ("content-range", Refusal::Length),
    ("content-encoding", Refusal::Coding),
    ("content-type", Refusal::Coding),
    ("etag", Refusal::Tag),
    ("last-modified", Refusal::Tag),
];

/// Whether `octets` begin with a head that describes its body as the first one did. Returns the
/// head's length and the initial state of the body.
pub(super) fn same_again(first: &[u8], octets: &[u8]) -> Result<(usize, Seen), Stop> {
    let read = |octets| match head::response(octets, Method::Get) {
        Ok(Some(head)) => Ok(head),
        Ok(None) => Err(Stop::Waits),
        Err(_) => Err(Stop::Refused(Refusal::Malformed)),
    };
    let (want, got) = (read(first)?, read(octets)?);
    if want.status != got.status {
        return Err(Stop::Refused(Refusal::Status(got.status)));
    }
    let octets = &octets[..got.length];
    for (name, refusal) in SAID {
        if !head::values(first, name).eq(head::values(octets, name)) {
            return Err(Stop::Refused(refusal));
        }
    }
    // Equal length fields imply equal framing.
    let seen = Seen::nothing(got.framing).ok_or(Stop::Refused(Refusal::Length))?;
    Ok((got.length, seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Encoding: br\r\nContent-Length: 1000\r\n\r\n";
    const REST: &str = "HTTP/1.1 206 Partial Content\r\nETag: \"x\"\r\nContent-Encoding: br\r\n\
                        Content-Length: 600\r\nContent-Range: bytes 400-999/1000\r\n\r\n";

    /// The result for `answer`, if bytes 400 to 999 were requested.
    fn judged(answer: &str) -> Result<Answer, Stop> {
        let request = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n".to_vec();
        let body = Body::Object { request, head: HEAD.into(), check: (0, 0), digest: None };
        let length = HEAD.len() as u64 + 1000;
        same(&Response { length, passed: length, close: false, body }, answer.as_bytes(), 400, 600)
    }

    #[test]
    fn answer_to_signed_range_is_read_from_its_start() {
        let request =
            b"GET /a HTTP/1.1\r\nRange: bytes=400-999\r\nAuthorization: AWS4 SignedHeaders=range\r\n\r\n";
        let body = Body::Object { request: request.to_vec(), head: REST.into(), check: (0, 0), digest: None };
        let length = REST.len() as u64 + 600;
        let response = Response { length, passed: length, close: false, body };
        let part = Answer { head: REST.len(), before: 100, is_whole: true };
        assert!(same(&response, REST.as_bytes(), 100, 500).is_ok_and(|answer| answer == part));
        let other = REST.replace("400-999", "300-899");
        assert!(matches!(same(&response, other.as_bytes(), 100, 500), Err(Stop::Refused(Refusal::Length))));
    }

    #[test]
    fn answer_with_any_difference_is_refused() {
        let part = Answer { head: REST.len(), before: 0, is_whole: false };
        assert!(judged(REST).is_ok_and(|answer| answer == part));
        let whole = Answer { head: HEAD.len(), before: 400, is_whole: true };
        assert!(judged(HEAD).is_ok_and(|answer| answer == whole));
        assert!(matches!(judged(&REST[..REST.len() - 1]), Err(Stop::Waits)));
        let other = |old: &str, new: &str| {
            assert_eq!(REST.matches(old).count(), 1, "{old}");
            REST.replace(old, new)
        };
        for (answer, want) in [
            (HEAD.replace("\"x\"", "\"y\""), Refusal::Tag),
            (HEAD.replace("1000", "1001"), Refusal::Length),
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned(), Refusal::Status(404)),
            (other("\"x\"", "\"y\""), Refusal::Tag),
            (other("\"x\"", "W/\"x\""), Refusal::Tag),
            (other("br", "gzip"), Refusal::Coding),
            (other("Content-Encoding: br\r\n", ""), Refusal::Coding),
            (other("400-999/1000", "400-999/1001"), Refusal::Length),
            (other("400-999/1000", "300-899/1000"), Refusal::Length),
            (other("600", "500").replace("400-", "500-"), Refusal::Length),
            (other("HTTP/1.1", "SSH-2.0"), Refusal::Malformed),
        ] {
            match judged(&answer) {
                Err(Stop::Refused(got)) => assert_eq!(got, want, "{answer}"),
                _ => panic!("not refused: {answer}"),
            }
        }
    }
}
