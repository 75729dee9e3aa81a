//! TCP/CM: a host with connections that leave congestion control to a manager and keep all other
//! parts of TCP (the paper, §3.2).
//!
//! All clients count as one destination, so that the connections form one macroflow.

use std::any::Any;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rivulet_cm::{Config, Congestion, Event, FlowId, Key, Manager, Update};
use rivulet_packet::Ecn;

use crate::Nanos;
use crate::ids::{LinkId, NodeId};
use crate::net::{Context, Node};
use crate::packet::{Body, FRAMING, Packet};
use crate::segment::MSS;
use crate::tcp::{Ack, Control, HEADERS, Kind, Managed, Rto, Segment, Sender};

/// How connections get permission to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// They request and get a callback for each segment, as in the paper.
    Grants,
    /// They pull their share at each acknowledgement, like kernel TCP (docs/congestion-manager.md).
    Pull,
}

#[derive(Debug)]
struct Connection {
    flow: FlowId,
    segments: u64,
    last: u32,
    ecn: Ecn,
    sender: Option<Sender>,
    opened: Option<Nanos>,
    /// A request waits or a grant was given.
    requested: bool,
    /// The round trip ends when this many segments were sent.
    round: (u64, u64),
}

/// The host.
#[derive(Debug)]
pub struct Host {
    link: LinkId,
    style: Style,
    manager: Manager,
    connections: BTreeMap<NodeId, Connection>,
    flows: BTreeMap<FlowId, NodeId>,
    expected: BTreeMap<NodeId, (u64, Ecn)>,
}

impl Host {
    /// Creates a host that sends over `link`.
    pub fn new(link: LinkId, config: Config, style: Style) -> Self {
        let manager = Manager::new(config);
        let (connections, flows, expected) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { link, style, manager, connections, flows, expected }
    }

    /// Registers a client that will request `bytes` (`u64::MAX`: unlimited).
    pub fn expect(&mut self, client: NodeId, bytes: u64, ecn: bool) {
        self.expected.insert(client, (bytes, if ecn { Ecn::Ect0 } else { Ecn::NotEct }));
    }

    /// The manager.
    pub fn manager(&mut self) -> &mut Manager {
        &mut self.manager
    }

    /// The connection to a client, from its request until everything is acknowledged.
    pub fn sender(&self, client: NodeId) -> Option<&Sender> {
        self.connections.get(&client)?.sender.as_ref()
    }

    /// The flow of a connection.
    pub fn flow(&self, client: NodeId) -> Option<FlowId> {
        Some(self.connections.get(&client)?.flow)
    }

    fn send(&self, ctx: &mut Context, client: NodeId, kind: Kind, data: u32, ecn: Ecn) {
        let segment = Segment { kind, ecn, timestamp: ctx.now };
        let size = HEADERS + data + FRAMING;
        ctx.send(self.link, Packet { src: ctx.id, dst: client, size, body: Body::Tcp(segment) });
    }

    /// On `accept` TCP calls cm_open.
    fn open(&mut self, now: Nanos, client: NodeId) {
        let Some((bytes, ecn)) = self.expected.get(&client).copied() else { return };
        let port = 1024 + client.0 as u16;
        let key = Key {
            source: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 80),
            destination: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)), port),
            protocol: 6,
            dscp: 0,
        };
        let Ok(flow) = self.manager.open(now, key, MSS) else { return };
        let segments = bytes.div_ceil(u64::from(MSS)).max(1);
        let last = (bytes - (segments - 1) * u64::from(MSS)) as u32;
        let (sender, opened) = (None, Some(now));
        let connection =
            Connection { flow, segments, last, ecn, sender, opened, requested: false, round: (0, 0) };
        self.connections.insert(client, connection);
        self.flows.insert(flow, client);
    }

    /// Reports the feedback of an acknowledgement or timer to the manager (`cm_update`).
    fn report(&mut self, now: Nanos, client: NodeId, pipe: usize, rtt: Nanos) {
        let Some(c) = self.connections.get_mut(&client) else { return };
        let Some(sender) = &mut c.sender else { return };
        let Managed { arrived, lost, marked, timed_out, .. } = sender.control().report();
        let congestion = match (timed_out, lost, marked) {
            (true, ..) => Congestion::Persistent,
            (_, true, _) => Congestion::Transient,
            (.., true) => Congestion::Ecn,
            _ => Congestion::None,
        };
        let nsent = pipe.saturating_sub(sender.pipe()) as u64 * u64::from(MSS);
        let update = Update { nsent, nrecd: u64::from(arrived) * u64::from(MSS), congestion, rtt };
        let _ = self.manager.update(now, c.flow, update);
        if self.style == Style::Pull {
            let next = c.round.1 >= c.round.0;
            c.round.1 += u64::from(arrived);
            if next {
                c.round.0 = c.round.1 + sender.pipe() as u64;
            }
            let hungry = sender.wants();
            let Ok(share) = self.manager.pull(now, c.flow, hungry, next) else { return };
            if let Control::Managed(managed) = sender.control() {
                // No faster growth than in slow start when other flows leave.
                managed.window = share.min(managed.window + arrived.max(1));
            }
        }
    }

    fn transmit(&mut self, ctx: &mut Context, client: NodeId) -> bool {
        let Some(c) = self.connections.get_mut(&client) else { return false };
        let Some(sender) = &mut c.sender else { return false };
        let before = sender.pipe();
        let Some((seq, last)) = sender.poll(ctx.now) else { return false };
        let size = if last { c.last } else { MSS };
        // A probe that repeats a segment still counted as in flight is not charged again.
        let charged = sender.pipe() > before;
        let (flow, ecn) = (c.flow, c.ecn);
        self.send(ctx, client, Kind::Data { seq, last }, size, ecn);
        if charged {
            let _ = self.manager.notify(ctx.now, flow, MSS);
        }
        true
    }

    /// Passes grants to connections, sends forced segments, and requests more grants.
    fn pump(&mut self, ctx: &mut Context, client: NodeId) {
        self.deliver(ctx);
        self.continue_sending(ctx, client);
        self.deliver(ctx);
    }

    fn deliver(&mut self, ctx: &mut Context) {
        while let Some(event) = self.manager.poll() {
            let Event::Send { flow, .. } = event else { continue };
            let Some(client) = self.flows.get(&flow).copied() else { continue };
            if let Some(c) = self.connections.get_mut(&client) {
                c.requested = false;
            }
            if !self.transmit(ctx, client) {
                let _ = self.manager.notify(ctx.now, flow, 0);
            }
            self.continue_sending(ctx, client);
        }
    }

    fn continue_sending(&mut self, ctx: &mut Context, client: NodeId) {
        while self.sender(client).is_some_and(|s| s.must() || self.style == Style::Pull) {
            if !self.transmit(ctx, client) {
                break;
            }
        }
        let Some(c) = self.connections.get_mut(&client) else { return };
        let Some(sender) = &c.sender else { return };
        if sender.finished() {
            let flow = c.flow;
            self.flows.remove(&flow);
            self.connections.remove(&client);
            self.expected.remove(&client);
            let _ = self.manager.close(ctx.now, flow);
        } else if self.style == Style::Grants && sender.wants() && !c.requested {
            c.requested = self.manager.request(ctx.now, c.flow).is_ok();
        }
    }

    fn requested(&mut self, now: Nanos, client: NodeId) {
        let Some(c) = self.connections.get_mut(&client).filter(|c| c.sender.is_none()) else { return };
        let mut rto = Rto::default();
        if let Some(opened) = c.opened {
            rto.sample(now - opened);
        }
        let mut window = u32::MAX;
        if self.style == Style::Pull {
            window = self.manager.pull(now, c.flow, true, false).unwrap_or(1);
        }
        let control = Control::Managed(Managed { window, ..Managed::default() });
        c.sender = Some(Sender::with(c.segments, rto, control));
    }

    fn acknowledged(&mut self, now: Nanos, client: NodeId, ack: &Ack, echo: Nanos) {
        let Some(sender) = self.connections.get_mut(&client).and_then(|c| c.sender.as_mut()) else { return };
        let pipe = sender.pipe();
        sender.ack(now, ack, echo);
        self.report(now, client, pipe, now - echo);
    }
}

impl Node for Host {
    fn on_packet(&mut self, packet: Packet, ctx: &mut Context) {
        let Body::Tcp(segment) = packet.body else { return };
        let client = packet.src;
        match segment.kind {
            Kind::Syn => {
                if !self.connections.contains_key(&client) {
                    self.open(ctx.now, client);
                }
                self.send(ctx, client, Kind::SynAck, 0, Ecn::NotEct);
            }
            Kind::Request => self.requested(ctx.now, client),
            Kind::Ack(ack) => self.acknowledged(ctx.now, client, &ack, segment.timestamp),
            Kind::SynAck | Kind::Data { .. } => {}
        }
        self.pump(ctx, client);
    }

    fn on_wake(&mut self, ctx: &mut Context) {
        let now = ctx.now;
        let due: Vec<NodeId> = self
            .connections
            .iter()
            .filter(|c| c.1.sender.as_ref().and_then(Sender::next_timeout).is_some_and(|at| at <= now))
            .map(|c| *c.0)
            .collect();
        for client in due {
            let Some(sender) = self.connections.get_mut(&client).and_then(|c| c.sender.as_mut()) else {
                continue;
            };
            let pipe = sender.pipe();
            sender.timeout(now);
            self.report(now, client, pipe, 0);
            self.pump(ctx, client);
        }
        self.manager.handle_timeout(now);
        self.pump(ctx, NodeId(u32::MAX));
    }

    fn next_wake(&self) -> Option<Nanos> {
        let senders = self.connections.values().filter_map(|c| c.sender.as_ref()?.next_timeout());
        senders.chain(self.manager.poll_timeout()).min()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
