//! Data that a client sent before its connection was adopted here. The former replica's server may
//! have received it, and may have executed requests in it for which no record is stored.
//!
//! Only GET and HEAD without a body may be executed a second time (RFC 9110 section 9.2.2). So a
//! message that begins in such data is sent to the local server only once its complete head shows
//! that it is one of these; any other message resets the client.

use crate::flow::Reason;
use crate::head;

/// Decides how much of the client's data may be sent to the local server.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlierData {
    /// Bytes, after the `ready` ones, that the former replica's server may have received.
    left: u64,
    /// Bytes at the front of the waiting data that may be sent to the server.
    ready: usize,
}

impl EarlierData {
    /// The client's unanswered requests begin at sequence number `from`, and it had sent everything
    /// before `to` (`None`: unknown).
    pub fn new(from: u32, to: Option<u32>) -> EarlierData {
        let left = to.map_or(u64::MAX, |to| (to.wrapping_sub(from) as i32).max(0) as u64);
        EarlierData { left, ready: 0 }
    }

    /// Bytes of `waiting` that may be sent now; `is_all`: the client has closed its direction.
    ///
    /// # Errors
    /// Why a message must not be executed twice.
    pub fn ready(&mut self, waiting: &[u8], is_all: bool) -> Result<usize, Reason> {
        while self.left > 0 && self.ready < waiting.len() {
            match head::request(&waiting[self.ready..])? {
                Some(request) => {
                    self.ready += request.length;
                    self.left = self.left.saturating_sub(request.length as u64);
                }
                // A server executes no request with an incomplete head.
                None if is_all => self.left = 0,
                None => return Ok(self.ready),
            }
        }
        if self.left == 0 {
            self.ready = waiting.len();
        }
        Ok(self.ready)
    }

    /// Whether the last [`ready`](Self::ready) found waiting bytes that may be sent.
    pub fn has_ready(&self) -> bool {
        self.ready > 0
    }

    /// Notes that the first `count` waiting bytes were sent.
    pub fn sent(&mut self, count: usize) {
        self.ready -= count;
    }

    /// Notes that `count` bytes, sent to a server that died, wait again in front of the others.
    pub fn again(&mut self, count: usize) {
        self.ready += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
    const POST: &[u8] = b"POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nab";

    /// Feeds `parts` one by one; returns the bytes that are ready if the client had sent `known`
    /// bytes before the adoption.
    fn ready(known: Option<u32>, parts: &[&[u8]]) -> Option<usize> {
        let mut earlier = EarlierData::new(u32::MAX - 3, known.map(|known| known.wrapping_sub(4)));
        let (mut waiting, mut count) = (Vec::new(), 0);
        for part in parts {
            waiting.extend_from_slice(part);
            let now = earlier.ready(&waiting, false).ok()?;
            earlier.sent(now);
            waiting.drain(..now);
            count += now;
        }
        Some(count)
    }

    #[test]
    fn only_complete_get_and_head_are_repeated() {
        let (get, post) = (GET.len() as u32, POST.len() as u32);
        let body = b"GET /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nab";
        let head = b"HEAD /a HTTP/1.1\r\n\r\n";
        let (get_and_post, gets) = ([GET, POST].concat(), [GET, GET].concat());
        for (known, parts, want) in [
            // The former replica got nothing, so even a POST is executed for the first time.
            (Some(0), &[POST][..], Some(POST.len())),
            (Some(0), &[b"\x16\x03", b"\x01"], Some(3)),
            (Some(get), &[GET, POST], Some(GET.len() + POST.len())),
            (Some(get), &[&GET[..9], &GET[9..], POST], Some(GET.len() + POST.len())),
            (Some(9), &[GET, POST], Some(GET.len() + POST.len())),
            (Some(get), &[&GET[..9]], Some(0)),
            (Some(2 * get), &[&gets], Some(gets.len())),
            (Some(get + 1), &[GET, POST], None),
            (Some(get + post), &[&get_and_post], None),
            (Some(post), &[POST], None),
            (Some(1), &[POST], None),
            (Some(1), &[b"P"], Some(0)),
            (Some(2), &[b"P", b"UT / HTTP/1.1\r\n\r\n"], None),
            (Some(body.len() as u32), &[body], None),
            (Some(head.len() as u32), &[head, POST], Some(head.len() + POST.len())),
            (Some(3), &[b"\x16\x03\x01"], None),
            (Some(9), &[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], None),
            (None, &[GET, GET], Some(2 * GET.len())),
            (None, &[GET, POST], None),
        ] {
            let text = parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>();
            assert_eq!(ready(known, parts), want, "{known:?} {text:?}");
        }
    }

    #[test]
    fn partial_head_is_sent_after_client_closes() {
        let mut earlier = EarlierData::new(7, None);
        assert_eq!(earlier.ready(&GET[..9], false).ok(), Some(0));
        assert_eq!(earlier.ready(&GET[..9], true).ok(), Some(9));
        earlier.sent(9);
        earlier.again(5);
        assert_eq!(earlier.ready(&GET[..5], true).ok(), Some(5));
        assert!(EarlierData::new(7, None).ready(POST, true).is_err());
    }
}
