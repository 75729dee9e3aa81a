//! The decision about a client's segment, from which a verdict with segments to send is made.

use rivulet_packet::segment::TcpFlags;

use crate::answer::Answer;
use crate::codec::{Class, MAX_ANSWER};
use crate::flight::{Cut, Have};
use crate::say::say;
use crate::segment::{Header, Segment};
use crate::stamp::Answering;
use crate::verdict::{Asked, Cause, Handshake, Reason, Verdict};

pub(crate) const ACK: u8 = TcpFlags::ACK;
pub(crate) const FIN_ACK: u8 = TcpFlags::ACK | TcpFlags::FIN;

/// An answer in progress: what it is, and where the client's segment is in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Under {
    pub(crate) answer: Answer,
    /// Bytes of the answer that the client has without a hole.
    pub(crate) at: u32,
    /// The sequence number at which the request begins; the answer's segments acknowledge up to
    /// there.
    pub(crate) seq: u32,
    /// The timestamp, on a connection that has them.
    pub(crate) stamp: Option<Answering>,
    pub(crate) cut: Cut,
}

pub(crate) enum Decision {
    Drop(Reason),
    Kernel(Cause),
    Adopt(Cause, Handshake),
    /// A large answer.
    Begin(Asked),
    /// The answer to a SYN.
    Welcome(Header),
    /// A segment without data: its flags and its acknowledgement number.
    Say(u8, u32),
    Answer(Under),
    /// An answer, followed by further requests in the same segment.
    Continue(Under, Handshake),
    /// Data that does not begin where the request does; the number: bytes of all earlier answers
    /// that the client has.
    Ahead(Class, u32),
    /// An acknowledgement without data: the client has `at` bytes of the answer that begins at
    /// `start`.
    Heard {
        start: u32,
        at: u32,
    },
}

impl Decision {
    /// The verdict of a replica that remembers nothing.
    /// [`Site::flight`](crate::small::Site::flight) makes the answers.
    pub(crate) fn verdict(self, segment: &Segment<'_>) -> Verdict<'static> {
        match self {
            Decision::Drop(reason) => Verdict::Drop(reason),
            Decision::Kernel(cause) => Verdict::Kernel(cause),
            Decision::Adopt(cause, handshake) => Verdict::Adopt(cause, handshake),
            Decision::Begin(asked) => Verdict::Begin(asked),
            Decision::Welcome(header) => Verdict::Say(header),
            Decision::Say(flags, ack) => Verdict::Say(say(segment, flags, ack)),
            Decision::Ahead(..) => Verdict::Drop(Reason::Early),
            Decision::Answer(_) | Decision::Continue(..) | Decision::Heard { .. } => {
                Verdict::Drop(Reason::Acknowledgement)
            }
        }
    }
}

/// The SACKed data beyond the client's acknowledgement, as ranges of the answer of which it has the
/// first `at` bytes.
pub(crate) fn have(segment: &Segment<'_>, at: u32) -> Have {
    let ack = segment.header.ack;
    let mut have = Have::new();
    for &(from, to) in segment.header.options.sack.blocks() {
        // A block below the acknowledgement reports data that arrived twice (RFC 2883); a block far
        // beyond is not of this answer.
        let (from, to) = (from.wrapping_sub(ack), to.wrapping_sub(ack));
        if from < to && to <= 2 * MAX_ANSWER {
            let _ = have.try_push((at + from, at + to));
        }
    }
    have
}
