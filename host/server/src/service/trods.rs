//! What a replica knows of a service whose plain connections outlive their replica (TRODS, `docs/trods.md`).

use std::net::{IpAddr, SocketAddr};

use crate::limits::{MAX_STORES, is_host};

/// Octets of the path of a list.
const MAX_PATH: usize = 1024;
/// Octets of a replica's name.
const MAX_NAME: usize = 63;

/// Where records are kept, and who may adopt a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trods {
    /// Servers that speak memcached's text protocol, in the order in which they are to be tried; there may be none with `objects`.
    pub store: Vec<SocketAddr>,
    /// In how many of them each record is: 1 or 2, and never on this replica's host alone.
    pub copies: u8,
    /// What becomes of connections while no server of the store answers.
    pub failure: Failure,
    /// The server generates the same octets for the same request anywhere and at any time.
    pub deterministic: bool,
    /// Behind an adoption the own server sees the service's address as the client; else it sees the client's.
    pub as_server: bool,
    /// A connection in the middle of an object of which nobody has compared the bytes goes on; else it is reset.
    pub trust_unknown: bool,
    /// Where the own server has the list of targets that timestamps name; what they cannot is recorded, if there is a store.
    pub objects: Option<String>,
    /// The pool, this replica included, by index.
    pub members: Vec<PoolMember>,
}

/// What becomes of connections while no server of the store answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Failure {
    /// They go on unprotected.
    #[default]
    Open,
    /// Nothing is released that is not stored.
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
    /// Of its records, as its agent reported it last; 0 while none did.
    pub incarnation: u32,
}

impl Trods {
    /// The replica with this index.
    #[must_use]
    pub fn member(&self, replica: u8) -> Option<&PoolMember> {
        let at = self.members.binary_search_by_key(&replica, |m| m.replica).ok()?;
        self.members.get(at)
    }

    /// What is out of range, if anything is. `own` is this replica's index.
    pub(super) fn problem(&self, own: u16) -> Option<&'static str> {
        if !self.members.is_sorted_by(|a, b| a.replica < b.replica) {
            return Some("members are not in order");
        }
        let Some(here) = u8::try_from(own).ok().and_then(|own| self.member(own)) else {
            return Some("this replica is not among the pool's members");
        };
        let servers = &self.store;
        // On loopback each replica would have another.
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
                "a member's name has not 1 to 63 octets",
            ),
        ]
        .into_iter()
        .find_map(|(bad, what)| bad.then_some(what))
    }
}
