//! The table of objects: the response to each listed target, and its number in timestamps. Replicas
//! with the same content compute the same table.

use rivulet_bpf::trods::{DATE, HEAD_MAX, HEADS, KnownHead, head_sum};
use rivulet_plain::MAX_OBJECT;

use crate::digest::Content;
use crate::head::{self, Method};
use crate::record::{Body, Response};

/// Limit on the targets of a table: each uses [`HEADS`] numbers.
pub const MAX_TARGETS: usize = MAX_OBJECT as usize / HEADS;
/// Limit on the length of a target, bytes.
pub const MAX_TARGET: usize = 1024;
/// Limit on the length of head and body together: the range of sequence numbers, less the largest
/// window.
const MAX_TOTAL: u64 = u32::MAX as u64 - (1 << 30);

/// The head of a response, and whether the server closes the connection after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The head in the form that the BPF programs use.
    pub head: KnownHead,
    /// Whether the server closes the connection after it.
    pub close: bool,
}

/// The response to a request for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `Host` of requests for the target, in lower case, because one server may have several sites.
    pub host: Vec<u8>,
    /// The target, as in a request.
    pub target: Vec<u8>,
    /// The strong entity tag.
    pub etag: Vec<u8>,
    /// `Content-Encoding`.
    pub encoding: Option<Vec<u8>>,
    /// Length of the object, bytes.
    pub length: u64,
    /// The heads of its responses: those that keep the connection open, and those after which the
    /// server closes.
    pub known: [Option<Known>; HEADS],
    /// Digest of the object, and checksum of its first bytes.
    pub content: Content,
}

impl Row {
    /// Makes a row of the heads of a target's responses; `None` if the first one is not of an
    /// object that can be requested by range.
    #[must_use]
    pub fn new(host: &str, target: &[u8], heads: [Option<&[u8]>; HEADS]) -> Option<Row> {
        let first = heads[0].and_then(|octets| head::response(octets, Method::Get).ok()?)?;
        let object = first.object.filter(|object| first.status == 200 && object.first == 0)?;
        let known = heads.map(|octets| {
            let octets = octets?;
            let head = head::response(octets, Method::Get).ok()??;
            // A head with inputs is not named: the BPF programs would let the client see the
            // inputs.
            let same = head.object.is_some_and(|other| other == object)
                && head.length == octets.len()
                && !head.inputs;
            let total = octets.len() as u64 + object.length;
            if !same || octets.len() > HEAD_MAX || total > MAX_TOTAL {
                return None;
            }
            let date = date(octets);
            let (length, total) = (octets.len() as u32, total as u32);
            let sum = head_sum(octets, date);
            let head = KnownHead { sum, length, date: date as u32, total, object: 0 };
            Some(Known { head, close: head::response(octets, Method::Get).ok()??.close })
        });
        known[0].as_ref()?;
        Some(Row {
            host: host.to_ascii_lowercase().into(),
            target: target.to_vec(),
            etag: object.etag.to_vec(),
            encoding: object.encoding.map(<[u8]>::to_vec),
            length: object.length,
            known,
            content: Content::default(),
        })
    }

    /// A request for the object.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        [b"GET ", &self.target[..], b" HTTP/1.1\r\nHost: ", &self.host, b"\r\n\r\n"].concat()
    }
}

/// Offset of the date's value in a head; 0 if it has none.
fn date(octets: &[u8]) -> usize {
    let mut at = 0;
    for line in octets.split_inclusive(|&b| b == b'\n') {
        let is_date = line.get(..6).is_some_and(|name| name.eq_ignore_ascii_case(b"date: "));
        if is_date && line.len() == 6 + DATE + 2 {
            return at + 6;
        }
        at += line.len();
    }
    0
}

/// The rows of a server's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    rows: Vec<Row>,
    version: u32,
}

impl Table {
    /// Makes a table of rows in any order. If a host's target occurs twice, the first row counts.
    /// Equal versions mean equal rows, bytes included, so a number names the same response on all
    /// these replicas.
    #[must_use]
    pub fn new(mut rows: Vec<Row>) -> Table {
        let place = |row: &Row| (row.target.clone(), row.host.clone());
        rows.sort_by_cached_key(place);
        rows.dedup_by(|a, b| (&a.target, &a.host) == (&b.target, &b.host));
        rows.truncate(MAX_TARGETS);
        let mut sum = 0;
        for (n, row) in (0u32..).zip(&mut rows) {
            let digest = &row.content.digest.0[..];
            let encoding = row.encoding.as_deref().unwrap_or_default();
            for part in [&row.host[..], &row.target, &row.etag, encoding, digest] {
                sum = crc32c::crc32c_append(sum, &(part.len() as u32).to_le_bytes());
                sum = crc32c::crc32c_append(sum, part);
            }
            for (variant, known) in (0u32..).zip(&mut row.known) {
                let Some(known) = known else { continue };
                known.head.object = HEADS as u32 * n + variant + 1;
                let words = [known.head.sum, known.head.total.into(), known.head.object.into()];
                for word in words {
                    sum = crc32c::crc32c_append(sum, &u64::to_le_bytes(word));
                }
            }
        }
        Table { rows, version: sum.max(1) }
    }

    /// Version of the content, a hash; 0: empty.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All rows, in order.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The row and head that a number stands for.
    #[must_use]
    pub fn get(&self, object: u32) -> Option<(&Row, &Known)> {
        let n = object.checked_sub(1)? as usize;
        let row = self.rows.get(n / HEADS)?;
        Some((row, row.known[n % HEADS].as_ref()?))
    }

    /// The response that a number stands for, in the form of a record.
    #[must_use]
    pub fn response(&self, object: u32) -> Option<Response> {
        let (row, known) = self.get(object)?;
        let (request, head) = self.exchange(row, known);
        let length = u64::from(known.head.total);
        let body = Body::Object { request, head, check: row.content.check, digest: Some(row.content.digest) };
        Some(Response { length, passed: length, close: known.close, body })
    }

    /// The request for an object, and a head with the same fields and length as that of the
    /// response.
    #[must_use]
    pub fn exchange(&self, row: &Row, known: &Known) -> (Vec<u8>, Vec<u8>) {
        let mut head = b"HTTP/1.1 200 OK\r\nETag: ".to_vec();
        head.extend_from_slice(&row.etag);
        head.extend_from_slice(format!("\r\nContent-Length: {}\r\n", row.length).as_bytes());
        if let Some(encoding) = &row.encoding {
            head.extend_from_slice(&[b"Content-Encoding: ", &encoding[..], b"\r\n"].concat());
        }
        // The added field has at least a one-byte name and a colon; the other missing bytes go into
        // its value.
        let missing = (known.head.length as usize).saturating_sub(head.len() + 2 + 4);
        head.extend_from_slice(&[b"x:", &vec![b'x'; missing][..], b"\r\n\r\n"].concat());
        (row.request(), head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: &str = "HTTP/1.1 200 OK\r\nServer: s\r\ndate: Wed, 25 Nov 2026 07:14:08 GMT\r\nETag: \"a\"\r\n\
                        Content-Length: 1000\r\nConnection: keep-alive\r\n\r\n";

    fn row(target: &str, keep: &str) -> Option<Row> {
        let close = keep.replace("keep-alive", "close");
        Row::new("h", target.as_bytes(), [Some(keep.as_bytes()), Some(close.as_bytes())])
    }

    #[test]
    fn head_is_known_with_any_date() {
        let known = |keep: &str| row("/a", keep).map(|row| row.known[0].clone().unwrap().head);
        let head = known(KEEP).unwrap();
        assert_eq!((head.length as usize, head.total as usize), (KEEP.len(), KEEP.len() + 1000));
        assert_eq!(&KEEP.as_bytes()[head.date as usize..][..9], b"Wed, 25 N");
        assert_eq!(known(&KEEP.replace("07:14:08", "23:00:00")), Some(head));
        for (from, to) in [("\"a\"", "\"b\""), ("Server: s", "Server: t")] {
            assert_ne!(known(&KEEP.replace(from, to)).unwrap().sum, head.sum, "{to}");
        }
        for (from, to) in [("\"a\"", "W/\"a\""), ("200", "404"), ("1000", "9999999999"), ("ETag", "E")] {
            assert_eq!(known(&KEEP.replace(from, to)), None, "{to}");
        }
    }

    #[test]
    fn equal_content_gives_equal_object_numbers() {
        let rows = |order: [&str; 3]| order.map(|target| row(target, KEEP).unwrap()).to_vec();
        let table = Table::new(rows(["/b", "/a", "/c"]));
        assert_eq!(table, Table::new(rows(["/c", "/b", "/a"])));
        for (object, target, close) in [(1, "/a", false), (2, "/a", true), (3, "/b", false), (6, "/c", true)]
        {
            let (row, known) = table.get(object).unwrap();
            assert_eq!((&row.target[..], known.close, known.head.object), (target.as_bytes(), close, object));
        }
        assert_eq!((table.get(0), table.get(7)), (None, None));
        let mut other = rows(["/a", "/b", "/c"]);
        other[1] = row("/b", &KEEP.replace("\"a\"", "\"b\"")).unwrap();
        assert_ne!(Table::new(other).version(), table.version());
        let mut site = rows(["/a", "/b", "/c"]);
        site[1].host = b"i".to_vec();
        assert_ne!(Table::new(site.clone()).version(), table.version());
        let both = Table::new([site, rows(["/a", "/b", "/c"])].concat());
        assert_eq!(
            both.rows().iter().map(|row| &row.target[..]).collect::<Vec<_>>(),
            [b"/a", b"/b", b"/b", b"/c"]
        );
        let mut bytes = rows(["/a", "/b", "/c"]);
        bytes[2].content.digest.0[5] = 1;
        assert_ne!(Table::new(bytes).version(), table.version(), "by its bytes alone");
    }

    #[test]
    fn head_made_from_row_has_same_sum() {
        let table = Table::new(vec![row("/a", KEEP).unwrap()]);
        let (found, known) = table.get(2).unwrap();
        let (request, head) = table.exchange(found, known);
        assert_eq!(request, b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(head.len(), known.head.length as usize);
        let said = head::response(&head, Method::Get).unwrap().unwrap();
        let object = said.object.unwrap();
        assert_eq!((object.etag, object.total, said.length), (&b"\"a\""[..], 1000, head.len()));
    }
}
