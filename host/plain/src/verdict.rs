//! What a segment comes to: dropped, answered, or handed to the kernel's TCP, and what the kernel needs for that.

use crate::answer::Answer;
use crate::codec::Class;
use crate::flight::Flight;
use crate::segment::Header;
use crate::stamp::{Scale, kernel_value};

/// Why no segment is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Its flags are no client's.
    Flags,
    /// A reset. There is nothing to reset, so a forged one does no harm.
    Reset,
    /// It acknowledges no cookie of this rack, or a number out of its reach.
    Cookie,
    /// Its timestamp is not one that goes with its acknowledgement.
    Stamp,
    /// An acknowledgement without data: the client is on its way.
    Acknowledgement,
    /// Data or FIN that is not this answer's request, while the client has not the whole answer.
    Early,
    /// The answer was begun from other objects than those here.
    Version,
    /// The end of the request is not in the segment.
    Split,
    /// What the back end answers now is not what it answered when the answer was begun: the connection has to end.
    Changed,
}

/// Why the kernel's TCP is to take the connection over, or has it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The SYN offers less than is needed here.
    Syn,
    /// The connection has a socket of the kernel.
    Adopted,
    /// No GET and no HEAD, or a body; no ordinary query of DNS.
    Request,
    /// The object is not in the table, or the answer is too long.
    Object,
    /// The request comes in pieces.
    Split,
    /// The client sends more requests without waiting for the answer.
    Pipelined,
}

/// What a socket of the kernel's needs of a connection of which only this segment was seen. The rest is in the segment: its
/// acknowledgement is what the client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The client's maximum segment size, or less.
    pub mss: u16,
    /// The client's window scale, or less, on a connection with timestamps. Ours is 0.
    pub scale: Option<Scale>,
    /// The sequence number of the first byte that the kernel is to receive.
    pub receive_next: u32,
    /// Where the answer begins with which the kernel's part begins, bytes from the first one: its clock starts above that.
    pub start: u32,
    /// The TSval of the stateless answer that ends the stateless part, which the client may still echo.
    pub answer: Option<u32>,
}

/// A request on a fresh connection, with the large answer to it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub(crate) answer: Answer,
    pub(crate) object: u16,
    pub(crate) class: Class,
    pub(crate) scale: Scale,
}

/// What a segment comes to.
#[derive(Clone, Debug)]
pub enum Verdict<'t> {
    /// Nothing.
    Drop(Reason),
    /// One segment without data.
    Say(Header),
    /// Segments of an answer.
    Answer(Flight<'t>),
    /// A large answer begins: [`Downloads::begin`](crate::Downloads::begin).
    Begin(Asked),
    /// The kernel's, which cannot take it over from here: an answer was given before, or no replica
    /// has it.
    Kernel(Cause),
    /// The kernel's from this segment on: the first with data on its connection, or, if [`Handshake::start`] is not 0, the first
    /// behind answers that were given without state. What follows it is nothing for [`Site::judge`](crate::Site::judge).
    Adopt(Cause, Handshake),
    /// An answer, and further requests for the kernel: the kernel takes the connection and
    /// retransmits the answer, too. A caller that cannot hand it over sends only the answer; the
    /// client then repeats its further requests.
    Continue(Handoff<'t>),
}

/// An answer with which a connection passes to the kernel.
#[derive(Clone, Debug)]
pub struct Handoff<'t> {
    /// What the kernel's socket needs.
    pub handshake: Handshake,
    /// The segments to send now; none if all of them were sent before.
    pub flight: Flight<'t>,
    /// Bytes of the answer that the client acknowledges.
    pub(crate) at: u32,
}

impl Handoff<'_> {
    /// The bytes of the answer that the client has not acknowledged: they stand first in the socket's send queue.
    #[must_use]
    pub fn unacknowledged(&self) -> Vec<u8> {
        let octets = &self.flight.octets;
        let mut out = vec![0; octets.len().saturating_sub(self.at) as usize];
        // It has as many bytes as it claims.
        let _ = octets.copy(self.at, &mut out);
        out
    }

    /// Makes the pieces carry the timestamp with which the kernel's clock begins, so that the ToR
    /// sends the client's next segment to the replica with the kernel's connection.
    pub fn set_kernel_timestamp(&mut self) {
        if let Some(stamps) = &mut self.flight.header.options.stamps {
            stamps.value = kernel_value(self.handshake.start);
        }
    }
}
