//! A response that the local server generates a second time for an adopted connection. The bytes
//! that the client may already have are compared with those of the first response; bytes beyond
//! them are sent only when all are equal.

use std::time::Instant;

use super::identity::same_again;
use super::origin::Origin;
use super::{Adoption, MAX_WAITING, Refusal, Step, Stop};
use crate::head::{self, MAX_HEAD};
use crate::record::{Body, Response, Seen};

/// A generated response, received for the second time.
#[derive(Debug)]
pub(super) struct Again {
    seen: Seen,
    /// Bytes of this response received so far, head included.
    at: u64,
    /// Received bytes that the client lacks, buffered until the comparison succeeds. Bounded: the
    /// client lacks at most what the first server's kernel could hold unacknowledged.
    kept: Vec<u8>,
    is_same: bool,
}

impl Again {
    /// Reads bytes of the body. Returns how many belong to it, and appends to `out` those that the
    /// client lacks, which already has the first `offset` bytes of the response.
    fn read(
        &mut self,
        response: &Response,
        offset: u64,
        octets: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<usize, Refusal> {
        let Body::Generated { head, seen: first, .. } = &response.body else {
            return Err(Refusal::Malformed);
        };
        // The recorded checksum covers exactly `passed` bytes.
        let left = response.passed.saturating_sub(self.at);
        let most = if self.is_same { octets.len() } else { usize::try_from(left).unwrap_or(usize::MAX) };
        let octets = &octets[..octets.len().min(most)];
        let refusal = if self.is_same { Refusal::Malformed } else { Refusal::Content };
        let count = self.seen.read(octets).map_err(|_| refusal)?;
        let had = usize::try_from(offset.saturating_sub(self.at)).unwrap_or(usize::MAX);
        self.at += count as u64;
        if self.is_same {
            out.extend_from_slice(&octets[..count]);
            return Ok(count);
        }
        self.kept.extend_from_slice(octets[..count].get(had..).unwrap_or_default());
        if self.at == response.passed {
            // The recorded bytes are equal, framing included, so the bytes after them continue the
            // same response.
            if self.seen != *first {
                return Err(Refusal::Content);
            }
            self.is_same = true;
            out.extend_from_slice(
                head.get(usize::try_from(offset).unwrap_or(usize::MAX)..).unwrap_or_default(),
            );
            out.append(&mut self.kept);
        } else if self.seen.is_over() {
            return Err(Refusal::Length);
        }
        Ok(count)
    }
}

impl Adoption {
    /// Sends the client's request to the local server a second time.
    pub(super) fn ask_again(&mut self, request: &[u8], head: &[u8]) {
        self.to_origin.extend_from_slice(&head::repeated_request(request, head));
        self.step = Step::Again;
        self.again = None;
    }

    /// Compares and forwards a response that the server generates a second time.
    pub(super) fn continue_again(&mut self, now: Instant) -> Result<(), Stop> {
        self.write_origin(now)?;
        let response = &self.record.responses[self.at];
        let Body::Generated { head, .. } = &response.body else {
            return Err(Stop::Refused(Refusal::Malformed));
        };
        let origin = self.origin.as_mut().ok_or(Stop::Origin)?;
        let again = match &mut self.again {
            Some(again) => again,
            none => {
                origin.fill(MAX_HEAD).map_err(|_| Stop::Origin)?;
                let (length, seen) = match same_again(head, origin.input()) {
                    Err(Stop::Waits) if origin.is_ended() => return Err(Stop::Origin),
                    found => found?,
                };
                origin.consume(length);
                none.insert(Again { seen, at: head.len() as u64, kept: Vec::new(), is_same: false })
            }
        };
        origin.fill(MAX_WAITING).map_err(|_| Stop::Origin)?;
        let (was_same, out) = (again.is_same, &mut self.out);
        let count = again.read(response, self.offset, origin.input(), out).map_err(Stop::Refused)?;
        origin.consume(count);
        if count > 0 || was_same != again.is_same {
            self.active = now;
        }
        if !again.is_same {
            return if count > 0 { Ok(()) } else { silence(origin) };
        }
        if count > 0 && was_same {
            self.failing_since = None;
        }
        let (at, seen) = (again.at, again.seen);
        self.hand_on(at, seen);
        if seen.is_over() {
            (self.step, self.again) = (Step::Next, None);
            return Ok(());
        }
        if count > 0 || !was_same { Ok(()) } else { silence(self.origin.as_ref().ok_or(Stop::Origin)?) }
    }

    /// Records that the client now has `at` bytes of the response: if this server dies too, the
    /// next one must generate the same bytes up to there.
    fn hand_on(&mut self, at: u64, now: Seen) {
        let response = &mut self.record.responses[self.at];
        if let Body::Generated { seen, .. } = &mut response.body {
            *seen = now;
        }
        response.passed = at;
        if now.is_over() {
            response.length = at;
        }
        self.offset = at;
    }
}

/// The result when the server has sent no bytes: `Waits`, or an error if its connection ended.
fn silence(origin: &Origin) -> Result<(), Stop> {
    Err(if origin.is_ended() { Stop::Origin } else { Stop::Waits })
}
