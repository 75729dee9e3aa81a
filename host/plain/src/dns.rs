//! DNS over TCP translated to DNS over UDP: queries are parsed from one segment, each goes to the
//! back end as a datagram, and the answers are framed again (RFC 1035 section 4.2.2, RFC 7766).
//!
//! Only ordinary queries with one question are translated: any server answers them with one
//! message, and they change nothing. The kernel handles transfers, updates and malformed messages.
//! Towards the back end a query allows 65,535 bytes of answer (RFC 6891), by its own OPT record or
//! by one that is added, and removed from the answer. Signed messages (TSIG, SIG(0)) are passed on
//! unchanged.

mod message;

use arrayvec::ArrayVec;

use self::message::{FIXED, HEADER, Options, TYPE_OPT, find_opt, plain_name, word};

/// Limit on the queries in a segment; the kernel's TCP serves segments with more.
pub const MAX_QUERIES: usize = 16;
/// Limit on the length of a query, without its length field: that of one segment.
pub const MAX_QUERY: usize = 1460;
/// Limit on the length of a query as a datagram to the back end.
pub const MAX_DATAGRAM: usize = MAX_QUERY + OPT.len();

/// Bytes of the length before a message.
const LENGTH: usize = 2;
/// An OPT record without options that allows 65,535 bytes (RFC 6891 section 6.1.2).
const OPT: [u8; 11] = [0, 0, TYPE_OPT as u8, 0xff, 0xff, 0, 0, 0, 0, 0, 0];

const TYPE_SIG: u16 = 24;
const TYPE_TSIG: u16 = 250;
const TYPE_IXFR: u16 = 251;
const TYPE_AXFR: u16 = 252;

/// Why the data of a segment is not answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The last query is incomplete.
    Split,
    /// A message that is not an ordinary query, or too many queries.
    Other,
}

/// A query in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    message: &'a [u8],
    /// Bytes of the question, type and class included.
    question: usize,
    edns: Edns,
}

/// The EDNS part of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edns {
    /// The query has no OPT record.
    None,
    /// Offset of the OPT record (after its owner's name), which is the last record.
    Opt(usize),
    /// The query is signed: only its id may be changed.
    Signed,
}

/// All queries of a segment.
pub type Queries<'a> = ArrayVec<Query<'a>, MAX_QUERIES>;

/// Parses the queries of a segment's data, at least one.
///
/// # Errors
/// [`Fault`].
pub fn queries(mut data: &[u8]) -> Result<Queries<'_>, Fault> {
    let mut queries = Queries::new();
    loop {
        let (length, rest) = data.split_first_chunk().ok_or(Fault::Split)?;
        let length = usize::from(u16::from_be_bytes(*length));
        // A query longer than any segment never becomes complete.
        if !(HEADER..=MAX_QUERY).contains(&length) {
            return Err(Fault::Other);
        }
        let (message, rest) = rest.split_at_checked(length).ok_or(Fault::Split)?;
        let query = Query::parse(message).ok_or(Fault::Other)?;
        queries.try_push(query).map_err(|_| Fault::Other)?;
        if rest.is_empty() {
            return Ok(queries);
        }
        data = rest;
    }
}

/// Whether a client's first bytes can begin a query: a length, and as much of a query's header as
/// has arrived.
#[must_use]
pub(crate) fn begins_a_query(data: &[u8]) -> bool {
    let Some((length, message)) = data.split_first_chunk() else { return false };
    let is_query = |flags: &u8| flags & 0x80 == 0;
    usize::from(u16::from_be_bytes(*length)) >= HEADER
        && message.get(2).is_none_or(is_query)
        && message.get(4..6).is_none_or(|count| count == [0, 1])
}

/// The id of a message, if it is long enough to have one.
#[must_use]
pub fn number(message: &[u8]) -> Option<u16> {
    message.get(..HEADER).and_then(|header| word(header, 0))
}

/// Whether a message from the back end's TCP answers this query, which was sent unchanged.
#[must_use]
pub fn is_answer(query: &[u8], message: &[u8]) -> bool {
    Query::parse(query).is_some_and(|query| query.answered(query.id(), message).is_some())
}

/// What a datagram from the back end means for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The answer. The OPT record at this offset, if any, has to be removed.
    Answer(Option<usize>),
    /// Truncated, or impossible to convert: send the unchanged query by TCP.
    ByTcp,
    /// The datagram answers another query.
    Foreign,
}

impl<'a> Query<'a> {
    /// Parses a message; `None` if it is not an ordinary query.
    fn parse(message: &'a [u8]) -> Option<Query<'a>> {
        let header: &[u8; HEADER] = message.first_chunk()?;
        // QR and OPCODE: only standard queries.
        if header[2] & 0xf8 != 0 {
            return None;
        }
        let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        if (count(4), count(6), count(8)) != (1, 0, 0) {
            return None;
        }
        let name = plain_name(message, HEADER)?;
        if [TYPE_IXFR, TYPE_AXFR].contains(&word(message, name)?) {
            return None;
        }
        let question = name + 4 - HEADER;
        let mut at = HEADER + question;
        let mut edns = Edns::None;
        for _ in 0..count(10) {
            // OPT and TSIG records are last; only a signature may follow the former.
            let fixed = plain_name(message, at)?;
            let end = fixed + FIXED + usize::from(word(message, fixed + 8)?);
            edns = match (word(message, fixed)?, edns) {
                (TYPE_OPT, Edns::None) if fixed == at + 1 => Edns::Opt(fixed),
                (TYPE_TSIG | TYPE_SIG, Edns::None | Edns::Opt(_)) => Edns::Signed,
                _ => return None,
            };
            at = end;
        }
        (at == message.len()).then_some(Query { message, question: question.min(message.len()), edns })
    }

    /// The message as the client sent it, without its length.
    #[must_use]
    pub fn message(&self) -> &'a [u8] {
        self.message
    }

    /// The query's id, as the client sent it.
    #[must_use]
    pub fn id(&self) -> u16 {
        word(self.message, 0).unwrap_or_default()
    }

    fn question(&self) -> &'a [u8] {
        self.message.get(HEADER..HEADER + self.question).unwrap_or_default()
    }

    /// The datagram for the back end, with another id.
    #[must_use]
    pub fn datagram(&self, id: u16) -> ArrayVec<u8, MAX_DATAGRAM> {
        let mut out = ArrayVec::new();
        let mut put = |bytes: &[u8]| {
            // A query has at most MAX_QUERY bytes, so all of it fits.
            let _ = out.try_extend_from_slice(bytes);
        };
        put(&id.to_be_bytes());
        match self.edns {
            Edns::Signed => put(&self.message[2..]),
            Edns::None => {
                put(&self.message[2..10]);
                put(&[0, 1]);
                put(&self.message[HEADER..]);
                put(&OPT);
            }
            Edns::Opt(at) => {
                let (front, record) = self.message.split_at(at);
                put(&front[2..]);
                put(&TYPE_OPT.to_be_bytes());
                put(&u16::MAX.to_be_bytes());
                put(&record[4..8]);
                let options = &record[FIXED..];
                let kept = || Options(options).filter(|option| !option.is_of_hop());
                match Options(options).all(|option| option.whole) {
                    true => {
                        put(&(kept().map(|option| option.bytes.len()).sum::<usize>() as u16).to_be_bytes());
                        kept().for_each(|option| put(option.bytes));
                    }
                    // Malformed options are passed on, and the back end reports the error.
                    false => put(&record[8..]),
                }
            }
        }
        out
    }

    /// Decides whether a datagram is the answer to [`datagram`](Self::datagram) with this id.
    #[must_use]
    pub fn judge(&self, id: u16, datagram: &[u8]) -> Reply {
        let Some(header) = self.answered(id, datagram) else { return Reply::Foreign };
        // TC: the answer is truncated.
        if header[2] & 2 != 0 {
            return Reply::ByTcp;
        }
        if self.edns != Edns::None {
            return Reply::Answer(None);
        }
        match find_opt(datagram) {
            Ok(Some((at, end, extended))) if end == datagram.len() && extended == 0 => {
                Reply::Answer(Some(at))
            }
            // A server without EDNS understands the question but not the added record (RFC 6891 section 7).
            Ok(None) if !matches!(header[3] & 15, FORMERR | NOTIMP) => Reply::Answer(None),
            _ => Reply::ByTcp,
        }
    }

    /// The header of a response to this query's question with this id.
    fn answered<'m>(&self, id: u16, message: &'m [u8]) -> Option<&'m [u8; HEADER]> {
        let header: &[u8; HEADER] = message.first_chunk()?;
        // QR and OPCODE: a response to a standard query.
        if word(message, 0)? != id || header[2] & 0xf8 != 0x80 {
            return None;
        }
        let same = match (word(message, 4)?, header[3] & 15) {
            // A server that refuses a query may omit the question.
            (0, code) => code != 0,
            (1, _) => {
                let (mine, theirs) = (self.question(), message.get(HEADER..HEADER + self.question)?);
                let (name, kind) = mine.split_at(mine.len() - 4);
                theirs[..name.len()].eq_ignore_ascii_case(name) && theirs[name.len()..] == *kind
            }
            _ => false,
        };
        same.then_some(header)
    }

    /// Appends an answer to a stream: its length, the client's id, and the message without the OPT
    /// record at `opt`. Returns `false`, with nothing appended, if it exceeds the length field or
    /// `room`.
    #[must_use]
    pub fn append(&self, answer: &[u8], opt: Option<usize>, room: usize, out: &mut Vec<u8>) -> bool {
        let end = opt.unwrap_or(answer.len());
        let (Ok(length), Some(body)) = (u16::try_from(end), answer.get(2..end)) else { return false };
        if end < HEADER || end + LENGTH > room {
            return false;
        }
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(&self.id().to_be_bytes());
        let start = out.len() - 2;
        out.extend_from_slice(body);
        if opt.is_some() {
            let count = word(answer, 10).unwrap_or_default().saturating_sub(1);
            out[start + 10..start + HEADER].copy_from_slice(&count.to_be_bytes());
        }
        true
    }
}

/// RCODE of a server that cannot parse a query.
const FORMERR: u8 = 1;
/// RCODE of a server that does not support such queries.
const NOTIMP: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A query for a name of two labels: header, question, and these additional records.
    fn query(id: u16, kind: u16, additional: &[&[u8]]) -> Vec<u8> {
        let mut out = id.to_be_bytes().to_vec();
        out.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, additional.len() as u8]);
        out.extend(b"\x03wWw\x02xy\0");
        out.extend(kind.to_be_bytes());
        out.extend([0, 1]);
        additional.iter().for_each(|record| out.extend(*record));
        out
    }

    /// The answer to a query: one record of `size` bytes, and these additional records.
    fn answer(to: &[u8], size: usize, additional: &[&[u8]]) -> Vec<u8> {
        let mut out = to[..12 + 12].to_vec();
        out[2] |= 0x80;
        out[6..12].copy_from_slice(&[0, 1, 0, 0, 0, additional.len() as u8]);
        out.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 9]);
        out.extend((size as u16).to_be_bytes());
        out.resize(out.len() + size, b'x');
        additional.iter().for_each(|record| out.extend(*record));
        out
    }

    fn framed(messages: &[&[u8]]) -> Vec<u8> {
        messages.iter().flat_map(|m| [&(m.len() as u16).to_be_bytes()[..], m].concat()).collect()
    }

    fn one(message: &[u8]) -> Query<'_> {
        Query::parse(message).expect("a query")
    }

    const SIGNATURE: &[u8] = &[0, 0, 250, 0, 255, 0, 0, 0, 0, 0, 3, 1, 2, 3];

    #[test]
    fn several_queries_are_read_from_one_segment() {
        let (a, b) = (query(7, 1, &[]), query(8, 28, &[&OPT]));
        let data = framed(&[&a, &b]);
        let read = queries(&data).unwrap();
        assert_eq!(read.iter().map(|q| (q.id(), q.message())).collect::<Vec<_>>(), [(7, &a[..]), (8, &b)]);
        for cut in 0..data.len() {
            let first = a.len() + 2;
            match queries(&data[..cut]) {
                Ok(read) => assert!(read.len() == 1 && cut == first),
                Err(fault) => assert!(fault == Fault::Split && cut != first, "{cut}"),
            }
        }
        let many: Vec<&[u8]> = vec![&a; MAX_QUERIES + 1];
        assert_eq!(queries(&framed(&many[1..])).unwrap().len(), MAX_QUERIES);
        assert_eq!(queries(&framed(&many)), Err(Fault::Other));
        assert_eq!(queries(&[0xff, 0xff, 0]), Err(Fault::Other), "no segment holds it");
        assert_eq!(queries(&[0, 11, 0]), Err(Fault::Other));
    }

    #[test]
    fn unusual_query_is_not_translated() {
        let good = query(7, 1, &[]);
        let with = |at: usize, octet: u8| {
            let mut bad = good.clone();
            bad[at] = octet;
            bad
        };
        let mut long = good.clone();
        long.push(0);
        for (bad, why) in [
            (with(2, 0x81), "a response"),
            (with(2, 0x29), "an update"),
            (with(5, 2), "two questions"),
            (with(7, 1), "an answer"),
            (with(9, 1), "an authority"),
            (with(11, 1), "a record that is not there"),
            (with(12, 0xc0), "a pointer"),
            (long, "octets behind it"),
            (query(7, TYPE_AXFR, &[]), "a transfer"),
            (query(7, TYPE_IXFR, &[]), "a transfer"),
            (query(7, 1, &[&OPT, &OPT]), "two OPT"),
            (query(7, 1, &[SIGNATURE, &OPT]), "something behind the signature"),
            (query(7, 1, &[&[0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]]), "another record"),
        ] {
            assert_eq!(Query::parse(&bad), None, "{why}");
        }
        assert!(Query::parse(&query(7, 1, &[&OPT, SIGNATURE])).is_some());
    }

    #[test]
    fn back_end_may_answer_with_65535_bytes() {
        let without = query(7, 1, &[]);
        assert_eq!(one(&without).datagram(0x1234)[..], query(0x1234, 1, &[&OPT]));
        // An OPT record with 1,232 bytes, DO, and three options: a cookie, a client subnet, and a
        // TCP keep-alive time.
        let record = |size: [u8; 2], options: &[u8]| {
            [&[0, 0, 41][..], &size, &[0, 0, 0x80, 0, 0, options.len() as u8], options].concat()
        };
        let (cookie, subnet, stay) = ([0, 10, 0, 2, 1, 2], [0, 8, 0, 1, 9], [0, 11, 0, 0]);
        let own = record([4, 208], &[&cookie[..], &subnet, &stay].concat());
        let want = record([0xff, 0xff], &subnet);
        assert_eq!(one(&query(7, 1, &[&own])).datagram(9)[..], query(9, 1, &[&want]));
        let broken = record([4, 208], &[0, 10, 0, 9, 1]);
        let want = record([0xff, 0xff], &[0, 10, 0, 9, 1]);
        assert_eq!(one(&query(7, 1, &[&broken])).datagram(9)[..], query(9, 1, &[&want]));
        for signed in [&[SIGNATURE][..], &[&own, SIGNATURE]] {
            assert_eq!(one(&query(7, 1, signed)).datagram(9)[..], query(9, 1, signed), "signed octets stay");
        }
    }

    #[test]
    fn answer_is_framed_without_the_added_record() {
        let asked = query(7, 1, &[]);
        let sent = one(&asked).datagram(900);
        let got = answer(&sent, 40, &[&OPT]);
        let place = got.len() - OPT.len();
        assert_eq!(one(&asked).judge(900, &got), Reply::Answer(Some(place)));
        let mut out = b"before".to_vec();
        assert!(one(&asked).append(&got, Some(place), 1000, &mut out));
        assert_eq!(out[6..], framed(&[&answer(&asked, 40, &[])]));
        // Without room nothing is appended.
        let length = out.len();
        assert!(!one(&asked).append(&got, None, got.len() + 1, &mut out) && out.len() == length);
        assert!(one(&asked).append(&got, None, got.len() + 2, &mut out));
        // A client with EDNS keeps the record.
        let asked = query(7, 1, &[&OPT]);
        let got = answer(&one(&asked).datagram(900), 40, &[&OPT]);
        assert_eq!(one(&asked).judge(900, &got), Reply::Answer(None));
    }

    #[test]
    fn untranslatable_answer_goes_over_tcp() {
        let asked = query(7, 1, &[]);
        let sent = one(&asked).datagram(900);
        let mut truncated = answer(&sent, 4, &[&OPT]);
        truncated[2] |= 2;
        let mut old = answer(&sent, 4, &[]);
        old[3] |= FORMERR;
        let mut extended = OPT;
        extended[5] = 1;
        let other = [0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0];
        let mut cut = answer(&sent, 4, &[&OPT]);
        cut.pop();
        for (got, why) in [
            (truncated, "there is more"),
            (old, "a server of before EDNS"),
            (answer(&sent, 4, &[&extended]), "a code that needs the record"),
            (answer(&sent, 4, &[&OPT, &other]), "a record behind it, which may point behind it"),
            (cut, "not whole"),
        ] {
            assert_eq!(one(&asked).judge(900, &got), Reply::ByTcp, "{why}");
        }
    }

    #[test]
    fn answer_to_another_query_is_foreign() {
        let asked = query(7, 1, &[]);
        let good = answer(&one(&asked).datagram(900), 4, &[]);
        assert_eq!(one(&asked).judge(900, &good), Reply::Answer(None));
        assert_eq!(one(&asked).judge(901, &good), Reply::Foreign, "another number");
        for (at, octet) in [(2, 1), (2, 0x91), (5, 2), (5, 0), (15, b'v'), (21, 0x41), (22, 1), (23, 3)] {
            let mut bad = good.clone();
            bad[at] = octet;
            assert_eq!(one(&asked).judge(900, &bad), Reply::Foreign, "octet {at}");
        }
        let mut lower = good.clone();
        lower[14] = b'w';
        assert_eq!(one(&asked).judge(900, &lower), Reply::Answer(None), "names have no case");
        // A REFUSED response may omit the question.
        assert!(is_answer(&asked, &[0, 7, 0x80, 5, 0, 0, 0, 0, 0, 0, 0, 0]));
        assert!(!is_answer(&asked, &[0, 7, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }

    proptest! {
        #[test]
        fn any_octets_are_survived(
            data in prop::collection::vec(any::<u8>(), 0..80), size in 0usize..50, at in 0usize..120, octet: u8,
        ) {
            let _ = (queries(&data), find_opt(&data));
            let asked = query(7, 1, &[&OPT[..], &data]);
            let mut data = framed(&[&asked, &query(7, 1, &[&OPT])]);
            if let Some(to) = data.get_mut(at) {
                *to = octet;
            }
            for query in queries(&data).iter().flatten() {
                let sent = query.datagram(9);
                prop_assert!(sent.len() <= query.message().len() + OPT.len());
                let mut got = answer(&[&sent[..], &[0; 24]].concat(), size, &[&OPT]);
                if let Some(to) = got.get_mut(at) {
                    *to = octet;
                }
                if let Reply::Answer(opt) = query.judge(9, &got) {
                    let mut out = Vec::new();
                    prop_assert!(query.append(&got, opt, 500, &mut out));
                    prop_assert_eq!(usize::from(word(&out, 0).unwrap()) + 2, out.len());
                    prop_assert_eq!(word(&out, 2), Some(query.id()));
                }
            }
        }
    }
}
