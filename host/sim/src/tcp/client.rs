//! A node that opens one reference connection, sends a request, and receives the answer.

use std::any::Any;

use super::{Ack, Kind, Receiver, Rto, Segment};
use crate::Nanos;
use crate::ids::{LinkId, NodeId};
use crate::net::{Context, Node};
use crate::packet::{Body, FRAMING, Packet};
use rivulet_packet::Ecn;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    SynSent,
    Asked,
    Receiving,
}

/// The client's side of one connection.
#[derive(Debug)]
pub struct Client {
    server: NodeId,
    link: LinkId,
    state: State,
    start: Nanos,
    wake: Option<Nanos>,
    sent: Nanos,
    request: u32,
    rto: Rto,
    receiver: Receiver,
    last: Option<u64>,
    finished: Option<Nanos>,
    received: u64,
}

impl Client {
    /// A client that opens at `start` and sends a request of `request` bytes.
    pub fn new(server: NodeId, link: LinkId, start: Nanos, request: u32, delayed: bool) -> Self {
        Self {
            server,
            link,
            state: State::Waiting,
            start,
            wake: Some(start),
            sent: 0,
            request,
            rto: Rto::default(),
            receiver: Receiver::new(delayed),
            last: None,
            finished: None,
            received: 0,
        }
    }

    /// Time from the SYN to the last byte.
    pub fn completion(&self) -> Option<Nanos> {
        self.finished.map(|t| t - self.start)
    }

    /// Wire bytes received in data segments, retransmissions included.
    pub fn received_bytes(&self) -> u64 {
        self.received
    }

    fn send(&self, ctx: &mut Context, kind: Kind, data: u32, timestamp: Nanos) {
        let segment = Segment { kind, ecn: Ecn::NotEct, timestamp };
        let size = super::HEADERS + data + FRAMING;
        ctx.send(self.link, Packet { src: ctx.id, dst: self.server, size, body: Body::Tcp(segment) });
    }

    fn ask(&mut self, ctx: &mut Context) {
        match self.state {
            State::Waiting | State::SynSent => {
                self.state = State::SynSent;
                self.send(ctx, Kind::Syn, 0, ctx.now);
            }
            State::Asked => self.send(ctx, Kind::Request, self.request, ctx.now),
            State::Receiving => return,
        }
        self.sent = ctx.now;
        self.wake = Some(ctx.now + self.rto.timeout());
    }

    fn acknowledge(&self, ctx: &mut Context, ack: Ack, timestamp: Nanos) {
        self.send(ctx, Kind::Ack(ack), 0, timestamp);
    }
}

impl Node for Client {
    fn on_packet(&mut self, packet: Packet, ctx: &mut Context) {
        let Body::Tcp(segment) = packet.body else { return };
        match (segment.kind, self.state) {
            (Kind::SynAck, State::SynSent) => {
                self.rto.sample(ctx.now - self.sent);
                self.state = State::Asked;
                self.ask(ctx);
            }
            (Kind::Data { seq, last }, State::Asked | State::Receiving) => {
                self.state = State::Receiving;
                self.received += u64::from(packet.size);
                if last {
                    self.last = Some(seq);
                }
                let marked = segment.ecn == Ecn::Ce;
                if let Some(ack) = self.receiver.segment(ctx.now, seq, segment.timestamp, marked) {
                    self.acknowledge(ctx, ack, segment.timestamp);
                }
                if self.finished.is_none() && self.last.is_some_and(|l| self.receiver.next() > l) {
                    self.finished = Some(ctx.now);
                }
                self.wake = self.receiver.due();
            }
            _ => {}
        }
    }

    fn on_wake(&mut self, ctx: &mut Context) {
        match self.state {
            State::Receiving => {
                if let Some((ack, timestamp)) = self.receiver.timeout(ctx.now) {
                    self.acknowledge(ctx, ack, timestamp);
                }
                self.wake = self.receiver.due();
            }
            State::Waiting => self.ask(ctx),
            State::SynSent | State::Asked => {
                self.rto.back_off();
                self.ask(ctx);
            }
        }
    }

    fn next_wake(&self) -> Option<Nanos> {
        self.wake
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
