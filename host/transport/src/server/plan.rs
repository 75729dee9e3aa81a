//! The responses to one request, and what the application needs to fill them.

use core::net::SocketAddr;

use arrayvec::ArrayVec;
use rivulet_packet::{Request, RequestClass, SealedContinuation, TransportContinuation, Want};

use super::refusal::Refusal;
use crate::keys::KeyRing;
use crate::opening::{self, SEEN_LENGTH, TOKEN_LENGTH};
use crate::retired::WINDOW_TOKEN_LENGTH;
use crate::ucont::{self, UserContinuation};
use crate::verdict::MAX_RESPONSES;

/// The responses to a request.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // a box would allocate
pub enum Verdict<'a> {
    /// None: the trickle terminates.
    Terminate,
    /// These responses.
    Respond(Plan<'a>),
}

/// Capacity of a plan; no decision yields more responses.
const HEADS: usize = MAX_RESPONSES;
/// Length of the fixed fields of a response: number, nonce, content, answers, and the offset of its
/// data.
const FIXED: usize = 18;
/// Length of a whole sealed continuation.
const FULL: usize = SealedContinuation::LENGTH;
/// Maximum length of a delta-encoded continuation without a whole SRTT or time: bitmap, time, ToR,
/// epoch, SRTT, flags, check, MAC.
const DELTA: usize = 1 + 6 + 2 + 2 + 4 + 1 + 2 + 12;
/// Bytes of a steady response's slot that are not data. A client that wants `mss - STEADY_OVERHEAD`
/// bytes gets them all.
pub const STEADY_OVERHEAD: usize = FIXED + DELTA;

/// The kinds of response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// A new number with a continuation; the application fills it.
    New,
    /// A lost number under K', with data only; the application fills it.
    Retransmission,
    /// Regenerated continuations of lost numbers; the library fills it.
    Group {
        /// How many continuations.
        count: u32,
    },
    /// A challenge to a new address; the library fills it.
    Challenge,
    /// The cookie that answers a bare SYN; the library fills it.
    Cookie,
    /// The answer to a CLOSE, or to a REKEY that returns the window; the library fills it.
    Farewell,
}

/// One response to be built.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The kind of response.
    pub kind: HeadKind,
    /// The response number.
    pub number: u32,
    /// Its nonce is made with K' instead of K.
    pub prime: bool,
    /// The output range that the client wants in it.
    pub want: Option<Want>,
    /// Bytes available for data, user continuations (2 more for each, and 1) and, if the response
    /// [carries them](Self::carries_input_and_token), `consumed` (10) and a token (1 more). 0: no
    /// room for the application.
    pub room: usize,
    pub(super) overhead: usize,
}

impl Head {
    /// Whether the application fills this response.
    pub fn is_for_application(&self) -> bool {
        self.room > 0 && matches!(self.kind, HeadKind::New | HeadKind::Retransmission)
    }

    /// Whether the response can carry `consumed` and a token. A retransmission carries only data
    /// and user continuations.
    pub fn carries_input_and_token(&self) -> bool {
        self.kind == HeadKind::New
    }
}

/// Input of a request, for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputEvent<'a> {
    /// The stream.
    pub stream: u16,
    /// Offset of the first byte in the stream's input.
    pub offset: u64,
    /// The bytes.
    pub data: &'a [u8],
    /// The client ends the stream's input after these bytes.
    pub fin: bool,
    /// The input continuation; `None` at the start of a stream.
    pub continuation: Option<UserContinuation<'a>>,
}

/// The responses to one request.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub(super) request: Option<Request<'a>>,
    pub(super) client: SocketAddr,
    pub(super) service: SocketAddr,
    pub(super) ack: u32,
    pub(super) ecn: bool,
    pub(super) now: u64,
    /// The fields of the new continuations, except the number.
    pub(super) next: TransportContinuation,
    /// The fields that the client predicts for them.
    pub(super) predicted: Option<TransportContinuation>,
    /// The fields of the regenerated continuations, except the number.
    pub(super) regenerated: TransportContinuation,
    pub(super) heads: ArrayVec<Head, HEADS>,
    /// Server ISN, set for the answer to a SYN.
    pub(super) syn: Option<u32>,
    pub(super) fin: bool,
    /// The address token that this SYN uses up.
    pub(super) spent: Option<&'a [u8]>,
    /// This SYN starts with the window of its token.
    pub(super) seeded: bool,
    /// The token for the window that this request returns.
    pub(super) given: Option<[u8; WINDOW_TOKEN_LENGTH]>,
    /// The first response reports the address at which the server saw the client. Behind an address
    /// translator the client cannot know it otherwise, and its continuations are sealed for that
    /// address.
    pub(super) tells_address: bool,
    /// Maximum TCP payload in bytes.
    pub(super) largest: usize,
}

/// A response that was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Length of the IP packet.
    pub length: usize,
    /// The continuation in it.
    pub sealed: Option<SealedContinuation>,
}

impl<'a> Plan<'a> {
    pub(super) fn push(&mut self, kind: HeadKind, number: u32, prime: bool, want: Option<Want>) {
        let continuation = match kind {
            HeadKind::New if self.predicted.is_some() => DELTA,
            HeadKind::New => FULL,
            _ => 0,
        };
        let seen = if self.tells_address && self.heads.is_empty() { 1 + SEEN_LENGTH } else { 0 };
        let overhead = FIXED + continuation + seen;
        let room = match kind {
            HeadKind::New | HeadKind::Retransmission => self.largest.saturating_sub(overhead),
            _ => 0,
        };
        // No decision yields more than the capacity. If one did, the rest would count as lost
        // packets.
        let _ = self.heads.try_push(Head { kind, number, prime, want, room, overhead });
    }

    /// The responses to build, each once, in order.
    pub fn heads(&self) -> &[Head] {
        &self.heads
    }

    /// The request as received.
    pub fn request(&self) -> Option<&Request<'a>> {
        self.request.as_ref()
    }

    /// Whether any response is filled by the application.
    pub fn is_for_application(&self) -> bool {
        self.heads.iter().any(Head::is_for_application)
    }

    /// Whether the client closes the connection with this request.
    pub fn is_close(&self) -> bool {
        self.fin
    }

    /// The connection id that user continuations are bound to.
    pub fn connection(&self) -> u64 {
        self.next.connection
    }

    /// The client's address and port.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// The service's address and port.
    pub fn service(&self) -> SocketAddr {
        self.service
    }

    /// The continuation presented by the request.
    pub(super) fn presented(&self) -> Option<&TransportContinuation> {
        self.request.as_ref()?.continuation.as_ref().map(|c| &c.fields)
    }

    /// The address token that this opening uses up.
    pub(super) fn spent(&self) -> Option<&'a [u8]> {
        self.spent
    }

    /// Whether this request moves a window: returns one, or starts with one.
    pub(super) fn moves_window(&self) -> bool {
        self.seeded || self.given.is_some()
    }

    /// Whether the client returns its window with this request.
    pub(super) fn retires(&self) -> bool {
        self.request.as_ref().is_some_and(|r| r.retire)
    }

    /// Whether this completes a bare SYN.
    pub(super) fn completes(&self) -> bool {
        let blank = |sealed: SealedContinuation| sealed.mac == [0; 12] && sealed.fields.tag == 0;
        self.class() == Some(RequestClass::Restart)
            && self.request.as_ref().and_then(|r| r.continuation).is_some_and(blank)
    }

    /// Whether this is a challenge, which uses nothing up.
    pub(super) fn challenges(&self) -> bool {
        self.heads.iter().any(|head| head.kind == HeadKind::Challenge)
    }

    /// Seals a user continuation for this connection into `out`.
    ///
    /// # Errors
    /// Those of [`crate::seal_user`].
    pub fn seal_ucont(
        &self,
        keys: &KeyRing,
        what: &UserContinuation<'_>,
        out: &mut [u8],
    ) -> Result<usize, ucont::UcontError> {
        ucont::seal_user(keys, self.next.seal_epoch, self.next.connection, self.next.generation, what, out)
    }

    /// Opens the output continuation that a want names.
    ///
    /// # Errors
    /// [`Refusal::User`]: it names none, one of another connection, an input continuation, or one
    /// that does not cover the range. [`Refusal::SealEpoch`]: this ring lacks the key that sealed
    /// it; another replica may have it. [`Refusal::answer`] gives the answer to send.
    pub fn output_continuation(&self, want: &Want, keys: &KeyRing) -> Result<UserContinuation<'a>, Refusal> {
        let sealed = want.ucont.and_then(|i| self.request.as_ref()?.ucont(i)).ok_or(Refusal::User)?;
        let opened = ucont::open(keys, self.next.connection, sealed)?;
        let covers = opened.valid_start <= want.offset && want.offset < opened.valid_end;
        if opened.input || !covers { Err(Refusal::User) } else { Ok(opened) }
    }

    /// Whether the output continuation of a want is sealed under an older epoch than the current
    /// one. A continuation expires with its epoch, so an application that needs it for longer seals
    /// it again, and the client replaces the old one.
    pub fn output_ages(&self, want: &Want) -> bool {
        let sealed = want.ucont.and_then(|i| self.request.as_ref()?.ucont(i));
        sealed.is_some_and(|sealed| ucont::ages(sealed, self.next.seal_epoch))
    }

    /// The same for the input continuation of this request.
    pub fn input_ages(&self) -> bool {
        let request = self.request.as_ref();
        let sealed = request.and_then(|r| r.ucont(r.input?.ucont?));
        sealed.is_some_and(|sealed| ucont::ages(sealed, self.next.seal_epoch))
    }

    /// The input of the request with its continuation opened. `None`: it has no input, or is not
    /// for the application.
    ///
    /// # Errors
    /// [`Refusal::User`]: input in the middle of a stream without an input continuation, or with
    /// one of another connection or stream, or one that does not cover this offset.
    /// [`Refusal::SealEpoch`]: this ring lacks the key that sealed it.
    pub fn input(&self, keys: &KeyRing) -> Result<Option<InputEvent<'a>>, Refusal> {
        let Some(request) = self.request.as_ref().filter(|_| self.is_for_application()) else {
            return Ok(None);
        };
        let Some(input) = request.input else { return Ok(None) };
        let continuation = match input.ucont {
            None if input.offset == 0 => None,
            None => return Err(Refusal::User),
            Some(i) => {
                let sealed = request.ucont(i).ok_or(Refusal::User)?;
                let c = ucont::open(keys, self.next.connection, sealed)?;
                let good = c.input && c.stream == input.stream && c.valid_start <= input.offset;
                if !good || input.offset > c.valid_end {
                    return Err(Refusal::User);
                }
                Some(c)
            }
        };
        Ok(Some(InputEvent {
            stream: input.stream,
            offset: input.offset,
            data: input.data,
            fin: input.end,
            continuation,
        }))
    }

    /// Limits the TCP payload of each response to `payload` bytes, whatever the connection agreed
    /// on, because the interface or the path to this client takes no more. The client repeats wants
    /// for the rest.
    pub fn limit(&mut self, payload: usize) {
        if payload >= self.largest {
            return;
        }
        self.largest = payload;
        for head in &mut self.heads {
            head.room = head.room.min(payload.saturating_sub(head.overhead));
        }
    }

    /// Makes an address token for the client's later connections.
    pub fn address_token(&self, keys: &KeyRing) -> Option<[u8; TOKEN_LENGTH]> {
        opening::address_token(keys, self.next.seal_epoch, self.now, self.client.ip())
    }

    /// The class of the request; `None` for a bare SYN.
    pub fn class(&self) -> Option<RequestClass> {
        self.request.as_ref().map(|r| r.class)
    }
}
