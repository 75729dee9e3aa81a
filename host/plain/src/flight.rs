//! A flight: the segments of an answer from some byte on, cut where any replica would cut them.
//!
//! An acknowledgement gives the client's offset. Whether that is the answer's end follows from the
//! places at which segments end: segments end on grids, and answers never do.
//!
//! * normally the first segment ends at 1,200 bytes, which every path carries, and each further one a full segment of the
//!   client's class later;
//! * if only the first segment arrived, every 1,200 bytes: the path carries no longer segments;
//! * if a window or a path is smaller still, every 128 bytes.

use arrayvec::ArrayVec;
use rivulet_packet::BuildError;
use rivulet_packet::segment::TcpFlags;

use crate::answer_bytes::AnswerBytes;
use crate::codec::{BARE_SEGMENT, Class};
use crate::segment::{Header, MAX_SACK};

/// Data in a segment that fits every path, including IPv6 with an MTU of 1,280, bytes.
pub const EVERYWHERE: u32 = 1200;
/// Segments end at multiples of this if there is no room for longer ones, bytes.
pub const TINY: u32 = 128;
/// Limit on the segments of a flight (RFC 6928), counted as full segments with options.
const INITIAL_WINDOW: u32 = 10;

/// Whether a segment of this class may end at this offset of an answer.
#[must_use]
pub fn is_boundary(class: Class, at: u32) -> bool {
    at.is_multiple_of(TINY) || is_full(class, at) || is_narrow(class, at)
}

pub(crate) fn is_full(class: Class, at: u32) -> bool {
    let full = class.segment();
    let first = full.min(EVERYWHERE);
    at >= first && (at - first).is_multiple_of(full)
}

fn is_narrow(class: Class, at: u32) -> bool {
    class.segment() > EVERYWHERE && at.is_multiple_of(EVERYWHERE)
}

/// How an answer is divided into segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Full segments of a class.
    Full(Class),
    /// At multiples of 1,200 bytes.
    Narrow,
    /// At multiples of 1,024 bytes, on a bare connection.
    Bare,
}

impl Cut {
    /// The division for a client that repeats its request, with the first `at` bytes of the answer
    /// and the ranges `have`. If the first segment arrived and no full one did, or later segments
    /// were narrow, the path does not carry full ones.
    #[must_use]
    pub fn again(class: Class, at: u32, have: &[(u32, u32)]) -> Cut {
        // A short last segment proves nothing, and narrow segments begin elsewhere.
        let passed = |&(from, to): &(u32, u32)| is_full(class, from) && to - from > EVERYWHERE;
        let narrow = at == EVERYWHERE && !have.iter().any(passed) || !is_full(class, at);
        if is_narrow(class, at) && narrow && at > 0 { Cut::Narrow } else { Cut::Full(class) }
    }

    /// End of the segment that begins at `at`, at most `room` bytes later; `None` if no allowed end
    /// is within that.
    pub(crate) fn end(self, at: u32, room: u32) -> Option<u32> {
        let end = match self {
            Cut::Bare => return Some((at / BARE_SEGMENT + 1) * BARE_SEGMENT).filter(|end| end - at <= room),
            Cut::Narrow => (at / EVERYWHERE + 1) * EVERYWHERE,
            Cut::Full(class) => {
                let full = class.segment();
                let first = full.min(EVERYWHERE);
                if at < first { first } else { first + ((at - first) / full + 1) * full }
            }
        };
        let end = if end - at <= room { end } else { (at + room) / TINY * TINY };
        (end > at).then_some(end)
    }
}

/// One segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of its first byte in the answer.
    pub from: u32,
    /// Offset after its last byte.
    pub to: u32,
    /// Whether the segment carries a FIN.
    pub fin: bool,
}

/// Limit on the segments sent at once, however small they are.
pub const MAX_PIECES: usize = 16;

/// The segments of a flight.
pub(crate) type Pieces = ArrayVec<Piece, MAX_PIECES>;

/// Ranges `[from, to)` of the answer that the client has beyond its acknowledgement.
pub(crate) type Have = ArrayVec<(u32, u32), MAX_SACK>;

/// Parameters that determine how an answer is cut into segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) cut: Cut,
    /// Offset of the first byte to send.
    pub(crate) from: u32,
    /// End of the client's window, as an offset in the answer.
    pub(crate) window: u32,
    /// Limit on the data in a segment on this path, bytes.
    pub(crate) path: u32,
    /// Length of the answer.
    pub(crate) length: u32,
    /// Whether FIN follows the answer.
    pub(crate) closes: bool,
}

impl Span {
    /// The segments of one flight: at most an initial window (RFC 6928), without segments that the
    /// client has or that `wanted` rejects.
    pub(crate) fn pieces(&self, have: &Have, mut wanted: impl FnMut(&Piece) -> bool) -> Pieces {
        let mut pieces = Pieces::new();
        let mut budget = match self.cut {
            Cut::Full(class) => INITIAL_WINDOW * (class.segment() + 12),
            Cut::Narrow => INITIAL_WINDOW * EVERYWHERE,
            Cut::Bare => INITIAL_WINDOW * BARE_SEGMENT,
        };
        let mut from = self.from;
        while from < self.length && !pieces.is_full() {
            let Some(end) = self.cut.end(from, self.path) else { break };
            let mut to = end.min(self.length);
            let beyond = to > self.window;
            if beyond {
                // A part of a segment is sent only if nothing else is; otherwise the next
                // acknowledgement opens the window further.
                let room = self.window.saturating_sub(from);
                match self.cut.end(from, room) {
                    Some(end) if pieces.is_empty() => to = end.min(self.length),
                    _ => break,
                }
            }
            // A FIN needs room in the window too.
            let fin = self.closes && to == self.length && self.window > self.length;
            let piece = Piece { from, to, fin };
            from = to;
            // A segment keeps its boundaries even if the client has a part of it.
            if have.iter().any(|&(a, b)| a <= piece.from && to <= b) || !wanted(&piece) {
                continue;
            }
            if to - piece.from > budget {
                break;
            }
            budget -= to - piece.from;
            pieces.push(piece);
            if beyond {
                break;
            }
        }
        pieces
    }
}

/// Segments of an answer, ready to be sent.
#[derive(Clone, Debug)]
pub struct Flight<'t> {
    pub(crate) octets: AnswerBytes<'t>,
    /// The headers of all segments, with the sequence number of the answer's first byte.
    pub(crate) header: Header,
    pub(crate) pieces: Pieces,
}

impl Flight<'_> {
    /// The segments, in sending order; none if the client's window has no room.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Length of a segment's packet.
    #[must_use]
    pub fn length(&self, piece: &Piece) -> usize {
        self.header.length() + (piece.to - piece.from) as usize
    }

    /// Writes a segment's packet, IP header included; returns its length.
    ///
    /// # Errors
    /// [`BuildError`] if the buffer has fewer than [`length`](Self::length) bytes.
    pub fn write(&self, piece: &Piece, packet: &mut [u8]) -> Result<usize, BuildError> {
        let start = self.header.length();
        let (have, need) = (packet.len(), self.length(piece));
        let short = BuildError::BufferTooSmall { need, have };
        let data = packet.get_mut(start..need).ok_or(short)?;
        if !self.octets.copy(piece.from, data) {
            return Err(BuildError::Inconsistent { what: "a segment beyond its answer" });
        }
        let last = piece.to == self.octets.len();
        let flags =
            TcpFlags::ACK | if last { TcpFlags::PSH } else { 0 } | if piece.fin { TcpFlags::FIN } else { 0 };
        let header =
            Header { seq: self.header.seq.wrapping_add(piece.from), flags: TcpFlags(flags), ..self.header };
        header.finish(packet, need - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> Class {
        Class::of(1460).unwrap()
    }

    fn cuts(cut: Cut, length: u32, room: u32) -> Vec<u32> {
        let mut at = 0;
        core::iter::from_fn(|| {
            at = cut.end(at, room).filter(|_| at < length)?;
            Some(at.min(length))
        })
        .collect()
    }

    #[test]
    fn segments_end_only_at_allowed_offsets() {
        assert_eq!(cuts(Cut::Full(class()), 5000, 9000), [1200, 2648, 4096, 5000]);
        assert_eq!(cuts(Cut::Full(Class::of(536).unwrap()), 1100, 9000), [520, 1040, 1100]);
        assert_eq!(cuts(Cut::Narrow, 3000, 9000), [1200, 2400, 3000]);
        assert_eq!(cuts(Cut::Bare, 3000, 9000), [1024, 2048, 3000]);
        assert_eq!(cuts(Cut::Full(class()), 1500, 600), [512, 1024, 1200, 1500]);
        assert_eq!(cuts(Cut::Full(class()), 1500, 127), [0u32; 0]);
        assert_eq!(cuts(Cut::Bare, 1500, 1023), [0u32; 0]);
        for class in Class::all() {
            for room in [128, 200, 1200, 1300, 9000] {
                for cut in [Cut::Full(class), Cut::Narrow] {
                    let all = cuts(cut, 15_000, room);
                    let narrow = class.segment() > EVERYWHERE || cut != Cut::Narrow;
                    assert!(
                        !narrow || all[..all.len() - 1].iter().all(|&at| is_boundary(class, at)),
                        "{all:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn narrow_path_is_detected_from_the_clients_offset() {
        assert_eq!(Cut::again(class(), 0, &[]), Cut::Full(class()));
        assert_eq!(Cut::again(class(), 1200, &[]), Cut::Narrow);
        assert_eq!(Cut::again(class(), 1200, &[(2648, 4096)]), Cut::Full(class()));
        assert_eq!(
            Cut::again(class(), 1200, &[(2648, 2900)]),
            Cut::Narrow,
            "the last segment, which is short"
        );
        assert_eq!(Cut::again(class(), 1200, &[(2400, 4800)]), Cut::Narrow, "narrow ones");
        assert_eq!(Cut::again(class(), 2400, &[(2648, 4096)]), Cut::Narrow);
        assert_eq!(Cut::again(class(), 2648, &[]), Cut::Full(class()));
        assert_eq!(Cut::again(class(), 1280, &[]), Cut::Full(class()));
        let small = Class::of(536).unwrap();
        assert_eq!(Cut::again(small, 1200, &[]), Cut::Full(small));
    }
}
