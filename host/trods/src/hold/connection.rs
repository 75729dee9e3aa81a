//! One watched connection: its flow, and the frames that wait.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rivulet_bpf::trods::{FlowKey, What};

use super::watch::{ASK, LOOK};
use super::{Frame, Hold};
use crate::flow::{Action, Flow, Limits, Settings};
use crate::record::{Handshake, Record, Tuple};

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub flow: Flow,
    pub limits: Limits,
    /// Where the server's data begin.
    pub first: u32,
    /// What may not leave yet, in the order in which it came.
    pub held: VecDeque<Frame>,
    /// What the client sent: its end without a gap, and at all.
    next: u32,
    most: u32,
    /// When it is to be asked again, milliseconds of Unix time; 0: not at all.
    pub due: u64,
    /// A FIN of the server's was withheld.
    pub fin: bool,
    /// A record of it was stored.
    pub stored: bool,
    /// Timestamps named what it carried before.
    pub named: bool,
    /// The kernel is about to have its socket.
    pub awaited: bool,
    /// Its process died, and did not end it.
    pub died: bool,
    /// Another replica had it before: who ends it is this process, and for its server alone.
    pub adopted: bool,
    /// This process ends it.
    pub leaves: bool,
    /// It was told of by [`Watch::ended_early`](super::Watch::ended_early).
    pub judged: bool,
    /// What the client had acknowledged and sent when that was looked at last, and when it was something new, milliseconds.
    said: (u32, u32, u64),
}

impl Connection {
    /// One whose handshake is over.
    pub fn new(
        tuple: Tuple,
        settings: &Settings,
        syn: &[u8],
        syn_ack: &[u8],
        now: u64,
        out: &mut Vec<Action>,
    ) -> Connection {
        let mut flow = Flow::new(tuple, settings);
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

    /// One whose timestamps are made here, and which they name no more: both go on at these numbers.
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

    /// One that another replica had.
    pub fn adopted(record: &Record, settings: &Settings, now: u64, out: &mut Vec<Action>) -> Connection {
        let flow = Flow::resume(record.clone(), settings, now, out);
        let (limits, first, next) =
            (flow.limits(), record.handshake.service_isn.wrapping_add(1), record.acknowledged());
        Connection { adopted: true, awaited: true, ..Connection::of(flow, limits, first, next, now) }
    }

    /// One whose server's data begin at `first`, and whose client sends `next`.
    fn of(flow: Flow, limits: Limits, first: u32, next: u32, now: u64) -> Connection {
        Connection {
            flow,
            limits,
            first,
            held: VecDeque::new(),
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

    /// What the programs are to hold it to, whose client has everything below `acked`.
    pub fn limits(&self, acked: u32) -> rivulet_bpf::trods::Limits {
        let Limits { ack, data, fin_at } = self.limits;
        let closes = self.flow.closes() || self.leaves;
        // An end of the server's may be its death; it is asked again for what the client lacks.
        let fin_at = fin_at.filter(|_| closes || !self.adopted);
        let Connection { first, stored: recorded, awaited, adopted, .. } = *self;
        rivulet_bpf::trods::Limits { ack, data, fin_at, closes, first, acked, recorded, awaited, adopted }
    }

    /// Whether the connection is over with this.
    pub fn ends(&self, what: &What<'_>) -> bool {
        match *what {
            What::Ended => true,
            // The server believes one in its place alone (RFC 5961 section 3.2), and so do we.
            What::Reset { seq } => seq == self.next || seq == self.most,
            _ => false,
        }
    }

    /// What the programs tell, with what the client acknowledged.
    pub fn hear(&mut self, ack: u32, what: &What<'_>, out: &mut Vec<Action>) {
        match *what {
            What::Request { seq, octets, fin } => {
                self.came(seq, seq.wrapping_add(octets.len() as u32).wrapping_add(fin.into()));
                self.flow.acknowledged(ack);
                self.flow.request(seq, octets, fin, out);
            }
            What::Fin { seq, .. } => {
                self.fin = true;
                self.flow.response(seq, &[], true, out);
            }
            _ => {}
        }
    }

    /// Its server ended it where it should not: that is told once, until it is judged.
    pub fn note_early(&mut self, key: &FlowKey, early: &mut Vec<FlowKey>) {
        if !std::mem::replace(&mut self.judged, true) {
            early.push(*key);
        }
    }

    /// Has it asked again when it may have waited long enough, unless it is to be asked before.
    pub fn ask_later(&mut self, key: &FlowKey, now: u64, due: &mut BinaryHeap<Reverse<(u64, FlowKey)>>) {
        let at = now + if self.flow.wants_acknowledgement() { LOOK } else { ASK };
        if self.due == 0 || self.due > at {
            self.due = at;
            due.push(Reverse((at, *key)));
        }
    }

    /// When the client said something new last, as far as that is looked at, and it has acknowledged this.
    pub fn speaks(&mut self, acked: u32, now: u64) -> u64 {
        if (self.said.0, self.said.1) != (acked, self.most) {
            self.said = (acked, self.most, now);
        }
        self.said.2
    }

    /// The client sent what lies between.
    fn came(&mut self, seq: u32, end: u32) {
        if !after(seq, self.next) && after(end, self.next) {
            self.next = end;
        }
        if after(end, self.most) {
            self.most = end;
        }
    }

    /// Keeps a frame, unless it says what another one says.
    pub fn keep(&mut self, frame: Frame, hold: &mut Hold) {
        if self.held.iter().any(|held| frame.is_within(held)) {
            hold.forget(frame);
        } else {
            self.held.push_back(frame);
        }
    }

    /// Sends what may leave, and says how many frames.
    pub fn release(&mut self, hold: &mut Hold) -> usize {
        let before = self.held.len();
        for _ in 0..before {
            match self.held.pop_front() {
                Some(frame) if after(frame.end(), self.limits.data) => self.held.push_back(frame),
                Some(frame) => hold.send(frame),
                None => {}
            }
        }
        before - self.held.len()
    }
}

/// Whether `a` comes after `b`.
fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP header without options.
    fn header(seq: u32, flags: u8) -> Vec<u8> {
        [&[0; 4][..], &seq.to_be_bytes(), &[0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]].concat()
    }

    #[test]
    fn a_reset_counts_in_its_place_alone() {
        let (client, service) = ("192.0.2.7:1025".parse().unwrap(), "10.9.0.1:80".parse().unwrap());
        let (syn, syn_ack) = (header(u32::MAX, 0x02), header(499, 0x12));
        let (settings, mut out) = (Settings::default(), Vec::new());
        let mut connection =
            Connection::new(Tuple { client, service }, &settings, &syn, &syn_ack, 0, &mut out);
        // The second one behind a hole.
        for (seq, octets) in [(0, &b"GET"[..]), (10, b"/")] {
            connection.hear(500, &What::Request { seq, octets, fin: false }, &mut out);
        }
        for (seq, ends) in
            [(u32::MAX, false), (0, false), (3, true), (4, false), (10, false), (11, true), (12, false)]
        {
            assert_eq!(connection.ends(&What::Reset { seq }), ends, "{seq}");
        }
    }
}
