//! The state of a connection's sender, and what acknowledgements and time make of it: TCP with the
//! window of [`Window`], the pipe of RFC 6675, loss detection by three later segments or by time,
//! and probes (RFC 8985).
//!
//! It is soft state: a replica derives one from a single acknowledgement of an unknown connection
//! ([`Sender::resume`]). Wrong estimates cost time, never a byte.

mod transmit;
mod trust;

use crate::codec::Class;
use crate::large::acknowledgement::{Acknowledgement, PROOF_CELLS};
use crate::large::board::Board;
use crate::large::clock::{Clock, Time};
use crate::large::stamp::{CELL, CELLS};
use crate::large::window::Window;

/// Later segments that show a loss (RFC 6675), unless segments are known to overtake each other.
const REORDERED: u32 = 3;
/// Maximum window that is adopted from a timestamp, segments.
const MAX_TOLD_SEGMENTS: u32 = 1024;

/// A probe in flight: a segment sent to make the client acknowledge.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// End of the data that was sent before the probe.
    before: u32,
    from: u32,
    /// Acknowledgement by a client that received the probe and no other data.
    reach: u32,
    /// Time after which, without another segment, nothing counts as in flight.
    over: Option<Time>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sender {
    class: Class,
    /// Length of the answer, plus one for the FIN.
    end: u32,
    una: u32,
    /// End of the data that was sent at least once.
    nxt: u32,
    /// End of the client's window, as an offset in the answer.
    edge: u32,
    window: Window,
    board: Board,
    /// During recovery: the offset that the client must acknowledge to end it.
    recover: Option<u32>,
    /// Whether the window grows during recovery, because it was restarted.
    anew: bool,
    /// Data below this offset that the client has not reported counts as lost.
    lost: u32,
    /// Losses below this offset were retransmitted.
    again: u32,
    /// `nxt` at the last repair: data above it was sent after all repairs.
    sent_then: u32,
    /// The highest offset that the client had reported at the last check, and the time from which
    /// unreported data below it counts as lost.
    suspect: Option<(u32, Time)>,
    /// How long segments may overtake each other, in quarters of a round trip; 0: reordering has
    /// not been seen.
    overtakes: u32,
    /// The cells up to this byte have timestamps of the repair kind.
    repaired: u32,
    probe: Option<Probe>,
    /// Whether the window alone limited the last transmission.
    limited: bool,
    clock: Clock,
    /// Time of the next probe or timeout.
    deadline: Option<Time>,
    backoff: u32,
    /// Whether one segment must be sent regardless of the window.
    urgent: bool,
    /// Bytes of new data that are sent without waiting for more room.
    piece: u32,
    /// Bytes that may be sent before an acknowledgement shows that a client gets them; `u32::MAX` once one has.
    credit: u32,
    /// This sender has sent all new data from this offset on.
    own: u32,
    /// The lowest end of the segments with unacknowledged data that this sender sent; `u32::MAX`
    /// before the first.
    first_end: u32,
    /// Whether data that this sender sent was acknowledged, also before it was made anew from a
    /// later acknowledgement.
    confirmed: bool,
    /// The offset at which a client stands that was probed after the credit was spent.
    question: Option<u32>,
    /// The allowance was credited for this sender's data below this offset.
    earned: u32,
    /// Acknowledged bytes for which the allowance is credited once enough cells had right checks.
    unpaid: u32,
    /// Cell of the timestamp from which this sender was made.
    began: u32,
    /// Number of cells since then with a right check, up to [`PROOF_CELLS`], and the last such
    /// cell.
    proof: u8,
    proven: u32,
    /// A wrong check arrived, and fewer than [`PROOF_CELLS`] right ones since.
    doubted: bool,
    /// Whether an acknowledgement near its timestamp's cell has arrived. Until then only probes are
    /// sent.
    placed: bool,
}

impl Sender {
    fn new(class: Class, length: u32, window: Window) -> Sender {
        Sender {
            class,
            end: length + 1,
            una: 0,
            nxt: 0,
            edge: 0,
            window,
            board: Board::default(),
            recover: None,
            anew: false,
            lost: 0,
            again: 0,
            sent_then: 0,
            suspect: None,
            overtakes: 0,
            repaired: 0,
            probe: None,
            limited: false,
            clock: Clock::default(),
            deadline: None,
            backoff: 0,
            urgent: false,
            piece: 0,
            credit: u32::MAX,
            own: 0,
            first_end: u32::MAX,
            confirmed: true,
            question: None,
            earned: 0,
            unpaid: 0,
            began: 0,
            proof: PROOF_CELLS,
            proven: 0,
            doubted: false,
            placed: true,
        }
    }

    /// A sender at the beginning of an answer.
    pub(crate) fn begin(class: Class, length: u32, window: u32) -> Sender {
        Sender { edge: window, ..Sender::new(class, length, Window::initial(class.segment())) }
    }

    /// A sender for an answer that other replicas began, made from an acknowledgement.
    pub(crate) fn resume(class: Class, length: u32, heard: &Acknowledgement<'_>, now: Time) -> Sender {
        let told = heard.told.min(MAX_TOLD_SEGMENTS * class.segment());
        let mut sender = Sender::new(class, length, Window::from_stamp(class.segment(), told));
        (sender.una, sender.edge) = (heard.at, heard.at.saturating_add(heard.window));
        // Where timestamps of both kinds may have been used, the higher kind is taken.
        sender.repaired = heard.at.max(1);
        for &(from, to) in heard.beyond {
            sender.board.add(from, to);
        }
        let top = sender.board.top().max(heard.at);
        if heard.twice.is_some() || heard.nudge {
            // The acknowledgement answers a probe, so nothing is in flight any more.
            sender.nxt = top;
            sender.restart(top);
        } else {
            // In the middle of an answer a window, or slightly less, is assumed to be in flight:
            // data sent twice costs less than data wrongly assumed sent.
            let cwnd = sender.cwnd();
            let under_way = (cwnd - cwnd / 8).min(heard.window);
            sender.nxt = sender.whole_segments(heard.at, heard.at.saturating_add(under_way)).max(top);
            if heard.repair {
                sender.recover = Some(sender.nxt);
            }
            sender.find_losses(now);
        }
        // More may be in flight, with other values.
        sender.repaired = sender.repaired.max(sender.nxt + sender.window.threshold().min(CELL * CELLS) / 2);
        (sender.own, sender.earned, sender.began) = (sender.nxt, sender.nxt, heard.cell);
        (sender.proof, sender.proven) = (0, heard.cell);
        (sender.placed, sender.confirmed) = (heard.near, false);
        sender.credit = heard.first_credit() * sender.full();
        sender.arm(now);
        if !heard.near {
            // After a repair the acknowledgement is far from the cell of its timestamp, and nothing
            // else shows whether it comes from a client. The answer to a probe echoes the probe's
            // own timestamp.
            sender.send_probe();
        }
        sender
    }

    pub(crate) fn full(&self) -> u32 {
        self.class.segment()
    }

    /// Whether everything is acknowledged.
    pub(crate) fn is_done(&self) -> bool {
        self.una >= self.end
    }

    /// Whether nothing is in flight because the client's window is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.nxt == self.una
    }

    /// Whether the client was probed and its answer did not arrive here.
    pub(crate) fn is_silent(&self) -> bool {
        self.backoff > 0
    }

    pub(crate) fn cwnd(&self) -> u32 {
        self.window.octets()
    }

    /// Bytes that the client has without a hole.
    pub(crate) fn una(&self) -> u32 {
        self.una
    }

    /// Whether, as far as known, only this sender can have sent the data up to `at`.
    pub(crate) fn has_sent(&self, at: u32) -> bool {
        at <= self.nxt
    }

    /// Bytes that are assumed to be in flight.
    fn pipe(&self) -> u32 {
        let again = self.again.max(self.una);
        let lost = self.board.missing(again, self.lost.min(self.nxt).max(again));
        self.board.missing(self.una, self.nxt).saturating_sub(lost)
    }

    /// Takes in an acknowledgement. Returns the newly acknowledged bytes that were sent here, by
    /// timestamps that fit them: a client that acknowledges data that it did not get has to guess
    /// one for each cell.
    pub(crate) fn hear(&mut self, heard: &Acknowledgement<'_>, now: Time) -> u32 {
        let at = heard.at;
        if at > self.end {
            return 0;
        }
        if !self.has_sent(at) {
            // Other replicas have sent meanwhile, so the state is outdated, except for that of the
            // path.
            let (clock, overtakes) = (self.clock.clone(), self.overtakes);
            let (confirmed, doubted) = (self.confirmed, self.doubted);
            let resumed = Sender::resume(self.class, self.end - 1, heard, now);
            *self = Sender { clock, overtakes, confirmed, doubted, ..resumed };
            self.clock.forget();
            return 0;
        }
        let edge = at.saturating_add(heard.window);
        if at >= self.una {
            self.edge = if at > self.una { edge } else { self.edge.max(edge) };
        }
        let acked = at.saturating_sub(self.una);
        let earned = if heard.near { at.saturating_sub(self.earned) } else { 0 };
        self.earned += earned;
        self.unpaid += earned;
        // Acknowledged bytes that no SACK block covered before: after a repair the client
        // acknowledges a whole window at once.
        let delivered = self.board.missing(self.una, at.max(self.una));
        self.nxt = self.nxt.max(at);
        let top = self.board.top();
        if acked > 0 {
            self.clock.acknowledged(at, now);
            self.una = at;
            self.board.trim(at);
        }
        for &(from, to) in heard.beyond.iter().filter(|range| range.1 <= self.end && range.0 > self.una) {
            self.board.add(from, to);
            if to > self.nxt {
                // Another replica sent this data, so this sender counts as having sent nothing
                // below it.
                (self.nxt, self.own, self.earned) = (to, self.own.max(to), self.earned.max(to));
            }
        }
        let news = acked > 0 || self.board.top() > top;
        self.trust(heard, acked, news);
        if heard.twice.is_some_and(|(from, to)| self.window.came_twice(to - from)) {
            // The retransmitted data was only overtaken, not lost.
            self.overtakes = (self.overtakes + 1).min(4);
            (self.recover, self.anew, self.suspect) = (None, false, None);
            (self.lost, self.again) = (self.una, self.una);
        }
        self.answered(heard, acked > 0, now);
        if self.recover.is_some_and(|recover| self.una >= recover) {
            (self.recover, self.anew) = (None, false);
            self.window.mended(self.pipe());
            // Data sent during the recovery belongs to another window, and its losses to another
            // loss event.
            if self.board.missing(self.una, self.lost) > 0 {
                self.enter();
            }
        }
        if delivered > 0 && self.limited && (self.recover.is_none() || self.anew) {
            self.window.grow(delivered);
        }
        self.find_losses(now);
        if heard.nudge && !news && self.pipe() == 0 {
            self.restart(self.nxt);
        }
        if news || heard.nudge {
            self.backoff = 0;
            self.arm(now);
        }
        if self.credit == u32::MAX { core::mem::take(&mut self.unpaid) } else { 0 }
    }

    /// An answered probe shows which earlier data is lost. A duplicate SACK is an answer. An
    /// acknowledgement that the probe alone can explain may be one, if nothing follows. A higher
    /// one comes from late data, as after a pause of the machine.
    fn answered(&mut self, heard: &Acknowledgement<'_>, advanced: bool, now: Time) {
        let Some(probe) = self.probe else { return };
        let is_twice = heard.twice.is_some_and(|(from, to)| from <= probe.from && probe.from < to);
        if is_twice {
            self.over(probe);
        } else if advanced {
            let over = Some(now + self.clock.reordering(4));
            self.probe = (heard.repair && self.una == probe.reach && probe.over.is_none())
                .then_some(Probe { over, ..probe });
        }
    }

    /// Handles the end of a probe: nothing that was sent before it is in flight any more.
    fn over(&mut self, probe: Probe) {
        self.probe = None;
        if self.una < probe.before {
            self.lost = self.lost.max(probe.before);
            self.again = self.una;
            self.enter();
            self.urgent = true;
        }
    }

    /// Enters recovery: the window is halved (RFC 6675 section 5).
    fn enter(&mut self) {
        if self.recover.is_some() {
            return;
        }
        self.window.halve(self.nxt - self.una);
        self.recover = Some(self.nxt);
        self.clock.forget();
    }

    /// Detects losses by later data: three segments, or any while losses are repaired; where
    /// segments overtake each other, only by a fraction of a round trip.
    fn find_losses(&mut self, now: Time) {
        let full = self.full();
        let enough = if self.recover.is_some() { 1 } else { REORDERED * full - full / 2 };
        let mut lost = if self.overtakes > 0 { 0 } else { self.board.lost_below(enough) };
        let due = self.suspect.take_if(|(_, at)| *at <= now).map_or(0, |(top, _)| top);
        lost = lost.max(due);
        if lost > self.lost && lost > self.una {
            let news = self.board.missing(self.una.max(self.lost), lost) > 0;
            self.lost = lost;
            if news && self.recover.is_none() {
                self.again = self.una;
                self.sent_then = self.nxt;
                self.enter();
                // The first repair is sent regardless of the window.
                self.urgent = true;
            }
        }
        // Data sent after a repair has arrived, and the repair has not. The window was already
        // halved for that loss.
        let again = self.again.min(self.lost);
        if self.recover.is_some() && self.board.hole(self.una) < again {
            let came = self.board.top() > self.sent_then;
            if came && (self.overtakes == 0 || due > self.sent_then) {
                self.again = self.una;
                self.sent_then = self.nxt;
                self.urgent = true;
            }
        }
        let top = self.board.top();
        let open = top > self.una.max(self.lost) || self.board.hole(self.una) < again && top > self.sent_then;
        if self.suspect.is_none() && open {
            self.suspect = Some((top, now + self.clock.reordering(self.overtakes)));
        }
    }

    /// Counts all unreported data up to `to` as lost and nothing as in flight; restarts with a small window.
    fn restart(&mut self, to: u32) {
        self.lost = to;
        self.again = self.una;
        self.sent_then = self.nxt;
        self.clock.forget();
        (self.recover, self.anew) = ((to > self.una).then_some(self.nxt), true);
        self.window.restart();
        self.urgent = true;
    }

    /// Sets the deadline for the case that no further segment arrives.
    fn arm(&mut self, now: Time) {
        let pause = if self.is_done() {
            self.deadline = None;
            return;
        } else if self.is_closed() || self.backoff > 0 {
            self.clock.pause(self.backoff, self.is_closed())
        } else {
            self.clock.probe(self.una == 0, self.nxt - self.una <= self.full())
        };
        self.deadline = Some(now + pause);
    }

    /// Time at which the sender must act even if no segment arrives.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let sooner = [self.suspect.map(|(_, at)| at), self.probe.and_then(|probe| probe.over)];
        Some(sooner.into_iter().flatten().fold(self.deadline?, Time::min))
    }

    /// Moves the next probe of a client that did not answer to `at`, without counting it. Returns
    /// the new deadline if it changed.
    pub(crate) fn ask_again(&mut self, at: Time) -> Option<Time> {
        if !self.is_silent() || self.deadline.is_none_or(|deadline| deadline <= at) {
            return None;
        }
        self.backoff -= 1;
        self.deadline = Some(at);
        self.deadline()
    }

    /// Handles the deadline. Returns the number of consecutive unanswered probes, if any.
    pub(crate) fn late(&mut self, now: Time) -> Option<u32> {
        if let Some(probe) = self.probe.filter(|probe| probe.over.is_some_and(|at| at <= now)) {
            self.over(probe);
            return None;
        }
        if self.suspect.is_some_and(|(_, at)| at <= now) {
            self.find_losses(now);
            return None;
        }
        self.backoff += 1;
        self.clock.forget();
        self.suspect = None;
        if self.nxt > self.una && self.backoff > 1 {
            let first = self.backoff == 2 && self.recover.is_none_or(|recover| recover < self.nxt);
            self.window.time_out(self.nxt - self.una, first);
            self.lost = self.nxt;
            (self.recover, self.anew) = (Some(self.nxt), true);
            self.again = self.una;
            self.sent_then = self.nxt;
            // SACKed data may be discarded by the client (RFC 2018 section 8).
            if self.backoff > 2 {
                self.board.clear();
            }
        }
        self.send_probe();
        self.arm(now);
        Some(self.backoff)
    }

    /// Makes the next segment a probe, which the client has to answer.
    fn send_probe(&mut self) {
        let (from, to) = if self.is_spent() { self.question() } else { self.probing(u32::MAX) };
        self.question = self.is_spent().then_some(self.una);
        self.probe = Some(Probe { before: self.nxt, from, reach: self.board.hole(to), over: None });
        self.urgent = true;
    }
}

#[cfg(test)]
mod tests;
