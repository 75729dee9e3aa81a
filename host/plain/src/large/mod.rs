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

mod acknowledgement;
mod allowance;
mod board;
mod clock;
mod due;
mod entry;
mod others;
mod packet;
mod places;
mod recognition;
mod sender;
mod stamp;
mod window;

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::codec::Flow;
use crate::decision::{ACK, FIN_ACK};
use crate::segment::{Header, Options, Segment, Stamps};
use crate::small::Site;
use crate::verdict::{Asked, Reason};
use acknowledgement::Acknowledgement;
use allowance::Allowance;
use due::Due;
use entry::{Entry, WITHHELD, header_of, sacked};
use others::Others;
use places::{NEVER, Places};
use recognition::answer;
use sender::Sender;
use stamp::Placed;

pub use packet::Packet;
pub use recognition::{is_placed, is_under_way};
pub use stamp::{Download, LargeStamp, MAX_LARGE, MAX_LARGE_OBJECTS, Seal, window_number, window_of};

/// The downloads to which this replica has sent something recently: a bounded number, soft state.
#[derive(Clone, Debug)]
pub struct Downloads<W> {
    places: Places<W>,
    allowance: Allowance,
    others: Others,
    /// Segments without data that wait to be sent.
    say: VecDeque<(Header, W)>,
}

/// Spacing of the probes sent after a peer's death, microseconds: there may be thousands of
/// connections to probe, with a segment each.
const APART: u64 = 50;
/// Limit on the segments without data that wait.
const SAID: usize = 64;

impl<W: Copy> Downloads<W> {
    /// Makes room for `size` connections, rounded up to a power of two.
    #[must_use]
    pub fn new(size: usize) -> Downloads<W> {
        let places = Places::new(size);
        Downloads {
            allowance: Allowance::new(),
            others: Others::unknown(places.groups()),
            places,
            say: VecDeque::with_capacity(SAID),
        }
    }

    /// Drops all state.
    pub fn clear(&mut self) {
        *self = Downloads::new(self.places.size());
    }

    /// Records how long the set of live peers has been unchanged (`None`: no peers, or unknown;
    /// microseconds), and how many peers have died so far. A client is left without unacknowledged
    /// data only while the set is stable; after a death silent clients are probed.
    pub fn know_others(&mut self, since: Option<u64>, died: u32, now: u64) {
        if self.others.know(since, died) {
            self.probe_clients_of_dead_replicas(now);
        }
    }

    /// Probes silent clients one after the other, since the replica that served them may have died.
    fn probe_clients_of_dead_replicas(&mut self, now: u64) {
        let mut at = now;
        for n in self.places.numbers() {
            let asked = self.places.get_mut(n).and_then(|entry| entry.sender.ask_again(at));
            if asked.is_some() {
                self.places.set_deadline(n, asked);
                at += APART;
            }
        }
    }

    /// Memory in bytes, which does not depend on the number of connections.
    #[must_use]
    pub fn octets(&self) -> usize {
        self.places.octets() + self.allowance.octets() + self.others.octets()
    }

    /// Segments that were not sent because their client had too many unacknowledged bytes.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.allowance.refused()
    }

    /// Number of remembered connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no connection is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether [`next`](Self::next) may have more packets.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.places.first_active().is_some() || !self.say.is_empty()
    }

    /// Time at which [`next`](Self::next) must be called even if no segment arrives, microseconds.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        Some(self.places.next_deadline()).filter(|deadline| *deadline != NEVER)
    }

    /// Whether this segment's connection is remembered.
    #[must_use]
    pub fn has_state_for(&self, segment: &Segment<'_>) -> bool {
        self.places.find(&Flow::new(segment.header.src, segment.header.dst)).is_some()
    }

    /// Begins a large answer on a new connection, for this request.
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
        // The client repeats its request, because the answer is late or lost.
        if let Some(n) = self.places.find(flow)
            && let Some(entry) = self.places.get_mut(n)
            && entry.header.seq == header.ack
            && entry.of.object == asked.object
        {
            entry.sender.hear(&Acknowledgement { nudge: true, ..Acknowledgement::first(&[], window) }, now);
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
        self.places.put(n, entry);
        self.route(n, site, path, way);
        self.touched(n, now);
    }

    /// Processes a segment that echoes a large answer's timestamp.
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
        let known = self.places.find(flow);
        let known_one = known.and_then(|n| self.places.get(n));
        let find = |of: Download| match known_one.filter(|entry| entry.of == of) {
            Some(entry) => Some(((entry.answer, entry.head, entry.length), entry.length)),
            None => answer(site, of),
        };
        let what = (header.ack, stamps.echo);
        let placed = LargeStamp::place((flow, &site.keys), site.table.version(), what, find);
        let Some((stamp, (answer, head, length), placed)) = placed else {
            if let Some(entry) = known.and_then(|n| self.places.get_mut(n)) {
                entry.refuse(header.ack, stamps.echo);
            }
            return Some(Reason::Cookie);
        };
        let Placed { class, at, fin, cell, near, full, seal } = placed;
        if at == length {
            return self.ended(segment, known, fin, way);
        }
        let (beyond, twice) = sacked(header, at, length);
        let (told, window) = (window_of(stamp.window), stamp.of.scale.window(header.window));
        let nudge = segment.has_data_or_fin();
        let repair = stamp.repair;
        let heard =
            Acknowledgement { at, beyond: &beyond, twice, repair, window, told, nudge, cell, near, full };
        let base = header.ack.wrapping_sub(at);
        let known = known.filter(|n| {
            self.places.get(*n).is_some_and(|entry| entry.of == stamp.of && entry.header.seq == base)
        });
        let speaks = !segment.payload.is_empty();
        // A client that repeats its request has lost its replica.
        let before = known.and_then(|n| self.places.get(n));
        let shared = before.map_or((!speaks).then_some(now), |entry| entry.shared_by(at, now));
        // Once a replica has acknowledged all data, every replica must.
        let all = before.is_some_and(|entry| entry.all)
            || stamp.all
            || self.others.remember(self.places.group(flow), flow, shared, now);
        let ack = if all {
            segment.end()
        } else if speaks {
            // Each repetition is acknowledged by one more byte, so that the client does not
            // consider the server dead.
            header.seq.wrapping_add(1)
        } else {
            header.seq.wrapping_sub(WITHHELD)
        };
        let n = match known {
            Some(n) => {
                if let Some(entry) = self.places.get_mut(n) {
                    let earned = entry.sender.hear(&heard, now);
                    self.allowance.earn(entry.account, earned, now);
                }
                n
            }
            None => {
                let n = self.place(flow, now);
                self.places.put(
                    n,
                    Entry {
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
                    },
                );
                n
            }
        };
        if let Some(entry) = self.places.get_mut(n) {
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

    /// Processes a segment of a client that has later bytes of an answer and lacks its beginning,
    /// so that it echoes the SYN-ACK. Only the sender knows the object.
    fn hear_first(&mut self, segment: &Segment<'_>, now: u64) -> Option<Reason> {
        let header = &segment.header;
        let known = self.places.find(&Flow::new(header.src, header.dst));
        let Some((n, entry)) = known.and_then(|n| Some((n, self.places.get_mut(n)?))) else {
            return Some(Reason::Acknowledgement);
        };
        if entry.header.seq != header.ack {
            return Some(Reason::Acknowledgement);
        }
        let (beyond, twice) = sacked(header, 0, entry.length);
        let window = entry.of.scale.window(header.window);
        entry.sender.hear(&Acknowledgement { twice, ..Acknowledgement::first(&beyond, window) }, now);
        entry.unanswered = 0;
        self.touched(n, now);
        None
    }

    /// Drops the state of a connection whose client sent a RST with the exact expected number.
    pub fn reset(&mut self, segment: &Segment<'_>) {
        let known = self.places.find(&Flow::new(segment.header.src, segment.header.dst));
        if let Some(n) = known
            && self.places.get(n).is_some_and(|entry| entry.is_reset_by(&segment.header))
        {
            self.places.forget(n);
        }
    }

    /// Ends a download that the client has completely: acknowledges all its data.
    fn ended(&mut self, segment: &Segment<'_>, known: Option<usize>, fin: bool, way: W) -> Option<Reason> {
        if let Some(n) = known {
            self.places.forget(n);
        }
        if fin && !segment.has_data_or_fin() {
            return Some(Reason::Acknowledgement);
        }
        let flags = if fin { ACK } else { FIN_ACK };
        self.say(crate::say::say(segment, flags, segment.end()), way);
        None
    }

    /// The next packet to send.
    #[must_use]
    pub fn next<'t>(&mut self, site: &'t Site, now: u64) -> Option<Packet<'t, W>> {
        loop {
            if let Some(packet) = self.next_received(site, now, 0) {
                return Some(packet);
            }
            let n = self.places.due(now)?;
            let state = self.places.get_mut(n).map(|entry| {
                let patience = entry.patience();
                let silent = entry.sender.late(now);
                if silent.is_some() {
                    entry.acknowledge_more();
                }
                (silent.is_none_or(|times| times <= patience), entry.sender.deadline())
            });
            if let Some((true, deadline)) = state {
                self.places.set_deadline(n, deadline);
                self.places.activate(n);
            } else {
                self.places.forget(n);
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
        while let Some(n) = self.places.first_active() {
            if let Some(packet) = self.run(n, site, now, most) {
                return Some(packet);
            }
            self.places.deactivate_first();
        }
        None
    }

    /// Puts back a packet that could not be sent: it is sent next on its connection.
    pub fn put_back(&mut self, packet: &Packet<'_, W>) {
        let Some((n, due, value)) = packet.of else { return };
        if let Some(entry) = self.places.get_mut(n) {
            entry.keep(due, value);
            self.places.activate(n);
        }
    }

    /// The next packet of a connection: a segment, and those that follow it directly.
    fn run<'t>(&mut self, n: usize, site: &'t Site, now: u64, most: u32) -> Option<Packet<'t, W>> {
        let (first, value) = self.due(n, now)?;
        let entry = self.places.get_mut(n)?;
        let (first, rest) = first.split(entry.sender.full(), most);
        if let Some(rest) = rest {
            entry.keep(rest, value);
        }
        let mut packet = entry.packet(n, first, value, site);
        while packet.takes_more(most)
            && let Some((due, value)) = self.due(n, now)
            && let Some(entry) = self.places.get_mut(n)
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

    /// The next segment of a connection, and its timestamp.
    fn due(&mut self, n: usize, now: u64) -> Option<(Due, u32)> {
        let entry = self.places.get_mut(n)?;
        if let Some(kept) = entry.ahead.pop() {
            return Some(kept);
        }
        if !self.allowance.has(entry.account, entry.path, now) {
            return None;
        }
        let due = entry.sender.next(entry.path, now).map(|due| (due, entry.value(&due)));
        let (account, deadline) = (entry.account, entry.sender.deadline());
        self.places.set_deadline(n, deadline);
        let (due, value) = due?;
        self.allowance.spend(account, due.to - due.from);
        Some((due, value))
    }

    fn say(&mut self, header: Header, way: W) {
        // A client retransmits a segment that gets no answer.
        if self.say.len() < SAID {
            self.say.push_back((header, way));
        }
    }

    fn route(&mut self, n: usize, site: &Site, path: Option<u16>, way: W) {
        let Some(entry) = self.places.get_mut(n) else { return };
        let mtu = site.mtu.min(path.unwrap_or(u16::MAX));
        entry.way = way;
        entry.path = u32::from(mtu).saturating_sub(entry.header.length() as u32);
    }

    fn touched(&mut self, n: usize, now: u64) {
        if let Some(entry) = self.places.get_mut(n) {
            entry.used = now;
        }
        self.places.activate(n);
    }

    /// Finds or frees a place for a connection.
    fn place(&mut self, flow: &Flow, now: u64) -> usize {
        let n = self.places.choose(flow);
        // The replaced connection's client is with another replica, unless it answers here.
        if let Some(entry) = self.places.get(n).filter(|e| e.flow != *flow && !e.sender.is_silent()) {
            self.others.evict(self.places.group(flow), &entry.flow, now);
        }
        self.places.forget(n);
        n
    }
}
