//! ToRs of other racks: they send packets through a tunnel and receive heartbeats over UDP.
//!
//! They do not see the responses, which take the normal route. The network between them and this
//! replica could forge their block, so it is trusted only with a tag that only they and this
//! replica can make.

mod beacon;
mod block;
mod device;
mod inner;

use std::net::IpAddr;
use std::ops::Range;

use rivulet_packet::EthHeader;
use rivulet_pktio::filter::{TunnelRule, UDP_PORT_GUE};
use rivulet_pktio::guard::{GuardError, Table};
use rivulet_pktio::{Filter, Interface};

pub(crate) use self::beacon::Beacon;
pub(crate) use self::block::Blocks;
use self::device::Device;
use self::inner::inner;
use crate::service::{Plain, Service, Tunnel};

/// Retry interval after a heartbeat socket or the device could not be opened, microseconds.
const RETRY: u64 = 1_000_000;

/// Classification of a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Not a tunnel of ours: use the frame itself.
    Frame,
    /// Arrived in a tunnel: the inner frame, with the outer Ethernet header in front.
    Tunnelled(Range<usize>),
    /// Not for this process; the kernel may take it.
    Elsewhere,
}

/// The tunnels of all services.
#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    ways: Vec<Tunnel>,
    /// Addresses of services that leave plain TCP to the kernel.
    plain: Vec<IpAddr>,
    device: Option<Device>,
    next_device: u64,
    guard: Option<Table>,
}

impl Tunnels {
    /// Sets up the tunnels of these services. `leads`: this worker keeps the kernel from answering,
    /// for all workers. On an error nothing changes.
    pub fn replace(
        &mut self,
        services: &[Service],
        interface: &Interface,
        leads: bool,
    ) -> Result<(), GuardError> {
        let mut wanted: Vec<Tunnel> = Vec::new();
        for tunnel in services.iter().flat_map(|s| &s.tunnels) {
            if !wanted.contains(tunnel) {
                wanted.push(*tunnel);
            }
        }
        let plain = services.iter().filter(|s| s.plain == Plain::Kernel && !s.tunnels.is_empty());
        let plain: Vec<IpAddr> = plain.flat_map(|s| s.addresses.iter().copied()).collect();
        if self.ways != wanted {
            if wanted.is_empty() || !leads {
                self.guard = None;
            } else {
                let table = self.guard.take().unwrap_or_else(|| Table::new(interface.netns()));
                let done = table.replace(&guard(interface.name(), &wanted));
                self.guard = Some(table);
                done?;
            }
            self.ways = wanted;
        }
        if plain.is_empty() {
            self.device = None;
        }
        self.plain = plain;
        Ok(())
    }

    /// Installs the guards again: the kernel drops them with a deleted interface.
    pub fn reguard(&mut self, interface: &Interface) -> Result<(), GuardError> {
        self.guard.as_ref().map_or(Ok(()), |table| table.replace(&guard(interface.name(), &self.ways)))
    }

    /// Whether there are no tunnels.
    pub fn is_empty(&self) -> bool {
        self.ways.is_empty()
    }

    /// Classifies a frame. `filter` is the filter for frames without a tunnel; inner packets that
    /// it accepts are for this process.
    pub fn open(&mut self, frame: &mut [u8], filter: &Filter, interface: &Interface, now: u64) -> Content {
        let Some(found) = inner(frame) else { return Content::Frame };
        if !self.ways.contains(&Tunnel { local: found.destination, tor: found.source }) {
            return Content::Frame;
        }
        // The filter expects frames without a tag.
        let Range { start, end } = found.packet;
        let header = EthHeader::parse(frame).map_or(eth_length(None), |(h, _)| eth_length(h.vlan));
        let untagged = start - eth_length(None);
        frame.copy_within(..12, untagged);
        frame[start - 2..start].copy_from_slice(&found.ether_type.to_be_bytes());
        if filter.accepts(&frame[untagged..end]) {
            // The outer headers are longer than the Ethernet header and tag.
            frame.copy_within(..header - 2, start - header);
            return Content::Tunnelled(start - header..end);
        }
        if let Some(packet) = frame.get(start..end)
            && destination(packet).is_some_and(|to| self.plain.contains(&to))
        {
            self.deliver(start..end, frame, interface, now);
        }
        Content::Elsewhere
    }

    fn deliver(&mut self, packet: Range<usize>, frame: &[u8], interface: &Interface, now: u64) {
        if self.device.is_none() {
            if now < self.next_device {
                return;
            }
            self.next_device = now + RETRY;
            match Device::open(interface.netns()) {
                Ok(device) => self.device = Some(device),
                Err(e) => {
                    tracing::warn!(error = %e, "plain TCP that other racks send here is lost: no TUN device");
                    return;
                }
            }
        }
        if let Some(device) = &mut self.device
            && let Err(e) = device.deliver(&frame[packet])
        {
            tracing::debug!(error = %e, "the kernel did not take a packet");
        }
    }
}

/// The receive filter's rules.
pub(crate) fn rules<'a>(services: impl IntoIterator<Item = &'a Service>) -> Vec<TunnelRule> {
    let mut rules = Vec::new();
    for Tunnel { local, tor } in services.into_iter().flat_map(|s| &s.tunnels) {
        let rule = TunnelRule { source: *tor, destination: *local };
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    rules
}

fn eth_length(vlan: Option<u16>) -> usize {
    EthHeader { vlan, ..EthHeader::default() }.length()
}

/// The destination of an IP packet.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(<[u8; 4]>::try_from(packet.get(16..20)?).ok()?.into()),
        6 => Some(<[u8; 16]>::try_from(packet.get(24..40)?).ok()?.into()),
        _ => None,
    }
}

/// Keeps the kernel, which may have no tunnel device, from sending ICMP errors to the ToRs.
fn guard(interface: &str, tunnels: &[Tunnel]) -> String {
    let mut lines = format!(
        " chain tunnels {{\n  type filter hook ingress device \"{interface}\" priority 0; policy accept;\n"
    );
    for Tunnel { local, tor } in tunnels {
        let family = if local.is_ipv4() { "ip" } else { "ip6" };
        let ends = format!("{family} saddr {tor} {family} daddr {local}");
        lines += &format!("  {ends} meta l4proto {{ 4, 41 }} counter drop\n");
        lines += &format!("  {ends} udp dport {UDP_PORT_GUE} counter drop\n");
    }
    lines + " }\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 TCP segment to 10.9.0.1:80, in IP-in-IP from the ToR 10.0.3.254 to 10.0.2.1, with or
    /// without a VLAN tag.
    fn tunnelled(tagged: bool, port: u8) -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0, 0xfe];
        f.extend(if tagged { vec![0x81, 0, 0, 7] } else { vec![] });
        f.extend([8, 0, 0x45, 0, 0, 60, 0, 0, 0x40, 0, 63, 4, 0, 0, 10, 0, 3, 254, 10, 0, 2, 1]);
        f.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 63, 6, 0, 0, 10, 0, 1, 1, 10, 9, 0, 1]);
        f.extend([0x30, 0, 0, port, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        f
    }

    fn one_way() -> Tunnels {
        let tunnel = Tunnel { local: "10.0.2.1".parse().unwrap(), tor: "10.0.3.254".parse().unwrap() };
        Tunnels { ways: vec![tunnel], ..Tunnels::default() }
    }

    #[test]
    fn inner_frame_keeps_its_ethernet_header() {
        let rule = rivulet_pktio::filter::TcpRule { destination_ports: vec![80..=80], ..Default::default() };
        let filter = Filter::new(&[rivulet_pktio::filter::Rule::Tcp(rule)]).unwrap();
        let interface = Interface::new(None, "eth0").unwrap();
        for tagged in [false, true] {
            let outer = tunnelled(tagged, 80);
            let mut frame = outer.clone();
            let Content::Tunnelled(place) = one_way().open(&mut frame, &filter, &interface, 0) else {
                panic!("not taken")
            };
            let length = if tagged { 18 } else { 14 };
            assert_eq!(frame[place.clone()][..length], outer[..length], "tagged {tagged}");
            assert_eq!(frame[place][length..], outer[length + 20..]);
        }
        // Too many rules for the filter of a packet socket, which then admits more than they name.
        let rules = (0..1024u16).map(|n| rivulet_pktio::filter::TcpRule {
            destinations: vec![[10, 8, (n >> 8) as u8, n as u8].into()],
            destination_ports: vec![443..=443],
            ..Default::default()
        });
        let rules: Vec<_> = rules.map(rivulet_pktio::filter::Rule::Tcp).collect();
        let wide = Filter::new(&rules).unwrap();
        assert_eq!(one_way().open(&mut tunnelled(false, 80), &wide, &interface, 0), Content::Elsewhere);
        let mut other = tunnelled(false, 81);
        assert_eq!(one_way().open(&mut other, &filter, &interface, 0), Content::Elsewhere);
        let mut strange = tunnelled(false, 80);
        strange[29] = 253;
        assert_eq!(one_way().open(&mut strange, &filter, &interface, 0), Content::Frame, "another ToR's");
    }
}
