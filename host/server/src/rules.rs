//! Which packets a server takes, and which it keeps from the kernel.

use std::net::IpAddr;

use rivulet_packet::option::EX_ID;
use rivulet_pktio::filter::{Rule, TcpRule, TunnelRule};
use rivulet_pktio::guard::Share;
use rivulet_pktio::{Filter, OpenError};

use crate::service::{Plain, Service};

/// Our segments to the services, and plain ones where they are answered here too. The kernel has
/// all other ports of a service address: it refuses closed ports, and other servers may listen
/// there.
pub(crate) fn segments<'a>(services: impl IntoIterator<Item = &'a Service>) -> Vec<TcpRule> {
    services.into_iter().map(|s| segment(s, s.answers_plain())).collect()
}

fn segment(service: &Service, plain: bool) -> TcpRule {
    TcpRule {
        exid: (!plain).then_some(EX_ID),
        destinations: service.addresses.clone(),
        destination_ports: vec![service.port..=service.port],
    }
}

/// The kernel's share of these segments. While plain TCP moves between the kernel and stateless
/// TCP, earlier connections continue. The kernel has no record of stateless ones, so it must not
/// send RSTs for segments without a socket.
pub(crate) fn shares<'a>(services: impl IntoIterator<Item = &'a Service>) -> Vec<(TcpRule, Share)> {
    let mut shares = Vec::new();
    for service in services {
        match (service.plain, service.drains) {
            (Plain::Stateless, Plain::Kernel) => shares.push((segment(service, true), Share::Present)),
            (Plain::Kernel, Plain::Stateless) => {
                shares.push((segment(service, false), Share::None));
                shares.push((segment(service, true), Share::Silent));
            }
            _ => shares.push((segment(service, service.answers_plain()), Share::None)),
        }
    }
    shares
}

/// The packets that a server takes: segments of the services, and ICMP errors about packets from
/// their addresses. Without services it takes none.
#[derive(Debug)]
pub(crate) struct Filters {
    /// For packets outside or inside a tunnel.
    pub(crate) inner: Filter,
    /// For the interface: the same, and the tunnels.
    pub(crate) outer: Filter,
}

impl Filters {
    pub(crate) fn new(
        rules: &[TcpRule],
        addresses: &[IpAddr],
        tunnels: &[TunnelRule],
    ) -> Result<Filters, OpenError> {
        let errors = (!rules.is_empty()).then(|| Rule::IcmpError(addresses.to_vec()));
        let inner: Vec<Rule> = rules.iter().cloned().map(Rule::Tcp).chain(errors).collect();
        let tunnels = tunnels.iter().copied().map(Rule::Tunnel);
        let outer: Vec<Rule> = inner.iter().cloned().chain(tunnels).collect();
        Ok(Filters { inner: Filter::new(&inner)?, outer: Filter::new(&outer)? })
    }
}
