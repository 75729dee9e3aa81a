//! The services of a replica: addresses, keys, and the place in a pool.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rivulet_packet::slot::{Affinity, Slot, SlotKey};

use crate::keys::{KeyError, KeySet};
use crate::limits::{HEARTBEAT_US, HORIZON_US, MAX_HEARTBEATS_PER_SECOND, MAX_LIVENESS_US, is_host};

mod tls;
mod trods;

pub use crate::limits::{MAX_ADDRESSES, MAX_SERVICES, MAX_STORES, MAX_TUNNELS};
pub use tls::{Certificate, Forwarded, TicketKey, Tls};
pub use trods::{Failure, PoolMember, Trods};

/// A service on this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Name for logs and metrics.
    pub name: String,
    /// Service addresses; they are on a dummy device and are not announced.
    pub addresses: Vec<IpAddr>,
    /// TCP port.
    pub port: u16,
    /// Keys, shared by all replicas.
    pub keys: KeySet,
    /// Its place behind a ToR; `None` for a server without one.
    pub member: Option<Member>,
    /// Trust the ToR block in frames from the ToR's Ethernet address, and in no others. The ToR
    /// overwrites the block, and marks it when it has checked the proof.
    pub trust_tor: bool,
    /// How plain TCP clients at the same port are served.
    pub plain: Plain,
    /// How they were served before; connections begun that way continue. Equal to `plain` without a
    /// change.
    pub drains: Plain,
    /// Horizon: maximum age of an ordinary request.
    pub horizon: Duration,
    /// ToRs of other racks that send here too.
    pub tunnels: Vec<Tunnel>,
    /// How the ToR spreads flows over the replicas; `None` for a server without one.
    pub slots: Option<Slots>,
    /// Present exactly if plain TCP uses TRODS, now or for connections begun earlier.
    pub trods: Option<Trods>,
    /// Content that plain clients are answered from without state; `None`: whatever this replica
    /// has.
    pub content: Option<InForce>,
    /// TLS before the server, for clients of the kernel's TCP.
    pub tls: Option<Tls>,
}

/// The content that all replicas must serve to plain clients. A replica with other content answers
/// none of them and is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    /// Its version ([`Server::content`](crate::Server::content)); 0: not decided yet.
    pub version: u32,
    /// The first epoch of cookies of connections to this content; 0: all. Connections with earlier
    /// cookies are refused, because their answers may have begun with other content.
    pub epoch: u16,
}

/// How clients with plain TCP are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plain {
    /// Plain clients are not served.
    None,
    /// The kernel's TCP answers plain clients.
    #[default]
    Kernel,
    /// Each packet of a plain client is answered by itself, without state (`docs/plain.md`).
    Stateless,
    /// By the kernel's TCP; a connection outlives its replica (`docs/trods.md`).
    Trods,
}

impl std::str::FromStr for Plain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Plain::None),
            "kernel" => Ok(Plain::Kernel),
            "stateless" => Ok(Plain::Stateless),
            _ => Err("want none, kernel or stateless".into()),
        }
    }
}

impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Plain::None => "none",
            Plain::Kernel => "kernel",
            Plain::Stateless => "stateless",
            Plain::Trods => "trods",
        })
    }
}

/// Key and slots of the ToR's choice. With the set of live replicas they determine the replica of a
/// flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The service's slot key.
    pub key: SlotKey,
    /// The keys of slots: flows or client addresses.
    pub affinity: Affinity,
    /// The slots, a power of two of them.
    pub pairs: Arc<[Slot]>,
}

impl Slots {
    /// The replica of the flow while these are alive (bit r is replica r); `None` if none is.
    pub fn owner(&self, client: SocketAddr, service: SocketAddr, alive: u64) -> Option<u8> {
        let hash = match self.affinity {
            Affinity::Flow => self.key.flow(client, service),
            Affinity::Client => self.key.client(client.ip()),
        };
        rivulet_packet::slot::owner(hash, &self.pairs, alive)
    }
}

/// The path from another rack's ToR: IP-in-IP or GUE between these addresses, and heartbeats back
/// by UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The replica's own address.
    pub local: IpAddr,
    /// The ToR's.
    pub tor: IpAddr,
}

/// A place in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The pool.
    pub pool: u16,
    /// Index in it, 0 to 63.
    pub replica: u16,
    /// Ethernet address of the ToR, for heartbeats and responses.
    pub tor_mac: [u8; 6],
    /// Time between two heartbeats.
    pub heartbeat: Duration,
    /// If the oldest request waits this long, the replica is not ready.
    pub bound: Duration,
}

/// Why a service is refused.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Its keys are unusable.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// A field is out of range.
    #[error("service {0}: {1}")]
    Invalid(String, &'static str),
    /// It conflicts with the services before it.
    #[error("service {0}: {1}")]
    Set(String, String),
}

/// Horizon of a service without a controller.
pub const DEFAULT_HORIZON: Duration = Duration::from_secs(4);

impl Service {
    /// A service of a server without a ToR.
    #[must_use]
    pub fn standalone(name: &str, addresses: Vec<IpAddr>, port: u16, keys: KeySet, plain: Plain) -> Service {
        Service {
            name: name.into(),
            addresses,
            port,
            keys,
            member: None,
            trust_tor: false,
            plain,
            drains: plain,
            horizon: DEFAULT_HORIZON,
            tunnels: Vec::new(),
            slots: None,
            trods: None,
            content: None,
            tls: None,
        }
    }

    /// Checks the rules that the types do not express.
    pub fn check(&self) -> Result<(), ServiceError> {
        self.keys.check()?;
        let rule =
            |ok: bool, what| if ok { Ok(()) } else { Err(ServiceError::Invalid(self.name.clone(), what)) };
        rule(self.port != 0, "the port is 0")?;
        rule(!self.addresses.is_empty(), "no address")?;
        rule(self.addresses.len() <= MAX_ADDRESSES, "more than 16 addresses")?;
        rule(self.addresses.iter().all(|a| is_host(*a)), "an address that is not one host's")?;
        rule(within(self.horizon, HORIZON_US), "the horizon is not within 1 ms to an hour")?;
        rule(
            self.plain == self.drains || self.plain != Plain::None && self.drains != Plain::None,
            "nothing drains from or to no plain TCP",
        )?;
        rule(
            self.plain == self.drains || self.plain == Plain::Kernel || self.drains == Plain::Kernel,
            "nothing drains between stateless TCP and TRODS",
        )?;
        rule(self.trods.is_some() == self.has_trods(), "settings of TRODS without it, or it without them")?;
        if let Some(trods) = &self.trods {
            let own = self.member.map(|member| member.replica);
            rule(own.is_some(), "TRODS without a place in a pool")?;
            rule(self.slots.is_some(), "TRODS without slots")?;
            if let Some(what) = own.and_then(|own| trods.problem(own)) {
                return Err(ServiceError::Invalid(self.name.clone(), what));
            }
        }
        if let Some(tls) = &self.tls {
            let kernels = |plain| matches!(plain, Plain::Kernel | Plain::Trods);
            rule(kernels(self.plain) || kernels(self.drains), "TLS without the kernel's TCP or TRODS")?;
            if let Some(what) = tls.problem(self.sockets()) {
                return Err(ServiceError::Invalid(self.name.clone(), what));
            }
        }
        rule(self.tunnels.len() <= MAX_TUNNELS, "more than 16 tunnels")?;
        rule(self.tunnels.is_empty() || self.member.is_some(), "tunnels without a place in a pool")?;
        let right = |t: &Tunnel| {
            t.local.is_ipv4() == t.tor.is_ipv4() && is_host(t.local) && is_host(t.tor) && t.local != t.tor
        };
        rule(self.tunnels.iter().all(right), "a tunnel whose ends are not two hosts' of one family")?;
        if let Some(slots) = &self.slots {
            rule(slots.pairs.len().is_power_of_two(), "the slots are no power of two")?;
            rule(slots.pairs.iter().all(|s| s.first < 64 && s.second < 64), "a slot of a replica above 63")?;
        }
        if let Some(member) = &self.member {
            rule(member.replica < 64, "the replica index is not below 64")?;
            rule(
                member.tor_mac[0] & 1 == 0 && member.tor_mac != [0; 6],
                "the ToR's Ethernet address is not one",
            )?;
            rule(
                within(member.heartbeat, HEARTBEAT_US),
                "the heartbeat interval is not within 100 us to 10 s",
            )?;
            rule(member.bound >= member.heartbeat, "the liveness bound is below the heartbeat interval")?;
            rule(
                member.bound <= Duration::from_micros(MAX_LIVENESS_US),
                "the liveness bound is above 10 minutes",
            )?;
        }
        Ok(())
    }

    /// Whether plain segments are answered without state here: now, or on connections begun
    /// earlier.
    #[must_use]
    pub fn answers_plain(&self) -> bool {
        self.plain == Plain::Stateless || self.drains == Plain::Stateless
    }

    /// Whether the kernel has connections of its plain clients while others are answered without
    /// state.
    #[must_use]
    pub fn changes_hands(&self) -> bool {
        self.answers_plain() && self.plain != self.drains
    }

    /// Whether plain connections outlive their replica: now, or those begun earlier.
    #[must_use]
    pub fn has_trods(&self) -> bool {
        self.plain == Plain::Trods || self.drains == Plain::Trods
    }

    /// Whether the kernel's TCP serves new plain clients.
    #[must_use]
    pub fn is_kernels(&self) -> bool {
        matches!(self.plain, Plain::Kernel | Plain::Trods)
    }

    /// Addresses with the port.
    pub fn sockets(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|&ip| SocketAddr::new(ip, self.port))
    }
}

fn within(time: Duration, (least, most): (u64, u64)) -> bool {
    (Duration::from_micros(least)..=Duration::from_micros(most)).contains(&time)
}

/// Checks all services of a server together.
pub fn check_all(services: &[Service]) -> Result<(), ServiceError> {
    let mut whole = Whole::default();
    services.iter().try_for_each(|service| whole.add(service))
}

/// The services that can be served together, and for each of the others its index and error. An
/// error in one service does not affect the rest.
pub fn sort_out(services: Vec<Service>) -> (Vec<Service>, Vec<(u16, ServiceError)>) {
    let (mut whole, mut refused) = (Whole::default(), Vec::new());
    let mut accept = |service: &Service| match whole.add(service) {
        Ok(()) => true,
        Err(e) => {
            refused.push((service.keys.service, e));
            false
        }
    };
    let good = services.into_iter().filter(|service| accept(service)).collect();
    (good, refused)
}

/// Totals over the services accepted so far.
#[derive(Default)]
struct Whole {
    services: usize,
    sockets: HashSet<SocketAddr>,
    /// Heartbeats a second of each pool.
    beats: HashMap<u16, u64>,
}

impl Whole {
    /// Adds a service, if it can be served beside the others.
    fn add(&mut self, service: &Service) -> Result<(), ServiceError> {
        service.check()?;
        let set = |what: String| ServiceError::Set(service.name.clone(), what);
        if self.services == MAX_SERVICES {
            return Err(set(format!("more than {MAX_SERVICES} services")));
        }
        let mut own = HashSet::new();
        let mut taken = |socket: &SocketAddr| self.sockets.contains(socket) || !own.insert(*socket);
        if let Some(twice) = service.sockets().find(|socket| taken(socket)) {
            return Err(set(format!("{twice} stands twice")));
        }
        if let Some(member) = &service.member {
            let rate = 1_000_000 / (member.heartbeat.as_micros() as u64).max(1);
            let others: u64 =
                self.beats.iter().filter(|(pool, _)| **pool != member.pool).map(|(_, rate)| rate).sum();
            let rate = *self.beats.get(&member.pool).unwrap_or(&rate);
            if others + rate > MAX_HEARTBEATS_PER_SECOND {
                return Err(set(format!("more than {MAX_HEARTBEATS_PER_SECOND} heartbeats a second")));
            }
            self.beats.insert(member.pool, rate);
        }
        self.services += 1;
        self.sockets.extend(service.sockets());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
