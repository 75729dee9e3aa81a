//! What is sent of a large answer, and when: TCP with NewReno's window (RFC 5681, RFC 6582), byte counting (RFC 3465), the
//! pipe of RFC 6675 and a tail loss probe (RFC 8985 section 7).
//!
//! It is soft: a replica that meets an acknowledgement of a connection that it does not know makes one from that alone
//! ([`Sender::resume`]), and whatever it gets wrong costs time, never an octet.

use crate::codec::Class;
use crate::flight::Cut;
use crate::large::board::Board;
use crate::large::stamp::{CELL, CELLS, MAX_LARGE};

/// Microseconds.
pub(crate) type Time = u64;

const MILLISECOND: Time = 1000;
/// Segments of an initial window (RFC 6928), and of one after silence.
const INITIAL: u32 = 10;
/// As many segments beyond a hole say that it is lost (RFC 6675).
const REORDERED: u32 = 3;
/// The round trip before one was measured.
const UNKNOWN: Time = 100 * MILLISECOND;
/// Least pause before a probe, and between timeouts; a delayed acknowledgement is 40 ms.
const LEAST_PROBE: Time = 10 * MILLISECOND;
const DELAYED: Time = 45 * MILLISECOND;
const LEAST_TIMEOUT: Time = 200 * MILLISECOND;
/// Longest pause between the first timeouts while a client is silent; behind these it doubles.
const LONGEST: Time = 2_000 * MILLISECOND;
const FIRST: u32 = 9;
/// Longest pause between probes of a window that is closed.
const LONGEST_CLOSED: Time = 30_000 * MILLISECOND;

/// A segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) fin: bool,
    /// Sent to repair a loss, or while one is repaired.
    pub(crate) repair: bool,
    /// Sent before.
    pub(crate) again: bool,
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard<'a> {
    /// Octets of the answer that the client has in order; FIN is one.
    pub(crate) at: u32,
    /// What it has beyond.
    pub(crate) beyond: &'a [(u32, u32)],
    /// It tells of octets that came twice (RFC 2883).
    pub(crate) twice: bool,
    /// What it had last in order was a repair.
    pub(crate) repair: bool,
    /// Octets of its window.
    pub(crate) window: u32,
    /// The window that the timestamp tells.
    pub(crate) told: u32,
    /// It repeats its request: nothing came for long.
    pub(crate) nudge: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Sender {
    class: Class,
    /// Octets of the answer, FIN as one more.
    end: u32,
    una: u32,
    /// Behind the last octet that was ever sent.
    nxt: u32,
    /// Behind the last octet that the client takes.
    edge: u32,
    cwnd: u32,
    ssthresh: u32,
    /// Octets acknowledged for which the window did not grow yet.
    counted: u32,
    board: Board,
    /// A loss is repaired until everything below it is acknowledged.
    recover: Option<u32>,
    /// What the client has not below it is lost.
    lost: u32,
    /// What was lost below it was sent again.
    again: u32,
    /// `nxt` at the last repair: what the client has of behind it came after all of them.
    sent_then: u32,
    /// No cell up to that of this octet has steady values.
    repaired: u32,
    /// What is below was sent before the last probe.
    probed: Option<u32>,
    /// The window, and nothing else, kept something back.
    limited: bool,
    /// An octet, and when it was sent: the round trip is known when it is acknowledged.
    timed: Option<(u32, Time)>,
    srtt: Time,
    rttvar: Time,
    pub(crate) deadline: Option<Time>,
    backoff: u32,
    /// A segment to be sent whatever the window says.
    urgent: bool,
}

impl Sender {
    fn new(class: Class, length: u32, cwnd: u32) -> Sender {
        Sender {
            class,
            end: length + 1,
            una: 0,
            nxt: 0,
            edge: 0,
            cwnd,
            ssthresh: MAX_LARGE,
            counted: 0,
            board: Board::default(),
            recover: None,
            lost: 0,
            again: 0,
            sent_then: 0,
            repaired: 0,
            probed: None,
            limited: false,
            timed: None,
            srtt: 0,
            rttvar: 0,
            deadline: None,
            backoff: 0,
            urgent: false,
        }
    }

    /// Of an answer that begins.
    pub(crate) fn begin(class: Class, length: u32, window: u32) -> Sender {
        Sender { edge: window, ..Sender::new(class, length, INITIAL * class.segment()) }
    }

    /// Of one that others began, from what its client says.
    pub(crate) fn resume(class: Class, length: u32, heard: &Heard<'_>, now: Time) -> Sender {
        let full = class.segment();
        let mut sender = Sender::new(class, length, heard.told.max(2 * full));
        (sender.una, sender.edge) = (heard.at, heard.at.saturating_add(heard.window));
        sender.ssthresh = sender.cwnd;
        // Where values of both kinds may be, the higher one is taken.
        sender.repaired = heard.at.max(1);
        for &(from, to) in heard.beyond {
            sender.board.add(from, to);
        }
        let top = sender.board.top().max(heard.at);
        if heard.twice || heard.nudge {
            // The answer to a probe: nothing is under way any more.
            sender.nxt = top;
            sender.restart(top);
        } else {
            // In the middle: as much is under way as the window allowed, or a little less: what is sent twice costs less
            // than what is taken for sent.
            let under_way = (sender.cwnd - sender.cwnd / 8).min(heard.window);
            sender.nxt = sender.whole_segments(heard.at, heard.at.saturating_add(under_way)).max(top);
            if heard.repair {
                sender.recover = Some(sender.nxt);
            }
            sender.find_losses();
        }
        // What is under way may be more than that, and its values are others.
        sender.repaired = sender.repaired.max(sender.nxt + sender.ssthresh.min(CELL * CELLS) / 2);
        sender.arm(now);
        sender
    }

    pub(crate) fn full(&self) -> u32 {
        self.class.segment()
    }

    /// All is acknowledged.
    pub(crate) fn is_done(&self) -> bool {
        self.una >= self.end
    }

    /// Nothing is under way, since the client takes nothing.
    pub(crate) fn is_closed(&self) -> bool {
        self.nxt == self.una
    }

    pub(crate) fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// Octets that the client has in order.
    pub(crate) fn una(&self) -> u32 {
        self.una
    }

    /// Octets that are taken to be under way.
    fn pipe(&self) -> u32 {
        let again = self.again.max(self.una);
        let lost = self.board.missing(again, self.lost.min(self.nxt).max(again));
        self.board.missing(self.una, self.nxt).saturating_sub(lost)
    }

    /// Takes an acknowledgement.
    pub(crate) fn hear(&mut self, heard: &Heard<'_>, now: Time) {
        let at = heard.at;
        if at > self.end {
            return;
        }
        if at > self.nxt {
            // Others sent meanwhile: what is known here, but for the round trip, is of before.
            let (srtt, rttvar) = (self.srtt, self.rttvar);
            *self = Sender { srtt, rttvar, ..Sender::resume(self.class, self.end - 1, heard, now) };
            return;
        }
        let edge = at.saturating_add(heard.window);
        if at >= self.una {
            self.edge = if at > self.una { edge } else { self.edge.max(edge) };
        }
        let acked = at.saturating_sub(self.una);
        self.nxt = self.nxt.max(at);
        let top = self.board.top();
        if acked > 0 {
            self.measure(at, now);
            self.una = at;
            self.board.trim(at);
        }
        for &(from, to) in heard.beyond.iter().filter(|range| range.1 <= self.end && range.0 > self.una) {
            self.board.add(from, to);
            self.nxt = self.nxt.max(to);
        }
        let news = acked > 0 || self.board.top() > top;
        self.answered(heard, acked > 0);
        if self.recover.is_some_and(|recover| self.una >= recover) {
            self.recover = None;
            self.cwnd = self.cwnd.min(self.ssthresh.max(self.pipe() + self.full()));
        }
        if acked > 0 && self.recover.is_none() {
            self.grow(acked);
        }
        self.find_losses();
        if heard.nudge && !news && self.pipe() == 0 {
            self.restart(self.nxt);
        }
        if news || heard.nudge {
            self.backoff = 0;
            self.arm(now);
        }
    }

    /// A probe that is answered tells what of all that went before it is lost.
    fn answered(&mut self, heard: &Heard<'_>, advanced: bool) {
        let Some(before) = self.probed else { return };
        if !(heard.repair || heard.twice) {
            return;
        }
        self.probed = None;
        if self.una < before && (advanced || heard.twice) {
            self.lost = self.lost.max(before);
            self.again = self.una;
            self.enter();
        }
    }

    /// Begins to repair, the window halved (RFC 6675 section 5).
    fn enter(&mut self) {
        if self.recover.is_some() {
            return;
        }
        let flight = self.nxt - self.una;
        self.ssthresh = (flight.min(self.cwnd) / 2).max(2 * self.full());
        self.cwnd = self.ssthresh;
        self.recover = Some(self.nxt);
        self.counted = 0;
        self.timed = None;
        // The first repair waits for nothing.
        self.urgent = true;
    }

    fn find_losses(&mut self) {
        let enough = REORDERED * self.full() - self.full() / 2;
        let lost = self.board.lost_below(enough);
        if lost > self.lost && lost > self.una {
            let news = self.board.missing(self.una.max(self.lost), lost) > 0;
            self.lost = lost;
            if news && self.recover.is_none() {
                self.again = self.una;
                self.sent_then = self.nxt;
                self.enter();
            }
        }
        // What was sent after a repair has come, the repair has not.
        if self.recover.is_some() && self.again > self.una && self.lost > self.una {
            let hole = self.board.hole(self.una);
            if hole < self.again
                && self.board.missing(self.sent_then, self.nxt) + enough
                    <= self.nxt.saturating_sub(self.sent_then)
            {
                self.again = self.una;
                self.sent_then = self.nxt;
                self.ssthresh = (self.ssthresh / 2).max(2 * self.full());
                self.cwnd = self.ssthresh;
                self.urgent = true;
            }
        }
    }

    /// Everything up to `to` that is not there is lost, and nothing under way: from a small window on.
    fn restart(&mut self, to: u32) {
        self.lost = to;
        self.again = self.una;
        self.sent_then = self.nxt;
        self.timed = None;
        self.recover = (to > self.una).then_some(self.nxt);
        self.ssthresh = self.ssthresh.min(self.cwnd).max(2 * self.full());
        self.cwnd = self.cwnd.min(INITIAL * self.full());
        self.urgent = true;
    }

    fn grow(&mut self, acked: u32) {
        if !self.limited {
            return;
        }
        let full = self.full();
        if self.cwnd < self.ssthresh {
            self.cwnd = (self.cwnd + acked.min(2 * full)).min(self.ssthresh.max(self.cwnd));
        } else {
            self.counted += acked;
            if self.counted >= self.cwnd {
                self.counted -= self.cwnd;
                self.cwnd += full;
            }
        }
        self.cwnd = self.cwnd.min(CELL * CELLS);
    }

    fn measure(&mut self, at: u32, now: Time) {
        let Some((octet, then)) = self.timed else { return };
        if at < octet {
            return;
        }
        self.timed = None;
        let sample = now.saturating_sub(then).max(1);
        // RFC 6298.
        if self.srtt == 0 {
            (self.srtt, self.rttvar) = (sample, sample / 2);
        } else {
            self.rttvar = (3 * self.rttvar + self.srtt.abs_diff(sample)) / 4;
            self.srtt = (7 * self.srtt + sample) / 8;
        }
    }

    fn timeout(&self) -> Time {
        if self.srtt == 0 { LEAST_TIMEOUT } else { (self.srtt + 4 * self.rttvar).max(LEAST_TIMEOUT) }
    }

    /// Sets when something is done if nothing is heard.
    fn arm(&mut self, now: Time) {
        let pause = if self.is_done() {
            self.deadline = None;
            return;
        } else if self.nxt > self.una && self.backoff == 0 {
            let alone = if self.nxt - self.una <= self.full() { DELAYED } else { 0 };
            let round = if self.srtt == 0 { UNKNOWN } else { self.srtt };
            (2 * round + alone).clamp(LEAST_PROBE, self.timeout().max(LEAST_PROBE))
        } else if self.nxt > self.una {
            let longer = self.backoff.saturating_sub(FIRST).min(10);
            (self.timeout() << (self.backoff - 1).min(6)).min(LONGEST) << longer
        } else {
            (self.timeout() << self.backoff.min(8)).min(LONGEST_CLOSED)
        };
        self.deadline = Some(now + pause);
    }

    /// The deadline has come. How often it has on end.
    pub(crate) fn late(&mut self, now: Time) -> u32 {
        self.backoff += 1;
        self.timed = None;
        if self.nxt > self.una && self.backoff > 1 {
            // RFC 5681 section 3.1, once for all timeouts on end.
            if self.backoff == 2 && self.recover.is_none_or(|recover| recover < self.nxt) {
                self.ssthresh = (self.cwnd.min(self.nxt - self.una) / 2).max(2 * self.full());
            }
            self.cwnd = self.full();
            self.lost = self.nxt;
            self.recover = Some(self.nxt);
            self.again = self.una;
            self.sent_then = self.nxt;
            // What was told may be taken back (RFC 2018 section 8).
            if self.backoff > 2 {
                self.board.clear();
            }
        }
        self.probed = Some(self.nxt);
        self.urgent = true;
        self.arm(now);
        self.backoff
    }

    /// Where the segment ends that begins at `at`: the last one has FIN.
    fn segment_end(&self, at: u32, room: u32) -> u32 {
        let length = self.end - 1;
        if at >= length {
            return self.end;
        }
        let to = Cut::Full(self.class).end(at, room.min(MAX_LARGE)).unwrap_or(at);
        if to >= length { self.end } else { to }
    }

    /// Where the last of the segments from `at` on ends that is not beyond `to`.
    fn whole_segments(&self, at: u32, to: u32) -> u32 {
        let first = self.segment_end(at, u32::MAX);
        if to >= self.end {
            self.end
        } else if to < first {
            at
        } else {
            first + (to - first) / self.full() * self.full()
        }
    }

    /// What is sent now, if anything; `path`: octets of data that a segment on the path may have.
    pub(crate) fn next(&mut self, path: u32, now: Time) -> Option<Due> {
        if self.is_done() {
            return None;
        }
        let urgent = core::mem::take(&mut self.urgent);
        self.limited = false;
        let pipe = self.pipe();
        // What is lost, then what is new.
        let hole = self.board.hole(self.again.max(self.una));
        if hole < self.lost.min(self.nxt) {
            let next = self.board.next(hole).unwrap_or(u32::MAX);
            let to = self.segment_end(hole, path).min(next).min(self.nxt);
            if pipe + (to - hole) > self.cwnd && !urgent {
                self.limited = true;
                return None;
            }
            // At each repair: new data between two of them comes before the later one does.
            self.sent_then = self.nxt;
            self.again = to;
            return Some(self.send(hole, to, true, true, now));
        }
        let to = self.segment_end(self.nxt, path);
        let within = to <= self.edge || self.edge + 1 == to && to == self.end;
        let far = to - self.una > CELL * (CELLS - 1);
        if self.nxt < self.end && to > self.nxt && within && !far {
            if pipe + (to - self.nxt) <= self.cwnd {
                let from = self.nxt;
                self.nxt = to;
                if self.timed.is_none() && self.recover.is_none() {
                    self.timed = Some((to, now));
                }
                return Some(self.send(from, to, self.recover.is_some(), false, now));
            }
            self.limited = true;
        }
        if urgent {
            // The first segment that is not acknowledged; where there is none, the one before it, which the client has: it answers with
            // all that it knows.
            let from = if self.nxt > self.una { self.una } else { self.una.saturating_sub(8) };
            let next = self.board.next(from).unwrap_or(u32::MAX);
            let to = if self.nxt > self.una {
                self.segment_end(from, path).min(self.nxt).min(next)
            } else {
                self.una
            };
            if to > from {
                return Some(self.send(from, to, true, true, now));
            }
        }
        None
    }

    fn send(&mut self, from: u32, to: u32, repair: bool, again: bool, now: Time) -> Due {
        let repair = repair || from / CELL <= self.repaired / CELL && self.repaired > 0;
        if repair {
            self.repaired = self.repaired.max(from).max(1);
        }
        if self.deadline.is_none() {
            self.arm(now);
        }
        let length = self.end - 1;
        Due { from, to: to.min(length), fin: to > length, repair, again }
    }
}
