//! Hands a port over between the kernel's TCP and another stack, while existing connections
//! continue.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::{GuardError, rule_lines};
use crate::filter::TcpRule;
use crate::in_netns;

/// Largest number of the kernel's connections that are let through; further ones end with the
/// handover.
const CONNECTIONS: usize = 65536;

/// The kernel's share of the segments that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// No segment.
    #[default]
    None,
    /// Segments of the connections that the kernel has when this is installed, except SYNs.
    Present,
    /// All segments, but the kernel's resets for missing sockets are dropped, because another stack
    /// answers them. Such a reset answers a segment with ACK and carries no ACK itself (RFC 9293
    /// section 3.10.7.1); resets with ACK pass.
    Silent,
}

/// Appends the rule's expressions for each family to the ingress and egress chains.
pub(super) fn lines(rule: &TcpRule, share: Share, ingress: &mut String, egress: &mut String) {
    for line in rule_lines(rule) {
        match share {
            Share::None => {
                let _ = writeln!(ingress, "  {line} counter drop");
            }
            Share::Present => {
                // An expression with addresses belongs to one family, one without to both.
                for (ip, family) in [("ip", 4), ("ip6", 6)] {
                    if line.contains(if family == 4 { "ip6 daddr" } else { "ip daddr" }) {
                        continue;
                    }
                    let from = format!("{ip} saddr . tcp sport . {ip} daddr . tcp dport");
                    // From its next SYN on, a connection belongs to the other stack.
                    let _ = writeln!(
                        ingress,
                        "  {line} tcp flags & (syn | ack) == syn delete @kept{family} {{ {from} }}"
                    );
                    let _ = writeln!(ingress, "  {line} {from} @kept{family} accept");
                }
                let _ = writeln!(ingress, "  {line} counter drop");
            }
            Share::Silent => {}
        }
    }
    if share == Share::Silent {
        for address in &rule.destinations {
            let ip = if address.is_ipv6() { "ip6" } else { "ip" };
            for ports in &rule.destination_ports {
                let (from, to) = (ports.start(), ports.end());
                let _ = writeln!(
                    egress,
                    "  {ip} saddr {address} tcp sport {from}-{to} tcp flags == rst counter drop"
                );
            }
        }
    }
}

/// The sets of connections that the kernel keeps, for rules that need them; empty if none does.
pub(super) fn sets(netns: Option<&str>, rules: &[(TcpRule, Share)]) -> Result<String, GuardError> {
    let mut text = String::new();
    if rules.iter().all(|(_, share)| *share != Share::Present) {
        return Ok(text);
    }
    let kept: Vec<(SocketAddr, SocketAddr)> = in_netns(netns, connections)?
        .into_iter()
        .filter(|(local, _)| {
            rules.iter().any(|(rule, share)| {
                *share == Share::Present
                    && rule.destinations.contains(&local.ip())
                    && rule.destination_ports.iter().any(|ports| ports.contains(&local.port()))
            })
        })
        .take(CONNECTIONS)
        .collect();
    for (family, address) in [("4", "ipv4_addr"), ("6", "ipv6_addr")] {
        let mine: Vec<String> = kept
            .iter()
            .filter(|(local, _)| local.is_ipv6() == (family == "6"))
            .map(|(local, remote)| {
                format!("{} . {} . {} . {}", remote.ip(), remote.port(), local.ip(), local.port())
            })
            .collect();
        let elements = match mine.is_empty() {
            true => String::new(),
            false => format!(" elements = {{ {} }};", mine.join(", ")),
        };
        let _ = writeln!(
            text,
            " set kept{family} {{ type {address} . inet_service . {address} . inet_service; flags dynamic; \
             size {CONNECTIONS};{elements} }}"
        );
    }
    Ok(text)
}

/// Local and remote ends of the TCP connections in the calling thread's namespace that are not
/// closed.
fn connections() -> Vec<(SocketAddr, SocketAddr)> {
    let mut found = Vec::new();
    for list in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let text = std::fs::read_to_string(list).unwrap_or_default();
        found.extend(text.lines().skip(1).filter_map(connection));
    }
    found
}

/// Parses a line of these lists; `None` for sockets that listen (0A), are closed (07) or in
/// TIME_WAIT (06).
fn connection(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (end(fields.next()?)?, end(fields.next()?)?, fields.next()?);
    (!matches!(state, "0A" | "07" | "06")).then_some((local, remote))
}

/// Parses a hexadecimal address and port: the address as 32-bit words in host byte order, the port
/// as a number.
fn end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut octets = [0; 16];
            for (n, to) in octets.chunks_exact_mut(4).enumerate() {
                to.copy_from_slice(&word(n)?);
            }
            // A dual-stack socket shows IPv4 addresses as mapped ones.
            IpAddr::from(octets).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn connections_of_both_families_are_found_and_listeners_are_not() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let here = listener.local_addr().unwrap();
            assert!(!connections().iter().any(|(local, _)| *local == here));
            let client = TcpStream::connect(here).unwrap();
            let (server, from) = listener.accept().unwrap();
            assert_eq!(from, client.local_addr().unwrap());
            assert!(connections().contains(&(here, from)) && connections().contains(&(from, here)));
            drop((client, server));
        }
    }

    #[test]
    fn mapped_addresses_and_nonsense() {
        let mapped = end("0000000000000000FFFF00000100007F:0050").unwrap();
        assert_eq!(mapped, "127.0.0.1:80".parse().unwrap());
        for text in ["", ":", "0100007F", "0100007F:", "0100007F:1FFFF", "01:0050", "x100007F:0050"] {
            assert_eq!(end(text), None, "{text}");
        }
        let line = |state| format!("  0: 0100007F:0050 0200007F:9C40 {state} 00000000:00000000 00:00000000");
        assert!(connection(&line("01")).is_some() && connection(&line("03")).is_some());
        assert!(connection(&line("0A")).is_none() && connection(&line("06")).is_none());
        assert!(connection("").is_none() && connection("0: 1:2 3").is_none());
    }

    #[test]
    fn kept_connections_pass_before_the_drop() {
        let rule = TcpRule {
            destinations: vec!["10.9.0.1".parse().unwrap()],
            destination_ports: vec![80..=80],
            ..TcpRule::default()
        };
        let text = |share| {
            let (mut ingress, mut egress) = (String::new(), String::new());
            lines(&rule, share, &mut ingress, &mut egress);
            (ingress, egress)
        };
        assert_eq!(text(Share::None).0.lines().count(), 1);
        let (ingress, egress) = text(Share::Present);
        let verdicts: Vec<&str> = ingress.lines().filter_map(|line| line.split(' ').next_back()).collect();
        assert_eq!((verdicts, egress.as_str()), (vec!["}", "accept", "drop"], ""));
        let (ingress, egress) = text(Share::Silent);
        assert_eq!(ingress, "");
        assert_eq!(egress, "  ip saddr 10.9.0.1 tcp sport 80-80 tcp flags == rst counter drop\n");
        assert_eq!(sets(None, &[(rule.clone(), Share::None), (rule, Share::Silent)]).unwrap(), "");
    }
}
