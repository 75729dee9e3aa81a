//! Which packets a server takes, and keeps from the kernel.

use std::net::IpAddr;

use rivulet_packet::option::EX_ID;
use rivulet_pktio::filter::{Rule, TcpRule};
use rivulet_pktio::{Filter, OpenError};

use crate::service::Service;

/// Segments of ours to the services. Other ports of a service address are the kernel's: what is closed there is
/// refused, what speaks plain TCP answers.
pub(crate) fn segments<'a>(services: impl IntoIterator<Item = &'a Service>) -> Vec<TcpRule> {
    let rule = |s: &Service| TcpRule {
        exid: Some(EX_ID),
        destinations: s.addresses.clone(),
        destination_ports: vec![s.port..=s.port],
        ..TcpRule::default()
    };
    services.into_iter().map(rule).collect()
}

/// Segments of the services, and errors about what was sent from their addresses. Without services nothing passes.
pub(crate) fn filter(rules: &[TcpRule], addresses: &[IpAddr]) -> Result<Filter, OpenError> {
    if rules.is_empty() {
        return Filter::new(&[]);
    }
    let errors = Rule::IcmpError(addresses.to_vec());
    Filter::new(&rules.iter().cloned().map(Rule::Tcp).chain([errors]).collect::<Vec<_>>())
}
