//! The state of a connection while its answer is sent.

use arrayvec::ArrayVec;
use rivulet_packet::TcpFlags;

use crate::answer::Answer;
use crate::codec::Flow;
use crate::decision::ACK;
use crate::large::allowance::Account;
use crate::large::due::Due;
use crate::large::packet::Packet;
use crate::large::sender::Sender;
use crate::large::stamp::{CELL, Download, LargeStamp, Seal, window_number};
use crate::segment::{Header, MAX_SACK, Options, Segment, Stamps};
use crate::small::Site;

/// The last bytes of a client's request stay unacknowledged: the client retransmits them when no
/// data arrives, and any live replica can answer.
pub(super) const WITHHELD: u32 = 16;
/// Bytes of the withheld ones that no probe acknowledges, only a retransmission of the client.
/// Without unacknowledged data the client has no timer, and the connection hangs if all replicas
/// with its state are dead.
const KEPT: u32 = 8;
/// Unanswered probes after which the remaining bytes are acknowledged step by step. Most clients
/// that moved to another replica for the next block return sooner.
const QUIET: u32 = 6;

/// Probes sent to a silent connection: ten in the first ten seconds, then at growing intervals for
/// an hour. A replica that sent an earlier block is the only one that can notice the death of the
/// replica sending now, and on a slow path a block takes minutes.
const PATIENCE: u32 = 19;
/// Limit on the probes if this replica only knows an acknowledgement far from its timestamp's cell,
/// which a blind forger hits more often than others: those of the first ten seconds.
const PATIENCE_UNPLACED: u32 = 10;
/// Limit on the probes sent to a client with a closed window: half an hour of them.
const PATIENCE_CLOSED: u32 = 64;

/// A download's state on this replica.
#[derive(Clone, Debug)]
pub(super) struct Entry<W> {
    pub(super) flow: Flow,
    /// Addresses, sequence number of the answer's first byte, acknowledgement and echo of its
    /// segments.
    pub(super) header: Header,
    /// End of the client's data, if known.
    pub(super) asked: u32,
    /// Unanswered probes since the client's last segment.
    pub(super) unanswered: u32,
    /// All data of the client is acknowledged.
    pub(super) all: bool,
    /// When another replica was last seen to have the connection.
    pub(super) shared: Option<u64>,
    pub(super) of: Download,
    /// The key material of its timestamps' checks, and the last timestamp, which many segments
    /// share.
    pub(super) seal: Seal,
    pub(super) sealed: Option<(LargeStamp, u32)>,
    pub(super) answer: Answer,
    /// Length of the answer's head, and of the whole answer.
    pub(super) head: u32,
    pub(super) length: u32,
    pub(super) sender: Sender,
    /// The last value that the client echoed.
    pub(super) echoed: u32,
    /// The cell and window of the last timestamp: of first transmissions, and of retransmissions.
    pub(super) once: (u32, u8),
    pub(super) again: (u32, u8),
    pub(super) path: u32,
    pub(super) account: Account,
    pub(super) way: W,
    pub(super) used: u64,
    /// Segments that were taken from the sender and not sent yet, with their timestamps; the last
    /// one is sent first.
    pub(super) ahead: ArrayVec<(Due, u32), 2>,
    /// Whether the connection is in the list of those that may have more to send.
    pub(super) active: bool,
}

impl<W: Copy> Entry<W> {
    /// Limit on the unanswered probes, after which the connection is dropped.
    pub(super) fn patience(&self) -> u32 {
        match (self.sender.is_placed(), self.sender.is_closed()) {
            (false, _) => PATIENCE_UNPLACED,
            (true, true) => PATIENCE_CLOSED,
            (true, false) => PATIENCE,
        }
    }

    /// Acknowledges one more byte before an unanswered probe is repeated. Some stacks ignore
    /// segments with an acknowledgement older than one that they had (RFC 793 lets them), for
    /// example after another replica acknowledged more. Before the answer's first byte has arrived,
    /// only the whole request identifies the object.
    pub(super) fn acknowledge_more(&mut self) {
        if self.unanswered > 0 && self.sender.una() > 0 {
            let left = self.asked.wrapping_sub(self.header.ack).min(WITHHELD);
            self.header.ack = self.header.ack.wrapping_add(acknowledged_by_asking(self.unanswered, left));
        }
        self.unanswered += 1;
    }

    /// Whether a RST has the exact number expected of its client: that of the last acknowledgement,
    /// or the end of its data.
    pub(super) fn is_reset_by(&self, header: &Header) -> bool {
        header.seq.wrapping_sub(self.header.ack) <= self.asked.wrapping_sub(self.header.ack)
    }

    /// Handles a large answer's timestamp that was refused because of a wrong check, which no
    /// client has.
    pub(super) fn refuse(&mut self, ack: u32, echo: u32) {
        if LargeStamp::read(echo, &self.flow, &self.seal).is_none() {
            self.sender.doubt(ack.wrapping_sub(self.header.seq));
        }
    }

    /// When another replica was last seen to send to this client; `at`: bytes of the answer that
    /// the client has. If this replica has not sent that far, another one is sending now.
    pub(super) fn shared_by(&self, at: u32, now: u64) -> Option<u64> {
        if self.sender.has_sent(at) { self.shared } else { Some(now) }
    }

    /// Puts a segment back, to be sent before all others.
    pub(super) fn keep(&mut self, due: Due, value: u32) {
        // Segments that were taken are put back before others are taken, with what follows them: at
        // most two.
        let kept = self.ahead.try_push((due, value));
        debug_assert!(kept.is_ok(), "a segment is forgotten");
    }

    /// A packet with this segment.
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

    /// The timestamp of a segment: never below the one that the client had last, and within a cell
    /// never below an earlier one.
    pub(super) fn value(&mut self, due: &Due) -> u32 {
        let cell = due.from / CELL;
        // First transmissions and retransmissions advance separately, because within a cell neither
        // may go back.
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

/// Number of the withheld bytes that a probe acknowledges, after this many unanswered ones.
fn acknowledged_by_asking(unanswered: u32, left: u32) -> u32 {
    let more = match unanswered {
        n @ 1..=3 => 1 << (n - 1),
        n if n < QUIET => 0,
        _ => 2,
    };
    left.saturating_sub(KEPT).min(more)
}

/// A range `[from, to)` of an answer.
type Octets = (u32, u32);

/// The ranges that a client has after offset `at` of an answer of this length, and the range that
/// arrived twice.
pub(super) fn sacked(header: &Header, at: u32, length: u32) -> (ArrayVec<Octets, MAX_SACK>, Option<Octets>) {
    let (mut beyond, mut twice) = (ArrayVec::new(), None);
    let blocks = header.options.sack.blocks();
    for (n, block) in blocks.iter().enumerate() {
        let distance = |of: &(u32, u32)| (of.0.wrapping_sub(header.ack), of.1.wrapping_sub(header.ack));
        let (from, to) = distance(block);
        // The first block is the segment that caused the acknowledgement, even if it is known or
        // lies within the second block (RFC 2883).
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

/// The header of an answer's segments, with `first` as the sequence number of its first byte and
/// `ack` acknowledged.
pub(super) fn header_of(segment: &Segment<'_>, first: u32, ack: u32) -> Header {
    Header { seq: first, ..crate::say::say(segment, ACK, ack) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client without unacknowledged data sends nothing once all replicas with its state are
    /// dead: one of 20,000 downloads hung after a thousand kills.
    #[test]
    fn probe_leaves_unacknowledged_data() {
        let left =
            (1..1000).fold(WITHHELD, |left, unanswered| left - acknowledged_by_asking(unanswered, left));
        assert_eq!(left, 8);
    }
}
