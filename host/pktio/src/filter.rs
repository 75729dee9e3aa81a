//! Which frames reach a socket, from a few rules.
//!
//! A frame passes if any rule accepts it. In a rule an empty list means "any". Rules become a program of
//! classic BPF, which the kernel runs on a packet socket; for AF_XDP they become entries of the maps of one XDP program
//! ([`rivulet_bpf::redirect`]). One VLAN tag is looked past: under a packet socket the kernel has taken it out, the XDP
//! program steps over it.
//!
//! What a packet socket gets is a copy, and the kernel goes on with the frame. What XDP takes the kernel never
//! sees. So with AF_XDP only those rules take frames that nobody else has a use for ([`Rule::EtherType`],
//! [`Rule::Tcp`], [`Rule::Local`], [`Rule::Tunnel`]); of what concerns the kernel's connections too ([`Rule::IcmpError`]) a copy is
//! had.

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
    /// Everything of one EtherType (heartbeats, ARP).
    EtherType(u16),
    /// Unfragmented TCP segments directly over IPv4 or IPv6.
    Tcp(TcpRule),
    /// Such segments to a client's own connections.
    Local(LocalRule),
    /// ICMP and ICMPv6 error messages (RFC 792 types 3, 11, 12; RFC 4443 types 1 to 4) to one of these
    /// addresses, or to any.
    IcmpError(Vec<IpAddr>),
    /// IP-in-IP and GUE between two hosts, whatever is in it.
    Tunnel(TunnelRule),
}

impl Rule {
    /// The kernel has a use for what this accepts.
    fn is_heard(&self) -> bool {
        matches!(self, Rule::IcmpError(_))
    }
}

/// UDP port of GUE (draft-ietf-intarea-gue).
pub const UDP_PORT_GUE: u16 = 6080;

/// The outer addresses of a tunnel, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelRule {
    /// Who encapsulates.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
}

/// Which TCP segments; every condition must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpRule {
    /// The first option must be kind 253 with this ExID (RFC 6994); `None` accepts segments without.
    pub exid: Option<u16>,
    /// Destination address one of these.
    pub destinations: Vec<IpAddr>,
    /// Destination port in one of these.
    pub destination_ports: Vec<RangeInclusive<u16>>,
}

/// Which TCP segments come to connections of this host. A packet socket takes all to these addresses, since a copy too
/// many does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRule {
    /// The option of connections that are [open](State::Open), as in [`TcpRule::exid`].
    pub exid: u16,
    /// Destination address one of these.
    pub addresses: Vec<IpAddr>,
    /// What is taken of each port. One filter has one such set.
    pub ports: LocalPorts,
}

/// A compiled set of rules.
#[derive(Clone, Debug)]
pub struct Filter {
    rules: Arc<[Rule]>,
    program: Vec<libc::sock_filter>,
}

impl Filter {
    /// Compiles the rules. Of rules that need more instructions than sockets of all kernels take ([`MAX_EXACT`]), a packet
    /// socket gets more than they say: TCP segments and errors to any address and port, since it only has copies.
    /// An error if even that is more than the kernel takes (4096 instructions).
    pub fn new(rules: &[Rule]) -> Result<Filter, OpenError> {
        let mut program = program::compile(rules);
        if program.len() > MAX_EXACT {
            program = program::compile(&wider(rules));
        }
        if program.len() > libc::BPF_MAXINSNS as usize {
            return Err(OpenError::Config(format!(
                "the receive filter needs {} BPF instructions, the kernel takes {}",
                program.len(),
                libc::BPF_MAXINSNS
            )));
        }
        Ok(Filter { rules: rules.into(), program })
    }

    /// What AF_XDP takes from the kernel.
    pub(crate) fn taken(&self) -> Result<Taken, OpenError> {
        Taken::new(self.rules.iter().filter(|r| !r.is_heard()))
    }

    /// What AF_XDP has a copy of beside that; may be nothing.
    pub(crate) fn heard(&self) -> Result<Filter, OpenError> {
        let heard: Vec<Rule> = self.rules.iter().filter(|r| r.is_heard()).cloned().collect();
        Filter::new(&heard)
    }

    /// The instructions, for `SO_ATTACH_FILTER`.
    #[must_use]
    pub fn program(&self) -> &[libc::sock_filter] {
        &self.program
    }

    /// Runs the program on a frame without a VLAN tag, as the kernel would.
    #[must_use]
    pub fn accepts(&self, frame: &[u8]) -> bool {
        program::run(&self.program, frame)
    }
}

/// Longest program that is attached as it is: before Linux 6.8 `net.core.optmem_max` is 20,480 bytes, at 8 an instruction.
const MAX_EXACT: usize = 2048;

/// Rules of fewer words that accept all that these do.
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
