//! An answer: the inputs that determine every byte of one response. It is small enough to be
//! stored, or derived again from the same request.

use core::fmt::Write as _;

use arrayvec::ArrayString;

use crate::answer_bytes::{AnswerBytes, MAX_HEAD};
use crate::codec::{Class, MAX_ANSWER, is_bare_end};
use crate::flight::is_boundary;
use rivulet_http::Selection;

use crate::head::{Method, Request, name};
use crate::large::MAX_LARGE;
use crate::objects::{Found, Object, Table};

/// Entry number that means "no entry".
const NONE: u32 = u32::MAX;

/// The places at which an answer may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// On a connection with timestamps: at an odd multiple of 64 (so the next answer begins at a multiple of 64) at which no
    /// segment of any class ends.
    Stamped,
    /// On a connection without timestamps; the field: sequence number of the client's first byte.
    Bare(u32),
}

/// The parts of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    status: u16,
    close: bool,
    head_only: bool,
    /// Number of the table's entry, or [`NONE`].
    entry: u32,
    /// Offset of the first byte of the object that is sent.
    first: u32,
    length: u32,
    /// Bytes of white space that pad the head.
    pad: u16,
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answer it with a small answer.
    Answer(Answer),
    /// Answer it with the large object of this number; only possible on a connection with timestamps.
    Large(Answer, u16),
    /// Leave the request to the kernel's TCP.
    Kernel,
}

impl Answer {
    /// Decides how to answer a request; depends on the request and the table alone.
    #[must_use]
    pub fn to(request: &Request<'_>, table: &Table, ends: Ends) -> Outcome {
        let mut answer = Answer::status(200, request.close);
        answer.head_only = request.method == Method::Head;
        let (name, has_query) = match name(request.target, request.method) {
            Ok(found) => found,
            Err(status) => return Answer::refused(status, table, ends),
        };
        match table.find(&name) {
            Found::Kernel => return Outcome::Kernel,
            Found::Missing => answer.status = 404,
            // The redirect's location contains the query, which an answer does not store.
            Found::Folder(_) if has_query => return Outcome::Kernel,
            Found::Folder(entry) => (answer.status, answer.entry) = (301, entry),
            Found::Object(entry) => {
                answer.entry = entry;
                let Some(object) = table.object(entry) else { return Outcome::Kernel };
                answer.choose(request, object);
            }
        }
        match answer.ending(table, ends) {
            // A large answer is the same for every client, because its timestamps only identify the
            // object.
            Outcome::Kernel if answer.status == 200 && !answer.head_only && ends == Ends::Stamped => {
                let number = table.large_number(answer.entry);
                number
                    .and_then(|n| Some(Outcome::Large(Answer::large(n, table)?, n)))
                    .unwrap_or(Outcome::Kernel)
            }
            outcome => outcome,
        }
    }

    /// An answer with the whole of a large object; the connection ends after it.
    pub(crate) fn large(number: u16, table: &Table) -> Option<Answer> {
        let entry = table.large(number)?;
        let mut answer = Answer { entry, ..Answer::status(200, true) };
        answer.length = u32::try_from(table.object(entry)?.body.len()).ok()?;
        let bare = answer.head(table).len() as u32 + answer.length;
        answer.pad = answer.padding(bare, Ends::Stamped);
        (bare + u32::from(answer.pad) <= MAX_LARGE).then_some(answer)
    }

    /// Length of the head, and of the whole answer.
    pub(crate) fn lengths(&self, table: &Table) -> (u32, u32) {
        let head = self.head(table).len() as u32;
        (head, head + self.body(table).len() as u32)
    }

    /// Fills `out` with the answer's bytes from `from` on; the head has `head` bytes. Returns
    /// `false` if the answer is shorter. After the head, bytes are copied from the table only.
    pub(crate) fn copy(&self, table: &Table, head: u32, from: u32, out: &mut [u8]) -> bool {
        let Some(at) = from.checked_sub(head) else { return self.octets(table).copy(from, out) };
        self.data(table, at, out.len()).is_some_and(|there| {
            out.copy_from_slice(there);
            true
        })
    }

    /// Borrows `length` bytes of the body from offset `at` of the answer, after the head.
    pub(crate) fn data<'t>(&self, table: &'t Table, at: u32, length: usize) -> Option<&'t [u8]> {
        self.body(table).get(at as usize..at as usize + length)
    }

    /// The answer to a request that is refused with this status.
    #[must_use]
    pub fn refused(status: u16, table: &Table, ends: Ends) -> Outcome {
        Answer::status(status, true).ending(table, ends)
    }

    fn status(status: u16, close: bool) -> Answer {
        Answer { status, close, head_only: false, entry: NONE, first: 0, length: 0, pad: 0 }
    }

    /// Chooses the part of the object to send, if any.
    fn choose(&mut self, request: &Request<'_>, object: &Object) {
        let size = object.body.len() as u64;
        self.length = u32::try_from(size).unwrap_or(u32::MAX);
        match request.select(&object.hash, size) {
            Selection::Whole => {}
            Selection::Part(first, length) => {
                (self.status, self.first, self.length) = (206, first as u32, length as u32);
            }
            Selection::NotModified => self.status = 304,
            Selection::PreconditionFailed => self.status = 412,
            Selection::Unsatisfiable => self.status = 416,
        }
    }

    /// Pads the head so that the answer ends at an allowed place.
    fn ending(mut self, table: &Table, ends: Ends) -> Outcome {
        // Lengths above 32 bits are cut to this maximum; all above it are treated alike.
        let body = u32::try_from(self.body(table).len()).map_or(MAX_LARGE, |n| n.min(MAX_LARGE));
        let bare = self.head(table).len() as u32 + body;
        self.pad = self.padding(bare, ends);
        let length = bare + u32::from(self.pad);
        if length > MAX_ANSWER {
            return Outcome::Kernel;
        }
        Outcome::Answer(self)
    }

    /// Bytes of white space with which an answer of this length ends at an allowed place.
    fn padding(&self, bare: u32, ends: Ends) -> u16 {
        let mut length = bare.next_multiple_of(64);
        let free = |length: u32| {
            length % 128 == 64
                && match ends {
                    Ends::Stamped => Class::all().all(|class| !is_boundary(class, length)),
                    Ends::Bare(first) => is_bare_end(first, length),
                }
        };
        while !free(length) {
            length += 64;
        }
        (length - bare) as u16
    }

    /// Whether the connection ends after the answer.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.close
    }

    /// The same answer, but the connection ends after it.
    #[must_use]
    pub fn closing(self, table: &Table, ends: Ends) -> Outcome {
        Answer { close: true, pad: 0, ..self }.ending(table, ends)
    }

    /// Its status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.status
    }

    fn body<'t>(&self, table: &'t Table) -> &'t [u8] {
        if self.head_only || self.status == 304 {
            return b"";
        }
        match (self.status, table.object(self.entry)) {
            (200 | 206, Some(object)) => {
                let from = self.first as usize;
                object.body.get(from..from + self.length as usize).unwrap_or_default()
            }
            _ => page(self.status),
        }
    }

    fn head(&self, table: &Table) -> ArrayString<MAX_HEAD> {
        let mut head = ArrayString::new();
        // The buffer has room for the longest name and media type that a table accepts, so nothing
        // is cut.
        let _ = self.write_head(table, &mut head);
        head
    }

    fn write_head(&self, table: &Table, head: &mut ArrayString<MAX_HEAD>) -> core::fmt::Result {
        let status = self.status;
        write!(
            head,
            "HTTP/1.1 {status} {}\r\nServer: rivulet{:2$}\r\n",
            reason(status),
            "",
            usize::from(self.pad)
        )?;
        let object = table.object(self.entry);
        if status != 304 {
            let length = match (status, object) {
                (200 | 206, Some(_)) => self.length as usize,
                _ => page(status).len(),
            };
            write!(head, "Content-Length: {length}\r\n")?;
        }
        match object {
            Some(object) => {
                let kind = if matches!(status, 412 | 416) { "text/plain" } else { &object.kind };
                if status != 304 {
                    write!(head, "Content-Type: {kind}\r\n")?;
                }
                let hash = u128::from_be_bytes(object.hash);
                write!(head, "Accept-Ranges: bytes\r\nETag: \"{hash:032x}\"\r\n")?;
                let size = object.body.len();
                match status {
                    206 => {
                        let last = u64::from(self.first) + u64::from(self.length.max(1)) - 1;
                        write!(head, "Content-Range: bytes {}-{last}/{size}\r\n", self.first)?;
                    }
                    416 => write!(head, "Content-Range: bytes */{size}\r\n")?,
                    _ => {}
                }
            }
            None => {
                if status == 301 {
                    let name = table.name(self.entry).unwrap_or_default();
                    write!(head, "Location: /{}/\r\n", rivulet_http::EscapedPath(name))?;
                }
                head.write_str("Content-Type: text/plain\r\n")?;
            }
        }
        let connection = if self.close { "close" } else { "keep-alive" };
        write!(head, "Connection: {connection}\r\n\r\n")
    }

    /// The bytes of the answer.
    #[must_use]
    pub fn octets<'t>(&self, table: &'t Table) -> AnswerBytes<'t> {
        AnswerBytes { head: self.head(table), body: self.body(table) }
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        400 => "Bad Request",
        404 => "Not Found",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        416 => "Range Not Satisfiable",
        501 => "Not Implemented",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

/// The body of an answer without content.
fn page(status: u16) -> &'static [u8] {
    match status {
        301 => b"moved permanently\n",
        400 => b"400 bad request\n",
        404 => b"404 not found\n",
        411 => b"411 length required\n",
        412 => b"412 precondition failed\n",
        413 => b"413 content too large\n",
        414 => b"414 URI too long\n",
        501 => b"501 not implemented\n",
        505 => b"505 HTTP version not supported\n",
        416 => b"416 range not satisfiable\n",
        _ => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{MAX_NAME, Parsed, parse};
    use crate::objects::Entry;
    use proptest::prelude::*;

    fn table(size: usize) -> Table {
        let body: Box<[u8]> = (0..size).map(|n| (n % 127) as u8).collect();
        let object = Entry::Object(Object { kind: "text/plain".into(), hash: [0x1f; 16], body });
        let entries = vec![
            ("a".into(), object),
            ("dir \u{e9}".into(), Entry::Folder),
            ("big".into(), Entry::Kernel),
            ("\u{e9}".repeat(MAX_NAME / 2 - 1).into(), Entry::Folder),
        ];
        Table::new(entries, false).unwrap()
    }

    fn answered(table: &Table, text: &str, ends: Ends) -> String {
        let Parsed::Whole(request) = parse(text.as_bytes()) else { panic!("{text}") };
        match Answer::to(&request, table, ends) {
            Outcome::Answer(answer) => {
                let octets = answer.octets(table);
                let mut out = vec![0; octets.len() as usize];
                assert!(octets.copy(0, &mut out));
                String::from_utf8(out).unwrap()
            }
            Outcome::Large(..) => "large".into(),
            Outcome::Kernel => "kernel".into(),
        }
    }

    #[test]
    fn answers_follow_the_request_and_the_table() {
        let table = table(100);
        let get = |target: &str, more: &str| {
            answered(&table, &format!("GET {target} HTTP/1.1\r\nHost: h\r\n{more}\r\n"), Ends::Stamped)
        };
        let etag = "1f".repeat(16);
        let whole = get("/a", "");
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\nServer: rivulet "), "{whole}");
        assert!(whole.contains("\r\nContent-Length: 100\r\nContent-Type: text/plain\r\n"), "{whole}");
        assert!(
            whole.contains(&format!("\r\nETag: \"{etag}\"\r\nConnection: keep-alive\r\n\r\n\0\u{1}")),
            "{whole}"
        );
        let part = get("/a", "Range: bytes=10-19\r\n");
        assert!(
            part.starts_with("HTTP/1.1 206 ")
                && part.ends_with("\r\n\r\n\u{a}\u{b}\u{c}\r\u{e}\u{f}\u{10}\u{11}\u{12}\u{13}")
        );
        assert!(
            part.contains("\r\nContent-Range: bytes 10-19/100\r\n")
                && part.contains("\r\nContent-Length: 10\r\n")
        );
        assert!(get("/a", "Range: bytes=100-\r\n").contains("\r\nContent-Range: bytes */100\r\n"));
        assert!(get("/a", "Range: bytes=1-2\r\nIf-Range: \"x\"\r\n").starts_with("HTTP/1.1 200 "));
        assert!(
            get("/a", &format!("Range: bytes=1-2\r\nIf-Range: \"{etag}\"\r\n")).starts_with("HTTP/1.1 206 ")
        );
        let same = get("/a", &format!("If-None-Match: \"{etag}\"\r\n"));
        assert!(
            same.starts_with("HTTP/1.1 304 ")
                && same.ends_with("\r\n\r\n")
                && !same.contains("Content-Length")
        );
        assert!(get("/dir%20%C3%A9", "").contains("\r\nLocation: /dir%20%C3%A9/\r\n"));
        let missing = get("/x", "Connection: close\r\n");
        assert!(missing.starts_with("HTTP/1.1 404 ") && missing.contains("\r\nConnection: close\r\n"));
        assert!(missing.ends_with("\r\n\r\n404 not found\n"));
        assert_eq!(get("/big", ""), "kernel");
        assert!(get("nopath", "").contains("400 bad request\n"));
        let longest = get(&format!("/{}", "%C3%A9".repeat(MAX_NAME / 2 - 1)), "");
        assert!(longest.ends_with("keep-alive\r\n\r\nmoved permanently\n"), "{longest}");
        let head = answered(&table, "HEAD /a HTTP/1.0\r\nRange: bytes=1-2\r\n\r\n", Ends::Stamped);
        assert!(
            head.starts_with("HTTP/1.1 200 ")
                && head.contains("Content-Length: 100")
                && head.ends_with("\r\n\r\n")
        );
        assert!(!whole.contains("Date"), "what depends on the time differs between replicas");
    }

    #[test]
    fn long_answer_is_large_or_left_to_the_kernel() {
        let text = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
        for (ends, beyond) in [(Ends::Stamped, "large"), (Ends::Bare(7), "kernel")] {
            let fits = |&size: &usize| answered(&table(size), text, ends) != beyond;
            let last = (14_000..16_000).rfind(fits).unwrap();
            assert!((15_000..15_200).contains(&last), "{ends:?} {last}");
            assert_eq!((14_000..16_000).filter(fits).count(), last - 14_000 + 1);
        }
        let last = (14_000..16_000).rfind(|&size| answered(&table(size), text, Ends::Stamped) != "large");
        assert_eq!(last, Some(15_123));
    }

    proptest! {
        #[test]
        fn every_answer_ends_where_none_of_its_segments_does(size in 0usize..15_000, bare: bool, seq: u32, close: bool) {
            let table = table(size);
            let ends = if bare { Ends::Bare(seq) } else { Ends::Stamped };
            let text = format!("GET /a HTTP/1.1\r\nHost: h\r\n{}\r\n", if close { "Connection: close\r\n" } else { "" });
            let answer = answered(&table, &text, ends);
            prop_assume!(answer != "kernel");
            let length = answer.len() as u32;
            prop_assert_eq!(length % 128, 64);
            prop_assert!(answer.as_bytes().ends_with(&table.object(0).unwrap().body));
            match ends {
                Ends::Stamped => prop_assert!(Class::all().all(|class| !is_boundary(class, length))),
                Ends::Bare(first) => {
                    let end = (first & 0x1fe) + length;
                    prop_assert!(end & 0x200 != 0 && (end + 1) & 0x200 != 0);
                }
            }
        }

        #[test]
        fn any_part_of_an_answer_equals_the_whole(size in 0usize..3000, from in 0u32..4000, length in 0usize..2000) {
            let table = table(size);
            let text = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n";
            let whole = answered(&table, text, Ends::Stamped);
            let Parsed::Whole(request) = parse(text.as_bytes()) else { panic!() };
            let Outcome::Answer(answer) = Answer::to(&request, &table, Ends::Stamped) else { panic!() };
            let mut out = vec![0; length];
            let there = whole.as_bytes().get(from as usize..from as usize + length);
            prop_assert_eq!(answer.octets(&table).copy(from, &mut out), there.is_some());
            prop_assert!(there.is_none_or(|there| there == out));
        }
    }
}
