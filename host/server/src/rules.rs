//! Which packets a server takes, and keeps from the kernel.

use std::net::IpAddr;

use rivulet_packet::option::EX_ID;
use rivulet_pktio::filter::{Rule, TcpRule, TunnelRule};
use rivulet_pktio::guard::Share;
use rivulet_pktio::{Filter, OpenError};

use crate::service::{Plain, Service};

/// Segments of ours to the services, and plain ones where those are answered here too. Other ports of a service address are
/// the kernel's: what is closed there is refused, what speaks plain TCP answers.
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

/// The kernel's share of them. While plain TCP changes hands, connections that began before go on; of those without state
/// nobody knows, so what the kernel has no socket for it does not refuse.
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

/// What a server takes: segments of the services, and errors about what was sent from their addresses. Without services
/// nothing passes.
#[derive(Debug)]
pub(crate) struct Filters {
    /// What comes without a tunnel, or in one.
    pub(crate) inner: Filter,
    /// What is taken from the interface: that, and the tunnels.
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
