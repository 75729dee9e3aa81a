//! What is remembered of a connection while its answer is sent.

use arrayvec::ArrayVec;
use rivulet_packet::TcpFlags;

use crate::answer::Answer;
use crate::codec::Flow;
use crate::large::allowance::Account;
use crate::large::packet::Packet;
use crate::large::sender::{Due, Sender};
use crate::large::stamp::{CELL, Download, LargeStamp, Seal, window_number};
use crate::segment::{Header, MAX_SACK, Options, Segment, Stamps};
use crate::small::{ACK, Site};

/// What a client has asked stays unacknowledged but for its last octets: it repeats them when nothing comes, whoever may be
/// alive then.
pub(super) const WITHHELD: u32 = 16;
/// So many of these no question acknowledges, only what the client repeats: with none left it has no timer, and when all who remember
/// it are gone nobody says anything any more.
const KEPT: u32 = 8;
/// After so many questions without an answer more of the rest is acknowledged, little by little: most of who has got another replica for
/// its next block comes back sooner.
const QUIET: u32 = 6;

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Entry<W> {
    pub(super) flow: Flow,
    /// Addresses, sequence number of the answer's first octet, acknowledgement and echo of what is sent.
    pub(super) header: Header,
    /// Behind the last octet that the client sent, as far as is known.
    pub(super) asked: u32,
    /// How often it was asked for an answer since it was heard last.
    pub(super) unanswered: u32,
    /// All that the client says is acknowledged.
    pub(super) all: bool,
    /// When another replica was last seen to have it.
    pub(super) shared: Option<u64>,
    pub(super) of: Download,
    /// What its timestamps are checked by, and the last one that was made: it is of many segments.
    pub(super) seal: Seal,
    pub(super) sealed: Option<(LargeStamp, u32)>,
    pub(super) answer: Answer,
    /// Octets of the answer's head, and of all.
    pub(super) head: u32,
    pub(super) length: u32,
    pub(super) sender: Sender,
    /// The last value that was echoed.
    pub(super) echoed: u32,
    /// The cell whose window was told last, and that window: in what was sent once, and again.
    pub(super) once: (u32, u8),
    pub(super) again: (u32, u8),
    pub(super) path: u32,
    pub(super) account: Account,
    pub(super) way: W,
    pub(super) used: u64,
    /// Taken from the sender and not sent yet, with its timestamp; the next one last.
    pub(super) ahead: ArrayVec<(Due, u32), 2>,
    /// It is among those that may have more to send.
    pub(super) active: bool,
}

impl<W: Copy> Entry<W> {
    /// Before a client that does not answer is asked again. There are stacks that leave out a segment whose acknowledgement is
    /// behind one that they had (RFC 793 lets them ignore the acknowledgement), such as one of a replica that the client repeated its
    /// request to. Before the answer's first octet arrived, only the whole request says what is wanted.
    pub(super) fn acknowledge_more(&mut self) {
        if self.unanswered > 0 && self.sender.una() > 0 {
            let left = self.asked.wrapping_sub(self.header.ack).min(WITHHELD);
            self.header.ack = self.header.ack.wrapping_add(acknowledged_by_asking(self.unanswered, left));
        }
        self.unanswered += 1;
    }

    /// Whether a reset has the number that is expected of its client: that of what was acknowledged to it, or behind all that it said.
    pub(super) fn is_reset_by(&self, header: &Header) -> bool {
        header.seq.wrapping_sub(self.header.ack) <= self.asked.wrapping_sub(self.header.ack)
    }

    /// When another replica was last seen to have it, now that the client has so much.
    pub(super) fn shared_by(&self, at: u32, now: u64) -> Option<u64> {
        if self.sender.has_sent(at) { self.shared } else { Some(now) }
    }

    /// Is sent before all else.
    pub(super) fn keep(&mut self, due: Due, value: u32) {
        // What is taken is put back before more is taken, and what follows it: two at most.
        let kept = self.ahead.try_push((due, value));
        debug_assert!(kept.is_ok(), "a segment is forgotten");
    }

    /// A packet with what is due.
    pub(super) fn packet<'t>(&self, n: usize, due: Due, value: u32, site: &'t Site) -> Packet<'t, W> {
        let echo = self.header.options.stamps.map_or(0, |stamps| stamps.echo);
        let last = due.fin || due.to == self.length;
        let flags = TcpFlags::ACK
            | if last && due.to > due.from { TcpFlags::PSH } else { 0 }
            | if due.fin { TcpFlags::FIN } else { 0 };
        let options = Options { stamps: Some(Stamps { value, echo }), ..Options::default() };
        let header = Header {
            seq: self.header.seq.wrapping_add(due.from),
            flags: TcpFlags(flags),
            options,
            ..self.header
        };
        Packet::of_answer(
            header,
            (self.answer, self.head, site),
            (n, due, value),
            self.sender.full(),
            self.way,
        )
    }

    /// The timestamp of a segment: never below what the client had last, and in one cell never below one before it.
    pub(super) fn value(&mut self, due: &Due) -> u32 {
        let cell = due.from / CELL;
        // What is sent once and what is sent again go on apart: within a cell neither may go back.
        let told = if due.again { &mut self.again } else { &mut self.once };
        if told.0 != cell {
            *told = (cell, window_number(self.sender.cwnd(), cell));
        }
        let mut window = told.1;
        if due.repair && self.again.0 == cell {
            window = window.max(self.again.1);
        }
        let stamp = LargeStamp { slot: cell as u8, repair: due.repair, window, all: self.all, of: self.of };
        let value = match self.sealed {
            Some((last, value)) if last == stamp => value,
            _ => stamp.value(&self.flow, &self.seal),
        };
        self.sealed = Some((stamp, value));
        if (value.wrapping_sub(self.echoed) as i32) < 0 { self.echoed } else { value }
    }
}

/// How many of the octets that are left a question acknowledges, with so many before it unanswered.
fn acknowledged_by_asking(unanswered: u32, left: u32) -> u32 {
    let more = match unanswered {
        n @ 1..=3 => 1 << (n - 1),
        n if n < QUIET => 0,
        _ => 2,
    };
    left.saturating_sub(KEPT).min(more)
}

/// Of an answer, `[from, to)`.
type Octets = (u32, u32);

/// What a client has beyond this position of an answer of this length, and what of it came twice.
pub(super) fn sacked(header: &Header, at: u32, length: u32) -> (ArrayVec<Octets, MAX_SACK>, Option<Octets>) {
    let (mut beyond, mut twice) = (ArrayVec::new(), None);
    let blocks = header.options.sack.blocks();
    for (n, block) in blocks.iter().enumerate() {
        let distance = |of: &(u32, u32)| (of.0.wrapping_sub(header.ack), of.1.wrapping_sub(header.ack));
        let (from, to) = distance(block);
        // The first one is what came now, also where it is known or lies in the second (RFC 2883).
        let within = |other: &(u32, u32)| distance(other).0 <= from && to <= distance(other).1;
        let known = (from as i32) < 0 || blocks.get(1).is_some_and(within);
        if n == 0 && known && (to.wrapping_sub(from) as i32) > 0 {
            let (from, to) = (at.wrapping_add(from), at.wrapping_add(to));
            twice = Some((from, to)).filter(|_| from < to && to <= length + 1);
        } else if from < to && to <= length - at + 1 {
            let _ = beyond.try_push((at + from, at + to));
        }
    }
    (beyond, twice)
}

/// What stands before the segments of an answer whose first octet has this sequence number, `ack` acknowledged.
pub(super) fn header_of(segment: &Segment<'_>, first: u32, ack: u32) -> Header {
    Header { seq: first, ..crate::say::say(segment, ACK, ack) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that repeats nothing is heard by nobody once all who remember it are gone: one of 20,000 downloads was silent for good
    /// after a thousand kills.
    #[test]
    fn who_asks_leaves_the_client_something_to_repeat() {
        let left =
            (1..1000).fold(WITHHELD, |left, unanswered| left - acknowledged_by_asking(unanswered, left));
        assert_eq!(left, 8);
    }
}
