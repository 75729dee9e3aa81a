//! A minisocket: the transient descriptor of one event (section 3.2).
//!
//! It exists while its event is being handled, belongs to one client, and can send no more than
//! congestion control allows for its request. What the application leaves unanswered, the library
//! answers without data, so that the trickle stays alive.

use std::net::SocketAddr;

use rivulet_packet::EthHeader;
use rivulet_pktio::PacketIo;
use rivulet_transport::KeyRing;
use rivulet_transport::TOKEN_LENGTH;
use rivulet_transport::Time;
use rivulet_transport::server::{Head, InputEvent, Plan, Refusal, Reply, RespondError, Server as Transport};
use rivulet_transport::{MAX_UCONT, UcontError, UserContinuation};

use crate::counters::Counters;

/// Kinds of events (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A connection is opened; its SYN may carry input and wants.
    Open,
    /// A request. It may arrive more than once and in any order, because a replica may die after
    /// acting and before answering.
    Request,
    /// The client closed the connection.
    Close,
}

/// A transient descriptor for one event.
pub struct Minisocket<'a, 'p> {
    pub(crate) plan: &'a Plan<'p>,
    pub(crate) transport: &'a mut Transport,
    pub(crate) keys: &'a KeyRing,
    pub(crate) io: &'a mut dyn PacketIo,
    /// Maximum length of an IP packet in bytes: the interface's MTU.
    pub(crate) room: usize,
    pub(crate) ethernet: EthHeader,
    pub(crate) kind: EventKind,
    pub(crate) counters: &'a mut Counters,
    /// The first head without an answer.
    pub(crate) next: usize,
    /// The frame of the request, and its time of arrival.
    pub(crate) frame: &'a [u8],
    pub(crate) now: Time,
    /// The frame's ToR block was trusted.
    pub(crate) trusted: bool,
    pub(crate) detached: bool,
}

/// A detached event: the packet that caused it, which is judged again later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    pub(crate) frame: Box<[u8]>,
    pub(crate) now: Time,
    pub(crate) trusted: bool,
}

impl<'p> Minisocket<'_, 'p> {
    /// The kind of event.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> SocketAddr {
        self.plan.client()
    }

    /// The service address of the request.
    #[must_use]
    pub fn service(&self) -> SocketAddr {
        self.plan.service()
    }

    /// Id of the connection, to which user continuations are bound.
    #[must_use]
    pub fn connection(&self) -> u64 {
        self.plan.connection()
    }

    /// The request's input.
    pub fn input(&self) -> Result<Option<InputEvent<'p>>, Refusal> {
        self.plan.input(self.keys)
    }

    /// The responses that congestion control allows; answer them in order.
    #[must_use]
    pub fn heads(&self) -> &[Head] {
        self.plan.heads()
    }

    /// The output continuation for the want of head `index`.
    pub fn output_continuation(&self, index: usize) -> Result<UserContinuation<'p>, Refusal> {
        let want = self.plan.heads().get(index).and_then(|head| head.want).ok_or(Refusal::User)?;
        self.plan.output_continuation(&want, self.keys)
    }

    /// Whether the output continuation for the want of head `index` is sealed under an older epoch
    /// than the current one. It expires with its epoch, so an application that needs it for longer
    /// [seals](Self::seal) it again.
    #[must_use]
    pub fn output_ages(&self, index: usize) -> bool {
        let want = self.plan.heads().get(index).and_then(|head| head.want);
        want.is_some_and(|want| self.plan.output_ages(&want))
    }

    /// The same for the input continuation of the request.
    #[must_use]
    pub fn input_ages(&self) -> bool {
        self.plan.input_ages()
    }

    /// The output continuation for the want of head `index`, sealed again if it ages and leaves
    /// room for data.
    #[must_use]
    pub fn sealed_anew(&self, index: usize) -> Option<Vec<u8>> {
        let aging = self.output_ages(index).then(|| self.output_continuation(index).ok())??;
        let mut out = [0; MAX_UCONT];
        let length = self.seal(&aging, &mut out).ok()?;
        (2 * length < self.plan.heads().get(index)?.room).then(|| out[..length].to_vec())
    }

    /// Seals a user continuation for this connection (`msk_setucont` is this and
    /// [`send`](Self::send)).
    pub fn seal(&self, what: &UserContinuation<'_>, out: &mut [u8; MAX_UCONT]) -> Result<usize, UcontError> {
        self.plan.seal_ucont(self.keys, what, out)
    }

    /// A token that proves the client's address in its next connection, and so allows an opening
    /// with more bytes than the SYN ([`Reply::token`]). Valid once, for a day.
    #[must_use]
    pub fn address_token(&self) -> Option<[u8; TOKEN_LENGTH]> {
        self.plan.address_token(self.keys)
    }

    /// Answers head `index`; earlier heads without an answer get an empty one. A reply that does
    /// not fit leaves the head unanswered: retry with less.
    pub fn send(&mut self, index: usize, reply: &Reply<'_>) -> Result<(), RespondError> {
        while self.next < index.min(self.plan.heads().len()) {
            self.build(self.next, &Reply::default())?;
        }
        self.build(index, reply)
    }

    /// Detaches the event (`msk_detach`): nothing more is answered now.
    /// [`Server::resume`](crate::Server::resume) resumes it, before the client declares it lost.
    pub fn detach(&mut self) -> Detached {
        self.detached = true;
        Detached { frame: self.frame.into(), now: self.now, trusted: self.trusted }
    }

    /// Counts a refused part of the request, such as input with an invalid continuation, while the
    /// rest is answered, so that its acknowledgement is not lost. The client sends unconsumed input
    /// again, a limited number of times. (An error of
    /// [`Application::event`](crate::Application::event) refuses the whole request.)
    pub fn refuse_part(&mut self, refusal: &Refusal) {
        tracing::debug!(client = %self.client(), refusal = %refusal, "input refused by the application");
        self.counters.refuse(refusal);
    }

    /// Drops the event (`msk_drop`): there is no answer, and the client sees a loss.
    pub fn drop_event(&mut self) {
        self.detached = true;
    }

    /// Answers all remaining heads with empty replies.
    pub(crate) fn finish(&mut self) {
        while self.next < self.plan.heads().len() {
            if let Err(e) = self.build(self.next, &Reply::default()) {
                tracing::debug!(error = %e, "response not built");
                self.counters.unbuilt += 1;
                self.next += 1;
            }
        }
    }

    fn build(&mut self, index: usize, reply: &Reply<'_>) -> Result<(), RespondError> {
        let head = self.ethernet.length();
        let room = head + self.room;
        let Some(frame) = self.io.reserve(room) else {
            // The transmit queue is full; the client sees a loss.
            self.counters.unsent += 1;
            self.next = index + 1;
            return Ok(());
        };
        let sent = self.transport.respond(self.plan, index, reply, self.keys, &mut frame[head..])?;
        let kind: u16 = if frame[head] >> 4 == 6 { 0x86dd } else { 0x0800 };
        frame[..6].copy_from_slice(&self.ethernet.dst);
        frame[6..12].copy_from_slice(&self.ethernet.src);
        if let Some(tag) = self.ethernet.vlan {
            frame[12..14].copy_from_slice(&0x8100u16.to_be_bytes());
            frame[14..16].copy_from_slice(&tag.to_be_bytes());
        }
        frame[head - 2..head].copy_from_slice(&kind.to_be_bytes());
        self.io.commit(head + sent.length);
        self.counters.responses += 1;
        self.next = index + 1;
        Ok(())
    }
}
