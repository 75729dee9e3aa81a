//! The kernel's listening sockets on the services' addresses and ports, beside the packet path; a
//! service is ready only with them.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rivulet_server::service::{Plain, Service};

use super::connections::Connections;
use super::plain;
use crate::http::Site;

/// Interval at which missing listeners are opened, and the others' addresses are checked.
const RETRY: Duration = Duration::from_secs(1);

/// The kernel's listening sockets.
pub(super) struct Listeners {
    site: Site,
    connections: Connections,
    open: HashSet<SocketAddr>,
    /// Addresses that clients cannot reach, with the reason.
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

    /// Opens a listening socket. An existing one is valid while this host has its address.
    fn open(&mut self, socket: SocketAddr) -> std::io::Result<()> {
        if self.open.contains(&socket) {
            return is_here(socket.ip());
        }
        plain::listen_among(socket, self.site.clone(), self.connections.clone())?;
        self.open.insert(socket);
        Ok(())
    }

    /// Numbers of the services with plain clients that have an address without a listener.
    pub(super) fn lacking<'a>(&self, services: impl Iterator<Item = &'a Service>) -> Vec<u16> {
        if self.failed.is_empty() {
            return Vec::new();
        }
        let lacks = |service: &&Service| {
            wanted(std::iter::once(*service)).any(|socket| self.failed.contains_key(&socket))
        };
        services.filter(lacks).map(|service| service.keys.service).collect()
    }

    /// Why the first such service is not served, in words.
    pub(super) fn trouble<'a>(&self, services: impl Iterator<Item = &'a Service>) -> Option<String> {
        services
            .flat_map(|service| wanted(std::iter::once(service)).map(move |socket| (service, socket)))
            .find_map(|(service, socket)| {
                let why = self.failed.get(&socket)?;
                Some(format!("service {}: no plain TCP at {socket}: {why}", service.name))
            })
    }
}

/// Addresses on which the kernel's TCP has to listen.
fn wanted<'a>(services: impl Iterator<Item = &'a Service>) -> impl Iterator<Item = SocketAddr> {
    services.filter(|s| s.plain == Plain::Kernel).flat_map(Service::sockets)
}

/// Returns an error if this host does not have the address (any more): the kernel then drops
/// packets to it.
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
        Service::standalone(
            &format!("s{id}"),
            vec![address.parse().unwrap()],
            port,
            KeySet { service: id, ..KeySet::generate(1).unwrap() },
            Plain::Kernel,
        )
    }

    /// Checks now, without waiting for the interval.
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
            // Four services: a working one, one without its address, one on a port that another
            // program uses, one with an IPv6 address that this host lacks.
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
                // The kernel adds the route to a new IPv6 address a little later than the address.
                let socket = service.sockets().next().unwrap();
                eventually(&service.name, || TcpStream::connect(socket).is_ok());
            }
            netns.ip("addr del 10.9.0.2/32 dev lo");
            assert_eq!(look(&mut listeners, &services), [2], "its address went");
        })
        .unwrap();
    }
}
