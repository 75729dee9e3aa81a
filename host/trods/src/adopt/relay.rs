//! Relays between client and server after the responses of the record.
//!
//! If the server dies before it answers, the next server gets the same requests from their first
//! byte, but only GET and HEAD without a body. Any other message is sent once, and the client of a
//! request that was cut is reset, since the rest of a message must never look like the beginning of
//! another. If the server resets its connection in an answer, the client is reset too: a FIN would
//! make an answer without a length look complete.
//!
//! `earlier.rs` decides which of the client's data may be sent at all when a former replica's
//! server may have received it.

use std::io::{self, Read};

use super::{AdoptConfig, Adoption, MAX_WAITING, Refusal, Stop, stop_client, waits};
use crate::head;

/// Bytes that were sent to the current server and have no answer yet.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// Bytes sent to the server, from the first byte of the oldest unanswered request.
    sent: Vec<u8>,
    /// More bytes were sent than `sent` keeps.
    is_cut: bool,
}

impl Unanswered {
    fn push(&mut self, bytes: &[u8]) {
        self.is_cut |= self.sent.len() + bytes.len() > MAX_WAITING;
        if self.is_cut {
            self.sent = Vec::new();
        } else {
            self.sent.extend_from_slice(bytes);
        }
    }

    fn clear(&mut self) {
        *self = Unanswered::default();
    }

    /// Takes out what the next server must receive before `waiting`; `None` if it must not receive
    /// any of it.
    fn take_repeatable(&mut self, waiting: &[u8]) -> Option<Vec<u8>> {
        let Unanswered { mut sent, is_cut } = std::mem::take(self);
        // The server got nothing, so the next one gets `waiting` from its first byte.
        if sent.is_empty() && !is_cut {
            return Some(sent);
        }
        let length = sent.len();
        sent.extend_from_slice(waiting);
        let is_repeatable = !is_cut && is_repeatable(&sent);
        sent.truncate(length);
        is_repeatable.then_some(sent)
    }
}

/// Whether these bytes are requests that may be repeated; the last one may be incomplete.
fn is_repeatable(mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match head::request(bytes) {
            Ok(Some(request)) => bytes = &bytes[request.length..],
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    true
}

impl Adoption {
    pub(super) fn relay(&mut self, config: &AdoptConfig, now: std::time::Instant) -> Result<(), Stop> {
        let mut progress = false;
        if !self.client_ended && self.to_origin.len() < MAX_WAITING {
            let mut chunk = [0; 4096];
            match self.client.read(&mut chunk) {
                Ok(0) => (self.client_ended, progress) = (true, true),
                Ok(count) => {
                    self.to_origin.extend_from_slice(&chunk[..count]);
                    progress = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(stop_client(&e)),
            }
        }
        let ready = self.earlier.ready(&self.to_origin, self.client_ended);
        let mut ready = ready.map_err(|_| Stop::Refused(Refusal::Repeated))?;
        if self.origin.is_none() {
            if ready == 0 {
                // The server closed after it had answered every complete request.
                return if self.client_ended { self.say_all() } else { waits(progress) };
            }
            self.connect(config)?;
        }
        let Some(origin) = &mut self.origin else { return Err(Stop::Origin) };
        let mut is_broken = false;
        while ready > 0 {
            match origin.write(&self.to_origin[..ready]) {
                Ok(count) => {
                    if !origin.has_spoken() {
                        self.unanswered.push(&self.to_origin[..count]);
                    }
                    self.to_origin.drain(..count);
                    self.earlier.sent(count);
                    ready -= count;
                    progress = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // Before its connection broke, the server may have answered; read that first.
                    is_broken = true;
                    break;
                }
            }
        }
        if self.client_ended && self.to_origin.is_empty() {
            origin.end();
        }
        match self.pipe.read(origin, u64::MAX) {
            Ok(_) => {
                self.unanswered.clear();
                progress = true;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && !is_broken => {}
            // The client has got a part of an answer, or the server a request that must not be sent
            // twice.
            Err(e) if origin.has_spoken() => {
                return if e.kind() == io::ErrorKind::UnexpectedEof { self.say_all() } else { self.cut() };
            }
            Err(_) => {
                let Some(mut again) = self.unanswered.take_repeatable(&self.to_origin) else {
                    return Err(Stop::Refused(Refusal::Interrupted));
                };
                self.earlier.again(again.len());
                again.append(&mut self.to_origin);
                self.to_origin = again;
                // A server without a pending request closes because the client did.
                return if self.to_origin.is_empty() { self.say_all() } else { Err(Stop::Origin) };
            }
        }
        if progress {
            self.active = now;
            self.failing_since = None;
        }
        waits(progress)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n";

    #[test]
    fn only_complete_requests_without_body_are_repeated() {
        let post = b"POST /a HTTP/1.1\r\nContent-Length: 60\r\n\r\n".as_slice();
        for (sent, waiting, want) in [
            (&b""[..], post, true),
            (b"", GET, true),
            (GET, b"", true),
            (GET, GET, true),
            (GET, &GET[..9], true),
            (&GET[..9], &GET[9..], true),
            (GET, post, false),
            (post, GET, false),
            (&post[..2], &post[2..], false),
            (b"\x16\x03", b"", false),
        ] {
            let mut unanswered = Unanswered::default();
            unanswered.push(sent);
            let again = unanswered.take_repeatable(waiting);
            assert_eq!(again.as_deref(), want.then_some(sent), "{sent:?} {waiting:?}");
        }
        let mut long = Unanswered::default();
        (0..MAX_WAITING / GET.len() + 1).for_each(|_| long.push(GET));
        assert_eq!((long.take_repeatable(b""), long.sent.len()), (None, 0));
    }
}
