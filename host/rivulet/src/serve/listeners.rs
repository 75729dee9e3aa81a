//! The kernel's TCP beside ours, on the same addresses and ports: part of what makes a service ready.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rivulet_server::service::{Plain, Service};

use super::connections::Connections;
use super::plain;
use crate::http::Site;

/// Listeners that could not be opened are tried again after this, and it is looked whether the addresses of the others still
/// stand on this host.
const RETRY: Duration = Duration::from_secs(1);

/// The kernel's listening sockets.
pub(super) struct Listeners {
    site: Site,
    connections: Connections,
    open: HashSet<SocketAddr>,
    /// Addresses that clients cannot reach, and why.
    failed: HashMap<SocketAddr, String>,
    tried: Instant,
}

impl Listeners {
    pub(super) fn new(site: Site, connections: Connections) -> Listeners {
        let (open, failed) = (HashSet::new(), HashMap::new());
        Listeners { site, connections, open, failed, tried: Instant::now() }
    }

    /// Opens missing listeners. A service address may appear on this host later than the service.
    pub(super) fn ensure<'a>(&mut self, services: impl Iterator<Item = &'a Service>) {
        let again = self.tried.elapsed() > RETRY;
        if again {
            self.tried = Instant::now();
        }
        for socket in wanted(services) {
            let known = self.open.contains(&socket) || self.failed.contains_key(&socket);
            if known && !again {
                continue;
            }
            match self.open(socket) {
                Ok(()) => {
                    if self.failed.remove(&socket).is_some() {
                        tracing::info!(address = %socket, "plain TCP is served");
                    }
                }
                Err(e) => {
                    if self.failed.insert(socket, e.to_string()).is_none() {
                        tracing::warn!(address = %socket, error = %e, "not ready: no plain TCP yet");
                    }
                }
            }
        }
    }

    /// A socket that listens; one that does already is good while its address stands here.
    fn open(&mut self, socket: SocketAddr) -> std::io::Result<()> {
        if self.open.contains(&socket) {
            return is_here(socket.ip());
        }
        plain::listen_among(socket, self.site.clone(), self.connections.clone())?;
        self.open.insert(socket);
        Ok(())
    }

    /// Numbers of the services with plain clients that are not served at one of their addresses.
    pub(super) fn lacking<'a>(&self, services: impl Iterator<Item = &'a Service>) -> Vec<u16> {
        if self.failed.is_empty() {
            return Vec::new();
        }
        let lacks = |service: &&Service| {
            wanted(std::iter::once(*service)).any(|socket| self.failed.contains_key(&socket))
        };
        services.filter(lacks).map(|service| service.keys.service).collect()
    }

    /// Why the first of them is not served, in words.
    pub(super) fn trouble<'a>(&self, services: impl Iterator<Item = &'a Service>) -> Option<String> {
        services
            .flat_map(|service| wanted(std::iter::once(service)).map(move |socket| (service, socket)))
            .find_map(|(service, socket)| {
                let why = self.failed.get(&socket)?;
                Some(format!("service {}: no plain TCP at {socket}: {why}", service.name))
            })
    }
}

/// Addresses at which the kernel's TCP answers.
fn wanted<'a>(services: impl Iterator<Item = &'a Service>) -> impl Iterator<Item = SocketAddr> {
    services.filter(|s| s.plain == Plain::Kernel).flat_map(Service::sockets)
}

/// An error if this host does not have the address (any more): the kernel then drops packets to it.
fn is_here(address: IpAddr) -> std::io::Result<()> {
    UdpSocket::bind((address, 0)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Objects;
    use rivulet_pktio::in_netns;
    use rivulet_pktio::testing::{Netns, eventually};
    use rivulet_server::keys::KeySet;
    use std::net::{TcpListener, TcpStream};

    fn service(id: u16, address: &str, port: u16) -> Service {
        Service {
            name: format!("s{id}"),
            addresses: vec![address.parse().unwrap()],
            port,
            keys: KeySet { service: id, ..KeySet::generate(1).unwrap() },
            member: None,
            trust_tor: false,
            plain: Plain::Kernel,
            drains: Plain::Kernel,
            horizon: Duration::from_secs(4),
            tunnels: Vec::new(),
            slots: None,
            trods: None,
            content: None,
        }
    }

    /// The next look is not put off.
    fn look(listeners: &mut Listeners, services: &[Service]) -> Vec<u16> {
        listeners.tried = Instant::now().checked_sub(2 * RETRY).unwrap();
        listeners.ensure(services.iter());
        listeners.lacking(services.iter())
    }

    #[test]
    fn service_lacks_addresses_it_cannot_listen_at() {
        let Some(netns) = Netns::new("ready") else { return };
        let dir = tempfile::tempdir().unwrap();
        let site = Site { objects: Objects::open(dir.path()).unwrap(), uploads: None };
        in_netns(Some(netns.name()), || {
            netns.ip("addr add 10.9.0.1/32 dev lo");
            netns.ip("addr add 10.9.0.3/32 dev lo");
            let taken = TcpListener::bind("10.9.0.3:80").unwrap();
            // Good, without its address, with a port that another program has, without IPv6 here.
            let services = [
                service(1, "10.9.0.1", 80),
                service(2, "10.9.0.2", 80),
                service(3, "10.9.0.3", 80),
                service(4, "fd00:9::4", 80),
            ];
            let mut listeners = Listeners::new(site, Connections::default());
            assert_eq!(look(&mut listeners, &services), [2, 3, 4]);
            let why = listeners.trouble(services.iter()).unwrap();
            assert!(why.starts_with("service s2: no plain TCP at 10.9.0.2:80: "), "{why}");
            drop(taken);
            netns.ip("addr add 10.9.0.2/32 dev lo");
            netns.ip("addr add fd00:9::4/128 dev lo nodad");
            assert_eq!(look(&mut listeners, &services), [0u16; 0]);
            assert_eq!(listeners.trouble(services.iter()), None);
            for service in &services {
                // The kernel makes the route to a fresh address of IPv6 a little later than the address.
                let socket = service.sockets().next().unwrap();
                eventually(&service.name, || TcpStream::connect(socket).is_ok());
            }
            netns.ip("addr del 10.9.0.2/32 dev lo");
            assert_eq!(look(&mut listeners, &services), [2], "its address went");
        })
        .unwrap();
    }
}
