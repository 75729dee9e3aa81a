//! Reads HTTP requests from a stream's input. The state between two packets travels in the input continuation.

use arrayvec::{ArrayString, ArrayVec};
use rivulet_http::{Field, Framing, Refused, RequestLine};

use crate::answer::Answer;
use crate::site::{Site, TEXT_BYTES};

/// Maximum length of a request's head in bytes. An unfinished head must fit into a continuation
/// ([`rivulet_transport::MAX_OPAQUE`]) with the other fields.
const MAX_HEAD: usize = 1_000;
/// Length of an encoding without the unfinished head: flags and offset.
const FIXED: usize = 9;
/// Maximum length of an encoding.
pub(crate) const ENCODED: usize = FIXED + MAX_HEAD;

/// The state of a stream between two pieces of input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Session {
    /// Output offset at which the next answer begins.
    pub next: u64,
    /// No further request is read.
    pub closed: bool,
    /// The received part of an unfinished head.
    head: ArrayVec<u8, MAX_HEAD>,
}

impl Session {
    /// The state at the start of a stream with output from offset `next` on.
    pub fn new(next: u64) -> Session {
        Session { next, ..Session::default() }
    }

    /// The bytes for an input continuation.
    pub fn encode(&self) -> ArrayVec<u8, ENCODED> {
        let fixed = [u8::from(self.closed)].into_iter().chain(self.next.to_be_bytes());
        fixed.chain(self.head.iter().copied()).collect()
    }

    /// Reads the bytes of an input continuation. `None`: another server sealed them.
    pub fn decode(bytes: &[u8]) -> Option<Session> {
        let (&[flags, next @ ..], head) = bytes.split_first_chunk::<FIXED>()?;
        if flags > 1 {
            return None;
        }
        let head = ArrayVec::try_from(head).ok()?;
        Some(Session { next: u64::from_be_bytes(next), closed: flags == 1, head })
    }

    /// Reads input up to the end of one request. Returns the number of bytes read, and the answer if the request is
    /// complete. `fin`: the client ends the stream's input after these bytes.
    pub fn read(
        &mut self,
        input: &[u8],
        fin: bool,
        site: &Site,
        report: impl FnOnce() -> ArrayString<TEXT_BYTES>,
    ) -> (usize, Option<Answer>) {
        if self.closed {
            // Input after the last request is read and discarded (RFC 9112 section 9.6).
            return (input.len(), None);
        }
        let before = self.head.len();
        let fits = input.len().min(self.head.remaining_capacity());
        self.head.extend(input[..fits].iter().copied());
        let end = self.head.windows(4).position(|end| end == b"\r\n\r\n").map(|at| at + 4);
        let (read, mut answer) = match end {
            Some(end) => (end - before, Some(answer(&self.head[..end - 4], site, report))),
            None if self.head.is_full() => (input.len(), Some(Answer::refusal(Refused(431)))),
            None => {
                self.closed = fin;
                return (input.len(), None);
            }
        };
        self.head.clear();
        if let Some(answer) = &mut answer {
            answer.closes |= fin && read == input.len();
            self.closed = answer.closes;
            self.next += answer.len(site);
        }
        (if self.closed { input.len() } else { read }, answer)
    }
}

/// Answers the request with this head, given without its last two line ends.
fn answer(head: &[u8], site: &Site, report: impl FnOnce() -> ArrayString<TEXT_BYTES>) -> Answer {
    let parsed = || {
        // An empty line before the request is ignored (RFC 9112 section 2.2).
        let mut lines = Lines(Some(head.strip_prefix(b"\r\n").unwrap_or(head)));
        let line = RequestLine::parse(lines.next().unwrap_or_default())?;
        let mut framing = Framing::new(line.old);
        for field in lines {
            framing.take(&Field::parse(field)?)?;
        }
        framing.complete(line.method)?;
        Ok((line, framing))
    };
    match parsed() {
        Ok((line, framing)) => {
            let mut answer = Answer::new(site, report, &line);
            // A body is not read, so no request can follow it.
            answer.closes |= framing.closes() || framing.has_body();
            answer
        }
        Err(refused) => Answer::refusal(refused),
    }
}

/// The lines of a head, without their ends.
struct Lines<'a>(Option<&'a [u8]>);

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.0?;
        let end = rest.windows(2).position(|end| end == b"\r\n");
        self.0 = end.map(|end| &rest[end + 2..]);
        Some(&rest[..end.unwrap_or(rest.len())])
    }
}
