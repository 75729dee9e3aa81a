//! A node that answers one reference connection with data.

use std::any::Any;

use super::control::{Control, Cubic};
use super::{Kind, Rto, Segment, Sender};
use crate::Nanos;
use crate::ids::{LinkId, NodeId};
use crate::net::{Context, Node};
use crate::packet::{Body, FRAMING, Packet};
use rivulet_packet::Ecn;

/// The server's side of one connection.
#[derive(Debug)]
pub struct Server {
    client: NodeId,
    link: LinkId,
    segments: u64,
    /// Bytes of data in a full segment and in the last one.
    sizes: (u32, u32),
    ecn: Ecn,
    syn_ack: Option<Nanos>,
    sender: Option<Sender>,
    control: Control,
}

impl Server {
    /// Creates a server that sends `bytes` to `client` over `link` in segments of `mss` bytes
    /// (`u64::MAX`: unlimited).
    pub fn new(client: NodeId, link: LinkId, bytes: u64, mss: u32, ecn: bool) -> Self {
        let segments = bytes.div_ceil(u64::from(mss)).max(1);
        let last = bytes - (segments - 1) * u64::from(mss);
        let ecn = if ecn { Ecn::Ect0 } else { Ecn::NotEct };
        Self {
            client,
            link,
            segments,
            sizes: (mss, last as u32),
            ecn,
            syn_ack: None,
            sender: None,
            control: Control::default(),
        }
    }

    /// The same with Cubic (RFC 9438) in place of Reno.
    pub fn with_cubic(self) -> Self {
        Self { control: Control::Cubic(Cubic::default()), ..self }
    }

    /// The connection's sending side, after the request arrived.
    pub fn sender(&self) -> Option<&Sender> {
        self.sender.as_ref()
    }

    fn send(&mut self, ctx: &mut Context, kind: Kind, data: u32) {
        let ecn = if data > 0 { self.ecn } else { Ecn::NotEct };
        let segment = Segment { kind, ecn, timestamp: ctx.now };
        let size = super::HEADERS + data + FRAMING;
        ctx.send(self.link, Packet { src: ctx.id, dst: self.client, size, body: Body::Tcp(segment) });
    }

    fn pump(&mut self, ctx: &mut Context) {
        while let Some((seq, last)) = self.sender.as_mut().and_then(|s| s.poll(ctx.now)) {
            let size = if last { self.sizes.1 } else { self.sizes.0 };
            self.send(ctx, Kind::Data { seq, last }, size);
        }
    }
}

impl Node for Server {
    fn on_packet(&mut self, packet: Packet, ctx: &mut Context) {
        let Body::Tcp(segment) = packet.body else { return };
        match segment.kind {
            Kind::Syn => {
                self.syn_ack.get_or_insert(ctx.now);
                self.send(ctx, Kind::SynAck, 0);
            }
            Kind::Request => {
                if self.sender.is_none() {
                    let mut rto = Rto::default();
                    if let Some(sent) = self.syn_ack {
                        rto.sample(ctx.now - sent);
                    }
                    self.sender = Some(Sender::with(self.segments, rto, self.control.clone()));
                }
            }
            Kind::Ack(ack) => {
                if let Some(sender) = &mut self.sender {
                    sender.ack(ctx.now, &ack, segment.timestamp);
                }
            }
            Kind::SynAck | Kind::Data { .. } => {}
        }
        self.pump(ctx);
    }

    fn on_wake(&mut self, ctx: &mut Context) {
        if let Some(sender) = &mut self.sender {
            sender.timeout(ctx.now);
        }
        self.pump(ctx);
    }

    fn next_wake(&self) -> Option<Nanos> {
        self.sender.as_ref().and_then(Sender::next_timeout)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
