//! Configuration of a service with connections that outlive their replica (TRODS, `docs/trods.md`).

use std::net::{IpAddr, SocketAddr};

use crate::limits::{MAX_STORES, is_host};

/// Maximum length of the path of a list, in bytes.
const MAX_PATH: usize = 1024;
/// Maximum length of a replica's name, in bytes.
const MAX_NAME: usize = 63;

/// Where records are stored, and which replicas may adopt a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trods {
    /// Servers with memcached's text protocol, in the order of preference; may be empty with
    /// `objects`.
    pub store: Vec<SocketAddr>,
    /// The number of servers that store each record: 1 or 2, never only on this replica's host.
    pub copies: u8,
    /// How connections continue while no server of the store answers.
    pub failure: Failure,
    /// The server generates the same bytes for the same request on every replica at any time.
    pub deterministic: bool,
    /// After an adoption the local server sees the service's address as the client's; otherwise the
    /// client's own.
    pub as_server: bool,
    /// A connection in the middle of an object with bytes that were not compared continues;
    /// otherwise it is reset.
    pub trust_unknown: bool,
    /// Where the local server has the list of targets that timestamps can name. Other targets are
    /// recorded, if there is a store.
    pub objects: Option<String>,
    /// The replicas of the pool, this one included, by index.
    pub members: Vec<PoolMember>,
}

/// How connections continue while no server of the store answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failure {
    /// Unprotected.
    #[default]
    Open,
    /// Nothing is released before it is stored.
    Closed,
}

/// A replica of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolMember {
    /// Index in the pool, below 64.
    pub replica: u8,
    /// Its name in the controller's configuration.
    pub name: String,
    /// Its host's address; a store with this address is on the same host.
    pub address: IpAddr,
    /// Incarnation of its records, from its agent's last report; 0 without one.
    pub incarnation: u32,
}

impl Trods {
    /// The replica with this index.
    #[must_use]
    pub fn member(&self, replica: u8) -> Option<&PoolMember> {
        let at = self.members.binary_search_by_key(&replica, |m| m.replica).ok()?;
        self.members.get(at)
    }

    /// The first value that is out of range, if any. `own` is this replica's index.
    pub(super) fn problem(&self, own: u16) -> Option<&'static str> {
        if !self.members.is_sorted_by(|a, b| a.replica < b.replica) {
            return Some("members are not in order");
        }
        let Some(here) = u8::try_from(own).ok().and_then(|own| self.member(own)) else {
            return Some("this replica is not among the pool's members");
        };
        let servers = &self.store;
        // A loopback address would be a different store for each replica.
        let elsewhere = servers.iter().filter(|s| s.ip() != here.address).count();
        let is_kept = self.objects.is_none() || !servers.is_empty();
        let is_target = |path: &String| {
            path.starts_with('/') && path.len() <= MAX_PATH && path.bytes().all(|b| b.is_ascii_graphic())
        };
        [
            (self.objects.as_ref().is_some_and(|path| !is_target(path)), "the list of objects is at no path"),
            (is_kept && !(1..=MAX_STORES).contains(&servers.len()), "the store has not 1 to 8 servers"),
            (
                servers.iter().any(|s| !is_host(s.ip()) || s.port() == 0),
                "a server of the store that is not one host's port",
            ),
            (
                servers.iter().enumerate().any(|(at, server)| servers[..at].contains(server)),
                "a server of the store stands twice",
            ),
            (!(1..=2).contains(&self.copies), "copies of a record are 1 or 2"),
            (
                is_kept && servers.len() < usize::from(self.copies),
                "more copies of a record than servers of the store",
            ),
            (is_kept && elsewhere == 0, "the store is on this replica's host alone"),
            (self.members.iter().any(|m| m.replica >= 64), "a member's index is not below 64"),
            (
                self.members.iter().any(|m| m.name.is_empty() || m.name.len() > MAX_NAME),
                "a member's name is not 1 to 63 bytes long",
            ),
        ]
        .into_iter()
        .find_map(|(bad, what)| bad.then_some(what))
    }
}
