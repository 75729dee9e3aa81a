//! Receive filters built from a few rules.
//!
//! A frame passes if any rule accepts it. In a rule an empty list means "any". For packet sockets
//! the rules become a classic BPF program; for AF_XDP they become map entries of one XDP program
//! ([`rivulet_bpf::redirect`]). Both ignore one VLAN tag: the kernel removes it before a packet
//! socket's filter runs, and the XDP program skips it.
//!
//! A packet socket gets a copy of the frame, and the kernel processes the frame too. A frame that
//! XDP redirects never reaches the kernel. So with AF_XDP only the rules for frames that no other
//! program needs redirect ([`Rule::EtherType`], [`Rule::Tcp`], [`Rule::Local`], [`Rule::Tunnel`]);
//! frames that may also concern the kernel's connections ([`Rule::IcmpError`]) are copied.

mod program;
mod taken;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::OpenError;
pub use rivulet_bpf::redirect::{LocalPorts, State};
pub(crate) use taken::Taken;

/// One kind of frame to accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All frames of one EtherType (heartbeats, ARP).
    EtherType(u16),
    /// Unfragmented TCP segments directly over IPv4 or IPv6.
    Tcp(TcpRule),
    /// TCP segments to a client's own connections.
    Local(LocalRule),
    /// ICMP and ICMPv6 error messages (RFC 792 types 3, 11, 12; RFC 4443 types 1 to 4) to one of these
    /// addresses, or to any.
    IcmpError(Vec<IpAddr>),
    /// IP-in-IP and GUE between two hosts, whatever the inner packet.
    Tunnel(TunnelRule),
}

impl Rule {
    /// Whether the kernel needs these frames too.
    fn is_copied(&self) -> bool {
        matches!(self, Rule::IcmpError(_))
    }
}

/// UDP port of GUE (draft-ietf-intarea-gue).
pub const UDP_PORT_GUE: u16 = 6080;

/// The outer addresses of a tunnel, of one IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelRule {
    /// The encapsulating host.
    pub source: IpAddr,
    /// The decapsulating host.
    pub destination: IpAddr,
}

/// Selects TCP segments; every condition must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpRule {
    /// The first option must be kind 253 with this ExID (RFC 6994); `None` also accepts segments
    /// without it.
    pub exid: Option<u16>,
    /// The destination address must be one of these.
    pub destinations: Vec<IpAddr>,
    /// The destination port must be in one of these ranges.
    pub destination_ports: Vec<RangeInclusive<u16>>,
}

/// Selects the TCP segments of this host's connections. A packet socket takes all segments to these
/// addresses, because extra copies do no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRule {
    /// The option required on connections that are [open](State::Open), as in [`TcpRule::exid`].
    pub exid: u16,
    /// The destination address must be one of these.
    pub addresses: Vec<IpAddr>,
    /// State of each local port. A filter has at most one such set.
    pub ports: LocalPorts,
}

/// A compiled set of rules.
#[derive(Clone, Debug)]
pub struct Filter {
    rules: Arc<[Rule]>,
    program: Vec<libc::sock_filter>,
    /// The program of the rules themselves, if `program` accepts more.
    exact: Option<Vec<libc::sock_filter>>,
}

impl Filter {
    /// Compiles the rules. If they need more instructions than every kernel accepts
    /// ([`MAX_EXACT`]), the filter of a packet socket is widened to TCP segments and errors of any
    /// address and port, because it only gets copies. Fails if even that exceeds the kernel's limit
    /// of 4096 instructions.
    pub fn new(rules: &[Rule]) -> Result<Filter, OpenError> {
        let (mut program, mut exact) = (program::compile(rules), None);
        if program.len() > MAX_EXACT {
            exact = Some(std::mem::replace(&mut program, program::compile(&wider(rules))));
        }
        if program.len() > libc::BPF_MAXINSNS as usize {
            return Err(OpenError::Config(format!(
                "the receive filter needs {} BPF instructions, the kernel takes {}",
                program.len(),
                libc::BPF_MAXINSNS
            )));
        }
        Ok(Filter { rules: rules.into(), program, exact })
    }

    /// The rules whose frames AF_XDP takes away from the kernel.
    pub(crate) fn taken(&self) -> Result<Taken, OpenError> {
        Taken::new(self.rules.iter().filter(|r| !r.is_copied()))
    }

    /// The rules whose frames are only copied; may be empty.
    pub(crate) fn copied(&self) -> Result<Filter, OpenError> {
        let copied: Vec<Rule> = self.rules.iter().filter(|r| r.is_copied()).cloned().collect();
        Filter::new(&copied)
    }

    /// The instructions, for `SO_ATTACH_FILTER`.
    #[must_use]
    pub fn program(&self) -> &[libc::sock_filter] {
        &self.program
    }

    /// Whether a rule accepts a frame without a VLAN tag. Stays exact where [`program`](Filter::program) is widened:
    /// callers ask this to decide whether the kernel gets the frame, so an answer that is too wide takes frames away from it.
    #[must_use]
    pub fn accepts(&self, frame: &[u8]) -> bool {
        program::run(self.exact.as_ref().unwrap_or(&self.program), frame)
    }
}

/// Longest exact program: before Linux 6.8 `net.core.optmem_max` is 20,480 bytes, and an
/// instruction has 8.
const MAX_EXACT: usize = 2048;

/// Shorter rules that accept at least the same frames.
fn wider(rules: &[Rule]) -> Vec<Rule> {
    let mut wide: Vec<Rule> = Vec::new();
    for rule in rules {
        let rule = match rule {
            Rule::Tcp(rule) => Rule::Tcp(TcpRule { exid: rule.exid, ..TcpRule::default() }),
            Rule::IcmpError(_) => Rule::IcmpError(Vec::new()),
            other => other.clone(),
        };
        if !wide.contains(&rule) {
            wide.push(rule);
        }
    }
    wide
}

#[cfg(test)]
mod tests;
