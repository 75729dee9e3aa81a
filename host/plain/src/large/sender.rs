//! What is sent of a large answer, and when: TCP with the window of [`Window`], the pipe of RFC 6675, losses by what came of three segments
//! behind or some time before, and probes (RFC 8985).
//!
//! It is soft: a replica that meets an acknowledgement of a connection that it does not know makes one from that alone
//! ([`Sender::resume`]), and whatever it gets wrong costs time, never an octet.

use crate::codec::Class;
use crate::flight::Cut;
use crate::large::board::Board;
use crate::large::clock::{Clock, Time};
use crate::large::stamp::{CELL, CELLS, MAX_LARGE};
use crate::large::window::Window;

/// As many segments beyond a hole say that it is lost (RFC 6675), unless segments are known to overtake each other.
const REORDERED: u32 = 3;
/// Segments that a sender made of one acknowledgement sends before another acknowledgement shows a client behind it. Each one that shows
/// news and is where its own timestamp says brings as many more: a client acknowledges two segments at a time, and a blind forger
/// guesses each one (`a_forged_one_draws_less_than_it_costs`).
const UNPROVEN_SEGMENTS: u32 = 10;
/// Bytes that one acknowledgement covers at most: receivers gather as much before they acknowledge it. Twice that much may be sent for it,
/// as slow start does.
const MAX_STRETCH_BYTES: u32 = CELL;
/// The same for an acknowledgement that is not where full segments end: a forger hits such a position once in sixteen.
const UNPROVEN_NARROW_SEGMENTS: u32 = 2;
/// Segments of the largest window that is taken over from a timestamp.
const MAX_TOLD_SEGMENTS: u32 = 1024;

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
    /// What came twice (RFC 2883).
    pub(crate) twice: Option<(u32, u32)>,
    /// What it had last in order was a repair.
    pub(crate) repair: bool,
    /// Octets of its window.
    pub(crate) window: u32,
    /// The window that the timestamp tells.
    pub(crate) told: u32,
    /// It repeats its request: nothing came for long.
    pub(crate) nudge: bool,
    /// Of the timestamp: its cell, whether that is next to `at`, and whether `at` is where full segments end ([`Placed`]).
    ///
    /// [`Placed`]: crate::large::stamp::Placed
    pub(crate) cell: u32,
    pub(crate) near: bool,
    pub(crate) full: bool,
}

impl<'a> Heard<'a> {
    /// Of a client that lacks the answer's beginning.
    pub(crate) fn first(beyond: &'a [(u32, u32)], window: u32) -> Heard<'a> {
        let (twice, repair, nudge, near, full) = (None, false, false, false, false);
        Heard { at: 0, beyond, twice, repair, window, told: 0, nudge, cell: 0, near, full }
    }
}

/// A segment that was sent to have the client say where it is.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// What is below was sent before.
    before: u32,
    from: u32,
    /// What the client acknowledges if the probe, and no more, has come.
    reach: u32,
    /// If nothing more has come until then, nothing is under way.
    over: Option<Time>,
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
    window: Window,
    board: Board,
    /// A loss is repaired until everything below it is acknowledged.
    recover: Option<u32>,
    /// Meanwhile the window grows: it began anew.
    anew: bool,
    /// What the client has not below it is lost.
    lost: u32,
    /// What was lost below it was sent again.
    again: u32,
    /// `nxt` at the last repair: what the client has of behind it came after all of them.
    sent_then: u32,
    /// So far the client has told of something when it was looked at last, and when what it has not below that is lost.
    suspect: Option<(u32, Time)>,
    /// How long what overtakes is waited for, in quarters of a round trip; 0: it is not known to happen.
    overtakes: u32,
    /// No cell up to that of this octet has steady values.
    repaired: u32,
    probe: Option<Probe>,
    /// The window, and nothing else, kept something back.
    limited: bool,
    clock: Clock,
    /// When silence is asked about.
    deadline: Option<Time>,
    backoff: u32,
    /// A segment to be sent whatever the window says.
    urgent: bool,
    /// Octets of new data that are still sent without waiting for more room.
    piece: u32,
    /// Bytes that may be sent before an acknowledgement shows that a client gets them; `u32::MAX` once one has.
    credit: u32,
    /// New bytes from this position on were sent by this sender.
    own: u32,
    /// The allowance was credited for what this sender sent below this position.
    earned: u32,
    /// The cell of the timestamp that this sender was made of.
    began: u32,
    /// An acknowledgement came that is next to the cell of its timestamp. Until then only probes are sent.
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
            earned: 0,
            began: 0,
            placed: true,
        }
    }

    /// Of an answer that begins.
    pub(crate) fn begin(class: Class, length: u32, window: u32) -> Sender {
        Sender { edge: window, ..Sender::new(class, length, Window::initial(class.segment())) }
    }

    /// Of one that others began, from what its client says.
    pub(crate) fn resume(class: Class, length: u32, heard: &Heard<'_>, now: Time) -> Sender {
        let told = heard.told.min(MAX_TOLD_SEGMENTS * class.segment());
        let mut sender = Sender::new(class, length, Window::told(class.segment(), told));
        (sender.una, sender.edge) = (heard.at, heard.at.saturating_add(heard.window));
        // Where values of both kinds may be, the higher one is taken.
        sender.repaired = heard.at.max(1);
        for &(from, to) in heard.beyond {
            sender.board.add(from, to);
        }
        let top = sender.board.top().max(heard.at);
        if heard.twice.is_some() || heard.nudge {
            // The answer to a probe: nothing is under way any more.
            sender.nxt = top;
            sender.restart(top);
        } else {
            // In the middle: as much is under way as the window allowed, or a little less: what is sent twice costs less
            // than what is taken for sent.
            let cwnd = sender.cwnd();
            let under_way = (cwnd - cwnd / 8).min(heard.window);
            sender.nxt = sender.whole_segments(heard.at, heard.at.saturating_add(under_way)).max(top);
            if heard.repair {
                sender.recover = Some(sender.nxt);
            }
            sender.find_losses(now);
        }
        // What is under way may be more than that, and its values are others.
        sender.repaired = sender.repaired.max(sender.nxt + sender.window.threshold().min(CELL * CELLS) / 2);
        (sender.own, sender.earned, sender.began) = (sender.nxt, sender.nxt, heard.cell);
        sender.placed = heard.near;
        sender.credit = match (heard.near, heard.full) {
            (true, true) => UNPROVEN_SEGMENTS,
            (true, false) => UNPROVEN_NARROW_SEGMENTS,
            (false, _) => 0,
        } * sender.full();
        sender.arm(now);
        if !heard.near {
            // Behind a repair an acknowledgement is far from its timestamp's cell, and nothing else shows whether it is a client's. The
            // answer to a probe echoes the probe's own timestamp.
            sender.send_probe();
        }
        sender
    }

    /// Raises the credit by what an acknowledgement shows that is next to the cell of its timestamp and brings news: a part of a window where
    /// full segments end, all behind what this sender sent, in another cell than the first. `acked`: bytes that it acknowledges anew.
    fn trust(&mut self, heard: &Heard<'_>, acked: u32, news: bool) {
        if !heard.near || self.credit == u32::MAX {
            return;
        }
        let full = self.full();
        let first = !core::mem::replace(&mut self.placed, true);
        if heard.at > self.own && heard.cell > self.began {
            self.credit = u32::MAX;
        } else if heard.full && (news || first) {
            let more = (UNPROVEN_SEGMENTS * full).max(2 * acked.min(MAX_STRETCH_BYTES));
            self.credit = self.credit.saturating_add(more).min(self.cwnd().max(2 * MAX_STRETCH_BYTES));
        } else {
            self.credit = self.credit.max(UNPROVEN_NARROW_SEGMENTS * full);
        }
    }

    /// The credit is used up: only probes are sent.
    fn is_spent(&self) -> bool {
        self.credit < self.full()
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

    /// The client was asked, and did not answer here.
    pub(crate) fn is_silent(&self) -> bool {
        self.backoff > 0
    }

    pub(crate) fn cwnd(&self) -> u32 {
        self.window.octets()
    }

    /// Octets that the client has in order.
    pub(crate) fn una(&self) -> u32 {
        self.una
    }

    /// Whether nobody else can have sent what brought the client here, as far as is known.
    pub(crate) fn has_sent(&self, at: u32) -> bool {
        at <= self.nxt
    }

    /// Octets that are taken to be under way.
    fn pipe(&self) -> u32 {
        let again = self.again.max(self.una);
        let lost = self.board.missing(again, self.lost.min(self.nxt).max(again));
        self.board.missing(self.una, self.nxt).saturating_sub(lost)
    }

    /// Takes an acknowledgement. Gives how much of what was sent here is acknowledged that was not before: by timestamps that go with it, so
    /// that who acknowledges what he did not get has to guess one for each cell.
    pub(crate) fn hear(&mut self, heard: &Heard<'_>, now: Time) -> u32 {
        let at = heard.at;
        if at > self.end {
            return 0;
        }
        if !self.has_sent(at) {
            // Others sent meanwhile: what is known here, but for the path, is of before.
            let (clock, overtakes) = (self.clock.clone(), self.overtakes);
            *self = Sender { clock, overtakes, ..Sender::resume(self.class, self.end - 1, heard, now) };
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
        // Of what is acknowledged, what the client had not told of before: behind a repair it acknowledges a whole window at once.
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
                // Others sent it, if the client has it: none of it, nor of what is below, is what this sender sent.
                (self.nxt, self.own, self.earned) = (to, self.own.max(to), self.earned.max(to));
            }
        }
        let news = acked > 0 || self.board.top() > top;
        self.trust(heard, acked, news);
        if heard.twice.is_some_and(|(from, to)| self.window.came_twice(to - from)) {
            // What was sent again had been overtaken, no more.
            self.overtakes = (self.overtakes + 1).min(4);
            (self.recover, self.anew, self.suspect) = (None, false, None);
            (self.lost, self.again) = (self.una, self.una);
        }
        self.answered(heard, acked > 0, now);
        if self.recover.is_some_and(|recover| self.una >= recover) {
            (self.recover, self.anew) = (None, false);
            self.window.mended(self.pipe());
            // What was sent meanwhile is another window, and what is lost of it another loss.
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
        earned
    }

    /// A probe that is answered tells what of all that went before it is lost. That it came twice is an answer; that the client is as far as
    /// the probe alone has brought it may be one, if nothing follows. Farther on it is by what was only late: a machine that stood still.
    fn answered(&mut self, heard: &Heard<'_>, advanced: bool, now: Time) {
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

    /// Nothing of what went before the probe is under way.
    fn over(&mut self, probe: Probe) {
        self.probe = None;
        if self.una < probe.before {
            self.lost = self.lost.max(probe.before);
            self.again = self.una;
            self.enter();
            self.urgent = true;
        }
    }

    /// Begins to repair, the window halved (RFC 6675 section 5).
    fn enter(&mut self) {
        if self.recover.is_some() {
            return;
        }
        self.window.halve(self.nxt - self.una);
        self.recover = Some(self.nxt);
        self.clock.forget();
    }

    /// What is lost by what came of behind it: three segments, or any while losses are repaired, or, and alone where segments overtake each
    /// other, a part of a round trip ago.
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
                // The first repair waits for nothing.
                self.urgent = true;
            }
        }
        // What was sent after a repair has come, the repair has not. The window was halved for the loss that it was to mend.
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

    /// Everything up to `to` that is not there is lost, and nothing under way: from a small window on.
    fn restart(&mut self, to: u32) {
        self.lost = to;
        self.again = self.una;
        self.sent_then = self.nxt;
        self.clock.forget();
        (self.recover, self.anew) = ((to > self.una).then_some(self.nxt), true);
        self.window.restart();
        self.urgent = true;
    }

    /// Sets when something is done if nothing is heard.
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

    /// When something is to be done though nothing is heard.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let sooner = [self.suspect.map(|(_, at)| at), self.probe.and_then(|probe| probe.over)];
        Some(sooner.into_iter().flatten().fold(self.deadline?, Time::min))
    }

    /// Who did not answer is asked again at `at` already, and that does not count. When that is, if anything changes.
    pub(crate) fn ask_again(&mut self, at: Time) -> Option<Time> {
        if !self.is_silent() || self.deadline.is_none_or(|deadline| deadline <= at) {
            return None;
        }
        self.backoff -= 1;
        self.deadline = Some(at);
        self.deadline()
    }

    /// The deadline has come. How often on end the client was silent, if it was.
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
            // What was told may be taken back (RFC 2018 section 8).
            if self.backoff > 2 {
                self.board.clear();
            }
        }
        self.send_probe();
        self.arm(now);
        Some(self.backoff)
    }

    /// Has a segment sent next that draws an answer.
    fn send_probe(&mut self) {
        let (from, to) = if self.is_spent() { self.question() } else { self.probing(u32::MAX) };
        self.probe = Some(Probe { before: self.nxt, from, reach: self.board.hole(to), over: None });
        self.urgent = true;
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

    /// The first segment that is not acknowledged; where there is none, the one before it, which the client has: it answers with all that
    /// it knows.
    fn probing(&self, path: u32) -> (u32, u32) {
        if self.nxt == self.una {
            return self.question();
        }
        let next = self.board.next(self.una).unwrap_or(u32::MAX);
        (self.una, self.segment_end(self.una, path).min(self.nxt).min(next))
    }

    /// Octets that the client has: they draw an answer, and nothing more than that.
    fn question(&self) -> (u32, u32) {
        (self.una.saturating_sub(8), self.una)
    }

    /// What is sent now, if anything; `path`: octets of data that a segment on the path may have.
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
        // What is lost, then what is new.
        let hole = self.board.hole(self.again.max(self.una));
        if hole < self.lost.min(self.nxt) {
            let next = self.board.next(hole).unwrap_or(u32::MAX);
            let to = self.segment_end(hole, path).min(next).min(self.nxt);
            if pipe + (to - hole) > self.cwnd() && !urgent {
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

    /// Whether new data waits for the next acknowledgements, until there is room for half of what Linux sends in one piece (a millisecond's,
    /// two segments at least, a third of the window at most). Beside connections that gather so, one that does not takes half more than its
    /// share, since what comes alone finds a place in a queue that is nearly full; one that gathers all of it gets three quarters.
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
        if self.credit < u32::MAX {
            self.credit = self.credit.saturating_sub(to - from);
        }
        let length = self.end - 1;
        Due { from, to: to.min(length), fin: to > length, repair, again }
    }
}

#[cfg(test)]
mod tests;
