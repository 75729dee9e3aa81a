//! A service on a rack: ToR, replicas and the links between them and the clients.

use std::rc::Rc;

use rivulet_packet::NonceKey;
use rivulet_transport::server;
use rivulet_transport::{KeyRing, MacKey, NonceKeys};

use crate::client::{Client, Plan};
use crate::fetches::{self, Fetcher};
use crate::ids::{LinkId, NodeId};
use crate::life::Life;
use crate::link::{self, End};
use crate::net::Network;
use crate::replica::{self, Replica};
use crate::rng::Rng;
use crate::tor::{self, Member, Tor};
use crate::{MICROSECOND, Nanos};

/// Settings of one replica of a service.
#[derive(Debug, Clone, Default)]
pub struct ReplicaConfig {
    /// Its state over time.
    pub life: Life,
    /// Processing time of a request.
    pub delay: Nanos,
    /// Mean of an additional, exponentially distributed processing time.
    pub jitter: Nanos,
    /// The response with a changed nonce ([`replica::Config::poison`]).
    pub poison: Option<u64>,
    /// Whether it has a replay memory ([`replica::Config::remembers`]).
    pub remembers: bool,
    /// Its own link, before the one that all replicas share; `None`: no limit.
    pub down: Option<link::Config>,
}

/// Settings of a service.
#[derive(Debug, Clone)]
pub struct Config {
    /// The replicas.
    pub replicas: Vec<ReplicaConfig>,
    /// From the replicas to the clients.
    pub down: link::Config,
    /// From the clients to the ToR.
    pub up: link::Config,
    /// The ToR.
    pub tor: tor::Config,
    /// Whether the ToR has the nonce keys, so that it checks and marks proofs.
    pub tor_checks: bool,
    /// The replicas' policy.
    pub policy: server::Policy,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            replicas: vec![ReplicaConfig::default()],
            down: link::Config::default(),
            up: link::Config::default(),
            tor: tor::Config::default(),
            tor_checks: true,
            policy: server::Policy { trust_tor: true, ..server::Policy::default() },
        }
    }
}

/// A service that runs.
#[derive(Debug, Clone)]
pub struct Service {
    /// The ToR.
    pub tor: NodeId,
    /// The replicas.
    pub replicas: Vec<NodeId>,
    /// From the replicas to the clients.
    pub down: LinkId,
    /// From the clients to the ToR.
    pub up: LinkId,
}

/// Number of the simulated service.
pub const SERVICE: u32 = 1;

/// K and K' of a nonce epoch of the simulation.
pub fn nonce_keys(epoch: u16) -> (NonceKey, NonceKey) {
    let mut rng = Rng::new(u64::from(epoch) ^ 0x6b65_7973);
    let mut key = || NonceKey { k0: rng.u64() as u32, k1: rng.u64() as u32 };
    (key(), key())
}

/// A key ring with these seal and nonce epochs; the last of each is usable.
pub fn keys(seal: &[u16], nonce: &[u16]) -> Rc<KeyRing> {
    let mut ring = KeyRing::new(SERVICE);
    for epoch in seal {
        ring.add_seal(*epoch, &[epoch.to_be_bytes()[1] ^ 0x5a; 16]);
        ring.use_seal(*epoch);
    }
    for epoch in nonce {
        let (original, retransmitted) = nonce_keys(*epoch);
        let opening = MacKey::new(&[epoch.to_be_bytes()[1] ^ 0xa5; 16]);
        ring.add_nonce(*epoch, NonceKeys { original, retransmitted, opening });
        ring.use_nonce(*epoch);
    }
    Rc::new(ring)
}

impl Service {
    /// Adds a service to a network, with seal epoch 1 and nonce epoch 1.
    pub fn new(net: &mut Network, config: Config) -> Self {
        let down = net.add_link(config.down, End::Destination);
        Self::on(net, down, config.up, &config.replicas, config.tor, config.tor_checks, config.policy)
    }

    /// Adds a service that sends its responses through an existing link.
    pub fn on(
        net: &mut Network,
        down: LinkId,
        up: link::Config,
        replicas: &[ReplicaConfig],
        mut tor: tor::Config,
        tor_checks: bool,
        policy: server::Policy,
    ) -> Self {
        let ring = keys(&[1], &[1]);
        if tor_checks {
            let (k, k_prime) = nonce_keys(1);
            tor.nonce_keys = vec![(1, k, k_prime)];
        }
        tor.epochs = (1, 1);
        let clock = tor.clock;
        let rng = net.rng();
        let tor = net.add_node(Tor::new(tor, rng));
        let up = net.add_link(up, End::Node(tor));
        let mut nodes = vec![];
        for r in replicas {
            let rng = net.rng();
            let (life, delay, jitter) = (r.life.clone(), r.delay, r.jitter);
            let (poison, remembers) = (r.poison, r.remembers);
            let config = replica::Config { life, delay, jitter, clock, policy, poison, remembers };
            let down = r.down.clone().map_or(down, |own| net.add_link(own, End::Link(down)));
            let node = net.add_node(Replica::new(config, ring.clone(), down, rng));
            let rack = link::Config { delay: 10 * MICROSECOND, ..link::Config::default() };
            let link = net.add_link(rack, End::Node(node));
            net.with_node(tor, |t: &mut Tor, _| t.add(Member { node, link, life: r.life.clone() }));
            nodes.push(node);
        }
        Self { tor, replicas: nodes, down, up }
    }

    /// Adds a client.
    pub fn client(&self, net: &mut Network, plan: Plan) -> NodeId {
        net.add_node(Client::new(plan, self.tor, self.up))
    }

    /// Adds a client with repeated fetches.
    pub fn fetcher(&self, net: &mut Network, plan: fetches::Plan) -> NodeId {
        net.add_node(Fetcher::new(plan, self.tor, self.up))
    }

    /// Replaces the keys of every replica, and the ToR's newest epochs.
    pub fn rotate(&self, net: &mut Network, seal: &[u16], nonce: &[u16]) {
        let ring = keys(seal, nonce);
        for node in &self.replicas {
            net.with_node(*node, |r: &mut Replica, _| r.keys = ring.clone());
        }
        net.with_node(self.tor, |t: &mut Tor, _| {
            t.config.epochs = (seal.last().copied().unwrap_or(0), nonce.last().copied().unwrap_or(0));
            if !t.config.nonce_keys.is_empty() {
                t.config.nonce_keys =
                    nonce.iter().map(|e| (*e, nonce_keys(*e).0, nonce_keys(*e).1)).collect();
            }
        });
    }
}
