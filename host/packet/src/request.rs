//! Requests, which clients send: a view of the TCP payload, and a builder.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::bytes::{Reader, Writer, u16_at, u32_at, u64_at};
use crate::continuation::{SealedContinuation, check_time};
use crate::error::{BuildError, WireError};
use crate::lists::{self, MAX_UCONTS, Ucont, Uconts, read_token};
use crate::option::RequestClass;
use crate::proof::{self, MAX_ENTRIES, Proof, ProofEntry};
use crate::tor::{self, TorBlock};

/// Largest attempt number: a request other than SYN and NORMAL may be repeated this many times.
pub const MAX_ATTEMPT: u8 = 3;
/// Most wants of one request.
pub const MAX_WANTS: usize = 16;
/// Bytes of payload in every request: the ToR block, counts and kinds, and the fields from `hold`
/// on.
pub const FIXED: usize = tor::LENGTH + 12;
/// Bytes of a want.
pub const WANT: usize = 16;
/// Value of `ucont` in a want or an input without a user continuation.
pub const NO_UCONT: u8 = 255;
/// Unit of `hold` in microseconds.
pub const HOLD_UNIT: u64 = 64;
/// Body flag: an input header and input follow.
pub const BODY_INPUT: u8 = 0x01;
/// Body flag: a token follows the wants.
pub const BODY_TOKEN: u8 = 0x02;
/// Body flag: padding follows at the end, which allows a response of that size.
pub const BODY_PAD: u8 = 0x04;
/// Body flag: the client's former address and port follow the token; only in RESTART.
pub const BODY_FORMER: u8 = 0x08;
/// Body flag: the client returns its window for a token; only in REKEY.
pub const BODY_RETIRE: u8 = 0x10;
/// Want flag: for a retransmission; such wants are in the order of the lost numbers.
pub const WANT_RETRANSMIT: u8 = 0x01;
/// Input flag: the input stream ends with this data.
pub const INPUT_END: u8 = 0x01;

/// A requested byte range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Want {
    /// First byte of the stream.
    pub offset: u64,
    /// Bytes, at least 1.
    pub length: u32,
    /// Index of the user continuation for the range; `None` if the application needs none.
    pub ucont: Option<u8>,
    /// Whether it is for a retransmission: the first such want belongs to the first lost number,
    /// and so on.
    pub retransmit: bool,
}

impl Want {
    fn read(r: &mut Reader<'_>, uconts: u8) -> Result<Self, WireError> {
        let at = r.pos();
        let b: [u8; 12] = r.fields(&[8, 4])?;
        let (offset, length) = (u64_at(&b, 0), u32_at(&b, 8));
        if length == 0 {
            return Err(WireError::WantEmpty(at + 8));
        }
        if offset.checked_add(u64::from(length)).is_none() {
            return Err(WireError::WantBeyond(at));
        }
        let b: [u8; 4] = r.fields(&[1, 1, 2])?;
        let (ucont, flags, reserved) = (b[0], b[1], u16_at(&b, 2));
        let ucont = ucont_index(ucont, uconts).ok_or(WireError::WantUcont(at + 12))?;
        if flags & !WANT_RETRANSMIT != 0 {
            return Err(WireError::WantFlags(at + 13));
        }
        if reserved != 0 {
            return Err(WireError::WantReserved(at + 14));
        }
        Ok(Self { offset, length, ucont, retransmit: flags & WANT_RETRANSMIT != 0 })
    }

    fn write(&self, w: &mut Writer<'_>) {
        w.u64(self.offset);
        w.u32(self.length);
        w.u8(self.ucont.unwrap_or(NO_UCONT));
        w.u8(if self.retransmit { WANT_RETRANSMIT } else { 0 });
        w.u16(0);
    }

    /// End of the range (exclusive); in a parsed want at most 2^64.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }
}

/// Decodes an index; `None` if it is out of bounds.
fn ucont_index(wire: u8, uconts: u8) -> Option<Option<u8>> {
    match wire {
        NO_UCONT => Some(None),
        i if i < uconts => Some(Some(i)),
        _ => None,
    }
}

/// Input for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Input<'a> {
    /// The input stream's number.
    pub stream: u16,
    /// The stream ends with this data.
    pub end: bool,
    /// Index of the input continuation among the user continuations.
    pub ucont: Option<u8>,
    /// Offset of the first byte in the stream.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
}

/// A parsed request. All rules are checked except those that need a key or a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its class.
    pub class: RequestClass,
    /// The ToR's stamp.
    pub tor: TorBlock,
    /// How many times this request was sent before, 0 to [`MAX_ATTEMPT`]; 0 in a SYN and a NORMAL.
    /// Only the first attempt returns data.
    pub attempt: u8,
    /// The continuation; `None` only in a SYN.
    pub continuation: Option<SealedContinuation>,
    /// The proof; empty in a SYN.
    pub proof: Proof<'a>,
    /// How long the client held the continuation, in units of 64 us, saturating.
    pub hold: u16,
    /// Numbers this request answers: 1, or 2 with a delayed acknowledgement.
    pub covers: u8,
    /// Token that proves the address.
    pub token: Option<&'a [u8]>,
    /// The address and port under the MAC, if they differ from the packet's; only in RESTART.
    pub former: Option<SocketAddr>,
    /// The client returns its window for a token that opens another connection with it; only in
    /// REKEY.
    pub retire: bool,
    /// Input for the application.
    pub input: Option<Input<'a>>,
    /// Bytes of padding.
    pub padding: usize,
    wants: &'a [u8],
    want_count: u8,
    uconts: Uconts<'a>,
}

impl<'a> Request<'a> {
    /// Parses the TCP payload of a request segment.
    ///
    /// # Errors
    /// The first rule broken, its position counted from the start of `payload`.
    pub fn parse(class: RequestClass, number_low: u16, payload: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(payload, WireError::TorTruncated);
        let tor = TorBlock::read(&mut r)?;
        let b: [u8; 6] = r.fields(&[1, 1, 4])?;
        let (count, attempt, kinds) = (b[0], b[1], u32_at(&b, 2));
        check_counts(class, count, attempt, kinds)?;
        let mut continuation = None;
        let mut proof = Proof::default();
        if class == RequestClass::Syn {
            // A SYN has no number, so the option contains zero.
            if number_low != 0 {
                return Err(WireError::NumberLow(0));
            }
            r.section(WireError::TailTruncated);
        } else {
            let mut c = SealedContinuation::default();
            r.section(WireError::HeadTruncated);
            c.fields.read_head(&mut r)?;
            if c.fields.number as u16 != number_low {
                return Err(WireError::NumberLow(28));
            }
            proof = Proof::read(&mut r, count, kinds)?;
            r.section(WireError::TailTruncated);
            c.fields.read_tail(&mut r)?;
            c.mac = r.array()?;
            continuation = Some(c);
        }
        let at = r.pos();
        let b: [u8; 6] = r.fields(&[2, 1, 1, 1, 1])?;
        let (hold, covers, want_count, ucont_count, body) = (u16_at(&b, 0), b[2], b[3], b[4], b[5]);
        check_fields(class, covers, want_count, ucont_count, body, at)?;
        let wants = read_wants(&mut r, want_count, ucont_count)?;
        let token = if body & BODY_TOKEN != 0 { Some(read_token(&mut r)?) } else { None };
        let former = if body & BODY_FORMER != 0 { Some(read_former(&mut r)?) } else { None };
        let uconts = Uconts::read(&mut r, ucont_count)?;
        let input = if body & BODY_INPUT != 0 { Some(read_input(&mut r, ucont_count)?) } else { None };
        let padding = r.remaining();
        if body & BODY_PAD == 0 && padding > 0 {
            return Err(WireError::TrailingBytes(r.pos()));
        }
        Ok(Self {
            class,
            tor,
            attempt,
            continuation,
            proof,
            hold,
            covers,
            token,
            former,
            retire: body & BODY_RETIRE != 0,
            input,
            padding,
            wants,
            want_count,
            uconts,
        })
    }

    /// The requested byte ranges, in the order of their responses.
    pub fn wants(&self) -> impl ExactSizeIterator<Item = Want> + Clone + use<'a> {
        let uconts = self.uconts.len() as u8;
        self.wants.chunks_exact(WANT).map(move |b| {
            // `parse` has validated every want, so the default is never used.
            Want::read(&mut Reader::new(b, WireError::WantTruncated), uconts).unwrap_or_default()
        })
    }

    /// Number of wants.
    pub fn want_count(&self) -> usize {
        usize::from(self.want_count)
    }

    /// The user continuations in order.
    pub fn uconts(&self) -> impl Iterator<Item = Ucont<'a>> + Clone + use<'a> {
        self.uconts.iter()
    }

    /// Number of user continuations.
    pub fn ucont_count(&self) -> usize {
        self.uconts.len()
    }

    /// The user continuation with this index.
    pub fn ucont(&self, index: u8) -> Option<Ucont<'a>> {
        self.uconts().nth(usize::from(index))
    }

    /// How long the client held the continuation, microseconds.
    pub fn hold_micros(&self) -> u64 {
        u64::from(self.hold) * HOLD_UNIT
    }
}

fn most_attempts(class: RequestClass) -> u8 {
    if matches!(class, RequestClass::Syn | RequestClass::Normal) { 0 } else { MAX_ATTEMPT }
}

/// Checks the fields after the ToR's stamp.
#[inline]
fn check_counts(class: RequestClass, entries: u8, attempt: u8, kinds: u32) -> Result<(), WireError> {
    if usize::from(entries) > if class == RequestClass::Syn { 0 } else { MAX_ENTRIES } {
        return Err(WireError::RangeCount(18));
    }
    if attempt > most_attempts(class) {
        return Err(WireError::Attempt(19));
    }
    // `checked_shl`: with 16 entries no kind is unused, and a shift by 32 overflows.
    if kinds.checked_shl(2 * u32::from(entries)).unwrap_or(0) != 0 {
        return Err(WireError::RangeKindsUnused(20));
    }
    // Both bits of a pair: kind 3 does not exist.
    if kinds & kinds >> 1 & 0x5555_5555 != 0 {
        return Err(WireError::RangeKindsUnknown(20));
    }
    Ok(())
}

/// Checks the fields after the tail, which start at `at`.
#[inline]
fn check_fields(
    class: RequestClass,
    covers: u8,
    wants: u8,
    uconts: u8,
    body: u8,
    at: usize,
) -> Result<(), WireError> {
    if covers == 0 || covers > 2 {
        return Err(WireError::Covers(at + 2));
    }
    if usize::from(wants) > MAX_WANTS {
        return Err(WireError::WantCount(at + 3));
    }
    if usize::from(uconts) > MAX_UCONTS {
        return Err(WireError::UcontCount(at + 4));
    }
    if body & !(BODY_INPUT | BODY_TOKEN | BODY_PAD | BODY_FORMER | BODY_RETIRE) != 0
        || (body & BODY_FORMER != 0 && class != RequestClass::Restart)
        || (body & BODY_RETIRE != 0 && class != RequestClass::Rekey)
    {
        return Err(WireError::BodyFlags(at + 5));
    }
    Ok(())
}

fn read_wants<'a>(r: &mut Reader<'a>, count: u8, uconts: u8) -> Result<&'a [u8], WireError> {
    r.section(WireError::WantTruncated);
    let mut look = r.clone();
    for _ in 0..count {
        Want::read(&mut look, uconts)?;
    }
    r.bytes(usize::from(count) * WANT)
}

fn read_former(r: &mut Reader<'_>) -> Result<SocketAddr, WireError> {
    r.section(WireError::FormerTruncated);
    let address = Ipv6Addr::from(r.array::<16>()?);
    Ok(SocketAddr::new(address.to_canonical(), r.u16()?))
}

fn read_input<'a>(r: &mut Reader<'a>, uconts: u8) -> Result<Input<'a>, WireError> {
    r.section(WireError::InputTruncated);
    let at = r.pos();
    let (stream, flags, ucont) = (r.u16()?, r.u8()?, r.u8()?);
    if flags & !INPUT_END != 0 {
        return Err(WireError::InputFlags(at + 2));
    }
    let ucont = ucont_index(ucont, uconts).ok_or(WireError::InputUcont(at + 3))?;
    let (offset, length) = (r.u64()?, r.u16()?);
    if offset.checked_add(u64::from(length)).is_none() {
        return Err(WireError::InputBeyond(at + 4));
    }
    let data = r.bytes(usize::from(length))?;
    Ok(Input { stream, end: flags & INPUT_END != 0, ucont, offset, data })
}

impl fmt::Display for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.class)?;
        if let Some(c) = &self.continuation {
            write!(f, " {} proof [{}]", c.fields, self.proof)?;
        }
        write!(f, ", {} wants", self.want_count)?;
        if let Some(i) = &self.input {
            write!(f, ", {} bytes of input at {}", i.data.len(), i.offset)?;
        }
        Ok(())
    }
}

/// Builds a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestBuilder<'a> {
    /// Its class.
    pub class: RequestClass,
    /// The ToR's stamp; clients send zeros.
    pub tor: TorBlock,
    /// How many times this request was sent before, 0 to [`MAX_ATTEMPT`]; 0 in a SYN and a NORMAL.
    /// Only the first attempt returns data.
    pub attempt: u8,
    /// The continuation; `None` only in a SYN.
    pub continuation: Option<&'a SealedContinuation>,
    /// The proof.
    pub proof: &'a [ProofEntry],
    /// How long the client held the continuation, in units of 64 us.
    pub hold: u16,
    /// Numbers answered, 1 or 2.
    pub covers: u8,
    /// The requested byte ranges.
    pub wants: &'a [Want],
    /// Token that proves the address.
    pub token: Option<&'a [u8]>,
    /// The address and port under the MAC, if they have changed; only in RESTART.
    pub former: Option<SocketAddr>,
    /// Return the window for a token; only in REKEY.
    pub retire: bool,
    /// User continuations.
    pub uconts: &'a [Ucont<'a>],
    /// Input.
    pub input: Option<Input<'a>>,
    /// Pad the payload to this many bytes, if it is shorter.
    pub pad_to: usize,
}

impl Default for RequestBuilder<'_> {
    fn default() -> Self {
        Self {
            class: RequestClass::Normal,
            tor: TorBlock::default(),
            attempt: 0,
            continuation: None,
            proof: &[],
            hold: 0,
            covers: 1,
            wants: &[],
            token: None,
            former: None,
            retire: false,
            uconts: &[],
            input: None,
            pad_to: 0,
        }
    }
}

impl RequestBuilder<'_> {
    /// The number in the option.
    pub fn number_low(&self) -> u16 {
        self.continuation.map_or(0, |c| c.fields.number as u16)
    }

    fn check(&self) -> Result<(), BuildError> {
        let rule = |broken: bool, what| if broken { Err(BuildError::Inconsistent { what }) } else { Ok(()) };
        let most = |have: usize, most, what| {
            if have > most { Err(BuildError::TooMany { what, have, most }) } else { Ok(()) }
        };
        let syn = self.class == RequestClass::Syn;
        rule(syn == self.continuation.is_some(), "a SYN has no continuation, every other request has one")?;
        rule(syn && !self.proof.is_empty(), "a SYN has no proof")?;
        most(usize::from(self.attempt), usize::from(most_attempts(self.class)), "attempts")?;
        rule(self.covers == 0 || self.covers > 2, "a request covers 1 or 2 numbers")?;
        let moved = self.former.is_some() && self.class != RequestClass::Restart;
        rule(moved, "only a RESTART names a former address")?;
        rule(self.retire && self.class != RequestClass::Rekey, "only a REKEY gives a window back")?;
        proof::check_build(self.proof)?;
        check_time(self.tor.time)?;
        check_time(self.continuation.map_or(0, |c| c.fields.time))?;
        most(self.wants.len(), MAX_WANTS, "wants")?;
        lists::check(self.uconts)?;
        let uconts = self.uconts.len();
        let named = |u: Option<u8>| u.is_some_and(|i| usize::from(i) >= uconts);
        for want in self.wants {
            rule(want.length == 0, "a want of no bytes")?;
            rule(want.offset.checked_add(u64::from(want.length)).is_none(), "a want beyond 2^64")?;
            rule(named(want.ucont), "a want that names a user continuation that is not there")?;
        }
        if let Some(token) = self.token {
            rule(token.is_empty(), "a token of no bytes")?;
            most(token.len(), usize::from(u8::MAX), "bytes of token")?;
        }
        if let Some(input) = &self.input {
            most(input.data.len(), usize::from(u16::MAX), "bytes of input")?;
            rule(input.offset.checked_add(input.data.len() as u64).is_none(), "input beyond 2^64")?;
            rule(named(input.ucont), "input that names a user continuation that is not there")?;
        }
        Ok(())
    }

    /// Length of the payload that [`Self::write`] produces.
    pub fn length(&self) -> usize {
        let sealed = if self.continuation.is_some() { SealedContinuation::LENGTH } else { 0 };
        let uconts: usize = self.uconts.iter().map(|u| 2 + u.len()).sum();
        let length = FIXED
            + sealed
            + self.proof.len() * proof::ENTRY
            + self.wants.len() * WANT
            + self.token.map_or(0, |t| 1 + t.len())
            + self.former.map_or(0, |_| 18)
            + uconts
            + self.input.map_or(0, |i| 14 + i.data.len());
        length.max(self.pad_to)
    }

    /// Writes the TCP payload and returns its length.
    ///
    /// # Errors
    /// [`BuildError`]: a parser would refuse the request, or the buffer is too small.
    pub fn write(&self, buf: &mut [u8]) -> Result<usize, BuildError> {
        self.check()?;
        let length = self.length();
        let mut w = Writer::new(buf);
        self.tor.write(&mut w);
        w.u8(self.proof.len() as u8);
        w.u8(self.attempt);
        w.u32(proof::kinds(self.proof));
        if let Some(c) = self.continuation {
            c.fields.write_head(&mut w);
            proof::write(&mut w, self.proof);
            c.fields.write_tail(&mut w);
            w.bytes(&c.mac);
        }
        w.u16(self.hold);
        w.u8(self.covers);
        w.u8(self.wants.len() as u8);
        w.u8(self.uconts.len() as u8);
        let mut body = if self.input.is_some() { BODY_INPUT } else { 0 };
        body |= if self.token.is_some() { BODY_TOKEN } else { 0 };
        body |= if self.former.is_some() { BODY_FORMER } else { 0 };
        body |= if self.retire { BODY_RETIRE } else { 0 };
        body |= if self.pad_to > 0 { BODY_PAD } else { 0 };
        w.u8(body);
        for want in self.wants {
            want.write(&mut w);
        }
        if let Some(token) = self.token {
            w.u8(token.len() as u8);
            w.bytes(token);
        }
        if let Some(former) = self.former {
            let address = match former.ip() {
                IpAddr::V4(a) => a.to_ipv6_mapped(),
                IpAddr::V6(a) => a,
            };
            w.bytes(&address.octets());
            w.u16(former.port());
        }
        lists::write(&mut w, self.uconts);
        if let Some(input) = &self.input {
            w.u16(input.stream);
            w.u8(if input.end { INPUT_END } else { 0 });
            w.u8(input.ucont.unwrap_or(NO_UCONT));
            w.u64(input.offset);
            w.u16(input.data.len() as u16);
            w.bytes(input.data);
        }
        w.zeros(length - w.pos());
        w.finish()
    }
}
