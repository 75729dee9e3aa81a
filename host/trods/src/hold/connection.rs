//! One watched connection: its [`Flow`], and the server's frames that are held until their state is
//! stored.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rivulet_bpf::trods::{FlowKey, What};

use super::watch::{ASK, LOOK};
use super::{Frame, Hold};
use crate::flow::{Action, Asked, FLIGHT_PATIENCE, Flow, HANDSHAKE_PATIENCE, Limits, Settings};
use crate::record::{Handshake, MAX_CHECK, Record, Tuple};

/// A watched connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub flow: Flow,
    pub limits: Limits,
    /// Sequence number of the server's first byte.
    pub first: u32,
    /// Frames that may not be sent yet, in their order.
    pub held: VecDeque<Frame>,
    /// [`Flow::reads`] at the time when the flow last got the held frames.
    read: u32,
    /// Sequence number after the client's contiguous data, and after all of its data.
    next: u32,
    most: u32,
    /// Time of the next tick, Unix milliseconds; 0: none.
    pub due: u64,
    /// A FIN of the server is withheld.
    pub fin: bool,
    /// Whether a record of the connection was stored.
    pub stored: bool,
    /// Whether its timestamps named the state of a response until now.
    pub named: bool,
    /// Whether its kernel socket is still being created.
    pub awaited: bool,
    /// The server's process died and left the connection open.
    pub died: bool,
    /// Whether this replica adopted the connection.
    pub adopted: bool,
    /// Whether this process is ending it.
    pub leaves: bool,
    /// Whether [`Watch::ended_early`](super::Watch::ended_early) has reported that it ended early.
    pub judged: bool,
    /// The client's acknowledgement and sequence number at the last check, and when they last
    /// changed (milliseconds).
    said: (u32, u32, u64),
}

impl Connection {
    /// A connection after its handshake.
    pub fn new(mut flow: Flow, syn: &[u8], syn_ack: &[u8], now: u64, out: &mut Vec<Action>) -> Connection {
        flow.tick(now, out);
        flow.syn(syn);
        flow.syn_ack(syn_ack);
        let behind = |header: &[u8]| {
            let seq = header.get(4..8).and_then(|s| s.first_chunk()).map_or(0, |s| u32::from_be_bytes(*s));
            seq.wrapping_add(1)
        };
        let (next, first) = (behind(syn), behind(syn_ack));
        let limits = flow.limits();
        Connection::of(flow, limits, first, next, now)
    }

    /// A connection with timestamps that the BPF programs make and that no longer name a response.
    /// Client and server continue at these sequence numbers.
    pub fn unnamed(
        tuple: Tuple,
        settings: &Settings,
        handshake: Handshake,
        client: u32,
        service: u32,
        out: &mut Vec<Action>,
    ) -> Connection {
        let now = handshake.at_ms;
        let mut flow = Flow::midway(tuple, handshake, client, service, settings);
        flow.tick(now, out);
        let (limits, first) = (flow.limits(), handshake.service_isn.wrapping_add(1));
        Connection { named: service != first, ..Connection::of(flow, limits, first, client, now) }
    }

    /// A connection that this replica adopts from another replica's record.
    pub fn adopted(record: &Record, settings: &Settings, now: u64, out: &mut Vec<Action>) -> Connection {
        let flow = Flow::resume(record.clone(), settings, now, out);
        let (limits, first, next) =
            (flow.limits(), record.handshake.service_isn.wrapping_add(1), record.acknowledged());
        Connection { adopted: true, awaited: true, ..Connection::of(flow, limits, first, next, now) }
    }

    /// A connection of this host's terminator that an earlier process watched.
    pub fn registered(
        asked: Asked,
        record: Record,
        adopted: bool,
        settings: &Settings,
        now: u64,
        out: &mut Vec<Action>,
    ) -> Connection {
        let first = record.handshake.service_isn.wrapping_add(1);
        let flow = Flow::register(asked, record, settings, now, out);
        let limits = flow.limits();
        Connection { adopted, ..Connection::of(flow, limits, first, limits.ack, now) }
    }

    /// A connection with `first` as the sequence number of the server's first byte, and `next` as
    /// that of the client's next byte.
    fn of(flow: Flow, limits: Limits, first: u32, next: u32, now: u64) -> Connection {
        let read = flow.reads();
        Connection {
            flow,
            limits,
            first,
            held: VecDeque::new(),
            read,
            next,
            most: next,
            due: 0,
            fin: false,
            stored: false,
            named: false,
            awaited: false,
            died: false,
            adopted: false,
            leaves: false,
            judged: false,
            said: (first, next, now),
        }
    }

    /// The limits to write into the BPF map; the client has everything below `acked`.
    pub fn limits(&self, acked: u32) -> rivulet_bpf::trods::Limits {
        let Limits { ack, data, fin_at } = self.limits;
        let closes = self.flow.closes() || self.leaves;
        // Behind an adopted connection, a server's FIN may come from its death; then the next
        // server is asked for the bytes that the client lacks.
        let fin_at = fin_at.filter(|_| closes || !self.adopted);
        let Connection { first, stored: recorded, awaited, adopted, .. } = *self;
        rivulet_bpf::trods::Limits { ack, data, fin_at, closes, first, acked, recorded, awaited, adopted }
    }

    /// Whether only this process may end it, on behalf of its server: it was adopted, and this process relays. A TLS
    /// terminator has the socket of its adopted connections and ends them itself.
    pub fn is_relayed(&self) -> bool {
        self.adopted && !self.flow.is_terminated()
    }

    /// Whether this event ends the connection.
    pub fn ends(&self, what: &What<'_>) -> bool {
        match *what {
            What::Ended => true,
            // The server's TCP accepts a RST only with the exact next sequence number (RFC 5961
            // section 3.2), so the flow does too.
            What::Reset { seq } => seq == self.next || seq == self.most,
            _ => false,
        }
    }

    /// Processes an event that has the client's acknowledgement `ack`.
    pub fn hear(&mut self, ack: u32, what: &What<'_>, out: &mut Vec<Action>) {
        match *what {
            What::Request { seq, octets, fin } => {
                self.came(seq, seq.wrapping_add(octets.len() as u32).wrapping_add(fin.into()));
                self.flow.acknowledged(ack);
                self.flow.request(seq, octets, fin, out);
                self.read_held(None, out);
            }
            What::Fin { seq, .. } => {
                self.fin = true;
                self.flow.response(seq, &[], true, out);
            }
            _ => {}
        }
    }

    /// Passes a held frame of the server to the flow, after the frames held before it.
    pub fn answer(&mut self, frame: &Frame, out: &mut Vec<Action>) {
        self.flow.response(frame.seq(), frame.data(), frame.fin(), out);
        self.read_held(Some(frame), out);
    }

    /// Runs the connection's timer.
    pub fn tick(&mut self, now: u64, out: &mut Vec<Action>) {
        self.flow.tick(now, out);
        self.read_held(None, out);
    }

    /// Passes the held frames to the flow again if it has advanced since, because it keeps at most
    /// one response.
    fn read_held(&mut self, more: Option<&Frame>, out: &mut Vec<Action>) {
        while self.read != self.flow.reads() {
            self.read = self.flow.reads();
            let (from, to) = (self.read, self.read.wrapping_add(MAX_CHECK as u32));
            let in_reach = |frame: &&Frame| after(frame.end(), from) && after(to, frame.seq());
            for frame in self.held.iter().chain(more).filter(in_reach) {
                self.flow.response(frame.seq(), frame.data(), frame.fin(), out);
            }
        }
    }

    /// Notes that the server ended the connection too early. It is reported once, until it is
    /// examined.
    pub fn note_early(&mut self, key: &FlowKey, early: &mut Vec<FlowKey>) {
        if !std::mem::replace(&mut self.judged, true) {
            early.push(*key);
        }
    }

    /// Schedules a tick, unless an earlier one is due.
    pub fn ask_later(&mut self, key: &FlowKey, now: u64, due: &mut BinaryHeap<Reverse<(u64, FlowKey)>>) {
        let at = now
            + if self.flow.is_new() {
                HANDSHAKE_PATIENCE
            } else if self.flow.wants_acknowledgement() {
                LOOK
            } else if self.flow.awaits_flight() {
                FLIGHT_PATIENCE + 1
            } else {
                ASK
            };
        if self.due == 0 || self.due > at {
            self.due = at;
            due.push(Reverse((at, *key)));
        }
    }

    /// When the client's acknowledgement or sequence number last changed, as seen by these checks.
    pub fn last_activity(&mut self, acked: u32, now: u64) -> u64 {
        if (self.said.0, self.said.1) != (acked, self.most) {
            self.said = (acked, self.most, now);
        }
        self.said.2
    }

    /// Records client data from `seq` to `end`.
    fn came(&mut self, seq: u32, end: u32) {
        if !after(seq, self.next) && after(end, self.next) {
            self.next = end;
        }
        if after(end, self.most) {
            self.most = end;
        }
    }

    /// Holds a frame, or the part that may not be sent, unless another held frame has the same
    /// bytes.
    pub fn keep(&mut self, mut frame: Frame, hold: &mut Hold) {
        self.send_part(&mut frame, hold);
        if self.held.iter().any(|held| frame.is_within(held)) {
            hold.forget(frame);
        } else {
            self.held.push_back(frame);
        }
    }

    /// Sends the held frames that the limits permit and returns their number.
    pub fn release(&mut self, hold: &mut Hold) -> usize {
        let before = self.held.len();
        for _ in 0..before {
            match self.held.pop_front() {
                Some(mut frame) if after(frame.end(), self.limits.data) => {
                    self.send_part(&mut frame, hold);
                    self.held.push_back(frame);
                }
                Some(frame) => hold.send(frame),
                None => {}
            }
        }
        before - self.held.len()
    }

    /// Sends the part of a frame that the limits permit. A client that lacks the end of a response
    /// would otherwise never acknowledge it, and the record would have no room for the next one.
    fn send_part(&self, frame: &mut Frame, hold: &mut Hold) {
        let data = self.limits.data;
        if after(data, frame.seq()) && after(frame.end(), data) {
            hold.send_until(frame, data);
        }
    }
}

/// Whether sequence number `a` comes after `b`.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

#[cfg(test)]
mod tests {
    use rivulet_bpf::kernel::{Feature, skipped};
    use rivulet_pktio::testing::{Netns, eventually};
    use rivulet_pktio::{AfPacket, Config, PacketIo};
    use rivulet_plain::Segment;

    use super::*;
    use crate::hold::frame::tests::frame;
    use crate::record::TlsState;

    /// A TCP header without options.
    fn header(seq: u32, flags: u8) -> Vec<u8> {
        [&[0; 4][..], &seq.to_be_bytes(), &[0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]].concat()
    }

    #[test]
    fn rst_counts_only_at_exact_sequence_number() {
        let (client, service) = ("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        let (syn, syn_ack) = (header(u32::MAX, 0x02), header(499, 0x12));
        let (settings, mut out) = (Settings::default(), Vec::new());
        let mut connection =
            Connection::new(Flow::new(Tuple { client, service }, &settings), &syn, &syn_ack, 0, &mut out);
        // The second one arrives after a hole.
        for (seq, octets) in [(0, &b"GET"[..]), (10, b"/")] {
            connection.hear(500, &What::Request { seq, octets, fin: false }, &mut out);
        }
        for (seq, ends) in
            [(u32::MAX, false), (0, false), (3, true), (4, false), (10, false), (11, true), (12, false)]
        {
            assert_eq!(connection.ends(&What::Reset { seq }), ends, "{seq}");
        }
    }

    /// A released part of a frame can be lost; the server's TCP then retransmits the whole frame.
    #[test]
    fn retransmission_leaves_up_to_the_limit() {
        if skipped(Feature::Tcx) {
            return;
        }
        let (Some(client), Some(replica)) = (Netns::new("part-c"), Netns::new("part-r")) else { return };
        client.veth("c0", &replica, "r0");
        let mut hold = Hold::open(&replica.interface("r0")).unwrap();
        let config = Config { promiscuous: true, ..Config::default() };
        let mut io = AfPacket::open(&client.interface("c0"), config).unwrap();
        let mut leave = |count: usize| {
            let mut got = Vec::new();
            eventually("what may leave", || {
                for n in 0..io.recv().unwrap() {
                    let octets = io.frame(n).data.to_vec();
                    let segment = octets.get(14..).and_then(|packet| Segment::parse(packet).ok());
                    got.extend(segment.map(|s| (s.header.seq, s.payload.to_vec())));
                }
                got.len() >= count
            });
            got
        };
        let (client, service) = ("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        let record = crate::testing::idle(Tuple { client, service }, 500, 1);
        let mut connection = Connection::adopted(&record, &Settings::default(), 0, &mut Vec::new());
        connection.limits.data = 504;
        let again = || frame(500, 0x10, b"0123456789");
        let front = (500, b"0123".to_vec());
        for _ in 0..3 {
            connection.keep(again(), &mut hold);
            assert_eq!(leave(1), std::slice::from_ref(&front));
        }
        assert_eq!(connection.held.len(), 1, "the same is held again");
        assert_eq!(connection.release(&mut hold), 0);
        connection.limits.data = 509;
        assert_eq!(connection.release(&mut hold), 0);
        assert_eq!(leave(1), [(504, b"45678".to_vec())]);
        connection.limits.data = 510;
        assert_eq!(connection.release(&mut hold), 1);
        assert_eq!(leave(1), [(509, b"9".to_vec())]);
        assert!(connection.held.is_empty());
    }

    #[test]
    fn terminator_ends_connections_that_it_adopted() {
        let (client, service) = ("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:443".parse().unwrap());
        let plain = crate::testing::idle(Tuple { client, service }, 500, 1);
        let tls = Record { tls: Some(TlsState::new(vec![1])), ..plain.clone() };
        for (record, is_relayed) in [(plain, true), (tls, false)] {
            let connection = Connection::adopted(&record, &Settings::default(), 0, &mut Vec::new());
            assert_eq!((connection.adopted, connection.is_relayed()), (true, is_relayed));
        }
    }

    /// A frame may arrive after the client's acknowledgement has made room for a held one.
    #[test]
    fn held_frames_are_read_before_new_frame() {
        let (client, service) = ("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        let (settings, mut out) = (Settings::default(), Vec::new());
        let (syn, syn_ack) = (header(0, 0x02), header(499, 0x12));
        let mut connection =
            Connection::new(Flow::new(Tuple { client, service }, &settings), &syn, &syn_ack, 0, &mut out);
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        connection.hear(500, &What::Request { seq: 1, octets: &request.repeat(24), fin: false }, &mut out);
        out.clear();
        // A flow keeps fewer than five of these 900-byte responses, a record eight.
        let response = [&b"HTTP/1.1 200 OK\r\nContent-Length: 861\r\n\r\n"[..], &[b'x'; 861]].concat();
        let all = response.repeat(24);
        // Confirms every record that is passed to the store, until no more are.
        let kept = |connection: &mut Connection, out: &mut Vec<Action>| {
            let mut last = None;
            while !out.is_empty() {
                for action in std::mem::take(out) {
                    match action {
                        Action::Store { ticket, record } => {
                            last = Some((record.response_at, record.responses.len()));
                            connection.flow.stored(ticket, true, out);
                        }
                        Action::Limits(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
            last
        };
        let at = |responses: usize| 500 + (responses * response.len()) as u32;
        let held = frame(500, 0x10, &all[..14_480]);
        connection.answer(&held, &mut out);
        connection.held.push_back(held);
        assert_eq!(kept(&mut connection, &mut out), Some((at(0), 8)));
        // The client has acknowledged this much when the frame arrives.
        connection.flow.acknowledged(at(8));
        connection.flow.tick(1, &mut out);
        let more = frame(500 + 14_480, 0x10, &all[14_480..]);
        connection.answer(&more, &mut out);
        connection.held.push_back(more);
        assert_eq!(kept(&mut connection, &mut out), Some((at(8), 8)));
        connection.flow.acknowledged(at(16));
        connection.tick(2, &mut out);
        assert_eq!(kept(&mut connection, &mut out), Some((at(16), 8)));
    }
}
