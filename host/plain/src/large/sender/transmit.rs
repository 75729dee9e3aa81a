//! Which segment a sender sends next: losses first, then new data in pieces, then a probe.

use super::Sender;
use crate::flight::Cut;
use crate::large::clock::Time;
use crate::large::due::Due;
use crate::large::stamp::{CELL, CELLS, MAX_LARGE};

impl Sender {
    /// End of the segment that begins at `at`; the last segment has the FIN.
    fn segment_end(&self, at: u32, room: u32) -> u32 {
        let length = self.end - 1;
        if at >= length {
            return self.end;
        }
        let to = Cut::Full(self.class).end(at, room.min(MAX_LARGE)).unwrap_or(at);
        if to >= length { self.end } else { to }
    }

    /// End of the last segment, of those from `at` on, that does not extend beyond `to`.
    pub(super) fn whole_segments(&self, at: u32, to: u32) -> u32 {
        let first = self.segment_end(at, u32::MAX);
        if to >= self.end {
            self.end
        } else if to < first {
            at
        } else {
            first + (to - first) / self.full() * self.full()
        }
    }

    /// The first unacknowledged segment. If there is none, the one before it, which the client has:
    /// the client then answers with everything that it knows.
    pub(super) fn probing(&self, path: u32) -> (u32, u32) {
        if self.nxt == self.una {
            return self.question();
        }
        let next = self.board.next(self.una).unwrap_or(u32::MAX);
        (self.una, self.segment_end(self.una, path).min(self.nxt).min(next))
    }

    /// Bytes that the client has: sending them only makes it answer.
    pub(super) fn question(&self) -> (u32, u32) {
        (self.una.saturating_sub(8), self.una)
    }

    /// The next segment, if any; `path`: bytes of data that a segment may have on the path.
    pub(crate) fn next(&mut self, path: u32, now: Time) -> Option<Due> {
        if self.is_done() {
            return None;
        }
        let urgent = core::mem::take(&mut self.urgent);
        self.limited = false;
        if self.is_spent() {
            let (from, to) = self.question();
            return urgent.then(|| self.send(from, to, true, true, now));
        }
        let pipe = self.pipe();
        // Losses first, then new data.
        let hole = self.board.hole(self.again.max(self.una));
        if hole < self.lost.min(self.nxt) {
            let next = self.board.next(hole).unwrap_or(u32::MAX);
            let to = self.segment_end(hole, path).min(next).min(self.nxt);
            if pipe + (to - hole) > self.cwnd() && !urgent {
                self.limited = true;
                return None;
            }
            // At each repair, because new data between two repairs arrives before the later one.
            self.sent_then = self.nxt;
            self.again = to;
            return Some(self.send(hole, to, true, true, now));
        }
        let to = self.segment_end(self.nxt, path);
        let within = to <= self.edge || self.edge + 1 == to && to == self.end;
        let far = to - self.una > CELL * (CELLS - 1);
        if self.nxt < self.end && to > self.nxt && within && !far {
            if pipe + (to - self.nxt) <= self.cwnd() && !self.gathers(pipe) {
                let from = self.nxt;
                self.piece = self.piece.saturating_sub(self.full());
                self.nxt = to;
                if self.recover.is_none() {
                    self.clock.sent(to, now);
                }
                return Some(self.send(from, to, self.recover.is_some(), false, now));
            }
            self.limited = true;
        }
        if urgent {
            let (from, to) = self.probing(path);
            if to > from {
                return Some(self.send(from, to, true, true, now));
            }
        }
        None
    }

    /// Whether new data waits for further acknowledgements, until there is room for half of what
    /// Linux sends in one piece (a millisecond of data, at least two segments, at most a third of
    /// the window). Beside connections that send in bursts, one that does not takes half more than
    /// its share, because single segments find room in a nearly full queue; one that sends only
    /// whole bursts gets three quarters.
    fn gathers(&mut self, pipe: u32) -> bool {
        if self.piece > 0 || self.recover.is_some() {
            return false;
        }
        let room = (self.cwnd() - pipe).min(self.edge.saturating_sub(self.nxt));
        let most = self.cwnd().min(self.edge.saturating_sub(self.una)) / 3;
        let full = self.full();
        let piece = self.clock.octets_of_a_moment(self.cwnd()).max(2 * full).min(most) / full * full;
        if pipe > 0 && room < piece.min(self.end - self.nxt) {
            return true;
        }
        self.piece = piece;
        false
    }

    fn send(&mut self, from: u32, to: u32, repair: bool, again: bool, now: Time) -> Due {
        let repair = repair || from / CELL <= self.repaired / CELL && self.repaired > 0;
        if repair {
            self.repaired = self.repaired.max(from).max(1);
        }
        if self.deadline.is_none() {
            self.arm(now);
        }
        if again {
            self.window.again(to - from);
        }
        if to > self.una {
            self.first_end = self.first_end.min(to);
        }
        if self.credit < u32::MAX {
            self.credit = self.credit.saturating_sub(to - from);
        }
        let length = self.end - 1;
        Due { from, to: to.min(length), fin: to > length, repair, again }
    }
}
