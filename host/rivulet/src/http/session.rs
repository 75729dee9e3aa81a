//! One HTTP connection as a function: from (state, input) to (state, promised answers).
//!
//! The state is what an input continuation carries: the next output offset and the head being read.

use super::answer::{Answer, ReadError};
use super::codec::{Malformed, Reader};
use super::head::{Fed, Head};
use super::objects::Objects;
use super::{MAX_ANSWER, Request};

/// Version of the encoding; another one is refused.
const VERSION: u8 = 1;

/// What the server would have to remember of a connection between two inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Output offset at which the next answer begins.
    pub next: u64,
    /// No request is read any more.
    pub closed: bool,
    head: Head,
}

/// An answer promised to the client, in the form that an output continuation carries.
#[derive(Debug, PartialEq, Eq)]
pub struct Promise {
    /// Output offset of its first octet.
    pub start: u64,
    /// Output offset behind its last octet.
    pub end: u64,
    /// [`Answer::encode`], at most [`MAX_ANSWER`] octets.
    pub answer: Vec<u8>,
}

/// What came of some input.
#[derive(Debug, PartialEq, Eq)]
pub struct Progress {
    /// Octets of the input consumed; the others are to come again.
    pub consumed: usize,
    /// A request waits for content that is being hashed: the rest of the input is to come again soon.
    pub waiting: bool,
}

impl Session {
    /// The state before the first octet of a connection whose output begins at `start`.
    #[must_use]
    pub fn new(start: u64) -> Session {
        Session { next: start, ..Session::default() }
    }

    /// Reads requests from `input` and appends what is promised to `promises`, `limit` of them in all at most;
    /// `fin` says that the client sends nothing behind `input`. `date` is in seconds since 1970.
    pub fn feed(
        &mut self,
        input: &[u8],
        fin: bool,
        objects: &Objects,
        date: u32,
        limit: usize,
        promises: &mut Vec<Promise>,
    ) -> Progress {
        let mut consumed = 0;
        while !self.closed && promises.len() < limit && consumed < input.len() {
            let before = self.head.clone();
            match self.head.feed(&input[consumed..]) {
                Fed::More(n) => {
                    consumed += n;
                    break;
                }
                Fed::Done(n, request) => match self.promise(&request, objects, date) {
                    Ok(promise) => {
                        consumed += n;
                        promises.push(promise);
                    }
                    Err(_) => {
                        self.head = before;
                        return Progress { consumed, waiting: true };
                    }
                },
            }
        }
        let all = consumed == input.len();
        if self.closed {
            // What follows the last request is read and forgotten, as RFC 9112 section 9.6 has it.
            return Progress { consumed: input.len(), waiting: false };
        }
        if fin && (all || promises.len() < limit) {
            self.closed = true;
            consumed = input.len();
        }
        Progress { consumed, waiting: false }
    }

    fn promise(&mut self, request: &Request, objects: &Objects, date: u32) -> Result<Promise, ReadError> {
        let answer = Answer::new(request, objects, date)?;
        let start = self.next;
        let end = start.checked_add(answer.len()).ok_or(ReadError::Beyond)?;
        let mut encoded = Vec::with_capacity(MAX_ANSWER);
        answer.encode(&mut encoded);
        self.next = end;
        self.closed = answer.closes();
        Ok(Promise { start, end, answer: encoded })
    }

    /// Appends the encoding that [`Session::decode`] reads.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.push(u8::from(self.closed));
        out.extend_from_slice(&self.next.to_be_bytes());
        self.head.encode(out);
    }

    /// Reads what [`Session::encode`] wrote; `input` holds nothing else.
    pub fn decode(input: &[u8]) -> Result<Session, Malformed> {
        let mut r = Reader(input);
        if r.u8()? != VERSION {
            return Err(Malformed);
        }
        let (closed, next) = (r.u8()? != 0, r.u64()?);
        Ok(Session { next, closed, head: Head::decode(r.0)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn store() -> (tempfile::TempDir, Objects) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "aaaa").unwrap();
        std::fs::write(dir.path().join("b"), "bb").unwrap();
        let objects = Objects::open(dir.path()).unwrap();
        (dir, objects)
    }

    fn output(promises: &[Promise], objects: &Objects) -> Vec<u8> {
        let mut all = Vec::new();
        for promise in promises {
            assert_eq!(promise.start, all.len() as u64, "no gap");
            let answer = Answer::decode(&promise.answer).unwrap();
            let mut out = vec![0; (promise.end - promise.start) as usize];
            answer.read(0, &mut out, objects).unwrap();
            all.extend(out);
        }
        all
    }

    const PIPELINE: &[u8] = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nHEAD /b HTTP/1.1\r\nHost: h\r\n\r\n\
        GET /none HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /a HTTP/1.1\r\n";

    proptest! {
        /// Pipelined requests, cut anywhere, with the state in a continuation between any two packets and
        /// at most one promise a packet, give the output of one piece.
        #[test]
        fn pipelines_do_not_depend_on_packets(size in 1usize..200, limit in 1usize..4) {
            let (_dir, objects) = store();
            let mut whole = Vec::new();
            let mut session = Session::new(0);
            session.feed(PIPELINE, true, &objects, 9, 100, &mut whole);
            prop_assert_eq!(whole.len(), 4);
            prop_assert!(session.closed, "Connection: close");

            let (mut promises, mut at, mut sent) = (Vec::new(), 0, 0);
            let mut state = Vec::new();
            Session::new(0).encode(&mut state);
            while at < PIPELINE.len() {
                let mut session = Session::decode(&state).unwrap();
                // What was not consumed comes again, with more behind it.
                sent = (sent + size).min(PIPELINE.len());
                let mut now = Vec::new();
                let progress =
                    session.feed(&PIPELINE[at..sent], sent == PIPELINE.len(), &objects, 9, limit, &mut now);
                prop_assert!(now.len() <= limit);
                at += progress.consumed;
                promises.extend(now);
                state.clear();
                session.encode(&mut state);
            }
            prop_assert_eq!(output(&promises, &objects), output(&whole, &objects));
        }
    }

    #[test]
    fn a_finished_input_closes_after_what_was_asked() {
        let (_dir, objects) = store();
        let mut session = Session::new(0);
        let mut promises = Vec::new();
        let progress =
            session.feed(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET", true, &objects, 0, 9, &mut promises);
        assert_eq!((progress.consumed, promises.len(), session.closed), (31, 1, true));
    }

    #[test]
    fn content_being_hashed_is_waited_for_without_losing_the_request() {
        let (dir, objects) = store();
        std::fs::write(dir.path().join("long"), vec![1; 3 << 20]).unwrap();
        let input = b"GET /long HTTP/1.1\r\nHost: h\r\n\r\n";
        let mut session = Session::new(0);
        let mut promises = Vec::new();
        let first = session.feed(input, false, &objects, 0, 9, &mut promises);
        assert_eq!(first, Progress { consumed: 0, waiting: true });
        for _ in 0..500 {
            let next = session.feed(input, false, &objects, 0, 9, &mut promises);
            if !next.waiting {
                assert_eq!((next.consumed, promises.len()), (input.len(), 1));
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("never hashed");
    }
}
