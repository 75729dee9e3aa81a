//! Packets part by part, also those of which a capture holds only the beginning. For tools that show packets.
//!
//! The stack does not come this way: [`Segment`], [`Request::parse`](crate::Request::parse) and
//! [`Response::parse`](crate::Response::parse) take whole packets only, and nothing here can be made into one of
//! them. What is whole is read by the same rules in the same order, so that the first rule broken is the same.

use core::fmt;
use core::net::SocketAddr;

use crate::bytes::{Reader, u16_at, u32_at};
use crate::continuation::{SealedContinuation, TransportContinuation};
use crate::delta::Delta;
use crate::error::WireError;
use crate::eth::{self, EthHeader};
use crate::group::{GroupMember, MAX_GROUP};
use crate::ip;
use crate::lists::{MAX_UCONTS, Ucont, read_token};
use crate::option::{Class, RequestClass, ResponseClass};
use crate::proof::{Order, ProofEntry};
use crate::request::{self, Input, Want};
use crate::response::{self, Body, Consumed};
use crate::segment::Segment;
use crate::tor::TorBlock;

/// A segment of which the first bytes are there, its TCP header at least.
#[derive(Debug, Clone, Copy)]
pub struct SegmentParts<'a> {
    /// Its payload is what there is of it. Kept in, since nobody may take it for a whole one.
    segment: Segment<'a>,
    /// Bytes of the payload as it was sent, without the CRC.
    payload: usize,
    /// Bytes of the packet that are not there.
    missing: usize,
}

/// One part of a request or response, in the order of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part<'a> {
    /// The ToR's stamp.
    Tor(TorBlock),
    /// How many proof entries follow the head, and the attempt.
    Counts {
        /// Entries of the proof.
        entries: u8,
        /// Counts PROBE and TIMEOUT for one number, from 0.
        attempt: u8,
    },
    /// A sealed head: `tag`, `number`, `base`, `time` and `nonce_epoch` are set, no others.
    Head(TransportContinuation),
    /// An entry of the proof.
    Proof(ProofEntry),
    /// A continuation, complete with the tail and the MAC that end here.
    Continuation(SealedContinuation),
    /// The fields behind a request's tail.
    Fields {
        /// How long the client held the continuation, in units of 64 us.
        hold: u16,
        /// Numbers answered.
        covers: u8,
        /// Wants that follow.
        wants: u8,
        /// User continuations that follow.
        uconts: u8,
    },
    /// A byte range asked for.
    Want(Want),
    /// An address token.
    Token(&'a [u8]),
    /// The client's former address.
    Former(SocketAddr),
    /// A user continuation.
    Ucont(Ucont<'a>),
    /// Input: of `length` bytes as many as are there.
    Input {
        /// Its fields and the bytes that are there.
        input: Input<'a>,
        /// Bytes that were sent.
        length: usize,
    },
    /// So many bytes of padding.
    Padding(usize),
    /// What a response begins with.
    Response {
        /// Response number.
        number: u32,
        /// Its nonce.
        nonce: u32,
        /// The nonce is of K'.
        prime: bool,
        /// Low 8 bits of the number of the request that this answers.
        answers: u8,
    },
    /// A delta-encoded continuation.
    Delta(Delta),
    /// Where the data stands in the stream, and whether the stream ends with it.
    Offset {
        /// Offset of the first byte.
        offset: u64,
        /// The stream ends with this data.
        end: bool,
    },
    /// How far the request's input was taken.
    Consumed(Consumed),
    /// What the class adds; a GROUP tells its members instead.
    Body(Body<'a>),
    /// A member of a GROUP.
    Member(GroupMember),
    /// Data: of `length` bytes as many as are there.
    Data {
        /// The bytes that are there.
        data: &'a [u8],
        /// Bytes that were sent.
        length: usize,
    },
}

/// How far a packet went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// To the end: no field is missing, though data, input or padding may be.
    Whole,
    /// The bytes that are there end within the part that would come next.
    Cut,
}

impl<'a> SegmentParts<'a> {
    /// Reads the headers of an Ethernet frame of `length` bytes of which `frame` is the beginning.
    ///
    /// # Errors
    /// As [`Segment::parse_frame`]. A header that is not there whole is told as one that ends early, since such a
    /// packet may be anybody's.
    pub fn parse_frame(frame: &'a [u8], length: usize) -> Result<(EthHeader, Self), WireError> {
        let (header, ether_type) = EthHeader::parse(frame)?;
        let (start, missing) = (header.length(), length.saturating_sub(frame.len()));
        let ip = match ether_type {
            eth::IPV4 => ip::read_v4(frame, start, missing)?,
            eth::IPV6 => ip::read_v6(frame, start, missing)?,
            _ => return Err(WireError::EthType(start - 2)),
        };
        Ok((header, Self::new(frame, ip)?))
    }

    /// Reads the headers of an IP packet of `length` bytes of which `packet` is the beginning.
    ///
    /// # Errors
    /// As [`Self::parse_frame`].
    pub fn parse_packet(packet: &'a [u8], length: usize) -> Result<Self, WireError> {
        Self::new(packet, ip::read(packet, 0, length.saturating_sub(packet.len()))?)
    }

    fn new(bytes: &'a [u8], (ip, tcp, end): (ip::IpHeader, usize, usize)) -> Result<Self, WireError> {
        let missing = end.saturating_sub(bytes.len());
        let (segment, payload) = Segment::parse_tcp(ip, &bytes[..end.min(bytes.len())], tcp, missing)?;
        Ok(Self { segment, payload, missing })
    }

    /// The segment, if nothing of it is missing.
    pub fn whole(&self) -> Option<Segment<'a>> {
        (self.missing == 0).then_some(self.segment)
    }

    /// Bytes of the packet that are not there.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// The ECN field of the IP header.
    pub fn ecn(&self) -> ip::Ecn {
        self.segment.ecn
    }

    /// Request or response, and which.
    pub fn class(&self) -> Class {
        self.segment.option.class
    }

    /// The ordinary options of a SYN or SYN-ACK.
    pub fn syn_options(&self) -> Option<crate::SynOptions> {
        self.segment.syn_options
    }

    /// Whether there is a request or a response in it: a bare SYN and its answer have none.
    pub fn has_body(&self) -> bool {
        self.payload > 0 || self.segment.syn_options.is_none()
    }

    /// Shows every part of the payload that is there whole. A bare SYN and its answer have none.
    ///
    /// # Errors
    /// The first rule broken by what is there; the parts before it were shown.
    pub fn visit(&self, visit: &mut dyn FnMut(Part<'a>)) -> Result<Reach, WireError> {
        if !self.has_body() {
            return Ok(Reach::Whole);
        }
        let mut r = Reader::new(self.segment.payload, WireError::TorTruncated);
        let result = match self.class() {
            Class::Request(class) => self.request(class, &mut r, visit),
            Class::Response(class) => self.response(class, &mut r, visit),
        };
        match result {
            Ok(()) => Ok(Reach::Whole),
            Err(e) if self.missing > 0 && e.is_truncation() => Ok(Reach::Cut),
            Err(e) => Err(e),
        }
    }

    /// Bytes from here to where the payload ended when it was sent.
    fn rest(&self, r: &Reader<'_>) -> usize {
        self.payload - r.pos()
    }

    fn request(
        &self,
        class: RequestClass,
        r: &mut Reader<'a>,
        visit: &mut dyn FnMut(Part<'a>),
    ) -> Result<(), WireError> {
        let number_low = self.segment.option.number_low;
        visit(Part::Tor(TorBlock::read(r)?));
        let b: [u8; 6] = r.fields(&[1, 1, 4])?;
        let (entries, attempt, kinds) = (b[0], b[1], u32_at(&b, 2));
        request::check_counts(class, entries, attempt, kinds)?;
        visit(Part::Counts { entries, attempt });
        if class == RequestClass::Syn {
            if number_low != 0 {
                return Err(WireError::NumberLow(0));
            }
            r.section(WireError::TailTruncated);
        } else {
            let mut c = SealedContinuation::default();
            r.section(WireError::HeadTruncated);
            c.fields.read_head(r)?;
            if c.fields.number as u16 != number_low {
                return Err(WireError::NumberLow(26));
            }
            visit(Part::Head(c.fields));
            r.section(WireError::EntryTruncated);
            let mut order = Order::default();
            for i in 0..usize::from(entries) {
                let at = r.pos();
                let entry = ProofEntry::decode(kinds, i, r.array()?);
                order.check(&entry, at)?;
                visit(Part::Proof(entry));
            }
            r.section(WireError::TailTruncated);
            c.fields.read_tail(r)?;
            c.mac = r.array()?;
            visit(Part::Continuation(c));
        }
        let at = r.pos();
        let b: [u8; 6] = r.fields(&[2, 1, 1, 1, 1])?;
        let (hold, covers, wants, uconts, body) = (u16_at(&b, 0), b[2], b[3], b[4], b[5]);
        request::check_fields(class, covers, wants, uconts, body, at)?;
        visit(Part::Fields { hold, covers, wants, uconts });
        r.section(WireError::WantTruncated);
        for _ in 0..wants {
            visit(Part::Want(Want::read(r, uconts)?));
        }
        if body & request::BODY_TOKEN != 0 {
            visit(Part::Token(read_token(r)?));
        }
        if body & request::BODY_FORMER != 0 {
            visit(Part::Former(request::read_former(r)?));
        }
        for _ in 0..uconts {
            visit(Part::Ucont(read_ucont(r)?));
        }
        if body & request::BODY_INPUT != 0 {
            let (input, length) = request::read_input_header(r, uconts)?;
            if length > self.rest(r) {
                return Err(WireError::InputTruncated(r.pos()));
            }
            let there = length.min(r.remaining());
            let data = r.bytes(there)?;
            visit(Part::Input { input: Input { data, ..input }, length });
            if there < length {
                // Behind it can be padding only, which says nothing.
                return Ok(());
            }
        }
        let padding = self.rest(r);
        if body & request::BODY_PAD == 0 && padding > 0 {
            return Err(WireError::TrailingBytes(r.pos()));
        }
        if padding > 0 {
            visit(Part::Padding(padding));
        }
        Ok(())
    }

    fn response(
        &self,
        class: ResponseClass,
        r: &mut Reader<'a>,
        visit: &mut dyn FnMut(Part<'a>),
    ) -> Result<(), WireError> {
        r.section(WireError::ResponseTruncated);
        let number = r.u32()?;
        if number as u16 != self.segment.option.number_low {
            return Err(WireError::NumberLow(0));
        }
        let (nonce, content, answers) = (r.u32()?, r.u8()?, r.u8()?);
        response::check_content(class, content)?;
        let has = |bit| content & bit != 0;
        visit(Part::Response { number, nonce, prime: has(response::PRIME), answers });
        if has(response::FULL) {
            r.section(WireError::TailTruncated);
            visit(Part::Continuation(SealedContinuation::read(r)?));
        } else if has(response::DELTA) {
            visit(Part::Delta(Delta::read(r)?));
        }
        r.section(WireError::ResponseTruncated);
        if has(response::OFFSET) {
            visit(Part::Offset { offset: r.u64()?, end: has(response::END) });
        }
        if has(response::UCONT) {
            r.section(WireError::UcontTruncated);
            let at = r.pos();
            let count = r.u8()?;
            if count == 0 || usize::from(count) > MAX_UCONTS {
                return Err(WireError::UcontCount(at));
            }
            for _ in 0..count {
                visit(Part::Ucont(read_ucont(r)?));
            }
        }
        r.section(WireError::ResponseTruncated);
        if has(response::CONSUMED) {
            visit(Part::Consumed(Consumed { stream: r.u16()?, offset: r.u64()? }));
        }
        if has(response::TOKEN) {
            visit(Part::Token(read_token(r)?));
        }
        r.section(WireError::ResponseTruncated);
        if class == ResponseClass::Group {
            self.group(r, visit)?;
        } else {
            visit(Part::Body(Body::read(class, r)?));
        }
        let length = self.rest(r);
        if response::carries_data(class) {
            visit(Part::Data { data: r.rest(), length });
        } else if length > 0 {
            return Err(WireError::TrailingBytes(r.pos()));
        }
        Ok(())
    }

    fn group(&self, r: &mut Reader<'a>, visit: &mut dyn FnMut(Part<'a>)) -> Result<(), WireError> {
        r.section(WireError::GroupTruncated);
        let at = r.pos();
        let count = usize::from(r.u8()?);
        if count == 0 || count > MAX_GROUP {
            return Err(WireError::GroupCount(at));
        }
        for _ in 0..count {
            let nonce = r.u32()?;
            visit(Part::Member(GroupMember { nonce, continuation: SealedContinuation::read(r)? }));
        }
        Ok(())
    }
}

/// A length of 16 bits (at least 1) and its bytes.
fn read_ucont<'a>(r: &mut Reader<'a>) -> Result<Ucont<'a>, WireError> {
    r.section(WireError::UcontTruncated);
    let at = r.pos();
    let length = r.u16()?;
    if length == 0 {
        return Err(WireError::UcontEmpty(at));
    }
    r.bytes(usize::from(length))
}

impl fmt::Display for SegmentParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.segment.describe(f, self.payload)
    }
}
