//! The event loop.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Nanos;
use crate::ids::{LinkId, NodeId};
use crate::link::{Arrivals, Config, End, Link};
use crate::packet::Packet;
use crate::rng::Rng;

/// A host or a switch.
pub trait Node {
    /// Handles a packet.
    fn on_packet(&mut self, packet: Packet, ctx: &mut Context);

    /// Handles a wake-up at the time that [`Node::next_wake`] returned, or at an earlier one
    /// returned before.
    fn on_wake(&mut self, ctx: &mut Context);

    /// Time of the next wake-up, if any; called after each call of the node.
    fn next_wake(&self) -> Option<Nanos>;

    /// Reads results after a run.
    fn as_any(&self) -> &dyn std::any::Any;

    /// Changes the node between two parts of a run.
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;
}

/// Actions available to a node during a call.
#[derive(Debug)]
pub struct Context {
    /// The time.
    pub now: Nanos,
    /// The called node.
    pub id: NodeId,
    sends: Vec<(Nanos, LinkId, Box<Packet>)>,
}

impl Context {
    /// Sends a packet over a link.
    pub fn send(&mut self, link: LinkId, packet: Packet) {
        self.send_after(0, link, packet);
    }

    /// Sends a packet over a link after a processing delay.
    pub fn send_after(&mut self, delay: Nanos, link: LinkId, packet: Packet) {
        self.sends.push((delay, link, Box::new(packet)));
    }
}

#[derive(Debug)]
enum Event {
    Offer(LinkId, Box<Packet>),
    Transmitted(LinkId),
    Deliver(NodeId, Box<Packet>),
    Wake(NodeId),
}

struct Entry {
    at: Nanos,
    /// Events at the same time are handled in order of creation.
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Nodes, links, and pending events.
pub struct Network {
    now: Nanos,
    nodes: Vec<Option<Box<dyn Node>>>,
    links: Vec<Link>,
    events: BinaryHeap<Reverse<Entry>>,
    order: u64,
    /// Each node's earliest wake-up on the heap.
    armed: Vec<Nanos>,
    rng: Rng,
    handled: u64,
    arrivals: Arrivals,
}

impl Network {
    /// An empty network.
    pub fn new(seed: u64) -> Self {
        Self {
            now: 0,
            nodes: vec![],
            links: vec![],
            events: BinaryHeap::new(),
            order: 0,
            armed: vec![],
            rng: Rng::new(seed),
            handled: 0,
            arrivals: vec![],
        }
    }

    /// A generator for the caller's random choices.
    pub fn rng(&mut self) -> Rng {
        self.rng.fork()
    }

    /// Events handled so far.
    pub fn handled(&self) -> u64 {
        self.handled
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The id that the next node will get, for links that need it before.
    pub fn next_node(&self) -> NodeId {
        NodeId(self.nodes.len() as u32)
    }

    /// Adds a node and schedules its first wake-up.
    pub fn add_node(&mut self, node: impl Node + 'static) -> NodeId {
        let id = self.next_node();
        self.nodes.push(Some(Box::new(node)));
        self.armed.push(Nanos::MAX);
        self.arm(id);
        id
    }

    /// Adds a link.
    pub fn add_link(&mut self, config: Config, end: End) -> LinkId {
        let rng = self.rng.fork();
        self.links.push(Link::new(config, end, rng));
        LinkId(self.links.len() as u32 - 1)
    }

    /// A link.
    pub fn link(&self, id: LinkId) -> &Link {
        &self.links[id.0 as usize]
    }

    /// A link, to be changed.
    pub fn link_mut(&mut self, id: LinkId) -> &mut Link {
        &mut self.links[id.0 as usize]
    }

    /// The node with this id and type.
    ///
    /// # Panics
    /// If the type differs, which is an error of the scenario.
    pub fn node<T: Node + 'static>(&self, id: NodeId) -> &T {
        let node = self.nodes[id.0 as usize].as_ref().expect("a node is away only while it is called");
        node.as_any().downcast_ref().expect("a node of this type")
    }

    /// Calls a function with the node, then sends its packets and schedules its wake-up.
    ///
    /// # Panics
    /// If the type differs, which is an error of the scenario.
    pub fn with_node<T: Node + 'static, R>(
        &mut self,
        id: NodeId,
        f: impl FnOnce(&mut T, &mut Context) -> R,
    ) -> R {
        self.call(id, |node, ctx| f(node.as_any_mut().downcast_mut().expect("a node of this type"), ctx))
    }

    fn call<R>(&mut self, id: NodeId, f: impl FnOnce(&mut dyn Node, &mut Context) -> R) -> R {
        let mut node = self.nodes[id.0 as usize].take().expect("a node is away only while it is called");
        let mut ctx = Context { now: self.now, id, sends: vec![] };
        let result = f(node.as_mut(), &mut ctx);
        self.nodes[id.0 as usize] = Some(node);
        for (delay, link, packet) in ctx.sends {
            if delay == 0 {
                self.offer(link, packet);
            } else {
                self.push(self.now + delay, Event::Offer(link, packet));
            }
        }
        self.arm(id);
        result
    }

    fn arm(&mut self, id: NodeId) {
        let node = self.nodes[id.0 as usize].as_ref().expect("a node is away only while it is called");
        if let Some(at) = node.next_wake() {
            let at = at.max(self.now);
            // One wake-up a node on the heap is enough; after an early one the node is queried
            // again.
            if at < self.armed[id.0 as usize] {
                self.armed[id.0 as usize] = at;
                self.push(at, Event::Wake(id));
            }
        }
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse(Entry { at, order: self.order, event }));
    }

    fn offer(&mut self, id: LinkId, packet: Box<Packet>) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        if let Some(done) = self.links[id.0 as usize].offer(self.now, packet, &mut arrivals) {
            self.push(done, Event::Transmitted(id));
        }
        self.arrive(id, &mut arrivals);
        self.arrivals = arrivals;
    }

    fn arrive(&mut self, id: LinkId, arrivals: &mut Arrivals) {
        let end = self.links[id.0 as usize].end;
        for (at, packet) in arrivals.drain(..) {
            let event = match end {
                End::Node(node) => Event::Deliver(node, packet),
                End::Link(link) => Event::Offer(link, packet),
                End::Destination => Event::Deliver(packet.dst, packet),
            };
            self.push(at, event);
        }
    }

    /// Handles the next event if it is due by `until`. If not, returns false, and the time becomes
    /// `until` if later events exist, otherwise the time of the last event.
    pub fn step(&mut self, until: Nanos) -> bool {
        match self.events.peek() {
            Some(Reverse(e)) if e.at <= until => {}
            _ => return false,
        }
        let Some(Reverse(Entry { at, event, .. })) = self.events.pop() else { return false };
        self.now = at;
        self.handled += 1;
        match event {
            Event::Offer(link, packet) => self.offer(link, packet),
            Event::Transmitted(id) => {
                let mut arrivals = std::mem::take(&mut self.arrivals);
                if let Some(done) = self.links[id.0 as usize].transmitted(at, &mut arrivals) {
                    self.push(done, Event::Transmitted(id));
                }
                self.arrive(id, &mut arrivals);
                self.arrivals = arrivals;
            }
            Event::Deliver(id, packet) => self.call(id, |node, ctx| node.on_packet(*packet, ctx)),
            Event::Wake(id) => {
                self.armed[id.0 as usize] = Nanos::MAX;
                let node =
                    self.nodes[id.0 as usize].as_ref().expect("a node is away only while it is called");
                match node.next_wake() {
                    Some(due) if due <= at => self.call(id, |node, ctx| node.on_wake(ctx)),
                    _ => self.arm(id),
                }
            }
        }
        true
    }

    /// Handles all events until a time.
    pub fn run_until(&mut self, until: Nanos) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    /// Runs while `goes_on` returns true, checked after every event, or until a time. Returns
    /// whether the condition ended the run.
    pub fn run_while(&mut self, until: Nanos, mut goes_on: impl FnMut(&Self) -> bool) -> bool {
        while goes_on(self) {
            if !self.step(until) {
                self.now = self.now.max(until);
                return false;
            }
        }
        true
    }
}
