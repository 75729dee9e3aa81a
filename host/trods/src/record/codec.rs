//! The encoding of a record: numbers in network order, lengths before variable parts, a CRC-32C at
//! the end.

use std::net::{IpAddr, SocketAddr};

use rivulet_plain::ObjectStamp;

use super::{
    Body, Chunked, Handshake, MAX_CHECK, MAX_REQUESTS, MAX_RESPONSES, MAX_WHOLE, Record, Response, Rest,
    Seen, TlsState, Tuple, UNKNOWN,
};
use crate::digest::Digest;
use crate::head::{self, Framing, MAX_HEAD, Method, ResponseHead};

/// Length of the longest encoded record. Records of curl and nginx have fewer than 500 bytes, those
/// of a browser fewer than 1,000; long cookies, pipelined requests and responses that are stored
/// whole need more.
pub const MAX_RECORD: usize = 8192;
/// The first bytes of a record; the last of them is the version of the format.
const MAGIC: [u8; 4] = *b"TRK\x01";
/// The same of a record with a [`TlsState`].
const MAGIC_TLS: [u8; 4] = *b"TRK\x02";
/// Bytes of the longest record with a [`TlsState`], which has a record of plain HTTP in it.
pub const MAX_STORED: usize = 2 * MAX_RECORD;
/// Largest window scale (RFC 7323 section 2.3).
const MAX_SCALE: u8 = 14;

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The first bytes are wrong: not a record, or one of another version.
    #[error("no record of this version")]
    Magic,
    /// The record is too short or too long, or its checksum is wrong.
    #[error("damaged")]
    Damaged,
    /// A field has a value that no encoder writes.
    #[error("{0} cannot be")]
    Field(&'static str),
}

const UNPROTECTED: u8 = 1;
const CLIENT_FIN: u8 = 2;
const SACK: u8 = 4;
const SCALES: u8 = 8;
const TIMESTAMP: u8 = 16;
const V6: u8 = 32;
const FIRST_TIMESTAMP: u8 = 64;
const STAMPS: u8 = 128;

const CLOSE: u8 = 1;
const WHOLE: u8 = 2;
const GENERATED: u8 = 4;
const DIGEST: u8 = 8;

impl Record {
    /// Length of the encoded record ([`encode`](Self::encode)).
    #[must_use]
    pub fn size(&self) -> usize {
        let address = if self.tuple.client.is_ipv6() { 18 } else { 6 };
        let fixed = MAGIC.len() + 1 + 2 * address + 4 + 4 + 2 + 2 + 4 + 8 + 4 + 4 + 1 + 4 + 2 + 4;
        let Handshake { first_timestamp, stamps, .. } = self.handshake;
        let more = [first_timestamp, stamps].into_iter().flatten().map(|value| size_of_val(&value));
        fixed
            + more.sum::<usize>()
            + self.responses.iter().map(Response::size).sum::<usize>()
            + self.requests.len()
            + self.tls.as_ref().map_or(0, |tls| 2 + tls.bytes().len())
    }

    /// Encodes the record: at most [`MAX_RECORD`] bytes if [`decode`](Self::decode) accepts it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.size());
        self.encode_into(&mut out);
        out
    }

    /// Appends the encoded record.
    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(if self.tls.is_some() { &MAGIC_TLS } else { &MAGIC });
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        let handshake = self.handshake;
        let Handshake { client_isn, service_isn, mss, scales, sack, timestamp, first_timestamp, .. } =
            handshake;
        out.push(
            flag(self.unprotected, UNPROTECTED)
                | flag(self.client_fin, CLIENT_FIN)
                | flag(sack, SACK)
                | flag(scales.is_some(), SCALES)
                | flag(timestamp.is_some(), TIMESTAMP)
                | flag(self.tuple.client.is_ipv6(), V6)
                | flag(first_timestamp.is_some(), FIRST_TIMESTAMP)
                | flag(handshake.stamps.is_some(), STAMPS),
        );
        for end in [self.tuple.client, self.tuple.service] {
            match end.ip() {
                IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
                IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
            }
            out.extend_from_slice(&end.port().to_be_bytes());
        }
        out.extend_from_slice(&client_isn.to_be_bytes());
        out.extend_from_slice(&service_isn.to_be_bytes());
        out.extend_from_slice(&mss.to_be_bytes());
        let (theirs, ours) = scales.unwrap_or_default();
        out.extend_from_slice(&[theirs, ours]);
        out.extend_from_slice(&timestamp.unwrap_or(0).to_be_bytes());
        for value in [first_timestamp, handshake.stamps].into_iter().flatten() {
            out.extend_from_slice(&value.to_be_bytes());
        }
        out.extend_from_slice(&handshake.at_ms.to_be_bytes());
        out.extend_from_slice(&self.version.to_be_bytes());
        out.extend_from_slice(&self.response_at.to_be_bytes());
        out.push(self.responses.len() as u8);
        for response in &self.responses {
            let kind = match response.body {
                Body::Object { digest, .. } => flag(digest.is_some(), DIGEST),
                Body::Whole(_) => WHOLE,
                Body::Generated { .. } => GENERATED,
            };
            out.push(flag(response.close, CLOSE) | kind);
            out.extend_from_slice(&response.length.to_be_bytes());
            out.extend_from_slice(&response.passed.to_be_bytes());
            match &response.body {
                Body::Object { request, head, check, digest } => {
                    out.extend_from_slice(&check.0.to_be_bytes());
                    out.extend_from_slice(&check.1.to_be_bytes());
                    digest.iter().for_each(|Digest(digest)| out.extend_from_slice(digest));
                    put(out, request);
                    put(out, head);
                }
                Body::Generated { request, head, seen } => {
                    out.extend_from_slice(&seen.sum.to_be_bytes());
                    // If the body's length is known, the state of the checksum follows from it.
                    let (place, digits, size) = match seen.rest {
                        Rest::Octets(_) => (0, 0, 0),
                        Rest::Chunks(at) => at.encode(),
                    };
                    out.extend_from_slice(&[place, digits]);
                    out.extend_from_slice(&size.to_be_bytes());
                    put(out, request);
                    put(out, head);
                }
                Body::Whole(octets) => put(out, octets),
            }
        }
        out.extend_from_slice(&self.request_at.to_be_bytes());
        put(out, &self.requests);
        self.tls.iter().for_each(|tls| put(out, tls.bytes()));
        let sum = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&sum.to_be_bytes());
    }

    /// Decodes a record and checks that lengths add up, heads parse, and objects have a strong
    /// entity tag.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn decode(octets: &[u8]) -> Result<Record, RecordError> {
        let has_tls = octets.starts_with(&MAGIC_TLS);
        if !has_tls && !octets.starts_with(&MAGIC) {
            return Err(RecordError::Magic);
        }
        let most = if has_tls { MAX_STORED } else { MAX_RECORD };
        let (octets, sum) =
            octets.split_last_chunk().filter(|_| octets.len() <= most).ok_or(RecordError::Damaged)?;
        if crc32c::crc32c(octets) != u32::from_be_bytes(*sum) {
            return Err(RecordError::Damaged);
        }
        let mut from = Reader(&octets[MAGIC.len()..]);
        let flags = from.u8()?;
        let is = |flag: u8| flags & flag != 0;
        let (client, service) = (from.end(is(V6))?, from.end(is(V6))?);
        let (client_isn, service_isn, mss) = (from.u32()?, from.u32()?, from.u16()?);
        let (theirs, ours) = (from.u8()?, from.u8()?);
        if theirs > MAX_SCALE || ours > MAX_SCALE {
            return Err(RecordError::Field("a window's shift"));
        }
        let handshake = Handshake {
            client_isn,
            service_isn,
            mss,
            scales: is(SCALES).then_some((theirs, ours)),
            sack: is(SACK),
            timestamp: Some(from.u32()?).filter(|_| is(TIMESTAMP)),
            first_timestamp: if is(FIRST_TIMESTAMP) { Some(from.u32()?) } else { None },
            stamps: if is(STAMPS) { Some(from.u32()?) } else { None },
            at_ms: from.u64()?,
        };
        if handshake.timestamp.is_none() && handshake.first_timestamp.is_some() {
            return Err(RecordError::Field("a first timestamp"));
        }
        if handshake.stamps.is_some_and(|base| !is_base(base)) {
            return Err(RecordError::Field("what timestamps have"));
        }
        let (version, response_at, count) = (from.u32()?, from.u32()?, usize::from(from.u8()?));
        if count > MAX_RESPONSES {
            return Err(RecordError::Field("the number of responses"));
        }
        let mut responses = Vec::with_capacity(count);
        for left in (0..count).rev() {
            responses.push(from.response(left == 0, has_tls)?);
        }
        let request_at = from.u32()?;
        let requests = from.octets(if has_tls { 0 } else { MAX_REQUESTS }, "the length of requests")?;
        let tls = match has_tls {
            true => Some(TlsState::new(from.octets(MAX_STORED, "the length of a TLS state")?)),
            false => None,
        };
        if !from.0.is_empty() {
            return Err(RecordError::Damaged);
        }
        Ok(Record {
            tuple: Tuple { client, service },
            handshake,
            version,
            unprotected: is(UNPROTECTED),
            response_at,
            responses,
            request_at,
            requests,
            client_fin: is(CLIENT_FIN),
            tls,
        })
    }
}

impl Response {
    /// Length of the encoded response.
    pub(crate) fn size(&self) -> usize {
        17 + match &self.body {
            Body::Object { request, head, digest, .. } => {
                12 + digest.map_or(0, |Digest(digest)| digest.len()) + request.len() + head.len()
            }
            Body::Generated { request, head, .. } => 14 + request.len() + head.len(),
            Body::Whole(octets) => 2 + octets.len(),
        }
    }
}

/// Whether a TSval made by the BPF programs has the bits that name an object all zero.
fn is_base(value: u32) -> bool {
    ObjectStamp::parse(value).is_some_and(|stamp| (stamp.index, stamp.object) == (0, 0))
}

fn put(out: &mut Vec<u8>, octets: &[u8]) {
    out.extend_from_slice(&(octets.len() as u16).to_be_bytes());
    out.extend_from_slice(octets);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (first, rest) = self.0.split_first_chunk().ok_or(RecordError::Damaged)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u8(&mut self) -> Result<u8, RecordError> {
        self.array::<1>().map(|[octet]| octet)
    }

    fn u16(&mut self) -> Result<u16, RecordError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        self.array().map(u64::from_be_bytes)
    }

    fn end(&mut self, v6: bool) -> Result<SocketAddr, RecordError> {
        let ip: IpAddr = if v6 { self.array::<16>()?.into() } else { self.array::<4>()?.into() };
        Ok(SocketAddr::new(ip, self.u16()?))
    }

    fn octets(&mut self, most: usize, what: &'static str) -> Result<Vec<u8>, RecordError> {
        let length = usize::from(self.u16()?);
        if length > most {
            return Err(RecordError::Field(what));
        }
        let (octets, rest) = self.0.split_at_checked(length).ok_or(RecordError::Damaged)?;
        self.0 = rest;
        Ok(octets.to_vec())
    }

    fn response(&mut self, last: bool, has_tls: bool) -> Result<Response, RecordError> {
        let (flags, length, passed) = (self.u8()?, self.u64()?, self.u64()?);
        if passed > length || passed < length && !last || length == 0 {
            return Err(RecordError::Field("what was let pass"));
        }
        let body = match flags & (WHOLE | GENERATED) {
            WHOLE if has_tls => Body::Whole(self.octets(0, "the length of a TLS response")?),
            _ if has_tls => return Err(RecordError::Field("the kind of a TLS response")),
            0 => self.object(length, flags & DIGEST != 0)?,
            WHOLE => self.whole(length)?,
            GENERATED => self.generated(length, passed)?,
            _ => return Err(RecordError::Field("the kind of a response")),
        };
        Ok(Response { length, passed, close: flags & CLOSE != 0, body })
    }

    fn whole(&mut self, length: u64) -> Result<Body, RecordError> {
        let octets = self.octets(MAX_WHOLE, "the length of a whole response")?;
        if octets.len() as u64 != length {
            return Err(RecordError::Field("the length of a whole response"));
        }
        Ok(Body::Whole(octets))
    }

    fn object(&mut self, length: u64, has_digest: bool) -> Result<Body, RecordError> {
        let check = (self.u32()?, self.u32()?);
        let digest = if has_digest { Some(Digest(self.array()?)) } else { None };
        let (request, head, method) = self.heads()?;
        let object = read(&head, method)?.object.ok_or(RecordError::Field("an object"))?;
        if head.len() as u64 + object.length != length
            || u64::from(check.0) > object.length.min(MAX_CHECK as u64)
        {
            return Err(RecordError::Field("the length of an object"));
        }
        Ok(Body::Object { request, head, check, digest })
    }

    fn generated(&mut self, length: u64, passed: u64) -> Result<Body, RecordError> {
        let sum = self.u32()?;
        let (place, digits, size) = (self.u8()?, self.u8()?, self.u32()?);
        let (request, head, method) = self.heads()?;
        let framing = read(&head, method)?.framing;
        let odd = RecordError::Field("what was seen of a body");
        let at = Chunked::decode(place, digits, size).ok_or(odd)?;
        let before = head.len() as u64;
        let rest = match framing {
            Framing::Length(body) if before + body == length && at == Chunked::default() => {
                Rest::Octets(length - passed)
            }
            Framing::Chunked if length == if at == Chunked::Over { passed } else { UNKNOWN } => {
                Rest::Chunks(at)
            }
            _ => return Err(odd),
        };
        let seen = Seen { sum, rest };
        // Only GET responses are generated again; the checksum of zero bytes is zero.
        let is_first = passed == before;
        let is_odd = is_first && Some(seen) != Seen::nothing(framing);
        if method != Method::Get || passed < before || is_odd {
            return Err(odd);
        }
        Ok(Body::Generated { request, head, seen })
    }

    /// Decodes the heads of a request and of its response, and the method.
    fn heads(&mut self) -> Result<(Vec<u8>, Vec<u8>, Method), RecordError> {
        let request = self.octets(MAX_HEAD, "the length of a request's head")?;
        let head = self.octets(MAX_HEAD, "the length of a response's head")?;
        let asked = head::request(&request).ok().flatten().filter(|asked| asked.length == request.len());
        let method = asked.ok_or(RecordError::Field("the head of a request"))?.method;
        read(&head, method)?;
        Ok((request, head, method))
    }
}

/// Parses bytes that must be exactly the head of a response.
fn read(head: &[u8], method: Method) -> Result<ResponseHead<'_>, RecordError> {
    let said = head::response(head, method).ok().flatten().filter(|said| said.length == head.len());
    said.ok_or(RecordError::Field("the head of a response"))
}
