//! The dumbbell network of the comparisons: many flows through one bottleneck in each direction.

use crate::ids::{LinkId, NodeId};
use crate::link::{Config, End};
use crate::managed::{Host, Style};
use crate::net::Network;
use crate::tcp::{Client, MSS, Server};
use crate::{Nanos, SECOND};

/// One flow of the reference TCP.
#[derive(Debug, Clone, Copy)]
pub struct TcpFlow {
    /// When the client sends the SYN.
    pub start: Nanos,
    /// Bytes that the server sends; `u64::MAX`: unlimited.
    pub bytes: u64,
    /// Extra delay of its packets to the client, before the bottleneck.
    pub delay: Nanos,
    /// Delayed acknowledgements.
    pub delayed: bool,
    /// ECN-capable.
    pub ecn: bool,
    /// Cubic (RFC 9438) in place of Reno.
    pub cubic: bool,
}

impl Default for TcpFlow {
    fn default() -> Self {
        Self { start: 0, bytes: u64::MAX, delay: 0, delayed: false, ecn: false, cubic: false }
    }
}

/// The two links between all servers and all clients.
#[derive(Debug, Clone, Copy)]
pub struct Dumbbell {
    /// From the servers to the clients.
    pub down: LinkId,
    /// From the clients to the servers.
    pub up: LinkId,
}

impl Dumbbell {
    /// Adds the two links.
    pub fn new(net: &mut Network, down: Config, up: Config) -> Self {
        Self { down: net.add_link(down, End::Destination), up: net.add_link(up, End::Destination) }
    }

    /// Adds a flow of the reference TCP; returns its client and server.
    pub fn tcp(&self, net: &mut Network, flow: TcpFlow) -> (NodeId, NodeId) {
        let access = net.add_link(Config { delay: flow.delay, ..Config::default() }, End::Link(self.down));
        let client = net.next_node();
        let server = NodeId(client.0 + 1);
        net.add_node(Client::new(server, self.up, flow.start, 300, flow.delayed));
        let server_node = Server::new(client, access, flow.bytes, MSS, flow.ecn);
        net.add_node(if flow.cubic { server_node.with_cubic() } else { server_node });
        (client, server)
    }
}

impl Dumbbell {
    /// Adds a host with managed connections, and a client for each start and size; returns the
    /// clients and the host.
    pub fn managed(
        &self,
        net: &mut Network,
        config: rivulet_cm::Config,
        style: Style,
        flows: &[TcpFlow],
    ) -> (Vec<NodeId>, NodeId) {
        let access = net.add_link(Config::default(), End::Link(self.down));
        let host = net.add_node(Host::new(access, config, style));
        let clients = flows
            .iter()
            .map(|flow| {
                let client = net.add_node(Client::new(host, self.up, flow.start, 300, flow.delayed));
                net.with_node(host, |host: &mut Host, _| host.expect(client, flow.bytes, flow.ecn));
                client
            })
            .collect();
        (clients, host)
    }
}

/// Time of one reference transfer from the SYN to the last byte; `None` if it exceeds `limit`.
pub fn tcp_completion(seed: u64, down: Config, up: Config, bytes: u64, limit: Nanos) -> Option<Nanos> {
    let mut net = Network::new(seed);
    let d = Dumbbell::new(&mut net, down, up);
    let (client, _) = d.tcp(&mut net, TcpFlow { bytes, ..TcpFlow::default() });
    net.run_while(limit, |net| net.node::<Client>(client).completion().is_none());
    net.node::<Client>(client).completion()
}

/// Queue length in packets for the bits that the link carries in `time`, at least 4.
pub fn queue_for(rate: u64, time: Nanos) -> usize {
    let bits = u128::from(rate) * u128::from(time) / u128::from(SECOND);
    ((bits / (1538 * 8)) as usize).max(4)
}
