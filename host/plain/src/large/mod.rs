//! Answers that are larger than what a client's repeated request could fetch: its acknowledgements clock them.
//!
//! Each acknowledgement echoes a timestamp with the object, the client's position and the window
//! ([`stamp`]), so any replica can resume from any of them. A replica that gets a connection's
//! acknowledgements for a while keeps more, a sender like any TCP's ([`sender`]). That is soft
//! state: it is derived again from the next acknowledgement, and no byte depends on it.
//!
//! No replica owns a retransmission timer. The replica that sent last probes the client after a
//! timeout, and the client's acknowledgement reaches the replica that the ToR chooses then
//! (`docs/plain.md`, "Large answers").

mod allowance;
mod board;
mod clock;
mod entry;
mod others;
mod packet;
mod sender;
mod stamp;
mod window;

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use rivulet_packet::segment::TcpFlags;

use crate::answer::Answer;
use crate::codec::{Class, Flow};
use crate::segment::{Header, Options, Segment, Stamps};
use crate::small::{ACK, FIN_ACK, Site};
use crate::stamp::{Scale, Stamp};
use crate::verdict::Reason;
use allowance::Allowance;
use entry::{Entry, WITHHELD, header_of, sacked};
use others::Others;
use sender::{Due, Heard, Sender};
use stamp::Placed;

pub use packet::Packet;
pub use stamp::{Download, LargeStamp, MAX_LARGE, MAX_LARGE_OBJECTS, Seal, window_number, window_of};

/// As many places a connection may have.
const WAYS: usize = 4;
/// Probes sent to a silent connection: ten in the first ten seconds, then at growing intervals for
/// an hour. A replica that sent an earlier block is the only one that can notice the death of the
/// replica sending now, and on a slow path a block takes minutes.
const PATIENCE: u32 = 19;
/// Where a window is closed: half an hour.
const PATIENCE_CLOSED: u32 = 64;

/// The downloads that this replica lately sent something of, a bounded number; soft state.
#[derive(Clone, Debug)]
pub struct Downloads<W> {
    places: Box<[Option<Entry<W>>]>,
    /// Deadlines of the places, apart: all are looked at.
    deadlines: Box<[u64]>,
    next_deadline: u64,
    allowance: Allowance,
    others: Others,
    /// Places that may have data to send, in the order of their last segments.
    active: VecDeque<usize>,
    /// Answers without data.
    say: VecDeque<(Header, W)>,
}

const NEVER: u64 = u64::MAX;
/// Between two of the questions after a death, microseconds: a segment each, of thousands of connections maybe.
const APART: u64 = 50;
/// Answers without data that may wait.
const SAID: usize = 64;

impl<W: Copy> Downloads<W> {
    /// Room for so many connections, rounded up to a power of two.
    #[must_use]
    pub fn new(size: usize) -> Downloads<W> {
        let size = size.max(WAYS).next_power_of_two();
        Downloads {
            places: (0..size).map(|_| None).collect(),
            deadlines: vec![NEVER; size].into(),
            next_deadline: NEVER,
            allowance: Allowance::new(),
            others: Others::unknown(size / WAYS),
            active: VecDeque::with_capacity(size),
            say: VecDeque::with_capacity(SAID),
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Downloads::new(self.places.len());
    }

    /// Records how long the set of live peers has been unchanged (`None`: no peers, or unknown;
    /// microseconds), and how many peers have died so far. A client is left without unacknowledged
    /// data only while the set is stable; after a death silent clients are probed.
    pub fn know_others(&mut self, since: Option<u64>, died: u32, now: u64) {
        if self.others.know(since, died) {
            self.probe_clients_of_dead_replicas(now);
        }
    }

    /// Probes silent clients, which may have been with a replica that died, one after the other.
    fn probe_clients_of_dead_replicas(&mut self, now: u64) {
        let mut at = now;
        for (place, deadline) in self.places.iter_mut().zip(&mut self.deadlines) {
            let Some(asked) = place.as_mut().and_then(|entry| entry.sender.ask_again(at)) else { continue };
            *deadline = asked;
            self.next_deadline = self.next_deadline.min(asked);
            at += APART;
        }
    }

    /// Bytes of its memory, for any number of connections.
    #[must_use]
    pub fn octets(&self) -> usize {
        size_of_val(&*self.places)
            + size_of_val(&*self.deadlines)
            + self.allowance.octets()
            + self.others.octets()
    }

    /// How often something was not sent since its client had been sent too much that it did not acknowledge.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.allowance.refused()
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// [`next`](Self::next) has not come to its end.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.active.is_empty() || !self.say.is_empty()
    }

    /// Time at which [`next`](Self::next) is due without a further segment, microseconds.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        (self.next_deadline != NEVER).then_some(self.next_deadline)
    }

    /// Whether something is remembered of this segment's connection.
    #[must_use]
    pub fn has_state_for(&self, segment: &Segment<'_>) -> bool {
        self.find(&Flow::new(segment.header.src, segment.header.dst)).is_some()
    }

    /// A request for a large object on a fresh connection.
    pub fn begin(
        &mut self,
        site: &Site,
        segment: &Segment<'_>,
        asked: &Asked,
        path: Option<u16>,
        way: W,
        now: u64,
    ) {
        let header = &segment.header;
        let flow = &Flow::new(header.src, header.dst);
        let window = asked.scale.window(header.window);
        // A repeated request: the answer is late or lost.
        if let Some(n) = self.find(flow)
            && let Some(entry) = &mut self.places[n]
            && entry.header.seq == header.ack
            && entry.of.object == asked.object
        {
            entry.sender.hear(&Heard { nudge: true, ..Heard::first(&[], window) }, now);
            self.touched(n, now);
            return;
        }
        let of = Download { object: asked.object, scale: asked.scale };
        let (head, length) = asked.answer.lengths(&site.table);
        let entry = Entry {
            flow: *flow,
            header: header_of(segment, header.ack, header.seq),
            asked: segment.end(),
            unanswered: 0,
            all: false,
            shared: None,
            of,
            seal: Seal::of(flow, &site.keys, site.table.version(), header.ack),
            sealed: None,
            answer: asked.answer,
            head,
            length,
            sender: Sender::begin(asked.class, length, window),
            echoed: header.options.stamps.map_or(0, |stamps| stamps.echo),
            once: (u32::MAX, 0),
            again: (u32::MAX, 0),
            path: 0,
            account: Allowance::account(flow, &site.keys),
            way,
            used: now,
            ahead: ArrayVec::new(),
            active: false,
        };
        let n = self.place(flow, now);
        self.places[n] = Some(entry);
        self.route(n, site, path, way);
        self.touched(n, now);
    }

    /// Handles a segment with the echo of a large answer.
    pub fn hear(
        &mut self,
        site: &Site,
        segment: &Segment<'_>,
        path: Option<u16>,
        way: W,
        now: u64,
    ) -> Option<Reason> {
        let header = &segment.header;
        let flow = &Flow::new(header.src, header.dst);
        let Some(stamps) = header.options.stamps else { return Some(Reason::Stamp) };
        if !LargeStamp::is_one(stamps.echo) {
            return self.hear_first(segment, now);
        }
        let known = self.find(flow);
        let known_one = known.and_then(|n| self.places[n].as_ref());
        let find = |of: Download| match known_one.filter(|entry| entry.of == of) {
            Some(entry) => Some(((entry.answer, entry.head, entry.length), entry.length)),
            None => answer(site, of),
        };
        let what = (header.ack, stamps.echo);
        let placed = LargeStamp::place((flow, &site.keys), site.table.version(), what, find);
        let Some((stamp, (answer, head, length), placed)) = placed else { return Some(Reason::Cookie) };
        let Placed { class, at, fin, cell, near, full, seal } = placed;
        if at == length {
            return self.ended(segment, known, fin, way);
        }
        let (beyond, twice) = sacked(header, at, length);
        let (told, window) = (window_of(stamp.window), stamp.of.scale.window(header.window));
        let nudge = segment.has_data_or_fin();
        let repair = stamp.repair;
        let heard = Heard { at, beyond: &beyond, twice, repair, window, told, nudge, cell, near, full };
        let base = header.ack.wrapping_sub(at);
        let known = known.filter(|n| {
            self.places[*n].as_ref().is_some_and(|entry| entry.of == stamp.of && entry.header.seq == base)
        });
        let speaks = !segment.payload.is_empty();
        // A client that repeats its request has lost its replica.
        let before = known.and_then(|n| self.places[n].as_ref());
        let shared = before.map_or((!speaks).then_some(now), |entry| entry.shared_by(at, now));
        // If one replica acknowledges all data, every replica does.
        let all = before.is_some_and(|entry| entry.all)
            || stamp.all
            || self.others.remember(self.bucket(flow).start / WAYS, flow, shared, now);
        let ack = if all {
            segment.end()
        } else if speaks {
            // One more byte is acknowledged for each repetition, so that the client does not take
            // the server for dead.
            header.seq.wrapping_add(1)
        } else {
            header.seq.wrapping_sub(WITHHELD)
        };
        let n = match known {
            Some(n) => {
                if let Some(entry) = &mut self.places[n] {
                    let earned = entry.sender.hear(&heard, now);
                    self.allowance.earn(entry.account, earned, now);
                }
                n
            }
            None => {
                let n = self.place(flow, now);
                self.places[n] = Some(Entry {
                    flow: *flow,
                    header: header_of(segment, base, ack),
                    asked: segment.end(),
                    unanswered: 0,
                    all,
                    shared,
                    of: stamp.of,
                    seal,
                    sealed: None,
                    answer,
                    head,
                    length,
                    sender: Sender::resume(class, length, &heard, now),
                    echoed: stamps.echo,
                    once: (u32::MAX, 0),
                    again: (u32::MAX, 0),
                    path: 0,
                    account: Allowance::account(flow, &site.keys),
                    way,
                    used: now,
                    ahead: ArrayVec::new(),
                    active: false,
                });
                n
            }
        };
        if let Some(entry) = &mut self.places[n] {
            if speaks || (ack.wrapping_sub(entry.header.ack) as i32) > 0 {
                (entry.header.ack, entry.asked) = (ack, segment.end());
            }
            (entry.unanswered, entry.all, entry.shared) = (0, all, shared);
            entry.header.options.stamps = Some(Stamps { value: 0, echo: stamps.value });
            entry.echoed = stamps.echo;
            if speaks {
                let stamps = Some(Stamps { value: stamps.echo, echo: stamps.value });
                let options = Options { stamps, ..Options::default() };
                let header = Header { seq: header.ack, options, ..entry.header };
                self.say(header, way);
            }
        }
        self.route(n, site, path, way);
        self.touched(n, now);
        None
    }

    /// The client has later bytes of an answer and lacks its beginning, so its echo is the
    /// SYN-ACK's. Only the sender knows the object.
    fn hear_first(&mut self, segment: &Segment<'_>, now: u64) -> Option<Reason> {
        let header = &segment.header;
        let known = self.find(&Flow::new(header.src, header.dst));
        let Some((n, entry)) = known.and_then(|n| Some((n, self.places[n].as_mut()?))) else {
            return Some(Reason::Acknowledgement);
        };
        if entry.header.seq != header.ack {
            return Some(Reason::Acknowledgement);
        }
        let (beyond, twice) = sacked(header, 0, entry.length);
        let window = entry.of.scale.window(header.window);
        entry.sender.hear(&Heard { twice, ..Heard::first(&beyond, window) }, now);
        entry.unanswered = 0;
        self.touched(n, now);
        None
    }

    /// A reset with the expected number removes the state of its connection.
    pub fn reset(&mut self, segment: &Segment<'_>) {
        let known = self.find(&Flow::new(segment.header.src, segment.header.dst));
        if let Some(n) = known
            && self.places[n].as_ref().is_some_and(|entry| entry.is_reset_by(&segment.header))
        {
            self.forget(n);
        }
    }

    /// The client has everything: acknowledges all its data.
    fn ended(&mut self, segment: &Segment<'_>, known: Option<usize>, fin: bool, way: W) -> Option<Reason> {
        if let Some(n) = known {
            self.forget(n);
        }
        if fin && !segment.has_data_or_fin() {
            return Some(Reason::Acknowledgement);
        }
        let flags = if fin { ACK } else { FIN_ACK };
        self.say(crate::say::say(segment, flags, segment.end()), way);
        None
    }

    /// The next packet that is to be sent.
    #[must_use]
    pub fn next<'t>(&mut self, site: &'t Site, now: u64) -> Option<Packet<'t, W>> {
        loop {
            if let Some(packet) = self.next_received(site, now, 0) {
                return Some(packet);
            }
            if self.next_deadline > now {
                return None;
            }
            let Some(n) = self.deadlines.iter().position(|deadline| *deadline <= now) else {
                self.next_deadline = self.deadlines.iter().copied().min().unwrap_or(NEVER);
                return None;
            };
            let state = self.places[n].as_mut().map(|entry| {
                let patience = if entry.sender.is_closed() { PATIENCE_CLOSED } else { PATIENCE };
                let silent = entry.sender.late(now);
                if silent.is_some() {
                    entry.acknowledge_more();
                }
                (silent.is_none_or(|times| times <= patience), entry.sender.deadline())
            });
            if let Some((true, deadline)) = state {
                self.deadlines[n] = deadline.unwrap_or(NEVER);
                self.activate(n);
            } else {
                self.forget(n);
            }
        }
    }

    /// The next packet, drawn by received segments. Probes are not sent here, because a segment
    /// that waits in the socket may end a client's silence. Further segments are merged into the
    /// packet while they are alike and have at most `most` bytes of data together, for callers that
    /// can have it [cut](Packet::cut).
    #[must_use]
    pub fn next_received<'t>(&mut self, site: &'t Site, now: u64, most: u32) -> Option<Packet<'t, W>> {
        if let Some((header, way)) = self.say.pop_front() {
            return Some(Packet::without_data(header, way));
        }
        while let Some(n) = self.active.front().copied() {
            if let Some(packet) = self.run(n, site, now, most) {
                return Some(packet);
            }
            self.active.pop_front();
            if let Some(entry) = &mut self.places[n] {
                entry.active = false;
            }
        }
        None
    }

    /// Takes a packet back that found no room: it is the next of its connection.
    pub fn put_back(&mut self, packet: &Packet<'_, W>) {
        let Some((n, due, value)) = packet.of else { return };
        if let Some(entry) = &mut self.places[n] {
            entry.keep(due, value);
            self.activate(n);
        }
    }

    /// The next packet of a place, and what goes with it.
    fn run<'t>(&mut self, n: usize, site: &'t Site, now: u64, most: u32) -> Option<Packet<'t, W>> {
        let (first, value) = self.due(n, now)?;
        let entry = self.places[n].as_mut()?;
        let (first, rest) = first.split(entry.sender.full(), most);
        if let Some(rest) = rest {
            entry.keep(rest, value);
        }
        let mut packet = entry.packet(n, first, value, site);
        while packet.takes_more(most)
            && let Some((due, value)) = self.due(n, now)
            && let Some(entry) = &mut self.places[n]
        {
            let (next, rest) = due.split(entry.sender.full(), 0);
            if !packet.append(&entry.packet(n, next, value, site), most) {
                entry.keep(due, value);
                break;
            }
            if let Some(rest) = rest {
                entry.keep(rest, value);
            }
        }
        Some(packet)
    }

    /// The next segment of a place, and its timestamp.
    fn due(&mut self, n: usize, now: u64) -> Option<(Due, u32)> {
        let entry = self.places[n].as_mut()?;
        if let Some(kept) = entry.ahead.pop() {
            return Some(kept);
        }
        if !self.allowance.has(entry.account, entry.path, now) {
            return None;
        }
        let due = entry.sender.next(entry.path, now);
        let deadline = entry.sender.deadline().unwrap_or(NEVER);
        self.deadlines[n] = deadline;
        self.next_deadline = self.next_deadline.min(deadline);
        let due = due?;
        self.allowance.spend(entry.account, due.to - due.from);
        Some((due, entry.value(&due)))
    }

    fn say(&mut self, header: Header, way: W) {
        // A client that is not answered repeats what it said.
        if self.say.len() < SAID {
            self.say.push_back((header, way));
        }
    }

    fn activate(&mut self, n: usize) {
        if let Some(entry) = &mut self.places[n]
            && !core::mem::replace(&mut entry.active, true)
        {
            self.active.push_back(n);
        }
    }

    fn route(&mut self, n: usize, site: &Site, path: Option<u16>, way: W) {
        let Some(entry) = &mut self.places[n] else { return };
        let mtu = site.mtu.min(path.unwrap_or(u16::MAX));
        entry.way = way;
        entry.path = u32::from(mtu).saturating_sub(entry.header.length() as u32);
    }

    fn touched(&mut self, n: usize, now: u64) {
        if let Some(entry) = &mut self.places[n] {
            entry.used = now;
        }
        self.activate(n);
    }

    fn bucket(&self, flow: &Flow) -> core::ops::Range<usize> {
        let first = (flow.spread() as usize * WAYS) & (self.places.len() - 1);
        first..first + WAYS
    }

    fn find(&self, flow: &Flow) -> Option<usize> {
        self.bucket(flow).find(|n| self.places[*n].as_ref().is_some_and(|entry| entry.flow == *flow))
    }

    /// The place of a connection: its own, a free one, or the one with the oldest last segment.
    fn place(&mut self, flow: &Flow, now: u64) -> usize {
        let n = self.find(flow).or_else(|| {
            self.bucket(flow).min_by_key(|n| self.places[*n].as_ref().map_or(0, |entry| entry.used + 1))
        });
        let n = n.unwrap_or(0);
        // A client that does not answer here is with another replica.
        if let Some(entry) = self.places[n].as_ref().filter(|e| e.flow != *flow && !e.sender.is_silent()) {
            self.others.evict(n / WAYS, &entry.flow, now);
        }
        self.forget(n);
        n
    }

    fn forget(&mut self, n: usize) {
        if self.places[n].take().is_some_and(|entry| entry.active) {
            self.active.retain(|active| *active != n);
        }
        self.deadlines[n] = NEVER;
    }
}

/// An answer, bytes of its head, and of all.
type Found = (Answer, u32, u32);

/// The large answer that a timestamp names, bytes of its head, and of all.
fn answer(site: &Site, of: Download) -> Option<(Found, u32)> {
    let answer = Answer::large(of.object, &site.table)?;
    let (head, length) = answer.lengths(&site.table);
    Some(((answer, head, length), length))
}

/// Whether echo and acknowledgement of a segment are such as the client of a large answer has, which others have by chance only.
#[must_use]
pub fn is_placed(site: &Site, segment: &Segment<'_>) -> bool {
    let header = &segment.header;
    let flow = Flow::new(header.src, header.dst);
    header.options.stamps.is_some_and(|Stamps { echo, .. }| {
        let find = |of| answer(site, of);
        let version = site.table.version();
        LargeStamp::place((&flow, &site.keys), version, (header.ack, echo), find).is_some()
    })
}

/// Whether a segment is of a client in the middle of a large answer: by its timestamp, or because
/// it has bytes without the answer's beginning.
#[must_use]
pub fn is_under_way(segment: &Segment<'_>) -> bool {
    let large = segment.header.options.stamps.is_some_and(|stamps| match Stamp::parse(stamps.echo) {
        Stamp::Large => true,
        Stamp::Opening { .. } => {
            !segment.has_data_or_fin() && !segment.header.options.sack.blocks().is_empty()
        }
        _ => false,
    });
    large && segment.has(TcpFlags::ACK) && !segment.has(TcpFlags::SYN) && !segment.has(TcpFlags::RST)
}

/// The request on a fresh connection.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub(crate) answer: Answer,
    pub(crate) object: u16,
    pub(crate) class: Class,
    pub(crate) scale: Scale,
}
