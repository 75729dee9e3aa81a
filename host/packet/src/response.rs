//! Responses, which servers send; one type serves as view and builder.

use core::fmt;

use crate::bytes::{Reader, Writer};
use crate::continuation::{SealedContinuation, check_time};
use crate::delta::{Delta, TimeChange};
use crate::error::{BuildError, WireError};
pub use crate::group::{GROUP_MEMBER, Group, GroupMember, MAX_GROUP};
use crate::lists::{MAX_UCONTS, Uconts, read_token};
use crate::option::ResponseClass;

/// Content bit: a whole continuation.
pub const FULL: u8 = 0x01;
/// Content bit: a delta-encoded continuation.
pub const DELTA: u8 = 0x02;
/// Content bit: user continuations.
pub const UCONT: u8 = 0x04;
/// Content bit: the stream offset of the data.
pub const OFFSET: u8 = 0x08;
/// Content bit: the nonce is under K'.
pub const PRIME: u8 = 0x10;
/// Content bit: the stream ends with this data.
pub const END: u8 = 0x20;
/// Content bit: the offset up to which the request's input was consumed.
pub const CONSUMED: u8 = 0x40;
/// Content bit: an address token.
pub const TOKEN: u8 = 0x80;

/// How much of the request's input was consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Consumed {
    /// The input stream's number.
    pub stream: u16,
    /// First byte not consumed.
    pub offset: u64,
}

/// How a response carries its continuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NewContinuation {
    /// It carries none.
    #[default]
    None,
    /// Whole.
    Full(SealedContinuation),
    /// As the difference from the client's prediction.
    Delta(Delta),
}

/// The fields of each class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// Data, or only a continuation.
    Data,
    /// Data of a lost packet; under K', without a continuation.
    Retransmission,
    /// Continuations of lost packets, without data.
    Group(Group<'a>),
    /// The stream has no bytes in the `length` bytes from `offset` on; data after the region may
    /// follow.
    Skip {
        /// First byte of the region.
        offset: u64,
        /// Its length, at least 1.
        length: u64,
    },
    /// Not ready: repeat the request after a pause. No data.
    Wait {
        /// Milliseconds.
        milliseconds: u16,
    },
    /// Not on this replica: another one may have it. No data.
    NotMine {
        /// Reason, for the application.
        code: u16,
    },
    /// The client must return this token to prove its address. No data.
    Challenge {
        /// 1 to 255 bytes.
        token: &'a [u8],
    },
    /// Input was consumed and there is no output yet; `consumed` and an input continuation are
    /// present.
    Input,
    /// Final refusal; the data is a message for humans.
    Error {
        /// Reason.
        code: u16,
    },
}

impl Body<'_> {
    /// The class in the option.
    pub fn class(&self) -> ResponseClass {
        match self {
            Self::Data => ResponseClass::Data,
            Self::Retransmission => ResponseClass::Retransmission,
            Self::Group(_) => ResponseClass::Group,
            Self::Skip { .. } => ResponseClass::Skip,
            Self::Wait { .. } => ResponseClass::Wait,
            Self::NotMine { .. } => ResponseClass::NotMine,
            Self::Challenge { .. } => ResponseClass::Challenge,
            Self::Input => ResponseClass::Input,
            Self::Error { .. } => ResponseClass::Error,
        }
    }

    fn read<'a>(class: ResponseClass, r: &mut Reader<'a>) -> Result<Body<'a>, WireError> {
        Ok(match class {
            ResponseClass::Data => Body::Data,
            ResponseClass::Retransmission => Body::Retransmission,
            ResponseClass::Group => Body::Group(Group::read(r)?),
            ResponseClass::Skip => {
                let at = r.pos();
                let (offset, length) = (r.u64()?, r.u64()?);
                if length == 0 || offset.checked_add(length).is_none() {
                    return Err(WireError::SkipBeyond(at));
                }
                Body::Skip { offset, length }
            }
            ResponseClass::Wait => Body::Wait { milliseconds: r.u16()? },
            ResponseClass::NotMine => Body::NotMine { code: r.u16()? },
            ResponseClass::Challenge => Body::Challenge { token: read_token(r)? },
            ResponseClass::Input => Body::Input,
            ResponseClass::Error => Body::Error { code: r.u16()? },
        })
    }

    fn write(&self, w: &mut Writer<'_>) {
        match *self {
            Self::Data | Self::Retransmission | Self::Input => {}
            Self::Group(g) => {
                w.u8(g.len() as u8);
                w.bytes(g.bytes());
            }
            Self::Skip { offset, length } => {
                w.u64(offset);
                w.u64(length);
            }
            Self::Wait { milliseconds } => w.u16(milliseconds),
            Self::NotMine { code } | Self::Error { code } => w.u16(code),
            Self::Challenge { token } => {
                w.u8(token.len() as u8);
                w.bytes(token);
            }
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Data | Self::Retransmission | Self::Input => 0,
            Self::Group(g) => 1 + g.bytes().len(),
            Self::Skip { .. } => 16,
            Self::Wait { .. } | Self::NotMine { .. } | Self::Error { .. } => 2,
            Self::Challenge { token } => 1 + token.len(),
        }
    }
}

/// Content bits allowed for a class. A retransmission and a group carry no other continuation, and
/// a class without data has no offset or end.
fn allowed(class: ResponseClass) -> u8 {
    match class {
        ResponseClass::Data | ResponseClass::Skip | ResponseClass::Input | ResponseClass::Error => 0xff,
        ResponseClass::Retransmission => UCONT | OFFSET | PRIME | END,
        ResponseClass::Group => PRIME,
        ResponseClass::Wait | ResponseClass::NotMine => FULL | DELTA | UCONT | PRIME | CONSUMED | TOKEN,
        ResponseClass::Challenge => PRIME,
    }
}

fn carries_data(class: ResponseClass) -> bool {
    allowed(class) & OFFSET != 0
}

/// Checks the content bits of a class.
#[inline]
fn check_content(class: ResponseClass, content: u8) -> Result<(), WireError> {
    let retransmission = class == ResponseClass::Retransmission;
    if content & !allowed(class) != 0
        || content & (FULL | DELTA) == FULL | DELTA
        || (retransmission && content & PRIME == 0)
    {
        return Err(WireError::ContentFlags(8));
    }
    Ok(())
}

/// One response, parsed or to be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response<'a> {
    /// Response number; the option contains its low half.
    pub number: u32,
    /// `r(number) ^ r(number + 1)`.
    pub nonce: u32,
    /// Whether the nonce is under K'.
    pub prime: bool,
    /// The stream ends with this data.
    pub end: bool,
    /// Low 8 bits of the number of the request that this answers.
    pub answers: u8,
    /// The new continuation.
    pub continuation: NewContinuation,
    /// Stream offset of the data.
    pub offset: Option<u64>,
    /// User continuations, sealed.
    pub uconts: Uconts<'a>,
    /// How much of the request's input was consumed.
    pub consumed: Option<Consumed>,
    /// An address token for a later connection, 1 to 255 bytes.
    pub token: Option<&'a [u8]>,
    /// The class and its fields.
    pub body: Body<'a>,
    /// Data to the end of the segment.
    pub data: &'a [u8],
}

impl<'a> Response<'a> {
    /// Parses the TCP payload of a response segment.
    ///
    /// # Errors
    /// The first rule broken, its position counted from the start of `payload`.
    pub fn parse(class: ResponseClass, number_low: u16, payload: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(payload, WireError::ResponseTruncated);
        let number = r.u32()?;
        if number as u16 != number_low {
            return Err(WireError::NumberLow(0));
        }
        let (nonce, content, answers) = (r.u32()?, r.u8()?, r.u8()?);
        check_content(class, content)?;
        let continuation = if content & FULL != 0 {
            r.section(WireError::TailTruncated);
            NewContinuation::Full(SealedContinuation::read(&mut r)?)
        } else if content & DELTA != 0 {
            NewContinuation::Delta(Delta::read(&mut r)?)
        } else {
            NewContinuation::None
        };
        r.section(WireError::ResponseTruncated);
        let offset = if content & OFFSET != 0 { Some(r.u64()?) } else { None };
        let uconts = if content & UCONT != 0 { read_uconts(&mut r)? } else { Uconts::default() };
        r.section(WireError::ResponseTruncated);
        let consumed = if content & CONSUMED != 0 {
            Some(Consumed { stream: r.u16()?, offset: r.u64()? })
        } else {
            None
        };
        let token = if content & TOKEN != 0 { Some(read_token(&mut r)?) } else { None };
        r.section(WireError::ResponseTruncated);
        let body = Body::read(class, &mut r)?;
        if !carries_data(class) && r.remaining() > 0 {
            return Err(WireError::TrailingBytes(r.pos()));
        }
        let (prime, end) = (content & PRIME != 0, content & END != 0);
        Ok(Self {
            number,
            nonce,
            prime,
            end,
            answers,
            continuation,
            offset,
            uconts,
            consumed,
            token,
            body,
            data: r.rest(),
        })
    }

    fn content(&self) -> u8 {
        let mut c = match self.continuation {
            NewContinuation::None => 0,
            NewContinuation::Full(_) => FULL,
            NewContinuation::Delta(_) => DELTA,
        };
        c |= if self.uconts.is_empty() { 0 } else { UCONT };
        c |= if self.consumed.is_some() { CONSUMED } else { 0 };
        c |= if self.token.is_some() { TOKEN } else { 0 };
        c |= if self.offset.is_some() { OFFSET } else { 0 };
        c |= if self.prime { PRIME } else { 0 };
        c | if self.end { END } else { 0 }
    }

    fn check(&self) -> Result<(), BuildError> {
        let rule = |broken: bool, what| if broken { Err(BuildError::Inconsistent { what }) } else { Ok(()) };
        let class = self.body.class();
        rule(self.content() & !allowed(class) != 0, "content that the class does not carry")?;
        rule(class == ResponseClass::Retransmission && !self.prime, "a retransmission's nonce is of K'")?;
        rule(!carries_data(class) && !self.data.is_empty(), "data in a class that carries none")?;
        match self.continuation {
            NewContinuation::Full(c) => check_time(c.fields.time)?,
            NewContinuation::Delta(Delta { time: Some(TimeChange::Whole(t)), .. }) => check_time(t)?,
            _ => {}
        }
        let bad_token = |t: &[u8]| t.is_empty() || t.len() > 255;
        rule(self.token.is_some_and(bad_token), "a token of 1 to 255 bytes")?;
        match self.body {
            Body::Skip { offset, length } => {
                rule(length == 0 || offset.checked_add(length).is_none(), "a region empty or beyond 2^64")
            }
            Body::Challenge { token } => rule(bad_token(token), "a token of 1 to 255 bytes"),
            _ => Ok(()),
        }
    }

    /// Length of the payload before the data.
    pub fn head_length(&self) -> usize {
        let continuation = match self.continuation {
            NewContinuation::None => 0,
            NewContinuation::Full(_) => SealedContinuation::LENGTH,
            NewContinuation::Delta(d) => d.length(),
        };
        let offset = if self.offset.is_some() { 8 } else { 0 };
        let consumed = if self.consumed.is_some() { 10 } else { 0 };
        let token = self.token.map_or(0, |t| 1 + t.len());
        let uconts = if self.uconts.is_empty() { 0 } else { 1 + self.uconts.bytes().len() };
        10 + continuation + offset + uconts + consumed + token + self.body.length()
    }

    /// Writes the TCP payload and returns its length. With empty `data` it writes only the head,
    /// and the application can append the data itself.
    ///
    /// # Errors
    /// [`BuildError`]: a parser would refuse the response, or the buffer is too small.
    pub fn write(&self, buf: &mut [u8]) -> Result<usize, BuildError> {
        self.check()?;
        let mut w = Writer::new(buf);
        w.u32(self.number);
        w.u32(self.nonce);
        w.u8(self.content());
        w.u8(self.answers);
        match self.continuation {
            NewContinuation::None => {}
            NewContinuation::Full(c) => c.write(&mut w),
            NewContinuation::Delta(d) => d.write(&mut w),
        }
        if let Some(offset) = self.offset {
            w.u64(offset);
        }
        if !self.uconts.is_empty() {
            w.u8(self.uconts.len() as u8);
            w.bytes(self.uconts.bytes());
        }
        if let Some(consumed) = self.consumed {
            w.u16(consumed.stream);
            w.u64(consumed.offset);
        }
        if let Some(token) = self.token {
            w.u8(token.len() as u8);
            w.bytes(token);
        }
        self.body.write(&mut w);
        w.bytes(self.data);
        w.finish()
    }
}

/// Reads a count of at least 1 and that many user continuations.
fn read_uconts<'a>(r: &mut Reader<'a>) -> Result<Uconts<'a>, WireError> {
    r.section(WireError::UcontTruncated);
    let at = r.pos();
    let count = r.u8()?;
    if count == 0 || usize::from(count) > MAX_UCONTS {
        return Err(WireError::UcontCount(at));
    }
    Uconts::read(r, count)
}

impl fmt::Display for Response<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.body.class(), self.number)?;
        if self.prime {
            f.write_str("'")?;
        }
        match &self.continuation {
            NewContinuation::None => {}
            NewContinuation::Full(c) => write!(f, " [{}]", c.fields)?,
            NewContinuation::Delta(_) => f.write_str(" [delta]")?,
        }
        if !self.data.is_empty() {
            write!(f, ", {} bytes", self.data.len())?;
        }
        if let Some(o) = self.offset {
            write!(f, " at {o}")?;
        }
        Ok(())
    }
}
