//! The verdict on a segment: drop it, answer it, or pass it to the kernel's TCP with the state that the kernel needs.

use crate::answer::Answer;
use crate::codec::Class;
use crate::flight::Flight;
use crate::segment::Header;
use crate::stamp::{Scale, kernel_value};

/// Why no segment is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Flags that no client sends.
    Flags,
    /// A reset. There is nothing to reset, so a forged one does no harm.
    Reset,
    /// The acknowledgement fits no cookie of this rack, or is out of the cookie's reach.
    Cookie,
    /// The timestamp does not fit the acknowledgement.
    Stamp,
    /// A bare acknowledgement: the client will send more.
    Acknowledgement,
    /// Data or FIN that is not this answer's request, while the client has not the whole answer.
    Early,
    /// The answer was begun from other objects than those here.
    Version,
    /// The end of the request is not in the segment.
    Split,
    /// The back end's answer differs from the one that was begun: the connection has to end.
    Changed,
}

/// Why the kernel's TCP takes the connection over, or has it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The SYN lacks an option that stateless TCP needs.
    Syn,
    /// The connection has a socket of the kernel.
    Adopted,
    /// Neither GET nor HEAD, or a request with a body; or no ordinary DNS query.
    Request,
    /// The object is not in the table, or the answer is too long.
    Object,
    /// The request comes in pieces.
    Split,
    /// The client sends more requests without waiting for the answer.
    Pipelined,
}

/// The state that the kernel's socket of a connection needs beside the present segment. The segment's acknowledgement gives
/// the bytes that the client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// The client's maximum segment size, or less.
    pub mss: u16,
    /// The client's window scale, or less, on a connection with timestamps. Ours is 0.
    pub scale: Option<Scale>,
    /// The sequence number of the first byte that the kernel is to receive.
    pub receive_next: u32,
    /// Offset, from the first answer, of the answer with which the kernel's part begins; the clock of its timestamps starts
    /// above that.
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

/// The verdict on a segment.
#[derive(Clone, Debug)]
pub enum Verdict<'t> {
    /// Send nothing.
    Drop(Reason),
    /// Send one segment without data.
    Say(Header),
    /// Send segments of an answer.
    Answer(Flight<'t>),
    /// A large answer begins: [`Downloads::begin`](crate::Downloads::begin).
    Begin(Asked),
    /// The segment belongs to a connection that the kernel cannot take over here: an answer was sent
    /// before, or no replica has it.
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
    /// State for the kernel's socket.
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
