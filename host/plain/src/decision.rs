//! The decision on a client's segment, before it becomes a verdict with segments to send.

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

/// An answer under way: what it is, and where the client's packet and the answer meet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Under {
    pub(crate) answer: Answer,
    /// Bytes of it that the client has in order.
    pub(crate) at: u32,
    /// The sequence number at which the request begins: the acknowledgement of the segments.
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
    /// A segment without data: its flags and its acknowledgement.
    Say(u8, u32),
    Answer(Under),
    /// An answer, with requests behind it in the segment.
    Continue(Under, Handshake),
    /// Data that does not begin where the request does; the number: bytes of all answers so far
    /// that the client has.
    Ahead(Class, u32),
    /// An acknowledgement without data: the client has `at` bytes of the answer that begins at `start`.
    Heard {
        start: u32,
        at: u32,
    },
}

impl Decision {
    /// The verdict of a replica without memory. [`Site::flight`](crate::small::Site::flight) makes the answers.
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

/// The data that the client has beyond its acknowledgement, in bytes of the answer of which it has
/// `at` in order.
pub(crate) fn have(segment: &Segment<'_>, at: u32) -> Have {
    let ack = segment.header.ack;
    let mut have = Have::new();
    for &(from, to) in segment.header.options.sack.blocks() {
        // Data below the acknowledgement arrived twice (RFC 2883); a block far beyond is not of
        // this answer.
        let (from, to) = (from.wrapping_sub(ack), to.wrapping_sub(ack));
        if from < to && to <= 2 * MAX_ANSWER {
            let _ = have.try_push((at + from, at + to));
        }
    }
    have
}
